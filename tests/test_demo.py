"""`make demo` in small: the same story over a few thousand flights, and what must make it fail."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import kreplog

DEMO = Path(__file__).parent.parent / "spark" / "jobs" / "demo.py"
ROWS = 4000


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    pytest.importorskip("pandas")
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
def test_keys_are_placed_as_kafkas_clients_do(demo: ModuleType, key: bytes, hashed: int) -> None:
    """Vectors: Kafka, UtilsTest.testMurmur2."""
    assert demo.murmur2(key) == hashed % 2**32
    assert demo.partition_of(key, 4) == (hashed & 0x7FFFFFFF) % 4


def test_the_writer_resumes_from_nothing_but_the_log(demo: ModuleType, tmp_path: Path) -> None:
    flights = demo.load_flights(ROWS)
    cut = [0, 100, 17, 3]
    demo.write(tmp_path, ROWS)
    for path, offset in zip(demo.partition_paths(tmp_path), cut, strict=True):
        with kreplog.Log.open(path) as log:
            log.truncate_to(offset)
            cut[log.topic_partition.partition] = log.log_end_offset
    demo.write(tmp_path, ROWS)
    assert demo.read_back(tmp_path, flights)


def test_a_topic_that_differs_from_the_source_is_found_out(demo: ModuleType, tmp_path: Path) -> None:
    demo.write(tmp_path, ROWS)
    with pytest.raises(demo.DemoError, match="more records than were written"):
        demo.read_back(tmp_path, demo.load_flights(ROWS - 1))
    with pytest.raises(demo.DemoError, match="is missing"):
        demo.read_back(tmp_path, demo.load_flights(ROWS + 1))


def test_groups_that_differ_are_found_out(demo: ModuleType) -> None:
    right = {"UA": demo.Group(2, 1.5), "HA": demo.Group(1, None)}
    demo.compare("carrier", right, dict(right))
    for wrong in (
        {"UA": demo.Group(2, 1.5)},
        {**right, "UA": demo.Group(3, 1.5)},
        {**right, "UA": demo.Group(2, 1.5000001)},
        {**right, "HA": demo.Group(1, 0.0)},
    ):
        with pytest.raises(demo.DemoError):
            demo.compare("carrier", right, wrong)


@pytest.mark.slow
@pytest.mark.spark
def test_the_whole_demo_in_small(tmp_path: Path) -> None:
    chart, topic = tmp_path / "chart.png", tmp_path / "topic"
    command = [sys.executable, str(DEMO), "--rows", str(ROWS), "--chart", str(chart), "--directory", str(topic)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for proof in (
        "killed after",
        "recovered in",
        f"{ROWS:,} records, each once",
        "by carrier: ",
        "by hour: ",
        str(chart),
    ):
        assert proof in " ".join(ended.stdout.split()), proof
    assert chart.read_bytes().startswith(b"\x89PNG")
    with kreplog.Log.open(topic / "flights-0", read_only=True) as log:
        assert not log.verify().damages
