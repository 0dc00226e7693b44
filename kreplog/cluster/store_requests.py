"""What Kafka's protocol has no request for, by the coordination store itself: which brokers are registered, and the
removal of a topic's last partitions, requested from the controller. Source: "Kafka Replication" of Kafka's wiki."""

from __future__ import annotations

from typing import Any, TypeVar

from kreplog.coord.base import Session
from kreplog.core import nodes
from kreplog.core.controller import admin_requests
from kreplog.core.effects import GetChildren, GetNodes, Multi, Steps
from kreplog.errors import CoordinationError, ErrorCode, InvariantError, NoNodeError, UsageError
from kreplog.server.runtime.store import children_of

T = TypeVar("T")


def registered_brokers(session: Session) -> tuple[int | None, set[int]]:
    """(id of the controller, ids of all registered brokers), as the store has them."""
    try:
        ids = {int(child) for child in session.children(nodes.BROKER_IDS)}
    except NoNodeError:
        return None, set()
    (node,) = session.get_many((nodes.CONTROLLER,))
    return None if node is None else nodes.decode_controller(node), ids


def request_removal(session: Session, topic: str, keep: int) -> list[int]:
    """Request that partitions `keep` and above be deleted with their records; returns their numbers. Raises UsageError
    for a topic that does not exist, InvalidPartitionsError, also for an internal one, RefusedError where others request
    removals all the time, CoordinationError."""
    try:
        return _carry_out(admin_requests.remove_partitions(topic, keep), session)
    except admin_requests.RefusedError as refused:
        if refused.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise UsageError(str(refused)) from refused


def pending_removals(session: Session, topic: str) -> list[int]:
    """The partitions of a topic that are requested to be removed, and are not yet."""
    return _carry_out(admin_requests.pending_removals(topic), session)


def _carry_out(steps: Steps[T], session: Session) -> T:
    """As store_steps.carry_out, in a process that has a session of its own and nothing else to do."""
    answer: Any = None
    error: CoordinationError | None = None
    while True:
        try:
            effect = steps.send(answer) if error is None else steps.throw(error)
        except StopIteration as end:
            result: T = end.value
            return result
        answer = error = None
        try:
            match effect:
                case GetNodes(paths):
                    answer = session.get_many(paths)
                case GetChildren(path):
                    answer = children_of(session, path)
                case Multi(operations):
                    answer = session.multi(operations)
                case _:
                    raise InvariantError(f"{effect} neither reads nor writes the store")
        except CoordinationError as failed:
            error = failed
