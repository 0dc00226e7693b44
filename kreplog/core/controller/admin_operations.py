"""Administrative operations: each function validates a request and returns the operations of one multi for it.

The controller's watches find what they write. Requests under /admin lie in a directory for each topic, which the first
request creates and the controller deletes when it is empty: see admin_requests, which writes them. Functions that take
`current` need the topic's node as read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from kreplog.config import TopicConfig
from kreplog.core import nodes
from kreplog.core.controller.assignment import check_assignment, check_replicas
from kreplog.core.nodes import Assignment, TopicNode
from kreplog.errors import InvalidPartitionsError, InvalidReplicaAssignmentError, UsageError
from kreplog.types import Check, Create, ElectionType, SetData, StoreOperation, TopicPartition, check_topic


def create_topic_operations(
    name: str,
    topic_id: str,
    assignment: Mapping[int, Sequence[int]],
    config: TopicConfig,
    brokers: Collection[int],
) -> tuple[StoreOperation, ...]:
    """A topic with these replicas by partition number (from assignment.assign, or given), partitions 0 and up.

    brokers: the live ones. Raises InvalidTopicError, InvalidPartitionsError, InvalidReplicaAssignmentError, and
    UsageError for more min.insync.replicas than replicas (F18). NodeExistsError at index 0: the topic exists, or is
    still being deleted; at index 1: settings are left over from a topic of that name.
    """
    check_topic(name)
    if sorted(assignment) != list(range(len(assignment))) or not assignment:
        raise InvalidPartitionsError(
            f"topic {name} is given partitions {sorted(assignment)}: number them 0, 1, 2 and so on"
        )
    check_assignment({TopicPartition(name, number): replicas for number, replicas in assignment.items()}, brokers)
    replication_factor = len(assignment[0])
    if config.min_insync_replicas > replication_factor:
        raise UsageError(
            f"topic {name}: min.insync.replicas {config.min_insync_replicas} with {replication_factor} replicas could "
            f"never be met: choose at most {replication_factor}"
        )
    topic = TopicNode(topic_id, {number: Assignment(tuple(replicas)) for number, replicas in assignment.items()})
    return (
        Create(nodes.topic(name), nodes.encode_topic(topic)),
        Create(nodes.topic_config(name), nodes.encode_topic_config(config)),
    )


def set_config_operations(name: str, config: TopicConfig, version: int = -1) -> tuple[StoreOperation, ...]:
    """New settings of a topic, which the controller sends to its replicas. version: of the settings node that they were
    made from, -1 for any. NoNodeError: no such topic. BadVersionError: the settings have changed since."""
    return (Check(nodes.topic(name)), SetData(nodes.topic_config(name), nodes.encode_topic_config(config), version))


def set_broker_config_operations(
    broker_id: int | None, config: Mapping[str, str], version: int | None, *, directory: bool = False
) -> tuple[StoreOperation, ...]:
    """New dynamic configs of a broker, or None for the cluster-wide default, which the controller sends to the brokers.

    version: of the node that they were made from, None where there was none. directory: the node's parent does not
    exist yet. NodeExistsError, BadVersionError: they have changed since."""
    path, data = nodes.broker_config(broker_id), nodes.encode_broker_config(config)
    write: StoreOperation = Create(path, data) if version is None else SetData(path, data, version)
    return (Create(nodes.BROKER_CONFIGS), write) if directory else (write,)


def delete_topic_operations(name: str) -> tuple[StoreOperation, ...]:
    """Delete a topic. NoNodeError: it does not exist. NodeExistsError: it is being deleted already."""
    check_topic(name)
    return (Check(nodes.topic(name)), Create(f"{nodes.DELETED_TOPICS}/{name}"))


def add_partitions_operations(
    name: str,
    current: TopicNode,
    assignment: Mapping[int, Sequence[int]],
    brokers: Collection[int],
    *,
    directory: bool = True,
) -> tuple[StoreOperation, ...]:
    """Add partitions, with the numbers that follow those of `current`.

    Raises InvalidPartitionsError, InvalidReplicaAssignmentError (other than the topic's replication factor included).
    """
    first = max(current.partitions, default=-1) + 1
    if sorted(assignment) != list(range(first, first + len(assignment))) or not assignment:
        raise InvalidPartitionsError(
            f"topic {name} is to get partitions {sorted(assignment)}: number them on from {first}"
        )
    wanted = {TopicPartition(name, number): tuple(replicas) for number, replicas in assignment.items()}
    check_assignment(wanted, brokers)
    size = len(next(iter(assignment.values())))
    for number, existing in current.partitions.items():
        if len(existing.target) != size:
            raise InvalidReplicaAssignmentError(
                f"new partitions of {name} have {size} replicas, but partition {number} has {len(existing.target)}"
            )
    requests = [
        Create(nodes.partition(partition, nodes.ADDED), nodes.encode_replicas(replicas))
        for partition, replicas in wanted.items()
    ]
    return (*_directory(nodes.ADDED, name, directory), *requests)


def remove_partitions_operations(
    name: str, current: TopicNode, numbers: Iterable[int], *, directory: bool = True
) -> tuple[StoreOperation, ...]:
    """Delete single partitions with their records. Raises InvalidPartitionsError for a partition that does not exist,
    and if none would be left."""
    numbers = sorted(set(numbers))
    unknown = [number for number in numbers if number not in current.partitions]
    if unknown or not numbers or len(numbers) == len(current.partitions):
        raise InvalidPartitionsError(
            f"partitions {numbers} of {name} cannot be removed: it has {sorted(current.partitions)}, at least one stays"
        )
    requests = [Create(nodes.partition(TopicPartition(name, number), nodes.REMOVED)) for number in numbers]
    return (*_directory(nodes.REMOVED, name, directory), *requests)


def reassign_operations(
    partition: TopicPartition,
    target: Sequence[int],
    brokers: Collection[int],
    *,
    directory: bool = True,
    pending: bool = False,
) -> tuple[StoreOperation, ...]:
    """Move a partition to the brokers of `target`, preferred leader first.

    pending: replaces a request for that partition that is under way. Raises InvalidReplicaAssignmentError.
    """
    check_replicas(partition, target, brokers)
    path, data = nodes.partition(partition, nodes.REASSIGNED), nodes.encode_replicas(target)
    if pending:
        return (SetData(path, data),)
    return (*_directory(nodes.REASSIGNED, partition.topic, directory), Create(path, data))


def cancel_reassignment_operations(partition: TopicPartition) -> tuple[StoreOperation, ...]:
    """Cancel a reassignment, back to the old replicas. NoNodeError: the partition is not being reassigned."""
    return (SetData(nodes.partition(partition, nodes.REASSIGNED), nodes.encode_replicas(())),)


def election_operations(kind: ElectionType, partitions: Iterable[TopicPartition] = ()) -> tuple[StoreOperation, ...]:
    """Elect leaders of these partitions; preferred ones of all partitions where none is named. NodeExistsError: an
    earlier request is pending."""
    path = nodes.PREFERRED_ELECTION if kind is ElectionType.PREFERRED else nodes.UNCLEAN_ELECTION
    return (Create(path, nodes.encode_partitions(partitions)),)


def _directory(under: str, topic: str, create: bool) -> tuple[StoreOperation, ...]:
    path = f"{under}/{topic}"
    return (Create(path) if create else Check(path),)
