"""Plans: which offsets of which partitions, and how they are cut. Real logs, no Spark."""

from __future__ import annotations

import logging
import os
import pickle
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import kreplog
from kreplog import file_systems
from kreplog.errors import NetworkFileSystemWarning, UsageError
from kreplog.file_systems import Mount
from pyspark_kreplog import plan as planning
from pyspark_kreplog.log_directory import subscribed_partitions
from pyspark_kreplog.options import parse_batch as parse
from pyspark_kreplog.plan import Pruning, Task, plan

DAY = 1_700_000_000_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """t-0 with 100 records a millisecond apart, t-1 with 10, u-0 with none, and other entries of a data directory."""
    path = tmp_path_factory.mktemp("data")
    for name, count in (("t-0", 100), ("t-1", 10), ("u-0", 0), ("__consumer_offsets-0", 3)):
        with kreplog.Log.open(path / name) as log:
            for at in range(0, count, 10):
                log.append_many([b"x"] * 10, timestamps_ms=[DAY + at + i for i in range(10)])
    (path / "t-2.0f-delete").mkdir()
    (path / "t-9").write_bytes(b"a file, no partition")
    (path / "meta.properties").write_bytes(b"version=0\n")
    return path


def cut(options: dict[str, str], cores: int = 1, pruning: Pruning | None = None) -> list[tuple[str, int, int]]:
    tasks = plan(parse(options), cores, pruning)
    assert pickle.loads(pickle.dumps(tasks)) == tasks
    return [(f"{task.topic}-{task.partition}", task.start, task.stop) for task in tasks]


def planned(data: Path, **options: str) -> list[tuple[str, int, int]]:
    return cut({"path": str(data), "subscribe": "t"} | options)


ALL = [("t-0", 0, 100), ("t-1", 0, 10)]


def test_everything(data: Path) -> None:
    assert planned(data) == ALL
    assert planned(data, subscribe="t,u") == ALL
    assert planned(data, subscribe="u") == []


