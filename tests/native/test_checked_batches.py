"""CheckedBatches: what a thread has checked of a leader's batches, the append as a follower need not check again."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from kreplog import Log, LogConfig
from kreplog.errors import CorruptBatchError, KreplogError
from kreplog.managed_log import CheckedBatches, ManagedLog, build, end_of
from tests.reference import seal

PLAIN = build([b"one", b"two"])
BATCHES = PLAIN + build([b"three"] * 3, base_offset=2, compression="gzip") + build([b"four"], base_offset=5)


@pytest.fixture
def append(tmp_path: Path) -> Callable[[Any], str]:
    """Appends to a new managed log; returns its end, or the error."""
    numbers = count()

    def to_new_log(records: Any) -> str:
        with ManagedLog.open(tmp_path / f"t-{next(numbers)}", LogConfig(replicated=True)) as log:
            try:
                log.append_as_follower(records)
            except KreplogError as error:
                return type(error).__name__
            return str(log.log_end_offset)

    return to_new_log


def checked(data: bytes) -> Any:
    """As the thread passes them on."""
    try:
        return CheckedBatches(data)
    except KreplogError:
        return data


def test_they_are_the_bytes() -> None:
    batches = CheckedBatches(BATCHES)
    assert bytes(batches) == BATCHES
    assert len(batches) == len(BATCHES)
    assert end_of(batches) == end_of(BATCHES)
    with pytest.raises(TypeError):
        memoryview(batches)[0] = 1


def test_they_are_appended_as_they_are(append: Callable[[Any], str]) -> None:
    assert append(CheckedBatches(BATCHES)) == append(BATCHES) == "6"


@pytest.mark.parametrize("sealed", [False, True])
def test_whatever_byte_is_wrong_the_append_does_the_same(append: Callable[[Any], str], sealed: bool) -> None:
    """sealed: the CRC is that of the wrong batch, so that the records have to be looked into."""
    outcomes = set()
    for position in range(len(PLAIN)):
        wrong = bytearray(PLAIN)
        wrong[position] ^= 0x41
        data = seal(bytes(wrong)) if sealed else bytes(wrong)
        data += BATCHES[len(PLAIN) :]
        outcome = append(data)
        assert append(checked(data)) == outcome, f"byte {position}"
        outcomes.add(outcome)
    assert "CorruptBatchError" in outcomes
    assert len(outcomes) > 1


def test_cut_anywhere_they_are_refused() -> None:
    sound = {0, len(PLAIN), len(BATCHES), len(BATCHES) - len(build([b"four"]))}
    for size in set(range(len(BATCHES))) - sound:
        with pytest.raises(CorruptBatchError):
            CheckedBatches(BATCHES[:size])


def test_a_compressed_batch_is_looked_into() -> None:
    wrong = bytearray(build([b"three"] * 3, compression="gzip"))
    wrong[-12] ^= 0xFF  # before gzip's own checksum
    with pytest.raises(CorruptBatchError):
        CheckedBatches(PLAIN + seal(bytes(wrong)))


def test_a_log_of_its_own_checks_what_the_caller_may_have_changed(tmp_path: Path) -> None:
    data = bytearray(BATCHES)
    batches = CheckedBatches(data)
    data[-1] ^= 1
    with Log.open(tmp_path / "t-0") as log, pytest.raises(CorruptBatchError):
        log.append_as_follower(batches)
