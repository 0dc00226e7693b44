"""NativeLog: the real log in a real directory, as a replica of the simulator.

A crash of the process abandons the log without closing it: appended records are in the page cache, the mapped state
page has its last published content. A power failure changes the files while they are not open: the log is cut at a
batch boundary, perhaps with a torn piece of the next batch after it or with a hole in its place, and the state page
becomes the version of the last write-back; the rest is up to the log's own recovery.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from typing import Any

from kreplog.config import LogConfig
from kreplog.core.messages import TransactionMarker
from kreplog.errors import LogClosedError, StorageError
from kreplog.managed_log import STATE_NAME, ManagedLog, OffsetCheckpoint, write_topic_id
from kreplog.sim.machines.records import HEADER, batches, next_offset
from kreplog.types import AppendInfo, TopicPartition

_HOLE, _TORN = 1, 2


class NativeLog:
    """A real log: the methods of `replica_log.ReplicaLog`, and below them those of its files."""

    def __init__(self, folder: str, partition: TopicPartition, topic_id: str, segment_bytes: int) -> None:
        self.path = os.path.join(folder, str(partition))
        self._partition = partition
        # Timestamps are virtual while the log's clock is real: no setting may depend on their difference.
        self._config = LogConfig(
            replicated=True, segment_bytes=segment_bytes, segment_ms=2**63 - 1, producer_id_expiration_ms=2**63 - 1
        )
        self._page, self._page_start = b"", 0
        os.mkdir(self.path)
        write_topic_id(self.path, topic_id, durable=False)
        self._log: ManagedLog | None = ManagedLog.open(self.path, self._config)
        self.write_back()

    @property
    def log(self) -> ManagedLog:
        if self._log is None:
            raise LogClosedError(f"{self._partition}: the log is closed", partition=str(self._partition))
        return self._log

    @property
    def leo(self) -> int:
        return self.log.log_end_offset

    @property
    def log_start(self) -> int:
        return self.log.log_start_offset

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def recovery_point(self) -> int:
        return self.log.recovery_point

    @property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        return tuple(self.log.leader_epochs)

    # The open log

    @property
    def first_unstable(self) -> int | None:
        return self.log.first_unstable_offset

    def append_as_leader(
        self,
        records: Any,
        leader_epoch: int,
        strict: bool,
        transactional: bool = False,
        sequenced: bool = True,
        verified_by: int = -1,
    ) -> AppendInfo:
        info = self.log.append_batches(
            records,
            leader_epoch,
            strict=strict,
            transactional=transactional,
            sequenced=sequenced,
            verified_by=verified_by,
        )
        self._flush_sealed()
        return info

    def append_marker(self, marker: TransactionMarker, leader_epoch: int) -> AppendInfo:
        info = self.log.append_transaction_marker(
            marker.producer_id,
            marker.producer_epoch,
            committed=marker.committed,
            coordinator_epoch=marker.coordinator_epoch,
            leader_epoch=leader_epoch,
        )
        self._flush_sealed()
        return info

    def append_as_follower(self, records: Any) -> None:
        self.log.append_as_follower(records)
        self._flush_sealed()

    def _flush_sealed(self) -> None:
        """As the broker does in the background; here it is done at once."""
        if self.log.has_unflushed_segments:
            self.log.flush_sealed()

    def assign_leader_epoch(self, epoch: int) -> None:
        self.log.assign_leader_epoch(epoch)

    def truncate_to(self, offset: int) -> None:
        self.log.truncate_to(offset)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        self.log.truncate_fully_and_start_at(offset)

    def delete_records_before(self, offset: int) -> None:
        self.log.delete_records_before(offset)

    def enforce_retention(self, keep_bytes: int) -> None:
        self.log.configure(replace(self._config, retention_bytes=keep_bytes))
        self.log.enforce_retention(0)

    def read(self, offset: int, limit: int, max_bytes: int) -> bytes:
        """Returns a copy, since files are cut while a response is under way; a fetch of the log stops at a segment's
        end."""
        pieces: list[bytes] = []
        size, at = 0, offset
        full = False
        while not full:
            fetched = self.log.fetch(at, max(max_bytes - size, 0), "log_end")
            data = bytes(fetched.data)
            end = 0
            for _, stop, header in batches(data):
                full = next_offset(header) > limit or (size + stop > max_bytes and size + end > 0)
                if full:
                    break
                end = stop
            pieces.append(data[:end])
            size += end
            at = fetched.next_offset
            if not data:
                break
        return b"".join(pieces)

    def read_stable(self, offset: int, limit: int, max_bytes: int) -> tuple[bytes, tuple[tuple[int, int], ...]]:
        fetched = self.log.fetch(offset, max(max_bytes, 0), "last_stable")
        return bytes(fetched.data), tuple(fetched.aborted)

    def size_from(self, offset: int) -> int:
        return self.log.size_from(offset)

    def offset_for_timestamp(self, timestamp_ms: int) -> tuple[int, int]:
        return self.log.record_for_timestamp(timestamp_ms) or (-1, -1)

    def advance_high_watermark(self, offset: int) -> None:
        self.log.advance_high_watermark(offset)

    def flush(self) -> int:
        self.log.flush()
        return self.log.recovery_point

    # Its files

    def open(self) -> None:
        self._log = ManagedLog.open(self.path, self._config)
        if self.log_start < self._page_start:  # recovery has synced the page that says so
            self.write_back()

    def close(self) -> None:
        log, self._log = self.log, None
        self._page_start = log.log_start_offset
        log.close()

    def crash(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            log.abandon()

    def write_back(self) -> None:
        """Make the present state page the one that a power failure leaves."""
        with open(os.path.join(self.path, STATE_NAME), "rb") as file:
            self._page = file.read()
        if self._log is not None:
            self._page_start = self.log_start

    def cuts(self, start: int, end: int) -> list[int]:
        segments = self._segments()
        found = [max(start, segments[0][0])]
        for _, path in segments:
            found += [at for _, at in _whole_batches(path, end) if at > found[0]]
        return found

    def lose(self, offset: int, tear: int) -> None:
        """A power failure leaves a log that ends at `offset`, a batch boundary, perhaps with remains after it.

        tear: 1 leaves a hole in place of the next batches; 2 leaves half of the next batch; otherwise none.
        """
        segments = self._segments()
        while len(segments) > 1 and segments[-1][0] >= offset:
            _, path = segments.pop()
            for name in (path, path[:-3] + "index", path[:-3] + "timeindex"):
                os.unlink(name)
            with suppress(FileNotFoundError):
                os.unlink(path[:-3] + "txnindex")
        _, path = segments[-1]
        cut, after = 0, 0
        for stop, at in _whole_batches(path, 1 << 62):
            if at <= offset:
                cut = after = stop
            elif after == cut:
                after = stop
        if tear == _HOLE:
            with open(path, "r+b") as file:
                file.seek(cut)
                file.write(bytes(after - cut))
        else:
            os.truncate(path, cut + (after - cut) // 2 if tear == _TORN else cut)
        with open(os.path.join(self.path, STATE_NAME), "r+b") as file:
            file.write(self._page)

    def discard(self) -> None:
        """Move the directory aside and remove it from the data directory's checkpoints. Raises StorageError.

        A real broker must do the same: a log created again in its place would use them.
        """
        self.crash()
        folder = os.path.dirname(self.path)
        aside = f"{self.path}.{len(os.listdir(folder))}.aside"
        while os.path.exists(aside):  # a restored directory frees its name
            aside += "+"
        try:
            os.rename(self.path, aside)
        except OSError as error:
            raise StorageError(f"cannot move {self.path} to {aside}: {error.strerror}", path=self.path) from error
        self.path = aside
        for name in ("recovery-point", "replication", "log-start"):
            path = os.path.join(folder, f"{name}-offset-checkpoint")
            if os.path.exists(path):
                OffsetCheckpoint(path).update(self._partition, None)

    def restore(self) -> None:
        """Move the discarded directory back; it is not open. Raises StorageError."""
        home = os.path.join(os.path.dirname(self.path), str(self._partition))
        try:
            os.rename(self.path, home)
        except OSError as error:
            raise StorageError(f"cannot move {self.path} to {home}: {error.strerror}", path=home) from error
        self.path = home

    def _segments(self) -> list[tuple[int, str]]:
        """(base offset, path) of each, in order."""
        names = sorted(name for name in os.listdir(self.path) if name.endswith(".log"))
        return [(int(name[:-4]), os.path.join(self.path, name)) for name in names]


def _whole_batches(path: str, end: int) -> list[tuple[int, int]]:
    """(position, offset) where each batch of a segment ends, up to offset `end`; blocks allocated ahead hold none."""
    with open(path, "rb") as file:
        data = file.read()
    found: list[tuple[int, int]] = []
    at = 0
    while at + HEADER.size <= len(data) and data[at + 16] == 2:
        header = HEADER.unpack_from(data, at)
        at += 12 + header[1]
        if at > len(data) or next_offset(header) > end:
            break
        found.append((at, next_offset(header)))
    return found
