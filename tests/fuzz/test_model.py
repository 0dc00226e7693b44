"""A Hypothesis state machine: any sequence of operations on a Log gives what a plain list of records gives."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kreplog import Log, LogConfig, Record
from kreplog._native import batch
from tests import reference
from tests.fuzz.records import header_lists, payloads

stamps = st.integers(0, 2000)


@dataclass
class Model:
    """What the log must be: records from `start` on, the offsets [first, end) of each batch, and what is committed."""

    start: int = 0
    high_watermark: int = 0
    records: list[Record] = field(default_factory=list)
    batches: list[tuple[int, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.records[-1].offset + 1 if self.records else self.empty_end

    empty_end: int = 0

    def truncate_to(self, offset: int) -> None:
        """Whole batches go: the first that reaches past `offset` and all after it; where the start lies in that one,
        nothing is left and the log ends where it starts."""
        cut = max(next((first for first, end in self.batches if end > offset), self.end), self.start)
        self.batches = [(first, end) for first, end in self.batches if end <= cut]
        self.records = [record for record in self.records if record.offset < cut]
        self.empty_end = cut
        self.high_watermark = min(self.high_watermark, cut)

    def delete_before(self, offset: int) -> None:
        self.empty_end = self.end
        self.start = offset
        self.records = [record for record in self.records if record.offset >= offset]

    def committed(self) -> list[Record]:
        return [record for record in self.records if record.offset < self.high_watermark]


class LogMachine(RuleBasedStateMachine):
    """The rules; after each the log and the model are compared."""

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        self.folder = Path(tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None))
        self.path = self.folder / "0" / "model-0"
        self.path.parent.mkdir()
        self.crashes = 0
        self.model = Model()

    @initialize(
        replicated=st.booleans(),
        segment_bytes=st.sampled_from([300, 1000, 1 << 20]),
        index_interval_bytes=st.sampled_from([0, 100, 4096]),
        compression_type=st.sampled_from(["none", "lz4"]),
    )
    def open_first(self, **drawn: object) -> None:
        self.config = LogConfig(batch_bytes=250, **drawn)  # type: ignore[arg-type]
        self.log = Log.open(self.path, self.config)

    def appended(self, records: list[Record], batch_ends: list[int]) -> None:
        firsts = [self.model.end, *batch_ends]
        self.model.records += records
        self.model.batches += zip(firsts, batch_ends, strict=False)
        if not self.config.replicated:
            self.model.high_watermark = self.model.end

    @rule(value=payloads, key=payloads, stamp=stamps, headers=header_lists)
    def append(
        self, value: bytes | None, key: bytes | None, stamp: int, headers: tuple[tuple[str, bytes | None], ...]
    ) -> None:
        offset = self.model.end
        assert self.log.append(value, key, stamp, headers) == offset
        self.appended([Record(offset, stamp, key, value, headers)], [offset + 1])

    @rule(rows=st.lists(st.tuples(payloads, payloads, stamps), min_size=1, max_size=15))
    def append_many(self, rows: list[tuple[bytes | None, bytes | None, int]]) -> None:
        first = self.model.end
        values, keys, times = ([row[column] for row in rows] for column in range(3))
        assert self.log.append_many(values, keys, times) == range(first, first + len(rows))
        self.appended(
            [Record(offset, stamp, key, value, ()) for offset, (value, key, stamp) in enumerate(rows, first)],
            list(self.ends_from(first)),
        )

    @rule(values=st.lists(payloads, min_size=1, max_size=20), stamp=stamps)
    def appender(self, values: list[bytes | None], stamp: int) -> None:
        first = self.model.end
        with self.log.appender(batch_bytes=200) as out:
            offsets = [out.append(value, timestamp_ms=stamp) for value in values]
        assert offsets == list(range(first, first + len(values)))
        records = [Record(offset, stamp, None, value, ()) for offset, value in enumerate(values, first)]
        self.appended(records, self.ends_from(first))

    @rule(values=st.lists(payloads, min_size=1, max_size=5), copies=st.integers(1, 3), stamp=stamps)
    def append_batches(self, values: list[bytes | None], copies: int, stamp: int) -> None:
        first = self.model.end
        info = self.log.append_batches(batch.build(values, timestamps_ms=[stamp] * len(values)) * copies)
        count = len(values) * copies
        assert (info.first_offset, info.last_offset, info.records) == (first, first + count - 1, count)
        self.appended(
            [Record(first + n, stamp, None, values[n % len(values)], ()) for n in range(count)],
            [first + len(values) * (n + 1) for n in range(copies)],
        )

    def ends_from(self, first: int) -> list[int]:
        """Where the batches that were just written end; it is the log that cuts them."""
        ends: list[int] = []
        at = first
        while at < self.log.log_end_offset:
            data = bytes(self.log.fetch(at, isolation="log_end").data)
            for _, part in reference.split(data):
                header = reference.HEADER.unpack_from(part)
                at = header[0] + header[6] + 1
                ends.append(at)
        return ends

    @rule(data=st.data())
    def truncate_to(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.model.start, self.model.end))
        self.model.truncate_to(offset)
        assert self.log.truncate_to(offset) == self.model.end

    @rule(data=st.data())
    def delete_records_before(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.model.start, self.model.high_watermark))
        self.log.delete_records_before(offset)
        self.model.delete_before(offset)

    @rule(gap=st.integers(0, 50))
    def truncate_fully_and_start_at(self, gap: int) -> None:
        offset = self.model.end + gap
        self.log.truncate_fully_and_start_at(offset)
        self.model = Model(offset, offset, [], [], offset)

    @precondition(lambda self: self.config.replicated)
    @rule(data=st.data())
    def advance_high_watermark(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.model.high_watermark, self.model.end))
        self.log.advance_high_watermark(offset)
        self.model.high_watermark = offset

    @rule()
    def assign_leader_epoch(self) -> None:
        self.log.assign_leader_epoch(self.log.leader_epoch + 1)

    @rule()
    def flush(self) -> None:
        self.log.flush()
        assert self.log.recovery_point == self.model.end

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = Log.open(self.path, self.config)

    @rule()
    def crash(self) -> None:
        """What a killed process leaves is a copy of the files as they are; what the old log does after is lost."""
        self.crashes += 1
        copy = self.folder / str(self.crashes)
        shutil.copytree(self.path.parent, copy)
        self.log.close()
        shutil.rmtree(self.path.parent)
        self.path = copy / self.path.name
        self.log = Log.open(self.path, self.config)
        assert self.log.high_watermark <= self.model.high_watermark
        self.model.high_watermark = self.log.high_watermark

    @rule(data=st.data())
    def read_part(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(self.model.start, self.model.high_watermark))
        stop = data.draw(st.integers(first, self.model.high_watermark))
        expected = [record for record in self.model.committed() if first <= record.offset < stop]
        assert list(self.log.read(first, stop)) == expected
        assert list(self.log.values(first, stop)) == [record.value for record in expected]
        ranges = self.log.offset_ranges(first, stop, 300)
        assert not ranges or (ranges[0].start, ranges[-1].stop) == (first, stop)
        assert all(first.stop == second.start for first, second in itertools.pairwise(ranges))

    @rule(stamp=stamps)
    def look_up_time(self, stamp: int) -> None:
        expected = next((r.offset for r in self.model.committed() if r.timestamp_ms >= stamp), None)
        assert self.log.offset_for_timestamp(stamp) == expected

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "log"):
            return
        log, model = self.log, self.model
        assert (log.log_start_offset, log.log_end_offset) == (model.start, model.end)
        assert log.high_watermark == model.high_watermark
        assert log.recovery_point <= model.end
        assert list(log.read()) == model.committed()

    def teardown(self) -> None:
        if hasattr(self, "log"):
            assert not self.log.verify().damages
            self.log.close()
        shutil.rmtree(self.folder)


TestLogAgainstAList = LogMachine.TestCase
TestLogAgainstAList.settings = settings(max_examples=100, stateful_step_count=25)
