"""Spark's interface of a data source: the schema, batch reads, and what makes a stream.

Rows and options are those of Spark's Kafka source; the rules are in plan.py, read.py and stream_planner.py. Only the
columns of the schema are read, and only a schema given by hand narrows it, since Spark does not pass the columns of a
query to a Python source:

    spark.read.format("kreplog").schema("offset bigint, value binary").option(...).load()
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from kreplog.errors import UsageError
from pyspark_kreplog.broker_sink import BrokerSink
from pyspark_kreplog.options import ReadOptions, includes_headers, parse_batch, parse_stream
from pyspark_kreplog.plan import Pruning, plan
from pyspark_kreplog.read import read
from pyspark_kreplog.shipping import Shipped
from pyspark_kreplog.sink import DirectorySink, Sink
from pyspark_kreplog.sink_options import SinkOptions, check_sink_columns, parse_sink
from pyspark_kreplog.stream import StreamReader
from pyspark_kreplog.transactional_sink import TransactionalSink
from pyspark_kreplog.write import BatchWriter, StreamWriter

if TYPE_CHECKING:
    import pyarrow as pa

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
COLUMNS = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
        StructField("headers", ArrayType(_HEADER)),
    ]
)


class KreplogDataSource(Shipped, DataSource):
    """`spark.read.format("kreplog")` and `spark.readStream.format("kreplog")`: committed records of the partition
    directories below the option `path`, or of a cluster.

    Options, as in Spark's Kafka source where that has them; JSON is by topic, then partition:
      path                              the directory that holds the <topic>-<partition> folders
      kafka.bootstrap.servers           host:port of brokers, by comma, instead of path
      subscribe                         topics, by comma
      subscribePattern                  topics in whose name this regular expression is found, internal ones aside
      assign                            partitions, {"flights": [0, 1]}; exactly one of these three is needed
      startingOffsets                   earliest (the default of a batch read), latest (that of a stream, which alone
                                        may start there), or offsets for all partitions read,
                                        {"flights": {"0": 23, "1": -2}}: -2 is earliest, -1 latest
      startingTimestamp                 ms; wins over times by partition, which win over offsets
      startingOffsetsByTimestamp        ms for all partitions read
      startingOffsetsByTimestampStrategy        error (the default) or latest, where no record is as late as that
      minPartitions                     at least about so many tasks; without it, tasks are cut by bytes
      maxRecordsPerPartition            at most so many records a task
      isolationLevel                    read_committed leaves out the records of aborted transactions and ends at the
                                        last stable offset; read_uncommitted is the default; kafka.isolation.level too
      failOnDataLoss                    true (the default): records that are gone fail the query; false: it goes on
      includeHeaders                    adds the column `headers`; a schema that names it does as well
      localLogDirs                      log directories of brokers, by comma: a task on such a host reads the files of a
                                        replica instead of fetching (see spark-brokers.md)
    Of batch reads alone:
      endingOffsets, endingTimestamp, endingOffsetsByTimestamp          as those above, exclusive; latest by default
      pushdown                          true lets filters leave out what they exclude; see FilteringReader before use
    Of streams alone:
      maxOffsetsPerTrigger              offsets of a batch, shared among partitions by their backlog
      maxBytesPerTrigger                bytes of a batch in the log, shared likewise, rounded up to whole batches; of
                                        brokers 128 bytes count for each offset
      minOffsetsPerTrigger              a batch waits for so many offsets,
      maxTriggerDelay                   but no longer than this since the last one, 15m by default
    A batch DataFrame keeps the ends found at its first action; load() again to see newer records.
    """

    @classmethod
    def name(cls) -> str:
        return "kreplog"

    def schema(self) -> StructType:
        """The columns when none are given by hand; also checks the options, so that load() reports what is wrong."""
        if any(name.startswith("option.") for name in self.options):
            raise UsageError(
                "CREATE TABLE: Spark gives a Python source none of a table's options when it reads the table. Use "
                "CREATE TEMPORARY VIEW name USING kreplog OPTIONS (...), which keeps them"
            )
        headers = includes_headers(self.options)
        return StructType([field for field in COLUMNS if headers or field.name != "headers"])

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_batch(self.options)
        check_columns(schema)
        return (FilteringReader if options.pushdown else Reader)(options, schema.fieldNames())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise UsageError(
                'Save mode Overwrite not allowed for kreplog. The allowed save mode is Append, .mode("append"): '
                "records are only ever added to a log"
            )
        return BatchWriter(self._sink(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        options = parse_stream(self.options)
        check_columns(schema)
        return StreamReader(options, schema.fieldNames())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """The writer of a stream.

        overwrite: the output mode is complete, whose rows are appended as any others, as in Spark's Kafka sink."""
        return StreamWriter(self._sink(schema))

    def _sink(self, schema: StructType) -> Sink:
        """Checks options and columns. Raises UsageError."""
        options = parse_sink(self.options)
        check_sink_columns(schema, options.topic)
        if isinstance(options, SinkOptions):
            return DirectorySink(options)
        return BrokerSink(options) if options.transactional_id is None else TransactionalSink(options)


def check_columns(schema: StructType) -> None:
    """Raise UsageError unless `schema` is a selection of COLUMNS, in any order, with their types."""
    for field in schema:
        if field not in COLUMNS.fields:
            known = ", ".join(f"{each.name} {each.dataType.simpleString()}" for each in COLUMNS)
            nullable = "" if field.nullable else " NOT NULL"
            raise UsageError(
                f"schema column '{field.name} {field.dataType.simpleString()}{nullable}' is not one that can be read: "
                f"choose among {known}; all may be null"
            )
    if not schema.fields or len(set(schema.fieldNames())) != len(schema.fields):
        raise UsageError("the schema must name at least one column, and none twice")


class Reader(Shipped, DataSourceReader):
    """One load(): plain values only, since it is pickled into every task."""

    def __init__(self, options: ReadOptions, columns: list[str]) -> None:
        self._options = options
        self._columns = columns
        self._pruning = Pruning()

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(task) for task in plan(self._options, os.cpu_count() or 1, self._pruning)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark's substitute for a plan without tasks
            return iter(())
        return read(partition.value, self._columns)


class FilteringReader(Reader):
    """The reader under the option pushdown=true, which leaves out partitions and offsets that filters exclude.

    Good for one scan per load() and no more: PySpark 4.3 lets the last scan's filters decide for every scan of the
    same DataFrame, which then misses rows. It also needs spark.sql.python.filterPushdown.enabled = true. Spark applies
    all filters again to what is read.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._pruning = pruning_of(filters)
        return filters


def pruning_of(filters: list[Filter]) -> Pruning:
    """The rows that pass all `filters`, by those on offset, partition and topic."""
    start, stop = 0, 2**63 - 1
    allowed: dict[str, set[Any]] = {}
    for each in filters:
        column = getattr(each, "attribute", ("",))[0]
        if column == "offset" and isinstance(each, (EqualTo, GreaterThan, GreaterThanOrEqual)):
            start = max(start, each.value + isinstance(each, GreaterThan))
        if column == "offset" and isinstance(each, (EqualTo, LessThan, LessThanOrEqual)):
            stop = min(stop, each.value + (not isinstance(each, LessThan)))
        if column in ("partition", "topic") and isinstance(each, (EqualTo, In)):
            values = set(each.value) if isinstance(each, In) else {each.value}
            allowed[column] = allowed.get(column, values) & values
    return Pruning(start, stop, _frozen(allowed.get("partition")), _frozen(allowed.get("topic")))


def _frozen(values: set[Any] | None) -> frozenset[Any] | None:
    return None if values is None else frozenset(values)
