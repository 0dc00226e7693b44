"""Offsets of logs that are not opened for them, beside those that Log.open finds in the same directory."""

from __future__ import annotations

import os
import random
import resource
import shutil
import struct
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import kreplog
from kreplog import file_systems
from kreplog._native.crc32c import crc32c
from kreplog._native.partition_metadata import write_topic_id
from kreplog._native.published import published_offsets
from kreplog.errors import KreplogError, NetworkFileSystemWarning, ResourceExhaustedError
from kreplog.file_systems import parse_mount
from kreplog.small_log import SmallLog, open_to_plan
from kreplog.types import TopicPartition
from tests.faults.forked import result_of
from tests.faults.test_follow_processes import NOBODY
from tests.reference import sent

PARTITION = TopicPartition("t", 0)
SMALL_BYTES = 2000
ROLLING = kreplog.LogConfig(segment_bytes=300)
NFS, TMPFS = 0x6969, 0x0102_1994
MOUNTED_BY_NFS = "412 29 0:52 / /mnt rw,relatime shared:230 - nfs4 server:/ rw,vers=4.2,local_lock=none"
FIRST = "00000000000000000000.log"
SLOTS = (128, 256)
POSITION = struct.Struct("<Q8q4BIi")  # state.pxd
FIELDS = {"high_watermark": 1, "leo": 2, "log_start_offset": 3, "active_base": 5, "active_size": 6, "generation": 7}


def append(path: Path, *values: bytes, config: kreplog.LogConfig | None = None) -> None:
    with kreplog.Log.open(path, config) as log:
        for value in values:
            log.append_many([value] * 3, timestamps_ms=[1000, 2000, 3000])


