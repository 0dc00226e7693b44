"""Checkpoint files: Kafka's text to the byte, every damage found, no update lost between processes."""

import contextlib
import os
import random
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplog._native.checkpoint import EpochCache, OffsetCheckpoint, atomic_write
from kreplog.errors import CorruptCheckpointError, StorageError, UsageError
from kreplog.types import EpochEndOffset, TopicPartition

FLIGHTS_0 = TopicPartition("flights", 0)
FLIGHTS_1 = TopicPartition("flights", 1)
OTHER = TopicPartition("a.b_c-d", 12)
NO_END = 2**63 - 1


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "replication-offset-checkpoint")


@pytest.fixture
def epochs_path(tmp_path: Path) -> str:
    return str(tmp_path / "leader-epoch-checkpoint")


# --- atomic_write ---------------------------------------------------------------------------------------------------


def test_atomic_write_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (b"one", b"", b"three" * 10_000):
        atomic_write(str(path), content)
        assert path.read_bytes() == content
        assert os.listdir(tmp_path) == ["file"]


def test_a_temporary_file_left_by_a_crash_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_write(str(path), b"good")
    (tmp_path / "file.tmp").write_bytes(b"half of something far longer")
    assert path.read_bytes() == b"good"
    atomic_write(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_a_failed_write_keeps_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_write(str(path), b"good")
    code = (
        "import resource, signal, sys\n"
        "from kreplog._native.checkpoint import atomic_write\n"
        "from kreplog.errors import StorageError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "try:\n"
        "    atomic_write(sys.argv[1], bytes(1000))\n"
        "except StorageError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    assert "cannot write 1000 bytes" in done.stdout, done.stderr
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100
    assert path.read_bytes() == b"good"
    assert os.listdir(tmp_path) == ["file"]


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="directory does not exist"):
        atomic_write(str(tmp_path / "missing" / "file"), b"")
    with pytest.raises(StorageError, match="directory does not exist"):
        OffsetCheckpoint(str(tmp_path / "missing" / "file")).update(FLIGHTS_0, 1)


def test_a_directory_in_the_place_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").mkdir()
    with pytest.raises(StorageError, match="cannot replace"):
        atomic_write(str(tmp_path / "file"), b"")
    with pytest.raises(StorageError, match="cannot read"):
        OffsetCheckpoint(str(tmp_path / "file")).read()
    assert os.listdir(tmp_path) == ["file"]


# --- OffsetCheckpoint -----------------------------------------------------------------------------------------------


def test_the_text_is_kafkas(path: str) -> None:
    OffsetCheckpoint(path).write({FLIGHTS_1: 900, FLIGHTS_0: 1200, OTHER: NO_END})
    assert Path(path).read_text() == "0\n3\na.b_c-d 12 9223372036854775807\nflights 0 1200\nflights 1 900\n"
    assert OffsetCheckpoint(path).read() == {FLIGHTS_0: 1200, FLIGHTS_1: 900, OTHER: NO_END}


def test_a_missing_file_and_an_empty_map(path: str) -> None:
    checkpoint = OffsetCheckpoint(path)
    assert checkpoint.read() == {}
    checkpoint.write({})
    assert Path(path).read_text() == "0\n0\n"
    assert checkpoint.read() == {}


def test_update_sets_and_removes_one_and_keeps_the_others(path: str) -> None:
    checkpoint = OffsetCheckpoint(path)
    checkpoint.update(FLIGHTS_0, 5)
    checkpoint.update(OTHER, 7)
    OffsetCheckpoint(path).update(FLIGHTS_1, 1)
    checkpoint.update(FLIGHTS_0, 6)
    assert checkpoint.read() == {FLIGHTS_0: 6, FLIGHTS_1: 1, OTHER: 7}
    checkpoint.update(OTHER, None)
    checkpoint.update(OTHER, None)
    assert checkpoint.read() == {FLIGHTS_0: 6, FLIGHTS_1: 1}


def test_an_update_that_changes_nothing_writes_nothing(path: str) -> None:
    checkpoint = OffsetCheckpoint(path)
    checkpoint.update(FLIGHTS_0, 5)
    before = os.stat(path)
    for writer in (checkpoint, OffsetCheckpoint(path)):
        writer.update(FLIGHTS_0, 5)
        writer.update(OTHER, None)
        after = os.stat(path)
        assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_latest_is_not_read_again_unless_somebody_else_wrote_it(path: str) -> None:
    """A broker of thousands of partitions checks every few seconds."""
    checkpoint = OffsetCheckpoint(path)
    assert checkpoint.latest() == {}
    checkpoint.write({FLIGHTS_0: 1})
    assert checkpoint.latest() is checkpoint.latest() and checkpoint.latest() == {FLIGHTS_0: 1}
    OffsetCheckpoint(path).write({FLIGHTS_0: 1, FLIGHTS_1: 2})
    assert checkpoint.latest() == {FLIGHTS_0: 1, FLIGHTS_1: 2}
    os.unlink(path)
    assert checkpoint.latest() == {}


def test_an_update_sees_what_another_wrote_in_between(path: str) -> None:
    checkpoint = OffsetCheckpoint(path)
    checkpoint.update(FLIGHTS_0, 5)
    OffsetCheckpoint(path).update(FLIGHTS_0, 9)
    checkpoint.update(FLIGHTS_0, 5)
    assert OffsetCheckpoint(path).read() == {FLIGHTS_0: 5}
    os.unlink(path)
    checkpoint.update(FLIGHTS_0, 5)
    assert OffsetCheckpoint(path).read() == {FLIGHTS_0: 5}


def test_an_empty_file_is_as_kafka_makes_it(path: str, epochs_path: str) -> None:
    Path(path).touch()
    Path(epochs_path).touch()
    assert EpochCache(epochs_path).entries == []
    assert OffsetCheckpoint(path).read() == {}
    OffsetCheckpoint(path).update(FLIGHTS_0, 5)
    assert OffsetCheckpoint(path).read() == {FLIGHTS_0: 5}


@pytest.mark.parametrize("offset", [-1, 2**63])
def test_an_offset_that_is_none(path: str, offset: int) -> None:
    checkpoint = OffsetCheckpoint(path)
    checkpoint.update(FLIGHTS_0, 5)
    with pytest.raises(UsageError, match="flights-1"):
        checkpoint.update(FLIGHTS_1, offset)
    with pytest.raises(UsageError):
        checkpoint.write({FLIGHTS_1: offset})
    assert checkpoint.read() == {FLIGHTS_0: 5}


def test_every_prefix_is_found_out(path: str) -> None:
    OffsetCheckpoint(path).write({FLIGHTS_0: 1200, FLIGHTS_1: 900, OTHER: 12345})
    whole = Path(path).read_bytes()
    for end in range(1, len(whole)):
        Path(path).write_bytes(whole[:end])
        with pytest.raises(CorruptCheckpointError) as caught:
            OffsetCheckpoint(path).read()
        assert caught.value.path == path


@pytest.mark.parametrize(
    "text",
    [
        "\n",
        "0\n",
        "1\n0\n",
        "0\n-1\n",
        "0\n+1\nflights 0 1\n",
        "0\n01\nflights 0 1\n",
        "0\n1\nflights 0 1\n\n",
        "0\n1\nflights 0 1\nflights 1 1\n",
        "0\n2\nflights 0 1\nflights 0 1\n",
        "0\n1\nflights 0\n",
        "0\n1\nflights 0 1 2\n",
        "0\n1\nflights  0 1\n",
        "0\n1\nflights 0 -1\n",
        "0\n1\nflights -1 1\n",
        "0\n1\nflights 0 1_0\n",
        "0\n1\nflights 0 \u0661\n",
        "0\n1\nflights 2147483648 1\n",
        "0\n1\nflights 0 9223372036854775808\n",
        "0\n1\n.. 0 1\n",
        "0\n1\na/b 0 1\n",
        "0\n1\nflights 0 1\r\n",
        "0\n99999999999999999999\n",
        "0\n1\nflights 0 1\n\0\0\0\0",
        "\0" * 20,
    ],
)
def test_garbage_is_found_out_and_replaced_by_the_next_update(path: str, text: str) -> None:
    Path(path).write_text(text)
    checkpoint = OffsetCheckpoint(path)
    with pytest.raises(CorruptCheckpointError, match="replication-offset-checkpoint"):
        checkpoint.read()
    checkpoint.update(FLIGHTS_0, 3)
    assert checkpoint.read() == {FLIGHTS_0: 3}


def test_a_removal_from_a_damaged_file_mends_it(path: str) -> None:
    """KAFKA-10664: an empty map replaces a damaged file too."""
    Path(path).write_bytes(b"\xff\xfe")
    OffsetCheckpoint(path).update(FLIGHTS_0, None)
    assert OffsetCheckpoint(path).read() == {}


@given(st.binary(max_size=60))
def test_any_bytes_raise_corrupt_checkpoint_error_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any-checkpoint"
    for head in (b"", b"0\n1\n", b"0\n1\nflights 0 "):
        path.write_bytes(head + data)
        for read in (OffsetCheckpoint(str(path)).read, lambda: EpochCache(str(path))):
            with contextlib.suppress(CorruptCheckpointError):
                read()


UPDATER = """
import sys
from kreplog._native.checkpoint import OffsetCheckpoint
from kreplog.types import TopicPartition
checkpoint = OffsetCheckpoint(sys.argv[1])
for i in range(100):
    checkpoint.update(TopicPartition("t", int(sys.argv[2]) * 1000 + i % 50), i)
"""


def test_two_processes_lose_none_of_each_others_updates(path: str) -> None:
    """F31: a checkpoint never drops a partition."""
    writers = [subprocess.Popen([sys.executable, "-c", UPDATER, path, str(number)]) for number in range(2)]
    readings = 0
    while any(writer.poll() is None for writer in writers):
        OffsetCheckpoint(path).read()
        readings += 1
    assert [writer.returncode for writer in writers] == [0, 0]
    assert readings
    expected = {TopicPartition("t", n * 1000 + i): i + 50 for n in range(2) for i in range(50)}
    assert OffsetCheckpoint(path).read() == expected


def test_threads_lose_none_of_each_others_updates(path: str) -> None:
    checkpoint = OffsetCheckpoint(path)

    def work(number: int) -> None:
        own = checkpoint if number % 2 else OffsetCheckpoint(path)
        for i in range(25):
            own.update(TopicPartition("t", number * 100 + i), i)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert OffsetCheckpoint(path).read() == {TopicPartition("t", n * 100 + i): i for n in range(4) for i in range(25)}


# --- EpochCache -----------------------------------------------------------------------------------------------------


def cache(*entries: tuple[int, int]) -> EpochCache:
    return EpochCache(None, entries)


def test_the_text_of_epochs_is_kafkas(epochs_path: str) -> None:
    epochs = EpochCache(epochs_path)
    assert (epochs.entries, epochs.latest_epoch) == ([], -1)
    assert epochs.assign(0, 0)
    assert epochs.assign(3, 1200)
    assert not os.path.exists(epochs_path)
    epochs.flush()
    assert Path(epochs_path).read_text() == "0\n2\n0 0\n3 1200\n"
    again = EpochCache(epochs_path)
    assert (again.entries, again.latest_epoch) == ([(0, 0), (3, 1200)], 3)


def test_flush_writes_only_what_is_new(epochs_path: str) -> None:
    EpochCache(epochs_path).flush()
    assert not os.path.exists(epochs_path)
    epochs = EpochCache(epochs_path, [(0, 0)])
    epochs.flush()
    before = os.stat(epochs_path)
    epochs.assign(0, 5)
    epochs.truncate_from_end(5)
    epochs.truncate_from_start(0)
    epochs.flush()
    EpochCache(epochs_path).flush()
    after = os.stat(epochs_path)
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns), (
        "rewritten; st_atime may move, it was read"
    )
    epochs.clear()
    epochs.flush()
    assert Path(epochs_path).read_text() == "0\n0\n"