def test_choices(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    def chosen(**options: str) -> list[str]:
        return [str(tp) for tp in subscribed_partitions(parse({"path": str(data)} | options))]

    assert chosen(subscribePattern="t") == ["t-0", "t-1"], "found anywhere in the name, internal topics aside"
    assert chosen(subscribePattern="^(t|u)$") == ["t-0", "t-1", "u-0"]
    assert chosen(subscribePattern="nothing") == []
    assert chosen(assign='{"t": [1], "u": [0]}') == ["t-1", "u-0"]
    assert chosen(assign='{"t": [1, 9]}') == ["t-1"]
    assert "there is no partition t-9" in caplog.text
    for options in ({"subscribe": "t,v"}, {"assign": '{"v": [0]}'}):
        with pytest.raises(UsageError, match=r"there is no topic v in .*; it holds __consumer_offsets, t, u"):
            chosen(**options)


def test_path_is_checked(data: Path) -> None:
    with pytest.raises(UsageError, match=r"option 'path' = .* is no directory"):
        planned(data / "nowhere")
    with pytest.raises(UsageError, match="is the directory of one partition: give its parent"):
        planned(data / "t-0")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, ALL),
        ({"startingOffsets": '{"t": {"0": 95, "1": -2}}'}, [("t-0", 95, 100), ("t-1", 0, 10)]),
        ({"startingOffsets": '{"t": {"0": 100, "1": 10}}'}, []),
        ({"endingOffsets": '{"t": {"0": 5, "1": -1}}'}, [("t-0", 0, 5), ("t-1", 0, 10)]),
        ({"endingOffsets": '{"t": {"0": 0, "1": 3}}'}, [("t-1", 0, 3)]),
        ({"startingTimestamp": str(DAY + 5)}, [("t-0", 5, 100), ("t-1", 5, 10)]),
        ({"endingTimestamp": str(DAY + 5)}, [("t-0", 0, 5), ("t-1", 0, 5)]),
        ({"endingTimestamp": str(DAY + 50)}, [("t-0", 0, 50), ("t-1", 0, 10)]),
        ({"startingTimestamp": str(DAY + 4), "endingTimestamp": str(DAY + 5)}, [("t-0", 4, 5), ("t-1", 4, 5)]),
        (
            {"startingTimestamp": str(DAY + 50), "startingOffsetsByTimestampStrategy": "latest"},
            [("t-0", 50, 100)],
        ),
        (
            {"startingOffsetsByTimestamp": f'{{"t": {{"0": {DAY + 99}, "1": {DAY}}}}}'},
            [("t-0", 99, 100), ("t-1", 0, 10)],
        ),
        (
            {"endingOffsetsByTimestamp": f'{{"t": {{"0": {DAY}, "1": {DAY + 99}}}}}'},
            [("t-1", 0, 10)],
        ),
        ({"endingTimestamp": str(DAY + 5), "endingOffsets": '{"t": {"0": 9, "1": 9}}'}, [("t-0", 0, 5), ("t-1", 0, 5)]),
    ],
)
def test_bounds(data: Path, options: dict[str, str], expected: list[tuple[str, int, int]]) -> None:
    assert planned(data, **options) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": '{"t": {"0": 1}}'}, "'startingOffsets' must name every partition.*: it lacks t-1 \\(-2"),
        (
            {"endingOffsetsByTimestamp": '{"t": {"0": 1, "1": 1, "2": 1}}'},
            "'endingOffsetsByTimestamp' must name .*: not read are t-2$",
        ),
        (
            {"startingOffsets": '{"t": {"0": 101, "1": 0}}'},
            "t-0: offset 101 of startingOffsets does not exist: only records below 100 are",
        ),
        (
            {"endingOffsets": '{"t": {"0": -1, "1": 11}}'},
            "t-1: offset 11 of endingOffsets does not exist: only records below 10 are",
        ),
        (
            {"startingOffsets": '{"t": {"0": 9, "1": 0}}', "endingOffsets": '{"t": {"0": 8, "1": -1}}'},
            "t-0: the read would begin at offset 9 \\(startingOffsets\\) and end before it, at 8 \\(endingOffsets\\)",
        ),
        ({"startingTimestamp": str(DAY + 5), "endingTimestamp": str(DAY + 4)}, "t-0: .*5 \\(startingTimestamp\\)"),
        ({"startingTimestamp": str(DAY + 50)}, "t-1: no committed record has a timestamp of .*Strategy to latest"),
    ],
)
def test_refused(data: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        planned(data, **options)


def test_never_past_the_high_watermark(tmp_path: Path) -> None:
    with kreplog.Log.open(tmp_path / "t-0", kreplog.LogConfig(replicated=True)) as log:
        log.append_many([b"x"] * 10, timestamps_ms=list(range(10)))
        log.advance_high_watermark(4)
        assert planned(tmp_path) == [("t-0", 0, 4)]
        assert planned(tmp_path, endingTimestamp="3") == [("t-0", 0, 3)]
        assert planned(tmp_path, endingTimestamp="7") == [("t-0", 0, 4)]
        with pytest.raises(UsageError, match="only records below 4 are committed"):
            planned(tmp_path, endingOffsets='{"t": {"0": 5}}')
        with pytest.raises(UsageError, match="no committed record"):
            planned(tmp_path, startingTimestamp="7")
        log.advance_high_watermark(8)
        assert planned(tmp_path) == [("t-0", 0, 8)]


def test_data_loss(data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = shutil.copytree(data, tmp_path / "copy")
    with kreplog.Log.open(data / "t-0") as log:
        log.delete_records_before(40)
    assert planned(data)[0] == ("t-0", 40, 100)
    gone = {"startingOffsets": '{"t": {"0": 5, "1": 0}}'}
    with pytest.raises(
        UsageError, match=r"t-0: offset 5 .*: the log now starts at 40. Set startingOffsets to 40"
    ) as raised:
        planned(data, **gone)
    assert (raised.value.partition, raised.value.offset) == ("t-0", 5)
    with caplog.at_level(logging.WARNING, "pyspark_kreplog"):
        assert planned(data, **gone, failOnDataLoss="false")[0] == ("t-0", 40, 100)
    assert "going on with 40" in caplog.text
    before = {"endingOffsets": '{"t": {"0": 5, "1": -1}}'}
    with pytest.raises(UsageError, match="begin at offset 40"):
        planned(data, **before)
    assert planned(data, **before, failOnDataLoss="false") == [("t-1", 0, 10)]


# Cutting


def lengths(tasks: Sequence[tuple[str, int, int]]) -> list[int]:
    return [stop - start for _, start, stop in tasks]


def assert_covers(tasks: Sequence[tuple[str, int, int]], whole: Sequence[tuple[str, int, int]]) -> None:
    """Each range is cut into consecutive, non-empty parts."""
    for name, start, stop in whole:
        at = start
        for part, first, end in tasks:
            if part == name:
                assert first == at < end
                at = end
        assert at == stop


def test_at_most_so_many_records(data: Path) -> None:
    tasks = planned(data, maxRecordsPerPartition="30")
    assert lengths(tasks) == [25, 25, 25, 25, 10]
    assert_covers(tasks, ALL)
    assert lengths(planned(data, maxRecordsPerPartition="1")) == [1] * 110


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [100, 10]), (2, [100, 10]), (3, [50, 50, 10]), (5, [25] * 4 + [10]), (11, [10] * 11), (22, [5] * 22)],
)
def test_at_least_so_many_tasks(data: Path, count: int, expected: list[int]) -> None:
    """Large partitions are cut in proportion, small ones stay whole."""
    tasks = planned(data, minPartitions=str(count))
    assert lengths(tasks) == expected
    assert_covers(tasks, ALL)


