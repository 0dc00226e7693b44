"""Assignment and its change: even, spread over racks, a dead broker's load shared, and no move too many.

Small layouts are compared with every layout that there is; large ones with what arithmetic says.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations

import pytest

from kreplog.core.controller.assignment import assign, check_assignment
from kreplog.core.controller.rebalance import Load, Move, RebalancePlan, add_brokers, drain, rebalance
from kreplog.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    UsageError,
)
from kreplog.types import TopicPartition

Brokers = dict[int, str | None]
Layout = dict[TopicPartition, tuple[int, ...]]


def plain(*brokers: int) -> Brokers:
    return dict.fromkeys(brokers)


def topic(replicas: Mapping[int, tuple[int, ...]], name: str = "flights") -> Layout:
    return {TopicPartition(name, partition): brokers for partition, brokers in replicas.items()}


def rack_count(replicas: Iterable[int], brokers: Brokers) -> int:
    """In how many racks `replicas` are; a broker without one is a rack of its own."""
    return len({brokers[broker] or broker for broker in replicas})


def range_of(counts: Iterable[int]) -> int:
    found = list(counts)
    return max(found) - min(found)


def replicas_per_broker(layout: Iterable[tuple[int, ...]], brokers: Iterable[int]) -> list[int]:
    counts = Counter(broker for replicas in layout for broker in replicas)
    return [counts[broker] for broker in brokers]


def leaders_per_broker(layout: Iterable[tuple[int, ...]], brokers: Iterable[int]) -> list[int]:
    counts = Counter(replicas[0] for replicas in layout)
    return [counts[broker] for broker in brokers]


def check_placement(layout: Iterable[tuple[int, ...]], brokers: Brokers) -> None:
    """No broker twice, and in as many racks as there can be: F34."""
    racks = rack_count(brokers, brokers)
    for replicas in layout:
        assert len(set(replicas)) == len(replicas)
        assert rack_count(replicas, brokers) == min(len(replicas), racks)


# --- creation -------------------------------------------------------------------------------------------------------


def test_fifteen_partitions_on_five_brokers() -> None:
    """The example of "Kafka Replication" in Kafka's wiki: if broker 0 goes down, what it led is served from all four
    others."""
    layout = assign(plain(0, 1, 2, 3, 4), 15, 3)
    led = [replicas for replicas in layout.values() if replicas[0] == 0]
    assert led == [(0, 1, 2), (0, 3, 4), (0, 2, 3)]
    assert leaders_per_broker(layout.values(), range(5)) == [3] * 5
    assert replicas_per_broker(layout.values(), range(5)) == [9] * 5
    for broker in range(5):
        led = [replicas for replicas in layout.values() if replicas[0] == broker]
        assert len({replicas[1] for replicas in led}) == 3
        assert {follower for replicas in led for follower in replicas[1:]} == set(range(5)) - {broker}


@pytest.mark.parametrize(
    ("brokers", "partitions", "replication_factor", "first", "start", "want"),
    [
        (plain(7), 3, 1, 0, 0, {0: (7,), 1: (7,), 2: (7,)}),
        (plain(2, 1), 2, 2, 0, 0, {0: (1, 2), 1: (2, 1)}),
        (plain(1, 2, 3), 1, 1, 0, 4, {0: (2,)}),
        (plain(1, 2, 3), 2, 1, 5, 0, {5: (1,), 6: (2,)}),
        (plain(1, 2, 3), 1, 2, 0, 3, {0: (1, 3)}),
        ({1: "a", 2: "a", 3: "b"}, 3, 2, 0, 0, {0: (1, 3), 1: (3, 1), 2: (2, 3)}),
    ],
)
def test_assign(
    brokers: Brokers,
    partitions: int,
    replication_factor: int,
    first: int,
    start: int,
    want: dict[int, tuple[int, ...]],
) -> None:
    assert assign(brokers, partitions, replication_factor, first, start) == want


@pytest.mark.parametrize("replication_factor", [-1, 0, 4])
def test_a_replication_factor_that_cannot_be(replication_factor: int) -> None:
    with pytest.raises(
        InvalidReplicationFactorError, match=f"factor {replication_factor} with 3 live brokers"
    ) as error:
        assign(plain(0, 1, 2), 1, replication_factor)
    assert error.value.kafka_code == 38


def test_no_brokers() -> None:
    with pytest.raises(InvalidReplicationFactorError, match="factor 1 with no live brokers: start some first"):
        assign({}, 1, 1)


def test_one_broker() -> None:
    with pytest.raises(InvalidReplicationFactorError, match="factor 2 with 1 live broker: choose 1, or start more"):
        assign(plain(0), 1, 2)


@pytest.mark.parametrize("partitions", [-1, 0])
def test_a_number_of_partitions_that_cannot_be(partitions: int) -> None:
    with pytest.raises(InvalidPartitionsError) as error:
        assign(plain(0, 1, 2), partitions, 1)
    assert error.value.kafka_code == 37


def test_f34_ten_thousand_random_layouts() -> None:
    """No broker twice, all racks used, leaders within 1, and replicas within 1 where racks allow it."""
    for seed in range(10_000):
        dice = random.Random(seed)
        count = dice.randint(1, 9)
        racks = dice.choice([0, 0, 1, 2, 3, 4])
        even = dice.random() < 0.5
        brokers: Brokers = {
            broker: f"r{broker % racks if even else dice.randrange(racks)}" if racks else None
            for broker in range(count)
        }
        replication_factor = dice.randint(1, min(count, 5))
        start = dice.randint(0, 50)
        layout = assign(brokers, dice.randint(1, 40), replication_factor, start=start).values()
        check_placement(layout, brokers)
        assert range_of(leaders_per_broker(layout, brokers)) <= 1, seed
        if len(set(Counter(brokers.values()).values())) == 1:
            assert range_of(replicas_per_broker(layout, brokers)) <= 1, seed


def test_a_dead_brokers_load_is_spread_over_the_survivors() -> None:
    """Each survivor takes over as many of its leaderships as any other within 2, and follows it as often within 3."""
    for seed in range(2_000):
        dice = random.Random(seed)
        count = dice.randint(2, 12)
        start = dice.randint(0, 1000)
        layout = assign(plain(*range(count)), dice.randint(1, 100), dice.randint(2, count), start=start)
        for dead in range(count):
            led = [replicas for replicas in layout.values() if replicas[0] == dead]
            successors = Counter(replicas[1] for replicas in led)
            followers = Counter(follower for replicas in led for follower in replicas[1:])
            assert range_of(successors[broker] for broker in range(count) if broker != dead) <= 2, seed
            assert range_of(followers[broker] for broker in range(count) if broker != dead) <= 3, seed


def shared(layout: Iterable[tuple[int, ...]], brokers: Iterable[int]) -> list[int]:
    """How many partitions each two brokers have in common."""
    counts = Counter(pair for replicas in layout for pair in combinations(sorted(replicas), 2))
    return [counts[pair] for pair in combinations(sorted(brokers), 2)]


def test_any_two_of_ten_brokers_share_six_or_seven_of_a_hundred_partitions() -> None:
    counts = shared(assign(plain(*range(10)), 100, 3).values(), range(10))
    assert (min(counts), max(counts)) == (6, 7)


def test_the_bound_on_partitions_that_two_brokers_share() -> None:
    for seed in range(300):
        dice = random.Random(seed)
        count = dice.randint(3, 12)
        partitions, replication_factor = dice.randint(1, 200), dice.randint(2, min(count, 6))
        start = dice.choice((0, dice.randint(0, 300)))
        layout = assign(plain(*range(count)), partitions, replication_factor, start=start)
        counts = shared(layout.values(), range(count))
        mean = sum(counts) / len(counts)
        bound = 4 if replication_factor <= 3 else 6
        assert mean - bound < min(counts) and max(counts) < mean + bound, seed


@pytest.mark.parametrize("replication_factor", [1, 2, 3])
@pytest.mark.parametrize("count", [3, 4, 5, 7])
def test_many_topics_of_one_partition_lie_like_one_topic_of_many(count: int, replication_factor: int) -> None:
    brokers = plain(*range(count))
    layout = [assign(brokers, 1, replication_factor, start=start)[0] for start in range(count * (count - 1))]
    assert range_of(leaders_per_broker(layout, brokers)) == 0
    assert range_of(replicas_per_broker(layout, brokers)) == 0
    if replication_factor > 1:
        for dead in brokers:
            followers = Counter(follower for replicas in layout if replicas[0] == dead for follower in replicas[1:])
            assert range_of(followers[broker] for broker in brokers if broker != dead) == 0


def test_partitions_added_later_even_out_the_topic() -> None:
    """What exists stays, and the topic as a whole is even."""
    uneven = 0
    for seed in range(2_000):
        dice = random.Random(seed)
        count = dice.randint(1, 9)
        racks = dice.choice([racks for racks in (1, 2, 3, count) if count % racks == 0])
        brokers: Brokers = {broker: f"r{broker % racks}" for broker in range(count)}
        replication_factor = dice.randint(1, min(count, 5))
        layout: dict[int, tuple[int, ...]] = {}
        for _ in range(4):
            more = dice.randint(1, 12)
            added = assign(brokers, more, replication_factor, len(layout), dice.randint(0, 40), layout)
            assert sorted(added) == list(range(len(layout), len(layout) + more))
            layout |= added
        check_placement(layout.values(), brokers)
        assert range_of(leaders_per_broker(layout.values(), brokers)) <= 1, seed
        assert range_of(replicas_per_broker(layout.values(), brokers)) <= 2, seed
        uneven += range_of(replicas_per_broker(layout.values(), brokers)) == 2
    assert uneven <= 20  # one in a hundred


def test_partitions_added_to_an_uneven_topic_go_where_least_is() -> None:
    existing = {0: (0, 1), 1: (0, 1), 2: (9, 0)}  # broker 9 is not live
    added = assign(plain(0, 1, 2, 3), 2, 2, 3, existing=existing)
    assert added == {3: (2, 3), 4: (3, 2)}


# --- given assignments ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "partition", "problem"),
    [
        ({0: ()}, "flights-0", "no replica"),
        ({0: (1,), 1: (2, 2)}, "flights-1", "name each broker once"),
        ({0: (1, 8, 9)}, "flights-0", r"of which \[8, 9\] are no brokers here"),
        ({0: (1, 2), 1: (3,)}, "flights-1", "has 1 replicas, but flights-0 has 2"),
    ],
)
def test_an_assignment_that_cannot_be(layout: dict[int, tuple[int, ...]], partition: str, problem: str) -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match=problem) as error:
        check_assignment(topic(layout), {1, 2, 3})
    assert error.value.partition == partition
    assert error.value.kafka_code == 39
    assert isinstance(error.value, UsageError)


def test_topics_may_differ_in_their_replication_factor() -> None:
    check_assignment(topic({0: (1, 2)}) | topic({0: (3,)}, "other"), {1, 2, 3})


# --- moves ----------------------------------------------------------------------------------------------------------


def applied(layout: Layout, plan: RebalancePlan) -> Layout:
    """The layout after `plan`, once everything that the plan says of itself is found true."""
    after = layout | plan.changed
    assert after.keys() == layout.keys()
    assert all(layout[partition] != replicas for partition, replicas in plan.changed.items())
    moved: dict[TopicPartition, set[int]] = {partition: set(replicas) for partition, replicas in layout.items()}
    for move in plan.moves:
        assert move.source in layout[move.partition] and move.target not in layout[move.partition]
        moved[move.partition] -= {move.source}
        moved[move.partition] |= {move.target}
    assert moved == {partition: set(replicas) for partition, replicas in after.items()}
    for loads, state in ((plan.before, layout), (plan.after, after)):
        assert [load.replicas for load in loads.values()] == replicas_per_broker(state.values(), loads)
        assert [load.leaders for load in loads.values()] == leaders_per_broker(state.values(), loads)
    return after


def fewest_moves(layout: Layout, brokers: Iterable[int]) -> int:
    """Without racks: all that exceeds the larger share, or is missing to the smaller one."""
    loads = replicas_per_broker(layout.values(), brokers)
    share, larger = divmod(sum(loads), len(loads))
    ceiling = share + (larger > 0)
    return max(sum(max(0, load - ceiling) for load in loads), sum(max(0, share - load) for load in loads))


def best_of_all(layout: Layout, brokers: Brokers, leaving: frozenset[int] = frozenset()) -> tuple[int, int]:
    """By trying everything: the smallest sum of squared loads that there is, and the fewest moves that lead to it.

    leaving: brokers to be emptied; then replicas on other brokers stay where they are.
    """
    staying = {broker: rack for broker, rack in brokers.items() if broker not in leaving}
    states = {(0,) * len(staying): 0}
    for replicas in layout.values():
        fixed = set(replicas) - leaving if leaving else set()
        choices = [choice for choice in combinations(staying, len(replicas)) if fixed <= set(choice)]
        racks = max(rack_count(choice, brokers) for choice in choices)
        reached: dict[tuple[int, ...], int] = {}
        for choice in choices:
            if rack_count(choice, brokers) == racks:
                cost = len(set(replicas) - set(choice))
                for loads, moves in states.items():
                    new = tuple(load + (broker in choice) for load, broker in zip(loads, staying, strict=True))
                    reached[new] = min(moves + cost, reached.get(new, moves + cost))
        states = reached
    return min((sum(load**2 for load in loads), moves) for loads, moves in states.items())


def random_layout(dice: random.Random, count: int, partitions: int) -> Layout:
    """One to three topics of any shape, often leaving brokers out."""
    layout: Layout = {}
    for number in range(dice.randint(1, 3)):
        replication_factor = dice.randint(1, min(count, 4))
        known = dice.randint(replication_factor, count)
        for partition in range(dice.randint(1, partitions)):
            layout[TopicPartition(f"t{number}", partition)] = tuple(dice.sample(range(known), replication_factor))
    return layout


def test_brokers_3_and_4_join_a_cluster_of_three_with_100_partitions() -> None:
    """Its "alter cluster add brokers": 120 of 300 replicas move, as they must, and no more."""
    layout = topic(assign(plain(0, 1, 2), 100, 3))
    plan = add_brokers(layout, plain(0, 1, 2), plain(3, 4))
    after = applied(layout, plan)
    check_placement(after.values(), plain(*range(5)))
    assert len(plan.moves) == 120
    assert {move.target for move in plan.moves} == {3, 4}
    assert plan.before == {0: Load(100, 34), 1: Load(100, 33), 2: Load(100, 33), 3: Load(0, 0), 4: Load(0, 0)}
    assert plan.after == dict.fromkeys(range(5), Load(60, 20))
    for dead in range(5):
        successors = Counter(replicas[1] for replicas in after.values() if replicas[0] == dead)
        assert range_of(successors[broker] for broker in range(5) if broker != dead) <= 2
    assert not rebalance(after, plain(*range(5))).changed


def test_without_racks_no_plan_has_fewer_moves() -> None:
    for seed in range(3_000):
        dice = random.Random(seed)
        brokers = plain(*range(dice.randint(1, 9)))
        layout = random_layout(dice, len(brokers), 20)
        plan = rebalance(layout, brokers)
        after = applied(layout, plan)
        check_placement(after.values(), brokers)
        assert range_of(replicas_per_broker(after.values(), brokers)) <= 1, seed
        assert len(plan.moves) == fewest_moves(layout, brokers), seed
        if len({len(replicas) for replicas in layout.values()}) == 1:
            assert range_of(leaders_per_broker(after.values(), brokers)) <= 1, seed


def test_the_bound_on_moves_is_the_truth() -> None:
    """fewest_moves against every layout that there is."""
    for seed in range(200):
        dice = random.Random(seed)
        brokers = plain(*range(dice.randint(1, 5)))
        layout = random_layout(dice, len(brokers), 4)
        assert best_of_all(layout, brokers)[1] == fewest_moves(layout, brokers), seed


def test_with_racks_no_layout_is_more_even_and_hardly_any_plan_shorter() -> None:
    extra = 0
    for seed in range(300):
        dice = random.Random(seed)
        racks = ["a", "b", "c", None][: dice.randint(1, 4)]
        brokers: Brokers = {broker: dice.choice(racks) for broker in range(dice.randint(2, 5))}
        layout = random_layout(dice, len(brokers), 4)
        plan = rebalance(layout, brokers)
        after = applied(layout, plan)
        check_placement(after.values(), brokers)
        squares, moves = best_of_all(layout, brokers)
        assert sum(load**2 for load in replicas_per_broker(after.values(), brokers)) == squares, seed
        extra += len(plan.moves) - moves
    assert extra <= 6  # in 300 plans


def test_leaders_are_as_even_as_the_replicas_allow() -> None:
    """By trying every order: reordering within partitions finds the smallest sum of squared leaderships."""
    for seed in range(200):
        dice = random.Random(seed)
        brokers = plain(*range(dice.randint(1, 5)))
        layout = random_layout(dice, len(brokers), 5)
        after = applied(layout, rebalance(layout, brokers))
        reached = {(0,) * len(brokers)}
        for replicas in after.values():
            reached = {
                tuple(count + (broker == leader) for broker, count in enumerate(counts))
                for counts in reached
                for leader in replicas
            }
        best = min(sum(count**2 for count in counts) for counts in reached)
        assert sum(count**2 for count in leaders_per_broker(after.values(), brokers)) == best, seed


def test_drain_moves_no_more_than_it_must() -> None:
    for seed in range(300):
        dice = random.Random(seed)
        racks = ["a", "b", "c", None][: dice.randint(1, 4)]
        count = dice.randint(2, 6)
        brokers: Brokers = {broker: dice.choice(racks) for broker in range(count)}
        layout = random_layout(dice, count, 4)
        most = max(map(len, layout.values()))
        leaving = frozenset(dice.sample(range(count), dice.randint(0, count - most)))
        staying = {broker: rack for broker, rack in brokers.items() if broker not in leaving}
        plan = drain(layout, brokers, leaving)
        after = applied(layout, plan)
        assert all(set(replicas) <= set(staying) for replicas in after.values())
        assert len(plan.moves) == sum(broker in leaving for replicas in layout.values() for broker in replicas)
        assert all(move.source in leaving for move in plan.moves)
        if leaving:
            loads = replicas_per_broker(after.values(), staying)
            assert sum(load**2 for load in loads) == best_of_all(layout, brokers, leaving)[0], seed


def test_drain_shows_the_emptied_broker() -> None:
    layout = topic({0: (0, 1), 1: (1, 2)})
    plan = drain(layout, plain(0, 1, 2), {0})
    assert plan.moves == (Move(TopicPartition("flights", 0), 0, 2),)
    assert plan.before == {0: Load(1, 1), 1: Load(2, 1), 2: Load(1, 0)}
    assert plan.after == {0: Load(0, 0), 1: Load(2, 1), 2: Load(2, 1)}


def test_drain_of_more_than_can_leave() -> None:
    with pytest.raises(
        InvalidReplicationFactorError, match="flights-0 has 2 replicas and only 1 brokers stay"
    ) as error:
        drain(topic({0: (0, 1)}), plain(0, 1, 2), {0, 2})
    assert error.value.partition == "flights-0"


def test_a_partition_all_in_one_rack_gets_another() -> None:
    brokers: Brokers = {0: "a", 1: "a", 2: "b", 3: "b"}
    layout = topic({0: (0, 1), 1: (2, 3)})
    after = applied(layout, rebalance(layout, brokers))
    check_placement(after.values(), brokers)
    assert replicas_per_broker(after.values(), brokers) == [1, 1, 1, 1]


def test_impossible_rebalances() -> None:
    with pytest.raises(InvalidReplicaAssignmentError, match=r"flights-0 .* \[7\] are no brokers here"):
        rebalance(topic({0: (0, 7)}), plain(0, 1))
    with pytest.raises(UsageError, match=r"brokers \[1\] are in the cluster already"):
        add_brokers({}, plain(0, 1), plain(1, 2))
    assert rebalance({}, plain(0, 1)) == RebalancePlan(
        {}, (), dict.fromkeys((0, 1), Load(0, 0)), dict.fromkeys((0, 1), Load(0, 0))
    )


def test_the_same_facts_give_the_same_plan() -> None:
    dice = random.Random(1)
    layout = random_layout(dice, 6, 20)
    brokers = plain(*range(6))
    plan = rebalance(layout, brokers)
    for _ in range(5):
        shuffled = dict(dice.sample(list(layout.items()), len(layout)))
        assert rebalance(shuffled, dict(reversed(brokers.items()))) == plan


@pytest.mark.parametrize("racks", [0, 3])
def test_ten_thousand_partitions_are_planned_at_once(racks: int) -> None:
    brokers: Brokers = {broker: f"r{broker % racks}" if racks else None for broker in range(30)}
    new: Brokers = {broker: f"r{broker % racks}" if racks else None for broker in range(30, 36)}
    began = time.process_time()
    layout = topic(assign(brokers, 10_000, 3))
    plan = add_brokers(layout, brokers, new)
    drained = drain(layout, brokers, {0, 1, 2})
    took_s = time.process_time() - began
    assert len(plan.moves) == fewest_moves(layout, range(36))
    assert len(drained.moves) == 3_000
    assert took_s < 3  # all three together take less than half a second on a desktop
