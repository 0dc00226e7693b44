"""group list, describe, reset-offsets and delete, and consume --group, against brokers that serve."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

import kafka

from kreplog.client.group_admin import CommittedOffset, GroupDescription, GroupMember, assigned_partitions
from kreplog.client.group_facts import group_facts
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.commands.consumer_groups import description
from kreplog.types import TopicPartition
from tests.client_libraries.members import Member
from tests.client_libraries.polling import Polled
from tests.commands.conftest import Kreplog
from tests.integration.clusters import eventually, wait_for_topic

TOPIC = "counted"
RECORDS = 6
"""Of the first of its two partitions."""

AT_MS = 1_700_000_000_000
"""Timestamp of the first record; each is a second later than the one before."""


@pytest.fixture(scope="module", autouse=True)
def topic(trio: LocalCluster) -> Iterator[None]:
    with kafka.KafkaAdminClient(bootstrap_servers=trio.bootstrap()) as admin:
        admin.create_topics({TOPIC: {"num_partitions": 2, "replication_factor": 3}})
    wait_for_topic(trio, TOPIC, 2)
    producer = kafka.KafkaProducer(bootstrap_servers=trio.bootstrap())
    for number in range(RECORDS):
        producer.send(TOPIC, b"%d" % number, partition=0, timestamp_ms=AT_MS + 1000 * number)
    producer.flush()
    producer.close()
    yield


def as_json(run: Kreplog, *words: Any) -> dict[str, Any]:
    outcome = run(*words, "--json")
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


def commit(run: Kreplog, group: str, offset: int) -> None:
    """An offset of the first partition, by a group without members."""
    outcome = run("group", "reset-offsets", group, "--topic", f"{TOPIC}:0", "--to-offset", offset, "--execute")
    assert outcome.code == 0, outcome.err


def committed(run: Kreplog, group: str) -> dict[int, int]:
    return {row["partition"]: row["offset"] for row in as_json(run, "group", "describe", group)["offsets"]}


def test_a_group_with_a_member(trio: LocalCluster, on_trio: Kreplog) -> None:
    commit(on_trio, "live", 2)
    consumer = kafka.KafkaConsumer(
        TOPIC,
        group_id="live",
        group_instance_id="first\x1b[31m",
        client_id="reader",
        bootstrap_servers=trio.bootstrap(),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    with Polled(consumer):

        def has_both() -> bool:
            members = as_json(on_trio, "group", "describe", "live")["members"]
            return [len(member["partitions"]) for member in members] == [2]

        eventually(has_both, "it does not get its partitions")
        facts = as_json(on_trio, "group", "describe", "live")
        (member,) = facts["members"]
        assert facts["coordinator"] in trio.bootstrap().split(",")
        assert (facts["protocol_type"], facts["lag"]) == ("consumer", 4)
        assert (member["client_id"], member["instance_id"]) == ("reader", "first\x1b[31m")
        assert member["partitions"] == [f"{TOPIC}-0", f"{TOPIC}-1"]
        assert [(row["offset"], row["log_end_offset"], row["lag"]) for row in facts["offsets"]] == [
            (2, RECORDS, 4),
            (None, 0, 0),
        ]
        assert {row["member_id"] for row in facts["offsets"]} == {member["member_id"]}
        text = on_trio("group", "describe", "live").out.decode()
        assert text.startswith("live: Stable, ") and "1 member, lag 4\n" in text
        assert f"\n{TOPIC}-0  committed 2  end 6  lag 4  first\\x1b[31m-" in text
        assert "instance first\\x1b[31m  at " in text, "control characters of clients must not reach the terminal"
        listed = {each["group"]: each["state"] for each in as_json(on_trio, "group", "list")["groups"]}
        assert listed["live"] == "Stable"
        assert b"live  Stable  classic  consumer\n" in on_trio("group", "list", "--state", "stable").out
        assert b"live" not in on_trio("group", "list", "--state", "Empty").out
        assert on_trio("group", "list", "--state", "Dead").out == b"there is no such group\n"
        assert as_json(on_trio, "group", "list", "--state", "Dead") == {"groups": []}
        assert "'stabl' is no state of a group" in on_trio("group", "list", "--state", "Stabl").err
        refused = on_trio("topic", "remove-partitions", "__consumer_offsets", "--keep", 5)
        assert (refused.code, refused.out, "is internal" in refused.err) == (2, b"", True)
        refused = on_trio("group", "reset-offsets", "live", "--all-topics", "--to-earliest", "--execute")
        assert refused.code == 2 and "group live is Stable with 1 member" in refused.err
        commit(on_trio, "idle", 1)
        refused = on_trio("group", "delete", "idle", "live", "--json")
        assert (refused.code, refused.out) == (1, b"")
        expected = "group live: it has members, stop its consumers first: NON_EMPTY_GROUP; idle deleted before"
        assert expected in refused.err
        assert committed(on_trio, "live")[0] == 2


def test_a_group_whose_coordinator_assigns(trio: LocalCluster, on_trio: Kreplog) -> None:
    """KIP-848."""
    everything = [f"{TOPIC}-0", f"{TOPIC}-1"]
    with Member(trio.bootstrap(), "assigned", TOPIC) as member:
        eventually(lambda: len(member.assignment) == 2 and len(member.values) == RECORDS, "the records do not come")
        eventually(lambda: committed(on_trio, "assigned")[0] == RECORDS, "they are not committed")
        facts = as_json(on_trio, "group", "describe", "assigned")
        assert (facts["type"], facts["state"], facts["protocol"]) == ("consumer", "Stable", "uniform")
        (described,) = facts["members"]
        assert facts["epoch"] == facts["assignment_epoch"] == described["epoch"] > 0
        assert (described["partitions"], described["target"]) == (everything, everything)
        assert (described["member_id"], described["protocol"]) == (member.member_id, "consumer")
        assert {row["member_id"] for row in facts["offsets"]} == {member.member_id}
        text = on_trio("group", "describe", "assigned").out.decode()
        assert text.startswith(f"assigned: Stable, uniform, epoch {facts['epoch']} (target of {facts['epoch']}), ")
        assert f"    {member.member_id}  epoch {described['epoch']}  at " in text
        assert b"assigned  Stable  consumer  consumer\n" in on_trio("group", "list", "--type", "consumer").out
        assert b"assigned" not in on_trio("group", "list", "--type", "classic").out
        assert "'share' is no type of a group" in on_trio("group", "list", "--type", "share").err
        reset = ("group", "reset-offsets", "assigned", "--all-topics", "--to-earliest", "--execute")
        refused = on_trio(*reset)
        assert refused.code == 2 and "group assigned is Stable with 1 member" in refused.err
    assert as_json(on_trio, "group", "describe", "assigned")["state"] == "Empty"
    assert on_trio(*reset).code == 0
    assert committed(on_trio, "assigned")[0] == 0
    assert as_json(on_trio, "group", "delete", "assigned") == {"deleted": ["assigned"]}


def test_what_members_are_still_to_have_is_shown() -> None:
    here = [TopicPartition(TOPIC, number) for number in range(3)]
    members = (
        GroupMember("a", None, "c", "/h", (here[0],), 4, (here[0],), "consumer"),
        GroupMember("b", None, "c", "/h", (here[1],), 4, (here[1], here[2]), "classic"),
        GroupMember("c", None, "c", "/h", (here[2],), 3, (), "consumer"),
        GroupMember("d", None, "c", "/h", ()),
    )
    described = GroupDescription("g", "Reconciling", "consumer", "range", ("h", 1), members, "consumer", 5, 4)
    lines = description(group_facts(described, {}, [], {}))
    assert lines == [
        "g: Reconciling, range, epoch 5 (target of 4), coordinator h:1, 4 members, lag 0",
        f"    a  epoch 4  at /h: {TOPIC}-0",
        f"    b  epoch 4  at /h: {TOPIC}-1; to have {TOPIC}-1, {TOPIC}-2",
        f"    c  epoch 3  at /h: {TOPIC}-2; to have none",
        "    d  at /h: no partitions",
    ]


def test_a_lag_that_is_not_known_is_none_and_the_sum_is_a_lower_bound() -> None:
    read, leaderless, new = (TopicPartition(TOPIC, number) for number in range(3))
    described = GroupDescription("g", "Empty", "consumer", "", ("h", 1), (), "classic")
    committed = {at: CommittedOffset(5, -1, "") for at in (read, leaderless)}
    facts = group_facts(described, committed, [read, leaderless, new], {read: 8, new: 2})
    assert [row["lag"] for row in facts["offsets"]] == [3, None, None]
    assert (facts["lag"], facts["known_lag"], facts["lag_unknown"]) == (None, 3, 2)
    assert description(facts)[0].endswith("lag at least 3, 2 partitions unknown")
    facts = group_facts(described, committed, [read, new], {read: 8, new: 0})
    assert (facts["lag"], facts["known_lag"], facts["lag_unknown"]) == (3, 3, 0)
    assert description(facts)[0].endswith("lag 3")


@pytest.mark.parametrize(
    ("words", "offset"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], RECORDS),
        (["--to-offset", 4], 4),
        (["--to-offset", 99], RECORDS),
        (["--shift-by", 2], 5),
        (["--shift-by", -2], 1),
        (["--shift-by", -9], 0),
        (["--to-datetime", AT_MS + 1500], 2),
        (["--to-datetime", "2033-05-18T03:33:20Z"], RECORDS),
    ],
)
def test_where_a_reset_goes_to(on_trio: Kreplog, words: list[Any], offset: int) -> None:
    commit(on_trio, "reset", 3)
    command = ["group", "reset-offsets", "reset", "--all-topics", *words]
    planned = as_json(on_trio, *command)
    assert planned["executed"] is False
    (row,) = planned["offsets"]
    assert (row["committed"], row["offset"]) == (3, offset)
    assert row["wanted"] == {99: 99, -9: -6}.get(words[-1])
    assert committed(on_trio, "reset") == {0: 3}, "a plan changes nothing"
    assert as_json(on_trio, *command, "--execute")["executed"] is True
    assert committed(on_trio, "reset") == {0: offset}


def test_a_reset_in_words(on_trio: Kreplog) -> None:
    commit(on_trio, "words", 3)
    command = ["group", "reset-offsets", "words", "--topic", TOPIC, "--to-offset", 9]
    assert on_trio(*command).out.decode().splitlines() == [
        f"{TOPIC}-0  committed 3  new 6  (9 is outside of the log)",
        f"{TOPIC}-1  committed none  new 0  (9 is outside of the log)",
        "2 offsets of group words would be committed: add --execute to do so",
    ]
    assert on_trio(*command, "--execute").out.endswith(b"2 offsets of group words committed\n")


def test_resets_that_are_refused(on_trio: Kreplog) -> None:
    commit(on_trio, "refused", 3)
    for words, expected in (
        (["--all-topics"], "give one of --to-earliest, --to-latest, --to-offset, --shift-by and --to-datetime"),
        (["--all-topics", "--to-latest", "--to-earliest"], "give one of"),
        (["--to-latest"], "give either --topic or --all-topics"),
        (["--topic", TOPIC, "--all-topics", "--to-latest"], "give either --topic or --all-topics"),
        (["--topic", f"{TOPIC}:x", "--to-latest"], f"give partitions as in {TOPIC}:0,2"),
        (["--topic", f"{TOPIC}:7", "--to-latest"], f"there is no partition {TOPIC}-7: topic {TOPIC} has 2"),
        (["--topic", "missing", "--to-latest"], "there is no partition missing-0: topic missing has 0"),
        (["--topic", TOPIC, "--shift-by", 1], f"{TOPIC}-1: the group has no committed offset there to shift"),
        (["--all-topics", "--to-datetime", "soon"], "--to-datetime 'soon': give a time"),
    ):
        outcome = on_trio("group", "reset-offsets", "refused", *words, "--execute")
        assert outcome.code == 2 and expected in outcome.err, outcome.err
    assert committed(on_trio, "refused") == {0: 3}


def test_delete(on_trio: Kreplog) -> None:
    commit(on_trio, "old", 1)
    commit(on_trio, "older", 1)
    outcome = on_trio("group", "delete", "old", "never", "older")
    assert (outcome.code, outcome.out) == (1, b"old: deleted\n")
    assert "there is no group never" in outcome.err and "; old deleted before" in outcome.err
    assert as_json(on_trio, "group", "delete", "older") == {"deleted": ["older"]}
    outcome = on_trio("group", "describe", "older")
    assert outcome.code == 1 and "there is no group older with members or offsets" in outcome.err
    assert not {"old", "older"} & {each["group"] for each in as_json(on_trio, "group", "list")["groups"]}


def test_consume_continues_where_its_group_was(on_trio: Kreplog) -> None:
    command = ["consume", TOPIC, "--group", "printer", "--from-beginning"]
    assert on_trio(*command, "-n", 4).out == b"0\n1\n2\n3\n"
    assert committed(on_trio, "printer")[0] == 4
    assert on_trio(*command, "-n", 2).out == b"4\n5\n"
    assert committed(on_trio, "printer")[0] == RECORDS
    assert as_json(on_trio, "group", "describe", "printer")["state"] == "Empty", "it has not left"
    for words in (["--offset", 1], ["--partition", 0], ["--timestamp", 1]):
        outcome = on_trio("consume", TOPIC, "--group", "printer", *words)
        assert outcome.code == 2 and "--group" in outcome.err


def test_assignments_of_hostile_members() -> None:
    topic = b"\x00\x01t"
    right = b"\x00\x00" + b"\x00\x00\x00\x01" + topic + b"\x00\x00\x00\x02" + b"\x00\x00\x00\x00\x00\x00\x00\x05"
    assert assigned_partitions(right + b"\xff\xff\xff\xff") == (TopicPartition("t", 0), TopicPartition("t", 5))
    assert assigned_partitions(b"") == ()
    for end in range(len(right)):
        assert assigned_partitions(right[:end]) == ()
    for wrong in (
        b"\x00\x00\x7f\xff\xff\xff" + topic * 3,
        b"\x00\x00\xff\xff\xff\xff",
        right.replace(b"t", b"/"),
        right.replace(b"t", b"\xff"),
        right.replace(b"\x00\x00\x00\x05", b"\xff\xff\xff\xff"),
    ):
        assert assigned_partitions(wrong) == ()


def test_a_deleted_topic_takes_its_offsets_along(on_trio: Kreplog) -> None:
    on_trio("topic", "create", "short-lived", "-r", 3)
    as_json(on_trio, "group", "reset-offsets", "bereft", "--topic", "short-lived", "--to-latest", "--execute")
    commit(on_trio, "bereft", 2)
    assert len(as_json(on_trio, "group", "describe", "bereft")["offsets"]) == 2
    assert on_trio("topic", "delete", "short-lived").code == 0
    eventually(
        lambda: [row["topic"] for row in as_json(on_trio, "group", "describe", "bereft")["offsets"]] == [TOPIC],
        "the offset of the deleted topic stays",
    )
