"""df.write to a path: columns, options and errors of Spark's Kafka sink, all or nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from kreplog import Log, errors
from kreplog.bulk_append import BulkAppend, atomic_write, murmur2, partition_for
from pyspark_kreplog import commit, commit_record
from pyspark_kreplog.commit import SinkDirectory
from pyspark_kreplog.commit_record import CommitRecord
from pyspark_kreplog.shared_path import PREFIX
from pyspark_kreplog.sink_options import parse_path_sink
from pyspark_kreplog.staging import FOLDER, Staged, driver_identity, is_abandoned, stage
from tests.faults.shim import build, run_driver
from tests.integration.clusters import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
Save = Callable[..., None]
ROOT = Path(__file__).parents[2]
HEADERS = (
    "array(named_struct('key', 'h', 'value', cast('x' as binary)), named_struct('key', '', 'value', null)) headers"
)


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """save(frame, option=...): append the frame to the logs below tmp_path / "data"."""

    def save(frame: DataFrame, mode: str | None = "append", **options: str) -> None:
        writer = frame.write.format("kreplog").option("path", str(tmp_path / "data")).options(**options)
        (writer if mode is None else writer.mode(mode)).save()

    return save


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("shim"))


def values(path: Path) -> list[bytes | None]:
    with Log.open(path, read_only=True) as log:
        return list(log.values())


def left_over(data: Path) -> list[str]:
    own = ("lock", "completed")
    names = [entry.name for entry in (data / FOLDER).iterdir()]
    return sorted(name for name in names if name not in own and not name.startswith(PREFIX))


def test_write_and_read_back(save: Save, spark: SparkSession, data: Path) -> None:
    columns = ["cast(id as string) key", "cast(cast(id as string) as binary) value", "id ignored", HEADERS]
    frame = spark.range(1000).selectExpr(*columns)
    save(frame, topic="t", numPartitions="3")
    save(frame, topic="t", **{"kafka.compression.type": "lz4", "kafka.batch.size": "500"})
    found = []
    for partition in range(3):
        with Log.open(data / f"t-{partition}", read_only=True) as log:
            records = list(log.read())
            assert not log.verify().damages
        assert records
        for record in records:
            assert record.key is not None and record.key == record.value
            assert partition_for(record.key, 3) == partition
            assert record.headers == (("h", b"x"), ("", None))
            found.append(record.key)
    assert sorted(found) == sorted(str(number).encode() for number in range(1000) for _ in range(2))
    back = spark.read.format("kreplog").option("path", str(data)).option("subscribe", "t").load()
    assert back.selectExpr("count(*)", "count(distinct key)", "count(distinct value)").first() == (2000, 1000, 1000)
    assert left_over(data) == []


def test_topics_partitions_and_nulls_of_rows(save: Save, spark: SparkSession, data: Path) -> None:
    rows = [
        ("a", 1, "k", "chosen partition", None),
        ("a", None, "k", "by its key", []),
        ("b", None, None, "no key", [("n", None), ("", b"v")]),
        ("b", None, "", "an empty key", None),
        ("a", 0, None, None, None),
    ]
    schema = "topic string, partition int, key string, value string, headers array<struct<key string, value binary>>"
    save(spark.createDataFrame(rows, schema).coalesce(1), numPartitions="2")
    expected: dict[str, list[tuple[bytes | None, bytes | None, tuple[object, ...]]]] = {
        f"{topic}-{partition}": [] for topic in "ab" for partition in range(2)
    }
    expected["a-1"].append((b"k", b"chosen partition", ()))
    expected[f"a-{partition_for(b'k', 2)}"].append((b"k", b"by its key", ()))
    expected["b-0"].append((None, b"no key", (("n", None), ("", b"v"))))
    expected[f"b-{partition_for(b'', 2)}"].append((b"", b"an empty key", ()))
    expected["a-0"].append((None, None, ()))
    for name, records in expected.items():
        with Log.open(data / name, read_only=True) as log:
            assert [(record.key, record.value, record.headers) for record in log.read()] == records, name
    save(spark.createDataFrame(rows, schema).drop("partition"), topic="c")
    assert len(values(data / "c-0")) == 5


def test_kafkas_murmur2() -> None:
    """The vectors of Kafka's UtilsTest."""
    for key, expected in (
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ):
        assert murmur2(key) == expected
        assert partition_for(key, 7) == (expected & 0x7FFFFFFF) % 7


