"""Short-circuit reads: a task on the host of a replica reads the replica's files, as HDFS clients do, and not over the
network.

The files are those of a kreplog broker, which writes them meanwhile. A replica is read where it holds the records that
were planned: its topic id is that of the plan, and its leader epochs agree with the leader's, so that by Raft's log
matching the records below are the same in both. It is read up to its own high watermark, or with read_committed up to
its own last stable offset by its own index of aborted transactions, and no piece is handed over
before it is sure that nothing was truncated, deleted or created again while it was read. Whatever is not read here is
fetched. Nothing here knows of Spark.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pyarrow as pa

import kreplog
from kreplog.errors import KreplogError
from pyspark_kreplog.bounds import end_offset
from pyspark_kreplog.leader_epochs import epoch_before
from pyspark_kreplog.log_directory import topic_id_of
from pyspark_kreplog.options import LOCAL_LOG_DIRS
from pyspark_kreplog.plan import ReplicaFence, Task

PIECE_BYTES = 4 << 20

_log = logging.getLogger("pyspark_kreplog")


class _UnusableReplicaError(Exception):
    """The replica does not hold, or no longer holds, what was planned; the message says why."""


class _MissingReplicaError(_UnusableReplicaError):
    """There is no replica in the directory, as on most hosts."""


def read(task: Task, columns: Sequence[str]) -> Iterator[tuple[pa.RecordBatch | None, int]]:
    """Records of `task` from a replica on this host: pieces of a few MiB, each with the offset that follows it.

    Without a piece where a gap ends the range. Ends where no replica serves the next offset. columns: with "offset".
    """
    position = task.start
    if task.fence is None:
        return
    for directory in local_log_dirs(task.local_log_dirs):
        path = os.path.join(directory, str(task.topic_partition))
        first = position
        try:
            for rows, next_offset in _read_replica(path, task, task.fence, position, columns):
                position = next_offset
                yield rows, next_offset
        except _MissingReplicaError as error:
            _log.debug("%s: %s", task.topic_partition, error)
        except (_UnusableReplicaError, KreplogError, OSError) as error:
            _log.warning("%s: offsets from %d on are not read from %s: %s", task.topic_partition, position, path, error)
        if position > first:
            _log.info("%s: offsets %d to %d were read from %s", task.topic_partition, first, position, path)
        if position >= task.stop:
            return


def usable_replica(task: Task) -> str | None:
    """The directory of the replica on this host from which `task` would be read now; None where there is none."""
    for directory in local_log_dirs(task.local_log_dirs):
        path = os.path.join(directory, str(task.topic_partition))
        with suppress(_UnusableReplicaError, KreplogError, OSError):
            if task.fence is not None and any(_read_replica(path, task, task.fence, task.start, ["offset"])):
                return path
    return None


def local_log_dirs(planned: Sequence[str]) -> Sequence[str]:
    """The log directories of brokers on this host: those of the environment variable, else those of the plan."""
    here = os.environ.get(LOCAL_LOG_DIRS)
    return planned if here is None else [path.strip() for path in here.split(",") if path.strip()]


def _read_replica(
    path: str, task: Task, fence: ReplicaFence, position: int, columns: Sequence[str]
) -> Iterator[tuple[pa.RecordBatch | None, int]]:
    identity = _identity(path)
    with kreplog.Log.open(path, read_only=True) as log:
        generation = log.generation
        end = _end_of_planned_records(log, task, fence)
        isolation = task.consumer.isolation_level
        stop = min(task.stop, end, end_offset(log, isolation))
        if log.log_start_offset > position:
            raise _UnusableReplicaError(f"the replica starts at offset {log.log_start_offset}")
        if stop > position:
            for rows in log.to_arrow(
                position, stop, columns, timestamp_unit="us", max_bytes=PIECE_BYTES, isolation=isolation
            ):
                _require_untouched(log, path, generation, identity)
                position = rows.column("offset")[-1].as_py() + 1
                yield rows, position
            _require_untouched(log, path, generation, identity)
            if position < stop:  # compacted, aborted, or control records
                yield None, stop
        if stop < task.stop:
            _log.info("%s: %s is read up to %d and no further, to %d", task.topic_partition, path, stop, task.stop)


def _identity(path: str) -> tuple[int, ...]:
    """Numbers that change when the partition is deleted and created again.

    Only a log that kreplog writes has a state file: by that alone a reader notices a truncation in time."""
    try:
        directory = os.stat(path)
        state = os.stat(os.path.join(path, "kreplog.state"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _MissingReplicaError(f"no broker of kreplog writes to {path}") from error
    return directory.st_dev, directory.st_ino, state.st_ino


def _end_of_planned_records(log: kreplog.Log, task: Task, fence: ReplicaFence) -> int:
    """Up to which offset, at most the fence's, the log has the records of the leader's: what is appended later may be
    of another leader. Raises _UnusableReplicaError where it has others, or that is not known.

    Where it ends before the fence, it must end in the fence's epoch: an older epoch may have been cut short there.
    """
    found = topic_id_of(log)
    if found is None or found != task.topic_id:
        raise _UnusableReplicaError(f"its topic id is {found}, that of the plan {task.topic_id}")
    end = min(log.log_end_offset, fence.offset)
    epoch = epoch_before(log.leader_epochs, end)
    if epoch != fence.leader_epoch:
        raise _UnusableReplicaError(
            f"the leader epoch before offset {end} is {epoch} in the replica and {fence.leader_epoch} in its leader's "
            "log: the replica lags behind, or its log has diverged"
        )
    return end


def _require_untouched(log: kreplog.Log, path: str, generation: int, identity: tuple[int, ...]) -> None:
    """Raise _UnusableReplicaError unless all that was read was there since the log was checked."""
    if generation & 1 or log.generation != generation:
        raise _UnusableReplicaError("the replica was truncated while it was read")
    if _identity(path) != identity:
        raise _UnusableReplicaError("the partition was deleted and created again while it was read")
