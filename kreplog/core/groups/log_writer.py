"""GroupLogWriter: appends of a coordinator to the logs of its groups, and the steps to take once they are committed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from kreplog.core.effects import AppendGroupRecords, Steps
from kreplog.core.events import GroupRecordsAppended
from kreplog.core.group_messages import LogRecord
from kreplog.core.groups.group import Group
from kreplog.core.groups.shard import GroupShard
from kreplog.errors import ErrorCode

Committed = Callable[[ErrorCode, int, int], Steps[None]]
"""The step after an append: called with its error as a coordinator reports it, the offset of its first record, and the
time."""

_AS_REPORTED = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.FENCED_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_LEADER_EPOCH: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.INVALID_PRODUCER_EPOCH: ErrorCode.INVALID_PRODUCER_EPOCH,
}
"""Error of a produce -> of the request that needed it. Source: Kafka, GroupMetadataManager.appendGroupRecords."""


def reported(error: ErrorCode) -> ErrorCode:
    """The error of a request whose append failed with `error`; all that is not retriable is UNKNOWN_SERVER_ERROR."""
    if error is ErrorCode.NONE:
        return error
    return _AS_REPORTED.get(error, ErrorCode.UNKNOWN_SERVER_ERROR)


class GroupLogWriter:
    """See the module. timeout_ms: how long an append may take to be committed."""

    def __init__(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms
        self._tags = itertools.count(1)
        self._pending: dict[int, tuple[Group, Committed]] = {}

    def append(
        self,
        shard: GroupShard,
        group: Group,
        records: tuple[LogRecord, ...],
        then: Committed,
        transactional: bool = False,
    ) -> Steps[None]:
        """Append records of one group; `then` follows once they are committed by all in-sync replicas, or have
        failed. transactional: they are pending offsets."""
        tag = next(self._tags)
        self._pending[tag] = group, then
        group.in_flight += 1
        yield AppendGroupRecords(tag, shard.partition, shard.leader_epoch, records, self._timeout_ms, transactional)

    def appended(self, event: GroupRecordsAppended, now_ms: int) -> Steps[None]:
        """The outcome of an append. A success comes before the end of the leadership in which it was made."""
        group, then = self._pending.pop(event.tag)
        group.in_flight -= 1
        yield from then(reported(event.error), event.base_offset, now_ms)
