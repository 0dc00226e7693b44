"""The commands that reach a cluster by --bootstrap, on a real Apache Kafka's: they are clients like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.client_libraries.members import Member
from tests.commands.conftest import Kreplog, kreplog
from tests.integration.clusters import eventually
from tests.interop.jvm import NEWEST, Broker

__all__ = ["kreplog"]


def test_a_topic_from_its_making_to_its_end(broker: Broker, kreplog: Kreplog, tmp_path: Path) -> None:
    def run(*words: object) -> str:
        done = kreplog(*words, "--bootstrap", broker.bootstrap)
        assert done.code == 0, done.err
        return done.out.decode()

    run("topic", "create", "commands", "-p", 2, "--config", "retention.ms=3600000")
    assert "commands" in json.loads(run("topic", "list", "--json"))["topics"]
    (tmp_path / "lines").write_bytes(b"a\tone\nb\ttwo\na\tthree\n")
    run("produce", "commands", tmp_path / "lines", "-k", "\t", "--compression", "lz4", "-p", 1)
    assert run("consume", "commands", "--from-beginning", "-n", 3, "--print-key") == "a\tone\nb\ttwo\na\tthree\n"

    facts = json.loads(run("topic", "describe", "commands", "--json"))
    assert [partition["partition"] for partition in facts["partitions"]] == [0, 1]
    (replica,) = facts["partitions"][1]["replica_states"]
    assert (replica["log_end_offset"], replica["high_watermark"], replica["lag"]) == (3, 3, 0)

    settings = ("--config", "max.message.bytes=2000000", "--delete-config", "retention.ms")
    run("topic", "alter", "commands", "-p", 3, *settings)
    facts = json.loads(run("topic", "describe", "commands", "--json"))
    assert len(facts["partitions"]) == 3
    assert facts["configs"] == {"max.message.bytes": "2000000"}

    run("partition", "elect-preferred", "commands")
    run("partition", "reassign", "commands", f"0={replica['broker']}")
    run("topic", "delete", "commands")
    assert "commands" not in json.loads(run("topic", "list", "--json"))["topics"]


def test_a_group_from_its_first_commit_to_its_end(either: Broker, kreplog: Kreplog, tmp_path: Path) -> None:
    def run(*words: object) -> str:
        done = kreplog(*words, "--bootstrap", either.bootstrap)
        assert done.code == 0, done.err
        return done.out.decode()

    def described() -> dict[int, tuple[int, int]]:
        facts = json.loads(run("group", "describe", "shared", "--json"))
        assert (facts["state"], facts["members"]) == ("Empty", [])
        return {row["partition"]: (row["offset"], row["lag"]) for row in facts["offsets"]}

    run("topic", "create", "grouped", "-p", 2)
    (tmp_path / "lines").write_bytes(b"0\n1\n2\n3\n4\n")
    run("produce", "grouped", tmp_path / "lines", "-p", 1)
    consume = ("consume", "grouped", "--group", "shared", "--from-beginning", "-n")
    assert run(*consume, 3) == "0\n1\n2\n"
    assert described()[1] == (3, 2)
    assert "shared  Empty  classic  consumer\n" in run("group", "list", "--state", "Empty")
    run("group", "reset-offsets", "shared", "--topic", "grouped:1", "--shift-by", -2, "--execute")
    assert described()[1] == (1, 4)
    assert run(*consume, 4) == "1\n2\n3\n4\n"
    run("group", "delete", "shared")
    assert "shared" not in run("group", "list").split()
    assert kreplog("group", "describe", "shared", "--bootstrap", either.bootstrap).code == 1


@pytest.mark.parametrize("either", [NEWEST], indirect=True)
def test_a_group_whose_coordinator_assigns(either: Broker, kreplog: Kreplog) -> None:
    """KIP-848."""

    def run(*words: object) -> str:
        done = kreplog(*words, "--bootstrap", either.bootstrap)
        assert done.code == 0, done.err
        return done.out.decode()

    run("topic", "create", "assigned", "-p", 2)
    with Member(either.bootstrap, "consumers", "assigned") as member:
        eventually(lambda: len(member.assignment) == 2, "the only member does not get all")
        facts = json.loads(run("group", "describe", "consumers", "--json"))
        assert (facts["type"], facts["state"], facts["protocol"]) == ("consumer", "Stable", "uniform")
        (described,) = facts["members"]
        assert described["partitions"] == described["target"] == ["assigned-0", "assigned-1"]
        assert described["epoch"] == facts["epoch"] == facts["assignment_epoch"]
        assert "consumers  Stable  consumer  consumer\n" in run("group", "list", "--type", "consumer")
