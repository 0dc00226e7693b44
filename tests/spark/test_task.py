"""One task by itself, as a Spark worker runs it, but without Spark."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest

import kreplog
from kreplog.errors import OffsetOutOfRangeError
from pyspark_kreplog.options import parse_batch as parse
from pyspark_kreplog.plan import Task, plan
from pyspark_kreplog.read import ARROW_TYPES, read


def task_of(path: Path, **options: str) -> Task:
    (task,) = plan(parse({"path": str(path), "subscribe": "t"} | options), 1)
    return task


def fill(path: Path, count: int) -> None:
    with kreplog.Log.open(path / "t-0", kreplog.LogConfig(segment_bytes=256 << 10)) as log:
        log.append_many([b"%d" % i for i in range(count)])


@pytest.mark.parametrize(
    "columns", [list(ARROW_TYPES), ["topic"], ["offset", "partition"], ["value", "topic", "offset"]]
)
def test_columns_are_exactly_those(tmp_path: Path, columns: list[str]) -> None:
    fill(tmp_path, 10)
    task = task_of(tmp_path, startingOffsets='{"t": {"0": 3}}', endingOffsets='{"t": {"0": 8}}')
    table = pa.Table.from_batches(read(task, columns))
    assert table.schema.equals(pa.schema([pa.field(name, ARROW_TYPES[name]) for name in columns]))
    known = {
        name: table.column(name).to_pylist() for name in columns if name in ("topic", "partition", "offset", "value")
    }
    for at in range(5):
        row = {"topic": "t", "partition": 0, "offset": at + 3, "value": b"%d" % (at + 3)}
        assert all(values[at] == row[name] for name, values in known.items())
    assert table.num_rows == 5


@pytest.mark.parametrize("columns", [["value"], ["offset"]])
def test_deleted_under_the_read(tmp_path: Path, columns: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """The reader goes on behind the gap, showing no record twice; the strict one fails and names the offsets."""
    fill(tmp_path, 200_000)
    strict, lenient = task_of(tmp_path), task_of(tmp_path, failOnDataLoss="false")
    batches, doomed = read(lenient, columns), read(strict, columns)
    seen = [*next(batches).column(0).to_pylist()]
    next(doomed)
    with kreplog.Log.open(tmp_path / "t-0") as log:
        log.delete_records_before(190_000)
    with caplog.at_level(logging.WARNING, "pyspark_kreplog"):
        for batch in batches:
            seen += batch.column(0).to_pylist()
    offsets = [int(value) for value in seen]
    gap = next(i for i in range(1, len(offsets)) if offsets[i] != offsets[i - 1] + 1)
    assert offsets == [*range(gap), *range(190_000, 200_000)]
    assert f"offsets {gap} to 190000 were deleted after this read was planned" in caplog.text
    with pytest.raises(OffsetOutOfRangeError, match=r"to 190000 were deleted .* set the option failOnDataLoss"):
        list(doomed)


def test_a_high_watermark_that_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may step back for a moment when the leader changes; that alone loses nothing."""
    config = kreplog.LogConfig(replicated=True)
    with kreplog.Log.open(tmp_path / "t-0", config) as log:
        log.append_many([b"x"] * 10)
        log.advance_high_watermark(10)
        task = task_of(tmp_path)
        log.truncate_to(0)
        waits: list[float] = []

        def catch_up(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 2:
                log.append_many([b"x"] * 10)
                log.advance_high_watermark(10)

        monkeypatch.setattr("pyspark_kreplog.log_directory.sleep", catch_up)
        assert sum(batch.num_rows for batch in read(task, ["value"])) == 10
        assert len(waits) == 2
        log.truncate_to(0)
        with pytest.raises(OffsetOutOfRangeError, match="t-0: offsets 0 to 10, committed when this read was planned"):
            list(read(task, ["value"]))