def test_every_prefix_of_epochs_is_found_out(epochs_path: str) -> None:
    EpochCache(epochs_path, [(0, 0), (3, 1200), (10, 99999)]).flush()
    whole = Path(epochs_path).read_bytes()
    for end in range(1, len(whole)):
        Path(epochs_path).write_bytes(whole[:end])
        with pytest.raises(CorruptCheckpointError) as caught:
            EpochCache(epochs_path)
        assert caught.value.path == epochs_path
        assert EpochCache(epochs_path, ()).entries == []


@pytest.mark.parametrize(
    "lines", ["1 5\n1 6", "2 5\n1 6", "1 5\n2 5", "1 5\n2 4", "-1 0", "1 2 3", "1", "1 x", "1 5\n "]
)
def test_epochs_that_do_not_rise_and_other_garbage(epochs_path: str, lines: str) -> None:
    Path(epochs_path).write_text(f"0\n{lines.count(chr(10)) + 1}\n{lines}\n")
    with pytest.raises(CorruptCheckpointError):
        EpochCache(epochs_path)


@pytest.mark.parametrize(
    ("epoch", "start", "expected", "changed"),
    [
        (8, 30, [(2, 10), (5, 20), (8, 30)], True),
        (5, 20, [(2, 10), (5, 20)], False),
        (5, 25, [(2, 10), (5, 20)], False),
        (5, 15, [(2, 10), (5, 15)], True),
        (8, 20, [(2, 10), (8, 20)], True),  # nothing was written in epoch 5
        (8, 15, [(2, 10), (8, 15)], True),
        (8, 5, [(8, 5)], True),
        (3, 25, [(2, 10), (3, 25)], True),  # epoch 5 was never this log's
        (2, 25, [(2, 25)], True),
        (1, 30, [(1, 30)], True),
    ],
)
def test_assign_keeps_both_columns_rising(
    epoch: int, start: int, expected: list[tuple[int, int]], changed: bool
) -> None:
    """F4 and KIP-279: an entry that contradicts older ones puts them out."""
    epochs = cache((2, 10), (5, 20))
    assert epochs.assign(epoch, start) is changed
    assert epochs.entries == expected


