"""`spark.readStream.format("kreplog")`: Spark's interface of a stream, over the rules in stream_planner.py.

Spark keeps one reader a query in a process beside the driver, and pickles another into the tasks of each batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyspark_kreplog.options import ReadOptions
from pyspark_kreplog.read import read
from pyspark_kreplog.shipping import Shipped
from pyspark_kreplog.stream_planner import StreamPlanner

if TYPE_CHECKING:
    import pyarrow as pa


class StreamReader(Shipped, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query.

    Spark calls `commit` with the end of a batch when it plans the next one, for the last batch at the next start.
    """

    def __init__(self, options: ReadOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns
        self._planner = StreamPlanner(options)

    def prepareForTriggerAvailableNow(self) -> None:
        self._planner.freeze()

    def initialOffset(self) -> dict[str, Any]:
        return self._planner.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the limits that the options set: Spark has no combination of them, so the planner applies them all.

        Spark passes ReadAllAvailable instead of it where no limit may count, as under Trigger.Once.
        """
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return self._planner.end_of_batch(start, unlimited=isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any]:
        """The end of the log and the lag, for `sources[].latestOffset` of StreamingQueryProgress."""
        return self._planner.latest()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(task) for task in self._planner.tasks(start, end, os.cpu_count() or 1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read(partition.value, self._columns)

    def commit(self, end: dict[str, Any]) -> None:
        self._planner.commit(end)

    def stop(self) -> None:
        self._planner.close()
