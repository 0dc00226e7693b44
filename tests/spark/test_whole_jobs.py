"""No plan ends within a sink's job: it shows the job in all partitions or in none, also while it becomes visible."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kreplog
from kreplog.errors import StorageError
from kreplog.types import TopicPartition
from pyspark_kreplog import commit, whole_jobs
from pyspark_kreplog.commit_record import COMMIT_NAME, decode, encode_to
from pyspark_kreplog.options import parse_batch, parse_stream
from pyspark_kreplog.plan import plan
from pyspark_kreplog.sink_options import parse_path_sink
from pyspark_kreplog.staging import FOLDER, Staged, new_job, stage
from pyspark_kreplog.stream_planner import StreamPlanner
from tests.faults.forked import ends_by, finish, start

PARTITIONS = 3


def write(path: Path) -> None:
    """A job with a row for each partition."""
    options = parse_path_sink({"path": str(path), "topic": "t", "numPartitions": str(PARTITIONS)})
    rows = pa.record_batch({
        "value": [b"x"] * PARTITIONS,
        "partition": pa.array(range(PARTITIONS), pa.int32()),
    })  # fmt: skip
    staged = stage(options, Staged(new_job(), None, None), 0, [rows])
    sink(path).commit([staged])


def sink(path: Path) -> commit.SinkDirectory:
    return commit.SinkDirectory(str(path), 1048588)


def ends(path: Path, **given: str) -> list[int]:
    """Of a batch read, by partition."""
    tasks = plan(parse_batch({"path": str(path), "subscribe": "t", **given}), 2)
    return [max((task.stop for task in tasks if task.partition == number), default=0) for number in range(PARTITIONS)]


def marks(path: Path) -> list[int]:
    found = []
    for number in range(PARTITIONS):
        with kreplog.Log.open(path / f"t-{number}", read_only=True) as log:
            found.append(log.high_watermark)
    return found


def die_in_the_burst(prepared: list[Any], *, committed: int, published: int) -> None:
    for bulk in prepared[:committed]:
        bulk.commit()
    for bulk in prepared[:published]:
        bulk.publish()
    os._exit(9)


def killed(path: Path, burst: Callable[[list[Any]], None]) -> None:
    """Write a job whose driver ends in `burst`, in place of the commit's last step."""

    def child() -> None:
        commit._complete_prepared = burst  # type: ignore[assignment]
        write(path)

    assert ends_by(child)[0] == 9


class Stream:
    def __init__(self, path: Path) -> None:
        options = parse_stream({"path": str(path), "subscribe": "t", "startingOffsets": "earliest"})
        self._planner = StreamPlanner(options)
        self._position = self._planner.initial_offset()

    def ends(self) -> list[int]:
        """Of one more micro-batch."""
        end = json.loads(json.dumps(self._planner.end_of_batch(self._position, unlimited=False)))
        self._planner.tasks(self._position, end, 2)
        self._position = end
        return [end["t"][str(number)] for number in range(PARTITIONS)]


@pytest.mark.parametrize("committed", range(PARTITIONS + 1))
@pytest.mark.parametrize("foreign", [False, True])
def test_a_driver_killed_in_the_burst(tmp_path: Path, committed: int, foreign: bool) -> None:
    """Plans end before its job until it is completed, whatever another writer appends meanwhile."""
    for published in range(committed + 1):
        path = tmp_path / str(published)
        write(path)
        stream = Stream(path)
        assert ends(path) == stream.ends() == [1] * PARTITIONS
        killed(path, partial(die_in_the_burst, committed=committed, published=published))
        if foreign:
            for number in range(PARTITIONS):
                with kreplog.Log.open(path / f"t-{number}") as log:
                    log.append(b"of another writer")
        whole = [2 + foreign] * PARTITIONS
        seen = ends(path)
        if published == PARTITIONS or (foreign and committed == PARTITIONS):  # an opening publishes what is committed
            assert seen == whole
        elif foreign:  # its own record may be visible where the job's are not
            assert [end - (number >= committed) for number, end in enumerate(seen)] == [1] * PARTITIONS
        else:
            assert seen == [1] * PARTITIONS
        assert stream.ends() == seen == Stream(path).ends()
        explicit = json.dumps({"t": {str(number): 2 if number < published else 1 for number in range(PARTITIONS)}})
        assert ends(path, endingOffsets=explicit) == [1 + (number < published) for number in range(PARTITIONS)]
        sink(path).recover()
        assert ends(path) == stream.ends() == marks(path) == whole


def test_a_stream_that_was_further_does_not_go_back(tmp_path: Path) -> None:
    """As one that has read half of the job with an earlier version."""
    write(tmp_path)
    killed(tmp_path, partial(die_in_the_burst, committed=1, published=1))
    stream = Stream(tmp_path)
    stream._position = {"t": {"0": 2, "1": 1, "2": 1}}
    assert stream.ends() == [2, 1, 1]


def test_while_jobs_become_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that takes its time between one partition and the next."""

    def slowly(prepared: list[Any]) -> None:
        for bulk in prepared:
            bulk.commit()
            time.sleep(0.002)
        for bulk in prepared:
            bulk.publish()
            time.sleep(0.002)

    def jobs(pipe: int) -> None:
        commit._complete_prepared = slowly
        for _ in range(25):
            write(tmp_path)
        os.write(pipe, b"done")

    write(tmp_path)
    child = start(jobs)
    stream = Stream(tmp_path)
    halves, seen = 0, [0]
    while seen[0] < 26:
        before = marks(tmp_path)
        seen = ends(tmp_path)
        assert len(set(seen)) == 1, seen
        assert len(set(stream.ends())) == 1
        halves += len(set(before)) > 1
    assert finish(*child) == (0, b"done")
    assert halves > 0, "no look fell into a burst"


def test_jobs_that_are_completed_one_after_the_other(tmp_path: Path) -> None:
    """A look during which each time another job is completed gives up with an error; a few such looks do not."""
    write(tmp_path)
    looks = []

    def look(ends: whole_jobs.Ends) -> int:
        assert not ends
        looks.append(1)
        if len(looks) < most:
            (tmp_path / FOLDER / "completed").write_text(f"job {len(looks)}")
        return len(looks)

    most = 10
    assert whole_jobs.read_whole_jobs(str(tmp_path), look) == most
    most = 10**6
    with pytest.raises(StorageError, match="faster than its logs can be looked at"):
        whole_jobs.read_whole_jobs(str(tmp_path), look)


def test_a_job_of_one_partition_and_a_partition_that_is_gone(tmp_path: Path) -> None:
    write(tmp_path)
    killed(tmp_path, partial(die_in_the_burst, committed=1, published=1))
    record = tmp_path / FOLDER / COMMIT_NAME
    found = whole_jobs._ends_before(str(tmp_path), tmp_path / FOLDER, record.read_bytes())
    assert found == {TopicPartition("t", number): 1 for number in range(PARTITIONS)}
    (tmp_path / "t-2").rename(tmp_path / "away")
    assert len(whole_jobs._ends_before(str(tmp_path), tmp_path / FOLDER, record.read_bytes())) == 2
    content = decode(record, record.read_bytes())
    content["appends"] = content["appends"][:1]
    encode_to(record, content)
    assert not whole_jobs._ends_before(str(tmp_path), tmp_path / FOLDER, record.read_bytes())