@pytest.mark.parametrize(
    ("columns", "mode", "options", "message"),
    [
        ("id", "append", {"topic": "t"}, "Required attribute 'value' not found"),
        ("id value", "append", {"topic": "t"}, "value must be a string or binary"),
        ("'v' value, id key", "append", {"topic": "t"}, "key must be a string or binary"),
        ("'v' value", "append", {}, "topic option required when no 'topic' attribute is present"),
        ("'v' value, 1 topic", "append", {}, "topic must be a string"),
        ("'v' value, id partition", "append", {"topic": "t"}, "partition must be an int"),
        (
            "'v' value, 'h' headers",
            "append",
            {"topic": "t"},
            "headers must be an array<struct<key:string,value:binary>>",
        ),
        ("'v' value", "overwrite", {"topic": "t"}, "Save mode Overwrite not allowed for kreplog"),
        ("'v' value", "ignore", {"topic": "t"}, "cannot be written in the"),
        ("'v' value", None, {"topic": "t"}, "cannot be written in the"),
        ("'v' value", "append", {"topic": "no topic"}, "option 'topic': 'no topic' is no legal topic name"),
        ("'v' value", "append", {"topic": "t", "numPartitions": "0"}, "option 'numPartitions' = '0' must be a whole"),
        ("'v' value", "append", {"topic": "t", "path": "s3://b"}, "only local directories"),
        ("'v' value", "append", {"topic": "t", "kafka.compression.type": "x"}, "'x' must be one of none, gzip"),
        ("'v' value", "append", {"topic": "t", "kafka.key.serializer": "x"}, "'kafka.key.serializer' is not supported"),
    ],
)
def test_refused_before_a_task_runs(
    save: Save, spark: SparkSession, data: Path, columns: str, mode: str | None, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException) as refused:
        save(spark.range(5).selectExpr(*columns.split(", ")), mode, **options)
    assert message in str(refused.value)
    assert not data.exists()


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (["'v' value", "nullif('t', 't') topic"], {}, "row 0: null topic present in the data"),
        (["'v' value", "concat('a b', id) topic"], {}, "column topic: 'a b0' is no legal topic name"),
        (
            ["'v' value", "2 partition"],
            {"topic": "t"},
            "topic t, row 0: Invalid partition given with record: 2 is not in the range [0...2). Give a partition that",
        ),
        (["'v' value", "-1 partition"], {"topic": "t"}, "-1 is not in the range"),
        (["'v' value", "'t' topic", "3 partition"], {}, "topic t, row 0: Invalid partition given with record: 3"),
        (["repeat('v', 2000000) value"], {"topic": "t"}, "raise option 'kafka.max.request.size'"),
        (["repeat('v', 2000000) value"], {"topic": "t"}, "topic t, row 0: a record of 2000097 bytes is over the limit"),
        (
            ["'v' value", "array(named_struct('key', string(null), 'value', x'00')) headers"],
            {"topic": "t"},
            "topic t, row 0: a header of the record is null, or has no key",
        ),
    ],
)
def test_refused_rows_leave_nothing(
    save: Save, spark: SparkSession, data: Path, columns: list[str], options: dict[str, str], message: str
) -> None:
    with Log.open(data / "t-1") as log:
        log.append(b"before")
    with pytest.raises(PySparkException) as refused:
        save(spark.range(1).selectExpr(*columns), **options)
    assert message in str(refused.value)
    assert values(data / "t-1") == [b"before"] and sorted(os.listdir(data))[-1] == "t-1"
    assert left_over(data) == []


def test_partition_counts_must_agree(save: Save, spark: SparkSession, data: Path) -> None:
    save(spark.range(9).selectExpr("'v' value"), topic="t", numPartitions="2")
    with pytest.raises(PySparkException, match=r"topic t in .* has 2: leave the option out"):
        save(spark.range(9).selectExpr("'v' value"), topic="t", numPartitions="3")
    assert sorted(os.listdir(data))[-2:] == ["t-0", "t-1"]


def test_a_log_that_is_open_elsewhere(save: Save, spark: SparkSession, data: Path) -> None:
    """Neither another writer's log nor a running broker's directory; the error names the owner."""
    frame = spark.range(9).selectExpr("'v' value", "cast(id % 2 as int) partition")
    with Log.open(data / "t-0"), Log.open(data / "t-1") as log:
        log.append(b"before")
        with pytest.raises(PySparkException) as refused:
            save(frame, topic="t")
        assert f"nothing is committed: t-0: {data / 't-0'} is open for writing in process {os.getpid()}" in str(
            refused.value
        )
    assert values(data / "t-1") == [b"before"] and left_over(data) == []
    save(frame, topic="t")
    assert len(values(data / "t-0")) + len(values(data / "t-1")) == 10

    (data / "meta.properties").touch()
    with pytest.raises(PySparkException, match=r"a broker's data directory, as its meta\.properties says"):
        save(frame, topic="t")


