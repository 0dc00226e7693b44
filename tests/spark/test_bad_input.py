"""Bad input to sources and sinks: one message in the driver that names what is wrong, and nothing written."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from kreplog import Log
from kreplog.errors import KreplogError, StorageError, UsageError
from pyspark_kreplog import kafka_options, sink_options
from pyspark_kreplog import options as source_options
from pyspark_kreplog.commit import SinkDirectory
from pyspark_kreplog.options import parse_batch
from pyspark_kreplog.plan import plan
from pyspark_kreplog.read import read
from pyspark_kreplog.shipping import dumps
from pyspark_kreplog.sink_options import parse_path_sink
from pyspark_kreplog.source import COLUMNS, KreplogDataSource
from pyspark_kreplog.staging import Staged, driver_identity, stage

if TYPE_CHECKING:
    from tests.spark.conftest import Load

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
COUNTS = ("0", "-1", "1.5", "many", "", "9" * 30)
BY_PARTITION = (
    "[]",
    "5",
    "{",
    '{"t": 5}',
    '{"t": {"a": 5}}',
    '{"t": {"0": "5"}}',
    '{"t": {"0": true}}',
    '{"a b": {"0": 5}}',
)
OFFSETS = ("", "soon", *BY_PARTITION, '{"t": {"0": -3}}')
TIMES = ("", "-1", "1.5", "now", "9" * 30)
BOOLEANS = ("", "yes", "1")

WRONG_FOR_SOURCES: dict[str, tuple[str, ...]] = {
    "path": ("", "s3://bucket/data", "hdfs:/data"),
    "subscribe": ("", " , ", "a b", "t,a/b", "x" * 300),
    "subscribePattern": ("", "(", "*"),
    "assign": ("", "{", "[]", "{}", '{"t": 5}', '{"t": ["0"]}', '{"t": [-1]}', '{"t": [true]}', '{"a b": [0]}'),
    "startingOffsets": OFFSETS,
    "endingOffsets": (*OFFSETS, "earliest", '{"t": {"0": -2}}'),
    "startingTimestamp": TIMES,
    "endingTimestamp": TIMES,
    "startingOffsetsByTimestamp": (*BY_PARTITION, '{"t": {"0": -1}}'),
    "endingOffsetsByTimestamp": (*BY_PARTITION, '{"t": {"0": -1}}'),
    "startingOffsetsByTimestampStrategy": ("", "earliest"),
    "minPartitions": COUNTS,
    "maxRecordsPerPartition": COUNTS,
    "failOnDataLoss": BOOLEANS,
    "includeHeaders": BOOLEANS,
    "pushdown": BOOLEANS,
    "maxOffsetsPerTrigger": COUNTS,
    "minOffsetsPerTrigger": COUNTS,
    "maxBytesPerTrigger": COUNTS,
    "maxTriggerDelay": ("", "soon", "5 weeks", "-5s", "1.5h"),
    "isolationLevel": ("", "committed", "serializable"),
    "localLogDirs": ("relative", "/data,other", "s3://bucket"),
}

OF_BROKERS = ("-1", "1.5", "many", "", "9" * 30)
WRONG_FOR_BROKER_SOURCES: dict[str, tuple[str, ...]] = {
    "kafka.isolation.level": ("", "serializable"),
    "kafka.security.protocol": ("", "TLS"),
    "kafka.fetch.min.bytes": OF_BROKERS,
    "kafka.fetch.max.wait.ms": (*OF_BROKERS, "30000"),
    "kafka.fetch.max.bytes": (*OF_BROKERS, "0"),
    "kafka.max.partition.fetch.bytes": (*OF_BROKERS, "0"),
    "kafka.request.timeout.ms": (*OF_BROKERS, "0"),
    "kafka.default.api.timeout.ms": (*OF_BROKERS, "0"),
}
NAMES = {"kafka.bootstrap.servers", "kafka.group.id", "kafka.client.id", "kafka.client.rack"}
"""Of brokers, groups, clients and racks: whether they are right is known to the cluster alone."""

WRONG_FOR_SINKS: dict[str, tuple[str, ...]] = {
    "path": ("", "s3://bucket/data", "hdfs:/data"),
    "topic": ("", "a b", "a/b", "x" * 300, ".."),
    "numPartitions": (*COUNTS, "10001"),
    "kafka.compression.type": ("", "best", "lz4,zstd"),
    "kafka.batch.size": (*COUNTS, str(2**31)),
    "kafka.max.request.size": (*COUNTS, "100", str(2**31)),
}
WRONG_FOR_BROKER_SINKS: dict[str, tuple[str, ...]] = {
    "topic": WRONG_FOR_SINKS["topic"],
    "kafka.bootstrap.servers": ("", "localhost", ":9092", "localhost:0", "localhost:99999", "localhost:9092,", "h:9 2"),
    "kafka.compression.type": WRONG_FOR_SINKS["kafka.compression.type"],
    "kafka.batch.size": (*COUNTS, str(2**31)),
    "kafka.max.request.size": (*COUNTS, "100", str(2**31)),
    "kafka.request.timeout.ms": COUNTS,
    "kafka.delivery.timeout.ms": COUNTS,
    "kafka.max.block.ms": COUNTS,
    "kafka.transactional.id": ("", "x" * 40_000),
    "kafka.transaction.timeout.ms": (*COUNTS, "999"),
    "kafka.acks": ("", "2", "some"),
    "kafka.enable.idempotence": BOOLEANS,
    "kafka.security.protocol": ("", "TLS"),
}
SELECTED = {name.lower() for name in source_options._CHOICES}


def cases(wrong: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(name, value) for name, values in wrong.items() for value in values]


def test_every_option_is_in_the_matrix() -> None:
    """An option that is added has its wrong values here."""
    of_sources = {*source_options._SHARED, *source_options._BATCH_ONLY, *source_options._STREAM_ONLY}
    assert of_sources == WRONG_FOR_SOURCES.keys()
    assert WRONG_FOR_BROKER_SOURCES.keys() | NAMES == kafka_options._USED
    assert set(sink_options._OURS) == WRONG_FOR_SINKS.keys()
    assert set(sink_options._BROKERS) == WRONG_FOR_BROKER_SINKS.keys() | {"kafka.client.id"}


@pytest.mark.parametrize(("name", "value"), cases(WRONG_FOR_SOURCES))
def test_wrong_option_of_a_source(tmp_path: Path, name: str, value: str) -> None:
    options = {"path": str(tmp_path), "subscribe": "t"}
    if name.lower() in SELECTED:
        del options["subscribe"]
    source = KreplogDataSource({key.lower(): text for key, text in (options | {name: value}).items()})
    makers: list[Callable[[StructType], object]] = []
    if name not in source_options._STREAM_ONLY:
        makers.append(source.reader)
    if name not in source_options._BATCH_ONLY:
        makers.append(source.streamReader)
    for make in makers:
        with pytest.raises(UsageError) as refused:
            make(COLUMNS)
        said = str(refused.value)
        assert name in said and "\n" not in said, said


@pytest.mark.parametrize(("name", "value"), cases(WRONG_FOR_BROKER_SOURCES))
def test_wrong_option_of_a_source_of_brokers(name: str, value: str) -> None:
    source = KreplogDataSource({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", name: value})
    for make in (source.reader, source.streamReader):
        with pytest.raises(UsageError, match=f"option '{name}'"):
            make(COLUMNS)


@pytest.mark.parametrize("name", [*kafka_options._REFUSED])
def test_options_of_a_source_that_are_refused(name: str) -> None:
    source = KreplogDataSource({"path": "/data", "subscribe": "t", name: "x"})
    for make in (source.reader, source.streamReader):
        with pytest.raises(UsageError, match=f"option '{name}' is not supported"):
            make(COLUMNS)


def struct(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


VALUE = struct(value=BinaryType())


def refused_by_a_sink(options: dict[str, str], schema: StructType = VALUE) -> str:
    """What writers of both kinds say of it, before they make a directory or connect."""
    source = KreplogDataSource({key.lower(): text for key, text in options.items()})
    said = set()
    for make in (source.writer, source.streamWriter):
        with pytest.raises(UsageError) as refused:
            make(schema, overwrite=False)
        said.add(str(refused.value))
    (message,) = said
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("name", "value"), cases(WRONG_FOR_SINKS))
def test_wrong_option_of_a_sink(tmp_path: Path, name: str, value: str) -> None:
    options = {"path": str(tmp_path / "data"), "topic": "t", name: value}
    assert f"option '{name}'" in refused_by_a_sink(options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("name", "value"), cases(WRONG_FOR_BROKER_SINKS))
def test_wrong_option_of_a_sink_to_brokers(name: str, value: str) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t", name: value}
    assert f"option '{name}'" in refused_by_a_sink(options)


@pytest.mark.parametrize("name", [*sink_options._REFUSED])
def test_options_of_a_sink_that_are_refused(tmp_path: Path, name: str) -> None:
    for options in ({"kafka.bootstrap.servers": "127.0.0.1:1"}, {"path": str(tmp_path / "data")}):
        assert f"option '{name}' is not supported" in refused_by_a_sink(options | {"topic": "t", name: "x"})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("to", ["path", "kafka.bootstrap.servers"])
@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (struct(key=BinaryType()), "Required attribute 'value' not found"),
        (StructType([*struct(value=BinaryType()), *struct(value=StringType())]), "column value is there twice"),
        (struct(value=IntegerType()), "value must be a string or binary"),
        (struct(value=BinaryType(), key=IntegerType()), "key must be a string or binary"),
        (struct(value=BinaryType(), partition=LongType()), "partition must be an int"),
        *(
            (struct(value=BinaryType(), headers=kind), "headers must be an array<struct<key:string,value:binary>>")
            for kind in (
                MapType(StringType(), BinaryType()),
                ArrayType(struct(key=StringType(), value=StringType())),
                ArrayType(struct(name=StringType(), value=BinaryType())),
            )
        ),
    ],
)
def test_wrong_schema_of_a_sink(tmp_path: Path, to: str, schema: StructType, message: str) -> None:
    options = {to: str(tmp_path / "data") if to == "path" else "127.0.0.1:1", "topic": "t"}
    assert message in refused_by_a_sink(options, schema)
    del options["topic"]
    assert "topic option required" in refused_by_a_sink(options)
    assert "topic must be a string" in refused_by_a_sink(options, struct(value=BinaryType(), topic=IntegerType()))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "field",
    [
        StructField("value", StringType()),
        StructField("offset", IntegerType()),
        StructField("nothing", BinaryType()),
        StructField("value", BinaryType(), nullable=False),
    ],
)
def test_wrong_schema_of_a_source(field: StructField) -> None:
    source = KreplogDataSource({"path": "/data", "subscribe": "t"})
    for make in (source.reader, source.streamReader):
        with pytest.raises(UsageError, match=f"schema column '{field.name} .*is not one that can be read"):
            make(StructType([field]))


# Damage and what vanishes


def fill(path: Path, count: int = 1000) -> None:
    with Log.open(path) as log:
        log.append_many([b"%d" % number for number in range(count)])


def damage(path: Path) -> None:
    """Flips a bit in the middle of the partition's only segment."""
    (segment,) = path.glob("*.log")
    with open(segment, "r+b") as file:
        file.seek(segment.stat().st_size // 2 if segment.stat().st_blocks == 0 else 200)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def test_a_damaged_segment_is_named(load: Load, tmp_path: Path) -> None:
    fill(tmp_path / "t-0")
    damage(tmp_path / "t-0")
    with pytest.raises(PySparkException, match=r"CorruptBatchError: .*t-0") as failed:
        load().collect()
    assert "Traceback" in str(failed.value)  # of the task, and behind the message nothing of Spark's own


def test_a_timestamp_that_spark_cannot_have(tmp_path: Path) -> None:
    """As of a producer that takes nanoseconds for milliseconds. The other columns can be read."""
    with Log.open(tmp_path / "t-0") as log:
        log.append(b"a")
        log.append(b"b", timestamp_ms=1_700_000_000 * 10**9)
    (task,) = plan(parse_batch({"path": str(tmp_path), "subscribe": "t"}), 2)
    with pytest.raises(
        UsageError, match=r"^t-0: a timestamp in the batch at offset 1 does not fit .*: \.schema\("
    ) as bad:
        list(read(task, ["value", "timestamp"]))
    assert (bad.value.partition, bad.value.offset) == ("t-0", 1)
    (rows,) = read(task, ["value"])
    assert rows.to_pydict() == {"value": [b"a", b"b"]}


@pytest.mark.parametrize("gone", ["partition", "directory"])
def test_a_directory_that_vanishes_after_the_plan(tmp_path: Path, gone: str) -> None:
    fill(tmp_path / "data" / "t-0")
    (task,) = plan(parse_batch({"path": str(tmp_path / "data"), "subscribe": "t"}), 1)
    shutil.rmtree(tmp_path / "data" / ("t-0" if gone == "partition" else ""))
    with pytest.raises(KreplogError, match=str(tmp_path / "data" / "t-0")):
        list(read(task, ["value"]))


def test_a_directory_that_is_not_there(load: Load, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="missing"):
        load(path=str(tmp_path / "missing")).collect()


def staged_job(data: Path) -> Staged:
    data.mkdir(exist_ok=True)
    rows = pa.record_batch({"value": [b"%d" % row for row in range(10)]})
    options = parse_path_sink({"path": str(data), "topic": "t"})
    return stage(options, Staged(f"job.{driver_identity()}"), 0, [rows])


def test_a_sink_whose_directory_vanishes(tmp_path: Path) -> None:
    data = tmp_path / "data"
    staged = staged_job(data)
    shutil.rmtree(data)
    with pytest.raises(KreplogError):
        SinkDirectory(str(data), 1048588).commit([staged])
    names = [name for _, _, files in os.walk(data) for name in files]
    assert [name for name in names if name.endswith(".log") and (data / "t-0" / name).stat().st_size] == []


def test_a_sink_that_may_not_write(tmp_path: Path) -> None:
    """A file stands where the directory should."""
    (tmp_path / "data").write_text("")
    source = KreplogDataSource({"path": str(tmp_path / "data"), "topic": "t"})
    for make in (source.writer, source.streamWriter):
        with pytest.raises(StorageError, match=f"option 'path' = '{tmp_path / 'data'}': the directory cannot be made"):
            make(VALUE, overwrite=False)


# Workers


WORKER = """
import sys
from importlib.machinery import ModuleSpec

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("kreplog", "pyspark_kreplog"):
            raise ModuleNotFoundError(f"No module named {name!r}")

if sys.argv[1] == "missing":
    sys.meta_path.insert(0, Missing())
else:
    import kreplog
    kreplog.__version__ = sys.argv[1]
from pyspark import cloudpickle
cloudpickle.load(sys.stdin.buffer)
"""


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("missing", r"ImportError: kreplog cannot be imported by this Spark worker \(No module named 'kreplog'\): pip"),
        ("9.9.9", "ImportError: this Spark worker has kreplog 9.9.9 and the driver has .*: pip install 'kreplog"),
    ],
)
def test_a_worker_without_the_package_or_with_another_version(tmp_path: Path, version: str, message: str) -> None:
    """What Spark sends to workers, in a process like theirs."""
    source = KreplogDataSource({"path": str(tmp_path), "subscribe": "t", "topic": "t"})
    for made in (
        *(source.reader(VALUE), source.streamReader(VALUE)),
        *(source.writer(VALUE, overwrite=False), source.streamWriter(VALUE, overwrite=False)),
    ):
        assert type(pickle.loads(dumps(made))) is type(made)
    worker = subprocess.run(
        [sys.executable, "-c", WORKER, version],
        input=dumps(made),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "spark"), str(ROOT)])},
        capture_output=True,
        check=False,
    )
    assert worker.returncode == 1
    assert re.search(message, worker.stderr.decode().splitlines()[-1])


