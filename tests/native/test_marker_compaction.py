"""Compaction of transaction markers: one goes some time after the last record of its transaction (KIP-534)."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from kreplog import Log, LogConfig
from kreplog._native.encoded import active_producers
from tests.native.test_transactions import index_of
from tests.reference import CONTROL, HEADER, TRANSACTIONAL, Batch, Rec, encode, split

DAY = 86_400_000
DELETE_HORIZON = 64
PRODUCERS = (7, 8, 9)
CONFIG = LogConfig(
    cleanup_policy="compact",
    min_cleanable_dirty_ratio=0,
    replicated=True,
    delete_retention_ms=DAY,
    index_interval_bytes=100,
)


@dataclass
class History:
    """All batches that were appended, and are not truncated."""

    batches: list[Batch] = field(default_factory=list)
    commits: bool = True  # what is appended lies below the high watermark at once

    def write(self, log: Log, rows: list[tuple[bytes, bytes | None]], producer: int = -1) -> None:
        base = log.log_end_offset
        records = tuple(Rec(base + number, 5, key, value) for number, (key, value) in enumerate(rows))
        if producer < 0:
            self.append(log, Batch(records, base))
            return
        epoch, last_sequence = self.producers().get(producer, (0, -1))
        self.append(log, Batch(records, base, 0, TRANSACTIONAL, 5, 5, producer, epoch, last_sequence + 1))

    def end(self, log: Log, producer: int, committed: bool, bump: bool) -> None:
        """bump: the marker has the next epoch of the producer (KIP-890)."""
        base = log.log_end_offset
        epoch = self.producers().get(producer, (0, -1))[0] + bump
        marker = Rec(base, 5, b"\0\0\0" + bytes([committed]), bytes(6))
        self.append(log, Batch((marker,), base, 0, TRANSACTIONAL | CONTROL, 5, 5, producer, epoch))

    def append(self, log: Log, batch: Batch) -> None:
        self.batches.append(batch)
        log.append_as_follower(encode(batch))
        if self.commits:
            log.advance_high_watermark(log.log_end_offset)

    def truncate(self, end: int) -> None:
        self.batches = [batch for batch in self.batches if batch.last_offset < end]

    def producers(self) -> dict[int, tuple[int, int]]:
        """The epoch of each, and its last sequence there."""
        found: dict[int, tuple[int, int]] = {}
        for batch in self.batches:
            epoch, sequence = found.get(batch.producer_id, (0, -1))
            if batch.attributes & CONTROL:
                found[batch.producer_id] = batch.producer_epoch, sequence if batch.producer_epoch == epoch else -1
            elif batch.producer_id >= 0 and batch.base_sequence >= 0:
                found[batch.producer_id] = batch.producer_epoch, batch.base_sequence + len(batch.records) - 1
        return found

    def open_since(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for batch in self.batches:
            if batch.attributes & CONTROL:
                found.pop(batch.producer_id, None)
            elif batch.attributes & TRANSACTIONAL:
                found.setdefault(batch.producer_id, batch.base_offset)
        return found

    def last_stable(self, end: int) -> int:
        return min([end, *self.open_since().values()])

    def newest(self) -> dict[bytes | None, bytes]:
        """Of each key what a reader of committed records is to find last."""
        decided: list[Rec] = []
        pending: dict[int, list[Rec]] = {}
        for batch in self.batches:
            if batch.attributes & CONTROL:
                records = pending.pop(batch.producer_id, [])
                decided += records if batch.records[0].key == b"\0\0\0\1" else []
            elif batch.attributes & TRANSACTIONAL:
                pending.setdefault(batch.producer_id, []).extend(batch.records)
            else:
                decided += batch.records
        stable = min((min(record.offset for record in records) for records in pending.values()), default=1 << 60)
        newest = {record.key: record.value for record in sorted(decided, key=by_offset) if record.offset < stable}
        return {key: value for key, value in newest.items() if value is not None}


def by_offset(record: Rec) -> int:
    return record.offset


def check(log: Log, history: History) -> None:
    found = {record.key: record.value for record in log.read(isolation="read_committed")}
    assert {key: value for key, value in found.items() if value is not None} == history.newest()
    assert log.last_stable_offset == history.last_stable(log.log_end_offset)
    producers = {active.producer_id: (active.producer_epoch, active.last_sequence) for active in active_producers(log)}
    assert producers == history.producers()
    assert not log.verify().damages


def check_killed(path: Path, copy: Path, rng: random.Random, history: History) -> None:
    """As `check`, for what a process killed at this moment leaves, with some snapshots torn."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    for snapshot in copy.glob("*.snapshot"):
        if rng.random() < 0.5:
            snapshot.write_bytes(snapshot.read_bytes()[:-1])
    if rng.random() < 0.5:
        for index in copy.glob("*.txnindex"):
            index.unlink()
        for snapshot in copy.glob("*.snapshot"):
            snapshot.unlink()
    with Log.open(copy, CONFIG) as log:
        check(log, history)


