"""Batches under another codec: the records and all else of a header stay (a topic's compression.type)."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from kreplog import Log
from kreplog._native.batch import build, decode_values
from kreplog._native.recompression import has_other_codec, recompressed
from kreplog.config import COMPRESSION_TYPES
from kreplog.errors import CorruptBatchError, RecordTooLargeError, UnsupportedCompressionError
from tests.reference import batch_size, seal

HEADER_SIZE = 61
CRC = slice(17, 21)
VALUES = [b"value %d " % number * 50 for number in range(20)]
LIMIT = 1 << 20


def built(compression: str, producer_id: int = 7) -> bytes:
    return build(
        VALUES,
        [b"key"] * len(VALUES),
        list(range(1000, 1000 + len(VALUES))),
        producer_id=producer_id,
        producer_epoch=3,
        base_sequence=9,
        compression=compression,
        transactional=True,
    )


@pytest.mark.parametrize(("given", "wanted"), list(itertools.permutations(COMPRESSION_TYPES, 2)))
def test_from_each_codec_to_each_other(folder: Path, given: str, wanted: str) -> None:
    before = built(given)
    assert has_other_codec(before, wanted) and not has_other_codec(before, given)
    after = recompressed(before, wanted, 0, LIMIT, "topic-0")
    assert not has_other_codec(after, wanted) and batch_size(after) == len(after)
    expected = built(wanted)
    unchanged = [(0, 8), (12, 17), (21, HEADER_SIZE)]
    assert [after[start:stop] for start, stop in unchanged] == [expected[start:stop] for start, stop in unchanged]
    with Log.open(folder / "topic-0") as log:
        log.append_batches(after, transactional=True)
        assert [(record.key, record.value) for record in log.read()] == [(b"key", value) for value in VALUES]
        assert log.append_batches(before, transactional=True).duplicate, "it is the same batch of the producer"


def test_only_batches_of_another_codec_are_touched() -> None:
    plain, packed = built("none", -1), built("gzip", -1)
    both = plain + packed
    assert has_other_codec(both, "gzip") and has_other_codec(both, "none")
    after = recompressed(both, "gzip", 0, LIMIT, "topic-0")
    assert after.endswith(packed) and len(after) < len(both)
    assert recompressed(after, "gzip", 0, LIMIT, "topic-0") == after
    assert recompressed(b"", "gzip", 0, LIMIT, "topic-0") == b"" and not has_other_codec(b"", "gzip")


@pytest.mark.parametrize("compression", COMPRESSION_TYPES)
def test_damaged_batches_are_refused(compression: str) -> None:
    """At every byte after the epoch, which the CRC does not cover."""
    batch, wanted = built(compression), "none" if compression == "gzip" else "gzip"
    for at in range(16, len(batch), 7):
        wrong = bytearray(batch)
        wrong[at] ^= 1
        with pytest.raises(CorruptBatchError, match="topic-0"):
            recompressed(wrong, wanted, 0, LIMIT, "topic-0")
    for length in (1, HEADER_SIZE - 1, HEADER_SIZE, len(batch) - 1):
        assert has_other_codec(batch[:length], wanted) is (length >= HEADER_SIZE)
        with pytest.raises(CorruptBatchError, match="topic-0"):
            recompressed(batch[:length], wanted, 0, LIMIT, "topic-0")


@pytest.mark.parametrize(("codec", "levels"), [("gzip", (1, 9)), ("lz4", (1, 12)), ("zstd", (-50, 1, 19))])
def test_a_higher_level_compresses_more(codec: str, levels: tuple[int, ...]) -> None:
    rng = random.Random(1)
    words = [rng.randbytes(6).hex().encode() for _ in range(300)]
    values = [b" ".join(rng.choices(words, k=30)) for _ in range(200)]
    found = [recompressed(build(values), codec, level, LIMIT, "topic-0") for level in levels]
    assert all(decode_values(batch) == values for batch in found)
    sizes = [len(batch) for batch in found]
    assert sizes == sorted(set(sizes), reverse=True)


@pytest.mark.parametrize(("codec", "level"), [("gzip", -1), ("lz4", 9), ("zstd", 3)])
def test_kafkas_default_level_is_the_codecs_own(codec: str, level: int) -> None:
    assert recompressed(built("none"), codec, level, LIMIT, "topic-0") == built(codec)


def test_the_limit_is_of_the_batch_as_it_came() -> None:
    batch = built("none")
    recompressed(batch, "zstd", 0, len(batch), "topic-0")
    with pytest.raises(RecordTooLargeError, match=rf"topic-0: a batch of {len(batch)} bytes.*max.message.bytes"):
        recompressed(batch, "zstd", 0, len(batch) - 1, "topic-0")


def test_an_unknown_codec_is_refused() -> None:
    wrong = bytearray(built("none"))
    wrong[22] |= 6
    with pytest.raises(UnsupportedCompressionError):
        recompressed(seal(bytes(wrong)), "gzip", 0, LIMIT, "topic-0")
