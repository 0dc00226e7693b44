"""confluent-kafka with group.protocol=consumer (KIP-848): the coordinator assigns the partitions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from kreplog.cluster.local_cluster import LocalCluster
from tests.client_libraries.members import Member, consumer_of
from tests.client_libraries.scenarios import made
from tests.integration.clusters import FAST, WITHIN_S, admin_of, eventually, kill, running, wait_for_topic
from tests.integration.test_group_failover import coordinator_of

NEEDS = "the clients here are librdkafka's: kafka-python has no group.protocol=consumer"

confluent: Any = pytest.importorskip("confluent_kafka", reason=NEEDS)
library: Any = pytest.importorskip("confluent_kafka.admin", reason=NEEDS)

SETTINGS = (
    *FAST,
    '"offsets.topic.num.partitions" = 3',
    '"group.consumer.min.heartbeat.interval.ms" = 200',
    '"group.consumer.heartbeat.interval.ms" = 200',
    '"group.consumer.min.session.timeout.ms" = 3000',
    '"group.consumer.session.timeout.ms" = 3000',
)


def produce(bootstrap: str, topic: str, values: list[bytes], partitions: int = 1) -> None:
    producer = confluent.Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(WITHIN_S) == 0


def test_a_member_reads_commits_and_its_successor_goes_on(cluster: LocalCluster) -> None:
    topic = made(cluster)
    bootstrap = cluster.bootstrap()
    produce(bootstrap, topic, [b"%d" % number for number in range(10)])
    for numbers in (range(6), range(6, 10)):
        consumer = consumer_of(bootstrap, f"of-{topic}")
        consumer.subscribe([topic])
        found: list[Any] = []

        def taken(consumer: Any = consumer, found: list[Any] = found, count: int = len(numbers)) -> bool:
            found += consumer.consume(count - len(found), 0.5)
            return len(found) == count

        eventually(taken, "the records do not come")
        assert [int(record.value()) for record in found] == list(numbers)
        consumer.commit(found[-1], asynchronous=False)
        consumer.close()


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Brokers with short time-outs of members."""
    with running(tmp_path_factory.mktemp("quick"), SETTINGS) as cluster:
        yield cluster


def topic_of(cluster: LocalCluster, name: str, partitions: int) -> str:
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({name: {"num_partitions": partitions, "replication_factor": 3}}, wait_for_metadata=True)
    wait_for_topic(cluster, name, partitions)
    return name


def shared(*members: Member) -> bool:
    """Whether members have an equal share each."""
    return len({len(member.assignment) for member in members}) == 1 and all(member.assignment for member in members)


@pytest.mark.long
@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_and_take_over(quick: LocalCluster, assignor: str) -> None:
    topic, bootstrap = topic_of(quick, f"shared-{assignor}", 4), quick.bootstrap()
    everything = [(topic, number) for number in range(4)]
    group, chosen = f"group-{assignor}", {"group_remote_assignor": assignor}
    produce(bootstrap, topic, [b"%d" % number for number in range(40)], 4)
    with Member(bootstrap, group, topic, **chosen) as first:
        eventually(lambda: first.assignment == everything, "the only member does not get all")
        eventually(lambda: len(first.values) == 40, lambda: f"{len(first.values)} of 40 came")
        with Member(bootstrap, group, topic, **chosen) as second:
            eventually(lambda: shared(first, second), "the partitions are not shared")
            assert sorted(first.assignment + second.assignment) == everything
            produce(bootstrap, topic, [b"%d" % number for number in range(40, 80)], 4)
            eventually(lambda: len(first.values + second.values) == 80, "the records do not come")
        eventually(lambda: first.assignment == everything, "the partitions of a member that has left stay without one")
        produce(bootstrap, topic, [b"%d" % number for number in range(80, 100)], 4)
        eventually(lambda: len(first.values + second.values) == 100, "the records do not come")
        assert sorted(map(int, first.values + second.values)) == list(range(100)), "none came twice"
        assert (first.failures, second.failures) == ([], [])


