"""Large requests in parts, between which a broker serves others, and the responses of the parts as one.

The parts of a control request have its sequence number, so that none is a late copy of another. An INIT is never
split: a replica that it does not name is a stray.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from kreplog.core.messages import ControlRequest, LeaderAndIsrRequest, StopReplicaRequest
from kreplog.types import TopicPartition

REPLICAS_PER_PART = 20
"""Replicas that a part of a control request creates or deletes at most: each takes up to a millisecond."""


def split_entries(request: Any, listed: str, limit: int) -> list[Any]:
    """Parts with at most `limit` entries each of the field `listed`, "" if the request has no list."""
    entries = getattr(request, listed) if listed else ()
    if len(entries) <= limit:
        return [request]
    return [replace(request, **{listed: entries[start : start + limit]}) for start in range(0, len(entries), limit)]


def split_control(
    request: ControlRequest, open_replicas: Container[TopicPartition], limit: int = REPLICAS_PER_PART
) -> list[ControlRequest]:
    """Parts that each create or delete at most `limit` replicas. open_replicas: those that exist already."""
    is_slow = _slow_entries(request, open_replicas)
    partitions: tuple[Any, ...] = request.partitions
    parts: list[ControlRequest] = []
    start = count = 0
    for at, slow in enumerate(is_slow):
        count += slow
        if count > limit:
            parts.append(_with(request, partitions[start:at]))
            start, count = at, 1
    return [*parts, _with(request, partitions[start:])] if parts else [request]


def _with(request: Any, partitions: tuple[Any, ...]) -> ControlRequest:
    part: ControlRequest = replace(request, partitions=partitions)
    return part


def _slow_entries(request: ControlRequest, open_replicas: Container[TopicPartition]) -> Sequence[bool]:
    """Which of its partitions create or delete a replica; none of a request that is not split."""
    match request:
        case LeaderAndIsrRequest(is_init=False):
            return [partition.partition not in open_replicas for partition in request.partitions]
        case StopReplicaRequest():
            return [partition.delete for partition in request.partitions]
    return ()


class PartResponses:
    """The responses of the parts of one request, which may come in any order. listed: their field of which the response
    has all entries."""

    def __init__(self, parts: int, listed: str) -> None:
        self._listed = listed
        self._responses: list[Any] = [None] * parts

    def add(self, part: int, response: Any) -> Any:
        """Take the response of a part, by its index. Returns the response of the request once all are there, else
        None."""
        self._responses[part] = response
        if None in self._responses:
            return None
        entries = tuple(chain.from_iterable(getattr(each, self._listed) for each in self._responses))
        return replace(_leading(self._responses), **{self._listed: entries})


def _leading(responses: Sequence[Any]) -> Any:
    """The first with an error, which the response then has; else any."""
    return next((response for response in responses if getattr(response, "error", None)), responses[-1])
