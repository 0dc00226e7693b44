"""Job `export`: topics to Parquet by topic and day, what is new since the last run, each record exactly once.

    python -m kreplog_jobs.export data --output lake
    python -m kreplog_jobs.export broker-1:9092,broker-2:9092 --output lake --command-config client.properties

Runs until it has what was committed at its start, and again from there the next time. The output directory is

    topic=<topic>/day=<yyyy-mm-dd>/batch-<batch>-<number>.parquet   key, value binary, partition int, offset long,
                                                       timestamp timestamp, timestampType int; headers on request
    _manifests/<batch>.json     {"query" (id of the stream), "batch", "files": [{"path", "records",
                                "offsets": {partition: [first, next]}}]}
    _checkpoint/                of the Spark stream: the offsets of each batch, before it is read
    _staging/                   what is being written

A batch is committed when its manifest is there, which is written once all its files are durable in their places. A run
that was killed leaves files without a manifest; the next run deletes them and exports the same offsets under the same
names again. Readers that take the files of manifests alone never see a record twice. Days are of UTC.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import pyarrow.parquet as pq
import typer
from pyspark.sql import Observation
from pyspark.sql import functions as sf

from kreplog.errors import StorageError, UsageError
from kreplog_jobs import job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SCHEMA = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
_HEADERS = ", headers array<struct<key: string, value: binary>>"
_DAY = "date_add(DATE'1970-01-01', CAST(floor(unix_millis(timestamp) / 86400000) AS INT))"


def main(
    source: Annotated[
        str, typer.Argument(help="A directory of <topic>-<partition> folders, or brokers as host:port,host:port.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Directory to write into; made if it is missing.")],
    subscribe: job.Topics = None,
    headers: Annotated[bool, typer.Option("--headers", help="Write the records' headers as well.")] = False,
    max_bytes: Annotated[int, typer.Option(min=1, help="Bytes of log in one batch, about.")] = 1 << 30,
    command_config: job.CommandConfig = None,
    master: job.Master = None,
) -> None:
    """Export new records of topics to Parquet, partitioned by topic and day, each record exactly once."""
    place = job.place(source, job.security_of(source, command_config))
    with Lake(output) as lake:
        before = lake.records()
        _export(lake, place | job.subscription(subscribe), headers, max_bytes, master)
        print(f"{output}: {lake.records() - before:,} records exported, {lake.records():,} in all")


def _export(lake: Lake, source: Mapping[str, str], headers: bool, max_bytes: int, master: str | None) -> None:
    with job.session("export", master) as spark:
        rows = (
            spark.readStream.format("kreplog")
            .schema(_SCHEMA + (_HEADERS if headers else ""))
            .options(startingOffsets="earliest", maxBytesPerTrigger=str(max_bytes))
            .options(**source)
            .load()
        )
        query = rows.writeStream.foreachBatch(lake.write).option("checkpointLocation", str(lake.checkpoint))
        with job.progress(spark, "export"):
            running = query.trigger(availableNow=True).start()
            try:
                running.awaitTermination()
            finally:
                running.stop()


class Lake:
    """The output directory, locked by one run: what of it is committed, and how a batch gets there."""

    def __init__(self, output: Path) -> None:
        """Raises UsageError where another run has the lock, or `output` is no directory."""
        if output.exists() and not output.is_dir():
            raise UsageError(f"{output} is no directory", path=str(output))
        self.checkpoint = output / "_checkpoint"
        self._output = output
        self._manifests = output / "_manifests"
        self._staging = output / "_staging"
        self._manifests.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self._manifests / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)

    def __enter__(self) -> Self:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._clean()
        except BlockingIOError:
            os.close(self._lock)
            raise UsageError(
                f"{self._output}: another export writes there; wait for its end", path=str(self._output)
            ) from None
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def records(self) -> int:
        """The number of records in all committed files."""
        return sum(file["records"] for manifest in self._committed() for file in manifest["files"])

    def _clean(self) -> None:
        """Delete what a killed run has left, unless a manifest is missing. Raises StorageError, UsageError."""
        manifests = list(self._committed())
        self._require_one_stream(manifests)
        shutil.rmtree(self._staging, ignore_errors=True)
        for leftover in self._manifests.glob("*.tmp"):
            leftover.unlink()
        committed = {file["path"] for manifest in manifests for file in manifest["files"]}
        for file in self._output.glob("topic=*/day=*/batch-*.parquet"):
            if str(file.relative_to(self._output)) not in committed:
                file.unlink()

    def _require_one_stream(self, manifests: Sequence[dict[str, Any]]) -> None:
        """Every batch of one stream, up to the last committed, has its manifest, those without records too."""
        if manifests and any(manifest["query"] != self._query() for manifest in manifests):
            raise UsageError(
                f"{self.checkpoint} is not that of the manifests in {self._manifests}: a new stream would give its "
                "batches numbers that are taken. Restore it, or export to another directory",
                path=str(self.checkpoint),
            )
        present = {manifest["batch"] for manifest in manifests}
        commits = self.checkpoint / "commits"
        finished = {int(commit.name) for commit in commits.glob("*") if commit.name.isdecimal()}
        missing = (set(range(max(present, default=-1))) | finished) - present
        if missing:
            raise StorageError(
                f"{self._manifests}: the manifests of batches {', '.join(map(str, sorted(missing)[:10]))} are missing: "
                "restore them; nothing was deleted",
                path=str(self._manifests),
            )

    def _query(self) -> str | None:
        """The id of the stream that the checkpoint is of; None before its first run."""
        try:
            return str(json.loads((self.checkpoint / "metadata").read_text())["id"])
        except FileNotFoundError:
            return None

    def write(self, rows: DataFrame, batch: int) -> None:
        """Export one micro-batch; nothing where it is committed already, which a restarted stream repeats."""
        manifest = self._manifests / f"{batch:020}.json"
        if manifest.exists():
            return
        staging = self._staging / str(batch)
        shutil.rmtree(staging, ignore_errors=True)
        written = Observation()
        rows = rows.withColumn("day", sf.expr(_DAY)).observe(written, sf.count(sf.lit(1)).alias("rows"))
        rows.write.partitionBy("topic", "day").parquet(str(staging))
        staged = sorted(staging.rglob("*.parquet"))
        self._require_all(staged, written.get["rows"])
        files = [self._publish(file, batch, number) for number, file in enumerate(staged)]
        for folder in sorted({(self._output / file["path"]).parent for file in files}):
            _sync(folder)
            _sync(folder.parent)
        _sync(self._output)
        _replace(manifest, json.dumps({"query": self._query(), "batch": batch, "files": files}, indent=1))
        shutil.rmtree(staging, ignore_errors=True)

    def _require_all(self, staged: Sequence[Path], rows: int) -> None:
        """Raise StorageError unless the rows that tasks have written are here: Spark itself does not notice where a
        worker wrote to a disk of its own."""
        found = sum(pq.read_metadata(file).num_rows for file in staged)
        if found != rows:
            raise StorageError(
                f"{self._output} is not shared: tasks have written {rows:,} rows, and {found:,} of them are where this "
                "process runs. Nothing is exported. The driver and all workers must have the same file system there",
                path=str(self._output),
            )

    def _publish(self, staged: Path, batch: int, number: int) -> dict[str, Any]:
        """Move a staged file to its place, durably; its entry in the manifest."""
        table = pq.read_table(staged, columns=["partition", "offset"], partitioning=None)
        spans = table.group_by("partition").aggregate([("offset", "min"), ("offset", "max")]).sort_by("partition")
        folder = self._output / staged.parent.relative_to(self._staging / str(batch))
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / f"batch-{batch:020}-{number:05}.parquet"
        _sync(staged)
        staged.replace(place)
        return {
            "path": str(place.relative_to(self._output)),
            "records": table.num_rows,
            "offsets": {
                str(span["partition"]): [span["offset_min"], span["offset_max"] + 1] for span in spans.to_pylist()
            },
        }

    def _committed(self) -> Iterator[dict[str, Any]]:
        for file in sorted(self._manifests.glob("*.json")):
            try:
                yield json.loads(file.read_text())
            except ValueError as error:
                raise StorageError(
                    f"{file} is no manifest ({error}): restore it; nothing was deleted",
                    path=str(file),
                ) from error


def _replace(path: Path, text: str) -> None:
    """Have `path` hold `text`, all of it or as before, durably."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    _sync(temporary)
    temporary.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    job.run(main)
