"""Idempotent producers: the rules of sequences, a model that remembers everything, and snapshots (F24, F25)."""

import itertools
import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from crcmod.predefined import mkPredefinedCrcFun
from hypothesis import given
from hypothesis import strategies as st

from kreplog._native.producers import ProducerState
from kreplog.errors import (
    CorruptCheckpointError,
    DuplicateSequenceError,
    InvariantError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    StorageError,
    UsageError,
)

SEQUENCES = 2**31
LAST = SEQUENCES - 1

by_crcmod = mkPredefinedCrcFun("crc-32c")


class Batch(NamedTuple):
    producer_id: int
    epoch: int
    base_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int = 0

    @property
    def records(self) -> int:
        return self.last_offset - self.first_offset + 1

    @property
    def question(self) -> tuple[int, int, int, int]:
        return self.producer_id, self.epoch, self.base_sequence, self.records

    @property
    def offsets(self) -> tuple[int, int]:
        return self.first_offset, self.last_offset


def state_of(*batches: Batch) -> ProducerState:
    state = ProducerState()
    for batch in batches:
        state.update(*batch)
    return state


# --- Sequences ------------------------------------------------------------------------------------------------------


def test_an_unknown_producer_may_begin_anywhere_but_not_where_it_is_taken_strictly() -> None:
    state = ProducerState()
    for sequence in (0, 1, 500, LAST):
        assert state.check(7, 0, sequence, 10) is None
    assert len(state) == 0
    with pytest.raises(
        OutOfOrderSequenceError, match=r"producer 1 sent sequence 17 in epoch 3, and nothing before that"
    ):
        ProducerState().check(1, 3, 17, 2, strict=True)
    assert ProducerState().check(1, 3, 0, 2, strict=True) is None


def test_the_next_batch_the_same_again_and_a_gap() -> None:
    state = state_of(Batch(7, 0, 0, 100, 109))
    assert state.check(7, 0, 10, 5) is None
    assert state.check(7, 0, 0, 10) == (100, 109)
    for sequence, count in ((11, 5), (0, 9), (0, 11), (5, 5), (5, 10), (9, 1), (1000, 1), (LAST, 1)):
        with pytest.raises(OutOfOrderSequenceError, match="where 10 comes next"):
            state.check(7, 0, sequence, count)
    assert state.check(8, 0, 11, 5) is None


def test_the_last_five_batches_are_remembered() -> None:
    batches = [Batch(7, 3, 10 * i, 100 + 10 * i, 109 + 10 * i) for i in range(9)]
    state = state_of(*batches)
    for batch in batches[-5:]:
        assert state.check(*batch.question) == batch.offsets
    for batch in batches[:-5]:
        with pytest.raises(DuplicateSequenceError):
            state.check(*batch.question)


def test_what_was_perhaps_never_written_is_no_duplicate() -> None:
    """The producer was unknown when it sent 50: whether 0 to 49 were written nobody can know."""
    state = state_of(*[Batch(7, 0, 50 + i, i, i) for i in range(8)])
    with pytest.raises(DuplicateSequenceError):
        state.check(7, 0, 50, 1)
    for sequence, count in ((49, 1), (49, 2), (0, 1)):
        with pytest.raises(OutOfOrderSequenceError):
            state.check(7, 0, sequence, count)


def test_a_new_epoch_begins_at_0_and_fences_the_old() -> None:
    state = state_of(Batch(7, 1, 0, 100, 109))
    assert state.check(7, 2, 0, 5) is None
    assert state.check(7, 9, 0, 5) is None
    with pytest.raises(OutOfOrderSequenceError):
        state.check(7, 2, 10, 5)
    with pytest.raises(ProducerFencedError):
        state.check(7, 0, 10, 5)
    state.update(7, 2, 0, 110, 114, 0)
    with pytest.raises(ProducerFencedError):
        state.check(7, 1, 0, 10)
    with pytest.raises(OutOfOrderSequenceError):
        state.check(7, 2, 0, 10)
    assert state.check(7, 2, 5, 1) is None


