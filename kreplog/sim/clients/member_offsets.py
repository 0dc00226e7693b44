"""Commits and reads of a group's offsets, as steps of the group's members, and the requests to its coordinator.

Every commit has a text of its own, by which a reader knows whose offset it got. They are of partitions of the topic of
the groups' offsets, which always exist.
"""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from typing import Any

from kreplog.core.group_messages import (
    OFFSETS_TOPIC,
    CommitPartition,
    OffsetCommitRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    partition_of_group,
)
from kreplog.errors import ErrorCode
from kreplog.sim.clients.workload import Call, ClientContext, ClientEffect, ClientMetadata, Sleep
from kreplog.sim.history import OffsetCommitInvoked, OffsetCommitted, OffsetFetched
from kreplog.types import NO_LEADER, TopicPartition

REFUSED = frozenset(
    {
        *(ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID),
        *(ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.STALE_MEMBER_EPOCH),
    }
)
"""Errors of a commit that promise that it has no effect."""

Steps = Generator[ClientEffect, Any, Any]


def home_of(group_id: str, partitions: int) -> TopicPartition:
    """The partition that has the group. partitions: of the topic of the groups' offsets."""
    return TopicPartition(OFFSETS_TOPIC, partition_of_group(group_id, partitions))


def call_coordinator(metadata: ClientMetadata, group_id: str, request: Any, more_ms: int = 0) -> Steps:
    """The coordinator of the group and its response, None for none. more_ms: on top of the request time-out, for a join
    that waits for others."""
    coordinator = metadata.coordinator_of(OFFSETS_TOPIC, group_id)
    response = None
    if coordinator != NO_LEADER:
        (response,) = yield Call(coordinator, (request,), metadata.settings.request_ms + more_ms)
    if response is None or getattr(response, "error", ErrorCode.NONE) is ErrorCode.NOT_COORDINATOR:
        yield from metadata.refresh()
    return coordinator, response


class MemberOffsets:
    """Commits and reads of the offsets of one group by a member. partitions: of the topic of the groups' offsets."""

    def __init__(self, context: ClientContext, metadata: ClientMetadata, group_id: str, partitions: int) -> None:
        self.numbers = range(partitions)
        self._name = context.name
        self._history = context.history
        self._metadata = metadata
        self._group_id = group_id
        self._home = home_of(group_id, partitions)
        self._texts = count(1)

    def commit(self, generation: int, member_id: str, instance_id: str | None, number: int, offset: int) -> Steps:
        """Commit an offset of partition `number`. Returns the error, None if there is no response."""
        text = f"{self._name}:{next(self._texts)}"
        self._history.add(
            OffsetCommitInvoked(
                *(self._history.now_ms(), self._home, "", self._name, self._group_id),
                *(generation, instance_id or member_id, member_id, number, text),
            )
        )
        commits = (CommitPartition(TopicPartition(OFFSETS_TOPIC, number), offset, -1, text),)
        request = OffsetCommitRequest(self._group_id, generation, member_id, instance_id, commits)
        _, response = yield from call_coordinator(self._metadata, self._group_id, request)
        error = None if response is None else response.partitions[0][1]
        if error is ErrorCode.NOT_COORDINATOR:
            yield from self._metadata.refresh()
        name = "" if error is None else error.name
        self._history.add(
            OffsetCommitted(self._history.now_ms(), self._home, "", self._name, self._group_id, text, name)
        )
        return error

    def fetch(self, number: int, member_id: str | None = None, member_epoch: int = -1) -> Steps:
        """The committed offset, -1 for none; None if it cannot be read now. member_id, member_epoch: of a member whose
        coordinator assigns."""
        since = len(self._history.events)
        partition = TopicPartition(OFFSETS_TOPIC, number)
        requested = OffsetFetchGroup(self._group_id, (partition,), member_id, member_epoch)
        broker, response = yield from call_coordinator(self._metadata, self._group_id, OffsetFetchRequest((requested,)))
        if response is None or response.groups[0].error is not ErrorCode.NONE:
            if response is not None:
                yield from self._metadata.refresh()
            return None
        ((_, value),) = response.groups[0].offsets
        self._history.add(
            OffsetFetched(
                *(self._history.now_ms(), self._home, "", self._name, self._group_id, broker),
                *(since, number, value.metadata, value.offset),
            )
        )
        return value.offset

    def fetch_all(self) -> Steps:
        """Read all offsets, however often it takes."""
        for number in self.numbers:
            while (yield from self.fetch(number)) is None:
                yield Sleep(self._metadata.settings.backoff_ms)
