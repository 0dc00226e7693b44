"""HostedReplicas: the replicas of one broker on its log directories, open or failed to open, and its strays.

It opens, creates, deletes and sets aside replicas. What is done with an open log is kreplog.server.storage.log_manager.
For the event loop alone, but for `add` and the lookups while LogLoader loads.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from kreplog.config import LogConfig
from kreplog.core.broker.log_directory_state import directory_for_new_replica, opens_again
from kreplog.core.memory import MemoryAccount
from kreplog.errors import (
    ReplicaRefusedError,
    ResourceExhaustedError,
    StorageError,
    check,
)
from kreplog.managed_log import ManagedLog
from kreplog.server.storage.background import BackgroundTasks
from kreplog.server.storage.directories import DataDirectory
from kreplog.server.storage.open_files import OpenFiles
from kreplog.server.storage.producer_memory import ProducerMemory
from kreplog.server.storage.replica import Replica, ReplicaMove
from kreplog.server.storage.strays import Strays
from kreplog.types import TopicPartition

_log = logging.getLogger("kreplog.server")


class HostedReplicas:
    """The replicas of one broker. config: of every log, before its topic's settings apply. files: limits the number of
    replicas. memory: charged for idempotent producers. stray_retention_ms: log.stray.retention.ms, -1 for ever.

    moves: of replicas to other log directories, under way. preferred: directories for partitions that are to be
    created. complete: every configured log directory could be opened. If not, a replica that is on no directory may be
    on the missing one, so none is created. busy_strays: strays whose log a thread still uses.
    """

    def __init__(
        self,
        directories: Sequence[DataDirectory],
        config: LogConfig,
        background: BackgroundTasks,
        *,
        complete: bool = True,
        stray_retention_ms: int = -1,
        files: OpenFiles | None = None,
        memory: MemoryAccount | None = None,
    ) -> None:
        self.directories = tuple(directories)
        self.config = config
        self.complete = complete
        self.background = background
        self.producers = ProducerMemory(memory or MemoryAccount())
        self.strays = Strays(stray_retention_ms, background.run_in_thread)
        self.busy_strays: set[Path] = set()
        self.moves: dict[TopicPartition, ReplicaMove] = {}
        self.preferred: dict[TopicPartition, DataDirectory] = {}
        self._files = files or OpenFiles()
        self._open: dict[TopicPartition, Replica] = {}
        self._failed: dict[TopicPartition, tuple[DataDirectory, str, StorageError]] = {}
        self._without_id: dict[TopicPartition, DataDirectory] = {}
        self._counts: Counter[DataDirectory] = Counter()

    # Lookups

    def get(self, partition: TopicPartition) -> Replica | None:
        return self._open.get(partition)

    def of(self, partition: TopicPartition) -> Replica:
        """The open replica of a partition. Raises InvariantError: the core opens a log before any other effect."""
        replica = self._open.get(partition)
        check(replica is not None, f"{partition}: an effect on a log that is not open")
        assert replica is not None
        return replica

    def items(self) -> list[tuple[TopicPartition, Replica]]:
        """A snapshot of the open replicas."""
        return list(self._open.items())

    def replicas(self) -> list[Replica]:
        """A snapshot of those that are open."""
        return list(self._open.values())

    def topic_ids(self) -> dict[TopicPartition, str]:
        """Topic id of every replica on disk, sorted by partition, also of those that failed to open."""
        ids = {partition: replica.topic_id for partition, replica in self._open.items()}
        ids.update((partition, topic_id) for partition, (_, topic_id, _) in self._failed.items())
        return dict(sorted(ids.items()))

    def size_of(self, partition: TopicPartition) -> int:
        """Bytes of a partition's segments; 0 if its log is not open."""
        replica = self._open.get(partition)
        return 0 if replica is None or replica.log.closed else replica.log.size

    def in_directory(self, directory: DataDirectory) -> list[tuple[TopicPartition, ManagedLog]]:
        """The open logs of a directory, sorted by partition, to be read only."""
        return sorted(
            (partition, replica.log) for partition, replica in self._open.items() if replica.directory is directory
        )

    def moves_to(self, directory: DataDirectory) -> list[ReplicaMove]:
        """The moves whose copy is in a directory, sorted by partition."""
        return [move for _, move in sorted(self.moves.items()) if move.directory is directory]

    @property
    def capacity(self) -> int:
        """Maximum of replicas that the limit on open files allows."""
        return self._files.replicas

    # Load

    def add(self, partition: TopicPartition, replica: Replica) -> None:
        """Add an opened replica. Raises StorageError if the partition is in another directory too."""
        other = self._open.get(partition)
        if other is not None:
            replica.log.close()
            raise StorageError(
                f"{partition} is in two directories, {other.directory.path} and {replica.directory.path}: move one away"
            )
        self._open[partition] = replica
        self._counts[replica.directory] += 1
        self.producers.update(replica)
        for cut in replica.log.cuts:
            _log.warning("%s: %d bytes cut from byte %d on: %s", cut.path, cut.bytes, cut.position, cut.reason)

    def add_failed(
        self, partition: TopicPartition, directory: DataDirectory, topic_id: str, error: StorageError
    ) -> None:
        """Add a replica on disk that could not be opened; `error` is raised when it is opened again."""
        self._failed[partition] = directory, topic_id, error

    def add_without_id(self, partition: TopicPartition, directory: DataDirectory) -> None:
        """Add a partition directory that has no topic id, so belongs to no topic: it is renamed when a replica needs
        its name."""
        self._without_id[partition] = directory

    def refusal(self, partition: TopicPartition) -> ReplicaRefusedError:
        """The error of a replica beyond `capacity`."""
        return ReplicaRefusedError(
            f"{partition}: the limit on open files, {self._files.limit}, allows {self.capacity} replicas: raise it "
            "(ulimit -n, or LimitNOFILE= of the service) and restart the broker, add brokers, or delete topics",
            partition=str(partition),
        )

    # Open and create

    def open(self, partition: TopicPartition, topic_id: str) -> Replica | None:
        """The replica of a partition, opened again if that is needed and possible; None if none is on disk.

        Raises LogFailedError, StorageError, ReplicaRefusedError or ResourceExhaustedError."""
        if partition in self._failed:
            self._retry_open(partition)
        replica = self._open.get(partition)
        if replica is None:
            return None
        check(replica.topic_id == topic_id, f"{partition} is of topic id {replica.topic_id}, not set aside")
        replica.directory.check_online(partition, replica.directory.path)
        if replica.log.failed and opens_again(replica.log.cause):
            self._reopen(partition, replica)
        return replica

    def _retry_open(self, partition: TopicPartition) -> None:
        """Open a replica again that failed to open, or raise the error if that is final."""
        directory, topic_id, error = self._failed[partition]
        directory.check_online(partition, directory.path)
        if not opens_again(error):
            raise error
        self.check_capacity(partition)
        log = ManagedLog.open(directory.folder(partition), self.config)
        del self._failed[partition]
        self.add(partition, Replica(directory, topic_id, log))

    def _reopen(self, partition: TopicPartition, replica: Replica) -> None:
        """Reopen a log that refuses writes because a change was interrupted for want of descriptors or memory."""
        if replica.in_use:
            raise ResourceExhaustedError(f"{partition}: a thread still uses its log; it is reopened after that")
        log = ManagedLog.open_named(Path(replica.log.path), partition, self.config)
        replica.log.abandon()
        replica.log = log
        _log.warning("%s is reopened after an interrupted change, and ends at %d", log.path, log.log_end_offset)

    def check_capacity(self, partition: TopicPartition) -> None:
        """Raises ReplicaRefusedError if no other log may be opened."""
        if len(self._open) + len(self.moves) >= self.capacity:
            raise self.refusal(partition)

    def create(self, partition: TopicPartition, topic_id: str) -> Replica:
        """Create an empty replica in the preferred directory, else in the online one with the fewest. Raises
        StorageError."""
        directory = directory_for_new_replica(
            partition, self.directories, self._counts.__getitem__, self.preferred.pop(partition, None), self.complete
        )
        self.check_capacity(partition)
        self._rename_without_id(partition)
        try:
            folder = directory.make(partition, topic_id)
            replica = Replica(directory, topic_id, ManagedLog.open(folder, self.config))
        except BaseException as error:  # a half made directory must not be found by the next start
            directory.note_if_disk_full(error)
            with suppress(StorageError):
                self.background.run_in_thread(directory.remove, directory.mark_deleted(partition))
            raise
        self.add(partition, replica)
        return replica

    def _rename_without_id(self, partition: TopicPartition) -> None:
        directory = self._without_id.pop(partition, None)
        if directory is not None:
            directory.set_aside(partition)

    # Delete and set aside

    def delete(self, partition: TopicPartition) -> None:
        """Rename a replica for deletion now; its files are deleted once no thread uses its log. Raises LogFailedError
        or StorageError."""
        if partition in self._failed:
            directory = self._failed[partition][0]
            directory.check_online(partition, directory.path)
            moved = directory.mark_deleted(partition)
            del self._failed[partition]
            self.background.run_in_thread(directory.remove, moved)
            return
        replica = self._open.get(partition)
        if replica is not None:
            directory = replica.directory
            directory.check_online(partition, directory.path)
            moved = self._remove(partition, replica, partial(directory.mark_deleted, folder=Path(replica.log.path)))
            replica.on_released = lambda: self.background.run_in_thread(directory.remove, moved)
            replica.release()

    def set_stray(self, partition: TopicPartition) -> None:
        """Rename a replica as a stray. Raises LogFailedError or StorageError."""
        if partition in self._failed:
            directory, topic_id, _ = self._failed[partition]
            directory.check_online(partition, directory.path)
            path = directory.set_stray(partition)
            del self._failed[partition]
        elif (replica := self._open.get(partition)) is not None:
            directory, topic_id = replica.directory, replica.topic_id
            directory.check_online(partition, directory.path)
            path = self._remove(partition, replica, partial(directory.set_stray, folder=Path(replica.log.path)))
            if replica.in_use:
                self.busy_strays.add(path)
                replica.on_released = lambda: self.busy_strays.discard(path)
        else:
            return
        self.strays.add(directory, path, topic_id, partition)

    def restore_stray(self, partition: TopicPartition, topic_id: str) -> bool:
        """Rename the newest stray of a partition back, and open it; False if there is none. Raises LogFailedError or
        StorageError."""
        found = self.strays.find(partition, topic_id)
        if not found:
            return False
        directory, stray = found[-1]
        directory.check_online(partition, directory.path)
        if stray.path in self.busy_strays:
            raise StorageError(f"{partition}: {stray.path} is still being synced; a restart of the broker restores it")
        self.check_capacity(partition)
        self._rename_without_id(partition)
        folder = self.strays.restore(found[-1], partition)
        try:
            self.add(partition, Replica(directory, topic_id, ManagedLog.open(folder, self.config)))
        except StorageError as error:
            self._failed[partition] = directory, topic_id, error
            raise
        return True

    def delete_strays(self, partition: TopicPartition, topic_id: str) -> None:
        """Delete all strays of a partition. Raises LogFailedError or StorageError."""
        for found in self.strays.find(partition, topic_id):
            directory, _ = found
            directory.check_online(partition, directory.path)
            self.strays.delete(found)

    def _remove(self, partition: TopicPartition, replica: Replica, rename: Callable[[TopicPartition], Path]) -> Path:
        """Rename a replica's directory and forget the replica. Raises StorageError, and nothing has changed."""
        replica.log.expect_failure()
        moved = rename(partition)
        self._end_move(partition)
        del self._open[partition]
        self._counts[replica.directory] -= 1
        replica.removed = True
        self.producers.update(replica)
        replica.release()
        return moved

    # Move

    def replace(self, move: ReplicaMove, replica: Replica) -> Path:
        """Rename a replica whose copy takes over, which commits the move, and put `replica`, that copy, in its place.
        No thread uses the old one, whose renamed directory is returned. Raises StorageError, and nothing has changed.
        """
        old, partition = move.replica, move.future.partition
        renamed = old.directory.mark_replaced(move.future, Path(old.log.path))
        del self.moves[partition]
        self._open[partition] = replica
        self._counts[old.directory] -= 1
        self._counts[replica.directory] += 1
        old.removed = True
        self.producers.update(old)
        self.producers.update(replica)
        old.release()
        return renamed

    def _end_move(self, partition: TopicPartition) -> None:
        move = self.moves.pop(partition, None)
        if move is not None:
            move.ended = True
