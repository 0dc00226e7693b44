"""LagTimes: lags in time, from the timestamps of the records that are lacking, read within a share of a processor."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from kreplog.client.record_times import RecordAt, record_timestamps
from kreplog.console.client_threads import ThreadClients

SHARE = 0.01
"""The most of a processor that reading takes: records move on, and the batches that they are in may be large."""

MAX_READ = 100
"""Records that are read at a time; the others have their turn later."""

MAX_REMEMBERED = 50_000


class Lacking(NamedTuple):
    """The first record that a reader lacks. reader: identifies a group or a replica. leader: of the partition."""

    reader: Hashable
    leader: int
    record: RecordAt


class _ReadRecord(NamedTuple):
    record: RecordAt
    timestamp_ms: int | None
    read_ms: int


class LagTimes:
    """Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Hashable, _ReadRecord] = {}
        self._next_read = 0.0

    def read(self, clients: ThreadClients, lacking: Iterable[Lacking]) -> dict[Hashable, int]:
        """Lags in ms by reader: the age of the record that it lacks now; until that is read, that of the last one that
        was, when it was read. Without those that are not known. Raises UnreachableError."""
        listed = list(lacking)
        with self._lock:
            changed = [each for each in listed if self._record(each.reader) != each.record]
            due = time.monotonic() >= self._next_read
            if changed and due:
                self._next_read = float("inf")  # no other thread reads meanwhile
        if changed and due:
            self._read(clients, changed)
        with self._lock:
            now_ms = time.time_ns() // 1_000_000
            found = {}
            for reader, _, record in listed:
                seen = self._seen.get(reader)
                if seen is not None and seen.timestamp_ms is not None:
                    until_ms = now_ms if seen.record == record else seen.read_ms
                    found[reader] = max(0, until_ms - seen.timestamp_ms)
            return found

    def _record(self, reader: Hashable) -> RecordAt | None:
        seen = self._seen.get(reader)
        return None if seen is None else seen.record

    def _read(self, clients: ThreadClients, changed: list[Lacking]) -> None:
        began = time.thread_time()
        try:
            with self._lock:  # those read longest ago first
                changed.sort(key=lambda each: self._seen[each.reader].read_ms if each.reader in self._seen else 0)
            batch = changed[:MAX_READ]
            wanted: dict[int, list[RecordAt]] = {}
            for _, leader, record in batch:
                wanted.setdefault(leader, []).append(record)
            if not wanted.keys() <= clients.admin.live.keys():
                clients.admin.metadata(())
            timestamps = record_timestamps(clients.admin, wanted)
            now_ms = time.time_ns() // 1_000_000
            with self._lock:
                for reader, _, record in batch:
                    self._seen.pop(reader, None)
                    self._seen[reader] = _ReadRecord(record, timestamps.get(record), now_ms)
                while len(self._seen) > MAX_REMEMBERED:
                    del self._seen[next(iter(self._seen))]
        finally:
            with self._lock:
                self._next_read = time.monotonic() + (time.thread_time() - began) / SHARE
