"""confluent-kafka's members of both protocols in one group: a rolling restart to group.protocol=consumer, and back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from kreplog.cluster.local_cluster import LocalCluster
from tests.client_libraries.members import Member
from tests.client_libraries.test_consumer_protocol import NEEDS, SETTINGS, produce, shared, topic_of
from tests.integration.clusters import WITHIN_S, eventually, running

confluent: Any = pytest.importorskip("confluent_kafka", reason=NEEDS)
library: Any = pytest.importorskip("confluent_kafka.admin", reason=NEEDS)

CONSUMER = {"group_protocol": "consumer"}
CLASSIC = {"group_protocol": "classic", "heartbeat_interval_ms": 200, "session_timeout_ms": 6000}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("migrated"), (*SETTINGS, '"group.initial.rebalance.delay.ms" = 0')) as cluster:
        yield cluster


def type_of(bootstrap: str, group: str) -> str:
    admin = library.AdminClient({"bootstrap.servers": bootstrap})
    listed = admin.list_consumer_groups().result(WITHIN_S).valid
    return next(str(each.type.name) for each in listed if each.group_id == group)


def committed(bootstrap: str, group: str, topic: str, partitions: int) -> int:
    """The sum of the committed offsets."""
    admin = library.AdminClient({"bootstrap.servers": bootstrap})
    wanted = [confluent.TopicPartition(topic, number) for number in range(partitions)]
    request = confluent.ConsumerGroupTopicPartitions(group, wanted)
    found = admin.list_consumer_group_offsets([request])[group].result(WITHIN_S)
    return sum(max(0, each.offset) for each in found.topic_partitions)


class RollingRestart:
    """Two members of one group at most, of which each further one replaces the one that has been there for longer.
    members: all that ever were. sent: the number of records so far."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic, self.group = bootstrap, topic, f"of-{topic}"
        self.members: list[Member] = []
        self.sent = 0
        self._present: list[tuple[Member, str, ExitStack]] = []

    def step(self, settings: dict[str, Any]) -> None:
        """The next member joins, and all records are read."""
        if len(self._present) == 2:
            self._present.pop(0)[2].close()
            (stays, _, _) = self._present[0]
            eventually(lambda: len(stays.assignment) == 4, "the other member does not get all")
        stack = ExitStack()
        member = stack.enter_context(Member(self.bootstrap, self.group, self.topic, **settings))
        self.members.append(member)
        self._present.append((member, settings["group_protocol"], stack))
        present = [member for member, _, _ in self._present]
        eventually(lambda: shared(*present), lambda: f"the shares are {[each.assignment for each in present]}")
        produce(self.bootstrap, self.topic, [b"%d" % (self.sent + number) for number in range(20)], 4)
        self.sent += 20
        eventually(lambda: {*range(self.sent)} <= {*self.numbers()}, "records are lost")
        protocols = {protocol for _, protocol, _ in self._present}
        expected = "consumer" if "consumer" in protocols else "classic"
        assert type_of(self.bootstrap, self.group).lower() == expected

    def numbers(self) -> list[int]:
        return sorted(int(value) for member in self.members for value in member.values)

    def close(self) -> None:
        for _, _, stack in self._present:
            stack.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_change_their_protocol_one_by_one(brokers: LocalCluster, strategy: str) -> None:
    topic, bootstrap = topic_of(brokers, f"moved-{strategy}", 4), brokers.bootstrap()
    classic = {**CLASSIC, "partition_assignment_strategy": strategy}
    with closing(RollingRestart(bootstrap, topic)) as rolling:
        for settings in (classic, classic, CONSUMER, CONSUMER, classic, classic):
            rolling.step(settings)
        eventually(
            lambda: committed(bootstrap, rolling.group, topic, 4) == rolling.sent, "the committed offsets do not follow"
        )
    assert rolling.numbers() == list(range(rolling.sent)), "none came twice"
    assert [member.failures for member in rolling.members] == [[]] * 6
