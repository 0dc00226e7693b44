"""Removal of a topic's last partitions, requested from the controller through the coordination store: Kafka's protocol
has no request for it. Source: "Kafka Replication" of Kafka's wiki."""

from __future__ import annotations

from kreplog.coord.base import Session
from kreplog.core import nodes
from kreplog.core.controller.admin_operations import remove_partitions_operations
from kreplog.core.controller.new_partitions import check_keeps_partitions
from kreplog.errors import NodeExistsError, NoNodeError, UsageError

_ATTEMPTS = 20
"""Another administrator, or the controller, may change the requests in between."""


def request_removal(session: Session, topic: str, keep: int) -> list[int]:
    """Request that partitions `keep` and above be deleted with their records; returns their numbers.

    Only the last ones: clients map keys to the numbers from 0 to the number of partitions. Raises UsageError for a
    topic that does not exist, InvalidPartitionsError, also for an internal one, CoordinationError.
    """
    check_keeps_partitions(topic)
    path = nodes.topic(topic)
    for attempt in range(_ATTEMPTS):
        (node,) = session.get_many((path,))
        if node is None:
            raise UsageError(f"there is no topic {topic}")
        current = nodes.decode_topic(path, node)
        numbers = [number for number in sorted(current.partitions) if number >= keep]
        requested = pending_removals(session, topic)
        missing = [number for number in numbers if number not in requested]
        if numbers and not missing:
            break
        try:
            session.multi(remove_partitions_operations(topic, current, missing, directory=not requested))
        except (NodeExistsError, NoNodeError):
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            break
    return numbers


def pending_removals(session: Session, topic: str) -> list[int]:
    """The partitions of a topic that are requested to be removed, and are not yet."""
    try:
        return sorted(int(child) for child in session.children(f"{nodes.REMOVED}/{topic}"))
    except NoNodeError:
        return []
