"""Administrative requests: what they write, which are written again, and the error codes of those that fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import pytest

from kreplog.config import TopicConfig
from kreplog.core import nodes, whole_nodes
from kreplog.core.controller import admin_requests, topic_names
from kreplog.core.controller.admin_requests import (
    ATTEMPTS,
    ELECTION_RETRY_MS,
    RefusedError,
    admin_error,
    directory_in_retry,
)
from kreplog.core.controller.topic_names import TopicNames
from kreplog.core.effects import Steps
from kreplog.core.transaction_messages import INTERNAL_TOPICS
from kreplog.errors import (
    BadVersionError,
    ConnectionLossError,
    CoordinationError,
    ErrorCode,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    KreplogError,
    NodeExistsError,
    NoNodeError,
)
from kreplog.types import ElectionType, SetData, TopicPartition
from tests.core.controller.request_store import BROKERS, RequestStore, refused

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
REASSIGNED = f"{nodes.REASSIGNED}/t"


class World(RequestStore):
    """With reassignments of the topic t."""

    def reassign(
        self,
        partition: TopicPartition,
        target: tuple[int, ...] | None,
        before: Mapping[int, Callable[[], object]] | None = None,
        *,
        keep_count: bool = False,
    ) -> None:
        self.carry_out(admin_requests.reassign(partition, target, BROKERS, keep_count=keep_count), before)

    def create_beside(self, name: str) -> None:
        """Create a topic while the steps of another request are carried out."""
        writes = self.writes
        self.create(name)
        self.writes = writes

    def requested(self, partition: TopicPartition) -> tuple[int, ...]:
        path = nodes.partition(partition, nodes.REASSIGNED)
        return nodes.decode_replicas(path, self.session.get(path))

    def complete(self, partition: TopicPartition) -> None:
        """As the controller does, which deletes an empty directory too."""
        self.session.delete(nodes.partition(partition, nodes.REASSIGNED))
        if not self.session.children(REASSIGNED):
            self.session.delete(REASSIGNED)


def creation(name: str, existing: TopicNames | None = None, *, validate_only: bool = False) -> Steps[None]:
    replicas = {0: (1, 2)}
    return admin_requests.create_topic(
        name, "id", replicas, TopicConfig(), BROKERS, existing, validate_only=validate_only
    )


@pytest.fixture
def world() -> World:
    return World()


# Topics


def test_a_topic_is_created_once(world: World) -> None:
    with refused(ErrorCode.TOPIC_ALREADY_EXISTS):
        world.create("t")


@pytest.mark.parametrize(("first", "second"), [("a.b", "a_b"), ("a_b", "a.b"), ("a.b_c", "a_b.c"), ("..x", "__x")])
def test_a_topic_whose_metrics_have_the_names_of_another_is_refused(world: World, first: str, second: str) -> None:
    world.create(first)
    with pytest.raises(InvalidTopicError, match=f"{re.escape(second)} collides with topic"):
        world.create(second)
    assert second not in world.session.children(nodes.TOPICS)
    for other in ("a-b", "ab", "x", first + "_"):
        world.create(other)
    with refused(ErrorCode.TOPIC_ALREADY_EXISTS):
        world.create(first)


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_no_topic_takes_the_metric_names_of_an_internal_one(world: World, name: str) -> None:
    with pytest.raises(InvalidTopicError, match=f"collides with topic {name}"):
        world.create(name.replace("_", ".", 1))
    world.session.create(nodes.topic(name.replace("_", ".", 1)))  # by an earlier version
    world.create(name)
    assert name in world.session.children(nodes.TOPICS)


def test_a_topic_that_another_broker_creates_meanwhile_collides_too(world: World) -> None:
    with pytest.raises(InvalidTopicError, match="collides"):
        world.carry_out(creation("a_b"), {1: partial(world.create_beside, "a.b")})
    assert world.session.children(nodes.TOPICS) == ["a.b", "t"]


def creations(names: Iterable[str]) -> Steps[None]:
    """Create the topics of one request."""
    existing = TopicNames()
    for name in names:
        yield from creation(name, existing)


def test_a_broker_that_creates_many_topics_does_not_hold_up_the_others(world: World) -> None:
    long = [f"app.{number}" for number in range(1000)]
    short = [f"other_{number}" for number in range(40)]
    world.carry_out_together([creations(long), *(creations([name]) for name in (*short, *sorted(INTERNAL_TOPICS)))])
    assert set(world.session.children(nodes.TOPICS)) == {"t", *long, *short, *INTERNAL_TOPICS}


@pytest.mark.parametrize("guards", [1, topic_names.GUARDS])
def test_of_colliding_topics_that_brokers_create_at_once_each_first_is_created(
    world: World, monkeypatch: pytest.MonkeyPatch, guards: int
) -> None:
    monkeypatch.setattr(topic_names, "GUARDS", guards)
    collided: list[str] = []

    def attempts(name: str) -> Steps[None]:
        try:
            yield from creation(name)
        except InvalidTopicError:
            collided.append(name)

    names = [name for number in range(8) for name in (f"a.{number}", f"a_{number}")]
    world.carry_out_together(map(attempts, names))
    created = world.session.children(nodes.TOPICS)
    assert sorted(name.replace(".", "_") for name in created) == ["a_" + str(number) for number in range(8)] + ["t"]
    assert sorted((*created, *collided)) == sorted((*names, "t"))
    assert world.paused_ms


def test_topics_that_others_create_meanwhile_do_not_refuse_names_that_differ(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_names, "GUARDS", 1)
    existing = TopicNames()
    world.carry_out(creation("a.b", existing))
    world.carry_out(creation("c.d", existing))
    assert world.writes == 1
    world.create("e.f")
    world.carry_out(creation("g.h", existing))
    assert world.writes == 2
    assert world.session.children(nodes.TOPICS) == ["a.b", "c.d", "e.f", "g.h", "t"]


def test_a_creation_that_always_meets_others_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_names, "GUARDS", 1)
    numbers = range(1, whole_nodes.ATTEMPTS + 1)
    others = {number: partial(world.create_beside, f"x.{number}") for number in numbers}
    with pytest.raises(CoordinationError, match="too many topics are being created beside a\\.b"):
        world.carry_out(creation("a.b"), others)
    assert world.paused_ms == [whole_nodes.RETRY_MS * number for number in numbers]
    assert "a.b" not in world.session.children(nodes.TOPICS)


@pytest.mark.parametrize("validate_only", [False, True])
def test_topics_of_a_request_collide_with_each_other_also_if_they_are_only_validated(
    world: World, validate_only: bool
) -> None:
    existing = TopicNames()
    world.carry_out(creation("a.b", existing, validate_only=validate_only))
    with pytest.raises(InvalidTopicError, match="collides"):
        world.carry_out(creation("a_b", existing, validate_only=validate_only))
    assert world.session.children(nodes.TOPICS) == (["t"] if validate_only else ["a.b", "t"])


def test_colliding_topics_of_earlier_versions_stay(world: World) -> None:
    for name in ("a.b", "a_b"):
        world.session.create(nodes.topic(name))
        with refused(ErrorCode.TOPIC_ALREADY_EXISTS):
            world.create(name)
    world.carry_out(admin_requests.delete_topic("a_b"))
    assert world.session.children(nodes.DELETED_TOPICS) == ["a_b"]


def test_a_deletion_is_requested_once_and_only_of_a_topic_that_exists(world: World) -> None:
    for _ in range(2):
        world.carry_out(admin_requests.delete_topic("t"))
    assert world.session.children(nodes.DELETED_TOPICS) == ["t"]
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        world.carry_out(admin_requests.delete_topic("u"))
    assert world.session.children(nodes.DELETED_TOPICS) == ["t"]


# Requests in a directory of their topic


def test_requests_for_partitions_of_a_topic_share_a_directory(world: World) -> None:
    world.reassign(T0, (1, 3))
    assert world.writes == 1
    world.reassign(T1, (3, 2))
    assert world.writes == 2
    assert (world.requested(T0), world.requested(T1)) == ((1, 3), (3, 2))


def test_the_controller_deletes_the_directory_before_the_request_is_written_again(world: World) -> None:
    world.reassign(T0, (1, 3))
    world.reassign(T1, (3, 2), {2: lambda: world.complete(T0)})
    assert world.writes == 3
    assert (world.session.children(REASSIGNED), world.requested(T1)) == (["1"], (3, 2))


def test_a_request_that_always_meets_another_directory_is_refused(world: World) -> None:
    def other() -> None:
        world.session.create(REASSIGNED)

    def gone() -> None:
        world.session.delete(REASSIGNED)

    with refused(ErrorCode.REASSIGNMENT_IN_PROGRESS):
        world.reassign(T0, (1, 3), {number: other if number % 2 else gone for number in range(1, ATTEMPTS + 1)})
    assert world.writes == ATTEMPTS


def test_a_request_can_forbid_that_the_number_of_replicas_changes(world: World) -> None:
    """KIP-860. While a reassignment is under way, the number is that which it leads to."""
    for target in ((1, 2, 3), (3,)):
        with pytest.raises(InvalidReplicationFactorError, match=rf"t-0 has 2 replicas, not {len(target)}"):
            world.reassign(T0, target, keep_count=True)
    assert world.writes == 0
    world.reassign(T0, (1, 3), keep_count=True)
    assert world.requested(T0) == (1, 3)
    path = nodes.topic("t")
    current = nodes.decode_topic(path, world.session.get(path))
    moving = nodes.Assignment((1, 2, 3), adding=(3,))
    changed = replace(current, partitions={**current.partitions, 1: moving})
    world.session.multi([SetData(path, nodes.encode_topic(changed))])
    with pytest.raises(InvalidReplicationFactorError, match="t-1 has 3 replicas, not 2"):
        world.reassign(T1, (1, 2), keep_count=True)
    world.reassign(T1, (2, 3, 1), keep_count=True)
    world.reassign(T1, (3,))
    world.complete(T1)
    world.reassign(T1, (3,))
    world.reassign(T1, None, keep_count=True)
    assert world.requested(T1) == ()


def test_a_reassignment_replaces_a_pending_one(world: World) -> None:
    world.reassign(T0, (1, 3))
    world.reassign(T0, (2, 3))
    assert (world.writes, world.requested(T0)) == (1, (2, 3))


def test_a_reassignment_that_is_to_replace_one_which_ends_is_a_new_one(world: World) -> None:
    world.reassign(T0, (1, 3))
    world.reassign(T0, (2, 3), {1: lambda: world.complete(T0)})
    assert world.requested(T0) == (2, 3)


def test_of_two_reassignments_of_a_partition_at_once_one_is_refused(world: World) -> None:
    other = admin_requests.reassign(T0, (1, 3), BROKERS)
    with refused(ErrorCode.REASSIGNMENT_IN_PROGRESS):
        world.reassign(T0, (2, 3), {1: lambda: world.carry_out(other)})
    assert world.requested(T0) == (1, 3)


def test_a_cancellation_needs_a_reassignment(world: World) -> None:
    with refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
        world.reassign(T0, None)
    world.reassign(T0, (1, 3))
    world.reassign(T0, None)
    assert world.requested(T0) == ()
    for unknown in (TopicPartition("t", 3), TopicPartition("u", 0)):
        with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            world.reassign(unknown, None)


def test_partitions_are_added_once(world: World) -> None:
    def added() -> None:
        current = world.carry_out(admin_requests.stored_topic("t"))
        world.carry_out(admin_requests.add_partitions("t", current, {3: (1, 2)}, BROKERS))

    added()
    with refused(ErrorCode.REASSIGNMENT_IN_PROGRESS):
        added()
    assert world.session.children(f"{nodes.ADDED}/t") == ["3"]


def test_impossible_partitions_are_refused_before_any_step(world: World) -> None:
    current = world.carry_out(admin_requests.stored_topic("t"))
    with pytest.raises(InvalidPartitionsError):
        admin_requests.add_partitions("t", current, {2: (1, 2)}, BROKERS)


def test_the_last_partitions_are_removed_once(world: World) -> None:
    assert world.carry_out(admin_requests.remove_partitions("t", 2)) == [2]
    assert world.carry_out(admin_requests.remove_partitions("t", 1)) == [1, 2]
    assert world.carry_out(admin_requests.remove_partitions("t", 1)) == [1, 2]
    assert world.writes == 0
    assert world.carry_out(admin_requests.pending_removals("t")) == [1, 2]


def test_no_partitions_are_added_while_others_are_removed(world: World) -> None:
    """Their numbers would go on from those that are removed."""
    world.carry_out(admin_requests.remove_partitions("t", 2))
    current = world.carry_out(admin_requests.stored_topic("t"))
    with refused(ErrorCode.REASSIGNMENT_IN_PROGRESS):
        world.carry_out(admin_requests.add_partitions("t", current, {3: (1, 2)}, BROKERS))


def test_a_removal_that_another_has_requested_meanwhile_is_not_refused(world: World) -> None:
    other = admin_requests.remove_partitions("t", 2)
    assert world.carry_out(admin_requests.remove_partitions("t", 1), {1: lambda: world.carry_out(other)}) == [1, 2]
    assert world.carry_out(admin_requests.pending_removals("t")) == [1, 2]


def test_a_topic_keeps_a_partition_and_an_internal_one_all(world: World) -> None:
    for name, keep in (("t", 0), ("t", 3), ("__consumer_offsets", 1)):
        with pytest.raises(InvalidPartitionsError):
            world.carry_out(admin_requests.remove_partitions(name, keep))
    with refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
        world.carry_out(admin_requests.remove_partitions("u", 1))


@pytest.mark.parametrize("index", [0, None])
def test_a_request_is_written_again_with_the_directory_as_it_is_now(index: int | None) -> None:
    assert directory_in_retry(NodeExistsError("/admin/a exists", index=index)) is False
    assert directory_in_retry(NoNodeError("/admin/a is gone", index=index)) is True


@pytest.mark.parametrize("error", [NodeExistsError("/admin/a/0 exists", index=1), NoNodeError("/b is gone", index=2)])
def test_a_request_that_meets_another_is_not_written_again(error: NodeExistsError | NoNodeError) -> None:
    assert directory_in_retry(error) is None


# Elections


def test_an_election_waits_for_an_earlier_one(world: World) -> None:
    world.carry_out(admin_requests.elect_leaders(ElectionType.PREFERRED))
    done = {3: lambda: world.session.delete(nodes.PREFERRED_ELECTION)}
    world.carry_out(admin_requests.elect_leaders(ElectionType.PREFERRED, [T1]), done)
    assert world.paused_ms == [ELECTION_RETRY_MS] * 2
    stored = world.session.get(nodes.PREFERRED_ELECTION)
    assert nodes.decode_partitions(nodes.PREFERRED_ELECTION, stored) == (T1,)


def test_but_not_for_long(world: World) -> None:
    world.carry_out(admin_requests.elect_leaders(ElectionType.PREFERRED))
    with pytest.raises(NodeExistsError):
        world.carry_out(admin_requests.elect_leaders(ElectionType.PREFERRED))
    assert world.paused_ms == [ELECTION_RETRY_MS] * (ATTEMPTS - 1)


# Errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectionLossError("no response"), ErrorCode.REQUEST_TIMED_OUT),
        (BadVersionError("written in the meantime"), ErrorCode.REQUEST_TIMED_OUT),
        (InvalidTopicError("a#b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
        (RefusedError(ErrorCode.INVALID_CONFIG, "no such setting"), ErrorCode.INVALID_CONFIG),
        (KreplogError("unexpected"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_clients_repeat_a_request_that_the_store_has_failed(error: KreplogError, code: int) -> None:
    assert admin_error(error) == code