def test_readers_see_all_or_nothing(save: Save, spark: SparkSession, data: Path) -> None:
    """Another process reads while a job is written: the high watermark of a partition moves once."""
    save(spark.range(4).selectExpr("'v' value", "cast(id as int) partition"), topic="t", numPartitions="4")
    watch = f"""
import sys
from kreplog import Log
logs = [Log.open(f"{data}/t-{{n}}", read_only=True) for n in range(4)]
seen = [tuple(log.high_watermark for log in logs)]
print(flush=True)
while min(seen[-1]) < 100:
    marks = tuple(log.high_watermark for log in logs)
    if marks != seen[-1]:
        seen.append(marks)
print([sorted({{marks[n] for marks in seen}}) for n in range(4)])
"""
    with subprocess.Popen([sys.executable, "-c", watch], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        reader.stdout.readline()
        save(spark.range(400_000).selectExpr("'v' value", "cast(id % 4 as int) partition"), topic="t")
        seen = reader.communicate(timeout=60)[0].strip()
    assert seen == str([[1, 100_001]] * 4)


def test_a_killed_worker_leaves_nothing(save: Save, spark: SparkSession, data: Path) -> None:
    def die(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if batch.column("id")[0].as_py() > 50_000:
                os.kill(os.getpid(), signal.SIGKILL)

    save(spark.range(1).selectExpr("'before' value"), topic="t")
    dying = spark.range(100_000).mapInArrow(die, "id bigint").selectExpr("cast(id as string) value")
    with pytest.raises(Exception, match="crashed"):
        save(dying, topic="t")
    assert values(data / "t-0") == [b"before"]
    assert left_over(data) == []


def wait_for_staged_file(data: Path, driver: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + 90
    while driver.poll() is None and time.monotonic() < deadline:
        if list(data.glob(f"{FOLDER}/*/*.batches")):
            return True
        time.sleep(0.05)
    return False


def test_a_killed_driver_leaves_nothing(save: Save, spark: SparkSession, data: Path) -> None:
    """Its staged files are deleted by the next write."""
    program = f"""
import time
from pyspark_kreplog import session
spark = session(master="local[2]", spark_ui_enabled=False)
def slow(batches):
    for batch in batches:
        yield batch
    time.sleep(600)
spark.range(100000).mapInArrow(slow, "id bigint").selectExpr("cast(id as string) value").write.format(
    "kreplog").mode("append").option("path", {str(data)!r}).option("topic", "t").save()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "spark"), str(ROOT)])}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stderr=subprocess.DEVNULL, start_new_session=True
    ) as driver:  # fmt: skip
        staged = wait_for_staged_file(data, driver)
        os.killpg(driver.pid, signal.SIGKILL)
    assert staged
    (job,) = left_over(data)
    eventually(lambda: is_abandoned(data / FOLDER / job), "the killed driver does not end")
    assert not (data / "t-0").exists()
    save(spark.range(3).selectExpr("'v' value"), topic="t")
    assert values(data / "t-0") == [b"v"] * 3 and left_over(data) == []


# Without Spark: a job's parts


def staged_job(data: Path, job: str, count: int = 100, **options: str) -> Staged:
    data.mkdir(exist_ok=True)
    rows = pa.record_batch({"value": [b"%d" % row for row in range(count)]})
    return stage(parse_path_sink({"path": str(data), "topic": "t", **options}), Staged(job), 0, [rows] if count else [])


def test_a_damaged_staged_file(data: Path) -> None:
    """No byte of it reaches a log, nor is anything else of the job committed."""
    sink = SinkDirectory(str(data), 1048588)
    for damage in ("flipped", "short", "gone"):
        job = f"{damage}.{driver_identity()}"
        staged = staged_job(data, job)
        (file,) = (data / FOLDER / job).iterdir()
        content = bytearray(file.read_bytes())
        content[-5] ^= 1
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(content if damage == "flipped" else content[:-5])
        with pytest.raises(errors.StorageError):
            sink.commit([staged])
        sink.abort(job)
        assert values(data / "t-0") == [] and left_over(data) == []
    sink.commit([staged_job(data, f"good.{driver_identity()}")])
    assert len(values(data / "t-0")) == 100


def test_a_committed_job_is_not_to_be_written_again(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Step 2 is reached and step 3 fails: the job has succeeded, and the next start has its rows once, also with a
    smaller message limit."""
    sink = SinkDirectory(str(data), 1048588)

    def fails(prepared: list[BulkAppend]) -> Exception:
        for bulk in prepared:
            bulk.abort()
        patch.setattr(SinkDirectory, "_open", locked)
        return errors.StorageError("the disk is gone")

    def locked(self: SinkDirectory, name: str, *, committed: object = None) -> Log:
        raise errors.LogLockedError("open elsewhere")

    with monkeypatch.context() as patch:
        patch.setattr(commit, "_complete_prepared", fails)
        sink.commit([staged_job(data, f"job.{driver_identity()}")])
    assert "is committed, and not complete yet" in caplog.text
    assert values(data / "t-0") == []
    with Log.open(data / "t-0"), pytest.raises(errors.LogLockedError, match=r"is committed.*do not write it again"):
        sink.recover()
    SinkDirectory(str(data), 1000).recover()
    assert len(values(data / "t-0")) == 100 and left_over(data) == []


@pytest.mark.parametrize("renamed", [False, True])
def test_a_commit_record_that_cannot_be_made_durable(
    data: Path, monkeypatch: pytest.MonkeyPatch, renamed: bool
) -> None:
    """The job fails, and nobody commits it later, whether or not its record had its name already."""
    sink = SinkDirectory(str(data), 1048588)
    right = atomic_write

    def fails(path: str, content: bytes) -> None:
        if renamed:
            right(path, content)
        raise errors.StorageError("the directory cannot be synced")

    with monkeypatch.context() as patch:
        patch.setattr(commit_record, "atomic_write", fails)
        with pytest.raises(errors.StorageError, match="cannot be synced"):
            sink.commit([staged_job(data, f"job.{driver_identity()}")])
    sink.abort(f"job.{driver_identity()}")
    sink.recover()
    assert values(data / "t-0") == [] and left_over(data) == []


def test_a_topic_is_whole_from_its_first_partition_on(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that dies while it creates the partitions of a topic leaves one that the next write completes."""
    sink = SinkDirectory(str(data), 1048588)
    right = SinkDirectory._open
    created: list[str] = []

    def dies(self: SinkDirectory, name: str, *, committed: CommitRecord | None = None) -> Log:
        if len(created) == 2:
            raise errors.StorageError("the driver dies here")
        created.append(name)
        return right(self, name, committed=committed)

    with monkeypatch.context() as patch:
        patch.setattr(SinkDirectory, "_open", dies)
        with pytest.raises(errors.StorageError, match="dies here"):
            sink.commit([staged_job(data, f"first.{driver_identity()}", numPartitions="4")])
    assert created == ["t-3", "t-2"]
    sink.commit([staged_job(data, f"second.{driver_identity()}", numPartitions="4")])
    assert sum(len(values(data / f"t-{partition}")) for partition in range(4)) == 100


def test_a_topic_that_grew_meanwhile(data: Path) -> None:
    staged = staged_job(data, f"job.{driver_identity()}", numPartitions="2")
    Log.open(data / "t-4").close()
    with pytest.raises(errors.UsageError, match="had 2 partitions when rows were placed, and has 5 now"):
        SinkDirectory(str(data), 1048588).commit([staged])


def test_a_job_without_rows(data: Path) -> None:
    SinkDirectory(str(data), 1048588).commit([staged_job(data, f"job.{driver_identity()}", 0), None])
    assert os.listdir(data) == [FOLDER] and left_over(data) == []


def test_a_dead_driver_that_is_not_reaped_is_abandoned(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        host, boot, *_ = driver_identity().split("-")
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        job = tmp_path / f"job.{host}-{boot}-{process.pid}-{fields[19]}"
        job.mkdir()
        assert not is_abandoned(job)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert is_abandoned(job)


def test_who_is_abandoned(tmp_path: Path) -> None:
    host, boot, pid, start = driver_identity().split("-")
    now = os.stat(tmp_path).st_mtime
    for name, later, expected in (
        (f"job.{host}-{boot}-{pid}-{start}", 1e9, False),
        (f"job.{host}-{boot}-{pid}-{int(start) + 1}", 0, True),
        (f"job.{host}-{'0' * len(boot)}-{pid}-{start}", 0, True),
        (f"job.{host}-{boot}-{2**22 + 1}-{start}", 0, True),
        (f"job.other-{boot}-{pid}-{start}", 3600, False),
        (f"job.other-{boot}-{pid}-{start}", 25 * 3600, True),
    ):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        assert is_abandoned(folder, now + later) is expected, (name, later)


def killed_sinks(folder: Path, shim: Path, first: int, stride: int, figure: Callable[[str], None]) -> int:
    output = run_driver("sink_commit", folder, first, stride, shim=shim, timeout_s=3600)
    line = output.strip().splitlines()[-1]
    kills, committed, in_recovery = (int(part.partition("=")[2]) for part in line.split())
    assert 0 < committed < kills and in_recovery > 0, output
    figure(line)
    return kills + in_recovery


def test_killed_at_file_calls(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    assert killed_sinks(folder, shim, 3, 24, figure) > 15


@pytest.mark.long
def test_killed_at_every_file_call(folder: Path, shim: Path, figure: Callable[[str], None]) -> None:
    assert killed_sinks(folder, shim, 1, 1, figure) > 300
