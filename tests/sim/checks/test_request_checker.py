"""The checker of administrative requests finds those that are lost, and those that are not carried out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kreplog.config import TopicConfig
from kreplog.coord.memory import MemoryStore
from kreplog.core import nodes
from kreplog.core.controller.admin_operations import create_topic_operations
from kreplog.core.nodes import Assignment
from kreplog.sim.checks.request_checker import RequestChecker
from kreplog.types import (
    NO_LEADER,
    BrokerRegistration,
    Create,
    Delete,
    LeaderAndIsr,
    SetData,
    StoreOperation,
    TopicPartition,
)

T0 = TopicPartition("t", 0)
MOVING = Assignment((1, 2, 3), (3,), (1,))
REQUEST = nodes.partition(T0, nodes.REASSIGNED)


class World:
    """A store with a topic of two partitions, whose changes are judged. found: the kinds of the violations. failed:
    brokers whose logs have failed. controls: a controller has nothing to do."""

    def __init__(self) -> None:
        self.session = MemoryStore().connect(1000)
        self.found: list[str] = []
        self.failed: set[int] = set()
        self.controls = True
        self.checker = RequestChecker(
            lambda path: None if self.session.exists(path) is None else self.session.get(path),
            lambda kind, _text: self.found.append(kind),
            lambda broker, partition: broker not in self.failed,
            lambda: self.controls,
        )
        assignment = {0: (1, 2), 1: (2, 3)}
        self.write(*map(Create, nodes.PERSISTENT))
        self.write(*(Create(f"{root}/t") for root in nodes.PARTITION_REQUESTS))
        self.write(*create_topic_operations("t", "id", assignment, TopicConfig(), (1, 2, 3)))

    def write(self, *operations: StoreOperation) -> None:
        self.session.multi(operations)
        self.checker.store_changed()

    def topic(self, **partitions: Assignment | None) -> StoreOperation:
        """Sets the topic's node. partitions: those that change, as p0; None for one that is removed."""
        changed = {int(name[1:]): assigned for name, assigned in partitions.items()}
        whole = {0: Assignment((1, 2)), 1: Assignment((2, 3)), **changed}
        rest = {number: assigned for number, assigned in whole.items() if assigned is not None}
        return SetData(nodes.topic("t"), nodes.encode_topic(nodes.TopicNode("id", rest)))


@pytest.fixture
def world() -> World:
    return World()


def reassign(world: World, target: tuple[int, ...] | None, stored: tuple[int, ...]) -> None:
    exists = world.session.exists(REQUEST) is not None
    data = nodes.encode_replicas(stored)
    world.write(SetData(REQUEST, data) if exists else Create(REQUEST, data))
    world.checker.reassignment_accepted(T0, target)


@pytest.mark.parametrize(
    ("ended", "violations"),
    [
        (Assignment((2, 3)), []),
        (Assignment((1, 2)), ["request not carried out"]),
        (MOVING, ["request not carried out"]),
    ],
)
def test_a_reassigned_partition_has_the_requested_replicas(
    world: World, ended: Assignment, violations: list[str]
) -> None:
    reassign(world, (2, 3), (2, 3))
    world.write(world.topic(p0=MOVING))
    assert world.found == []
    world.write(world.topic(p0=ended), Delete(REQUEST))
    assert world.found == violations


@pytest.mark.parametrize(
    ("ended", "violations"), [(Assignment((1, 2)), []), (Assignment((2, 3)), ["request not carried out"])]
)
def test_a_cancelled_reassignment_ends_with_the_replicas_from_before(
    world: World, ended: Assignment, violations: list[str]
) -> None:
    reassign(world, (2, 3), (2, 3))
    world.write(world.topic(p0=MOVING))
    reassign(world, None, ())
    world.write(world.topic(p0=ended), Delete(REQUEST))
    assert world.found == violations


