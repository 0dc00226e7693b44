"""`kreplog quota`: before any broker runs, beside running ones, over Kafka's protocol; and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cluster.local_cluster import LocalCluster
from tests.commands.test_reaching import Outcome, Run, run
from tests.integration.clusters import end, eventually

__all__ = ["run"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker that runs."""
    made = LocalCluster.create(tmp_path_factory.mktemp("quotas") / "c", [0], 0)
    made.start()
    try:
        yield made
    finally:
        end(made)


def test_quotas_are_set_before_any_broker_runs_and_a_broker_that_starts_has_them(
    tmp_path_factory: pytest.TempPathFactory, run: Run
) -> None:
    made = LocalCluster.create(tmp_path_factory.mktemp("quotas") / "c", [0], 0)
    at = ("-c", made.directory)
    assert run("quota", "list", *at) == Outcome(0, "there is no quota\n", "")
    assert run("quota", "set", "producer_byte_rate=1048576", "--client-defaults", *at) == Outcome(
        0, "client-id <default> has producer_byte_rate=1048576\n", ""
    )
    assert not run("quota", "set", "request_percentage=0.5", "--user", "alice", "--client", "app", *at).code
    listed = "client-id <default>: producer_byte_rate=1048576\nuser alice, client-id app: request_percentage=0.5\n"
    assert run("quota", "list", *at).out == listed
    try:
        made.start()
        eventually(
            lambda: run("quota", "list", "-b", made.bootstrap()).out == listed, "the broker does not know the quotas"
        )
        assert run("quota", "remove", "--client-defaults", "-b", made.bootstrap()).code == 0
        assert run("quota", "list", *at).out == "user alice, client-id app: request_percentage=0.5\n"
    finally:
        end(made)


def test_over_the_protocol(cluster: LocalCluster, run: Run) -> None:
    at = ("-b", cluster.bootstrap(), "--json")
    name = "b\u00f6b, ="
    outcome = run("quota", "set", "producer_byte_rate=1e6", "controller_mutation_rate=2.5", "--user", name, *at)
    own = {"user": name, "quotas": {"controller_mutation_rate": 2.5, "producer_byte_rate": 1e6}}
    assert json.loads(outcome.out) == own
    run("quota", "set", "consumer_byte_rate=5", "--user-defaults", "--client", "app", *at)

    def listed(*arguments: str) -> Any:
        return json.loads(run("quota", "list", *arguments, *at).out)["quotas"]

    of_default = {"user": None, "client-id": "app", "quotas": {"consumer_byte_rate": 5}}
    assert listed() == [of_default, own]
    assert listed("--client", "app") == listed("--user-defaults") == [of_default]
    assert listed("--user", "carol") == []
    removed = run("quota", "remove", "producer_byte_rate", "--user", name, *at)
    assert json.loads(removed.out) == {"user": name, "removed": ["producer_byte_rate"]}
    assert listed("--user", name) == [{"user": name, "quotas": {"controller_mutation_rate": 2.5}}]


def test_quotas_of_addresses(cluster: LocalCluster, run: Run) -> None:
    for at in (("-c", cluster.directory), ("-b", cluster.bootstrap())):
        done = run("quota", "set", "connection_creation_rate=5", "--ip", "2001:DB8::0:1", *at)
        assert done == Outcome(0, "ip 2001:db8::1 has connection_creation_rate=5\n", "")
        assert not run("quota", "set", "connection_creation_rate=100", "--ip-defaults", *at).code
        eventually(
            lambda: (
                run("quota", "list", "--ip", "2001:db8:0::1", "-b", cluster.bootstrap()).out
                == "ip 2001:db8::1: connection_creation_rate=5\n"
            ),
            "the broker does not know the quota",
        )
        assert run("quota", "remove", "--ip-defaults", *at).out == "ip <default> has no connection_creation_rate\n"
        assert not run("quota", "remove", "--ip", "2001:db8::1", *at).code


@pytest.mark.parametrize("where", ["directory", "bootstrap"])
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["set", "producer_byte_rate=1"], "whose quotas?"),
        (["set", "producer_byte_rate=1", "--user", "a", "--user-defaults"], "--user and --user-defaults"),
        (["set", "producer_byte_rate=1", "--client", ""], "--client: the name is empty"),
        (["set", "producer_byte_rate", "--user", "a"], "NAME=VALUE"),
        (["set", "producer_byte_rate=fast", "--user", "a"], "give a number"),
        (["set", "producer_byte_rate=1", "producer_byte_rate=2", "--user", "a"], "altered twice"),
        (["set", "producer_byte_rate=0", "--user", "a"], "must be greater than 0"),
        (["set", "producer_byte_rate=nan", "--user", "a"], "must be greater than 0"),
        (["set", "bytes=1", "--user", "a"], "Invalid configuration key bytes"),
        (["remove", "bytes", "--user", "a"], "Invalid configuration key bytes"),
        (["remove"], "whose quotas?"),
        (["set", "connection_creation_rate=5", "--ip", "example.org"], "example.org is not a valid IP address"),
        (["set", "producer_byte_rate=5", "--ip", "192.0.2.1"], "allowed are connection_creation_rate"),
        (["set", "connection_creation_rate=5", "--user", "a"], "Invalid configuration key connection_creation_rate"),
        (["set", "connection_creation_rate=5", "--ip-defaults", "--user", "a"], "should not be combined"),
    ],
)
def test_what_is_refused_changes_nothing(
    cluster: LocalCluster, run: Run, where: str, arguments: list[str], reason: str
) -> None:
    at = ("-c", cluster.directory) if where == "directory" else ("-b", cluster.bootstrap())
    before = run("quota", "list", *at).out
    outcome = run("quota", *arguments, *at)
    assert outcome.code == 2 and reason in outcome.err, outcome
    assert run("quota", "list", *at).out == before
