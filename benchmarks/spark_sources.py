"""Python data sources that do nothing beside what Spark makes every one of them do: the ceilings of kreplog's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SCHEMA = "key binary, value binary, partition int, offset bigint, timestamp timestamp"
"""Of what the tasks of bench_spark read and its files hold."""


class ReadyMade(DataSource):
    """Yields the batches of the Arrow files in the directory `path`, a task for each file; counts what is written."""

    @classmethod
    def name(cls) -> str:
        return "readymade"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return ReadyMadeReader(self.options["path"])

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return CountingWriter(self.options["path"])


class ReadyMadeReader(DataSourceReader):
    def __init__(self, path: str) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(str(file)) for file in sorted(Path(self._path).iterdir())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(partition.value) as source, pa.ipc.open_file(source) as file:
            for number in range(file.num_record_batches):
                yield file.get_batch(number)


@dataclass
class Counted(WriterCommitMessage):
    rows: int


class CountingWriter(DataSourceArrowWriter):
    """Writes the number of its rows to the file `path`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        rows = sum(message.rows for message in messages if isinstance(message, Counted))
        Path(self._path).write_text(str(rows))
