"""A writer that appends all the time pays for few wake-ups of readers that keep up, and they miss nothing by that."""

from __future__ import annotations

import struct
from functools import partial
from pathlib import Path

from kreplog import Log
from tests.waiting import STATE, InChild, until_waiting

APPENDS = 200_000
WAKE_WORD = 576


def wake_ups(path: Path) -> int:
    """How many the writer has paid for."""
    with (path / STATE).open("rb") as file:
        file.seek(WAKE_WORD)
        (word,) = struct.unpack("<I", file.read(4))
        return int(word)


def wait_for_each(path: Path, end: int) -> int:
    """Wait for the next record as soon as the latest is there; return how many waits had to begin with none there."""
    drained = 0
    with Log.open(path, read_only=True) as log:
        offset = log.high_watermark
        while offset < end:
            drained += log.high_watermark == offset
            assert log.wait(offset, 30)
            offset = log.high_watermark
    return drained


def test_a_fast_writer_pays_for_few_wake_ups(writer: Log, path: Path) -> None:
    """A busy machine stops the writer now and then, and a reader that then waits is woken: once in a thousand appends,
    where a reader that registers at once is woken twenty times as often."""
    paid = []
    for _ in range(3):
        start, before = writer.log_end_offset, wake_ups(path)
        reader = InChild(partial(wait_for_each, path, start + APPENDS))
        until_waiting(path, start)
        for _ in range(APPENDS):
            writer.append(b"")
        reader.result()
        paid.append(wake_ups(path) - before)
    assert min(paid) < APPENDS / 200


def test_a_slow_writer_wakes_for_each_record(writer: Log, path: Path) -> None:
    """Each reader registers before the next record comes, also right after the writer has been fast."""
    reader = InChild(lambda: wait_for_each(path, 2020))
    for i in range(2000):
        writer.append(b"%d" % i)
    for i in range(2000, 2020):
        until_waiting(path, i)
        writer.append(b"")
    assert reader.result() >= 20


def test_bursts_are_followed_to_their_end(writer: Log, path: Path) -> None:
    """The reader has each record, and waits again where a burst ends."""

    def follow() -> list[int]:
        with Log.open(path, read_only=True) as log:
            return [record.offset for record in log.follow(timeout=30)]

    reader = InChild(follow)
    end = 0
    for burst in range(300):
        for _ in range(burst % 50):
            writer.append(b"")
        end += burst % 50
        if burst % 10 == 0:
            until_waiting(path, end)
    until_waiting(path, end)
    writer.close()
    assert reader.result() == list(range(end))
