"""ManagedLog: a log in a data directory of a broker's, which writes the checkpoints and schedules the fsyncs.

With it comes what else a process with many logs needs of the native code: checkpoint files, durable and private files
and directories, open files and freed memory, and batches as clients send them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Self

from kreplog._native import compaction, directory, encoded, writable
from kreplog._native.batch import build, decode_values, end_of
from kreplog._native.checkpoint import OffsetCheckpoint, atomic_write
from kreplog._native.encoded import CheckedBatches, InspectedBatches, inflated_sizes
from kreplog._native.files import error_of, group_number, make_directory
from kreplog._native.heap import keep_freed
from kreplog._native.markers import committed_of
from kreplog._native.partition_metadata import read_topic_id, write_topic_id
from kreplog._native.recompression import has_other_codec, recompressed
from kreplog._native.segment import close_idle_files, exceeds_open_limit, keep_open
from kreplog._native.shown_lock import OWNER_LOCK, show_lock
from kreplog._native.state import STATE_NAME
from kreplog.config import LogConfig
from kreplog.log import Fetched, Log
from kreplog.types import ActiveProducer, CompactionBacklog, TopicPartition

__all__ = [
    "OWNER_LOCK",
    "STATE_NAME",
    "CheckedBatches",
    "Fetched",
    "InspectedBatches",
    "ManagedLog",
    "OffsetCheckpoint",
    "atomic_write",
    "build",
    "close_idle_files",
    "committed_of",
    "decode_values",
    "end_of",
    "error_of",
    "exceeds_open_limit",
    "group_number",
    "has_other_codec",
    "inflated_sizes",
    "keep_freed",
    "keep_open",
    "make_directory",
    "read_topic_id",
    "recompressed",
    "show_lock",
    "write_topic_id",
]


class ManagedLog(Log):
    """A log whose caller, its manager, has locked the data directory of many logs.

    The manager writes the checkpoint files, after it has closed the logs. It calls `sync_files` for what is made and
    dropped before there are records; those wait for it. An append that seals a segment fsyncs none, nor does one that
    begins an epoch: while `has_unflushed_segments`, the manager has `flush_sealed` to call, best in a thread beside the
    appends. It does not change the bytes that `append_as_follower` is given until that returns: they are not copied.
    """

    _managed = True

    @classmethod
    def open_named(cls, path: Path, partition: TopicPartition, config: LogConfig) -> Self:
        """Open the log of `partition` in a directory that may have another name, as a copy has that is being made.
        Raises as `Log.open` does."""
        return cls._open(path, config, False, None, partition)

    def follow_rename(self, path: Path) -> None:
        """Its directory has been renamed to `path`, in the same data directory. No other thread uses the log."""
        directory.follow_rename(self, str(path))

    @property
    def has_unflushed_segments(self) -> bool:
        """Whether a segment was sealed, or an epoch begun, that no flush has covered."""
        return writable.has_unflushed_segments(self)

    def flush_sealed(self) -> None:
        """Make durable what lies before the newest sealed segment, and the epochs that records have. Raises
        LogFailedError."""
        writable.flush_sealed(self)

    def sync_files(self) -> None:
        """Make durable what was made or dropped without records; others may use the log meanwhile. Raises
        LogFailedError."""
        writable.sync_files(self)

    def expect_failure(self) -> None:
        """Its directory is about to be moved or deleted: what threads still do with it may fail, and is not logged. A
        compaction under way ends without touching what is in its place then."""
        writable.expect_failure(self)

    def active_producers(self) -> list[ActiveProducer]:
        """The idempotent producers with state in the log. Raises LogFailedError, LogClosedError."""
        return encoded.active_producers(self)

    def compaction_backlog(self, now_ms: int) -> CompactionBacklog:
        """The work of a compaction now. Rolls the active segment if its oldest record is past max_compaction_lag_ms.

        now_ms: wall clock in ms. Raises LogFailedError, LogClosedError, StorageError."""
        return compaction.backlog(self, now_ms)

    def copy_cleaner_checkpoint(self, source: ManagedLog) -> None:
        """Note that as much is compacted here as in `source`, of which this is a copy in another data directory.

        Nothing is compacted or truncated in either meanwhile. Raises StorageError, LogFailedError, LogClosedError.
        Source: Kafka's LogCleaner.alterCheckpointDir."""
        compaction.copy_checkpoint(source, self)

    def end_compaction(self) -> None:
        """Have a compaction under way in another thread end soon, with LogClosedError; no other begins."""
        writable.end_compaction(self)

    def abandon(self) -> None:
        """Close its files without a last write, as where its directory has failed. Source: Kafka's
        UnifiedLog.closeHandlers."""
        writable.abandon(self)
