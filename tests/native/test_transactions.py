"""Transactions in a log: markers, the last stable offset, and the index of aborted ones, beside a model (KIP-98)."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow
import pytest

from kreplog import Log, LogConfig
from kreplog._native import writable
from kreplog._native.arrow import ArrowBuilder
from kreplog._native.batch import decode
from kreplog._native.fetched import FetchedBatches
from kreplog._native.reader import ArrowPieces
from kreplog._native.state import STATE_NAME
from kreplog.errors import (
    CoordinatorFencedError,
    CorruptBatchError,
    CorruptCheckpointError,
    InvalidTransactionStateError,
    OffsetOutOfRangeError,
    ProducerFencedError,
    UnverifiedTransactionError,
    UsageError,
)
from tests import reference
from tests.reference import CONTROL, TRANSACTIONAL, sent
from tests.waiting import InChild, until

ENTRY = struct.Struct(">hqqqq")


@dataclass
class Written:
    """A batch of the model. committed: of a marker; None for data."""

    offset: int
    end: int
    producer_id: int
    values: tuple[bytes, ...]
    transactional: bool
    committed: bool | None = None


@dataclass
class Model:
    """All that is in the log, from which every answer is found again, by looking at all of it."""

    batches: list[Written] = field(default_factory=list)
    start: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.start

    def transactions(self) -> list[tuple[int, int, int, bool | None]]:
        """(producer id, first offset, marker's offset or the log end, how it was decided), oldest decision first."""
        opened: dict[int, int] = {}
        found = []
        for batch in self.batches:
            if batch.committed is not None:
                if batch.producer_id in opened:
                    found.append((batch.producer_id, opened.pop(batch.producer_id), batch.offset, batch.committed))
            elif batch.transactional:
                opened.setdefault(batch.producer_id, batch.offset)
        return [*found, *((producer, first, self.end, None) for producer, first in opened.items())]

    def last_stable(self, high_watermark: int, start: int) -> int:
        unstable = [
            first
            for _, first, marker, committed in self.transactions()
            if committed is None or marker >= high_watermark
        ]
        return max(min([high_watermark, *unstable]), start)

    def aborted(self) -> list[tuple[int, int, int, int]]:
        """The index: (producer id, first, last, last stable offset) of each aborted transaction."""
        every = self.transactions()
        entries = []
        for producer, first, marker, committed in every:
            if committed is False:
                others = [begun for _, begun, ended, _ in every if begun < marker < ended]
                entries.append((producer, first, marker, min([marker + 1, *others])))
        return entries

    def stable_values(self, start: int, stop: int) -> list[bytes]:
        gone = [
            (producer, first, marker) for producer, first, marker, committed in self.transactions() if not committed
        ]
        return [
            value
            for batch in self.batches
            if batch.committed is None
            and not (
                batch.transactional
                and any(
                    producer == batch.producer_id and first <= batch.offset < last for producer, first, last in gone
                )
            )
            for at, value in enumerate(batch.values, batch.offset)
            if start <= at < stop
        ]


def index_of(path: Path) -> list[tuple[int, int, int, int]]:
    """The entries of all `.txnindex` files of a partition; each stands in the segment that holds its marker."""
    bases = sorted(int(name.stem) for name in path.glob("*.log"))
    found = []
    for name in sorted(path.glob("*.txnindex")):
        data = name.read_bytes()
        assert data, f"{name} is empty"
        for version, *entry in ENTRY.iter_unpack(data):
            assert version == 0
            assert max(base for base in bases if base <= entry[2]) == int(name.stem)
            found.append(tuple(entry))
    return found


def fetched_values(log: Log, start: int) -> list[bytes]:
    """What a consumer of Kafka's makes of fetches up to the last stable offset."""
    values: list[bytes] = []
    while True:
        fetched = log.fetch(start, 300, "last_stable")
        if not len(fetched.data):
            return values
        batches = FetchedBatches(fetched.data, start, fetched.next_offset, fetched.aborted)
        builder = ArrowBuilder(("value",), "ms")
        while not batches.exhausted:
            batches.add_to(builder, 1 << 20)
        pa = pytest.importorskip("pyarrow")
        values += pa.record_batch(builder.finish()).column("value").to_pylist()
        start = fetched.next_offset


def compare(log: Log, model: Model, path: Path) -> None:
    start, stable = log.log_start_offset, model.last_stable(log.high_watermark, log.log_start_offset)
    assert log.last_stable_offset == stable
    wanted = model.stable_values(start, stable)
    assert list(log.values(isolation="read_committed")) == wanted
    assert fetched_values(log, start) == wanted
    arrow = [value for piece in log.to_arrow(isolation="read_committed") for value in piece["value"].to_pylist()]
    assert arrow == wanted
    assert [record.value for record in log.follow(timeout=0, isolation="read_committed")] == wanted
    with Log.open(path, read_only=True) as reader:
        assert reader.last_stable_offset == stable
        assert list(reader.values(isolation="read_committed")) == wanted
    first = log.segments[0].base_offset
    assert index_of(path) == [entry for entry in model.aborted() if entry[2] >= first]


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 40))])
def test_a_log_and_its_model(tmp_path: Path, replicated: bool, seed: int) -> None:
    """Transactions of some producers beside other batches, with rolls, truncation, retention, kills and restarts."""
    rng = random.Random(seed)
    path = tmp_path / "t-0"
    config = LogConfig(replicated=replicated, segment_bytes=1500, index_interval_bytes=200)
    log, model = Log.open(path, config), Model()
    sequences: dict[int, int] = {}
    for turn in range(250):
        step = rng.random()
        producer = rng.randrange(5)
        if step < 0.5:
            transactional = producer != 0
            values = tuple(f"{turn}-{n}".encode() for n in range(rng.randrange(1, 4)))
            log.append_batches(
                sent(producer, sequences.get(producer, 0), *values, transactional=transactional), transactional=True
            )
            sequences[producer] = sequences.get(producer, 0) + len(values)
            end = log.log_end_offset
            model.batches.append(Written(end - len(values), end, producer, values, transactional))
        elif step < 0.75:
            committed = rng.random() < 0.5
            at = log.append_transaction_marker(producer, 0, committed=committed, coordinator_epoch=1).first_offset
            model.batches.append(Written(at, at + 1, producer, (), True, committed))
        elif step < 0.85 and replicated:
            log.advance_high_watermark(rng.choice([batch.end for batch in model.batches] or [0]))
        elif step < 0.88 and replicated and model.end > log.log_start_offset:
            end = log.truncate_to(rng.randrange(max(log.high_watermark, log.log_start_offset), model.end + 1))
            model.batches = [batch for batch in model.batches if batch.end <= end]
            sequences = last_sequences(model, sequences)
        elif step < 0.91:
            log.delete_records_before(rng.randrange(log.log_start_offset, log.high_watermark + 1))
        elif step < 0.96:
            if rng.random() < 0.5:
                log.close()
            else:
                writable.abandon(log)
            log = Log.open(path, config)
            assert log.log_end_offset == model.end
        if rng.random() < 0.15:
            compare(log, model, path)
    compare(log, model, path)
    log.close()
    compare(Log.open(path, config), model, path)


