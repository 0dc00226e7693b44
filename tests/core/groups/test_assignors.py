"""Assignors as pure functions, on drawn groups: complete, disjoint, even, and without moves that nothing needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from random import Random

import pytest

from kreplog import config
from kreplog.core.groups.assignors import ASSIGNORS, Partitions, assign_range, assign_uniform, most_preferred
from kreplog.errors import UsageError

Drawn = tuple[dict[str, frozenset[str]], dict[str, int]]


def draw(random: Random, *, alike: bool) -> Drawn:
    """(subscriptions, partitions of each topic); alike: all members have the same subscription."""
    topics = [f"t{number}" for number in range(random.randint(1, 5))]
    members = [f"m{number}" for number in range(random.randint(1, 8))]
    own = {member: frozenset(random.sample(topics, random.randint(0, len(topics)))) for member in members}
    subscriptions = dict.fromkeys(members, frozenset(topics)) if alike else own
    return subscriptions, {topic: random.randint(1, 9) for topic in topics}


def change(random: Random, drawn: Drawn, *, alike: bool) -> Drawn:
    """Members leave and join, and topics grow."""
    subscriptions, counts = dict(drawn[0]), dict(drawn[1])
    for member in random.sample(sorted(subscriptions), random.randint(0, len(subscriptions) - 1)):
        del subscriptions[member]
    for number in range(random.randint(0, 3)):
        topics = random.sample(sorted(counts), random.randint(0, len(counts)))
        subscriptions[f"n{number}"] = frozenset(counts if alike else topics)
    for topic in counts:
        counts[topic] += random.choice((0, 0, 1, 3))
    return subscriptions, counts


def check_complete(drawn: Drawn, assignment: Mapping[str, Partitions]) -> None:
    """Each partition of a topic with subscribers has one owner, which is subscribed to it."""
    subscriptions, counts = drawn
    assert assignment.keys() == subscriptions.keys()
    owners = Counter(partition for partitions in assignment.values() for partition in partitions)
    subscribed = {topic for topics in subscriptions.values() for topic in topics}
    assert owners == Counter((topic, number) for topic in subscribed for number in range(counts[topic]))
    assert all(topic in subscriptions[member] for member, owned in assignment.items() for topic, _ in owned)


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
@pytest.mark.parametrize("alike", [True, False])
def test_each_partition_has_one_subscribed_owner(assignor: str, alike: bool) -> None:
    for seed in range(300):
        random = Random(seed)
        drawn = draw(random, alike=alike)
        first = ASSIGNORS[assignor](*drawn, {})
        check_complete(drawn, first)
        changed = change(random, drawn, alike=alike)
        check_complete(changed, ASSIGNORS[assignor](*changed, first))


@pytest.mark.parametrize("assignor", sorted(ASSIGNORS))
@pytest.mark.parametrize("alike", [True, False])
def test_nothing_moves_while_nothing_changes(assignor: str, alike: bool) -> None:
    for seed in range(300):
        drawn = draw(Random(seed), alike=alike)
        first = ASSIGNORS[assignor](*drawn, {})
        assert ASSIGNORS[assignor](*drawn, first) == first


def test_uniform_gives_each_member_as_many_and_moves_as_few_as_that_needs() -> None:
    for seed in range(500):
        random = Random(seed)
        drawn = draw(random, alike=True)
        former = assign_uniform(*drawn, {})
        subscriptions, counts = changed = change(random, drawn, alike=True)
        assignment = assign_uniform(*changed, former)
        loads = [len(owned) for owned in assignment.values()]
        assert max(loads) - min(loads) <= 1
        least, extra = divmod(sum(counts.values()), len(subscriptions))
        held = sorted((len(former.get(member, ())) for member in subscriptions), reverse=True)
        retained = sum(min(load, least + (place < extra)) for place, load in enumerate(held))
        assert sum(len(assignment[member] & former.get(member, frozenset())) for member in subscriptions) == retained


def test_uniform_is_as_even_as_different_subscriptions_allow() -> None:
    """By its definition: nobody can give a partition, along a chain of members, to a member that has two fewer."""
    for seed in range(500):
        random = Random(seed)
        drawn = draw(random, alike=False)
        changed = change(random, drawn, alike=False)
        subscriptions, _ = changed
        assignment = assign_uniform(*changed, assign_uniform(*drawn, {}))
        for giver, owned in assignment.items():
            reached, added = {giver}, {giver}
            while added:
                topics = {topic for member in added for topic, _ in assignment[member]}
                added = {member for member in subscriptions if topics & subscriptions[member]} - reached
                reached |= added
            assert all(len(assignment[member]) >= len(owned) - 1 for member in reached)


def test_uniform_moves_along_a_chain() -> None:
    subscriptions = {"a": {"x"}, "b": {"x", "y"}, "c": {"y"}}
    former = {"a": [("x", 0), ("x", 1), ("x", 2)], "b": [("y", 0), ("y", 1)], "c": [("y", 2)]}
    assignment = assign_uniform(subscriptions, {"x": 3, "y": 3}, former)
    assert {member: len(owned) for member, owned in assignment.items()} == {"a": 2, "b": 2, "c": 2}


def test_range_shares_each_topic_evenly() -> None:
    for seed in range(300):
        random = Random(seed)
        drawn = draw(random, alike=False)
        subscriptions, counts = changed = change(random, drawn, alike=False)
        assignment = assign_range(*changed, assign_range(*drawn, {}))
        for topic in counts:
            loads = [
                sum(owned == topic for owned, _ in assignment[member])
                for member, topics in subscriptions.items()
                if topic in topics
            ]
            assert not loads or max(loads) - min(loads) <= 1


def test_range_gives_equal_topics_to_the_same_members_in_ranges() -> None:
    for seed in range(200):
        random = Random(seed)
        count, topics = random.randint(1, 12), ("t", "u", "v")
        counts = dict.fromkeys(topics, count)
        first = {f"m{number}": topics for number in range(random.randint(1, 6))}
        assignment = assign_range(first, counts, {})
        for owned in assignment.values():
            numbers = sorted(number for topic, number in owned if topic == "t")
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        second = {f"m{number}": topics for number in range(random.randint(1, 8))}
        for owned in assign_range(second, counts, assignment).values():
            shared = [{number for topic, number in owned if topic == each} for each in topics]
            assert shared[0] == shared[1] == shared[2]


def test_most_members_choose_the_assignor() -> None:
    assert most_preferred([None, "range", None], "uniform") == "range"
    assert most_preferred([None, None], "uniform") == "uniform"
    assert most_preferred(["uniform", "range", "uniform"], "range") == "uniform"
    assert most_preferred(["uniform", "range"], "uniform") == "range"


def test_the_setting_offers_those_that_there_are() -> None:
    assert set(ASSIGNORS) == set(config.ASSIGNORS.values())


def test_the_setting_takes_the_classes_that_a_config_of_kafkas_names() -> None:
    prefix = "org.apache.kafka.coordinator.group.assignor"
    classes = f"{prefix}.RangeAssignor, {prefix}.UniformAssignor"
    assert config.GroupConfig(group_consumer_assignors=classes).consumer_assignors == ["range", "uniform"]
    for wrong in (f"{prefix}.OtherAssignor", f"range,{prefix}.RangeAssignor", ""):
        with pytest.raises(UsageError, match="group_consumer_assignors"):
            config.GroupConfig(group_consumer_assignors=wrong)
