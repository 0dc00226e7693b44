"""Producers are found again in batches whose CRC and place hold, whatever bit of a closed log was flipped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kreplog import Log, LogConfig
from kreplog._native.batch import build
from kreplog.errors import DuplicateSequenceError, OutOfOrderSequenceError, ProducerFencedError

CONFIG = LogConfig(segment_bytes=2000)
BATCHES = 4
HEADER_BITS = 8 * 61


def append(log: Log, producer_id: int, sequence: int) -> bool:
    """Whether it was a duplicate."""
    records = build([b"v" * 50], producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    return log.append_batches(records).duplicate


@pytest.mark.parametrize("damaged", [1, BATCHES - 1])
def test_each_flipped_bit_of_a_header(folder: Path, damaged: int) -> None:
    """Of four batches the second or the last. There is no snapshot, so that all of them are looked at."""
    with Log.open(folder / "t-0", CONFIG) as log:
        for sequence in range(BATCHES):
            append(log, 7, sequence)
    (snapshot,) = (folder / "t-0").glob("*.snapshot")
    snapshot.unlink()
    for bit in range(HEADER_BITS):
        path = folder / "flipped" / "t-0"
        shutil.copytree(folder / "t-0", path)
        segment = path / f"{0:020}.log"
        content = bytearray(segment.read_bytes())
        content[damaged * len(content) // BATCHES + bit // 8] ^= 1 << bit % 8
        segment.write_bytes(content)
        with Log.open(path, CONFIG) as log:
            try:
                assert not append(log, 7, BATCHES)
            except (DuplicateSequenceError, OutOfOrderSequenceError, ProducerFencedError):
                assert damaged == BATCHES - 1, f"bit {bit}: the batches after the damaged one were not looked at"
            for sequence in range(40):  # the rolls between write down what is known of producers
                assert not append(log, 8, sequence)
            assert append(log, 8, 39)
        shutil.rmtree(path.parent)
