"""Racks of members, on drawn groups: more partitions are local, nobody has more or fewer, and then nothing moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product
from random import Random

import pytest

from kreplog.core.groups import rack_locality
from kreplog.core.groups.assignors import ASSIGNORS, Partitions
from kreplog.core.groups.rack_locality import Racks, localized
from kreplog.core.messages import PartitionState
from kreplog.types import BrokerRegistration, LeaderAndIsr, TopicPartition
from tests.core.groups.consumers import Consumer, consumer_shell, settle
from tests.core.groups.group_shell import GroupShell

Drawn = tuple[dict[str, frozenset[str]], dict[str, int], Racks]


def draw(random: Random) -> Drawn:
    """Subscriptions, partitions of each topic, and racks, which some members have not."""
    topics = [f"t{number}" for number in range(random.randint(1, 3))]
    subscriptions = {f"m{n}": frozenset(random.sample(topics, random.randint(1, len(topics)))) for n in range(5)}
    counts = {topic: random.choice((3, 6)) for topic in topics}
    members = {member: random.choice("abc") for member in subscriptions if random.random() < 0.8}
    replicas = {
        (topic, number): frozenset(random.sample("abcd", random.randint(0, 2)))
        for topic, count in counts.items()
        for number in range(count)
    }
    return subscriptions, counts, Racks(members, replicas)


def local(assignment: Mapping[str, Partitions], racks: Racks) -> int:
    return sum(
        racks.members.get(member) in racks.replicas[partition]
        for member, partitions in assignment.items()
        for partition in partitions
    )


def loads(assignment: Mapping[str, Partitions], *, by_topic: bool) -> dict[str, Counter[str]]:
    return {
        member: Counter(topic if by_topic else "" for topic, _ in partitions)
        for member, partitions in assignment.items()
    }


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
def test_members_have_as_many_as_before_and_more_of_them_local(assignor: str) -> None:
    alike, gained = assignor == "range", 0
    for seed in range(200):
        subscriptions, counts, racks = draw(Random(seed))
        before = ASSIGNORS[assignor](subscriptions, counts, {})
        after = localized(before, subscriptions, racks, alike=alike)
        assert loads(after, by_topic=alike) == loads(before, by_topic=alike), seed
        assert sorted(p for owned in after.values() for p in owned) == sorted(p for own in before.values() for p in own)
        assert all(topic in subscriptions[member] for member, owned in after.items() for topic, _ in owned), seed
        assert local(after, racks) >= local(before, racks)
        gained += local(after, racks) - local(before, racks)
        again = ASSIGNORS[assignor](subscriptions, counts, after)
        assert localized(again, subscriptions, racks, alike=alike) == after, seed
    assert gained > 200


def test_no_exchange_is_left_that_would_make_more_local() -> None:
    for seed in range(100):
        subscriptions, counts, racks = draw(Random(seed))
        after = localized(ASSIGNORS["uniform"](subscriptions, counts, {}), subscriptions, racks, alike=False)
        owned = [(member, partition) for member, partitions in after.items() for partition in partitions]
        for (member, own), (other, theirs) in product(owned, owned):
            if theirs[0] in subscriptions[member] and own[0] in subscriptions[other]:
                now = local({member: frozenset({own})}, racks) + local({other: frozenset({theirs})}, racks)
                then = local({member: frozenset({theirs})}, racks) + local({other: frozenset({own})}, racks)
                assert then <= now, (seed, member, own, other, theirs)


def test_every_partition_is_local_where_that_can_be() -> None:
    subscriptions = {member: frozenset({"t", "u"}) for member in ("m0", "m1", "m2")}
    counts = {"t": 6, "u": 6}
    replicas = {(topic, number): frozenset("abc"[number % 3]) for topic in counts for number in range(6)}
    racks = Racks({"m0": "c", "m1": "a", "m2": "b"}, replicas)
    for name, assignor in ASSIGNORS.items():
        after = localized(assignor(subscriptions, counts, {}), subscriptions, racks, alike=name == "range")
        assert local(after, racks) == 12, name


def test_topics_that_range_shares_alike_stay_so() -> None:
    subscriptions = {f"m{number}": frozenset({"t", "u"}) for number in range(3)}
    counts = {"t": 9, "u": 9}
    for seed in range(50):
        random = Random(seed)
        replicas = {(topic, n): frozenset(random.sample("abc", 1)) for topic in counts for n in range(9)}
        racks = Racks({"m0": "a", "m1": "b", "m2": "c"}, replicas)
        before = ASSIGNORS["range"](subscriptions, counts, {})
        after = localized(before, subscriptions, racks, alike=True)
        assert local(after, racks) >= local(before, racks)
        for owned in after.values():
            assert {number for topic, number in owned if topic == "t"} == {n for topic, n in owned if topic == "u"}


def test_a_group_that_is_too_large_stays_as_it_is_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rack_locality, "MAX_COMPARISONS", 0)
    subscriptions, counts, racks = draw(Random(1))
    before = ASSIGNORS["uniform"](subscriptions, counts, {})
    assert localized(before, subscriptions, racks, alike=False) == before


def shell_with_racks(racks: str) -> GroupShell:
    """A coordinator of "topic", whose partitions each have their one replica in one of these racks in turn."""
    shell = consumer_shell(partitions=6)
    for broker, rack in enumerate(racks):
        shell.cluster.brokers[broker] = BrokerRegistration(broker, 1, rack=rack)
    for number in range(6):
        partition, broker = TopicPartition("topic", number), number % len(racks)
        topic_id = shell.cluster.partitions[partition].topic_id
        state = PartitionState(partition, topic_id, LeaderAndIsr(broker, 1, (broker,)), (broker,))
        shell.cluster.restore({partition: state})
    return shell


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
def test_a_coordinator_assigns_partitions_in_the_racks_of_the_members(assignor: str) -> None:
    shell = shell_with_racks("ab")
    fields = {"server_assignor": assignor}
    first, second = Consumer(shell, "m1", rack_id="b", **fields), Consumer(shell, "m2", rack_id="a", **fields)
    first.join()
    second.join()
    settle(first, second)
    assert (first.numbers, second.numbers) == ([1, 3, 5], [0, 2, 4])


def test_a_group_is_not_rebalanced_while_a_broker_is_down() -> None:
    shell = shell_with_racks("ab")
    first, second = Consumer(shell, "m1", rack_id="b"), Consumer(shell, "m2", rack_id="a")
    first.join()
    second.join()
    settle(first, second)
    epoch = first.epoch
    del shell.cluster.brokers[0]
    shell.cluster.topics_version += 1
    settle(first, second)
    assert (first.epoch, first.numbers, second.numbers) == (epoch, [1, 3, 5], [0, 2, 4])


def test_members_without_racks_are_assigned_as_without_brokers() -> None:
    shell = shell_with_racks("ab")
    first, second = Consumer(shell, "m1"), Consumer(shell, "m2")
    first.join()
    second.join()
    settle(first, second)
    assert sorted(first.numbers + second.numbers) == list(range(6))
    assert len(first.numbers) == 3