def last_sequences(model: Model, before: dict[int, int]) -> dict[int, int]:
    """The next sequence of each producer by the batches that are left."""
    found = dict.fromkeys(before, 0)
    for batch in model.batches:
        if batch.committed is None:
            found[batch.producer_id] = found.get(batch.producer_id, 0) + len(batch.values)
    return found


def test_the_marker_is_kafkas(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log:
        log.append_batches(sent(7, 0, b"a"), transactional=True)
        log.append_transaction_marker(7, 3, committed=True, coordinator_epoch=9)
        (marker,) = [reference.decode(data) for at, data in reference.split(bytes(log.fetch(1).data))]
    assert (marker.attributes, marker.producer_id, marker.producer_epoch, marker.base_sequence) == (48, 7, 3, -1)
    assert [(record.key, record.value) for record in marker.records] == [(b"\0\0\0\1", b"\0\0\0\0\0\x09")]


def test_what_is_refused_of_producers_and_coordinators(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "t-0")
    with pytest.raises(CorruptBatchError, match="attributes"):
        log.append_batches(sent(7, 0, b"a"))
    marker = replace(reference.decode(sent(7, 0, b"a")), attributes=TRANSACTIONAL | CONTROL)
    with pytest.raises(CorruptBatchError, match="attributes"):
        log.append_batches(reference.encode(marker), transactional=True)
    with pytest.raises(CorruptBatchError, match="attributes"):
        log.append_batches(sent(-1, -1, b"a", epoch=-1), transactional=True)
    log.append_batches(sent(7, 0, b"a"), transactional=True)
    with pytest.raises(InvalidTransactionStateError, match="open since offset 0"):
        log.append_batches(sent(7, 1, b"b", transactional=False))
    log.append_transaction_marker(7, 2, committed=False, coordinator_epoch=5)
    with pytest.raises(ProducerFencedError):
        log.append_transaction_marker(7, 1, committed=False, coordinator_epoch=5)
    with pytest.raises(CoordinatorFencedError, match="epoch 4"):
        log.append_transaction_marker(7, 2, committed=False, coordinator_epoch=4)
    with pytest.raises(ProducerFencedError):
        log.append_batches(sent(7, 1, b"late"), transactional=True)
    with pytest.raises(UsageError, match="negative"):
        log.append_transaction_marker(7, -1, committed=False, coordinator_epoch=4)
    with pytest.raises(UsageError, match="read_committed"):
        log.read(isolation="committed")
    assert log.log_end_offset == 2
    log.close()


@pytest.mark.parametrize("left", ["closed", "killed", "without its snapshot"])
def test_an_epoch_that_a_marker_began_fences_after_the_log_is_opened_again(tmp_path: Path, left: str) -> None:
    """Though no producer has a batch with a sequence here: its transaction wrote elsewhere."""
    path = tmp_path / "t-0"
    log = Log.open(path)
    log.append_transaction_marker(7, 2, committed=False, coordinator_epoch=5)
    if left == "killed":
        writable.abandon(log)
    else:
        log.close()
    if left == "without its snapshot":
        for name in path.glob("*.snapshot"):
            name.unlink()
    with Log.open(path) as log:
        with pytest.raises(ProducerFencedError):
            log.append_batches(sent(7, 0, b"late", epoch=1), transactional=True)
        with pytest.raises(CoordinatorFencedError, match="epoch 4"):
            log.append_transaction_marker(7, 2, committed=False, coordinator_epoch=4)
        assert log.log_end_offset == 1


@pytest.mark.parametrize("transactional", [False, True])
def test_a_reader_of_a_directory_without_a_state_file_finds_the_producers(tmp_path: Path, transactional: bool) -> None:
    """As another program leaves it, which has written no snapshot yet."""
    path = tmp_path / "t-0"
    with Log.open(path) as log:
        log.append_transaction_marker(7, 2, committed=False, coordinator_epoch=5)
        log.append_batches(sent(8, 0, b"a", transactional=transactional), transactional=transactional)
    for name in (path / STATE_NAME, *path.glob("*.snapshot")):
        name.unlink()
    with Log.open(path, read_only=True) as reader:
        assert reader.last_stable_offset == (1 if transactional else 2)
        assert list(reader.values(isolation="read_committed")) == ([] if transactional else [b"a"])
    assert not (path / STATE_NAME).exists()


def test_a_follower_has_the_same_index(tmp_path: Path) -> None:
    """It learns of transactions by the leader's batches, which it also gets many at a time."""
    leader = Log.open(tmp_path / "l-0", LogConfig(replicated=True))
    follower = Log.open(tmp_path / "f-0", LogConfig(replicated=True))
    for producer in range(4):
        leader.append_batches(sent(producer, 0, b"%d" % producer), transactional=True)
    for producer in (2, 0, 1):
        leader.append_transaction_marker(producer, 0, committed=producer == 0, coordinator_epoch=1)
    follower.append_as_follower(bytes(leader.fetch(0, 1 << 20, "log_end").data))
    assert index_of(tmp_path / "f-0") == index_of(tmp_path / "l-0") == [(2, 2, 4, 0), (1, 1, 6, 3)]
    assert (follower.high_watermark, follower.last_stable_offset) == (0, 0)
    follower.advance_high_watermark(7)
    assert follower.last_stable_offset == 3
    assert list(follower.values(isolation="read_committed")) == [b"0"]
    leader.close()
    follower.close()


def test_a_decided_transaction_is_unstable_until_its_marker_is_committed(tmp_path: Path) -> None:
    """Else a consumer would see it, and then not, if the marker is lost in a failover."""
    with Log.open(tmp_path / "t-0", LogConfig(replicated=True)) as log:
        log.append_batches(sent(1, 0, b"a", b"b"), transactional=True)
        log.append_transaction_marker(1, 0, committed=True, coordinator_epoch=0)
        log.advance_high_watermark(2)
        assert log.last_stable_offset == 0
        log.advance_high_watermark(3)
        assert log.last_stable_offset == 3


def test_the_index_is_replaced_where_a_loss_of_power_has_left_an_older_one(tmp_path: Path) -> None:
    """Entries past the recovery point count for nothing: here they are gone, torn, or those of another history."""
    path = tmp_path / "t-0"
    for damage in (b"", b"\0" * 20, ENTRY.pack(0, 9, 4, 5, 5)):
        log = Log.open(path)
        at = log.log_end_offset
        log.append_batches(sent(at, 0, b"a"), transactional=True)
        log.append_transaction_marker(at, 0, committed=False, coordinator_epoch=0)
        writable.abandon(log)
        (name,) = path.glob("*.txnindex")
        sound = name.read_bytes()
        name.write_bytes(sound[:-34] + damage)
        log = Log.open(path)
        assert name.read_bytes() == sound
        log.close()


def test_an_index_that_damage_made_huge_is_replaced(tmp_path: Path) -> None:
    """Without being read as a whole."""
    path = tmp_path / "t-0"
    log = Log.open(path)
    log.append_batches(sent(1, 0, b"a"), transactional=True)
    log.append_transaction_marker(1, 0, committed=False, coordinator_epoch=0)
    writable.abandon(log)
    (name,) = path.glob("*.txnindex")
    sound = name.read_bytes()
    os.truncate(name, 1 << 40)
    Log.open(path).close()
    assert name.stat().st_size == len(sound)
    assert name.read_bytes() == sound


def test_a_reader_finds_the_index_of_a_segment_that_it_has_not_listed_yet(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log:
        log.append(b"a")
        log.roll()
        log.append_batches(sent(1, 0, b"aborted"), transactional=True)
        with Log.open(tmp_path / "t-0", read_only=True) as reader:
            log.roll()
            log.append_transaction_marker(1, 0, committed=False, coordinator_epoch=0)
            assert list(reader.values(isolation="read_committed")) == [b"a"]


def test_readers_see_no_change_while_the_next_writer_recovers(tmp_path: Path) -> None:
    """It reads the batches in their order, with transactions that are decided before the one that is open."""
    path = tmp_path / "t-0"
    log = Log.open(path)
    for pair in range(100):
        for producer in (2 * pair, 2 * pair + 1):
            log.append_batches(sent(producer, 0, b"%d" % producer), transactional=True)
        for producer in (2 * pair + 1, 2 * pair):
            log.append_transaction_marker(producer, 0, committed=producer % 2 == 0, coordinator_epoch=0)
    log.append_batches(sent(1000, 0, b"open"), transactional=True)
    log.append(b"behind it")

    def watch() -> set[tuple[int, tuple[bytes | None, ...]]]:
        seen = set()
        with Log.open(path, read_only=True) as reader:
            (tmp_path / "watched").touch()
            while (tmp_path / "watched").exists():
                seen.add((reader.last_stable_offset, tuple(reader.values(isolation="read_committed"))))
        return seen

    watching = InChild(watch)
    until((tmp_path / "watched").exists)  # before that it may hold the lock of the log that it was forked with
    for _ in range(50):
        writable.abandon(log)
        log = Log.open(path)
    (tmp_path / "watched").unlink()
    log.close()
    assert watching.result() == {(400, tuple(b"%d" % producer for producer in range(0, 200, 2)))}


def test_a_damaged_index_is_reported(tmp_path: Path) -> None:
    log = Log.open(tmp_path / "t-0")
    log.append_batches(sent(1, 0, b"a"), transactional=True)
    log.append_transaction_marker(1, 0, committed=False, coordinator_epoch=0)
    (name,) = (tmp_path / "t-0").glob("*.txnindex")
    name.write_bytes(b"\xff" * 34)
    with pytest.raises(CorruptCheckpointError, match="delete it"):
        log.values(isolation="read_committed")
    log.close()


def test_compaction_moves_the_index_with_the_markers(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    log = Log.open(path, LogConfig(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0))
    for producer in range(3):
        log.append(b"old", key=b"k")
        log.append_batches(sent(producer, 0, b"aborted"), transactional=True)
        log.append_transaction_marker(producer, 0, committed=False, coordinator_epoch=0)
        log.roll()
    before = [entry[:3] for entry in index_of(path)]
    assert len(list(path.glob("*.txnindex"))) == 3
    assert log.compact(force=True) is not None
    assert len(list(path.glob("*.txnindex"))) == 1
    assert [entry[:3] for entry in index_of(path)] == before == [(0, 1, 2), (1, 4, 5), (2, 7, 8)]
    assert list(log.values(isolation="read_committed")) == [b"old"]
    assert [record.offset for record in decode(bytes(log.fetch(0, 1 << 20).data))] == [6]
    log.close()


def test_readers_find_the_index_that_a_compaction_moves_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked for in the segment that it moves to before it came there, and where it was after it had gone."""
    path = tmp_path / "t-0"
    with Log.open(path, LogConfig(cleanup_policy="compact")) as log:
        for producer in range(3):
            log.append_batches(sent(producer, 0, b"aborted"), transactional=True)
            log.append_transaction_marker(producer, 0, committed=False, coordinator_epoch=0)
            log.append(b"%d" % producer, key=b"%d" % producer)
            log.roll()
        with Log.open(path, read_only=True) as reader:
            assert len(reader.segments) == 4
            encoded = os.fsencode
            second = f"{reader.segments[1].base_offset:020d}.txnindex"

            def compacting(name: str) -> bytes:
                if name.endswith(second):
                    patch.undo()
                    log.compact()
                return encoded(name)

            with monkeypatch.context() as patch:
                patch.setattr(os, "fsencode", compacting)
                assert list(reader.values(isolation="read_committed")) == [b"0", b"1", b"2"]
            assert len(log.segments) == 2


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize("arrow", [False, True])
def test_a_read_of_a_log_that_is_truncated_goes_on_with_what_is_committed(
    tmp_path: Path, arrow: bool, isolation: str
) -> None:
    """Below the high watermark, in another process: with neither the end nor the aborted transactions of before."""
    path = tmp_path / "t-0"
    with Log.open(path) as log, Log.open(path, read_only=True) as reader:
        for value in (b"0", b"1", b"2", b"3", b"4"):
            log.append(value)
        values: Iterator[bytes | None]
        if arrow:
            pieces = ArrowPieces(reader, None, None, ["value"], "us", 1, isolation)
            values = (value for piece in pieces for value in pyarrow.record_batch(piece)["value"].to_pylist())
        else:
            values = iter(reader.values(isolation=isolation))
        assert next(values) == b"0"
        log.truncate_to(1)
        log.append_batches(sent(1, 0, b"aborted"), transactional=True)
        log.append_transaction_marker(1, 0, committed=False, coordinator_epoch=0)
        log.append(b"plain")
        log.append_batches(sent(2, 0, b"open"), transactional=True)
        if isolation == "read_committed":
            assert list(values) == [b"plain"]
        else:
            assert list(values) == [b"aborted", b"plain", b"open"]


def test_a_read_ends_at_the_high_watermark_of_a_log_that_is_truncated(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    with Log.open(path, LogConfig(replicated=True)) as log, Log.open(path, read_only=True) as reader:
        for value in (b"0", b"1", b"2", b"3"):
            log.append(value)
        log.advance_high_watermark(4)
        values = iter(reader.values())
        assert next(values) == b"0"
        log.truncate_to(1)
        log.append_many([b"not committed"])
        assert log.high_watermark == 1
        assert list(values) == []


def test_a_read_of_a_log_that_is_truncated_returns_no_offset_twice(tmp_path: Path) -> None:
    """Where a batch stands by then that begins below what was read."""
    path = tmp_path / "t-0"
    with Log.open(path) as log, Log.open(path, read_only=True) as reader:
        for number in range(6):
            log.append(b"%d" % number)
        records = iter(reader.read())
        read = [next(records) for _ in range(4)]
        log.truncate_to(1)
        log.append_many([b"new"] * 7)
        assert [record.offset for record in [*read, *records]] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("own", [False, True])
def test_a_read_whose_next_records_are_deleted_says_so(tmp_path: Path, own: bool) -> None:
    path = tmp_path / "t-0"
    with Log.open(path) as log, Log.open(path, read_only=True) as reader:
        for _ in range(4):
            log.append_many([b"x"] * 10)
            log.roll()
        records = iter((log if own else reader).read())
        assert next(records).offset == 0
        log.delete_records_before(30)
        with pytest.raises(OffsetOutOfRangeError, match="offset 10 is below the first one kept"):
            list(records)


@pytest.mark.parametrize("own", [False, True])
def test_an_open_transaction_that_is_deleted_is_not_returned(tmp_path: Path, own: bool) -> None:
    path = tmp_path / "t-0"
    with Log.open(path) as log, Log.open(path, read_only=True) as reader:
        log.append(b"plain")
        log.append_batches(sent(1, 0, b"open"), transactional=True)
        follow = (log if own else reader).follow(0, 0.01, isolation="read_committed")
        assert next(follow).value == b"plain"
        log.delete_records_before(2)
        with pytest.raises(OffsetOutOfRangeError):
            next(follow)


def test_kip_890_a_transaction_begins_only_where_its_coordinator_has_confirmed_it(tmp_path: Path) -> None:
    with Log.open(tmp_path / "p-0") as log:

        def append(sequence: int, epoch: int, verified_by: int) -> bool:
            batch = sent(7, sequence, b"x", epoch=epoch)
            try:
                log.append_batches(batch, transactional=True, verified_by=verified_by)
            except UnverifiedTransactionError as error:
                assert (error.producer_id, error.producer_epoch) == (7, epoch)
                return False
            return True

        assert not append(0, 0, -1)
        assert append(0, 0, 3)
        assert append(1, 0, -1), "it is open"
        assert append(1, 0, -1), "a duplicate"
        assert not append(0, 1, -1), "open, but not in this epoch"
        log.append_transaction_marker(7, 1, committed=True, coordinator_epoch=5)
        assert append(0, 1, 5)
        log.append_transaction_marker(7, 1, committed=True, coordinator_epoch=6)
        assert not append(1, 1, 5), "an earlier coordinator does not know how the transaction has ended"
        assert append(1, 1, 6)