_READER = """
import sys, time
from tests.client_libraries.members import Member
with Member(*sys.argv[1:]) as member:
    while True:
        print(len(member.assignment), flush=True)
        time.sleep(0.1)  # the parent reads a line at a time
"""


@pytest.mark.long
def test_a_killed_members_partitions_are_taken_over(quick: LocalCluster) -> None:
    topic, bootstrap = topic_of(quick, "killed", 4), quick.bootstrap()
    with Member(bootstrap, "killed", topic) as first:
        other = subprocess.Popen(
            [sys.executable, "-c", _READER, bootstrap, "killed", topic], stdout=subprocess.PIPE, cwd=os.getcwd()
        )
        try:
            assert other.stdout is not None
            counts = (int(line) for line in other.stdout)
            eventually(lambda: next(counts, 0) == 2, "the partitions are not shared")
            eventually(lambda: len(first.assignment) == 2, "the partitions are not shared")
        finally:
            other.send_signal(signal.SIGKILL)
            other.communicate()
        eventually(lambda: len(first.assignment) == 4, "the partitions of a killed member stay without one")


@pytest.mark.long
def test_members_stay_through_a_failover(quick: LocalCluster) -> None:
    """The group is loaded with its members and assignments: no partition is assigned again."""
    topic, bootstrap = topic_of(quick, "failover", 4), quick.bootstrap()
    produce(bootstrap, topic, [b"%d" % number for number in range(20)], 4)
    with Member(bootstrap, "failover", topic) as first, Member(bootstrap, "failover", topic) as second:
        eventually(lambda: shared(first, second), "the partitions are not shared")
        eventually(lambda: len(first.values + second.values) >= 20, "the records do not come")
        members = {member.member_id: member.assignment for member in (first, second)}
        described = described_members(bootstrap, "failover")
        for _ in range(3):
            victim = coordinator_of(quick, "failover")
            kill(quick, victim)
            _wait_for_other_coordinator(quick, "failover", victim)
            produce(bootstrap, topic, [b"x"] * 8, 4)
            quick.start()
        eventually(lambda: (first.values + second.values).count(b"x") >= 24, "the records do not come")
        assert {member.member_id: member.assignment for member in (first, second)} == members
        assert described_members(bootstrap, "failover") == described
        assert sorted(int(value) for value in first.values + second.values if value != b"x") == list(range(20))


def _wait_for_other_coordinator(cluster: LocalCluster, group: str, victim: int) -> None:
    eventually(lambda: coordinator_of(cluster, group) != victim, "no other broker coordinates the group")


def described_members(bootstrap: str, group: str) -> Any:
    """(member id, assignment) of the members, by librdkafka's own description."""
    admin = library.AdminClient({"bootstrap.servers": bootstrap})
    (future,) = admin.describe_consumer_groups([group]).values()
    found = future.result(WITHIN_S)
    assert found.type == confluent.ConsumerGroupType.CONSUMER
    return sorted(
        (member.member_id, sorted((each.topic, each.partition) for each in member.assignment.topic_partitions))
        for member in found.members
    )


@pytest.mark.long
def test_new_topics_that_match_an_expression_are_read(quick: LocalCluster) -> None:
    bootstrap = quick.bootstrap()
    topic_of(quick, "matched-1", 1)
    with Member(bootstrap, "matching", "^matched-.*") as member:
        eventually(lambda: member.assignment == [("matched-1", 0)], "the topic is not read")
        topic_of(quick, "matched-2", 2)
        eventually(lambda: len(member.assignment) == 3, "the new topic is not read")


@pytest.mark.long
def test_a_static_member_keeps_its_partitions_over_a_restart(quick: LocalCluster) -> None:
    topic, bootstrap = topic_of(quick, "static", 4), quick.bootstrap()
    with Member(bootstrap, "static", topic, group_instance_id="one") as first:
        with Member(bootstrap, "static", topic, group_instance_id="two") as second:
            eventually(lambda: shared(first, second), "the partitions are not shared")
            before = first.assignment, second.assignment
        with Member(bootstrap, "static", topic, group_instance_id="two") as second:
            eventually(lambda: second.assignment == before[1], "it does not get its partitions back")
            assert first.assignment == before[0]
