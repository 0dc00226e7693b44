"""acl add, list and remove: offline, and over the protocol at a broker that has an authorizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.server.settings import STANDARD_AUTHORIZER
from tests.commands.conftest import Kreplog, Outcome
from tests.integration.clusters import end, eventually

Acl = Callable[..., Outcome]

AUTHORIZING = [f'"authorizer.class.name" = "{STANDARD_AUTHORIZER}"', '"super.users" = "User:admin"']


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    """One broker, which is not started."""
    return LocalCluster.create(tmp_path / "c", [0], 0, AUTHORIZING)


@pytest.fixture
def acl(cluster: LocalCluster, kreplog: Kreplog) -> Acl:
    def run(*words: str) -> Outcome:
        return kreplog("acl", *words, "--cluster", cluster.directory)

    return run


def listed(outcome: Outcome) -> list[tuple[str, ...]]:
    assert outcome.code == 0, outcome
    return [tuple(entry.values()) for entry in json.loads(outcome.out)["acls"]]


def entry(kind: str, name: str, operation: str, pattern: str = "LITERAL", **more: str) -> tuple[str, ...]:
    fields: dict[str, Any] = {"principal": "User:alice", "host": "*", **more}
    permission = fields.get("permission", "ALLOW")
    return kind, pattern, name, fields["principal"], fields["host"], operation, permission


def test_acls_offline(acl: Acl) -> None:
    assert acl("list", "--offline").out == b"no ACLs\n"
    given = ("--allow-principal", "User:alice", "--operation", "read", "--operation", "AlterConfigs")
    added = acl("add", "--offline", *given, "--topic", "orders")
    assert added.out.decode() == (
        "topic orders\n  allow User:alice Read from any host\n  allow User:alice AlterConfigs from any host\n"
    )
    denied = ("--deny-principal", "User:*", "--deny-host", "10.0.0.1", "--group", "g", "--on-cluster")
    acl("add", "--offline", *denied, "--resource-pattern-type", "prefixed")
    everybody = {"principal": "User:*", "host": "10.0.0.1", "permission": "DENY"}
    assert listed(acl("list", "--offline", "--json")) == [
        entry("TOPIC", "orders", "READ"),
        entry("TOPIC", "orders", "ALTER_CONFIGS"),
        entry("GROUP", "g", "ALL", "PREFIXED", **everybody),
        entry("CLUSTER", "kafka-cluster", "ALL", **everybody),
    ]
    assert listed(acl("list", "--offline", "--json", "--principal", "User:*", "--on-cluster")) == [
        entry("CLUSTER", "kafka-cluster", "ALL", **everybody)
    ]
    match = ("--group", "group", "--resource-pattern-type", "match")
    assert listed(acl("list", "--offline", "--json", *match)) == [entry("GROUP", "g", "ALL", "PREFIXED", **everybody)]
    removed = acl("remove", "--offline", "--topic", "orders", "--operation", "Read")
    assert removed.out == b"topic orders\n  allow User:alice Read from any host\n1 ACL removed\n"
    assert acl("remove", "--offline", "--topic", "orders", "--allow-principal", "User:bob").out == b"0 ACLs removed\n"
    for pattern in ("match", "any"):
        wide = ("remove", "--offline", "--group", "g", "--resource-pattern-type", pattern)
        would = b"1 ACL would be removed: use --execute to remove them\n"
        assert acl(*wide).out == b"group g (prefixed)\n  deny User:* All from 10.0.0.1\n" + would
    assert len(listed(acl("list", "--offline", "--json", "--group", "g", "--resource-pattern-type", "any"))) == 1
    acl(*wide, "--execute")
    acl("remove", "--offline", "--on-cluster", "--resource-pattern-type", "prefixed")
    assert listed(acl("list", "--offline", "--json")) == [entry("TOPIC", "orders", "ALTER_CONFIGS")]


def test_producers_and_consumers(acl: Acl) -> None:
    """As kafka-acls has them."""
    alice = ("--offline", "--json", "--allow-principal", "User:alice")
    added = acl("add", *alice, "--producer", "--topic", "t", "--transactional-id", "id", "--idempotent")
    assert set(listed(added)) == {
        *(entry("TOPIC", "t", operation) for operation in ("WRITE", "DESCRIBE", "CREATE")),
        *(entry("TRANSACTIONAL_ID", "id", operation) for operation in ("WRITE", "DESCRIBE")),
        entry("CLUSTER", "kafka-cluster", "IDEMPOTENT_WRITE"),
    }
    added = acl("add", *alice, "--consumer", "--topic", "t", "--group", "g")
    assert set(listed(added)) == {
        *(entry("TOPIC", "t", operation) for operation in ("READ", "DESCRIBE")),
        entry("GROUP", "g", "READ"),
    }
    acl("remove", "--offline", "--producer", "--topic", "t", "--transactional-id", "id", "--idempotent")
    assert set(listed(acl("list", "--offline", "--json"))) == {
        entry("TOPIC", "t", "READ"),
        entry("GROUP", "g", "READ"),
    }


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("add", "--topic", "t"), "nobody to allow or deny"),
        (("add", "--allow-principal", "alice", "--topic", "t"), "write it as User:NAME"),
        (("add", "--allow-principal", "user:alice", "--topic", "t"), "write it as User:alice"),
        (("add", "--deny-principal", "Group:a", "--topic", "t"), "no connection is of Group:a"),
        (("add", "--allow-principal", "User:a", "--allow-host", "db", "--topic", "t"), "host db is no IP address"),
        (("add", "--deny-principal", "User:a", "--deny-host", "0::1", "--topic", "t"), "write it as ::1"),
        (("add", "--deny-principal", "User:a", "--deny-host", "::ffff:10.0.0.1", "--topic", "t"), "as 10.0.0.1"),
        (("add", "--allow-principal", "User:alice"), "no resource given"),
        (("add", "--allow-principal", "User:alice", "--topic", ""), "must not be empty"),
        (("add", "--allow-principal", "User:a", "--group", "g", "--operation", "Write"), "on a group the operations"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--deny-host", "h"), "goes with --deny-principal"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--resource-pattern-type", "any"), "selects ACLs"),
        (("add", "--allow-principal", "User:a", "--consumer", "--topic", "t"), "--consumer needs"),
        (("add", "--allow-principal", "User:a", "--topic", "t", "--idempotent"), "goes with --producer"),
        (("remove", "--allow-principal", "User:a"), "nothing to remove"),
        (("list", "--offline", "--command-config", "c"), "--offline is for a cluster in a directory"),
        (("list", "--offline", "--bootstrap", "127.0.0.1:1"), "--offline is for a cluster in a directory"),
    ],
)
def test_what_is_wrong_is_said(acl: Acl, words: tuple[str, ...], reason: str) -> None:
    outcome = acl(*words)
    assert outcome.code == 2
    assert reason in outcome.err


def test_a_damaged_node_is_left_to_its_owner(acl: Acl, cluster: LocalCluster) -> None:
    acl("add", "--offline", "--allow-principal", "User:alice", "--topic", "t")
    with cluster.store_session() as session:
        session.set_data("/acls", b"damaged")
    for words in (("list",), ("add", "--allow-principal", "User:a", "--topic", "t"), ("remove", "--topic", "t")):
        outcome = acl(*words, "--offline")
        assert outcome.code == 1
        assert "the node /acls has no ACLs that this version can read" in outcome.err


@pytest.fixture
def running(cluster: LocalCluster, acl: Acl) -> Iterator[LocalCluster]:
    """The cluster with its broker started, where nobody may do anything yet."""
    try:
        cluster.start()
        yield cluster
    finally:
        end(cluster)


def test_acls_at_a_broker(acl: Acl, running: LocalCluster, kreplog: Kreplog) -> None:
    anonymous = ("--allow-principal", "User:ANONYMOUS")
    for words in (("list",), ("add", *anonymous, "--topic", "t"), ("remove", "--topic", "t")):
        refused = acl(*words)
        assert refused.code == 1
        assert "Cluster authorization failed" in refused.err
    acl("add", "--offline", *anonymous, "--on-cluster", "--operation", "Alter")
    eventually(lambda: acl("list").code == 0, lambda: acl("list").err)
    added = acl("add", *anonymous, "--topic", "t", "--operation", "Create", "--operation", "Describe")
    assert added.code == 0, added
    created = kreplog("topic", "create", "t", "--cluster", running.directory)
    assert created.code == 0, created
    other = kreplog("topic", "create", "u", "--cluster", running.directory)
    assert (other.code, "uthorization failed" in other.err) == (1, True), other
    assert entry("TOPIC", "t", "CREATE", principal="User:ANONYMOUS") in listed(acl("list", "--json"))
    removed = acl("remove", "--topic", "t", "--json")
    assert len(listed(removed)) == 2
    logs = running.home(running.brokers[0]) / "logs"
    assert "Principal = User:ANONYMOUS is Denied operation = CREATE" in (logs / "authorizer.log").read_text()
    assert "requests CreateTopics: t" in (logs / "administration.log").read_text()


def test_a_broker_without_an_authorizer_says_how_acls_are_written(kreplog: Kreplog, tmp_path: Path) -> None:
    plain = LocalCluster.create(tmp_path / "c", [0], 0)
    try:
        plain.start()
        refused = kreplog("acl", "list", "--cluster", plain.directory)
    finally:
        end(plain)
    assert refused.code == 1
    assert "`kreplog acl add --offline --cluster DIR` writes ACLs before" in refused.err


def test_properties_of_the_connection(acl: Acl, running: LocalCluster, tmp_path: Path) -> None:
    acl("add", "--offline", "--allow-principal", "User:ANONYMOUS", "--on-cluster")
    eventually(lambda: acl("list").code == 0, lambda: acl("list").err)
    properties = tmp_path / "client.properties"
    properties.write_text("security.protocol=SSL\n")
    given = ("--command-config", str(properties))
    topic = ("--allow-principal", "User:a", "--topic", "t")
    for words in (("list",), ("add", *topic), ("remove", "--topic", "t")):
        assert "no broker responds" in acl(*words, *given).err
    properties.write_text("security.protocol=PLAINTEXT\n")
    for words in (("list",), ("add", *topic), ("remove", "--topic", "t")):
        assert acl(*words, *given).code == 0


def test_rights_on_a_topic_are_enough_to_describe_it(acl: Acl, running: LocalCluster, kreplog: Kreplog) -> None:
    """Without those on the cluster that the list of reassignments, and that of users, need."""
    acl("add", "--offline", "--allow-principal", "User:ANONYMOUS", "--topic", "t")

    def run(*words: str) -> Outcome:
        return kreplog(*words, "--cluster", running.directory)

    eventually(lambda: run("topic", "create", "t").code == 0, lambda: run("topic", "list").err)
    described = run("topic", "describe", "t", "--json")
    assert described.code == 0, described
    (partition,) = json.loads(described.out)["partitions"]
    assert (partition["leader"], partition["adding"], partition["removing"]) == (0, None, None)
    assert run("topic", "describe", "t").code == 0
    refused = kreplog("user", "list", "--bootstrap", running.bootstrap())
    assert refused.err == "kreplog: list of users: Cluster authorization failed.\n"


def test_topics_that_status_may_not_describe_are_counted(acl: Acl, running: LocalCluster, kreplog: Kreplog) -> None:
    def degraded() -> list[str]:
        found: list[str] = json.loads(kreplog("cluster", "status", running.directory, "--json").out)["degraded"]
        return found

    acl("add", "--offline", "--allow-principal", "User:ANONYMOUS", "--topic", "t")
    eventually(lambda: kreplog("topic", "create", "t", "--cluster", running.directory).code == 0, "t is not created")
    assert degraded() == []
    acl("remove", "--offline", "--topic", "t")
    line = "unknown for 1 topic: no ACL lets the principal of this command describe them"
    eventually(lambda: degraded() == [line], lambda: str(degraded()))
