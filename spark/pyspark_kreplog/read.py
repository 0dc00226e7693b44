"""A task to Arrow batches of exactly the columns of the schema. Runs in Spark's Python workers.

Files are opened, and brokers reached, here and not before, and read no further than was planned. What makes a plan out
of date (records deleted, a topic created again, a high watermark that fell) is distinguished from damage, and follows
failOnDataLoss.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pyarrow as pa

import kreplog
from kreplog.errors import KreplogError, OffsetOutOfRangeError, StorageError, UsageError
from pyspark_kreplog import network, short_circuit
from pyspark_kreplog.data_loss import report_data_loss
from pyspark_kreplog.log_directory import (
    await_end_offset,
    require_same_incarnation,
    require_same_topic,
    topic_id_of,
)
from pyspark_kreplog.plan import Task

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])

ARROW_TYPES = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.field("element", _HEADER)),
}
"""Every column that can be read, in the order of Spark's Kafka source, with the only Arrow type that Spark takes."""

_CONSTANT = ("topic", "partition")


def read(task: Task, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The records of `task` as batches of a few MiB with exactly `columns`, in that order.

    Raises OffsetOutOfRangeError where planned records are gone and the task says to fail; StorageError for damage;
    UsageError for a record that no column can hold, as a timestamp in nanoseconds.
    """
    try:
        yield from _read(task, _Shape(task, columns))
    except UsageError as error:
        if error.offset is None:
            raise
        raise UsageError(
            f"""{task.topic_partition}: {error}: .schema("offset bigint, value binary") names the columns to read""",
            partition=str(task.topic_partition),
            offset=error.offset,
        ) from error


def _read(task: Task, shape: _Shape) -> Iterator[pa.RecordBatch]:
    if task.bootstrap is not None:
        yield from _read_from_cluster(task, task.bootstrap, shape)
        return
    identity = _identity(task.path)
    with kreplog.Log.open(task.path, read_only=True) as log:
        require_same_topic(task.topic_partition, task.topic_id, topic_id_of(log), stream=task.stream)
        require_same_incarnation(task.topic_partition, task.incarnation_id, log.incarnation_id, stream=task.stream)
        _require_committed(log, task)
        position = _first_available(log, task, task.start)
        while position < task.stop:
            try:
                for rows in log.to_arrow(
                    position,
                    task.stop,
                    shape.from_log,
                    timestamp_unit="us",
                    isolation=task.consumer.isolation_level,
                ):
                    yield shape.form(rows)
                    position = rows.column("offset")[-1].as_py() + 1 if shape.knows_offsets else position
                _require_same_directory(log, task, identity)
                return
            except OffsetOutOfRangeError:
                first = _first_available(log, task, position)
                if first <= position:
                    raise
                position = first


def _identity(path: str) -> tuple[int, ...]:
    """Numbers that change when the partition is deleted and created again. Raises StorageError."""
    try:
        directory = os.stat(path)
        try:
            state = os.stat(os.path.join(path, "kreplog.state"))
        except FileNotFoundError:  # a log that only Kafka has written
            return directory.st_dev, directory.st_ino
        return directory.st_dev, directory.st_ino, state.st_ino
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}", path=path) from error


def _require_same_directory(log: kreplog.Log, task: Task, identity: tuple[int, ...]) -> None:
    """Raise KreplogError if the partition was deleted and created again during the read: later segments may have been
    those of the new one. The task then fails, and Spark drops its rows."""
    require_same_topic(task.topic_partition, task.topic_id, topic_id_of(log), stream=task.stream)
    if _identity(task.path) != identity:
        raise KreplogError(
            f"{task.topic_partition}: the partition was deleted and created again while it was read: load() again",
            partition=str(task.topic_partition),
            path=task.path,
        )


def _read_from_cluster(task: Task, bootstrap: str, shape: _Shape) -> Iterator[pa.RecordBatch]:
    """From the files of a replica on this host, as far as there is one; the rest from the leader."""
    position = task.start
    for rows, next_offset in short_circuit.read(task, shape.from_log):
        if rows is not None:
            yield shape.form(rows)
        position = next_offset
    timed_out_at = -1
    while position < task.stop:
        try:
            for rows, next_offset in network.fetch(
                bootstrap, task.topic_partition, task.topic_id, position, task.stop, shape.from_log, task.consumer
            ):
                yield shape.form(rows)
                position = next_offset
            return
        except (*network.LOST_RECORD_ERRORS, network.fetch_timeout_error()) as error:
            first, end = network.offsets(bootstrap, task.topic_partition, task.consumer)
            if first > position:
                position = _moved_to(task, first, position)
            elif end >= task.stop and not isinstance(error, network.LOST_RECORD_ERRORS):
                if timed_out_at == position:
                    raise _timed_out(task, position, end) from error
                timed_out_at = position
            else:  # the leader's log ends before `stop`, or parts from what was planned
                loss = f"offsets {position} to {task.stop}, committed when this read was planned, no longer exist"
                _lost(task, f"{loss} ({error})", position)
                return


def _timed_out(task: Task, position: int, end: int) -> KreplogError:
    return network.fetch_timeout_error()(
        f"{task.topic_partition}: no record at offset {position} for {network.FETCH_TIMEOUT_S:g} s, twice, though the "
        f"leader answers and its log reaches {end}: it is slow, or this client is throttled by a quota. Nothing is "
        "lost: run the query again",
        partition=str(task.topic_partition),
        offset=position,
    )


class _Shape:
    """Turns the log's columns into those of the schema: adds the constant ones, drops what only the reader needed."""

    def __init__(self, task: Task, columns: Sequence[str]) -> None:
        self.from_log = [name for name in columns if name not in _CONSTANT]
        # To go on after records that vanished under the read, or from a leader, the reader must know how far it came.
        may_go_on = not task.fail_on_data_loss or task.fence is not None
        if not self.from_log or (may_go_on and "offset" not in self.from_log):
            self.from_log.append("offset")
        self.knows_offsets = "offset" in self.from_log
        self._columns = columns
        self._schema = pa.schema([pa.field(name, ARROW_TYPES[name]) for name in columns])
        self._values = {"topic": pa.scalar(task.topic), "partition": pa.scalar(task.partition, pa.int32())}
        self._constants = {name: pa.repeat(self._values[name], 0) for name in _CONSTANT if name in columns}

    def form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        for name, array in self._constants.items():
            if len(array) < rows.num_rows:
                self._constants[name] = pa.repeat(self._values[name], rows.num_rows)
        arrays = [
            self._constants[name].slice(0, rows.num_rows) if name in self._constants else rows.column(name)
            for name in self._columns
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _require_committed(log: kreplog.Log, task: Task) -> None:
    end = await_end_offset(log, task.stop, task.consumer.isolation_level)
    if end < task.stop:
        _lost(task, f"offsets {end} to {task.stop}, committed when this read was planned, no longer exist", end)


def _first_available(log: kreplog.Log, task: Task, position: int) -> int:
    """`position`, or the log start offset where that has moved past it."""
    return _moved_to(task, log.log_start_offset, position)


def _moved_to(task: Task, first: int, position: int) -> int:
    """As _first_available, for a log that starts at `first`."""
    if first > position:
        loss = f"offsets {position} to {min(first, task.stop)} were deleted after this read was planned"
        _lost(task, f"{loss}; the log now starts at {first}", position)
    return max(first, position)


def _lost(task: Task, loss: str, offset: int) -> None:
    report_data_loss(
        task.topic_partition, loss, offset, fail=task.fail_on_data_loss, stream=task.stream, path=task.path or None
    )
