"""VirtualCoordinatorLogs: a coordinator's effects on the partitions of its topic, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplog.core import events
from kreplog.core.broker import coordinator_log
from kreplog.core.effects import AppendGroupRecords, ReadGroupRecords
from kreplog.errors import check
from kreplog.sim.brokers.core_runner import LocalReply
from kreplog.sim.machines.disk import Disk, DiskLog
from kreplog.sim.machines.group_log_records import coordinator_records, encode_group_record, encode_transaction_record
from kreplog.sim.machines.records import RecordCodec
from kreplog.sim.machines.scheduler import MS, Scheduler

READ_BYTES = 400
"""Bytes of records that a coordinator reads at once."""


class VirtualCoordinatorLogs:
    """The logs of one coordinator of one process. append: takes a produce for the replication core. put: takes the
    coordinator's events. on_read: called with each read that did not fail, and the high watermark. of_transactions: it
    is the coordinator of transactions, not of groups."""

    def __init__(
        self,
        scheduler: Scheduler,
        disk: Disk,
        codec: RecordCodec,
        is_alive: Callable[[], bool],
        append: Callable[[events.Event], None],
        put: Callable[[events.Event], None],
        on_read: Callable[[events.GroupRecordsRead, int], None],
        *,
        of_transactions: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._disk = disk
        self._codec = codec
        self._is_alive = is_alive
        self._append = append
        self._put = put
        self._on_read = on_read
        self._of_transactions = of_transactions

    def append(self, effect: AppendGroupRecords) -> None:
        request = coordinator_log.produce(effect, self._encode(effect))
        reply = LocalReply(lambda response: self._put(coordinator_log.appended(effect, response)))
        self._append(events.Received(reply, request))

    def _encode(self, effect: AppendGroupRecords) -> Any:
        encode = encode_transaction_record if self._of_transactions else encode_group_record
        values, now_ms = [encode(record) for record in effect.records], self._scheduler.now_ms
        if not effect.transactional_id:
            return self._codec.encode(-1, -1, -1, values, now_ms)
        first = effect.records[0]
        return self._codec.encode(first.producer_id, first.producer_epoch, 0, values, now_ms, transactional=True)

    def read(self, effect: ReadGroupRecords) -> None:
        """Reads take time, and a few records each."""
        delay_us = int(5 * MS * self._scheduler.random.random()) + self._disk.slow_ms * MS
        self._scheduler.after(delay_us, self._read_now, effect)

    def _read_now(self, effect: ReadGroupRecords) -> None:
        if self._is_alive():
            log = self._disk.log(effect.partition)
            opened = None if log is None else _DiskCoordinatorLog(self._disk, log, self._codec, self._of_transactions)
            read = coordinator_log.read(effect, opened)
            if opened is not None and not read.failure:
                self._on_read(read, opened.high_watermark)
            self._put(read)


class _DiskCoordinatorLog:
    """A CoordinatorLog on a simulated disk."""

    def __init__(self, disk: Disk, log: DiskLog, codec: RecordCodec, of_transactions: bool) -> None:
        self._disk = disk
        self._log = log
        self._codec = codec
        self._of_transactions = of_transactions

    @property
    def log_start_offset(self) -> int:
        return self._log.state().log_start

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    def fetch(self, offset: int) -> tuple[coordinator_log.Records, int]:
        """The records up to the log's end: core has the rule which of them a coordinator takes."""
        self._disk.check_resources(self._log.partition)
        batches = self._log.read(offset, self._log.state().leo, READ_BYTES)
        end = self._codec.end_of(batches)
        check(end is not None, f"{self._log.partition}: nothing to read at offset {offset}")
        assert end is not None
        found = [record for record in self._codec.decode(batches) if record.offset >= offset]
        return tuple(coordinator_records(self._codec, batches, found, self._of_transactions)), end.end_offset