@pytest.mark.parametrize(("epoch", "start"), [(-1, 0), (0, -1)])
def test_assign_refuses_negatives(epoch: int, start: int) -> None:
    with pytest.raises(UsageError):
        cache().assign(epoch, start)


def test_epoch_for_offset() -> None:
    epochs = cache((2, 10), (5, 20))
    assert [epochs.epoch_for_offset(offset) for offset in (0, 9, 10, 19, 20, 1000)] == [
        (-1, 10),
        (-1, 10),
        (2, 20),
        (2, 20),
        (5, NO_END),
        (5, NO_END),
    ]
    assert cache().epoch_for_offset(7) == (-1, NO_END)


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [(-1, (-1, -1)), (0, (0, 10)), (2, (2, 20)), (3, (2, 20)), (4, (2, 20)), (5, (5, 33)), (6, (-1, -1))],
)
def test_end_offset_for(epoch: int, expected: tuple[int, int]) -> None:
    assert cache((2, 10), (5, 20)).end_offset_for(epoch, 33) == EpochEndOffset(*expected)


def test_end_offset_of_an_empty_cache() -> None:
    assert cache().end_offset_for(0, 33) == EpochEndOffset(-1, -1)


def test_a_leader_without_records_in_its_epoch() -> None:
    """F4: noting (2, leo) on becoming leader ends epoch 1 there, whatever followers hold of it."""
    epochs = cache((1, 0))
    epochs.assign(2, 40)
    assert epochs.end_offset_for(1, 40) == EpochEndOffset(1, 40)
    assert epochs.end_offset_for(2, 40) == EpochEndOffset(2, 40)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(100, [(2, 10), (5, 20)]), (21, [(2, 10), (5, 20)]), (20, [(2, 10)]), (11, [(2, 10)]), (10, []), (0, [])],
)
def test_truncate_from_end(offset: int, expected: list[tuple[int, int]]) -> None:
    epochs = cache((2, 10), (5, 20))
    assert epochs.truncate_from_end(offset) is (len(expected) < 2)
    assert epochs.entries == expected


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, [(2, 10), (5, 20)]),
        (10, [(2, 10), (5, 20)]),
        (11, [(2, 11), (5, 20)]),
        (19, [(2, 19), (5, 20)]),
        (20, [(5, 20)]),
        (50, [(5, 50)]),
    ],
)
def test_truncate_from_start(offset: int, expected: list[tuple[int, int]]) -> None:
    epochs = cache((2, 10), (5, 20))
    assert epochs.truncate_from_start(offset) is (expected != [(2, 10), (5, 20)])
    assert epochs.entries == expected


