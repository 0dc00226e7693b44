"""The job `export`: every record once, day by day, over runs that go on, fail at each step, or are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import kreplog
from flights.source import TOPIC, events
from kreplog.errors import StorageError, UsageError
from kreplog_jobs import export
from tests.integration.clusters import eventually

pytestmark = pytest.mark.spark

DAY_MS = 86_400_000
ROOT = Path(__file__).parent.parent.parent.parent


def append(directory: Path, *numbers: int, topic: str = "t", partition: int = 0) -> None:
    """One record for each number, on the day of that number."""
    with kreplog.Log.open(directory / f"{topic}-{partition}") as log:
        for number in numbers:
            log.append(b"%d" % number, key=b"k", timestamp_ms=number * DAY_MS + 7, headers={"h": b"%d" % number})


def manifests(output: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted((output / "_manifests").glob("*.json"))]


def exported(output: Path) -> list[tuple[str, str, int, int, bytes]]:
    """(topic, day, partition, offset, value) of what manifests name, which must say the truth of each file."""
    found = []
    named = set()
    for manifest in manifests(output):
        for file in manifest["files"]:
            topic, day = (part.partition("=")[2] for part in Path(file["path"]).parts[:2])
            rows = pq.read_table(output / file["path"], partitioning=None).to_pylist()
            spans: dict[str, list[int]] = {}
            for row in rows:
                span = spans.setdefault(str(row["partition"]), [row["offset"], row["offset"] + 1])
                span[:] = min(span[0], row["offset"]), max(span[1], row["offset"] + 1)
                found.append((topic, day, row["partition"], row["offset"], row["value"]))
            assert (file["records"], file["offsets"]) == (len(rows), spans)
            named.add(output / file["path"])
    assert set(output.glob("topic=*/day=*/*.parquet")) == named
    return sorted(found)


def day(number: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(number * DAY_MS / 1000))


def test_every_flight_once(
    spark: SparkSession, topic: Path, flights: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    export.main(str(topic), tmp_path / "lake", max_bytes=400_000)
    assert f"{len(flights):,} records exported" in capsys.readouterr().out
    assert len(manifests(tmp_path / "lake")) > 1
    counts = [0] * 4
    expected = []
    for event in events(flights):
        when = time.strftime("%Y-%m-%d", time.gmtime(event.timestamp_ms / 1000))
        expected.append((TOPIC, when, event.partition, counts[event.partition], event.value))
        counts[event.partition] += 1
    assert exported(tmp_path / "lake") == sorted(expected)


def test_the_next_run_takes_what_is_new(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "lake"
    append(tmp_path / "data", 1, 1, 2)
    append(tmp_path / "data", 5, topic="u", partition=3)
    export.main(str(tmp_path / "data"), output, headers=True)
    (first,) = (file for file in manifests(output)[0]["files"] if file["offsets"] == {"0": [2, 3]})
    assert pq.read_table(output / first["path"], partitioning=None).column("headers").to_pylist() == [
        [{"key": "h", "value": b"2"}]
    ]
    append(tmp_path / "data", 2, 3)
    export.main(str(tmp_path / "data"), output, headers=True)
    assert "2 records exported, 6 in all" in capsys.readouterr().out
    export.main(str(tmp_path / "data"), output, headers=True)
    assert "0 records exported, 6 in all" in capsys.readouterr().out
    assert exported(output) == [
        *(("t", day(number), 0, offset, b"%d" % number) for offset, number in enumerate([1, 1, 2, 2, 3])),
        ("u", day(5), 3, 0, b"5"),
    ]


class Killed(Exception):
    """Of a step that is not finished."""


def fail_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, after: bool) -> None:
    right: Callable[..., Any] = getattr(owner, name)

    def wrong(*arguments: Any, **options: Any) -> Any:
        if after:
            right(*arguments, **options)
        raise Killed(name)

    monkeypatch.setattr(owner, name, wrong)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("owner, name", [(export.Lake, "_publish"), (export, "_replace"), (export, "_sync")])
def test_a_run_that_fails_at_a_step_is_made_up_for(
    spark: SparkSession, tmp_path: Path, owner: Any, name: str, after: bool
) -> None:
    output = tmp_path / "lake"
    append(tmp_path / "data", 1, 2, 3)
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, owner, name, after)
        with pytest.raises(Exception, match="Killed"):
            export.main(str(tmp_path / "data"), output)
    append(tmp_path / "data", 4)
    export.main(str(tmp_path / "data"), output)
    assert exported(output) == [("t", day(number), 0, number - 1, b"%d" % number) for number in (1, 2, 3, 4)]


def test_a_second_run_beside_the_first_is_refused(tmp_path: Path) -> None:
    with export.Lake(tmp_path / "lake"), pytest.raises(UsageError, match="another export writes there"):
        export.main(str(tmp_path / "data"), tmp_path / "lake")


def test_manifests_without_their_checkpoint_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    append(tmp_path / "data", 1)
    export.main(str(tmp_path / "data"), tmp_path / "lake")
    shutil.rmtree(tmp_path / "lake" / "_checkpoint")
    with pytest.raises(UsageError, match="_checkpoint is not that of the manifests"):
        export.main(str(tmp_path / "data"), tmp_path / "lake")
    export.main(str(tmp_path / "data"), tmp_path / "other")
    shutil.copytree(tmp_path / "other" / "_checkpoint", tmp_path / "lake" / "_checkpoint")
    with pytest.raises(UsageError, match="_checkpoint is not that of the manifests"):
        export.main(str(tmp_path / "data"), tmp_path / "lake")


def test_a_manifest_that_is_missing_deletes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    for number in (1, 2):
        append(tmp_path / "data", number)
        export.main(str(tmp_path / "data"), tmp_path / "lake")
    files = sorted((tmp_path / "lake").glob("topic=*/day=*/*.parquet"))
    assert len(files) == 2
    for batch in (0, 1):
        manifest = tmp_path / "lake" / "_manifests" / f"{batch:020}.json"
        text = manifest.read_text()
        manifest.unlink()
        with pytest.raises(StorageError, match=f"batches {batch} are missing"):
            export.main(str(tmp_path / "data"), tmp_path / "lake")
        assert sorted((tmp_path / "lake").glob("topic=*/day=*/*.parquet")) == files
        manifest.write_text(text)


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "lake" / "_manifests").mkdir(parents=True)
    (tmp_path / "lake" / "_manifests" / f"{0:020}.json").write_text("{")
    with pytest.raises(StorageError, match=r"0{20}\.json is no manifest"):
        export.main(str(tmp_path / "data"), tmp_path / "lake")


STEPS = (
    "_checkpoint/offsets/[0-9]*",
    "_staging/*",
    "topic=*/day=*/*.parquet",
    "_manifests/*.json",
    "_checkpoint/commits/[0-9]*",
)
"""What the steps of a batch leave, in this order."""


@pytest.mark.long
def test_killed_runs_are_made_up_for(topic: Path, flights: Any, tmp_path: Path) -> None:
    """kill -9 of driver, Java and workers as soon as a step of a batch shows, each in turn; then a run to the end."""
    output = tmp_path / "lake"
    command = [sys.executable, "-m", "kreplog_jobs.export", str(topic), "-o", str(output), "--max-bytes", "400000"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "spark", ROOT / "spark/jobs")))}
    killed = 0
    for step in STEPS * 2:
        before = {*output.glob(step)}
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, env=environment,
        )  # fmt: skip

        def shows(process: subprocess.Popen[bytes] = process, step: str = step, before: set[Path] = before) -> bool:
            return process.poll() is not None or not before.issuperset(output.glob(step))

        eventually(shows, f"no step of a batch leaves {step}", within_s=240)
        killed += process.poll() is None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert killed > len(STEPS), "runs came to an end before they could be killed"
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found = exported(output)
    assert len(found) == len(flights)
    assert len({(partition, offset) for _, _, partition, offset, _ in found}) == len(flights)


def test_files_that_workers_wrote_elsewhere(tmp_path: Path) -> None:
    """Spark's own commit succeeds then, without them."""
    pq.write_table(pa.table({"value": [b"1", b"2"]}), tmp_path / "part.parquet")
    with export.Lake(tmp_path / "lake") as lake:
        lake._require_all([tmp_path / "part.parquet"], 2)
        with pytest.raises(StorageError, match=r"lake is not shared: tasks have written 3 rows, and 2 of them"):
            lake._require_all([tmp_path / "part.parquet"], 3)
