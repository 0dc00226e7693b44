"""Simulated disks: replica logs that outlive the broker process, and disk failures.

`Disks` contains all disks of one run, on the model log or on the real one in a memory file system; it is a context
manager. A `Disk` opens a `DiskLog` for each replica and keeps the content of a data directory without a process.

Durability. A crash of the process (`crash(False, rng)`) loses nothing: appends are in the page cache and the high
watermark in the mapped state page, so a log opens again with all records. A power failure (`crash(True, rng)`) loses
records after the last fsync: each log ends at a batch boundary between what is durable and its end, drawn by `rng`, and
its high watermark is at most the one of the last `checkpoint_high_watermarks` (truncations and deletions write it back,
too). Every draw is made for either kind of log, so that a seed means the same with both.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from kreplog.core.effects import LogState
from kreplog.core.messages import TransactionMarker
from kreplog.errors import LogClosedError, LogFailedError, ResourceExhaustedError, check
from kreplog.sim.machines.model_log import ModelLog
from kreplog.sim.machines.native_log import NativeLog
from kreplog.sim.machines.records import ModelCodec, NativeCodec, RecordCodec
from kreplog.sim.machines.replica_log import LogFiles
from kreplog.types import AppendInfo, TopicPartition

_logger = logging.getLogger("kreplog")

_HALF = 2  # of a batch is left behind the cut; see NativeLog.lose


class Loss(NamedTuple):
    """A power failure took the records [start, end) from a broker's replica."""

    broker: int
    partition: TopicPartition
    topic_id: str
    start: int
    end: int


class Opened(NamedTuple):
    """An opened replica: its log, the log's state and its high watermark."""

    log: DiskLog
    state: LogState
    high_watermark: int


class Observer(Protocol):
    """Observes all changes of logs as they happen; for checkers."""

    def appended(self, broker: int, partition: TopicPartition, log: DiskLog, start: int) -> None:
        """Records from `start` to the end are new."""

    def truncated(self, broker: int, partition: TopicPartition, log: DiskLog, end: int) -> None:
        """Records from the log's present end to `end` were removed."""

    def committed(self, broker: int, partition: TopicPartition, log: DiskLog, start: int) -> None:
        """The high watermark moved up from `start`."""

    def deleted(self, broker: int, partition: TopicPartition, log: DiskLog, start: int) -> None:
        """Records from `start` to the present log start were deleted on request."""

    def expired(self, broker: int, partition: TopicPartition, log: DiskLog, start: int) -> None:
        """Retention has deleted records from `start` to the present log start."""

    def opened(self, broker: int, partition: TopicPartition, log: DiskLog) -> None:
        """The log was recovered, or created."""


class _Replica:
    """A partition directory: its files, the log that has them open, and their durable end."""

    __slots__ = (
        "created",
        "durable",
        "failed",
        "files",
        "interrupted",
        "leo",
        "log",
        "lost_from",
        "replaced",
        "since_ms",
        "topic_id",
    )

    def __init__(self, topic_id: str, files: LogFiles) -> None:
        self.topic_id = topic_id
        self.files = files
        self.log: DiskLog | None = None
        self.leo = 0  # while no log is open
        self.durable = 0
        self.created = True  # since the last sync
        self.failed = False
        self.interrupted = False
        self.lost_from: int | None = None  # start of a torn append that does not survive a restart
        self.since_ms = -1  # when it became a stray
        self.replaced: tuple[LogFiles, int] | None = None  # former files and their durable end, until a sync

    def durable_point(self) -> None:
        """While the log is open: update `durable`."""
        self.durable = max(min(self.durable, self.files.leo), self.files.recovery_point)

    def settle_torn(self) -> None:
        """While it is closed: remove a torn append that does not survive."""
        if self.lost_from is not None:
            self.files.lose(self.lost_from, _HALF)
            self.leo, self.lost_from = self.lost_from, None
            self.durable = min(self.durable, self.leo)


