"""Loading: opens and recovers all replicas of a broker when it starts, several at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

from kreplog.errors import StorageError
from kreplog.managed_log import ManagedLog
from kreplog.server.storage.directories import DataDirectory
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.server.storage.replica import Replica
from kreplog.server.storage.replica_moves import finish_moves
from kreplog.types import TopicPartition

_log = logging.getLogger("kreplog.server")

Progress = Callable[[int, int, int], None]
"""Called with (replicas opened, replicas to open, bytes that recovery has read so far)."""


def load(hosted: HostedReplicas, threads_per_directory: int, progress: Progress | None = None) -> None:
    """Open every replica on disk into `hosted`, and recover those that were not closed cleanly; blocks.

    A replica that fails to open is logged; the error is raised when a core opens it."""
    found = _found(hosted)
    for directory, partition, topic_id in found[hosted.capacity :]:
        refusal = hosted.refusal(partition)
        hosted.add_failed(partition, directory, topic_id, refusal)
        _log.error("%s", refusal)
    del found[hosted.capacity :]
    tracker = _ProgressTracker(len(found), progress)
    threads = max(1, threads_per_directory * len(hosted.directories))
    with ThreadPoolExecutor(threads, "kreplog-recovery") as pool:
        opening = {
            pool.submit(
                ManagedLog.open, directory.folder(partition), hosted.config, progress=tracker.callback(partition)
            ): (directory, partition, topic_id)
            for directory, partition, topic_id in found
        }
        for future in as_completed(opening):
            directory, partition, topic_id = opening[future]
            try:
                hosted.add(partition, Replica(directory, topic_id, future.result()))
            except StorageError as error:
                _log.error("%s cannot be opened: %s", partition, error)
                hosted.add_failed(partition, directory, topic_id, error)
            tracker.opened(partition, hosted.size_of(partition))


def _found(hosted: HostedReplicas) -> list[tuple[DataDirectory, TopicPartition, str]]:
    """Directory, partition and topic id of every replica on disk; strays and directories without id go to `hosted`."""
    found = []
    retained = finish_moves(hosted)
    for directory in hosted.directories:
        directory.remove_leftovers(retained)
        hosted.strays.load(directory)
        for partition, topic_id in sorted(directory.replicas().items()):
            if topic_id is None:
                hosted.add_without_id(partition, directory)
            else:
                found.append((directory, partition, topic_id))
    return found


class _ProgressTracker:
    """Adds up the progress of logs that recover in several threads."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._opened, self._total = 0, total
        self._bytes: dict[TopicPartition, int] = {}
        self._progress = progress

    def opened(self, partition: TopicPartition, size: int) -> None:
        """A log is open. size: bytes of its segments; recovery may have read preallocated space beyond them."""
        self._opened += 1
        self._bytes[partition] = min(self._bytes.get(partition, 0), size)
        self._report()

    def callback(self, partition: TopicPartition) -> Callable[[int, int], None]:
        """The progress callback of one log's recovery."""

        def checked(done: int, _: int) -> None:
            self._bytes[partition] = done
            self._report()

        return checked

    def _report(self) -> None:
        if self._progress is not None:
            self._progress(self._opened, self._total, sum(list(self._bytes.values())))
