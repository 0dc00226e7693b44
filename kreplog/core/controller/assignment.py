"""Replica assignment: placement of the replicas of new partitions, and validation of given assignments.

Brokers are a mapping from id to rack or None. An assignment lists a partition's brokers, the preferred leader first,
then in the order in which they are elected if it fails.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from kreplog.core.controller.distances import follower_distances
from kreplog.core.controller.layout import Layout, level, level_successors, racks_of
from kreplog.errors import InvalidPartitionsError, InvalidReplicaAssignmentError, InvalidReplicationFactorError
from kreplog.types import TopicPartition


def assign(
    brokers: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    first_partition: int = 0,
    start: int = 0,
    existing: Mapping[int, Sequence[int]] | None = None,
) -> dict[int, tuple[int, ...]]:
    """Place `partitions` new partitions of one topic; return their replicas by number, from `first_partition` on.

    brokers: the live ones, id to rack or None; a broker without a rack counts as a rack of its own.
    start: how many partitions the cluster has already. It selects the first broker and the distance of its followers,
    so that many topics of one partition are placed as evenly as one topic of many.
    existing: the partitions that the topic has already, when partitions are added; they stay, and count for evenness.

    The same input gives the same result, in which
    - no partition is on a broker twice, and each is in as many racks as there are, or as it has replicas;
    - brokers lead within 1 of each other, the topic's existing partitions included if they allow it;
    - replicas per broker are as even as that and racks of different size allow: within 1 in a new topic, and hardly
      ever 2 in one that was given more partitions;
    - in a new topic without racks, the brokers that are elected next if a leader fails are spread over all others
      within 2, and all followers of a leader within 3: of fifteen partitions with three replicas on five brokers, the
      three that any broker leads are followed by all four others;
    - in a new topic without racks, two brokers share as many partitions as any other two on average, to less than 4
      with up to three replicas and to less than 6 with up to six: of a hundred partitions with three replicas on ten
      brokers, any two share 6 or 7.

    Raises InvalidPartitionsError (partitions < 1) and InvalidReplicationFactorError (not 1 to the number of brokers).
    Source: "Kafka Replication" of Kafka's wiki, "Replica placements", with racks after KIP-36 (F34).
    """
    if partitions < 1:
        raise InvalidPartitionsError(f"a topic cannot have {partitions} more partitions: choose at least 1")
    if not 1 <= replication_factor <= len(brokers):
        live = len(brokers)
        available = f"{live or 'no'} live broker{'' if live == 1 else 's'}"
        choice = f"choose {'1' if live == 1 else f'1 to {live}'}, or start more brokers" if live else "start some first"
        raise InvalidReplicationFactorError(f"replication factor {replication_factor} with {available}: {choice}")
    old = [replicas for _, replicas in sorted((existing or {}).items())]
    new = islice(_around(brokers, old, replication_factor, start), partitions)
    layout = Layout(brokers, [*old, *new])
    pairs = Counter((replicas[0], follower) for replicas in layout.replicas for follower in replicas[1:])

    def options(item: int, source: int, among: Iterable[int]) -> list[int]:
        leader = layout.replicas[item][0]
        if item < len(old) or leader == source:
            return []
        return sorted(layout.options(item, source, among), key=lambda broker: pairs[leader, broker])

    def move(item: int, source: int, target: int) -> None:
        layout.move(item, source, target)
        leader = layout.replicas[item][0]
        pairs[leader, source] -= 1
        pairs[leader, target] += 1

    level(layout.held, options, move, layout.fair())
    level_successors(layout, len(old))
    return {first_partition + i: tuple(replicas) for i, replicas in enumerate(layout.replicas[len(old) :])}


def check_assignment(assignment: Mapping[TopicPartition, Sequence[int]], brokers: Collection[int]) -> None:
    """Raise InvalidReplicaAssignmentError unless `assignment` is valid.

    Every partition needs at least one broker, distinct ones, all among `brokers`; the partitions of a topic need
    equally
    many. Racks and evenness are not checked. Source: Kafka, ReplicationControlManager.
    """
    sizes: dict[str, tuple[int, TopicPartition]] = {}
    for partition, replicas in assignment.items():
        check_replicas(partition, replicas, brokers)
        size, other = sizes.setdefault(partition.topic, (len(replicas), partition))
        if len(replicas) != size:
            raise InvalidReplicaAssignmentError(
                f"{partition} has {len(replicas)} replicas, but {other} has {size}: all partitions of "
                f"{partition.topic} need equally many",
                partition=str(partition),
            )


def check_replicas(partition: TopicPartition, replicas: Sequence[int], brokers: Collection[int]) -> None:
    """Raise InvalidReplicaAssignmentError unless `replicas` are at least one broker, all distinct, all in `brokers`."""
    unknown = sorted(set(replicas).difference(brokers))
    if not replicas:
        problem = "no replica: give at least one broker"
    elif len(set(replicas)) < len(replicas):
        problem = f"replicas {list(replicas)}: name each broker once"
    elif unknown:
        problem = f"replicas {list(replicas)}, of which {unknown} are no brokers here: choose from {sorted(brokers)}"
    else:
        return
    raise InvalidReplicaAssignmentError(f"{partition} is given {problem}", partition=str(partition))


def _around(
    brokers: Mapping[int, str | None], existing: Sequence[Sequence[int]], rf: int, start: int
) -> Iterator[list[int]]:
    """The replicas of each new partition, in round-robin order of the brokers.

    In every round each broker leads once, and all have their followers at the same distances (distances.py), which lead
    to different racks, so a whole round is even. In time a broker's followers are on all brokers. Replicas beyond one
    per rack go to the remaining brokers in turn.
    """
    rings: dict[str | int, list[int]] = {}
    for broker, rack in racks_of(brokers).items():
        rings.setdefault(rack, []).append(broker)
    racks = list(rings.values())
    places = {broker: (place, rack) for rack, ring in enumerate(racks) for place, broker in enumerate(ring)}
    order = sorted(places, key=places.__getitem__)  # racks taking turns
    distances = follower_distances(len(racks), max(map(len, racks)), min(rf, len(racks)) - 1)
    for number, leader in enumerate(_leaders(order, existing, start)):
        place, rack = places[leader]
        turn = start // len(order) + number // len(order)
        replicas = [leader]
        for further, along in distances.of_round(turn):
            ring = racks[(rack + further) % len(racks)]
            replicas.append(ring[(place + along) % len(ring)])
        beside = rf - len(replicas)
        if beside:
            at = order.index(leader)
            others = [broker for broker in order[at:] + order[:at] if broker not in replicas]
            replicas += [others[(turn * beside + i) % len(others)] for i in range(beside)]
        yield replicas


def _leaders(order: Sequence[int], existing: Sequence[Sequence[int]], start: int) -> Iterator[int]:
    """Always the broker that leads least; of those the one with the fewest replicas; then in order, from `start` on."""
    leads = Counter(replicas[0] for replicas in existing)
    loads = Counter(broker for replicas in existing for broker in replicas)
    heap = [(leads[broker], (loads[broker], (turn - start) % len(order)), broker) for turn, broker in enumerate(order)]
    heapq.heapify(heap)
    while True:
        count, rank, broker = heap[0]
        yield broker
        heapq.heapreplace(heap, (count + 1, rank, broker))
