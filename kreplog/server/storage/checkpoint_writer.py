"""CheckpointWriter: writes the checkpoint files of all log directories, while the broker runs and when it stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor

from kreplog.core.broker.log_directory_state import checkpoint_fails_directory
from kreplog.errors import StorageError
from kreplog.managed_log import ManagedLog
from kreplog.server.storage.directories import DataDirectory, Offsets
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.server.storage.replica import Replica
from kreplog.types import TopicPartition

_log = logging.getLogger("kreplog.server")

CLOSING_THREADS = 8


class CheckpointWriter:
    """Writes checkpoint files. fail: called with a directory that cannot be written, and the error."""

    def __init__(
        self, hosted: HostedReplicas, pool: Executor, fail: Callable[[DataDirectory, StorageError], None]
    ) -> None:
        self._hosted = hosted
        self._pool = pool
        self._fail = fail

    async def write(self) -> None:
        """Write the current offsets of every online directory, in a thread."""
        loop = asyncio.get_running_loop()
        for directory in self._hosted.directories:
            if directory.failed:
                continue
            try:
                await loop.run_in_executor(self._pool, self.write_now, directory)
            except StorageError as error:
                _log.error("%s: %s", directory.path, error)
                if checkpoint_fails_directory(error):
                    self._fail(directory, error)

    def write_now(self, directory: DataDirectory) -> None:
        """Write the current offsets of one directory, with those of copies that may take over; blocks. Raises
        StorageError."""
        directory.write_checkpoints(lambda: dict(self._offsets(directory)))

    def _offsets(self, directory: DataDirectory) -> Iterator[tuple[TopicPartition, Offsets]]:
        """The offsets of every open replica. Kafka's log-start-offset-checkpoint has only log starts within a segment;
        here it has all."""
        for partition, replica in self._hosted.items():
            if replica.directory is directory and not replica.removed:
                yield partition, _offsets_of(replica.log)
        for move in self._hosted.moves_to(directory):
            yield move.future.partition, _offsets_of(move.log)

    def close_all(self, *, mark: bool) -> bool:
        """Close every log, several at a time, write the checkpoints and unlock the directories; blocks.

        mark: write the clean shutdown mark into each directory whose logs all closed cleanly, whatever happened in
        other directories. Returns whether all of them are marked."""
        hosted = self._hosted
        replicas = dict(hosted.items())
        with ThreadPoolExecutor(CLOSING_THREADS, "kreplog-close") as pool:
            closed = dict(zip(replicas, pool.map(_close, replicas.values()), strict=True))
        unclean = {replicas[partition].directory for partition, offsets in closed.items() if offsets is None}
        for directory in hosted.directories:
            if not directory.failed:
                offsets = {
                    partition: at
                    for partition, at in closed.items()
                    if at is not None and replicas[partition].directory is directory
                }
                try:
                    directory.write_checkpoints(offsets.copy)
                except StorageError as error:
                    _log.error("%s: %s", directory.path, error)
                    unclean.add(directory)
            closed_all = directory not in unclean
            directory.close(mark and directory.may_mark_clean(complete=hosted.complete, all_closed=closed_all))
        return mark and hosted.complete and not unclean


def _offsets_of(log: ManagedLog) -> Offsets:
    return log.recovery_point, log.high_watermark, log.log_start_offset


def _close(replica: Replica) -> Offsets | None:
    """Close a log; its offsets for the checkpoints, None if it was not closed cleanly."""
    log = replica.log
    if replica.directory.failed:
        log.abandon()
        return None
    try:
        offsets = log.log_end_offset, log.high_watermark, log.log_start_offset
        log.close()
    except StorageError as error:
        _log.error("%s", error)
        return None
    return offsets