class DiskLog:
    """A ReplicaLog on a disk that may fail. Made by `Disk.open`; the handle ends with close, delete or crash."""

    __slots__ = ("_disk", "_files", "_replica", "partition", "topic_id")

    def __init__(self, disk: Disk, partition: TopicPartition, replica: _Replica) -> None:
        self.partition = partition
        self.topic_id = replica.topic_id
        self._disk = disk
        self._replica = replica
        self._files: LogFiles = replica.files

    @property
    def failed(self) -> bool:
        return self._disk.failed or self._replica.failed or self._replica.interrupted

    @property
    def files_durable(self) -> bool:
        """Whether its directory and its first segment are durable."""
        return not self._replica.created

    def sync_files(self) -> None:
        """Make them durable. Raises LogFailedError."""
        if self._disk.failed:
            raise self._failure("fsync")
        self._replica.created = False

    def state(self) -> LogState:
        files = self._open()
        return LogState(files.leo, files.log_start, files.epochs, files.first_unstable)

    @property
    def high_watermark(self) -> int:
        return self._open().high_watermark

    def append_as_leader(
        self,
        records: Any,
        leader_epoch: int,
        strict: bool = False,
        transactional: bool = False,
        sequenced: bool = True,
        verified_by: int = -1,
    ) -> tuple[AppendInfo, LogState]:
        files = self._open()
        start = files.leo
        tear = self._begin_write()
        info = files.append_as_leader(records, leader_epoch, strict, transactional, sequenced, verified_by)
        self._appended(start, tear)
        return info, self.state()

    def append_marker(self, marker: TransactionMarker, leader_epoch: int) -> tuple[AppendInfo, LogState]:
        files = self._open()
        start = files.leo
        tear = self._begin_write()
        info = files.append_marker(marker, leader_epoch)
        self._appended(start, tear)
        return info, self.state()

    def append_as_follower(self, records: Any) -> LogState:
        files = self._open()
        start = files.leo
        tear = self._begin_write()
        files.append_as_follower(records)
        self._appended(start, tear)
        return self.state()

    def assign_leader_epoch(self, leader_epoch: int) -> LogState:
        return self._change(lambda files: files.assign_leader_epoch(leader_epoch), at_once=True)

    def truncate_to(self, offset: int) -> LogState:
        return self._change(lambda files: files.truncate_to(offset))

    def truncate_fully_and_start_at(self, offset: int) -> LogState:
        return self._change(lambda files: files.truncate_fully_and_start_at(offset), everything=True)

    def delete_records_before(self, offset: int) -> LogState:
        start = self._open().log_start
        try:
            return self._change(lambda files: files.delete_records_before(offset))
        finally:  # a failed operation may have had its effect all the same
            if self._disk.observer is not None and self._files.log_start > start:
                self._disk.observer.deleted(self._disk.broker, self.partition, self, start)

    def enforce_retention(self) -> LogState:
        start = self._open().log_start
        try:
            return self._change(lambda files: files.enforce_retention(self._disk.retention_bytes))
        finally:
            if self._disk.observer is not None and self._files.log_start > start:
                self._disk.observer.expired(self._disk.broker, self.partition, self, start)

    def read(self, offset: int, limit: int, max_bytes: int) -> Any:
        return self._open().read(offset, limit, max_bytes)

    def read_stable(self, offset: int, limit: int, max_bytes: int) -> Any:
        return self._open().read_stable(offset, limit, max_bytes)

    def size_from(self, offset: int) -> int:
        return self._open().size_from(offset)

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int]:
        return self._open().offset_for_timestamp(timestamp)

    def advance_high_watermark(self, offset: int) -> int | None:
        """Also of a failed log: the high watermark is in memory, and commits do not depend on this replica. Returns the
        first unstable offset."""
        files = self._open()
        before = files.high_watermark
        files.advance_high_watermark(offset)
        if self._disk.observer is not None and offset > before:
            self._disk.observer.committed(self._disk.broker, self.partition, self, before)
        return files.first_unstable

    def flush(self) -> int:
        files = self._open()
        if self._begin_write() is not None:
            raise self._failure("flush")
        return files.flush()

    def _open(self) -> LogFiles:
        if self._replica.log is not self:
            raise LogClosedError(f"{self.partition}: this log is closed", partition=str(self.partition))
        return self._files

    def _begin_write(self) -> bool | None:
        """Return None for a normal write. Otherwise the write is torn: it has its effect and fails; True: it survives.

        Raises LogFailedError, ResourceExhaustedError.
        """
        if self._replica.failed or self._disk.failed:
            self._replica.failed = True
            raise self._failure("write")
        if self._replica.interrupted:
            raise self._failure("write") from self._disk.exhaustion(self.partition)
        self._disk.check_resources(self.partition)
        if not self._disk._next_write_fails():
            return None
        self._replica.failed = True
        tear = self._disk._tear
        if tear is None:
            raise self._failure("write")
        return tear

    def _failure(self, operation: str) -> LogFailedError:
        return LogFailedError(
            f"{self.partition}: the disk of broker {self._disk.broker} failed a {operation}; the log takes no writes",
            partition=str(self.partition),
        )

    def _appended(self, start: int, tear: bool | None) -> None:
        if tear is not None:
            if not tear:
                self._replica.lost_from = start
                self._files.write_back()
            raise self._failure("write")
        if self._disk.observer is not None and self._files.leo > start:
            self._disk.observer.appended(self._disk.broker, self.partition, self, start)

    def _change(self, change: Callable[[LogFiles], None], everything: bool = False, at_once: bool = False) -> LogState:
        """Change the files; returns the state of the log. at_once: the change is atomic."""
        files = self._open()
        try:
            tear = self._begin_write()
        except ResourceExhaustedError:
            if at_once or not self._disk.interrupts:
                raise
            tear, self._replica.interrupted = None, True
        end = files.leo
        self._replica.durable_point()
        change(files)
        files.write_back()
        if files.leo < end or everything:
            self._replica.durable = min(self._replica.durable, files.leo)
            if self._disk.observer is not None:
                self._disk.observer.truncated(self._disk.broker, self.partition, self, end)
        if tear is not None:
            raise self._failure("write")
        if self._replica.interrupted:
            raise self._failure("write") from self._disk.exhaustion(self.partition)
        return self.state()


