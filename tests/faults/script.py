"""A fixed script of some hundred operations on one log, with the state each leads to, for drivers that break it off.

Whatever the moment, the log found afterwards must be the state before or after the operation that was under way, or,
where that one works in several steps, one between them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kreplog import Log, LogConfig
from kreplog._native import batch
from kreplog.managed_log import ManagedLog
from tests.faults import content

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=200, batch_bytes=400)
TIMESTAMP = 1_700_000_000_000
APPENDS = frozenset({"append", "append_many", "appender", "batches"})


@dataclass(frozen=True)
class State:
    """The log holds offsets [start, start + len(generations)), each written by that generation."""

    start: int = 0
    generations: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        return self.start + len(self.generations)

    def plus(self, count: int, generation: int) -> State:
        return State(self.start, self.generations + (generation,) * count)

    def cut(self, end: int) -> State:
        return State(self.start, self.generations[: end - self.start])

    def from_(self, start: int) -> State:
        return State(start, self.generations[start - self.start :])


@dataclass(frozen=True)
class Step:
    """One operation: what it does to a log, the state it leaves, and which states it may leave when broken off."""

    name: str
    run: Callable[[Log], object]
    before: State
    after: State

    def may_leave(self, found: State) -> bool:
        """Whether `found` lies between before and after."""
        if self.name == "restart":
            return not found.generations or (
                found.start >= self.before.start
                and found.end <= self.before.end
                and found == self.before.from_(found.start).cut(found.end)
            )
        if self.name == "once":
            return found in (self.before, self.after)
        whole = self.before if len(self.before.generations) > len(self.after.generations) else self.after
        return (
            min(self.before.end, self.after.end) <= found.end <= whole.end
            and whole.start <= found.start <= max(self.before.start, self.after.start)
            and found == whole.from_(found.start).cut(found.end)
        )


def _append(state: State, generation: int) -> Callable[[Log], object]:
    return lambda log: log.append(content.value(state.end, generation), timestamp_ms=TIMESTAMP + state.end)


def _append_many(state: State, count: int, generation: int) -> Callable[[Log], object]:
    offsets = range(state.end, state.end + count)
    return lambda log: log.append_many(
        [content.value(offset, generation) for offset in offsets],
        timestamps_ms=[TIMESTAMP + offset for offset in offsets],
    )


def _appender(state: State, count: int, generation: int) -> Callable[[Log], object]:
    def run(log: Log) -> None:
        with log.appender(batch_bytes=300) as out:
            for offset in range(state.end, state.end + count):
                out.append(content.value(offset, generation), timestamp_ms=TIMESTAMP + offset)
            out.flush()

    return run


def _batches(state: State, count: int, generation: int) -> Callable[[Log], object]:
    values = [content.value(offset, generation) for offset in range(state.end, state.end + count)]
    return lambda log: log.append_batches(batch.build(values, timestamps_ms=[TIMESTAMP] * count))


def _once(state: State, count: int, generation: int) -> Callable[[Log], object]:
    offsets = range(state.end, state.end + count)
    encoded = [
        batch.build([content.value(offset, generation)], timestamps_ms=[TIMESTAMP + offset]) for offset in offsets
    ]

    def run(log: Log) -> None:
        if isinstance(log, ManagedLog):  # which takes no bulk appends
            for buffer in encoded:
                log.append_batches(buffer)
        else:
            log.append_once(encoded, writer=f"writer {generation % 3}", sequence=generation)

    return run


def steps() -> Iterator[Step]:
    """The operations in order. Truncations fall on single-record batches, so that they cut exactly there."""
    state = State()
    for generation in range(8):
        for name, run, after in _round(state, generation):
            yield Step(name, run, state, after)
            state = after


def _round(state: State, generation: int) -> Iterator[tuple[str, Callable[[Log], object], State]]:
    """An epoch of its own, appends of every kind, flushes between, single records last, then a cut, a deletion,
    sometimes a new start."""
    yield "epoch", _lead(generation), state
    kinds: list[tuple[str, Callable[..., Callable[[Log], object]], int]] = [
        ("append_many", _append_many, 9),
        ("once", _once, 4),
        ("appender", _appender, 7),
        ("batches", _batches, 3),
    ]
    for name, make, count in kinds:
        after = state.plus(count, generation)
        yield name, make(state, count, generation), after
        state = after
        if generation % 2:
            yield "flush", Log.flush, state
    for _ in range(3):
        after = state.plus(1, generation)
        yield "append", _append(state, generation), after
        state = after
    yield "cut", _truncate(state.end - 2), state.cut(state.end - 2)
    state = state.cut(state.end - 2)
    middle = state.start + len(state.generations) // 2
    yield "delete", _delete(middle), state.from_(middle)
    if generation % 4 == 3:
        yield "restart", _restart(state.end + 7), State(state.end + 7)


def _lead(epoch: int) -> Callable[[Log], object]:
    return lambda log: log.assign_leader_epoch(epoch)


def _truncate(offset: int) -> Callable[[Log], object]:
    return lambda log: log.truncate_to(offset)


def _delete(offset: int) -> Callable[[Log], object]:
    return lambda log: log.delete_records_before(offset)


def _restart(offset: int) -> Callable[[Log], object]:
    return lambda log: log.truncate_fully_and_start_at(offset)


def survey(log: Log) -> State:
    """What is committed, each record looked at; raises AssertionError for a gap, a stranger or damage."""
    report = log.verify()
    assert not report.damages, report.damages
    generations = []
    start, end = log.log_start_offset, log.high_watermark
    assert start <= end <= log.log_end_offset and log.recovery_point <= log.log_end_offset
    for offset, record in enumerate(log.read(), start):
        assert record.offset == offset, f"expected the record at {offset}, got {record.offset}"
        generations.append(content.generation_of(record.value, offset))
    state = State(start, tuple(generations))
    assert state.end == end, f"records end at {state.end}, the high watermark is {end}"
    return state