def test_both(data: Path) -> None:
    tasks = planned(data, minPartitions="20", maxRecordsPerPartition="50")
    assert_covers(tasks, ALL)
    assert max(lengths(tasks)) <= 50
    assert len(tasks) >= 18


def test_more_tasks_than_records(data: Path) -> None:
    assert lengths(planned(data, minPartitions="1000")) == [1] * 110


def test_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rules at a thousandth of the size: about target bytes a task, and never less than the least."""
    monkeypatch.setattr(planning, "MIN_TASK_BYTES", 32 << 10)
    monkeypatch.setattr(planning, "MAX_TASK_BYTES", 256 << 10)
    noise = random.Random(1)
    config = kreplog.LogConfig(batch_bytes=2048, index_interval_bytes=1024, segment_bytes=300 << 10)
    with kreplog.Log.open(tmp_path / "t-0", config) as log:
        log.append_many([noise.randbytes(100) for _ in range(20_000)])
        assert 2_200_000 < log.size < 2_400_000
    for cores, least, most in ((1, 8, 11), (8, 14, 18), (1000, 60, 72)):
        tasks = cut({"path": str(tmp_path), "subscribe": "t"}, cores)
        assert_covers(tasks, [("t-0", 0, 20_000)])
        assert least <= len(tasks) <= most
        assert max(lengths(tasks)) < 2.2 * min(lengths(tasks))
    with kreplog.Log.open(tmp_path / "t-0", read_only=True) as log:
        ends = {piece.stop for piece in log.offset_ranges(0, 20_000, 1)}
    assert {stop for _, _, stop in tasks} <= ends, "cuts lie between batches"
    late = {"path": str(tmp_path), "subscribe": "t", "startingOffsets": '{"t": {"0": 19900}}'}
    assert lengths(cut(late, 1000)) == [100]


def test_compressed_bytes_count_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MIN_TASK_BYTES", 32 << 10)
    noise = random.Random(1)
    counts = {}
    for codec in ("none", "lz4"):
        config = kreplog.LogConfig(batch_bytes=2048, index_interval_bytes=1024, compression_type=codec)
        with kreplog.Log.open(tmp_path / codec / "t-0", config) as log:
            log.append_many([noise.randbytes(100) for _ in range(10_000)])
        counts[codec] = len(cut({"path": str(tmp_path / codec), "subscribe": "t"}, 1000))
    assert 2.5 * counts["none"] < counts["lz4"] < 3.5 * counts["none"], "the bytes are noise, so no fewer for lz4"


# Pruning by filters


@pytest.mark.parametrize(
    ("pruning", "expected"),
    [
        (Pruning(start=95), [("t-0", 95, 100)]),
        (Pruning(stop=5), [("t-0", 0, 5), ("t-1", 0, 5)]),
        (Pruning(start=8, stop=9), [("t-0", 8, 9), ("t-1", 8, 9)]),
        (Pruning(partitions=frozenset({1, 7})), [("t-1", 0, 10)]),
        (Pruning(topics=frozenset({"u"})), []),
        (Pruning(start=9, stop=5), []),
    ],
)
def test_pruning(data: Path, pruning: Pruning, expected: list[tuple[str, int, int]]) -> None:
    assert cut({"path": str(data), "subscribe": "t"}, pruning=pruning) == expected


def test_tasks_hold_absolute_paths(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run in other directories."""
    monkeypatch.chdir(data.parent)
    (task, _) = plan(parse({"path": data.name, "subscribe": "t"}), 1)
    assert isinstance(task, Task)
    assert task.path == str(data / "t-0")


