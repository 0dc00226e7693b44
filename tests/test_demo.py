"""`make demo` in small: the same story over a few thousand flights, and what must make it fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("confluent_kafka", reason="needs the extra `demo`")
pytest.importorskip("kafka", reason="needs the extra `demo`")
pytest.importorskip("matplotlib", reason="needs the extra `demo`")
pytest.importorskip("pyspark", reason="needs the extra `demo`")

import kreplog
from flights import cluster, figures, source, writer
from kreplog.cluster.pid_file import read_pid_file

DEMO = Path(__file__).parent.parent / "spark" / "jobs" / "demo.py"
ROWS = 4000


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_are_placed_as_kafkas_clients_do(key: bytes, hashed: int) -> None:
    """Vectors: Kafka, UtilsTest.testMurmur2."""
    assert source.murmur2(key) == hashed % 2**32
    assert source.partition_of(key, 4) == (hashed & 0x7FFFFFFF) % 4


def test_the_writer_resumes_from_nothing_but_the_log(tmp_path: Path) -> None:
    flights = source.load_flights(ROWS)
    cut = [0, 100, 17, 3]
    writer.write(tmp_path, ROWS)
    for path, offset in zip(writer.partition_paths(tmp_path), cut, strict=True):
        with kreplog.Log.open(path) as log:
            log.truncate_to(offset)
            cut[log.topic_partition.partition] = log.log_end_offset
    writer.write(tmp_path, ROWS)
    assert writer.read_back(tmp_path, flights)


def test_a_topic_that_differs_from_the_source_is_found_out(tmp_path: Path) -> None:
    writer.write(tmp_path, ROWS)
    with pytest.raises(source.DemoError, match="more records than were written"):
        writer.read_back(tmp_path, source.load_flights(ROWS - 1))
    with pytest.raises(source.DemoError, match="is missing"):
        writer.read_back(tmp_path, source.load_flights(ROWS + 1))


def test_groups_that_differ_are_found_out() -> None:
    right: figures.Groups = {"UA": figures.Group(2, 1.5), "HA": figures.Group(1, None)}
    figures.compare("carrier", right, dict(right))
    wrongs: tuple[figures.Groups, ...] = (
        {"UA": figures.Group(2, 1.5)},
        {**right, "UA": figures.Group(3, 1.5)},
        {**right, "UA": figures.Group(2, 1.5000001)},
        {**right, "HA": figures.Group(1, 0.0)},
    )
    for wrong in wrongs:
        with pytest.raises(source.DemoError):
            figures.compare("carrier", right, wrong)


def test_replicas_that_differ_are_found_out(tmp_path: Path) -> None:
    brokers: Any = SimpleNamespace(home=lambda broker: tmp_path / str(broker))
    for broker in (0, 1):
        for path in cluster.replica_paths(brokers, broker):
            with kreplog.Log.open(path) as log:
                log.append(b"value", timestamp_ms=1)
    assert cluster.compare_replicas(brokers, (0, 1))
    with kreplog.Log.open(cluster.replica_paths(brokers, 1)[2]) as log:
        log.append(b"more", timestamp_ms=1)
    with pytest.raises(source.DemoError, match="flights-2 differs between brokers 0, 1"):
        cluster.compare_replicas(brokers, (0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGTERM])
def test_no_process_and_no_file_outlives_an_interruption(tmp_path: Path, ended_by: signal.Signals) -> None:
    command = [sys.executable, str(DEMO), "--rows", str(ROWS), "--chart", str(tmp_path / "chart.png")]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as demo:
        assert demo.stdout is not None and demo.stderr is not None
        said = next((line for line in demo.stdout if "is the controller" in line), None)
        assert said is not None, demo.stderr.read()
        pids = [read_pid_file(home)[0] for home in tmp_path.glob("kreplog-demo-*/cluster/broker-*")]
        assert len(pids) == 3 and all(pids)
        demo.send_signal(ended_by)
        _, errors = demo.communicate(timeout=60)
    assert errors.splitlines()[-1] == "demo: interrupted; what it had started is ended"
    assert demo.returncode == 1
    assert not any(Path(f"/proc/{pid}/exe").exists() for pid in pids)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.spark
def test_the_whole_demo_in_small(tmp_path: Path) -> None:
    chart, topic = tmp_path / "chart.png", tmp_path / "topic"
    command = [sys.executable, str(DEMO), "--rows", str(ROWS), "--chart", str(chart), "--directory", str(topic)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for proof in (
        "killed after",
        "recovered in",
        f"{ROWS:,} records, each once",
        "is the controller",
        "was killed after",
        "after the kill",
        f"all {ROWS:,} records are acknowledged",
        f"a consumer gets {ROWS:,} records",
        "in sync on all partitions again",
        "the replicas of brokers 0, 1, 2 are byte-identical",
        "by carrier: ",
        "by hour: ",
        str(chart),
    ):
        assert proof in " ".join(ended.stdout.split()), proof
    assert chart.read_bytes().startswith(b"\x89PNG")
    with kreplog.Log.open(topic / "flights-0", read_only=True) as log:
        assert not log.verify().damages