def headers(path: Path) -> Iterator[tuple[int, ...]]:
    for name in sorted(path.glob("*.log")):
        yield from (HEADER.unpack_from(data) for _, data in split(name.read_bytes()))


def markers(path: Path) -> list[int]:
    found = [header for header in headers(path) if header[5] & CONTROL]
    assert all(header[12] == 1 for header in found), "clients need the record of a marker"
    return [header[0] for header in found]


def without_batch(path: Path) -> set[tuple[int, int]]:
    """(producer id, epoch) of the markers before which there is no batch of their transaction, but for the last of each
    segment."""
    begun, found = set(), set()
    for name in sorted(path.glob("*.log")):
        batches = [HEADER.unpack_from(data) for _, data in split(name.read_bytes())]
        for header in batches:
            producer = header[9]
            if not header[5] & CONTROL:
                begun |= {producer} if header[5] & TRANSACTIONAL else set()
            elif producer in begun:
                begun.remove(producer)
            elif header is not batches[-1]:
                found.add((producer, header[10]))
    return found


def compact_all(log: Log, now_ms: int) -> None:
    while (report := log.compact(now_ms, force=True)) is not None and report.end_offset < log.log_end_offset:
        pass


@pytest.mark.parametrize("committed", [False, True])
def test_a_marker_goes_after_the_records_of_its_transaction(tmp_path: Path, committed: bool) -> None:
    path = tmp_path / "topic-0"
    history = History()
    with Log.open(path, CONFIG) as log:
        history.write(log, [(b"a", b"1")], 7)
        history.end(log, 7, committed, bump=False)
        history.write(log, [(b"a", b"2")], 8)  # by another producer, and the next of 7, which are the newest
        history.end(log, 8, True, bump=False)
        history.write(log, [(b"b", b"3")], 7)
        history.end(log, 7, True, bump=False)
        log.roll()
        log.compact(1000, force=True)
        assert markers(path) == [1, 3, 5] and len(index_of(path)) == (not committed)
        log.compact(2000, force=True)
        assert index_of(path) == [], "it is gone before the marker"
        assert [(header[5], header[7]) for header in headers(path) if header[0] == 1] == [
            (TRANSACTIONAL | CONTROL | DELETE_HORIZON, 2000 + DAY)
        ]
        log.compact(1999 + DAY, force=True)
        assert markers(path) == [1, 3, 5]
        log.compact(2000 + DAY, force=True)
        assert markers(path) == [3, 5]
        check(log, history)


@pytest.mark.parametrize("bump", [False, True])
def test_a_producer_is_found_again_though_its_newest_batch_is_truncated(tmp_path: Path, bump: bool) -> None:
    """By the newest that compaction may look at, where no snapshot is left. bump: by a marker, which began it."""
    path = tmp_path / "topic-0"
    history = History()
    with Log.open(path, CONFIG) as log:
        for _ in range(3):
            history.write(log, [(b"a", b"1")], 7)
        history.end(log, 7, True, bump)
        history.write(log, [(b"a", b"2")])
        log.roll()
        history.commits = False
        history.write(log, [(b"a", b"3")], 7)
        history.end(log, 7, True, bump=True)
        for now_ms in (1000, 2000, 2001 + DAY):
            log.compact(now_ms, force=True)
        for snapshot in path.glob("*.snapshot"):
            snapshot.unlink()
        assert log.high_watermark == 5
        history.truncate(log.truncate_to(5))
        check(log, history)


def test_of_the_markers_that_alone_have_an_epoch_the_newest_stays(tmp_path: Path) -> None:
    path = tmp_path / "topic-0"
    history = History()
    with Log.open(path, CONFIG) as log:
        for _ in range(9):
            history.end(log, 7, False, bump=False)
        history.write(log, [(b"a", b"1")])
        log.roll()
        for now_ms in (1000, 2001 + DAY):
            log.compact(now_ms, force=True)
        assert markers(path) == [8]
        check(log, history)


def test_a_batch_without_a_sequence_is_not_what_a_producer_is_found_again_by(tmp_path: Path) -> None:
    """A coordinator's, which leaves the state of the producer as it was."""
    path = tmp_path / "topic-0"
    history = History()
    with Log.open(path, CONFIG) as log:
        history.write(log, [(b"a", b"1")], 7)
        history.end(log, 7, True, bump=True)
        history.write(log, [(b"b", b"1")], 8)
        history.end(log, 8, True, bump=False)
        for producer, epoch in ((7, 1), (8, 0)):
            base = log.log_end_offset
            history.append(log, Batch((Rec(base, 5, b"a", b"2"),), base, 0, 0, 5, 5, producer, epoch))
        history.write(log, [(b"a", b"3"), (b"b", b"3")])
        log.roll()
        for now_ms in (1000, 2000, 2001 + DAY):
            log.compact(now_ms, force=True)
        check(log, history)
    for snapshot in path.glob("*.snapshot"):
        snapshot.unlink()
    with Log.open(path, CONFIG) as log:
        check(log, history)


