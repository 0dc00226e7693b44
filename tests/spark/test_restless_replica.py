"""Short-circuit reads of a replica that is truncated, diverges and follows again: every row is the leader's."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kreplog
from kreplog.types import TopicPartition
from pyspark_kreplog import network, short_circuit
from pyspark_kreplog.plan import ReplicaFence, Task
from pyspark_kreplog.read import read
from tests.spark.conftest import ROOT
from tests.spark.restless_replica import CONFIG, END, LEADER_EPOCHS
from tests.spark.restless_writer import value_at

pytestmark = pytest.mark.spark

TOPIC_ID = "00000000-0000-0000-0000-000000000001"
PLACE = TopicPartition("t", 0)


def read_while_it_changes(path: Path, reads: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At least `reads` reads, and until files and the leader have served a good part of the rows each."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    counts: Counter[str] = Counter()

    def from_leader(
        bootstrap: str, partition: TopicPartition, topic_id: str, start: int, stop: int, columns: Any, settings: Any
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        counts["in mid-range" if start > task.start else "fetched"] += 1
        offsets = list(range(start, stop))
        found = {"offset": pa.array(offsets), "value": pa.array([value_at(offset) for offset in offsets], pa.binary())}
        yield pa.record_batch(found), stop

    monkeypatch.setattr(network, "fetch", from_leader)
    monkeypatch.setattr(short_circuit, "PIECE_BYTES", 4000)
    partition = path / str(PLACE)
    kreplog.Log.open(partition, CONFIG).close()
    (partition / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ\n")
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("restless_replica.py")), str(partition), str(seed)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    try:
        done = 0
        while done < reads or min(counts["files alone"], counts["fetched"], counts["in mid-range"]) < reads / 50:
            start = rng.randrange(END)
            stop = rng.randrange(start, END) + 1
            task = Task(
                *("", "nowhere:1", "t", 0, TOPIC_ID, start, stop, True),
                local_log_dirs=(str(path),),
                fence=ReplicaFence(LEADER_EPOCHS[-1][0], END),
            )
            fetches = counts["fetched"] + counts["in mid-range"]
            rows = [row for batch in read(task, ["offset", "value"]) for row in batch.to_pylist()]
            assert rows == [{"offset": offset, "value": value_at(offset)} for offset in range(start, stop)]
            counts["files alone"] += counts["fetched"] + counts["in mid-range"] == fetches
            done += 1
            assert process.poll() is None, "the replica's process has ended"
    finally:
        process.kill()
        process.wait()
    print(dict(counts))


def test_every_row_is_the_leaders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_while_it_changes(tmp_path, 200, 1, monkeypatch)


@pytest.mark.long
def test_every_row_is_the_leaders_in_thousands_of_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(10):
        (tmp_path / str(seed)).mkdir()
        read_while_it_changes(tmp_path / str(seed), 400, seed, monkeypatch)
