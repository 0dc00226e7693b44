"""`make demo` in small: the same story over a few thousand flights, and what must make it fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

pytest.importorskip("confluent_kafka", reason="needs the extra `demo`")
pytest.importorskip("kafka", reason="needs the extra `demo`")
pytest.importorskip("matplotlib", reason="needs the extra `demo`")
pytest.importorskip("pyspark", reason="needs the extra `demo`")

import kreplog
from flights import cluster, results, source, stream_process
from tests.integration.clusters import eventually

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


def test_a_topic_that_differs_from_the_source_is_found() -> None:
    sent = list(source.events(source.load_flights(50)))
    topic: list[list[kreplog.Record]] = [[] for _ in range(source.PARTITIONS)]
    for event in sent:
        records = topic[event.partition]
        records.append(kreplog.Record(len(records), event.timestamp_ms, event.key, event.value))

    def compare(topic: list[list[kreplog.Record]], expected: list[source.Event]) -> None:
        source.compare_records([iter(records) for records in topic], expected)

    compare(topic, sent)
    with pytest.raises(source.DemoError, match="more records than were sent"):
        compare(topic, sent[:-1])
    with pytest.raises(source.DemoError, match=r"event 50 in flights-\d is missing"):
        compare(topic, [*sent, sent[-1]])
    with pytest.raises(source.DemoError, match=r"event 1 in flights-\d: sent"):
        compare(topic, [sent[0], sent[1]._replace(value=b"{}"), *sent[2:]])


def test_results_that_differ_are_found() -> None:
    expected = results.by_pandas(source.load_flights(200))
    results.compare("Parquet", expected.copy(), expected)
    first = expected.index[0]
    changed = expected.copy()
    changed.loc[first, "mean_delay"] += 1e-9
    for found, message in (
        (expected.iloc[1:], "Parquet lacks hour 2013-01-01 10:00 of EWR"),
        (pd.concat([expected, expected.iloc[:1]]), "Parquet has hour 2013-01-01 10:00 of EWR twice"),
        (changed, "hour 2013-01-01 10:00 of EWR differs between Parquet and pandas"),
    ):
        with pytest.raises(source.DemoError, match=message):
            results.compare("Parquet", found, expected)
    with pytest.raises(source.DemoError, match="for which there is no flight"):
        results.compare("Parquet", expected, expected.iloc[1:])


def test_windows_are_counted_while_a_partition_is_made(tmp_path: Path) -> None:
    with kreplog.Log.open(tmp_path / "departures-0") as log:
        log.append_many([b"1", b"2"])
    (tmp_path / "departures-1").mkdir()
    assert results.count_of_topic(tmp_path) == 2


def test_the_error_of_a_job_is_found_in_its_output() -> None:
    output = "INFO\njava.io.IOException: gone\n\tat a.b(C)\nx.StreamingQueryException: failed\nState: RUNNABLE\n"
    assert stream_process.error_of(output) == "x.StreamingQueryException: failed"
    assert stream_process.error_of("Killed\n") == "no error in its output"


def job_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str) -> stream_process.StreamProcess:
    """The streaming job with another program for its driver, once that has made the file `started`."""
    popen = subprocess.Popen
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: popen([sys.executable, "-c", driver], **options))
    job = stream_process.StreamProcess("127.0.0.1:1", tmp_path)
    monkeypatch.setattr(subprocess, "Popen", popen)
    eventually((tmp_path / "started").exists, "the driver has not started")
    return job


# It sleeps so that it still runs, and writes a file, when its driver is gone, of which it gets no event.
WORKER = "import os, time; os.setpgid(0, 0); open('started', 'x'); time.sleep(1); open('late', 'x')"
# It sleeps until it is killed, which is the test; no longer than a minute where it is not.
JVM = "import time; open('started', 'x'); time.sleep(60)"


def test_a_killed_job_has_ended_once_its_last_process_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a worker, in a process group of its own."""
    driver = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {WORKER!r}]).wait()"
    job_of(tmp_path, monkeypatch, driver).kill()
    assert (tmp_path / "late").exists()


def test_a_killed_job_has_ended_once_its_last_thread_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose first thread has ended has the state Z, but its other threads may still write."""
    # The second thread sleeps so that it writes when the first has ended, of which it gets no event.
    worker = (
        "import ctypes, os, threading; os.setpgid(0, 0)\n"
        "import time; threading.Thread(target=lambda: (time.sleep(1), open('late', 'x'))).start()\n"
        "open('started', 'x'); ctypes.CDLL(None).pthread_exit(None)"
    )
    driver = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {worker!r}]).wait()"
    job_of(tmp_path, monkeypatch, driver).kill()
    assert (tmp_path / "late").exists()


def test_a_jvm_that_outlives_its_driver_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {JVM!r}])"
    monkeypatch.setattr(stream_process, "WITHIN_S", 5)
    job = job_of(tmp_path, monkeypatch, driver)
    job._process.wait()
    processes_of = stream_process._processes_of

    def interrupted(session: int) -> list[int]:
        signal.raise_signal(signal.SIGINT)
        return processes_of(session)

    with monkeypatch.context() as patch:
        patch.setattr(stream_process, "_processes_of", interrupted)
        with pytest.raises(KeyboardInterrupt):
            job.close()
    eventually(lambda: not processes_of(job._process.pid), "a second interruption has left the JVM")
    job.close()


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


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize(
    ("ended_by", "after"), [(signal.SIGTERM, "is the controller"), (signal.SIGINT, "windows; batch")]
)
def test_no_process_and_no_file_outlives_an_interruption(tmp_path: Path, ended_by: signal.Signals, after: str) -> None:
    """While Spark starts, for the first time and again."""
    command = [sys.executable, str(DEMO), "--rows", str(ROWS), "--chart", str(tmp_path / "chart.png")]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as demo:
        assert demo.stdout is not None and demo.stderr is not None
        assert any(after in line for line in demo.stdout), demo.stderr.read()
        eventually(lambda: len(processes_below(tmp_path)) >= 5, "not all run: the demo, three brokers, the driver")
        demo.send_signal(ended_by)
        _, errors = demo.communicate(timeout=60)
    assert errors.splitlines()[-1] == "demo: interrupted; all processes that it started have ended"
    assert demo.returncode == 1
    eventually(lambda: not processes_below(tmp_path), lambda: f"{processes_below(tmp_path)} still run")
    assert not list(tmp_path.iterdir())


def processes_below(directory: Path) -> list[int]:
    """Processes whose TMPDIR is the directory or below it."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if f"\0TMPDIR={directory}".encode() in b"\0" + environment.read_bytes():
                found.append(int(environment.parent.name))
    return found


@pytest.mark.long
@pytest.mark.spark
def test_the_whole_demo_in_small(tmp_path: Path) -> None:
    chart, directory = tmp_path / "chart.png", tmp_path / "files"
    command = [sys.executable, str(DEMO), "--rows", str(ROWS), "--chart", str(chart), "--directory", str(directory)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=tmp_path, env=environment)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for finding in (
        "is the controller",
        "killed after",
        "was killed after",
        f"all {ROWS:,} flights are acknowledged",
        "in sync on all partitions again",
        "the stream continues with batch",
        f"a consumer gets {ROWS:,} flights",
        "the replicas of brokers 0, 1, 2 are byte-identical",
        "topic departures: 247 records, each once",
        "Parquet: 247 records, each once",
        str(chart),
    ):
        assert finding in " ".join(ended.stdout.split()), finding
    assert chart.read_bytes().startswith(b"\x89PNG")
    eventually(lambda: not processes_below(tmp_path), lambda: f"{processes_below(tmp_path)} still run")