@pytest.mark.parametrize("count", [1, 2, 10])
def test_sequences_wrap_to_0(count: int) -> None:
    state = state_of(Batch(7, 0, LAST - 1, 100, 99 + count))
    following = (LAST - 1 + count) % SEQUENCES
    assert state.check(7, 0, LAST - 1, count) == (100, 99 + count)
    assert state.check(7, 0, following, 3) is None
    with pytest.raises(OutOfOrderSequenceError):
        state.check(7, 0, (following + 1) % SEQUENCES, 3)


@pytest.mark.parametrize("arguments", [(-1, 0, 0, 1), (7, -1, 0, 1), (7, 0, -1, 1), (7, 0, 0, 0), (7, 0, 0, -5)])
def test_negative_numbers(arguments: tuple[int, int, int, int]) -> None:
    with pytest.raises(UsageError):
        ProducerState().check(*arguments)


def test_a_follower_takes_what_its_leader_took() -> None:
    """KAFKA-6003: `update` checks nothing."""
    state = state_of(Batch(7, 5, 0, 0, 9), Batch(7, 5, 90, 10, 19), Batch(8, 0, 77, 20, 29), Batch(7, 4, 3, 30, 30))
    assert state.check(7, 4, 4, 1) is None
    assert state.check(8, 0, 87, 1) is None
    gap = state_of(Batch(7, 5, 0, 0, 9), Batch(7, 5, 90, 10, 19))
    assert gap.check(7, 5, 0, 10) == (0, 9)
    with pytest.raises(OutOfOrderSequenceError):
        gap.check(7, 5, 50, 10)


def test_expire() -> None:
    """By when they were heard of: their records are of years past, or to come."""
    state = state_of(Batch(7, 0, 0, 0, 0, 1000), Batch(8, 0, 0, 1, 1, 1 << 60), Batch(7, 0, 1, 2, 2, 1500))
    between_ms = time.time_ns() // 1_000_000
    time.sleep(0.01)  # the wall clock, which counts milliseconds, has to move on
    state.update(8, 0, 0, 1, 1, 1 << 60)
    state.expire(between_ms + 500_000, 1_000_000)
    assert len(state) == 2
    state.expire(between_ms + 1_000_000, 1_000_000)
    assert len(state) == 1
    assert state.check(7, 0, 99, 1) is None
    assert state.check(8, 0, 0, 1) == (1, 1)
    state.clear()
    assert len(state) == 0


class Model:
    """Every sequence ever written, in Python: what `check` must say."""

    def __init__(self) -> None:
        self.batches: dict[int, list[Batch]] = {}

    def update(self, batch: Batch) -> None:
        own = self.batches.setdefault(batch.producer_id, [])
        if own and own[-1].epoch != batch.epoch:
            own.clear()
        own.append(batch)

    def check(self, producer_id: int, epoch: int, base_sequence: int, count: int) -> object:
        own = self.batches.get(producer_id)
        if own is None:
            return None
        if epoch < own[-1].epoch:
            return ProducerFencedError
        if epoch > own[-1].epoch:
            return None if base_sequence == 0 else OutOfOrderSequenceError
        written = [(batch.base_sequence + i) % SEQUENCES for batch in own for i in range(batch.records)]
        if base_sequence == (written[-1] + 1) % SEQUENCES:
            return None
        for batch in own[-5:]:
            if (batch.base_sequence, batch.records) == (base_sequence, count):
                return batch.offsets
        older = {(batch.base_sequence + i) % SEQUENCES for batch in own[:-5] for i in range(batch.records)}
        if all((base_sequence + i) % SEQUENCES in older for i in range(count)):
            return DuplicateSequenceError
        return OutOfOrderSequenceError


