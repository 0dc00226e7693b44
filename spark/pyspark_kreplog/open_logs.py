"""The logs of a stream, which stay open from batch to batch: to look at an open log costs a hundredth of opening it.

Whether a directory still is that of the open log is seen by its state file and its topic id, at each use. Nothing here
knows of Spark.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import kreplog
from kreplog.types import TopicPartition
from pyspark_kreplog.bounds import end_offset
from pyspark_kreplog.log_directory import PartitionSnapshot, find_subscribed, open_log, partition_path, topic_id_of
from pyspark_kreplog.options import ReadOptions

MAX_OPEN_LOGS = 1000

_Identity = tuple[int, ...]
_Epochs = tuple[tuple[int, int], ...]


@dataclass(slots=True)
class _OpenLog:
    """An open log, of a directory with these files."""

    log: kreplog.Log
    state_file: _Identity
    metadata_file: _Identity | None
    topic_id: str | None
    incarnation_id: str | None
    leader_epoch: int
    leader_epochs: _Epochs


class OpenLogs:
    """Logs of partitions below the option `path`, open to be read. Not thread-safe.

    Each takes a file descriptor: beyond half of those that the process may have, logs are opened for each use.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._open: dict[TopicPartition, _OpenLog] = {}
        soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._limit = MAX_OPEN_LOGS if soft_limit == resource.RLIM_INFINITY else min(MAX_OPEN_LOGS, soft_limit // 2)

    def close(self) -> None:
        for entry in self._open.values():
            entry.log.close()
        self._open.clear()

    def find(self) -> tuple[list[TopicPartition], list[str]]:
        """As find_subscribed."""
        return find_subscribed(self._options)

    def states(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, PartitionSnapshot]:
        """The state of each partition, except of those that are being created or deleted at this moment.

        Logs of other partitions are closed. Raises StorageError where there is a log that cannot be read.
        """
        for partition in self._open.keys() - set(partitions):
            self._open.pop(partition).log.close()
        states = {}
        for partition in partitions:
            with self.use(partition) as log:
                if log is not None:
                    states[partition] = self._state(log, self._open.get(partition))
        return states

    def _state(self, log: kreplog.Log, entry: _OpenLog | None) -> PartitionSnapshot:
        """A snapshot of a partition.

        entry: that of `log` if it stays open; it holds what is read from files, which seldom changes."""
        end = end_offset(log, self._options.consumer.isolation_level)
        start = min(log.log_start_offset, end)
        if entry is None:
            return PartitionSnapshot(start, end, topic_id_of(log), tuple(log.leader_epochs), log.incarnation_id)
        if log.leader_epoch != entry.leader_epoch:
            entry.leader_epoch, entry.leader_epochs = log.leader_epoch, tuple(log.leader_epochs)
        return PartitionSnapshot(start, end, entry.topic_id, entry.leader_epochs, entry.incarnation_id)

    @contextmanager
    def use(self, partition: TopicPartition) -> Iterator[kreplog.Log | None]:
        """The log as the directory now holds it; None while it is being created or deleted. Raises as `states`."""
        path = partition_path(self._options, partition)
        state_file = _identity(os.path.join(path, "kreplog.state"), written_in_place=True)
        metadata_file = _identity(os.path.join(path, "partition.metadata"))
        entry = self._open.get(partition)
        if entry is not None and (entry.state_file, entry.metadata_file) == (state_file, metadata_file):
            yield entry.log
            return
        if entry is not None:
            self._open.pop(partition).log.close()
        log = open_log(path)
        if log is None or state_file is None or len(self._open) >= self._limit:
            try:
                yield log
            finally:
                if log is not None:
                    log.close()
            return
        self._open[partition] = _OpenLog(
            log,
            state_file,
            metadata_file,
            topic_id_of(log),
            log.incarnation_id,
            log.leader_epoch,
            tuple(log.leader_epochs),
        )
        yield log


def _identity(path: str, *, written_in_place: bool = False) -> _Identity | None:
    """Numbers that change when the file is replaced; None where there is none.

    written_in_place: the former file is open, so that no other gets its inode, and its times change without that.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return (status.st_dev, status.st_ino) if written_in_place else (status.st_dev, status.st_ino, status.st_mtime_ns)
