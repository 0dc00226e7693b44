"""GroupLogWriter: appends of a coordinator to the logs of its groups, and the steps to take once they are committed."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from kreplog.core.append_errors import reported
from kreplog.core.effects import AppendGroupRecords, Steps
from kreplog.core.events import GroupRecordsAppended
from kreplog.core.group_messages import LogRecord, TxnOffsetCommitRequest
from kreplog.core.groups.group import Group
from kreplog.core.groups.shard import GroupShard
from kreplog.errors import ErrorCode

Committed = Callable[[ErrorCode, int, int], Steps[None]]
"""The step after an append: called with its error as a coordinator reports it, the offset of its first record, and the
time."""


class GroupLogWriter:
    """Appends records of groups, and takes the next step once they are committed. timeout_ms: how long an append may
    take to be committed."""

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
        transaction: TxnOffsetCommitRequest | None = None,
    ) -> Steps[None]:
        """Append records of one group; `then` follows once they are committed by all in-sync replicas, or have
        failed. transaction: the request with which they are pending offsets."""
        tag = next(self._tags)
        self._pending[tag] = group, then
        group.in_flight += 1
        id_and_adds = ("", False)
        if transaction is not None:
            id_and_adds = (transaction.transactional_id, transaction.adds_partitions)
        yield AppendGroupRecords(tag, shard.partition, shard.leader_epoch, records, self._timeout_ms, *id_and_adds)

    def appended(self, event: GroupRecordsAppended, now_ms: int) -> Steps[None]:
        """The outcome of an append. A success comes before the end of the leadership in which it was made."""
        group, then = self._pending.pop(event.tag)
        group.in_flight -= 1
        yield from then(reported(event.error), event.base_offset, now_ms)