def answer(state: ProducerState, producer: int, epoch: int, base_sequence: int, count: int) -> object:
    try:
        return state.check(producer, epoch, base_sequence, count)
    except (DuplicateSequenceError, OutOfOrderSequenceError, ProducerFencedError) as error:
        return type(error)


STEPS = st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(-12, 6), st.integers(1, 4))


@given(first=st.sampled_from([0, 5, LAST - 6, LAST]), steps=st.lists(STEPS, max_size=40))
def test_against_a_model_that_remembers_everything(first: int, steps: list[tuple[int, int, int, int]]) -> None:
    state, model, offset = ProducerState(), Model(), 0
    for producer_id, epoch, ahead, count in steps:
        own = model.batches.get(producer_id)
        following = (own[-1].base_sequence + own[-1].records) % SEQUENCES if own else first
        for distance in {ahead, 0}:
            question = (producer_id, epoch, (following + distance) % SEQUENCES, count)
            expected = model.check(*question)
            assert answer(state, *question) == expected
            if expected is None:
                batch = Batch(*question[:3], offset, offset + count - 1, offset)
                state.update(*batch)
                model.update(batch)
                offset += count
                break


# --- Snapshots ------------------------------------------------------------------------------------------------------


def snapshot_of(*entries: tuple[int, int, int, int, int, int, int, int]) -> bytes:
    """A snapshot file made by hand: (id, epoch, last sequence, last offset, delta, timestamp, -, -) each."""
    body = struct.pack(">i", len(entries)) + b"".join(struct.pack(">qhiqiqiq", *entry) for entry in entries)
    return struct.pack(">hI", 1, by_crcmod(body)) + body


def test_the_bytes_are_kafkas() -> None:
    state = state_of(Batch(9, 2, LAST, 40, 43, 1700), Batch(7, 0, 5, 44, 44, 1800))
    assert state.snapshot() == snapshot_of((7, 0, 5, 44, 0, 1800, -1, -1), (9, 2, 2, 43, 3, 1700, -1, -1))
    assert ProducerState().snapshot() == bytes.fromhex("0001 48674bc7 00000000")


def test_a_snapshot_by_kafka_has_the_last_batch_of_each_producer() -> None:
    state = ProducerState()
    state.load(snapshot_of((9, 2, 2, 43, 3, 1700, 5, 40), (7, 0, 5, 44, 0, 1800, -1, -1), (8, 3, -1, -1, 0, 9, 1, -1)))
    assert state.check(9, 2, LAST, 4) == (40, 43)
    assert state.check(9, 2, 3, 1) is None
    assert state.check(7, 0, 5, 1) == (44, 44)
    assert state.check(8, 3, 0, 1) is None
    with pytest.raises(ProducerFencedError):
        state.check(8, 2, 0, 1)
    with pytest.raises(OutOfOrderSequenceError):
        state.check(8, 3, 1, 1)
    again = ProducerState()
    again.load(state.snapshot())
    assert again.snapshot() == state.snapshot()


def test_an_open_transaction_is_kept_for_the_broker_that_goes_on() -> None:
    """From a snapshot or from batches alone; until its marker comes the producer is not forgotten either."""
    kafkas = snapshot_of((7, 0, 5, 44, 0, 1800, 3, 40), (9, 2, 2, 43, 3, 1700, -1, -1))
    state = ProducerState()
    state.load(kafkas)
    assert state.snapshot() == kafkas
    state.update(9, 2, 3, 45, 46, 1900)
    state.begin_transaction(9, 45)
    state.update(9, 2, 5, 47, 47, 1900)
    state.begin_transaction(9, 47)
    state.end_transaction(7, 1, 2000)
    state.end_transaction(8, 4, 2000)
    assert state.snapshot() == snapshot_of(
        (7, 1, -1, -1, 0, 2000, 3, -1),
        (8, 4, -1, -1, 0, 2000, -1, -1),
        (9, 2, 2, 43, 3, 1700, -1, 45),
        (9, 2, 4, 46, 1, 1900, -1, 45),
        (9, 2, 5, 47, 0, 1900, -1, 45),
    )
    state.expire(1 << 60, 1000)
    assert len(state) == 1