def answer(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except (KreplogError, FileNotFoundError) as error:
        return type(error)


def facts(log: kreplog.Log | SmallLog) -> list[Any]:
    """All that a plan may want of a log."""
    start, end = log.log_start_offset, log.high_watermark
    looks: list[Callable[[], Any]] = [
        lambda: log.topic_id,
        lambda: log.incarnation_id,
        lambda: list(log.leader_epochs),
        *(lambda at=at: log.offset_for_timestamp(at) for at in (0, 2500, 9999)),
        *(
            lambda a=a, b=b, most=most: log.offset_ranges(a, b, most)
            for a, b in ((start, end), (start, end - 1), (start + 1, end), (start, start), (start, end + 1))
            for most in (1, 100, SMALL_BYTES)
        ),
    ]
    return [start, end, log.last_stable_offset, *(answer(look) for look in looks)]


def seen(open_log: Callable[[], kreplog.Log | SmallLog]) -> Any:
    def look() -> list[Any]:
        with open_log() as log:
            return facts(log)

    return answer(look)


def compare(path: Path) -> bool:
    """Whether the log is small; fails where what is found differs from what Log.open finds."""
    expected = seen(lambda: kreplog.Log.open(path, read_only=True))
    assert seen(lambda: open_to_plan(str(path), PARTITION, SMALL_BYTES)) == expected
    return published_offsets(str(path), PARTITION, SMALL_BYTES) is not None


def rewrite(path: Path, **fields: int) -> None:
    """Publish other offsets than the writer has, as one that is killed between two steps leaves them."""
    state = path / "kreplog.state"
    page = bytearray(state.read_bytes())
    position = list(max(POSITION.unpack_from(page, slot) for slot in SLOTS))
    position[0] += 1
    for name, value in fields.items():
        position[FIELDS[name]] = value
    packed = POSITION.pack(*position)
    struct.pack_into(f"<{len(packed)}sI", page, SLOTS[position[0] & 1], packed, crc32c(packed))
    state.write_bytes(page)


def damage(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def roll_and_delete(path: Path) -> None:
    append(path, b"x" * 90, b"y" * 90, config=ROLLING)
    with kreplog.Log.open(path) as log:
        log.delete_records_before(log.segments[-1].base_offset)
        assert len(log.segments) == 1
        assert log.log_start_offset > 0


def damage_newest_slot(path: Path) -> None:
    rewrite(path)
    rewrite(path)
    state = path / "kreplog.state"
    damage(state, max(SLOTS, key=lambda slot: POSITION.unpack_from(state.read_bytes(), slot)[0]) + 5)


def damage_slots(path: Path) -> None:
    for slot in SLOTS:
        damage(path / "kreplog.state", slot + 5)


def replace_by_directory(path: Path) -> None:
    (path / "kreplog.state").unlink()
    (path / "kreplog.state").mkdir()


def replace_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


def end_of(path: Path) -> int:
    with kreplog.Log.open(path, read_only=True) as log:
        return log.high_watermark


SMALL: dict[str, Callable[[Path], object]] = {
    "closed": lambda path: None,
    "truncated": lambda path: kreplog.Log.open(path).truncate_to(3),
    "rolled, and the rest deleted": roll_and_delete,
    "its tail torn": lambda path: os.truncate(path / FIRST, (path / FIRST).stat().st_size - 5),
    "all its bytes lost": lambda path: os.truncate(path / FIRST, 0),
    "blocks allocated ahead": lambda path: os.truncate(path / FIRST, 16384),
    "its first header damaged": lambda path: damage(path / FIRST, 16),
    "without topic id": lambda path: (path / "partition.metadata").unlink(),
    "its newest slot damaged": damage_newest_slot,
}
OTHER: dict[str, Callable[[Path], object]] = {
    "several segments": lambda path: append(path, *[b"x" * 90] * 5, config=ROLLING),
    "too large": lambda path: append(path, b"x" * 900),
    "emptied by deletion": lambda path: kreplog.Log.open(path).delete_records_before(6),
    "a first batch begun by deletion": lambda path: kreplog.Log.open(path).delete_records_before(1),
    "not all committed": lambda path: rewrite(path, high_watermark=3),
    "size not known": lambda path: rewrite(path, active_size=-1),
    "both slots damaged": damage_slots,
    "a checkpoint ahead": lambda path: (path.parent / "replication-offset-checkpoint").write_text("0\n1\nt 0 99\n"),
    "its state cut": lambda path: os.truncate(path / "kreplog.state", 4095),
    "its state of another format": lambda path: damage(path / "kreplog.state", 0),
    "its state unreadable": replace_by_directory,
    "written by Kafka": lambda path: (path / "kreplog.state").unlink(),
    "its segment missing": lambda path: (path / FIRST).unlink(),
    "its topic id damaged": lambda path: (path / "partition.metadata").write_text("version: 0\ntopic_id: AA\n"),
    "nothing there": lambda path: shutil.rmtree(path),
    "no directory": replace_by_file,
}


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize(("kind", "small"), [*((kind, True) for kind in SMALL), *((kind, False) for kind in OTHER)])
def test_offsets_are_those_that_open_finds(tmp_path: Path, kind: str, small: bool, compression: str) -> None:
    path = tmp_path / "t-0"
    append(path, b"a", b"b", config=kreplog.LogConfig(compression_type=compression))
    (SMALL | OTHER)[kind](path)
    assert compare(path) == small


def test_a_new_log_and_its_writer(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with kreplog.Log.open(path) as log:
        assert compare(path)
        log.append_many([b"a"])
        assert compare(path)
        log.append_batches(sent(7, 0, b"in a transaction"), transactional=True)
        assert compare(path)
        with open_to_plan(str(path), PARTITION, SMALL_BYTES) as small:
            assert (small.high_watermark, small.last_stable_offset) == (2, 1)
        log.append_transaction_marker(7, 3, committed=False, coordinator_epoch=1)
        assert compare(path)


def test_a_killed_writer(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    append(path, b"a")
    child = os.fork()
    if not child:
        kreplog.Log.open(path).append_many([b"b"] * 4, timestamps_ms=[3000] * 4)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert compare(path)
    assert end_of(path) == 7
    append(path, b"c")
    assert compare(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@pytest.mark.parametrize("closed", ["kreplog.state", FIRST, "partition.metadata", "../replication-offset-checkpoint"])
def test_a_user_who_may_not_read_a_file(folder: Path, closed: str) -> None:
    """It gets what Log.open says."""
    path = folder / "t-0"
    append(path, b"a")
    write_topic_id(str(path), "AAAAAAAAAAAAAAAAAAAAAQ")
    for directory, _, names in os.walk(folder):
        os.chmod(directory, 0o755)
        for name in names:
            os.chmod(os.path.join(directory, name), 0o644)
    (path / closed).touch()
    os.chmod(path / closed, 0o600)

    def small_to_another_user() -> bool:
        os.setuid(NOBODY)
        assert not os.access(path / closed, os.R_OK)
        return compare(path)

    assert result_of(small_to_another_user) == (closed == "../replication-offset-checkpoint")


@pytest.mark.parametrize(("disk", "kind", "opened"), [(0, NFS, True), (0, TMPFS, False), (8, NFS, False)])
def test_on_a_network_mount_the_log_is_opened_and_its_reader_warned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: int, kind: int, opened: bool
) -> None:
    """A file system with a disk's device number is no mount of a network."""
    path = tmp_path / "t-0"
    append(path, b"a")
    expected = seen(lambda: kreplog.Log.open(path, read_only=True))
    monkeypatch.setattr(os, "major", lambda _device: disk)
    monkeypatch.setattr(file_systems, "file_system_type", lambda _path: kind)
    monkeypatch.setattr(file_systems, "_mount_of", lambda _path: parse_mount(MOUNTED_BY_NFS))
    warned = pytest.warns(NetworkFileSystemWarning, match="is on nfs4") if opened else nullcontext()
    with warned, open_to_plan(str(path), PARTITION, SMALL_BYTES) as log:
        assert isinstance(log, kreplog.Log if opened else SmallLog)
        assert facts(log) == expected


def test_a_log_that_is_being_cut_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    append(path, b"a")
    assert published_offsets(str(path), PARTITION, SMALL_BYTES) is not None
    rewrite(path, generation=1)
    assert published_offsets(str(path), PARTITION, SMALL_BYTES) is None


@pytest.mark.parametrize("seed", range(20))
def test_random_logs(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    path = tmp_path / "t-0"
    small = set()
    for _ in range(12):
        config = kreplog.LogConfig(
            segment_bytes=rng.choice([300, 1 << 20]), compression_type=rng.choice(["none", "gzip", "lz4"])
        )
        with kreplog.Log.open(path, config) as log:
            for _ in range(rng.randint(1, 3)):
                start, end = log.log_start_offset, log.log_end_offset
                match rng.randrange(4):
                    case 0:
                        log.truncate_to(rng.randint(start, end))
                    case 1:
                        log.delete_records_before(rng.choice([end, rng.randint(start, end)]))
                    case _:
                        log.append_many([b"x" * rng.randint(0, 100)] * rng.randint(1, 5))
                small.add(compare(path))
        small.add(compare(path))
        if rng.random() < 0.2 and (files := sorted(path.glob("*.log"))):
            os.truncate(files[-1], rng.randint(0, files[-1].stat().st_size))
            small.add(compare(path))
    assert small == {True, False}


def test_a_partition_that_is_created_again_shows_by_its_ids(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    append(path, b"a")
    with open_to_plan(str(path), PARTITION, SMALL_BYTES) as log:
        assert isinstance(log, SmallLog)
        shutil.rmtree(path)
        append(path, b"b", b"c")
        assert log.offset_for_timestamp(2000) == 1
        with kreplog.Log.open(path, read_only=True) as other:
            assert (log.topic_id, log.incarnation_id) != (other.topic_id, other.incarnation_id)


def test_no_descriptor_left(tmp_path: Path) -> None:
    append(tmp_path / "t-0", b"a")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open("/dev/null", os.O_RDONLY)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
        while True:
            try:
                taken.append(os.dup(taken[0]))
            except OSError:
                break
        with pytest.raises(ResourceExhaustedError):
            open_to_plan(str(tmp_path / "t-0"), PARTITION, SMALL_BYTES)
    finally:
        for file in taken:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert compare(tmp_path / "t-0")