def test_against_the_epochs_of_a_list_of_records() -> None:
    """A log as a list of its records' epochs, appended to and cut at random: the cache agrees."""
    rng = random.Random(101)
    for _ in range(200):
        start, log, epochs, epoch = 0, list[int](), cache(), 0
        for _ in range(30):
            leo = start + len(log)
            match rng.randrange(4):
                case 0:
                    epoch += rng.randrange(3)
                    log += [epoch] * rng.randrange(1, 5)
                    epochs.assign(epoch, leo)
                case 1 if log:
                    epochs.assign(epoch, leo)
                    log.append(epoch)
                case 2 if log:
                    cut = rng.randrange(start, leo + 1)
                    del log[cut - start :]
                    epochs.truncate_from_end(cut)
                case 3 if log:
                    first = rng.randrange(start, leo)
                    del log[: first - start]
                    start = first
                    epochs.truncate_from_start(first)
            for i, expected in enumerate(log):
                assert epochs.epoch_for_offset(start + i)[0] == expected


def test_a_directory_that_is_moved_while_a_checkpoint_is_written_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the rename of the file and the fsync of its directory."""
    directory = tmp_path / "data"
    directory.mkdir()
    replace = os.replace

    def replaced(source: str, target: str) -> None:
        replace(source, target)
        directory.rename(tmp_path / "moved")

    monkeypatch.setattr(os, "replace", replaced)
    with pytest.raises(StorageError, match=f"cannot replace {directory}/file") as raised:
        atomic_write(str(directory / "file"), b"content")
    assert raised.value.path == str(directory / "file")
    assert (tmp_path / "moved" / "file").read_bytes() == b"content"