def random_batches(count: int, seed: int) -> list[Batch]:
    """A log of `count` batches of some producers; epochs rise, sequences wrap, offsets have gaps."""
    rng = random.Random(seed)
    following: dict[int, tuple[int, int]] = {}
    batches, offset = [], 0
    for i in range(count):
        producer_id = rng.randrange(12)
        epoch, sequence = following.get(producer_id, (0, rng.choice([0, 3, LAST - 20])))
        if rng.random() < 0.03:
            epoch, sequence = epoch + 1, 0
        records = rng.randrange(1, 9)
        batches.append(Batch(producer_id, epoch, sequence, offset, offset + records - 1, 1000 + i))
        following[producer_id] = epoch, (sequence + records) % SEQUENCES
        offset += records + (rng.randrange(3) if rng.random() < 0.1 else 0)
    return batches


def test_rebuilt_from_the_log_equals_snapshot_and_tail() -> None:
    """F25, at every batch of a log of 10,000."""
    batches = random_batches(10_000, 25)
    state, snapshots = ProducerState(), [ProducerState().snapshot()]
    for batch in batches:
        state.update(*batch)
        snapshots.append(state.snapshot())
    final = state.snapshot()
    for start in itertools.chain(range(0, 10_000, 97), range(9_900, 10_001)):
        loaded = ProducerState()
        loaded.load(snapshots[start])
        for position, batch in enumerate(batches[start : start + 60], start + 1):
            loaded.update(*batch)
            assert loaded.snapshot() == snapshots[position], (start, position)
    for start in range(0, 10_000, 500):
        loaded = ProducerState()
        loaded.load(snapshots[start])
        for batch in batches[start:]:
            loaded.update(*batch)
        assert loaded.snapshot() == final
        for batch in batches[-30:]:
            assert answer(loaded, *batch.question) == answer(state, *batch.question)


def test_every_snapshot_loads_to_itself() -> None:
    state = ProducerState()
    for batch in random_batches(10_000, 26):
        state.update(*batch)
        data = state.snapshot()
        loaded = ProducerState()
        loaded.load(data)
        assert loaded.snapshot() == data


def test_every_prefix_and_every_flipped_bit_is_found_out() -> None:
    state = state_of(*random_batches(12, 27))
    data = state.snapshot()
    other = state_of(Batch(1, 1, 1, 1, 1, 1))
    before = other.snapshot()
    damaged = [data[:end] for end in range(len(data))]
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    damaged.append(data + b"\0")
    for content in damaged:
        with pytest.raises(CorruptCheckpointError):
            other.load(content)
        assert other.snapshot() == before


@pytest.mark.parametrize(
    "entry",
    [
        (7, 0, -1, 5, 0, 0, -1, -1),
        (7, 0, 5, 5, -1, 0, -1, -1),
        (7, 0, 5, 5, 6, 0, -1, -1),
    ],
)
def test_impossible_entries_under_a_good_crc(entry: tuple[int, int, int, int, int, int, int, int]) -> None:
    with pytest.raises(CorruptCheckpointError, match="impossible"):
        ProducerState().load(snapshot_of(entry))


@given(st.binary(max_size=150))
def test_any_bytes_raise_corrupt_checkpoint_error(data: bytes) -> None:
    body = struct.pack(">hI", 1, by_crcmod(data)) + data
    for content in (data, body):
        try:
            ProducerState().load(content)
        except CorruptCheckpointError:
            continue
        assert content is body


# --- Snapshot files -------------------------------------------------------------------------------------------------


def write_three(directory: Path) -> list[Batch]:
    """Snapshots for 10, 20 and 30, of one batch of ten records each before."""
    batches = [Batch(7, 0, 10 * i, 10 * i, 10 * i + 9, i) for i in range(3)]
    state = ProducerState()
    for batch in batches:
        state.update(*batch)
        state.write_snapshot(str(directory), batch.last_offset + 1)
    return batches


