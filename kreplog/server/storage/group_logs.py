"""GroupLogs: carries out a coordinator's effects on the partitions of its topic.

The group coordinator has `__consumer_offsets`, that of transactions `__transaction_state`.

An append goes to the replication core as a produce with acks=all. A partition is read in a thread, in slices, each of
which the core takes in one step.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from kreplog.core import effects
from kreplog.core.events import Event, GroupRecordsAppended, GroupRecordsRead, Received
from kreplog.core.messages import CoordinatorProduce, ProducePartition, ProduceResponse
from kreplog.errors import KreplogError
from kreplog.managed_log import ManagedLog
from kreplog.server.network.serving import LocalRequest
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.server.storage.replica import Replica
from kreplog.wire import group_records

_log = logging.getLogger("kreplog.server")

READ_BYTES = 128 << 10
"""Bytes of records that one read decodes, at least one batch."""

THREADS = 2


class GroupLogs:
    """Appends to and reads the logs of a coordinator. append: takes a produce for the replication core. put: takes the
    coordinator's events, on the event loop. codec: the module that encodes and decodes its records. threads: the name
    of those that read."""

    def __init__(
        self,
        hosted: HostedReplicas,
        append: Callable[[Received], None],
        put: Callable[[Event], None],
        codec: Any = group_records,
        threads: str = "kreplog-groups",
    ) -> None:
        self._codec = codec
        self._hosted = hosted
        self._append = append
        self._put = put
        self._pool = ThreadPoolExecutor(THREADS, threads)

    def execute(self, effect: effects.Effect) -> Any:
        """Carry out an effect; returns its answer."""
        if isinstance(effect, effects.WallClock):
            return time.time_ns() // 1_000_000
        if isinstance(effect, effects.AppendGroupRecords):
            self._produce(effect)
        elif isinstance(effect, effects.ReadGroupRecords):
            self._read(effect)
        return None

    def _produce(self, effect: effects.AppendGroupRecords) -> None:
        records = self._codec.encode_batch(effect.records)
        produced = ProducePartition(effect.partition, records)
        of = effect.transactional_id, effect.adds_partitions
        request = CoordinatorProduce(-1, effect.timeout_ms, (produced,), effect.leader_epoch, *of)
        self._append(Received(LocalRequest(partial(self._appended, effect.tag)), request))

    def _appended(self, tag: int, response: ProduceResponse) -> None:
        (produced,) = response.partitions
        if produced.message:
            _log.warning("%s: an append of the coordinator has failed: %s", produced.partition, produced.message)
        self._put(GroupRecordsAppended(tag, produced.error, produced.base_offset))

    def _read(self, effect: effects.ReadGroupRecords) -> None:
        replica = self._hosted.get(effect.partition)
        if replica is None:
            asyncio.get_running_loop().call_soon(self._put, _failed(effect, "its replica is not open"))
            return
        replica.threads += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, _read, replica.log, effect, self._codec)
        future.add_done_callback(partial(self._finished, replica))

    def _finished(self, replica: Replica, done: asyncio.Future[GroupRecordsRead]) -> None:
        replica.threads -= 1
        replica.release()
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            self._put(done.result())
        else:
            self._hosted.background.fail("a read of a coordinator's records", error)

    def close(self) -> None:
        """Cancel the reads that have not begun, and wait for the others."""
        self._pool.shutdown(cancel_futures=True)


def _read(log: ManagedLog, effect: effects.ReadGroupRecords, codec: Any) -> GroupRecordsRead:
    try:
        offset = max(effect.offset, log.log_start_offset)  # its log start may have risen between two reads
        if offset >= log.high_watermark:
            return GroupRecordsRead(effect.partition, effect.leader_epoch, effect.offset, (), offset)
        fetched = log.fetch(offset, READ_BYTES, "committed")
        records = codec.decode_batches(fetched.data, offset)
    except KreplogError as error:
        return _failed(effect, str(error))
    return GroupRecordsRead(effect.partition, effect.leader_epoch, effect.offset, records, fetched.next_offset)


def _failed(effect: effects.ReadGroupRecords, failure: str) -> GroupRecordsRead:
    return GroupRecordsRead(effect.partition, effect.leader_epoch, effect.offset, failure=failure)
