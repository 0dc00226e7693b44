"""Administrative requests: the steps that each takes in the coordination store, until the controller can find it there.

A broker carries them out for its clients, a tool for its user, and the simulator for its operators. What is written is
in admin_operations, where new replicas go in new_partitions. A request may meet others, and the controller, which
deletes requests that it has carried out: what is repeated then, and what is refused, is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from kreplog.config import TopicConfig
from kreplog.core import nodes, whole_nodes
from kreplog.core.controller.admin_operations import (
    add_partitions_operations,
    cancel_reassignment_operations,
    create_topic_operations,
    delete_topic_operations,
    election_operations,
    reassign_operations,
    remove_partitions_operations,
)
from kreplog.core.controller.new_partitions import check_keeps_partitions
from kreplog.core.controller.topic_names import TopicNames
from kreplog.core.effects import GetChildren, GetNodes, Multi, Pause, Steps
from kreplog.core.nodes import TopicNode
from kreplog.errors import (
    BadVersionError,
    CoordinationError,
    ErrorCode,
    InvalidReplicationFactorError,
    KreplogError,
    NodeExistsError,
    NoNodeError,
)
from kreplog.types import ElectionType, StoreOperation, TopicPartition, check_topic

ATTEMPTS = 5
"""Maximum of attempts to write a request: others, or the controller, may be first each time."""

ELECTION_RETRY_MS = 50
"""Delay before a leader election is requested again, while an earlier one is pending: the controller deletes that when
it has carried it out."""


class RefusedError(KreplogError):
    """The response to a request, or to a part of it, has this error code of Kafka's; nothing was changed."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


def admin_error(error: KreplogError) -> ErrorCode:
    """The error code of an administrative request that has failed; a retriable one if the store has."""
    if isinstance(error, RefusedError):
        return error.code
    return ErrorCode.REQUEST_TIMED_OUT if isinstance(error, CoordinationError) else error.kafka_code


def stored_topic(name: str) -> Steps[TopicNode]:
    """A topic as it is stored. Raises RefusedError (there is none), InvalidTopicError."""
    path = nodes.topic(check_topic(name))
    (node,) = yield GetNodes((path,))
    if node is None:
        raise unknown(f"topic {name}")
    return nodes.decode_topic(path, node)


def create_topic(
    name: str,
    topic_id: str,
    assignment: Mapping[int, Sequence[int]],
    config: TopicConfig,
    brokers: Collection[int],
    existing: TopicNames | None = None,
    *,
    validate_only: bool = False,
) -> Steps[None]:
    """Create a topic, with the replicas of new_partitions.topic_replicas. brokers: the assignable ones. existing: names
    of topics, shared by the topics of one request. validate_only: all but to write it.

    Raises at once what create_topic_operations raises; in its steps InvalidTopicError (its name collides with that of a
    topic), RefusedError (there is such a topic), CoordinationError."""
    operations = create_topic_operations(name, topic_id, assignment, config, brokers)
    names = TopicNames() if existing is None else existing
    return _validate_topic(name, names) if validate_only else _create_topic(name, operations, names)


def _validate_topic(name: str, existing: TopicNames) -> Steps[None]:
    yield from existing.check(name)
    existing.claim(name)


def _create_topic(name: str, operations: tuple[StoreOperation, ...], existing: TopicNames) -> Steps[None]:
    for attempt in range(whole_nodes.ATTEMPTS):
        guards = yield from existing.check(name)
        try:
            yield Multi((*operations, *guards))
            existing.created(name)
            return
        except (NodeExistsError, BadVersionError) as error:
            if isinstance(error, NodeExistsError) and error.index != len(operations):
                text = f"topic {name} exists already, or is still being deleted"
                raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, text) from error
        existing.outdated()
        yield whole_nodes.retry_pause(attempt)
    raise CoordinationError(f"too many topics are being created beside {name}: try again", path=nodes.topic(name))


def delete_topic(name: str) -> Steps[None]:
    """Request the deletion of a topic, unless that is pending. Raises RefusedError (there is no such topic),
    InvalidTopicError, CoordinationError."""
    try:
        yield Multi(delete_topic_operations(name))
    except NodeExistsError:
        return
    except NoNodeError as error:
        raise unknown(f"topic {name}") from error


def add_partitions(
    name: str, current: TopicNode, assignment: Mapping[int, Sequence[int]], brokers: Collection[int]
) -> Steps[None]:
    """Request partitions, with the replicas of new_partitions.added_partitions. current: of stored_topic. brokers: the
    assignable ones. Raises at once what add_partitions_operations raises; in its steps RefusedError (such a request is
    pending, or partitions are being removed), CoordinationError."""
    writes = {
        directory: add_partitions_operations(name, current, assignment, brokers, directory=directory)
        for directory in (True, False)
    }
    return _add(name, writes.__getitem__)


