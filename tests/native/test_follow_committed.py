"""Following with isolation="read_committed": up to the last stable offset, without what was aborted (KIP-98)."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kreplog import Log, LogConfig
from kreplog._native import writable
from kreplog._native.following import END
from kreplog._native.waiting import Outcome
from kreplog.errors import LogTruncatedError, UsageError, WriterDiedError
from tests.reference import sent
from tests.waiting import STATE, TIMEOUT_S, InChild, InThread, until, until_open, until_waiting, wake_at

STABLE = "read_committed"
UNSTABLE = 448
WAKE_WORD = 576


class Producer:
    """A producer of transactions."""

    def __init__(self, log: Log, producer_id: int) -> None:
        self.log = log
        self.id = producer_id
        self.sequence = 0

    def send(self, *values: bytes) -> None:
        self.log.append_batches(sent(self.id, self.sequence, *values), transactional=True)
        self.sequence += len(values)

    def commit(self, committed: bool = True) -> None:
        self.log.append_transaction_marker(self.id, 0, committed=committed, coordinator_epoch=0)

    def abort(self) -> None:
        self.commit(False)


def values(records: Any) -> list[bytes | None]:
    return [record.value for record in records]


def followed(log: Log, start: int = 0) -> list[bytes | None]:
    """What is there now, by each of the iterators."""
    found = values(log.follow(start, 0, isolation=STABLE))
    lists = [*log.follow_batches(start, 0, max_records=2, isolation=STABLE)]
    assert values(record for records in lists for record in records) == found
    pytest.importorskip("pyarrow")
    batches = log.follow_arrow(start, 0, ["value"], isolation=STABLE)
    assert [value for batch in batches for value in batch["value"].to_pylist()] == found
    assert sum(len(columns.offsets) for columns in log.to_numpy(start, isolation=STABLE)) == len(found)
    return found


def write_unstable(path: Path, first: int | None) -> None:
    """Write the first unstable offset to the state file, None for none."""
    word = 0 if first is None else first + 1
    with (path / STATE).open("r+b") as file:
        file.seek(UNSTABLE)
        file.write(struct.pack("<QQ", word, 0 if first is None else ~word & (1 << 64) - 1))


def wake_word(path: Path) -> int:
    return int.from_bytes((path / STATE).read_bytes()[WAKE_WORD : WAKE_WORD + 4], "little")


@pytest.mark.parametrize("own", [True, False])
def test_an_open_transaction_holds_back_and_an_aborted_one_is_left_out(writer: Log, log: Log, own: bool) -> None:
    reader = writer if own else log
    first, second = Producer(writer, 1), Producer(writer, 2)
    writer.append(b"a")
    first.send(b"one")
    writer.append(b"b")
    second.send(b"other", b"other")
    assert followed(reader) == [b"a"]
    assert values(reader.follow(timeout=0)) == [b"a", b"one", b"b", b"other", b"other"]
    first.commit()
    assert followed(reader) == [b"a", b"one", b"b"]
    writer.append(b"c")
    second.abort()
    assert followed(reader) == [b"a", b"one", b"b", b"c"]
    assert followed(reader, 3) == [b"c"]
    first.send(b"late")
    assert followed(reader, 8) == followed(reader, 9) == []
    first.commit()
    assert followed(reader, 8) == [b"late"]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("committed", [True, False])
def test_a_decision_wakes_without_another_append(writer: Log, log: Log, path: Path, own: bool, committed: bool) -> None:
    records = (writer if own else log).follow(isolation=STABLE)
    producer = Producer(writer, 1)
    for _ in range(20):
        start = writer.log_end_offset
        producer.send(b"of a transaction")
        writer.append(b"behind it")
        waiting = InThread(lambda: next(records))
        until_waiting(path, start)
        assert waiting.running
        producer.commit(committed)
        assert waiting.result().value == (b"of a transaction" if committed else b"behind it")
        if committed:
            assert next(records).value == b"behind it"


def test_a_look_between_the_high_watermark_and_the_first_unstable_offset(writer: Log, log: Log, path: Path) -> None:
    """The writer publishes one after the other; the reader sleeps until it lets go of its lock, not for a record."""
    producer = Producer(writer, 1)
    producer.send(b"a")
    producer.commit()
    write_unstable(path, 0)
    waiting = InThread(lambda: next(log.follow(isolation=STABLE)))
    until_waiting(path, 0)
    woken = wake_word(path)
    write_unstable(path, None)
    writer.flush()
    assert waiting.result().value == b"a"
    assert wake_word(path) > woken


def test_short_transactions_of_another_process(path: Path) -> None:
    """Nothing is appended before the reader has what came before: a wake-up that is lost would be the end."""
    count = 1000
    Log.open(path).close()
    acks, acking = os.pipe()

    def write() -> None:
        os.close(acking)
        random_ = random.Random(5)
        with Log.open(path) as log:
            producers = [Producer(log, number) for number in range(3)]
            for number in range(count):
                producer = random_.choice(producers)
                if random_.random() < 0.3:
                    producer.send(b"aborted")
                    producer.abort()
                producer.send(b"%d" % number)
                producer.commit()
                assert os.read(acks, 1) == b"."

    writing = InChild(write)
    os.close(acks)

    def follow() -> list[bytes | None]:
        found = []
        with Log.open(path, read_only=True) as log:
            for record in log.follow(across_writers=True, isolation=STABLE):
                found.append(record.value)
                os.write(acking, b".")
                if len(found) == count:
                    break
        return found

    reading = InThread(follow)
    writing.result()
    assert reading.result() == [b"%d" % number for number in range(count)]
    os.close(acking)


def test_a_timeout_is_the_time_without_a_record(writer: Log, log: Log) -> None:
    """Not without a wake-up: what was aborted, and the markers, are no records."""
    producer = Producer(writer, 1)

    def abort() -> bool:
        producer.send(b"aborted")
        producer.abort()
        return not waiting.running

    async def tasks() -> list[bytes | None]:
        return [record.value async for record in log.follow(timeout=0.3, isolation=STABLE)]

    waiting = InThread(lambda: values(log.follow(timeout=0.3, isolation=STABLE)))
    until(abort)
    assert waiting.result() == []
    waiting = InThread(lambda: asyncio.run(tasks()))
    until(abort)
    assert waiting.result() == []


def test_tasks(writer: Log, log: Log, path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await follow_together()

    async def follow_together() -> None:
        async def take(count: int) -> list[bytes | None]:
            found: list[bytes | None] = []
            async for record in log.follow(isolation=STABLE):
                found.append(record.value)
                if len(found) == count:
                    break
            return found

        producer = Producer(writer, 1)
        producer.send(b"aborted")
        tasks = [asyncio.create_task(take(2)) for _ in range(20)]
        for value in (b"a", b"b"):
            offset = writer.log_end_offset
            while wake_at(path) == 0:
                await asyncio.sleep(0)  # a turn for the tasks, until they sleep: they report that to no one
            producer.abort()
            producer.send(value)
            for _ in range(10):
                await asyncio.sleep(0)  # turns in which a task that was woken too early would go on
            assert not any(task.done() for task in tasks)
            producer.commit()
            producer.send(b"aborted")
            assert writer.last_stable_offset == offset + 3
        assert await asyncio.gather(*tasks) == [[b"a", b"b"]] * 20

    asyncio.run(main())


@pytest.mark.parametrize("own", [True, False])
def test_truncation_while_a_transaction_is_open(writer: Log, log: Log, path: Path, own: bool) -> None:
    reader = writer if own else log
    records = reader.follow(isolation=STABLE)
    producer = Producer(writer, 1)
    writer.append(b"a")
    producer.send(b"cut", b"cut")
    assert next(records).value == b"a"
    waiting = InThread(lambda: next(records))
    until_waiting(path, 1)
    writer.truncate_to(1)
    writer.append(b"b")
    assert waiting.result().value == b"b"
    Producer(writer, 2).send(b"open")
    waiting = InThread(lambda: next(records))
    until_waiting(path, 2)
    writer.truncate_to(0)
    with pytest.raises(LogTruncatedError, match="truncated to offset 0, below 2"):
        waiting.result()


@pytest.mark.parametrize("aborted", [True, False])
def test_what_replaces_records_that_could_have_been_read(writer: Log, log: Log, aborted: bool) -> None:
    """The end that the reader had taken is not that of the records which are there now."""
    records = log.follow(timeout=0, isolation=STABLE)
    for value in (b"a", b"cut", b"cut"):
        writer.append(value)
    assert next(records).value == b"a"
    writer.truncate_to(1)
    producer = Producer(writer, 1)
    producer.send(b"of a transaction", b"of a transaction")
    writer.append(b"b")
    if aborted:
        producer.abort()
    assert values(records) == ([b"b"] if aborted else [])


@pytest.mark.parametrize("decided", [None, True, False])
def test_the_writer_dies_while_a_transaction_is_open(path: Path, decided: bool | None) -> None:
    def write() -> None:
        with Log.open(path) as log:
            log.append(b"a")
            Producer(log, 1).send(b"b")
            log.append(b"c")
            signal.pause()

    writing = InChild(write)
    until_open(path)
    with Log.open(path, read_only=True) as log:
        assert log.wait(2, across_writers=True)
        onward = log.follow(across_writers=True, isolation=STABLE)
        records = log.follow(isolation=STABLE)
        assert next(onward).value == next(records).value == b"a"
        waiting = InThread(lambda: next(records))
        until_waiting(path, 1)
        os.kill(writing.pid, signal.SIGKILL)
        with pytest.raises(WriterDiedError, match="with a transaction open at offset 1: start the writer again"):
            waiting.result()
        with pytest.raises(AssertionError, match="was killed"):
            writing.result()
        waiting = InThread(lambda: next(onward))
        with Log.open(path) as writer:
            writer.append(b"d")
            until_waiting(path, 1)
            assert waiting.running
            if decided is not None:
                Producer(writer, 1).commit(decided)
                assert waiting.result().value == (b"b" if decided else b"c")
        if decided is None:  # a writer that closes the log leaves the transaction open
            assert values(log.follow(isolation=STABLE)) == [b"a"]
            log.close()
            with pytest.raises(StopIteration):
                waiting.result()


def test_a_directory_that_another_program_writes(path: Path) -> None:
    """Its first unstable offset is found in its batches."""
    with Log.open(path) as writer:
        first, second = Producer(writer, 1), Producer(writer, 2)
        first.send(b"a")
        second.send(b"aborted")
        first.commit()
        second.abort()
        first.send(b"open")
    (path / STATE).unlink()
    with Log.open(path, read_only=True) as log:
        assert values(log.follow(timeout=0)) == [b"a", b"aborted", b"open"]
        assert followed(log) == [b"a"]


@pytest.mark.parametrize("name", ["follow", "follow_batches", "follow_arrow"])
def test_another_isolation_is_refused(log: Log, name: str) -> None:
    with pytest.raises(UsageError, match="isolation = 'committed' is not known: choose 'read_uncommitted'"):
        getattr(log, name)(isolation="committed")


def drain(records: Any, take: Callable[[Any], list[bytes | None]]) -> list[bytes | None]:
    """What an iterator has by now, which does not end with it."""
    found: list[bytes | None] = []
    while True:
        item = records.take()
        if item is not END:
            found += take(item)
        elif records.poll() == Outcome.WAITING:
            return found
        else:
            assert records.go_on(records.poll())


@pytest.mark.parametrize("replicated", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_who_follows_has_what_a_read_finds(path: Path, replicated: bool, seed: int) -> None:
    """Iterators that go on, in pieces, over rolls, high watermarks within batches, new writers and truncations."""
    pa = pytest.importorskip("pyarrow")
    rng = random.Random(seed)
    config = LogConfig(replicated=replicated, segment_bytes=1200, index_interval_bytes=200)
    writer = Log.open(path, config)
    with Log.open(path, read_only=True) as log:
        followers = [
            (log.follow(across_writers=True, isolation=STABLE), lambda record: [record.value]),
            (log.follow_batches(across_writers=True, max_records=3, isolation=STABLE), values),
            (
                log.follow_arrow(columns=["value"], max_bytes=150, across_writers=True, isolation=STABLE),
                lambda batch: pa.record_batch(batch)["value"].to_pylist(),
            ),
        ]
        found: list[list[bytes | None]] = [[] for _ in followers]
        producers = [Producer(writer, number) for number in range(4)]
        for turn in range(400):
            step, producer = rng.random(), rng.choice(producers)
            if step < 0.35:
                producer.send(*(b"%d-%d" % (turn, number) for number in range(rng.randrange(1, 4))))
            elif step < 0.5:
                writer.append_many([b"%d" % turn] * rng.randrange(1, 4))
            elif step < 0.75:
                producer.commit(rng.random() < 0.5)
            elif step < 0.9 and replicated:
                writer.advance_high_watermark(rng.randrange(writer.high_watermark, writer.log_end_offset + 1))
            elif step < 0.92 and replicated:
                writer.truncate_to(rng.randrange(writer.high_watermark, writer.log_end_offset + 1))
                for producer in producers:  # new ids: the sequences that are left are not looked for
                    producer.commit(rng.random() < 0.5)
                    producer.id += 10
                    producer.sequence = 0
            elif step > 0.97:
                if rng.random() < 0.5:
                    writer.close()
                else:
                    writable.abandon(writer)
                writer = Log.open(path, config)
                for producer in producers:
                    producer.log = writer
            for number, (records, take) in enumerate(followers):
                if rng.random() < 0.2:
                    found[number] += drain(records, take)
        expected = values(log.read(isolation=STABLE))
        assert len(expected) > 10
        for (records, take), before in zip(followers, found, strict=True):
            assert before + drain(records, take) == expected
    writer.close()
