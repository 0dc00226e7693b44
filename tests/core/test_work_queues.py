"""A partition of a work queue against a plain model of what is promised: any deliveries, acknowledgements, crashes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kreplog.core.work_queues import HEAD, MAX_METADATA, PREFIX, Delivery, QueuePartition, WorkQueueConfig, lag_of
from kreplog.errors import ArgumentTypeError, UsageError

LOCK_MS = 10


@dataclass
class Work:
    """A record as the model knows it, until it is done. due_ms: from when on it is to be delivered."""

    deliveries: int = 0
    due_ms: int = 0
    locked: bool = False
    generation: int = 0

    def delivery(self, offset: int) -> Delivery:
        return Delivery(offset, self.deliveries, self.generation)


class QueueAgainstModel(RuleBasedStateMachine):
    @initialize(most=st.integers(1, 6), limit=st.none() | st.integers(1, 3), start=st.integers(0, 100))
    def begin(self, most: int, limit: int | None, start: int) -> None:
        self.config = WorkQueueConfig(LOCK_MS, limit, most)
        self.now_ms = 1_000_000
        self.end = start
        self.work: dict[int, Work] = {}
        self.committed = start, ""
        self.queue = QueuePartition(*self.committed, self.config)
        self.generation = 0
        self.truncated: list[Delivery] = []

    def exhausted(self, work: Work) -> bool:
        return self.config.delivery_count_limit is not None and work.deliveries >= self.config.delivery_count_limit

    def commit(self) -> None:
        self.committed = self.queue.start_offset, self.queue.metadata()
        self.queue.committed()

    def deliver(self, delivery: Delivery) -> None:
        work = self.work[delivery.offset]
        work.deliveries, work.due_ms, work.locked = work.deliveries + 1, self.now_ms + LOCK_MS, True
        assert delivery == work.delivery(delivery.offset)
        assert self.queue.is_current(delivery)
        assert not self.queue.is_current(delivery._replace(delivery_count=work.deliveries - 1))

    @rule(gap=st.sampled_from([0, 0, 0, 1, 9, 1 << 40]), fails=st.booleans())
    def deliver_next(self, gap: int, fails: bool) -> None:
        assert self.queue.has_room == (len(self.work) < self.config.partition_max_record_locks)
        if not self.queue.has_room:
            return
        offset = self.end + gap
        self.end = offset + 1
        self.work[offset] = Work(generation=self.generation)
        self.deliver(self.queue.deliver_next(offset, self.now_ms))
        if fails:
            self.undo(offset)
        else:
            self.commit()

    def undo(self, offset: int) -> None:
        self.queue.undo(offset)
        work = self.work[offset]
        assert not self.queue.is_current(work.delivery(offset))
        work.deliveries, work.due_ms, work.locked = work.deliveries - 1, 0, False

    @rule(most=st.integers(1, 4), fails=st.booleans())
    def redeliver(self, most: int, fails: bool) -> None:
        due = sorted((work.due_ms, offset) for offset, work in self.work.items() if work.due_ms <= self.now_ms)
        delivered, exhausted = self.queue.redeliver(self.now_ms, most)
        expected: list[int] = []
        used_up: list[int] = []
        for _, offset in due:
            if len(expected) < most:
                (used_up if self.exhausted(self.work[offset]) else expected).append(offset)
        assert [delivery.offset for delivery in delivered] == expected, "the earliest first, and all that fit"
        assert [delivery.offset for delivery in exhausted] == used_up
        for delivery in exhausted:
            offset, work = delivery.offset, self.work[delivery.offset]
            assert delivery == work.delivery(offset)
            work.due_ms, work.locked = self.now_ms + LOCK_MS, False
            if not fails:
                self.queue.complete(offset)
                del self.work[offset]
        for delivery in delivered:
            self.deliver(delivery)
        if fails:
            for delivery in delivered:
                self.undo(delivery.offset)
        else:
            self.commit()

    def current(self, data: st.DataObject) -> int:
        return int(data.draw(st.sampled_from(sorted(n for n, work in self.work.items() if work.locked))))

    def some_are_locked(self) -> bool:
        return any(work.locked for work in self.work.values())

    @precondition(some_are_locked)
    @rule(data=st.data(), fails=st.booleans())
    def ack(self, data: st.DataObject, fails: bool) -> None:
        offset = self.current(data)
        delivery = self.work[offset].delivery(offset)
        self.queue.complete(offset)
        assert not self.queue.is_current(delivery)
        if fails:
            self.queue.commit_failed()
            assert self.queue.is_current(delivery), "it can be acknowledged again"
        else:
            self.commit()
            del self.work[offset]

    @precondition(some_are_locked)
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 1, LOCK_MS, 3 * LOCK_MS]))
    def nack(self, data: st.DataObject, delay_ms: int) -> None:
        offset = self.current(data)
        work = self.work[offset]
        self.queue.release(offset, self.now_ms + delay_ms, f"of {offset}")
        assert not self.queue.is_current(work.delivery(offset))
        assert self.queue.error_of(offset) == f"of {offset}"
        work.due_ms, work.locked = self.now_ms + delay_ms, False

    @precondition(some_are_locked)
    @rule(data=st.data())
    def renew(self, data: st.DataObject) -> None:
        offset = self.current(data)
        self.queue.renew(offset, self.now_ms)
        self.work[offset].due_ms = self.now_ms + LOCK_MS

    @rule(passed_ms=st.sampled_from([1, LOCK_MS - 1, LOCK_MS, 5 * LOCK_MS]))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @rule(passed_ms=st.integers(0, 50))
    def another_owner(self, passed_ms: int) -> None:
        """The process was killed: what was committed counts, and all of it that is not done is due at once."""
        self.now_ms = passed_ms  # a clock of its own
        self.queue = QueuePartition(*self.committed, self.config)
        self.generation, self.truncated = 0, []
        assert self.queue.metadata() == self.committed[1]
        self.end = self.queue.end_offset
        for offset in [offset for offset in self.work if offset >= self.end]:
            del self.work[offset]  # it was never returned to a worker
        for work in self.work.values():
            work.due_ms, work.locked, work.generation = 0, False, 0

    @rule(data=st.data())
    def retention(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.queue.start_offset, self.end))
        deleted = self.queue.delete_before(offset)
        gone = [each for each in self.work if each < offset]
        assert deleted == len(gone)
        for each in gone:
            del self.work[each]
        self.commit()

    @rule(data=st.data())
    def truncation(self, data: st.DataObject) -> None:
        self.end = data.draw(st.integers(self.queue.start_offset, self.end))
        self.queue.truncate_to(self.end)
        self.generation += 1
        for each in [each for each in self.work if each >= self.end]:
            self.truncated.append(self.work.pop(each).delivery(each))
        self.commit()

    @invariant()
    def holds(self) -> None:
        assert self.queue.end_offset == self.end
        assert self.queue.start_offset == min(self.work, default=self.end)
        assert not any(map(self.queue.is_current, self.truncated)), "another record has the offset now"
        locked = sum(work.locked and work.due_ms > self.now_ms for work in self.work.values())
        assert self.queue.locked(self.now_ms) == locked
        assert len(self.queue.metadata()) <= MAX_METADATA
        assert self.queue.lag(self.end + 3) == len(self.work) + 3


TestQueueAgainstModel = QueueAgainstModel.TestCase
TestQueueAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def partition(start: int = 0, metadata: str = "", most: int = 4000) -> QueuePartition:
    return QueuePartition(start, metadata, WorkQueueConfig(LOCK_MS, None, most))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 0, 0, 1, 2, 9, 10, 15, 99, 1 << 40]), st.integers(0, 3)), min_size=1, max_size=60
    )
)
def test_the_metadata_of_any_state_fits_in_4096_characters(pattern: list[tuple[int, int]]) -> None:
    """A pattern of gaps and deliveries again and again, until there is no room; then what is done makes holes."""
    queue = partition()
    offsets: list[int] = []
    for gap, deliveries in itertools.cycle(pattern):
        if not queue.has_room:
            break
        offset = queue.end_offset + gap
        queue.deliver_next(offset, 0)
        offsets.append(offset)
        if len(offsets) % 50 == 0:
            queue.metadata()  # as each commit does
        for _ in range(deliveries):
            queue.release(offset, 0, "")
            queue.redeliver(0, 1)
    for offset in offsets[::2]:
        queue.complete(offset)
        queue.committed()
    metadata = queue.metadata()
    assert len(metadata) <= MAX_METADATA
    again = partition(queue.start_offset, metadata)
    assert (again.start_offset, again.end_offset, again.metadata()) == (
        queue.start_offset,
        queue.end_offset,
        metadata,
    )


def test_what_is_done_never_lengthens_the_metadata_beyond_its_limit() -> None:
    """Deliveries of all kinds side by side, and of them every second and then every third done."""
    queue = partition()
    while queue.has_room:
        offset = queue.deliver_next(queue.end_offset, 0).offset
        if offset % 2:
            queue.release(offset, 0, "")
            queue.redeliver(0, 1)
    offsets = range(queue.end_offset)
    assert len(queue.metadata()) > MAX_METADATA // 2
    for step in (2, 3, 5):
        for offset in offsets[1::step]:
            if queue.is_current(Delivery(offset, 1 + offset % 2)):
                queue.complete(offset)
        queue.committed()
        assert len(queue.metadata()) <= MAX_METADATA


def test_the_metadata_as_kafka_shows_it() -> None:
    queue = partition(7)
    for _ in range(14):
        queue.deliver_next(queue.end_offset, 0)
    for offset in range(10, 20):
        queue.complete(offset)
    queue.release(20, 0, "")
    queue.redeliver(0, 1)
    assert (queue.start_offset, queue.metadata()) == (7, HEAD + "b3.10c")
    assert partition(7, HEAD + "o").redeliver(0, 1)[0] == [Delivery(7, 15)], "counts end there, deliveries do not"
    queue = partition(7, HEAD + "o")
    queue.redeliver(0, 1)
    assert queue.metadata() == HEAD + "o"


@pytest.mark.parametrize("metadata", ["", "kreplog", "anything", "b3.10c", "\u20ac"])
def test_metadata_of_others_counts_as_none(metadata: str) -> None:
    queue = partition(5, metadata)
    assert (queue.start_offset, queue.end_offset, queue.metadata()) == (5, 5, "")


DAMAGED = ["2:b", "", "1:p", "1:3", "1:b0", "1:b9999", "1:.9223372036854775807", "1:b\u0663", "1:b-1"]
TOO_LONG = ["1:" + "b." * 2041, "1:." + "9" * 4000]


@pytest.mark.parametrize("text", [PREFIX + text for text in DAMAGED + TOO_LONG])
def test_metadata_that_is_damaged(text: str) -> None:
    with pytest.raises(ValueError, match="kreplog-queue"):
        partition(5, text)


@given(st.text(alphabet="abo.0123456789zé", max_size=30))
def test_any_metadata_is_read_or_refused(text: str) -> None:
    try:
        queue = partition(5, HEAD + text)
    except ValueError:
        return
    again = partition(queue.start_offset, queue.metadata())
    assert again.metadata() == queue.metadata() and again.end_offset == queue.end_offset


def test_locks_that_are_renewed_for_ever_take_no_memory() -> None:
    queue = partition()
    for _ in range(3):
        queue.deliver_next(queue.end_offset, 0)
    for now_ms in range(10_000):
        queue.renew(now_ms % 3, now_ms)
    assert len(queue._due) < 200


def test_a_record_whose_dead_letter_fails_comes_again_after_a_lock() -> None:
    queue = QueuePartition(0, "", WorkQueueConfig(LOCK_MS, 1, 5))
    queue.deliver_next(0, now_ms=0)
    queue.release(0, 0, "refused")
    for now_ms in (0, LOCK_MS, 2 * LOCK_MS):
        assert queue.redeliver(now_ms, 1) == ([], [Delivery(0, 1)])
        assert queue.redeliver(now_ms + LOCK_MS - 1, 1) == ([], [])


def test_a_truncation_before_a_commit_takes_what_was_done_with_it() -> None:
    """The log goes on with another record at the offset, of which nothing is done."""
    queue = partition()
    queue.deliver_next(0, 0)
    queue.complete(0)
    queue.truncate_to(0)
    delivery = queue.deliver_next(0, 0)
    queue.committed()
    assert queue.is_current(delivery) and queue.start_offset == 0


def test_a_delivery_from_before_a_truncation_is_over() -> None:
    """The record that has its offset now is another; those below the truncation go on."""
    queue = partition()
    below, gone = queue.deliver_next(0, 0), queue.deliver_next(1, 0)
    queue.truncate_to(1)
    other = queue.deliver_next(1, 0)
    assert [queue.is_current(each) for each in (below, gone, other)] == [True, False, True]
    assert queue.redeliver(LOCK_MS, 2)[0] == [below._replace(delivery_count=2), other._replace(delivery_count=2)]
    assert QueuePartition(1, HEAD + "b", WorkQueueConfig(LOCK_MS, None, 5), 7).redeliver(0, 1)[0] == [Delivery(1, 2, 7)]


def test_what_was_committed_is_done_with() -> None:
    """A later commit does not take another record at its offset for it, and a later failure changes nothing of it."""
    queue = partition()
    queue.deliver_next(0, 0)
    queue.complete(0)
    queue.committed()
    assert not queue._completed, "nor does it take memory"
    queue.truncate_to(0)
    delivery = queue.deliver_next(0, 0)
    queue.committed()
    assert queue.is_current(delivery)
    queue.commit_failed()
    assert queue.redeliver(LOCK_MS - 1, 1) == ([], []) and queue.is_current(delivery)


def test_the_room_of_metadata_that_was_read_and_of_what_is_done_since() -> None:
    queue = partition()
    while queue.has_room:
        queue.deliver_next(queue.end_offset + (queue.end_offset > 0), 0)
    records = range(0, queue.end_offset, 2)
    assert len(records) < 4000, "the characters are used up, not the record locks"
    again = partition(0, queue.metadata())
    assert (again.has_room, again.end_offset) == (False, queue.end_offset)
    for offset in records[:1000]:
        again.complete(offset)
    again.committed()
    again.metadata()
    assert (again.has_room, again.start_offset) == (True, records[1000])


def test_metadata_up_to_its_limits() -> None:
    """4096 characters, as Kafka's offset.metadata.max.bytes; the largest offset."""
    assert MAX_METADATA == 4096
    fits = HEAD + "bc" * ((MAX_METADATA - len(HEAD)) // 2)
    fits += "." * (MAX_METADATA - len(fits))
    assert len(fits) == MAX_METADATA and partition(0, fits).end_offset == MAX_METADATA - len(HEAD)
    with pytest.raises(ValueError, match="too long"):
        partition(0, fits + ".")
    most = MAX_METADATA - len(HEAD)
    assert partition(0, f"{HEAD}b{most}").lag(0) == most
    with pytest.raises(ValueError, match="no run"):
        partition(0, f"{HEAD}b{most + 1}")
    assert partition(0, f"{HEAD}.{2**63 - 1}").end_offset == 2**63 - 1
    with pytest.raises(ValueError, match="no run"):
        partition(0, f"{HEAD}.{2**63}")


SETTINGS = {
    "record_lock_duration_ms": range(1, (1 << 40) + 1),
    "delivery_count_limit": range(1, 11),
    "partition_max_record_locks": range(1, 4001),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_range_of_a_setting(name: str) -> None:
    valid: dict[str, Any] = {
        "record_lock_duration_ms": 1,
        "delivery_count_limit": None,
        "partition_max_record_locks": 1,
    }
    for value in (SETTINGS[name][0], SETTINGS[name][-1]):
        assert getattr(WorkQueueConfig(**valid | {name: value}), name) == value
    for value in (SETTINGS[name][0] - 1, SETTINGS[name][-1] + 1):
        with pytest.raises(UsageError, match=f"{name} = {value} must be 1 to {SETTINGS[name][-1]}"):
            WorkQueueConfig(**valid | {name: value})
    for wrong in (True, "1", 1.0):
        with pytest.raises(ArgumentTypeError, match=f"{name} is an int"):
            WorkQueueConfig(**valid | {name: wrong})


def test_the_lag_of_what_is_committed() -> None:
    assert lag_of(7, HEAD + "b3.10c", 30) == 4 + 9
    assert lag_of(7, HEAD + "b3.10c", 5) == 4, "the log may end before"
    assert lag_of(7, "of another tool", 30) == 23
    assert lag_of(7, HEAD + "z", 30) == 23 and lag_of(30, HEAD + "z", 7) == 0


def test_a_commit_that_fails_brings_back_what_was_done() -> None:
    """Also where its lock has ended before that, and nobody looks for it any more."""
    queue = partition()
    delivery = queue.deliver_next(0, 0)
    queue.complete(0)
    assert queue.redeliver(LOCK_MS, 1) == ([], []) and not queue.is_current(delivery)
    queue.commit_failed()
    assert queue.is_current(delivery) and queue.start_offset == 0
    queue.committed()
    assert queue.redeliver(LOCK_MS, 1) == ([Delivery(0, 2)], []), "the failure was the end of that commit"


def test_a_delivery_that_is_undone_was_never_there() -> None:
    queue = partition()
    first = queue.deliver_next(0, 0)
    assert queue.redeliver(LOCK_MS, 1) == ([Delivery(0, 2)], [])
    queue.undo(0)
    assert not queue.is_current(first), "nor is the one before it, which was over"
    assert queue.redeliver(0, 1) == ([Delivery(0, 2)], [])
    queue.undo(0, due_ms=5)
    assert queue.locked(0) == 0 and queue.redeliver(4, 1) == ([], [])
    assert queue.redeliver(5, 1) == ([Delivery(0, 2)], [])


def test_a_record_whose_deliveries_are_used_up_is_not_under_way() -> None:
    queue = QueuePartition(0, "", WorkQueueConfig(LOCK_MS, 1, 5))
    delivery = queue.deliver_next(0, 0)
    assert queue.redeliver(LOCK_MS, 1) == ([], [delivery])
    assert queue.locked(LOCK_MS) == 0 and not queue.is_current(delivery)


def test_another_owner_knows_no_delivery_of_the_one_before() -> None:
    queue = partition(0, HEAD + "b")
    assert not queue.is_current(Delivery(0, 1)) and queue.locked(-1) == 0


def test_retention_beyond_what_was_delivered() -> None:
    queue = partition()
    queue.deliver_next(0, 0)
    queue.complete(0)
    assert queue.delete_before(7) == 1 and (queue.start_offset, queue.end_offset) == (7, 7)
    assert queue.lag(9) == 2 and queue.metadata() == ""


def test_the_counts_in_the_metadata() -> None:
    """From a for none to n for 13, and o for 14 and more."""
    queue = partition()
    queue.deliver_next(0, 0)
    for count in range(1, 17):
        assert queue.metadata() == HEAD + "abcdefghijklmno"[min(count, 14)]
        queue.release(0, 0, "")
        assert queue.redeliver(0, 1) == ([Delivery(0, count + 1)], [])


def test_the_earliest_comes_first_after_any_number_of_renewals() -> None:
    queue = partition()
    for _ in range(3):
        queue.deliver_next(queue.end_offset, 0)
    for now_ms in range(1, 1000):
        queue.renew(2 - now_ms % 3, now_ms)  # in another order than that of the offsets
        due = sorted((record.due_ms, offset) for offset, record in queue._records.items())
        assert queue._due[0] == min(queue._due) and set(due) <= set(queue._due)