def _add(name: str, operations: Callable[[bool], tuple[StoreOperation, ...]]) -> Steps[None]:
    """Numbers go on without a gap: the controller, too, refuses what comes before the removal is completed."""
    removed = yield from pending_removals(name)
    if removed:
        text = f"partitions {removed} of {name} are being removed: add others once they are gone"
        raise RefusedError(ErrorCode.REASSIGNMENT_IN_PROGRESS, text)
    yield from _in_directory(operations)


def remove_partitions(name: str, keep: int) -> Steps[list[int]]:
    """Request that partitions `keep` and above be deleted with their records; returns their numbers.

    Only the last ones: clients map keys to the numbers from 0 to the number of partitions. Raises RefusedError (there
    is no such topic), InvalidPartitionsError (no partition would be removed, or none left; also for an internal topic),
    CoordinationError.
    """
    check_keeps_partitions(name)
    for attempt in range(ATTEMPTS):
        current = yield from stored_topic(name)
        numbers = [number for number in sorted(current.partitions) if number >= keep]
        requested = yield from pending_removals(name)
        missing = [number for number in numbers if number not in requested]
        if numbers and not missing:
            break
        try:
            yield from _remove(name, current, missing)
            break
        except RefusedError:  # another has requested some of them in the meantime
            if attempt == ATTEMPTS - 1:
                raise
    return numbers


def _remove(name: str, current: TopicNode, numbers: Collection[int]) -> Steps[None]:
    return _in_directory(lambda directory: remove_partitions_operations(name, current, numbers, directory=directory))


def pending_removals(name: str) -> Steps[list[int]]:
    """The partitions of a topic that are requested to be removed, and are not yet."""
    found: list[str] | None = yield GetChildren(f"{nodes.REMOVED}/{name}")
    return sorted(map(int, found or ()))


def reassign(
    partition: TopicPartition, target: Sequence[int] | None, brokers: Collection[int], *, keep_count: bool = False
) -> Steps[None]:
    """Request a reassignment, in place of a pending one of that partition; or with None as the target cancel that.
    brokers: the live ones. keep_count: refuse another number of replicas than the partition has, or will have after a
    reassignment under way (KIP-860). Raises RefusedError (there is no such partition, or it is not being reassigned),
    InvalidReplicaAssignmentError, InvalidReplicationFactorError, CoordinationError."""
    topic = yield from stored_topic(partition.topic)
    if partition.partition not in topic.partitions:
        raise unknown(f"partition {partition}")
    if target is None:
        yield from _cancel_reassignment(partition)
        return
    count = len(topic.partitions[partition.partition].target)
    if keep_count and len(target) != count:
        raise InvalidReplicationFactorError(
            f"{partition} has {count} replicas, not {len(target)}, which the request does not allow to change"
        )
    (pending,) = yield GetNodes((nodes.partition(partition, nodes.REASSIGNED),))
    if pending is not None:
        try:
            yield Multi(reassign_operations(partition, target, brokers, pending=True))
            return
        except NoNodeError:
            pass  # that one has been carried out in the meantime
    yield from _in_directory(lambda directory: reassign_operations(partition, target, brokers, directory=directory))


def _cancel_reassignment(partition: TopicPartition) -> Steps[None]:
    try:
        yield Multi(cancel_reassignment_operations(partition))
    except NoNodeError as error:
        raise RefusedError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{partition} is not being reassigned") from error


def elect_leaders(kind: ElectionType, partitions: Collection[TopicPartition] = ()) -> Steps[None]:
    """Request the election of leaders of these partitions; of preferred ones of all where none is named. Raises
    NodeExistsError (an earlier request remains pending), CoordinationError."""
    for attempt in range(ATTEMPTS):
        try:
            yield Multi(election_operations(kind, partitions))
            return
        except NodeExistsError:
            if attempt == ATTEMPTS - 1:
                raise
        yield Pause(ELECTION_RETRY_MS)


def _in_directory(operations: Callable[[bool], tuple[StoreOperation, ...]]) -> Steps[None]:
    """Write into a directory node that the first writer creates, and the controller deletes when it is empty.
    operations: those that create the directory, with True, or need it."""
    directory = True
    for attempt in range(ATTEMPTS):
        try:
            yield Multi(operations(directory))
            return
        except (NodeExistsError, NoNodeError) as error:
            again = directory_in_retry(error)
            if again is None or attempt == ATTEMPTS - 1:
                text = f"another such request is still pending: {error}"
                raise RefusedError(ErrorCode.REASSIGNMENT_IN_PROGRESS, text) from error
            directory = again


def directory_in_retry(error: NodeExistsError | NoNodeError) -> bool | None:
    """The `directory` with which a request under /admin is written again: whether its first operation creates the
    directory. None: it is refused, since another request for the partition or topic is pending."""
    return None if error.index else isinstance(error, NoNodeError)


def unknown(subject: str) -> RefusedError:
    """The refusal of a request for a topic or partition that does not exist."""
    return RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {subject}")