class Disk:
    """The data directory of one broker. Made by `Disks.disk`.

    unclean: the unclean mark: a power failure may have taken records; the broker process clears it.
    slow_ms: virtual time of each write and fsync, which the caller adds. observer: may be set.
    failed: it takes no writes, until `repair` and a restart. exhausted_every: every n-th operation finds no descriptor
    or memory, 0 for none; interrupts: operations that remove records are half done then. sizes_not_read: offsets whose
    distance from the log end could not be read. retention_bytes: what retention keeps of each replica.
    """

    def __init__(self, broker: int, make: Callable[[TopicPartition, str], LogFiles]) -> None:
        self.broker = broker
        self.slow_ms = 0
        self.failed = False
        self.unclean = False
        self.exhausted_every = 0
        self.sizes_not_read: set[tuple[TopicPartition, int]] = set()
        self.interrupts = False
        self.retention_bytes = 0
        self.observer: Observer | None = None
        self.strays: dict[tuple[TopicPartition, str], _Replica] = {}
        self._make = make
        self._replicas: dict[TopicPartition, _Replica] = {}
        self._fail_in: int | None = None
        self._tear: bool | None = None
        self._operations = 0

    # Operations of the broker

    def open(self, partition: TopicPartition, topic_id: str) -> Opened:
        """Open and recover the replica, or create it; it must not have another topic id.

        Opening an open replica returns a new handle. On a failed disk a replica still opens, from the page cache, and
        only a new one cannot be created. Raises LogFailedError, ResourceExhaustedError.
        """
        replica = self._replicas.get(partition)
        if replica is None and self.failed:
            raise LogFailedError(f"{partition}: the disk of broker {self.broker} has failed", partition=str(partition))
        self.check_resources(partition)
        if replica is None:
            replica = self._replicas[partition] = _Replica(topic_id, self._make(partition, topic_id))
        elif replica.log is None:
            replica.settle_torn()
            replica.files.open()
        check(replica.topic_id == topic_id, f"{partition} of topic id {replica.topic_id} was not set aside")
        replica.failed = replica.interrupted = False
        log = replica.log = DiskLog(self, partition, replica)
        if self.observer is not None:
            self.observer.opened(self.broker, partition, log)
        return Opened(log, log.state(), log.high_watermark)

    def log(self, partition: TopicPartition) -> DiskLog | None:
        """The open log of a replica."""
        replica = self._replicas.get(partition)
        return None if replica is None else replica.log

    def close(self, partition: TopicPartition) -> None:
        """Close a replica: its files stay, all durable. A failed one is only released."""
        replica = self._replicas[partition]
        if replica.log is None:
            return
        if replica.failed or self.failed:
            self._stop(replica)
        else:
            replica.leo = replica.durable = replica.files.leo
            replica.log = None
            replica.files.write_back()
            replica.files.close()

    def delete(self, partition: TopicPartition) -> None:
        """Close a replica and delete its files, if it exists; on a failed disk too, where only names change."""
        replica = self._replicas.get(partition)
        if replica is None:
            return
        replica.log = None
        del self._replicas[partition]
        replica.files.discard()

    def make_copy(self, partition: TopicPartition) -> LogFiles:
        """Files for `replace_files`."""
        return self._make(partition, self._replicas[partition].topic_id)

    def replace_files(self, partition: TopicPartition, files: LogFiles) -> LogState:
        """The replica has these files from now on. Until `sync_replacement` a power failure may leave the former."""
        replica = self._replicas[partition]
        replica.replaced = replica.files, replica.durable
        replica.files, replica.durable = files, files.flush()
        files.write_back()
        log = replica.log
        assert log is not None
        log._files = files
        return log.state()

    def sync_replacement(self, partition: TopicPartition) -> None:
        self._replicas[partition].replaced = None

    def set_aside(self, partition: TopicPartition, now_ms: int = 0) -> None:
        """Close a replica and keep its files aside as a stray since `now_ms`, if it exists; on a failed disk too."""
        replica = self._replicas.get(partition)
        if replica is None:
            return
        if replica.log is not None:
            self._stop(replica)
        del self._replicas[partition]
        replica.files.discard()
        replica.since_ms = now_ms
        self.strays[partition, replica.topic_id] = replica

    def restore(self, partition: TopicPartition, topic_id: str) -> bool:
        """Restore the stray of a replica; return False if there is none. On a failed disk too."""
        replica = self.strays.pop((partition, topic_id), None)
        if replica is None:
            return False
        replica.files.restore()
        self._replicas[partition] = replica
        return True

    def delete_stray(self, partition: TopicPartition, topic_id: str) -> None:
        """Delete the files of a stray, if it exists."""
        self.strays.pop((partition, topic_id), None)

    def strays_since(self) -> dict[tuple[TopicPartition, str], int]:
        """When each stray, by partition and topic id in order, was set aside."""
        return {key: self.strays[key].since_ms for key in sorted(self.strays)}

    def ends(self, partition: TopicPartition, topic_id: str) -> tuple[int, int]:
        """(log end offset, durable end) of a replica, open or not; (0, 0) if it does not exist. For checkers."""
        replica = self._replicas.get(partition)
        if replica is None or replica.topic_id != topic_id:
            return 0, 0
        if replica.log is None:
            return replica.leo, replica.durable
        replica.durable_point()
        return replica.files.leo, replica.durable

    def on_disk(self) -> dict[TopicPartition, str]:
        """Topic ids of all replicas on the disk, open or not, by partition in order."""
        return {partition: self._replicas[partition].topic_id for partition in sorted(self._replicas)}

    def open_replicas(self) -> list[TopicPartition]:
        return [partition for partition in sorted(self._replicas) if self._replicas[partition].log is not None]

    def not_durable(self) -> list[DiskLog]:
        """The open logs whose directories and first segments are not durable yet."""
        logs = [replica.log for replica in self._replicas.values() if replica.created]
        return [log for log in logs if log is not None]

    def checkpoint_high_watermarks(self) -> None:
        """The periodic checkpoint of a broker: a power failure leaves the present high watermarks."""
        if not self.failed:
            for replica in self._replicas.values():
                if replica.log is not None and not replica.failed:
                    replica.files.write_back()

    def check_resources(self, partition: TopicPartition) -> None:
        """To be called before each operation that opens a file. Raises ResourceExhaustedError."""
        self._operations += 1
        if self.exhausted_every > 0 and self._operations % self.exhausted_every == 0:
            raise self.exhaustion(partition)

    def exhaustion(self, partition: TopicPartition) -> ResourceExhaustedError:
        return ResourceExhaustedError(
            f"{partition}: broker {self.broker} has no descriptors left", partition=str(partition)
        )

    # Faults of the broker and the disk

    def shutdown(self) -> None:
        """The process exits cleanly: every log is closed."""
        for partition in sorted(self._replicas):
            self.close(partition)

    def crash(self, lose_cache: bool, rng: Random) -> list[Loss]:
        """Kill the process, with lose_cache by a power failure; return the lost records, for the checkers.

        A broker that is down can only lose power. A stray beside a new replica of its topic loses nothing that counts.
        """
        losses = []
        strays = [(partition, self.strays[partition, topic_id]) for partition, topic_id in sorted(self.strays)]
        for partition, replica in [*sorted(self._replicas.items()), *strays]:
            present = self._replicas.get(partition, replica)
            if replica.replaced is not None and lose_cache and rng.random() < 0.5:
                replica.files, replica.durable = replica.replaced
            replica.replaced = None
            if replica.log is not None:
                self._stop(replica)
            replica.settle_torn()
            if lose_cache:
                end, tear = rng.choice(replica.files.cuts(replica.durable, replica.leo)), rng.randrange(3)
                if end < replica.leo and (present is replica or present.topic_id != replica.topic_id):
                    losses.append(Loss(self.broker, partition, replica.topic_id, end, replica.leo))
                replica.files.lose(end, tear)
                replica.leo = replica.durable = end
        self.unclean = self.unclean or lose_cache
        return losses

    def fail(self) -> None:
        """Every write from now on fails."""
        self.failed = True

    def fail_write(self, number: int, torn: bool = False, survives: bool = False) -> None:
        """Fail the number-th write from now on (1: the next one), and all after it.

        torn: it is written and reported as failed; survives: a restart finds the torn append. Other torn changes always
        survive.
        """
        self._fail_in = number
        self._tear = survives if torn else None

    def repair(self) -> None:
        """The disk works again; a log that has failed works after it is opened again."""
        self.failed = False
        self._fail_in = None

    def peek(self, partition: TopicPartition) -> DiskLog | None:
        """The log of a replica for a checker to read, opened if it is closed; None if it does not exist."""
        replica = self._replicas.get(partition)
        if replica is None:
            return None
        if replica.log is None:
            replica.settle_torn()
            replica.files.open()
            replica.log = DiskLog(self, partition, replica)
        return replica.log

    def _next_write_fails(self) -> bool:
        if self._fail_in is None:
            return False
        self._fail_in -= 1
        if self._fail_in:
            return False
        self._fail_in = None
        self.failed = True
        return True

    def _stop(self, replica: _Replica) -> None:
        """Close the log without a clean shutdown; the next open sees the files as they are then."""
        replica.leo = replica.files.leo
        replica.failed = replica.interrupted = False
        replica.durable_point()
        replica.log = None
        replica.files.crash()


