"""Tasks, Python workers and whole drivers are killed while a stream and batch jobs write to a path: no row is lost, and
none is there twice, as a process that knows nothing of Spark reads it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from kreplog import Log
from pyspark_kreplog.shared_path import PREFIX
from pyspark_kreplog.staging import FOLDER
from tests.integration.clusters import eventually
from tests.spark import sink_driver
from tests.spark.processes import environment, spark_driver, workers_of

pytestmark = [pytest.mark.spark, pytest.mark.long]

ROWS = 40_000
DRIVERS = 15
PER_DRIVER = 10
"""Kills of tasks, and of workers, in the life of each driver."""

LIFE_S = 240.0
READER = """
import json, sys
from collections import Counter
from kreplog import Log
found = {}
for topic, partitions in (("out", 3), ("jobs", 2)):
    values = Counter()
    for partition in range(partitions):
        with Log.open(f"{sys.argv[1]}/{topic}-{partition}", read_only=True) as log:
            assert not log.verify().damages
            values.update(value.decode() for value in log.values())
    found[topic] = values
json.dump(found, sys.stdout)
"""


def driver(folder: Path, life: int, task_kills: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    command = [sys.executable, sink_driver.__file__, str(folder), str(life), str(task_kills)]
    return spark_driver(command, folder / "driver.log", kill_workers=False)


def kill_workers(process: subprocess.Popen[bytes], count: int, choose: random.Random) -> int:
    deadline = time.monotonic() + LIFE_S
    killed = 0
    while killed < count:
        assert process.poll() is None, f"the driver ended with {process.returncode}"
        assert time.monotonic() < deadline, "no workers to kill"
        time.sleep(choose.random() / 4)  # so that a kill comes at any time of a worker's life
        workers = workers_of(process.pid)
        if workers:
            os.kill(choose.choice(workers), signal.SIGKILL)
            killed += 1
    return killed


def test_nothing_is_lost_and_nothing_is_twice(tmp_path: Path, figure: Callable[[str], None]) -> None:
    for name in ("tasks", "done", "killed"):
        (tmp_path / name).mkdir()
    with Log.open(tmp_path / "source" / "in-0") as log:
        log.append_many([b"%d" % number for number in range(ROWS)])
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    tasks = workers = 0
    for life in range(DRIVERS):
        for left in (tmp_path / "tasks").iterdir():
            left.unlink()
        with driver(tmp_path, life, PER_DRIVER) as process:
            eventually(lambda: os.listdir(tmp_path / "tasks"), "no task runs", LIFE_S)
            workers += kill_workers(process, PER_DRIVER, choose)
            tasks += PER_DRIVER
            eventually(lambda: len(os.listdir(tmp_path / "killed")) >= tasks, "tasks are not killed", LIFE_S)  # noqa: B023
            before = len(os.listdir(tmp_path / "done"))
            if choose.random() < 0.5:
                eventually(lambda: len(os.listdir(tmp_path / "done")) > before, "no job succeeds", LIFE_S)  # noqa: B023
            time.sleep(choose.random() * 2)  # so that the driver dies at any time of a job
    with driver(tmp_path, -1, 0) as process:
        assert process.wait(LIFE_S) == 0, (tmp_path / "driver.log").read_text()[-4000:]

    command = [sys.executable, "-c", READER, str(tmp_path / "data")]
    found = json.loads(subprocess.run(command, env=environment(), capture_output=True, check=True, text=True).stdout)
    assert found["out"] == {str(number): 1 for number in range(ROWS)}
    assert set(found["jobs"].values()) == {1}
    rows: dict[str, set[int]] = {}
    for value in found["jobs"]:
        name, _, row = value.rpartition("-")
        rows.setdefault(name, set()).add(int(row))
    assert all(numbers == set(range(sink_driver.JOB_ROWS)) for numbers in rows.values()), "a job is there in part"
    done = set(os.listdir(tmp_path / "done"))
    assert done <= rows.keys()
    unreported = rows.keys() - done  # the driver was killed between the commit and its note of it
    assert len(unreported) <= DRIVERS
    names = sorted(name for name in os.listdir(tmp_path / "data" / FOLDER) if not name.startswith(PREFIX))
    assert names == ["completed", "lock", "queries"]
    figure(
        f"killed: {tasks} tasks, {workers} workers, {DRIVERS} drivers; {len(rows)} jobs of {sink_driver.JOB_ROWS} rows "
        f"({len(unreported)} not reported) and {ROWS} rows of a stream, each once"
    )
