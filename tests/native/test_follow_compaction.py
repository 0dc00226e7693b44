"""Followers of a log that is compacted: what a swap of segments changes is no loss to them, and nothing is missed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kreplog import Log, LogConfig
from kreplog.errors import LogTruncatedError, WriterDiedError
from tests.waiting import InChild, InThread, until_waiting

CONFIG = LogConfig(cleanup_policy="compact", segment_bytes=1500, min_cleanable_dirty_ratio=0)
KEYS = 20

Row = tuple[int, bytes | None, bytes | None]


def singly(log: Log, **options: Any) -> Iterator[Row]:
    for record in log.follow(**options):
        yield record.offset, record.key, record.value


def in_lists(log: Log, **options: Any) -> Iterator[Row]:
    for records in log.follow_batches(max_records=7, **options):
        for record in records:
            yield record.offset, record.key, record.value


def in_columns(log: Log, **options: Any) -> Iterator[Row]:
    for piece in log.follow_arrow(columns=["offset", "key", "value"], **options):
        yield from zip(*(column.to_pylist() for column in piece.columns), strict=True)


def in_a_task(log: Log, **options: Any) -> Iterator[Row]:
    """By asyncio, one record at a time."""
    records = log.follow(**options)

    async def following() -> Row | None:
        async for record in records:
            return record.offset, record.key, record.value
        return None

    while (row := asyncio.run(following())) is not None:
        yield row


FORMS = [singly, in_lists, in_columns, in_a_task]


def append(log: Log, count: int) -> None:
    for _ in range(count):
        offset = log.log_end_offset
        log.append(b"%d" % offset, b"key %d" % (offset % KEYS))


def newest(rows: list[Row]) -> dict[bytes | None, bytes | None]:
    offsets = [offset for offset, _, _ in rows]
    assert offsets == sorted(set(offsets)), "each at most once, in order"
    return {key: value for _, key, value in rows}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("own", [True, False])
def test_beside_compaction(path: Path, form: Callable[..., Iterator[Row]], own: bool) -> None:
    """A follower within what is compacted, and at its end, waiting."""
    with Log.open(path, CONFIG) as writer, Log.open(path, CONFIG, read_only=True) as reader:
        rows = form(writer if own else reader)
        append(writer, 3 * KEYS)
        got = [next(rows) for _ in range(5)]
        append(writer, 100)
        writer.roll()
        assert writer.compact() is not None
        while got[-1][0] < writer.log_end_offset - 1:
            got.append(next(rows))
        waiting = InThread(lambda: next(rows))
        until_waiting(path, writer.log_end_offset)
        generation = writer.generation
        writer.compact(force=True)
        append(writer, 1)
        got.append(waiting.result())
        append(writer, 2 * KEYS)
        writer.roll()
        writer.compact()
        assert writer.generation > generation
        expected = newest([(record.offset, record.key, record.value) for record in writer.read()])
        writer.close()
        if not own:
            got += rows
            assert newest(got) == expected


@pytest.mark.parametrize("form", FORMS)
def test_while_a_process_appends_and_compacts(path: Path, form: Callable[..., Iterator[Row]]) -> None:
    def write() -> dict[bytes | None, bytes | None]:
        random_ = random.Random(3)
        with Log.open(path, CONFIG) as log:
            until_waiting(path, 0)
            for _ in range(12):
                append(log, random_.randrange(1, 40))
                log.compact(force=True)
            return newest([(record.offset, record.key, record.value) for record in log.read()])

    Log.open(path, CONFIG).close()
    with Log.open(path, CONFIG, read_only=True) as log:
        rows = form(log, across_writers=True)
        writer = InChild(write)
        got = [next(rows)]
        expected = writer.result()
        with Log.open(path, CONFIG) as writing:
            end = writing.append(b"end", b"key end")
        while got[-1][0] < end:
            got.append(next(rows))
    assert newest(got) == expected | {b"key end": b"end"}


def test_more_swaps_than_truncations_are_noted(path: Path) -> None:
    """They take no room from each other's notes: a follower may be as slow as it likes."""
    with Log.open(path, CONFIG) as writer, Log.open(path, CONFIG, read_only=True) as reader:
        append(writer, KEYS)
        rows = singly(reader)
        assert [next(rows)[0] for _ in range(KEYS)] == [*range(KEYS)]
        before = writer.generation
        for _ in range(17):
            append(writer, 1)
            writer.roll()
            writer.compact(force=True)
        assert writer.generation - before > 2 * 16
        append(writer, 1)
        writer.close()
        assert newest(list(rows)) == {b"key %d" % key: b"%d" % (KEYS + key) for key in range(18)}


@pytest.mark.parametrize("swaps", [1, 16])
@pytest.mark.parametrize("first", [True, False])
def test_a_truncation_between_swaps_is_seen(path: Path, swaps: int, first: bool) -> None:
    with Log.open(path, CONFIG) as writer, Log.open(path, CONFIG, read_only=True) as reader:
        append(writer, 2 * KEYS)
        rows = singly(reader)
        for _ in range(2 * KEYS):
            next(rows)
        if first:
            end = writer.truncate_to(2 * KEYS - 1)
        for _ in range(swaps):
            append(writer, 1)
            writer.roll()
            assert writer.compact() is not None
        if not first:
            end = writer.truncate_to(2 * KEYS - 1)
        with pytest.raises(LogTruncatedError) as caught:
            next(rows)
        assert caught.value.offset == (None if first and swaps == 16 else end)


def at(call: str, number: int) -> None:
    """Have this process killed at the number-th call of a function of `os`, before it."""
    function, left = getattr(os, call), number

    def deadly(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)

    setattr(os, call, deadly)


@pytest.mark.parametrize(
    ("form", "call", "number", "replacing"),
    [(singly, "replace", 1, False), (in_columns, "link", 1, True), (in_a_task, "replace", 2, True)],
)
def test_killed_inside_a_swap(
    path: Path, form: Callable[..., Iterator[Row]], call: str, number: int, replacing: bool
) -> None:
    """A follower of that writer ends with its death; one across writers goes on, and misses no key's newest record."""
    end = 5 * KEYS

    def write() -> None:
        with Log.open(path, CONFIG) as log:
            append(log, end)
            log.roll()
            until_waiting(path, end)
            at(call, number)
            log.compact()

    Log.open(path, CONFIG).close()
    with Log.open(path, CONFIG, read_only=True) as log, Log.open(path, CONFIG, read_only=True) as behind:
        onward = form(log, across_writers=True)
        slow = form(behind, across_writers=True)
        writer = InChild(write)
        got = [next(onward) for _ in range(end)]
        late = [next(slow) for _ in range(7)]
        ending = InThread(lambda: list(form(log, start=end)))
        with pytest.raises(AssertionError, match="was killed"):
            writer.result()
        assert log.generation % 2 == replacing
        with pytest.raises(WriterDiedError):
            ending.result()
        with Log.open(path, CONFIG) as writing:
            append(writing, 3)
            got += [next(onward) for _ in range(3)]
            expected = newest([(record.offset, record.key, record.value) for record in writing.read()])
            while late[-1][0] < end + 2:
                late.append(next(slow))
    assert newest(got) == expected
    assert newest(late) == expected