class Disks:
    """The disks of all brokers of one run, and the codec of the records on them.

    kind: "model" or "native". segment_bytes: small segments are rolled, sealed and deleted more often.
    """

    def __init__(self, kind: str = "model", segment_bytes: int = 1 << 16) -> None:
        self.kind = kind
        self.codec: RecordCodec = ModelCodec() if kind == "model" else NativeCodec()
        self._segment_bytes = segment_bytes
        self._disks: dict[int, Disk] = {}
        self._folder: str | None = None
        self._level = logging.NOTSET
        self._observer: Observer | None = None

    def observe(self, observer: Observer) -> None:
        """Report all changes of logs to `observer` from now on."""
        self._observer = observer
        for disk in self._disks.values():
            disk.observer = observer

    def disk(self, broker: int) -> Disk:
        """The disk of a broker, created empty."""
        disk = self._disks.get(broker)
        if disk is None:
            make: Callable[[TopicPartition, str], LogFiles] = self._make_model
            if self.kind != "model":
                make = self._make_native(broker)
            disk = self._disks[broker] = Disk(broker, make)
            disk.observer = self._observer
        return disk

    def all(self) -> list[tuple[int, Disk]]:
        """(broker, its disk) for all brokers."""
        return sorted(self._disks.items())

    def __enter__(self) -> Self:
        if self.kind != "model":
            memory = "/dev/shm"
            self._folder = tempfile.mkdtemp(prefix="kreplog-sim-", dir=memory if os.access(memory, os.W_OK) else None)
            self._level = _logger.level
            _logger.setLevel(logging.ERROR)  # recovery is expected to truncate torn batches here
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._folder is not None:
            for disk in self._disks.values():
                for replica in disk._replicas.values():
                    replica.log = None
                    replica.files.crash()
            shutil.rmtree(self._folder)
            self._folder = None
            _logger.setLevel(self._level)

    def _make_model(self, partition: TopicPartition, _topic_id: str) -> ModelLog:
        return ModelLog(str(partition), self._segment_bytes)

    def _make_native(self, broker: int) -> Callable[[TopicPartition, str], NativeLog]:
        if self._folder is None:
            raise LogClosedError("disks on the real log are used in a with statement")
        folder = os.path.join(self._folder, str(broker))
        os.mkdir(folder)
        return lambda partition, topic_id: NativeLog(folder, partition, topic_id, self._segment_bytes)
