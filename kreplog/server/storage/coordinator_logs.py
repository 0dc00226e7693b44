"""CoordinatorLogs: carries out a coordinator's effects on the partitions of its topic.

The group coordinator has `__consumer_offsets`, that of transactions `__transaction_state`.

An append goes to the replication core as a produce with acks=all. A partition is read in a thread, in slices, each of
which the core takes in one step.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from kreplog.core import effects
from kreplog.core.broker import coordinator_log
from kreplog.core.events import Event, GroupRecordsRead, Received
from kreplog.core.messages import ProduceResponse
from kreplog.managed_log import ManagedLog
from kreplog.server.clock import wall_clock_ms
from kreplog.server.monitoring.repeated_failures import RepeatedFailures
from kreplog.server.network.serving import LocalRequest
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.server.storage.replica import Replica
from kreplog.wire import group_records

_log = logging.getLogger("kreplog.server")

READ_BYTES = 128 << 10
"""Bytes of records that one read decodes, at least one batch."""

THREADS = 2


class CoordinatorLogs:
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
        self._failures = RepeatedFailures("failed appends of coordinators")
        self._pool = ThreadPoolExecutor(THREADS, threads)

    def execute(self, effect: effects.Effect) -> Any:
        """Carry out an effect; returns its answer."""
        if isinstance(effect, effects.WallClock):
            return wall_clock_ms()
        if isinstance(effect, effects.AppendGroupRecords):
            self._produce(effect)
        elif isinstance(effect, effects.ReadGroupRecords):
            self._read(effect)
        return None

    def _produce(self, effect: effects.AppendGroupRecords) -> None:
        request = coordinator_log.produce(effect, self._codec.encode_batch(effect.records))
        self._append(Received(LocalRequest(partial(self._appended, effect)), request))

    def _appended(self, effect: effects.AppendGroupRecords, response: ProduceResponse) -> None:
        for produced in response.partitions:
            if produced.message and (count := self._failures.count((produced.partition.topic, produced.error))):
                text = "%s: an append of the coordinator has failed: %s; such failures: %d"
                _log.warning(text, produced.partition, produced.message, count)
        self._put(coordinator_log.appended(effect, response))

    def _read(self, effect: effects.ReadGroupRecords) -> None:
        replica = self._hosted.get(effect.partition)
        if replica is None:
            asyncio.get_running_loop().call_soon(self._put, coordinator_log.read(effect, None))
            return
        replica.threads += 1
        log = _ReplicaCoordinatorLog(replica.log, self._codec)
        future = asyncio.get_running_loop().run_in_executor(self._pool, coordinator_log.read, effect, log)
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


class _ReplicaCoordinatorLog:
    """A CoordinatorLog of the broker's."""

    def __init__(self, log: ManagedLog, codec: Any) -> None:
        self._log = log
        self._codec = codec

    @property
    def log_start_offset(self) -> int:
        return self._log.log_start_offset

    @property
    def high_watermark(self) -> int:
        return self._log.high_watermark

    def fetch(self, offset: int) -> tuple[coordinator_log.Records, int]:
        fetched = self._log.fetch(offset, READ_BYTES, "committed")
        return self._codec.decode_batches(fetched.data, offset), fetched.next_offset