SITE = """
import sys
if "pyspark.worker" in sys.orig_argv:  # the process that forks the workers of tasks
    class Missing:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("kreplog", "pyspark_kreplog"):
                raise ModuleNotFoundError(f"No module named {name!r}")
    sys.meta_path.insert(0, Missing())
"""
DRIVER = """
import sys
from pyspark.errors import PySparkException
from pyspark_kreplog import session

def of(run):
    try:
        run()
    except Exception as error:
        print(str(error).replace("\\n", " "), flush=True)

spark = session(master="local[1]", spark_ui_enabled=False)
spark.sparkContext.setLogLevel("OFF")
source, target = {"path": sys.argv[1], "subscribe": "t"}, {"path": sys.argv[2], "topic": "t"}
of(lambda: spark.read.format("kreplog").options(**source).load().collect())
of(lambda: spark.range(1).selectExpr("'v' value").write.format("kreplog").mode("append").options(**target).save())
rows = spark.readStream.format("kreplog").options(startingOffsets="earliest", **source).load()
sink = rows.select("value").writeStream.format("kreplog").options(checkpointLocation=sys.argv[2] + "-c", **target)
of(lambda: sink.trigger(availableNow=True).start().awaitTermination())
"""


@pytest.mark.long
def test_spark_reports_a_worker_without_the_package(tmp_path: Path) -> None:
    fill(tmp_path / "source" / "t-0", 3)
    (tmp_path / "sitecustomize.py").write_text(SITE)
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, str(tmp_path / "source"), str(tmp_path / "data")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "spark"), str(ROOT)])},
        capture_output=True,
        text=True,
        check=True,
    )
    said = done.stdout.splitlines()
    assert len(said) == 3
    for message in said:
        assert message.count("kreplog cannot be imported by this Spark worker (No module named 'kreplog'): pip") == 1
    assert [name for name in os.listdir(tmp_path / "data") if name.startswith("t-")] == []
