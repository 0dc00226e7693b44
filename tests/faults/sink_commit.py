"""Driver: a Spark sink's job, staged and committed without Spark, killed at its n-th file call, for n = first, first +
stride, ...

Arguments: directory, first, stride. Needs the shim. After each death: readers see all of the job in a partition or
nothing; whatever another writer does with a log in between, the next commit or `recover` completes the job or leaves
nothing of it; the batch, staged again and placed otherwise, is in the logs once; nothing is left behind.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa

from kreplog import Log
from pyspark_kreplog.commit import SinkDirectory
from pyspark_kreplog.sink_options import parse_path_sink
from pyspark_kreplog.staging import FOLDER, Staged, driver_identity, stage, stream_job
from tests.faults import shim as faults
from tests.faults.forked import ends_by, result_of

PARTITIONS = 3
ROWS = 40
FOREIGN = b"of another writer"
QUERY = "11111111-2222-3333-4444-555555555555"


def sink(path: Path) -> SinkDirectory:
    return SinkDirectory(str(path), 1048588)


def write(path: Path, batch_id: int, turn: int) -> None:
    """Two tasks stage a batch, and the driver commits it. turn: shifts rows without a key to other partitions."""
    options = parse_path_sink(
        {"path": str(path), "topic": "t", "numPartitions": str(PARTITIONS), "kafka.batch.size": "200"}
    )
    path.mkdir(exist_ok=True)
    staged = []
    for task in range(2):
        names = [b"%d-%d" % (batch_id, row) for row in range(task, ROWS, 2)]
        rows = pa.record_batch({"value": names, "key": [None if row % 3 else name for row, name in enumerate(names)]})
        job = stream_job(QUERY, batch_id, driver_identity())
        staged.append(stage(options, Staged(job, QUERY, batch_id), task + turn, [rows]))
    sink(path).commit(staged)


def play(path: Path, nth: int) -> None:
    faults.Shim().arm(faults.ALL_WRITES, str(path), nth, mode=faults.KILL_BEFORE)
    write(path, 1, 0)


def recover(path: Path, nth: int) -> None:
    faults.Shim().arm(faults.ALL_WRITES, str(path), nth, mode=faults.KILL_BEFORE)
    sink(path).recover()


def contents(path: Path) -> list[list[bytes | None]]:
    """The values of each partition as readers see them."""
    found = []
    for partition in range(PARTITIONS):
        with Log.open(path / f"t-{partition}", read_only=True) as log:
            found.append(list(log.values()))
    return found


def of_batch(values: list[bytes | None], batch_id: int) -> int:
    return sum(value is not None and value.startswith(b"%d-" % batch_id) for value in values)


def append_elsewhere(path: Path) -> None:
    with Log.open(path / "t-1") as log:
        log.append(FOREIGN)


def check(path: Path, whole: list[int], nth: int) -> bool:
    """After a death at call `nth`. whole: the batch's records by partition. Returns whether the job was committed."""
    for values, count in zip(contents(path), whole, strict=True):
        assert of_batch(values, 1) in (0, count), f"readers see {of_batch(values, 1)} of {count} records"
    if nth % 2:
        result_of(partial(append_elsewhere, path))
    if nth % 3:
        result_of(partial(sink(path).recover))
        seen = [of_batch(values, 1) for values in contents(path)]
        assert seen in ([0] * PARTITIONS, whole), f"{seen} of {whole} records after the recovery"
    committed = sum(of_batch(values, 1) for values in contents(path)) > 0
    result_of(partial(write, path, 1, 1))
    result_of(partial(write, path, 1, 2))
    found = Counter(value for partition in contents(path) for value in partition if value is not None)
    expected = Counter(b"%d-%d" % (batch, row) for batch in range(2) for row in range(ROWS))
    expected[FOREIGN] = nth % 2
    assert found == +expected, found - expected or expected - found
    assert sorted(os.listdir(path / FOLDER)) == ["completed", "lock", "queries"]
    return committed


def main(directory: Path, first: int, stride: int) -> None:
    template, path = directory / "template", directory / "live"
    result_of(partial(write, template, 0, 0))
    shutil.copytree(template, path)
    result_of(partial(write, path, 1, 0))
    whole = [of_batch(values, 1) for values in contents(path)]
    kills = committed = in_recovery = 0
    nth, code = first, -9
    while code:
        shutil.rmtree(path)
        shutil.copytree(template, path)
        code, _ = ends_by(partial(play, path, nth))
        assert code in (0, -9), f"call {nth}: the job ended with {code}"
        if (
            path / FOLDER / "commit"
        ).exists():  # killed between its commit and its end: and again while it is completed
            again, ended = 1 + nth % 16, -9
            while ended:
                ended, _ = ends_by(partial(recover, path, again))
                again += 16
                in_recovery += ended != 0
        try:
            committed += check(path, whole, nth) and code != 0
        except Exception as error:
            raise AssertionError(f"killed at call {nth}: {error}") from error
        kills += code != 0
        nth += stride
    print(f"kills={kills} committed={committed} in_recovery={in_recovery}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