@pytest.mark.parametrize("deletion", [f"{nodes.DELETED_TOPICS}/t", nodes.partition(T0, nodes.REMOVED)])
def test_unless_it_is_being_deleted(world: World, deletion: str) -> None:
    reassign(world, (2, 3), (2, 3))
    world.write(Create(deletion))
    world.write(Delete(REQUEST))
    assert world.found == []


@pytest.mark.parametrize(("topic_id", "violations"), [("id2", []), ("id", ["request not carried out"])])
def test_unless_another_topic_has_its_name(world: World, topic_id: str, violations: list[str]) -> None:
    reassign(world, (2, 3), (2, 3))
    world.write(Delete(nodes.topic("t")), Delete(nodes.topic_config("t")))
    world.write(*create_topic_operations("t", topic_id, {0: (1, 2)}, TopicConfig(), (1, 2, 3)))
    world.write(Delete(REQUEST))
    assert world.found == violations


def test_accepted_requests_are_in_the_store(world: World) -> None:
    reassign(world, (2, 3), (1, 3))
    accepted: tuple[Callable[[], None], ...] = (
        lambda: world.checker.reassignment_accepted(TopicPartition("t", 1), (1, 3)),
        lambda: world.checker.addition_accepted(TopicPartition("t", 2), (1, 2)),
        lambda: world.checker.removal_accepted(TopicPartition("t", 1)),
        lambda: world.checker.deletion_accepted("t"),
        lambda: world.checker.deletion_accepted("u"),
    )
    for accept in accepted:
        accept()
    assert world.found == ["request lost"] * 6


@pytest.mark.parametrize(("carried_out", "violations"), [(True, []), (False, ["request not carried out"])])
def test_partitions_are_added(world: World, carried_out: bool, violations: list[str]) -> None:
    added = TopicPartition("t", 2)
    request = nodes.partition(added, nodes.ADDED)
    world.write(Create(request, nodes.encode_replicas((1, 2))))
    world.checker.addition_accepted(added, (1, 2))
    world.write(world.topic(**({"p2": Assignment((1, 2))} if carried_out else {})), Delete(request))
    assert world.found == violations


@pytest.mark.parametrize(("carried_out", "violations"), [(True, []), (False, ["request not carried out"])])
def test_partitions_are_removed(world: World, carried_out: bool, violations: list[str]) -> None:
    removed = TopicPartition("t", 1)
    request = nodes.partition(removed, nodes.REMOVED)
    world.write(Create(request))
    world.checker.removal_accepted(removed)
    world.write(world.topic(**({"p1": None} if carried_out else {})), Delete(request))
    assert world.found == violations


@pytest.mark.parametrize(
    ("under", "number", "data", "changed"),
    [
        (nodes.REASSIGNED, 0, b"[2,3]", {0: Assignment((2, 3)), 1: Assignment((2, 3))}),
        (nodes.ADDED, 2, b"[1,2]", {0: Assignment((1, 2)), 1: Assignment((2, 3)), 2: Assignment((1, 2))}),
        (nodes.REMOVED, 1, b"", {0: Assignment((1, 2))}),
    ],
)
@pytest.mark.parametrize("at_once", [False, True])
def test_a_request_for_an_earlier_topic_changes_no_later_one(
    world: World, under: str, number: int, data: bytes, changed: dict[int, Assignment], at_once: bool
) -> None:
    partition = TopicPartition("t", number)
    request = nodes.partition(partition, under)
    world.write(Create(request, data))
    match under:
        case nodes.REASSIGNED:
            world.checker.reassignment_accepted(partition, (2, 3))
        case nodes.ADDED:
            world.checker.addition_accepted(partition, (1, 2))
        case nodes.REMOVED:
            world.checker.removal_accepted(partition)
    world.write(Delete(nodes.topic_config("t")), Delete(nodes.topic("t")))
    later = {0: (1, 2), 1: (2, 3)}
    world.write(*create_topic_operations("t", "later", later, TopicConfig(), (1, 2, 3)))
    assert world.found == []
    write = SetData(nodes.topic("t"), nodes.encode_topic(nodes.TopicNode("later", changed)))
    world.write(write, *((Delete(request),) if at_once else ()))
    assert world.found == ["another topic"]


