"""Driver: a managed log waits for no fsync until there is a record, and the record waits for the names it needs; nor
does an append that seals a segment ("sealed") or begins an epoch, which is durable before a flush says of its records
that they are ("epochs"). Where segments are deleted before a flush has come to them, what they say of producers is
durable first ("deleted")."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kreplog import Log, LogConfig
from kreplog._native.batch import build
from kreplog.managed_log import ManagedLog
from tests.faults.shim import Shim

NAMES = {"partition.metadata", "kreplog.state", "topic-0", "data"}
EPOCHS = "leader-epoch-checkpoint"


def mapped_for_writing() -> int:
    """How many segments this process has mapped for writing."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum(" rw-s " in line and line.endswith(".log") for line in lines)


def seal(root: Path) -> None:
    shim = Shim()
    synced: list[str] = []
    log = ManagedLog.open(root / "data" / "topic-0", LogConfig(replicated=True, segment_bytes=1000))

    def append() -> None:
        leo = log.log_end_offset
        log.append_batches(build([bytes(400)], producer_id=7, producer_epoch=0, base_sequence=leo))

    append()
    log.flush_sealed()
    shim.on_sync(lambda descriptor: synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
    for _ in range(6):
        append()
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4, 6]
    assert not synced, synced
    assert (log.has_unflushed_segments, log.recovery_point) == (True, 0)
    mapped = mapped_for_writing()
    assert mapped in (4, 0), "one was unmapped (0: the file system allocates nothing ahead, so nothing is mapped)"

    log.flush_sealed()
    assert mapped_for_writing() == min(mapped, 1)
    assert set(synced) == {f"{6:020}.snapshot", f"{0:020}.log", f"{2:020}.log", "topic-0"}, synced
    assert (log.has_unflushed_segments, log.recovery_point) == (False, 4)
    synced.clear()
    log.flush_sealed()
    assert not synced, synced
    for _ in range(2):
        append()
    log.flush()
    assert set(synced) == {f"{8:020}.snapshot", *(f"{at:020}.log" for at in (4, 6, 8)), "topic-0"}, synced
    assert (log.has_unflushed_segments, log.recovery_point) == (False, log.log_end_offset)
    shim.on_sync(None)
    log.close()


def delete(root: Path) -> None:
    shim = Shim()
    synced: list[tuple[str, int]] = []
    log = ManagedLog.open(root / "data" / "topic-0", LogConfig(replicated=True, segment_bytes=1000))
    for at in range(7):
        producer = 7 if at < 2 else 8
        log.append_batches(build([bytes(400)], producer_id=producer, producer_epoch=0, base_sequence=at))
    log.advance_high_watermark(7)

    def note(descriptor: int) -> None:
        first = min(int(segment.stem) for segment in (root / "data" / "topic-0").glob("*.log"))
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, first))

    shim.on_sync(note)
    log.delete_records_before(6)
    snapshot = (f"{6:020}.snapshot", 0)
    assert snapshot in synced, f"only the snapshot has producer 7 now: {synced}"
    assert ("topic-0", 0) in synced[synced.index(snapshot) :], synced
    synced.clear()
    log.flush_sealed()
    assert f"{6:020}.snapshot" not in dict(synced), synced
    shim.on_sync(None)
    log.close()


def begin_epochs(root: Path) -> None:
    shim = Shim()
    synced: list[tuple[str, int]] = []
    log = ManagedLog.open(root / "data" / "topic-0", LogConfig(replicated=True))
    log.sync_files()
    with Log.open(root / "source-0") as source:
        source.assign_leader_epoch(5)
        source.append_many([b"0", b"1", b"2"])
        source.append(b"3")
        fetched = bytes(source.fetch(3).data)

    def note(descriptor: int) -> None:
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, log.recovery_point))

    def names() -> set[str]:
        found = {name for name, _ in synced}
        synced.clear()
        return found

    shim.on_sync(note)
    log.append_batches(build([b"0", b"1"]), 3)
    assert (log.has_unflushed_segments, names()) == (True, set())
    log.flush_sealed()
    assert (log.has_unflushed_segments, log.recovery_point, names()) == (False, 0, {EPOCHS, "topic-0"})
    log.append_batches(build([b"2"]), 4)
    log.append_as_follower(fetched)
    assert (log.has_unflushed_segments, names()) == (True, set())
    log.flush()
    assert {(EPOCHS, 0), ("topic-0", 0), (f"{0:020}.log", 0)} == set(synced), synced
    assert (log.has_unflushed_segments, log.recovery_point, len(names())) == (False, 4, 3)
    log.flush_sealed()
    assert names() == set()
    log.append_batches(build([b"4"]), 6)
    log.close()
    assert names() >= {EPOCHS, "topic-0"}
    shim.on_sync(None)
    with Log.open(root / "data" / "topic-0", LogConfig(replicated=True)) as again:
        assert again.leader_epochs == [(3, 0), (4, 2), (5, 3), (6, 4)]

    killed = ManagedLog.open(root / "data" / "topic-0", LogConfig(replicated=True))
    killed.append_batches(build([b"5"]), 7)
    killed.abandon()
    shim.on_sync(note)
    log = ManagedLog.open(root / "data" / "topic-0", LogConfig(replicated=True))
    assert log.has_unflushed_segments
    names()
    log.flush()
    assert (log.recovery_point, names()) == (6, {EPOCHS, "topic-0", f"{0:020}.log"})
    shim.on_sync(None)
    log.close()


def main(root: Path, how: str) -> None:
    (root / "data").mkdir()
    if how == "sealed":
        seal(root)
    elif how == "deleted":
        delete(root)
    elif how == "epochs":
        begin_epochs(root)
    else:
        begin(root, how)


def begin(root: Path, how: str) -> None:
    shim = Shim()
    synced: list[str] = []
    written: list[int] = []
    segment = root / "data" / "topic-0" / f"{0:020}.log"

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2])
        written.append(first_bytes())

    def first_bytes() -> int:
        return int.from_bytes(segment.read_bytes()[:61], "big") if segment.exists() else 0

    shim.on_sync(note)
    log = ManagedLog.open(root / "data" / "topic-0", LogConfig(replicated=True))
    synced.clear()  # the id that a log gives itself; a broker's has one
    log.assign_leader_epoch(3)
    assert not synced, synced
    if how == "sync_files":
        log.sync_files()
        assert set(synced) == NAMES, synced
    log.append(b"value")
    assert not any(written), "a record was written before all that it needs was durable"
    assert set(synced) == (NAMES | {EPOCHS} if how == "append" else NAMES), synced
    synced.clear()
    log.append(b"value")
    log.sync_files()
    assert not synced, "nothing is left to sync"
    log.assign_leader_epoch(4)
    log.append(b"value")
    log.assign_leader_epoch(5)
    assert not synced
    log.close()
    shim.on_sync(None)
    with Log.open(root / "data" / "topic-0", LogConfig(replicated=True)) as again:
        assert again.leader_epochs == [(3, 0), (4, 2), (5, 3)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
