"""Disks: the model log gives the same results as the real one, and disks fail as requested."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from kreplog.core.effects import LogState
from kreplog.errors import InvariantError, KreplogError, LogClosedError, LogFailedError, RecordBatchTooLargeError
from kreplog.sim.machines.disk import Disk, DiskLog, Disks, Loss
from kreplog.sim.machines.records import ModelCodec, NativeCodec, StoredRecord
from kreplog.types import TopicPartition

TP = TopicPartition("topic", 0)
KINDS = ("model", "native")


@pytest.fixture(params=KINDS)
def disks(request: pytest.FixtureRequest) -> Iterator[Disks]:
    with Disks(request.param) as made:
        yield made


def batch(disks: Disks, sequence: int, count: int = 1, producer: int = 1, epoch: int = 0, offset: int = 0) -> Any:
    """A batch of records whose values distinguish them."""
    values = [b"%d:%d" % (producer, sequence + index) for index in range(count)]
    return disks.codec.encode(producer, 0, sequence, values, sequence, base_offset=offset, leader_epoch=epoch)


def values(disks: Disks, log: DiskLog) -> list[bytes]:
    state = log.state()
    return [record.value for record in disks.codec.decode(log.read(state.log_start, state.leo, 1 << 30))]


class BothLogs(RuleBasedStateMachine):
    """One sequence of operations on either kind of log: equal answers, equal errors, equal states, equal reads."""

    @initialize(segment_bytes=st.sampled_from([300, 1000, 1 << 16]), seed=st.integers(0, 1 << 30))
    def begin(self, segment_bytes: int, seed: int) -> None:
        self.both = [Disks(kind, segment_bytes) for kind in KINDS]
        for disks in self.both:
            disks.__enter__()
        self.disks = [disks.disk(1) for disks in self.both]
        self.random = [Random(seed) for _ in KINDS]
        self.topic_id = 0
        self.epoch = 0
        self.open()

    def teardown(self) -> None:
        for disks in self.both:
            disks.__exit__(None, None, None)

    def open(self) -> None:
        topic_id = f"id{self.topic_id}"
        for disk in self.disks:
            if disk.on_disk().get(TP, topic_id) != topic_id:
                disk.set_aside(TP)
        opened = [disk.open(TP, topic_id) for disk in self.disks]
        self.logs = [replica.log for replica in opened]
        assert opened[0][1:] == opened[1][1:]
        self.compare()

    def compare(self) -> LogState:
        model, native = self.logs
        state = model.state()
        assert state == native.state()
        assert model.high_watermark == native.high_watermark
        assert self.disks[0].on_disk() == self.disks[1].on_disk()
        records = [
            disks.codec.decode(log.read(state.log_start, state.leo, 1 << 30))
            for disks, log in zip(self.both, self.logs, strict=True)
        ]
        assert records[0] == records[1]
        return state

    def on_both(self, call: Callable[[Disks, DiskLog], Any]) -> Any:
        """Both answers, or types of errors, must be equal; returned is the answer, None for an error."""
        answers: list[tuple[Any, type[KreplogError] | None]] = []
        for disks, log in zip(self.both, self.logs, strict=True):
            try:
                answers.append((call(disks, log), None))
            except KreplogError as error:
                answers.append((None, type(error)))
        assert answers[0] == answers[1]
        self.compare()
        return answers[0][0]

    @rule(
        producer=st.integers(-1, 2),
        producer_epoch=st.sampled_from([0, 0, 0, 0, 1]),
        sequence=st.integers(0, 12),
        count=st.integers(1, 3),
        stamp=st.integers(0, 5),
        raised=st.sampled_from([0, 0, 0, 1, -1]),
    )
    def append_as_leader(
        self, producer: int, producer_epoch: int, sequence: int, count: int, stamp: int, raised: int
    ) -> None:
        if producer < 0:
            sequence = producer_epoch = -1
        self.epoch = max(self.epoch + raised, 0)
        contents = [b"%d:%d" % (producer, sequence + index) for index in range(count)]
        self.on_both(
            lambda disks, log: log.append_as_leader(
                disks.codec.encode(producer, producer_epoch, sequence, contents, stamp), self.epoch
            )
        )

    @rule(
        drawn=st.lists(
            st.tuples(st.integers(-1, 2), st.integers(0, 12), st.integers(1, 3), st.sampled_from([0, 0, 0, 1, 2, -1])),
            min_size=1,
            max_size=4,
        ),
        off=st.sampled_from([0, 0, 0, 0, 1, -1]),
    )
    def append_as_follower(self, drawn: list[tuple[int, int, int, int]], off: int) -> None:
        offset, epoch, facts = max(self.logs[0].state().leo + off, 0), self.epoch, []
        for producer, sequence, count, raised in drawn:
            epoch = max(epoch + raised, 0)
            facts.append((producer, sequence if producer >= 0 else -1, count, offset, epoch))
            offset += count
        model = [batch(self.both[0], first, n, producer, e, at) for producer, first, n, at, e in facts]
        native = [batch(self.both[1], first, n, producer, e, at) for producer, first, n, at, e in facts]
        joined = [type(model[0])(tuple(records.batches[0] for records in model)), b"".join(native)]
        self.on_both(lambda disks, log: log.append_as_follower(joined[self.both.index(disks)]))

    @rule(raised=st.integers(-1, 2))
    def assign_leader_epoch(self, raised: int) -> None:
        self.epoch = max(self.epoch + raised, 0)
        self.on_both(lambda _, log: log.assign_leader_epoch(self.epoch))

    @rule(data=st.data())
    def truncate_to(self, data: st.DataObject) -> None:
        state = self.logs[0].state()
        offset = data.draw(st.integers(max(state.log_start - 1, 0), state.leo + 1))
        self.on_both(lambda _, log: log.truncate_to(offset))

    @rule(data=st.data())
    def truncate_fully_and_start_at(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.logs[0].state().leo + 5))
        self.on_both(lambda _, log: log.truncate_fully_and_start_at(offset))

    @rule(data=st.data())
    def delete_records_before(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.logs[0].high_watermark + 1))
        self.on_both(lambda _, log: log.delete_records_before(offset))

    @rule(keep_bytes=st.integers(0, 1000))
    def enforce_retention(self, keep_bytes: int) -> None:
        for disk in self.disks:
            disk.retention_bytes = keep_bytes
        self.on_both(lambda _, log: log.enforce_retention())

    @rule(data=st.data())
    def advance_high_watermark(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.logs[0].state().leo + 1))
        self.on_both(lambda _, log: log.advance_high_watermark(offset))

    @rule(data=st.data(), max_bytes=st.integers(0, 400))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        state = self.logs[0].state()
        offset = data.draw(st.integers(max(state.log_start - 1, 0), state.leo + 1))
        limit = data.draw(st.integers(offset, state.leo + 2))
        self.on_both(lambda disks, log: disks.codec.decode(log.read(offset, limit, max_bytes)))
        self.on_both(lambda disks, log: disks.codec.size(log.read(offset, limit, max_bytes)))

    @rule(stamp=st.integers(0, 6))
    def offset_for_timestamp(self, stamp: int) -> None:
        self.on_both(lambda _, log: log.offset_for_timestamp(stamp))

    @rule()
    def flush(self) -> None:
        self.on_both(lambda _, log: log.flush())

    @rule()
    def checkpoint(self) -> None:
        for disk in self.disks:
            disk.checkpoint_high_watermarks()

    @rule(number=st.integers(1, 3), torn=st.booleans(), survives=st.booleans())
    def fail_write(self, number: int, torn: bool, survives: bool) -> None:
        for disk in self.disks:
            disk.fail_write(number, torn, survives)

    @rule(cuts=st.integers(0, 2))
    def power_fails(self, cuts: int) -> None:
        for _ in range(cuts + 1):
            losses = [disk.crash(True, random) for disk, random in zip(self.disks, self.random, strict=True)]
            assert losses[0] == losses[1]
        self.restart()

    @rule()
    def process_is_killed(self) -> None:
        before = self.logs[0].state(), self.logs[0].high_watermark
        torn = self.disks[0].failed
        for disk, random in zip(self.disks, self.random, strict=True):
            assert disk.crash(False, random) == []
        self.restart()
        if not torn:
            assert before == (self.logs[0].state(), self.logs[0].high_watermark)

    @rule()
    def clean_restart(self) -> None:
        for disk in self.disks:
            disk.shutdown()
        self.restart()

    @precondition(lambda self: not self.disks[0].failed)
    @rule()
    def topic_is_recreated(self) -> None:
        self.topic_id += 1
        self.open()
        assert self.compare() == LogState()

    @precondition(lambda self: not self.disks[0].failed)
    @rule()
    def replica_is_deleted(self) -> None:
        for disk in self.disks:
            disk.delete(TP)
            assert disk.on_disk() == {}
        self.open()
        assert self.compare() == LogState()

    def restart(self) -> None:
        for disk in self.disks:
            disk.repair()
        self.open()


# The same sequences in each run of `make test`; the long test finds others.
BothLogs.TestCase.settings = settings(max_examples=60, stateful_step_count=40, derandomize=True)
TestBothLogs = BothLogs.TestCase


@pytest.mark.long
def test_both_logs_do_the_same_in_thousands_of_sequences() -> None:
    run_state_machine_as_test(BothLogs, settings=settings(max_examples=4000, stateful_step_count=40))


def test_truncating_to_the_end_drops_an_epoch_without_records() -> None:
    """b1 led in epoch 2 and wrote nothing, then b2 leads with records of epoch 1 that b1 lacks (Kafka's truncateTo)."""
    with Disks("native") as disks:
        log = disks.disk(1).open(TP, "id").log
        log.append_as_leader(batch(disks, 0), 1)
        log.assign_leader_epoch(2)
        assert log.truncate_to(1).epochs == ((1, 0),)
        log.append_as_follower(batch(disks, 1, epoch=1, offset=1))


@pytest.mark.parametrize("kind", KINDS)
def test_records_deleted_and_lost_before_they_were_flushed_hide_no_later_ones(kind: str) -> None:
    with Disks(kind) as disks:
        disk = disks.disk(1)
        log = disk.open(TP, "id").log
        log.append_as_follower(batch(disks, 0, offset=0))
        log.advance_high_watermark(1)
        log.delete_records_before(1)
        assert [loss.end for loss in disk.crash(True, Random(1))] == [1]
        disk.repair()
        log = disk.open(TP, "id").log
        log.append_as_follower(batch(disks, 0, offset=0))
        log.flush()
        disk.crash(True, Random(1))
        disk.repair()
        assert disk.open(TP, "id").log.state() == LogState(leo=1, log_start=0, epochs=((0, 0),))


@pytest.mark.parametrize("kind", KINDS)
def test_a_producers_batch_that_does_not_fit_in_a_segment_is_refused(kind: str) -> None:
    with Disks(kind, segment_bytes=300) as disks:
        log, large = disks.disk(1).open(TP, "id").log, batch(disks, 0, 60)
        with pytest.raises(RecordBatchTooLargeError):
            log.append_as_leader(large, 0)
        log.append_as_leader(large, 0, sequenced=False)
        log.append_as_follower(batch(disks, 60, 60, offset=60))
        assert log.state().leo == 120


@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("length", [0, 1, 56, 57, 58, 64, 9000])
def test_both_codecs_agree(count: int, length: int) -> None:
    model, native = ModelCodec(), NativeCodec()
    made = [
        codec.encode(3, 1, 5, [b"v" * length] * count, 7, base_offset=4, leader_epoch=2) for codec in (model, native)
    ]
    assert model.size(made[0]) == len(made[0]) == native.size(made[1]) == len(made[1])
    assert model.decode(made[0]) == native.decode(made[1])
    assert native.decode(made[1])[-1] == StoredRecord(4 + count - 1, 2, 3, 5 + count - 1, b"v" * length)
    assert model.decode(b"") == native.decode(b"") == []


def test_a_killed_process_loses_nothing_and_a_power_failure_unflushed_records(disks: Disks) -> None:
    disk = disks.disk(1)
    log = disk.open(TP, "id").log
    for sequence in range(4):
        log.append_as_leader(batch(disks, sequence), 0)
        if sequence == 1:
            assert log.flush() == 2
    log.advance_high_watermark(1)
    disk.checkpoint_high_watermarks()
    log.advance_high_watermark(4)
    assert disk.crash(False, Random(0)) == []
    with pytest.raises(LogClosedError):
        log.state()
    unclean = [disk.unclean]
    opened = disk.open(TP, "id")
    assert (opened.state.leo, opened.high_watermark) == (4, 4)
    ends = set()
    for seed in range(20):
        for loss in disk.crash(True, Random(seed)):
            assert loss == Loss(1, TP, "id", loss.start, 4)
        opened = disk.open(TP, "id")
        ends.add(opened.state.leo)
        assert opened.high_watermark == 1
        for sequence in range(opened.state.leo, 4):
            opened.log.append_as_leader(batch(disks, sequence), 0)
    assert [*unclean, disk.unclean] == [False, True]
    assert min(ends) >= 2
    assert len(ends) > 1


def test_what_survived_a_power_cut_survives_the_next(disks: Disks) -> None:
    disk = disks.disk(1)
    log = disk.open(TP, "id").log
    for sequence in range(9):
        log.append_as_leader(batch(disks, sequence), 0)
    left = 9
    for seed in range(9):
        losses = disk.crash(True, Random(seed))
        if seed:
            assert losses == []
        left = disk.open(TP, "id").state.leo if not seed else left
        assert disk.open(TP, "id").state.leo == left


def test_a_failed_disk_takes_no_writes_until_it_is_repaired_and_restarted(disks: Disks) -> None:
    disk = disks.disk(1)
    log = disk.open(TP, "id").log
    log.append_as_leader(batch(disks, 0), 0)
    disk.fail()
    for write in (
        lambda: log.append_as_leader(batch(disks, 1), 0),
        lambda: log.truncate_to(0),
        lambda: log.assign_leader_epoch(3),
        log.flush,
        log.sync_files,
        lambda: disk.open(TopicPartition("other", 0), "id2"),
    ):
        with pytest.raises(LogFailedError):
            write()
    log.advance_high_watermark(1)
    assert log.high_watermark == 1
    assert values(disks, log) == [b"1:0"]
    disk.repair()
    with pytest.raises(LogFailedError):
        log.flush()
    disk.crash(False, Random(0))
    assert disk.open(TP, "id").log.append_as_leader(batch(disks, 1), 0)[1].leo == 2


def test_names_change_on_a_failed_disk_and_replicas_open(disks: Disks) -> None:
    """They do in the page cache of a host: that a broker does not use it any more is a rule of its core."""
    disk = disks.disk(1)
    disk.open(TP, "id").log.append_as_leader(batch(disks, 0), 0)
    disk.fail()
    disk.set_aside(TP)
    assert disk.restore(TP, "id")
    opened = disk.open(TP, "id")
    assert values(disks, opened.log) == [b"1:0"]
    with pytest.raises(LogFailedError):
        opened.log.append_as_leader(batch(disks, 1), 0)
    disk.delete(TP)
    assert disk.on_disk() == {}


@pytest.mark.parametrize(("torn", "survives", "found"), [(False, False, 1), (True, False, 1), (True, True, 2)])
def test_the_nth_write_fails(disks: Disks, torn: bool, survives: bool, found: int) -> None:
    disk = disks.disk(1)
    log = disk.open(TP, "id").log
    disk.fail_write(2, torn, survives)
    log.append_as_leader(batch(disks, 0), 0)
    log.advance_high_watermark(1)
    with pytest.raises(LogFailedError):
        log.append_as_leader(batch(disks, 1), 0)
    assert disk.failed
    disk.repair()
    disk.crash(False, Random(0))
    opened = disk.open(TP, "id")
    assert (opened.state.leo, opened.high_watermark) == (found, 1)


def test_a_deletion_that_fails_may_have_been_done_and_is_observed(disks: Disks) -> None:
    disk = disks.disk(1)
    observer = mock.Mock()
    observer.deleted = lambda broker, partition, log, start: seen.append((start, log.state().log_start))
    disk.observer = observer
    seen: list[tuple[int, int]] = []
    log = disk.open(TP, "id").log
    for number in range(3):
        log.append_as_leader(batch(disks, number), 0)
    log.advance_high_watermark(3)
    log.delete_records_before(1)
    disk.fail_write(1, torn=True)
    with pytest.raises(LogFailedError):
        log.delete_records_before(2)
    assert seen == [(0, 1), (1, 2)]
    disk.repair()
    disk.crash(False, Random(0))
    assert disk.open(TP, "id").state.log_start == 2


def test_a_replica_of_another_topic_id_is_set_aside(disks: Disks) -> None:
    disk = disks.disk(1)
    disk.open(TP, "old").log.append_as_leader(batch(disks, 0), 0)
    disk.crash(False, Random(0))
    with pytest.raises(InvariantError, match="not set aside"):
        disk.open(TP, "new")
    disk.set_aside(TP)
    opened = disk.open(TP, "new")
    assert opened.state == LogState()
    assert disk.on_disk() == {TP: "new"}
    assert not disk.restore(TP, "another")
    disk.delete(TP)
    assert disk.on_disk() == {}
    disk.delete(TP)
    disk.set_aside(TP)
    assert disk.restore(TP, "old")
    assert disk.open(TP, "old").state.leo == 1
    disk.set_aside(TP)
    disk.delete_stray(TP, "old")
    assert not disk.restore(TP, "old")


def test_the_power_fails_under_a_stray_as_under_any_other(disks: Disks) -> None:
    left = set()
    for seed in range(20):
        disk = disks.disk(seed)
        disk.open(TP, "id").log.append_as_leader(batch(disks, 0), 0)
        disk.set_aside(TP)
        losses = disk.crash(True, Random(seed))
        assert disk.restore(TP, "id")
        end = disk.open(TP, "id").state.leo
        assert [(loss.start, loss.end) for loss in losses] == ([(0, 1)] if end == 0 else [])
        left.add(end)
    assert left == {0, 1}


def test_the_power_takes_nothing_that_counts_of_a_stray_beside_a_new_replica(disks: Disks) -> None:
    for seed in range(20):
        disk = disks.disk(seed)
        disk.open(TP, "id").log.append_as_leader(batch(disks, 0), 0)
        disk.set_aside(TP)
        disk.open(TP, "id")
        assert disk.crash(True, Random(seed)) == []


def test_the_real_log_leaks_neither_descriptors_nor_files() -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    with Disks("native", segment_bytes=300) as disks:
        disk: Disk = disks.disk(1)
        for round_ in range(20):
            disk.set_aside(TP)
            log = disk.open(TP, f"id{round_ % 3}").log
            for sequence in range(10):
                log.append_as_leader(batch(disks, sequence), 0)
            log.read(0, 10, 1 << 20)
            disk.crash(round_ % 2 == 0, Random(round_))
        assert disks._folder is not None
        folder = Path(disks._folder)
    assert not folder.exists()
    assert descriptors() == before


def test_a_truncation_inside_the_batch_that_holds_the_log_start_leaves_it_where_it_is(disks: Disks) -> None:
    log = disks.disk(1).open(TP, "id").log
    log.append_as_leader(disks.codec.encode(1, 0, 0, [b"a", b"b", b"c"]), 0)
    log.advance_high_watermark(3)
    log.delete_records_before(1)
    assert log.truncate_to(2) == LogState(1, 1, ())
    assert log.high_watermark == 1
