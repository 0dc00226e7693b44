"""A commit to more partitions than the driver may have files open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kreplog import Log

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
PROGRAM = """
import resource, sys
import pyarrow as pa
from pyspark_kreplog.commit import SinkDirectory
from pyspark_kreplog.sink_options import parse_path_sink
from pyspark_kreplog.staging import Staged, driver_identity, stage

path, count, soft, hard = sys.argv[1], *map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
partitions = pa.array(range(count), pa.int32())
rows = pa.record_batch({"value": [b"%d" % row for row in range(count)], "partition": partitions})
options = parse_path_sink({"path": path, "topic": "t", "numPartitions": str(count)})
staged = stage(options, Staged(f"job.{driver_identity()}"), 0, [rows])
SinkDirectory(path, 1048588).commit([staged])
"""


def commit(path: Path, partitions: int, soft: int, hard: int) -> str:
    """What the driver says of it."""
    path.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(path), *map(str, (partitions, soft, hard))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "spark"), str(ROOT)])}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stderr


def values(path: Path, partitions: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    for partition in range(partitions):
        with Log.open(path / f"t-{partition}", read_only=True) as log:
            found.extend(log.values())
    return found


def test_the_soft_limit_is_raised(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert commit(data, 60, 64, 1024) == ""
    assert values(data, 60) == [b"%d" % row for row in range(60)]


def test_the_hard_limit_is_met_before_anything_is_written(tmp_path: Path) -> None:
    data = tmp_path / "data"
    errors = commit(data, 60, 64, 64)
    assert "nothing is committed: the rows go to 60 partitions below" in errors and "the driver may open 64" in errors
    assert [name for name in os.listdir(data) if name.startswith("t-")] == []


@pytest.mark.long
def test_two_thousand_partitions(tmp_path: Path) -> None:
    data = tmp_path / "data"
    assert commit(data, 2000, 1024, 20_000) == ""
    assert values(data, 2000) == [b"%d" % row for row in range(2000)]