def test_a_later_topic_changes_by_other_requests(world: World) -> None:
    world.write(Create(REQUEST, b"[2,3]"))
    world.checker.reassignment_accepted(T0, (2, 3))
    world.write(Delete(nodes.topic_config("t")), Delete(nodes.topic("t")))
    world.write(*create_topic_operations("t", "later", {0: (1, 2), 1: (2, 3)}, TopicConfig(), (1, 2, 3)))
    partitions = {0: Assignment((1, 2)), 1: MOVING}
    world.write(SetData(nodes.topic("t"), nodes.encode_topic(nodes.TopicNode("later", partitions))))
    world.write(Delete(REQUEST))
    assert world.found == []


def test_an_addition_and_a_removal_at_once_may_be_refused(world: World) -> None:
    added, removed = TopicPartition("t", 2), TopicPartition("t", 1)
    requests = nodes.partition(added, nodes.ADDED), nodes.partition(removed, nodes.REMOVED)
    world.write(Create(requests[0], nodes.encode_replicas((1, 2))), Create(requests[1]))
    world.checker.addition_accepted(added, (1, 2))
    world.checker.removal_accepted(removed)
    world.write(world.topic(), *map(Delete, requests))
    assert world.found == []


@pytest.mark.parametrize(("carried_out", "violations"), [(True, []), (False, ["request not carried out"])])
def test_a_topic_is_deleted(world: World, carried_out: bool, violations: list[str]) -> None:
    world.write(Create(f"{nodes.DELETED_TOPICS}/t"))
    world.checker.deletion_accepted("t")
    topic = (Delete(nodes.topic("t")),) if carried_out else ()
    world.write(*topic, Delete(f"{nodes.DELETED_TOPICS}/t"))
    assert world.found == violations


def registration(stopping: bool = False) -> bytes:
    return nodes.encode_broker(BrokerRegistration(2, -1, stopping=stopping))


def led_by(leader: int) -> bytes:
    return nodes.encode_leader_and_isr(LeaderAndIsr(leader, 1, (1,), (), 1))


@pytest.mark.parametrize(
    ("meanwhile", "violations"),
    [
        ([], ["request not carried out"]),
        ([SetData(nodes.leader_and_isr(T0), led_by(2))], []),
        ([Delete(nodes.broker(2)), Create(nodes.broker(2), registration())], []),
        ([SetData(nodes.broker(2), registration(stopping=True))], []),
        ([SetData(nodes.CONTROLLER_EPOCH, b"2")], []),
        ([Create(f"{nodes.DELETED_TOPICS}/t")], []),
        ([SetData(nodes.topic("t"), nodes.encode_topic(nodes.TopicNode("id2", {0: Assignment((1, 2))})))], []),
    ],
)
def test_an_unclean_election_on_request_gives_a_leader(
    world: World, meanwhile: list[StoreOperation], violations: list[str]
) -> None:
    request_election(world)
    world.write(*meanwhile, Delete(nodes.UNCLEAN_ELECTION))
    assert world.found == violations


def test_an_unclean_election_may_be_dropped_by_a_controller_that_was_just_elected(world: World) -> None:
    world.controls = False
    request_election(world)
    world.controls = True
    world.write(Delete(nodes.UNCLEAN_ELECTION))
    assert world.found == []


def test_an_unclean_election_needs_a_log_that_works(world: World) -> None:
    request_election(world)
    world.failed.add(2)
    world.write(Delete(nodes.UNCLEAN_ELECTION))
    assert world.found == []


def request_election(world: World) -> None:
    """Of a partition on brokers 1 and 2, of which 2 alone is registered."""
    world.write(
        Create(nodes.CONTROLLER_EPOCH, b"1"),
        Create(nodes.broker(2), registration()),
        Create(f"{nodes.TOPICS}/t/0"),
        Create(nodes.leader_and_isr(T0), led_by(NO_LEADER)),
    )
    world.write(Create(nodes.UNCLEAN_ELECTION, nodes.encode_partitions([T0])))