@pytest.mark.parametrize(("times", "log_start"), [(1, 30), (2, 60), (4, 100)])
def test_records_that_are_deleted_while_it_is_made_stay_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, log_start: int
) -> None:
    """The task of deleted records reports them, or skips them, as failOnDataLoss says."""
    with kreplog.Log.open(tmp_path / "t-0") as log:
        for _ in range(10):
            log.append_many([b"x"] * 10)
        real, deletions = kreplog.Log.offset_ranges, iter([30, 60, 90, 100][:times])

        def meanwhile(reader: kreplog.Log, start: int, stop: int, max_bytes: int) -> list[kreplog.OffsetRange]:
            log.delete_records_before(next(deletions, 0))
            return real(reader, start, stop, max_bytes)

        monkeypatch.setattr(kreplog.Log, "offset_ranges", meanwhile)
        monkeypatch.setattr(planning, "open_to_plan", lambda path, *_: kreplog.Log.open(path, read_only=True))
        assert planned(tmp_path) == [("t-0", 0, 100)]
        assert log.log_start_offset == log_start


def test_small_logs_are_planned_without_being_opened(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    open_log = kreplog.Log.open

    def noted(path: str, read_only: bool) -> kreplog.Log:
        opened.append(Path(path).name)
        return open_log(path, read_only=read_only)

    monkeypatch.setattr(kreplog.Log, "open", noted)
    assert planned(data, subscribe="t,u") == ALL
    assert planned(data, startingOffsets='{"t": {"0": 100, "1": 0}}') == [("t-1", 0, 10)]
    assert opened == []
    assert planned(data, endingOffsets='{"t": {"0": 0, "1": 7}}') == [("t-1", 0, 7)]
    assert opened == ["t-1"]
    assert planned(data, startingTimestamp=str(DAY + 3)) == [("t-0", 3, 100), ("t-1", 3, 10)]
    assert opened == ["t-1", "t-0", "t-1"]


def test_logs_on_a_network_mount_are_opened_for_their_plan(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another host appends is seen late there, which small logs that are not opened would not say."""
    monkeypatch.setattr(os, "major", lambda _device: 0)
    monkeypatch.setattr(file_systems, "file_system_type", lambda _path: 0x6969)  # NFS
    monkeypatch.setattr(file_systems, "_mount_of", lambda _path: Mount("nfs4", frozenset()))
    with pytest.warns(NetworkFileSystemWarning) as warned:
        assert planned(data, subscribe="t,u") == ALL
    named = [str(warning.message).partition(" is on nfs4")[0] for warning in warned]
    assert named == [str(data / name) for name in ("t-0", "t-1", "u-0")]