def names(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def test_file_names(tmp_path: Path) -> None:
    write_three(tmp_path)
    assert names(tmp_path) == [f"{offset:020d}.snapshot" for offset in (10, 20, 30)]
    assert (tmp_path / "00000000000000000010.snapshot").read_bytes() == snapshot_of((7, 0, 9, 9, 9, 0, -1, -1))


@pytest.mark.parametrize(
    ("max_offset", "found"), [(2**63 - 1, 30), (30, 30), (29, 20), (20, 20), (10, 10), (9, None), (0, None)]
)
@pytest.mark.parametrize("discard", [False, True])
def test_the_newest_that_fits_is_loaded(tmp_path: Path, max_offset: int, found: int | None, discard: bool) -> None:
    batches = write_three(tmp_path)
    state = state_of(Batch(99, 0, 0, 0, 0))
    assert state.latest_snapshot(str(tmp_path), max_offset, discard) == found
    assert state.snapshot() == state_of(*batches[: (found or 0) // 10]).snapshot()
    remaining = [offset for offset in (10, 20, 30) if not discard or offset <= max_offset]
    assert names(tmp_path) == [f"{offset:020d}.snapshot" for offset in remaining]


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "beyond"])
@pytest.mark.parametrize("discard", [False, True])
def test_a_bad_one_is_passed_over(tmp_path: Path, damage: str, discard: bool, caplog: pytest.LogCaptureFixture) -> None:
    """KAFKA-5435; and KAFKA-6683, where a snapshot holds records at or past its own offset."""
    batches = write_three(tmp_path)
    newest = tmp_path / "00000000000000000030.snapshot"
    content = newest.read_bytes()
    newest.write_bytes(
        {
            "cut": content[:-1],
            "empty": b"",
            "flipped": content[:20] + bytes([content[20] ^ 1]) + content[21:],
            "beyond": snapshot_of((7, 0, 30, 30, 0, 0, -1, -1)),
        }[damage]
    )
    state = ProducerState()
    assert state.latest_snapshot(str(tmp_path), 30, discard) == 20
    assert state.snapshot() == state_of(*batches[:2]).snapshot()
    assert newest.exists() is not discard
    assert newest.name in caplog.text


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    others = [
        "00000000000000000000.log",
        "0.snapshot",
        "99999999999999999999.snapshot",
        "00000000000000000040.snapshot.tmp",
    ]
    for name in others:
        (tmp_path / name).write_bytes(b"")
    state = ProducerState()
    assert state.latest_snapshot(str(tmp_path), 2**63 - 1, True) is None
    ProducerState().delete_snapshots(str(tmp_path))
    assert names(tmp_path) == sorted(others)


@pytest.mark.parametrize(
    ("bounds", "remaining"), [((), []), ((20,), [10]), ((21,), [10, 20]), ((0, 20), [20, 30]), ((11, 30), [10, 30])]
)
def test_delete_snapshots(tmp_path: Path, bounds: tuple[int, ...], remaining: list[int]) -> None:
    write_three(tmp_path)
    ProducerState().delete_snapshots(str(tmp_path), *bounds)
    assert names(tmp_path) == [f"{offset:020d}.snapshot" for offset in remaining]


def test_a_snapshot_never_has_later_records(tmp_path: Path) -> None:
    state = state_of(Batch(7, 0, 0, 0, 9))
    with pytest.raises(InvariantError):
        state.write_snapshot(str(tmp_path), 9)
    assert names(tmp_path) == []
    state.write_snapshot(str(tmp_path), 10)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    calls: list[Callable[[], object]] = [
        lambda: ProducerState().write_snapshot(missing, 0),
        lambda: ProducerState().latest_snapshot(missing, 0),
        lambda: ProducerState().delete_snapshots(missing),
    ]
    for call in calls:
        with pytest.raises(StorageError):
            call()