def test_the_search_for_the_newest_batches_counts_as_bytes_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that only sleep() moves shows how many bytes were counted."""
    rate = 1000
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("time.sleep", lambda s: clock.__setitem__(0, clock[0] + s))

    def counted(producer: int) -> tuple[int, float]:
        history = History()
        with Log.open(tmp_path / f"topic-{producer + 1}", CONFIG) as log:
            for number in range(20):
                sequence = number if producer >= 0 else -1
                records = (Rec(number, 5, b"%d" % number, bytes(100)),)
                history.append(log, Batch(records, number, 0, 0, 5, 5, producer, 0, sequence))
            size = log.size
            log.roll()
            clock[0] = 0.0
            log.compact(1000, max_bytes_per_second=rate)
            assert len(list(log.read())) == 20
        return size, clock[0] * rate

    size, without = counted(-1)
    same_size, found = counted(7)
    assert same_size == size
    assert found - without == pytest.approx(size)


def test_more_open_transactions_than_are_expected(tmp_path: Path) -> None:
    path = tmp_path / "topic-0"
    producers = range(7, 207)
    history = History()
    with Log.open(path, CONFIG) as log:
        for producer in producers:
            history.write(log, [(b"%d" % producer, b"1")], producer)
        for producer in producers:
            history.end(log, producer, producer % 2 == 0, bump=False)
        log.roll()
        for now_ms in (1000, 1000, 1001 + DAY, 1001 + DAY):
            log.compact(now_ms, force=True)
            assert len(markers(path)) == len(producers), "each has its batch, which is its producer's newest"
            check(log, history)


def check_follower(log: Log, path: Path, history: History) -> None:
    with Log.open(path, CONFIG) as follower:
        while follower.log_end_offset < log.log_end_offset:
            fetched = log.fetch(follower.log_end_offset, 500, "log_end")
            follower.append_as_follower(bytes(fetched.data))
            follower.advance_high_watermark(follower.log_end_offset)
        check(follower, history)


@pytest.mark.parametrize(
    "seed", [*range(10), 31, 46, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(50, 250))]
)
def test_any_history(tmp_path: Path, seed: int) -> None:
    """What readers, the coordinator and a producer go by stays as it was, whatever is compacted, reopened, killed or
    truncated; and in the end the markers are gone."""
    rng = random.Random(seed)
    path = tmp_path / "topic-0"
    config = replace(
        CONFIG, segment_bytes=rng.choice([500, 3000, 1 << 20]), dedupe_buffer_size=rng.choice([1024, 1 << 20])
    )
    keys = rng.choice([4, 60])
    history = History()
    now_ms = 1000
    decided = 0
    log = Log.open(path, config)
    for _ in range(rng.randrange(30, 200)):
        producer = rng.choice([-1, *PRODUCERS])
        action = rng.random()
        if producer in history.open_since() and action < 0.5:
            history.end(log, producer, rng.random() < 0.5, rng.random() < 0.3)
        elif producer >= 0 and action < 0.05:
            history.end(log, producer, False, True)  # of a transaction that has written elsewhere
        elif action < 0.7:
            rows = [
                (b"%d" % rng.randrange(keys), rng.choice([None, b"%d" % rng.randrange(1000)]))
                for _ in range(rng.randrange(1, 4))
            ]
            history.write(log, rows, producer)
        elif action < 0.9:
            if rng.random() < 0.5:
                log.roll()
            log.compact(now_ms, force=True)
            decided = log.log_end_offset  # what decides about records that are compacted is not truncated
            now_ms += rng.choice([1, DAY // 2, 2 * DAY])
            check(log, history)
        elif action < 0.94:
            log.close()
            log = Log.open(path, config)
            check(log, history)
        elif action < 0.98:
            check_killed(path, tmp_path / "killed-0", rng, history)
        elif decided < log.log_end_offset:
            history.truncate(log.truncate_to(rng.randrange(decided, log.log_end_offset)))
            check(log, history)
    for producer in sorted(history.open_since()):
        history.end(log, producer, rng.random() < 0.5, False)
    for key in range(keys):
        history.write(log, [(b"%d" % key, b"last")])
    log.roll()
    for _ in range(9):
        compact_all(log, now_ms)
        check(log, history)
        check_killed(path, tmp_path / "killed-0", rng, history)
        now_ms += 2 * DAY
    check_follower(log, tmp_path / "follower-0", history)
    assert without_batch(path) <= {
        (producer, epoch) for producer, (epoch, last) in history.producers().items() if last < 0
    }
    assert {last for *_, last, _ in index_of(path)} <= set(markers(path))
    log.close()
    with Log.open(path, config) as log:
        check(log, history)
