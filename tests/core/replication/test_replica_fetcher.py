"""ReplicaFetcher: its requests, and how it handles responses, errors and late responses."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kreplog.config import ReplicationConfig, TopicConfig
from kreplog.core.effects import Effect, Send, StateChange, Steps
from kreplog.core.events import FetchReplied
from kreplog.core.messages import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from kreplog.core.quota_windows import QuotaWindow
from kreplog.core.replication.replica_fetcher import AFTER, FetchOutcome, FetchPosition, FetchState, ReplicaFetcher
from kreplog.core.replication.replication_quota import ReplicationQuota
from kreplog.core.throttled_replicas import FOLLOWER_THROTTLED_REPLICAS
from kreplog.errors import ErrorCode, InvariantError, LogFailedError
from kreplog.types import EpochEndOffset, TopicPartition

ME, LEADER, BROKER_EPOCH = 2, 1, 77
CONFIG = ReplicationConfig(replica_fetch_wait_max_ms=500, replica_fetch_backoff_ms=100, replica_fetch_max_bytes=10)
WAIT, BACK_OFF = 500, 100


def quota(bytes_per_second: int = 2**63 - 1) -> ReplicationQuota:
    return ReplicationQuota(ME, FOLLOWER_THROTTLED_REPLICAS, bytes_per_second, QuotaWindow())


def tp(number: int) -> TopicPartition:
    return TopicPartition("t", number)


THROTTLED = TopicConfig(unused=((FOLLOWER_THROTTLED_REPLICAS, f"0:{ME},1:{ME},2:{LEADER}"),))


@dataclass
class Scripted:
    """A follower partition that moves on by a record for PROGRESS and AWAIT_FLUSH, back by one for TRUNCATED."""

    number: int
    outcomes: list[FetchOutcome | Exception] = field(default_factory=list)
    offset: int = 5
    leader_epoch: int = 1
    topic_id: str = "id"
    awaits_flush: bool = False
    looks: int = 0
    pipelined: FetchPosition | None = None
    config: TopicConfig = THROTTLED
    isr: tuple[int, ...] = ()
    taken: list[tuple[FetchPartition, FetchedPartition]] = field(default_factory=list)

    @property
    def topic_partition(self) -> TopicPartition:
        return tp(self.number)

    def fetch_position(self) -> FetchPosition:
        self.looks += 1
        return FetchPosition(self.offset, 1, 0)

    def pipelined_fetch_position(self, request: FetchPartition, data: FetchedPartition) -> Steps[FetchPosition | None]:
        yield from ()
        return self.pipelined

    def take_fetched(self, request: FetchPartition, data: FetchedPartition, now_ms: int) -> Steps[FetchOutcome]:
        self.taken.append((request, data))
        yield StateChange("info", f"took {self.number}")
        outcome = self.outcomes.pop(0) if self.outcomes else FetchOutcome.IDLE
        if isinstance(outcome, Exception):
            raise outcome
        if outcome in (FetchOutcome.PROGRESS, FetchOutcome.AWAIT_FLUSH):
            self.offset += 1
        elif outcome is FetchOutcome.TRUNCATED:
            self.offset -= 1
        return outcome


def data(number: int, records: bytes = b"") -> FetchedPartition:
    return FetchedPartition(tp(number), ErrorCode.NONE, 5, 0, records=records)


class Shell:
    """A fetcher with some partitions, its clock, and what it sent."""

    def __init__(self, *partitions: Scripted, config: ReplicationConfig = CONFIG, rate: int = 2**63 - 1) -> None:
        self.quota = quota(rate)
        self.fetcher = ReplicaFetcher(ME, LEADER, config, itertools.count(100), self.quota)
        self.now_ms = 1000
        self.effects: list[Effect] = []
        self.catches_up: list[bool] = []  # of each request
        for partition in partitions:
            self.fetcher.add(partition, self.now_ms)

    def run(self, steps: Steps[None]) -> FetchRequest | None:
        effects = list(steps)
        self.effects += effects
        sent = [effect for effect in effects if isinstance(effect, Send)]
        assert len(sent) <= 1
        if not sent:
            return None
        assert sent[0].leader == LEADER
        assert sent[0].correlation == self.fetcher.in_flight
        self.catches_up.append(sent[0].catches_up)
        return sent[0].request

    def poll(self, at_ms: int | None = None) -> FetchRequest | None:
        self.now_ms = self.now_ms if at_ms is None else at_ms
        return self.run(self.fetcher.poll(self.now_ms, BROKER_EPOCH))

    def answer(
        self,
        *answers: FetchedPartition,
        error: ErrorCode = ErrorCode.NONE,
        session: int = 9,
        correlation: int | None = None,
        lost: bool = False,
    ) -> FetchRequest | None:
        if correlation is None:
            assert self.fetcher.in_flight is not None
            correlation = self.fetcher.in_flight
        response = None if lost else FetchResponse(error, session, answers)
        return self.run(self.fetcher.on_fetched(FetchReplied(LEADER, correlation, response), self.now_ms, BROKER_EPOCH))

    @property
    def wakeup(self) -> int | None:
        return self.fetcher.next_wakeup(self.now_ms)


def listed(request: FetchRequest | None) -> list[int]:
    assert request is not None
    return [listed.partition.partition for listed in request.partitions]


def session(request: FetchRequest | None) -> tuple[int, int]:
    assert request is not None
    return request.session_id, request.session_epoch


def forgotten(request: FetchRequest | None) -> list[int]:
    assert request is not None
    return [topic_partition.partition for topic_partition in request.forgotten]


def test_nothing_to_fetch() -> None:
    shell = Shell()
    assert (shell.poll(), shell.wakeup, list(shell.fetcher.partitions)) == (None, None, [])


def test_the_first_request_lists_everything_and_begins_a_session() -> None:
    shell = Shell(Scripted(0), Scripted(1))
    assert shell.wakeup == shell.now_ms
    assert shell.poll() == FetchRequest(
        ME,
        BROKER_EPOCH,
        WAIT,
        1,
        CONFIG.replica_fetch_response_max_bytes,
        (FetchPartition(tp(0), "id", 1, 5, 1, 0, 10), FetchPartition(tp(1), "id", 1, 5, 1, 0, 10)),
        (),
        0,
        0,
    )
    assert shell.poll() is None  # one request is in flight
    assert shell.wakeup is None


def test_in_a_session_only_what_changed_is_listed() -> None:
    shell = Shell(Scripted(0, [FetchOutcome.PROGRESS]), Scripted(1), Scripted(2, [FetchOutcome.TRUNCATED]))
    shell.poll()
    second = shell.answer(data(0), data(1), data(2))
    assert (session(second), listed(second)) == ((9, 1), [0, 2])
    assert second is not None
    assert [listed.fetch_offset for listed in second.partitions] == [6, 4]
    third = shell.answer()
    assert (session(third), listed(third), forgotten(third)) == ((9, 2), [], [])
    shell.fetcher.add(Scripted(3), shell.now_ms)
    shell.fetcher.remove(tp(0))
    fourth = shell.answer()
    assert (session(fourth), listed(fourth), forgotten(fourth)) == ((9, 3), [3], [0])
    assert set(shell.fetcher.partitions) == {tp(1), tp(2), tp(3)}


def test_a_leader_without_sessions_gets_full_requests() -> None:
    """And what was served goes behind the others, for a leader that answers no more than fits."""
    shell = Shell(Scripted(0, [FetchOutcome.PROGRESS]), Scripted(1), Scripted(2))
    shell.poll()
    second = shell.answer(data(0), session=0)
    assert (session(second), listed(second)) == ((0, 0), [1, 2, 0])


@pytest.mark.parametrize(
    ("outcome", "state", "is_listed", "is_forgotten"),
    [
        (FetchOutcome.PROGRESS, FetchState.FETCHING, True, False),
        (FetchOutcome.IDLE, FetchState.FETCHING, False, False),
        (FetchOutcome.TRUNCATED, FetchState.TRUNCATING, True, False),
        (FetchOutcome.AWAIT_FLUSH, FetchState.AWAITING_FLUSH, False, True),
        (FetchOutcome.BACK_OFF, FetchState.DELAYED, False, True),
        (FetchOutcome.REMOVE, None, False, True),
    ],
)
def test_every_outcome(outcome: FetchOutcome, state: FetchState | None, is_listed: bool, is_forgotten: bool) -> None:
    other = Scripted(1, [FetchOutcome.PROGRESS])
    shell = Shell(Scripted(0, [outcome]), other)
    assert shell.fetcher.state(tp(0)) is FetchState.TRUNCATING
    shell.poll()
    request = shell.answer(data(0), data(1))
    assert shell.fetcher.state(tp(0)) is state is AFTER[outcome]
    assert (0 in listed(request), 0 in forgotten(request)) == (is_listed, is_forgotten)
    assert 1 in listed(request)


def test_every_outcome_is_in_the_table() -> None:
    assert set(AFTER) == set(FetchOutcome)


def test_a_delayed_partition_comes_back() -> None:
    shell = Shell(Scripted(0, [FetchOutcome.BACK_OFF]), Scripted(1))
    shell.poll()
    assert forgotten(shell.answer(data(0))) == [0]
    shell.now_ms += BACK_OFF
    back = shell.answer()
    assert (listed(back), shell.fetcher.state(tp(0))) == ([0], FetchState.TRUNCATING)


def test_when_all_are_delayed_nothing_is_sent_before_the_time() -> None:
    shell = Shell(Scripted(0, [FetchOutcome.BACK_OFF]))
    shell.poll()
    assert shell.answer(data(0)) is None
    assert shell.wakeup == 1000 + BACK_OFF
    assert shell.poll(1000 + BACK_OFF - 1) is None
    assert listed(shell.poll(1000 + BACK_OFF)) == [0]


def test_a_delayed_partition_that_is_removed_or_added_again() -> None:
    shell = Shell(Scripted(0, [FetchOutcome.BACK_OFF]), Scripted(1, [FetchOutcome.BACK_OFF]))
    shell.poll()
    shell.answer(data(0), data(1))
    shell.fetcher.remove(tp(0))
    assert shell.wakeup == 1000 + BACK_OFF
    shell.fetcher.add(Scripted(1), shell.now_ms)
    assert shell.wakeup == 1000
    assert (listed(shell.poll()), shell.fetcher.state(tp(1))) == ([1], FetchState.TRUNCATING)
    shell.now_ms += BACK_OFF
    assert listed(shell.answer()) == []


def test_a_leader_that_is_not_ready_is_retried_with_growing_delays() -> None:
    partition = Scripted(0, [FetchOutcome.LEADER_NOT_READY] * 5)
    shell = Shell(partition, config=replace(CONFIG, replica_fetch_backoff_ms=1000))
    delays = []
    for _ in range(5):
        assert listed(shell.poll()) == [0]
        assert shell.answer(data(0)) is None
        assert shell.wakeup is not None
        delays.append(shell.wakeup - shell.now_ms)
        shell.now_ms = shell.wakeup
    assert delays == [20, 40, 80, 160, 160]
    shell.fetcher.add(partition, shell.now_ms)  # in the next epoch
    partition.outcomes = [FetchOutcome.LEADER_NOT_READY]
    shell.poll()
    shell.answer(data(0))
    assert shell.wakeup == shell.now_ms + 20


def test_a_delay_that_ends_before_a_flush_waits_for_the_flush() -> None:
    partition = Scripted(0, [FetchOutcome.BACK_OFF], awaits_flush=False)
    shell = Shell(partition)
    shell.poll()
    partition.awaits_flush = True
    assert shell.answer(data(0)) is None
    assert shell.poll(1000 + BACK_OFF) is None
    assert shell.fetcher.state(tp(0)) is FetchState.AWAITING_FLUSH
    shell.fetcher.resume(tp(0))
    assert listed(shell.poll()) == [0]


def test_a_running_flush_holds_back_a_request_without_changes() -> None:
    """Else its end would reach the leader only after a request that waits for records of other partitions."""
    shell = Shell(Scripted(0, [FetchOutcome.AWAIT_FLUSH]), Scripted(1))
    shell.poll()
    assert shell.answer(data(0), data(1)) is None
    assert shell.wakeup == 1000 + WAIT  # a disk that hangs does not stop the others
    shell.fetcher.resume(tp(0))
    assert shell.wakeup == 1000
    request = shell.poll()
    assert (listed(request), forgotten(request), shell.fetcher.state(tp(0))) == ([0], [], FetchState.FETCHING)
    assert request is not None
    assert (request.max_wait_ms, request.partitions[0].fetch_offset) == (WAIT, 6)


def test_a_request_with_changes_is_not_held_back() -> None:
    shell = Shell(Scripted(0, [FetchOutcome.AWAIT_FLUSH]), Scripted(1, [FetchOutcome.PROGRESS]))
    shell.poll()
    request = shell.answer(data(0), data(1))
    assert request is not None
    assert (listed(request), forgotten(request), request.max_wait_ms) == ([1], [0], 0)
    assert shell.answer() is None
    assert shell.poll(1000 + WAIT - 1) is None
    request = shell.poll(1000 + WAIT)
    assert request is not None
    assert request.max_wait_ms == 0
    shell.fetcher.resume(tp(0))
    shell.fetcher.resume(tp(0))  # again, or of one that does not wait: nothing
    shell.fetcher.resume(tp(7))
    assert listed(shell.answer()) == [0]


def test_a_lost_connection_pauses_and_begins_a_new_session() -> None:
    first, other = Scripted(0, [FetchOutcome.PROGRESS]), Scripted(1)
    shell = Shell(first, other)
    shell.poll()
    shell.answer(data(0), data(1))
    assert shell.answer(lost=True) is None
    assert shell.wakeup == 1000 + BACK_OFF
    shell.fetcher.add(Scripted(2), shell.now_ms)
    assert shell.poll(1000 + BACK_OFF - 1) is None
    request = shell.poll(1000 + BACK_OFF)
    assert (session(request), set(listed(request)), forgotten(request)) == ((9, 0), {0, 1, 2}, [])  # and ends the old
    assert session(shell.answer(session=11)) == (11, 1)


def test_while_a_leader_is_down_only_changed_partitions_are_listed_again() -> None:
    """Ten thousand partitions may follow it, and it is tried again and again."""
    first, other = Scripted(0), Scripted(1)
    shell = Shell(first, other)
    shell.poll()
    shell.answer(data(0), data(1))
    looks = first.looks, other.looks
    shell.answer(lost=True)
    first.offset = 7
    shell.fetcher.moved(first.topic_partition)
    request = shell.poll(1000 + BACK_OFF)
    assert request is not None and [requested.fetch_offset for requested in request.partitions] == [7, 5]
    shell.answer(lost=True)
    assert len(listed(shell.poll(1000 + 2 * BACK_OFF))) == 2
    assert (first.looks, other.looks) == (looks[0] + 1, looks[1])


@pytest.mark.parametrize("error", [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH])
def test_a_session_that_the_leader_lost_is_replaced_at_once(error: ErrorCode) -> None:
    shell = Shell(Scripted(0), Scripted(1))
    shell.poll()
    shell.answer(data(0))
    request = shell.answer(error=error)
    assert (session(request), listed(request)) == ((0, 0), [0, 1])
    assert shell.answer(error=error) is None  # but not over and over
    assert shell.wakeup == 1000 + BACK_OFF


def test_a_request_refused_as_a_whole_pauses() -> None:
    shell = Shell(Scripted(0))
    shell.poll()
    shell.answer(data(0))
    assert shell.answer(error=ErrorCode.STALE_BROKER_EPOCH) is None
    assert session(shell.poll(1000 + BACK_OFF)) == (0, 0)
    assert any(isinstance(effect, StateChange) and "STALE_BROKER_EPOCH" in effect.text for effect in shell.effects)


def test_a_response_in_another_session_is_not_believed() -> None:
    shell = Shell(Scripted(0))
    shell.poll()
    shell.answer()
    assert session(shell.answer(session=10)) == (0, 0)


def test_f7_a_response_to_another_request_is_dropped() -> None:
    partition = Scripted(0)
    shell = Shell(partition)
    shell.poll()
    late = shell.fetcher.in_flight
    shell.answer(lost=True)
    assert shell.answer(data(0), correlation=late) is None
    shell.poll(1000 + BACK_OFF)
    now = shell.fetcher.in_flight
    assert shell.answer(data(0), correlation=late) is None
    shell.run(shell.fetcher.on_fetched(FetchReplied(3, now or 0, FetchResponse(ErrorCode.NONE, 9)), 1100, BROKER_EPOCH))
    assert (partition.taken, shell.fetcher.in_flight) == ([], now)


def test_f7_partitions_get_the_response_with_their_request() -> None:
    partition = Scripted(0)
    shell = Shell(partition)
    shell.poll()
    partition.offset, partition.leader_epoch = 3, 2  # it changes while the request is under way
    request = shell.answer(data(0, b"x"))
    ((requested, got),) = partition.taken
    assert (requested.fetch_offset, requested.current_leader_epoch, got.records) == (5, 1, b"x")
    assert request is not None  # it was dropped there, and is fetched from its current position
    assert [(listed.fetch_offset, listed.current_leader_epoch) for listed in request.partitions] == [(3, 2)]


def test_f7_responses_for_partitions_removed_or_added_again_are_dropped() -> None:
    removed, old, stays = Scripted(0), Scripted(1), Scripted(2)
    shell = Shell(removed, old, stays)
    shell.poll()
    new = Scripted(1, leader_epoch=2)
    shell.fetcher.remove(tp(0))
    shell.fetcher.add(new, shell.now_ms)
    request = shell.answer(data(0), data(1), data(2), data(8))
    assert (removed.taken, old.taken, new.taken, len(stays.taken)) == ([], [], [], 1)
    assert (listed(request), forgotten(request)) == ([1], [0])
    shell.answer(data(1))
    assert len(new.taken) == 1


def test_f5_added_again_where_it_stood_is_listed_again() -> None:
    """Same leader, same position, same epoch even: the response in flight is dropped, so everything must be sent
    again."""
    shell = Shell(Scripted(0), Scripted(1))
    shell.poll()
    shell.answer(data(0), data(1))
    shell.fetcher.add(Scripted(0), shell.now_ms)
    assert shell.fetcher.state(tp(0)) is FetchState.TRUNCATING
    request = shell.answer(data(0))
    assert (listed(request), forgotten(request)) == ([0], [])


def test_f7_a_response_for_an_unlisted_partition_is_dropped() -> None:
    flushing = Scripted(0, [FetchOutcome.AWAIT_FLUSH])
    shell = Shell(flushing, Scripted(1, [FetchOutcome.PROGRESS]))
    shell.poll()
    shell.answer(data(0), data(1))
    shell.answer(data(0))
    assert len(flushing.taken) == 1


def test_f10_an_error_of_a_partition_stops_no_other() -> None:
    failing, fine = Scripted(0, [LogFailedError("disk")]), Scripted(1, [FetchOutcome.PROGRESS])
    shell = Shell(failing, fine)
    shell.poll()
    assert listed(shell.answer(data(0), data(1))) == [1]
    assert shell.fetcher.state(tp(0)) is FetchState.DELAYED
    assert any(isinstance(effect, StateChange) and effect.level == "error" for effect in shell.effects)


def test_a_broken_invariant_is_not_swallowed() -> None:
    shell = Shell(Scripted(0, [InvariantError("bug")]))
    shell.poll()
    with pytest.raises(InvariantError):
        shell.answer(data(0))


def test_a_partition_removed_while_it_applies_its_response() -> None:
    shell = Shell(Scripted(0, [FetchOutcome.BACK_OFF]), Scripted(1))
    shell.poll()
    event = FetchReplied(LEADER, shell.fetcher.in_flight or 0, FetchResponse(ErrorCode.NONE, 9, (data(0),)))
    steps = shell.fetcher.on_fetched(event, shell.now_ms, BROKER_EPOCH)
    assert next(steps) == StateChange("info", "took 0")
    shell.fetcher.remove(tp(0))
    request = shell.run(steps)
    assert (forgotten(request), list(shell.fetcher.partitions)) == ([0], [tp(1)])


# --- pipelined fetches ---------------------------------------------------------------------------------------


def pipelined(offset: int) -> FetchPosition:
    return FetchPosition(offset, 1, 0)


def test_the_next_request_is_sent_before_fetched_records_are_applied() -> None:
    partition = Scripted(0, [FetchOutcome.PROGRESS, FetchOutcome.PROGRESS], pipelined=pipelined(6))
    shell = Shell(partition, Scripted(1))
    shell.poll()
    shell.effects.clear()
    second = shell.answer(data(0, b"x"))
    assert [type(effect) for effect in shell.effects] == [Send, StateChange]
    assert shell.catches_up == [False, True]
    assert second is not None
    assert [(listed.partition, listed.fetch_offset) for listed in second.partitions] == [(tp(0), 6)]
    assert session(second) == (9, 1)
    partition.pipelined = None  # near the end it fetches from its log end
    third = shell.answer(data(0, b"y"))
    assert [requested.fetch_offset for requested, _ in partition.taken] == [5, 6]
    assert third is not None
    assert (session(third), [listed.fetch_offset for listed in third.partitions]) == ((9, 2), [7])
    assert shell.catches_up == [False, True, False]


def test_a_leader_without_sessions_gets_full_pipelined_requests() -> None:
    shell = Shell(Scripted(0, [FetchOutcome.PROGRESS], pipelined=pipelined(6)), Scripted(1))
    shell.poll()
    request = shell.answer(data(0, b"x"), session=0)
    assert isinstance(shell.effects[-2], Send)
    assert request is not None
    assert [(listed.partition, listed.fetch_offset) for listed in request.partitions] == [(tp(1), 5), (tp(0), 6)]


@pytest.mark.parametrize(
    ("other", "outcome", "offsets"),
    [
        (data(1, b"y"), FetchOutcome.PROGRESS, {0: 6, 1: 6}),
        (FetchedPartition(tp(1), ErrorCode.NONE, diverging=EpochEndOffset(0, 3)), FetchOutcome.TRUNCATED, {0: 6, 1: 4}),
        (FetchedPartition(tp(1), ErrorCode.KAFKA_STORAGE_ERROR), FetchOutcome.BACK_OFF, {0: 6}),
    ],
)
def test_partitions_that_cannot_be_pipelined_are_applied_first(
    other: FetchedPartition, outcome: FetchOutcome, offsets: dict[int, int]
) -> None:
    """So that the request lists its new position: a session repeats what is not listed again."""
    shell = Shell(Scripted(0, [FetchOutcome.PROGRESS], pipelined=pipelined(6)), Scripted(1, [outcome]))
    shell.poll()
    shell.effects.clear()
    request = shell.answer(data(0, b"x"), other)
    assert request is not None
    assert {listed.partition.partition: listed.fetch_offset for listed in request.partitions} == offsets
    first, second, third = shell.effects
    assert (first, third) == (StateChange("info", "took 1"), StateChange("info", "took 0"))
    assert isinstance(second, Send)


@pytest.mark.parametrize("refused", [{"error": ErrorCode.UNKNOWN_SERVER_ERROR}, {"diverging": EpochEndOffset(0, 3)}])
def test_a_refusal_is_never_pipelined(refused: Any) -> None:
    shell = Shell(Scripted(0, [FetchOutcome.TRUNCATED], pipelined=pipelined(6)))
    shell.poll()
    request = shell.answer(replace(data(0, b"x"), **refused))
    assert request is not None
    assert [listed.fetch_offset for listed in request.partitions] == [4]


def test_f7_a_pipelined_response_after_a_failed_append_is_dropped() -> None:
    partition = Scripted(0, [FetchOutcome.BACK_OFF], pipelined=pipelined(6))
    shell = Shell(partition)
    shell.poll()
    assert shell.answer(data(0, b"x")) is not None
    assert shell.answer(data(0, b"y")) is None
    assert (len(partition.taken), shell.fetcher.state(tp(0))) == (1, FetchState.DELAYED)
    request = shell.poll(1000 + BACK_OFF)
    assert request is not None
    assert [listed.fetch_offset for listed in request.partitions] == [5]


def test_f7_a_partition_added_again_during_a_pipelined_fetch_gets_no_response() -> None:
    partition = Scripted(0, [FetchOutcome.BACK_OFF], pipelined=pipelined(6))
    shell = Shell(partition)
    shell.poll()
    shell.answer(data(0, b"x"))
    shell.now_ms += BACK_OFF
    request = shell.answer(data(0, b"y"))
    assert request is not None
    assert (len(partition.taken), [listed.fetch_offset for listed in request.partitions]) == (1, [5])


def test_a_partition_first_listed_in_a_pipelined_request_waits_for_its_response() -> None:
    """An answer to the request before it may name the partition as well: as it was before it was added again."""
    old, new = Scripted(1), Scripted(1)
    shell = Shell(Scripted(0, [FetchOutcome.PROGRESS], pipelined=pipelined(6)), old)
    shell.poll()
    shell.fetcher.add(new, shell.now_ms)
    assert set(listed(shell.answer(data(0, b"x"), data(1)))) == {0, 1}
    assert (old.taken, new.taken) == ([], [])
    shell.answer(data(1))
    assert len(new.taken) == 1


def test_an_unexpected_position_after_an_append_is_listed_next() -> None:
    partition = Scripted(0, [FetchOutcome.PROGRESS], pipelined=pipelined(9))
    shell = Shell(partition)
    shell.poll()
    shell.answer(data(0, b"x"))
    partition.pipelined = None
    request = shell.answer()
    assert request is not None
    assert [listed.fetch_offset for listed in request.partitions] == [6]


def test_a_response_that_names_a_partition_twice_breaks_nothing() -> None:
    partition = Scripted(0, [FetchOutcome.BACK_OFF, FetchOutcome.PROGRESS])
    shell = Shell(partition, Scripted(1))
    shell.poll()
    shell.answer(data(0, b"x"), data(0))
    assert [got.records for _, got in partition.taken] == [b""]
    assert shell.fetcher.state(tp(0)) is FetchState.DELAYED


def test_kip_227_ten_thousand_idle_partitions_cost_nothing_per_round() -> None:
    """Counted: how often the position of a partition is looked at, and how many are listed."""
    partitions = [Scripted(number) for number in range(10_000)]
    shell = Shell(*partitions)
    assert len(listed(shell.poll())) == 10_000
    shell.answer(*(data(number) for number in range(10_000)))
    looks = sum(partition.looks for partition in partitions)
    mentioned = 0
    for number in range(100):
        partitions[number].outcomes = [FetchOutcome.PROGRESS]
        request = shell.answer(data(number, b"x"))
        mentioned += len(listed(request))
    assert mentioned == 100
    assert sum(partition.looks for partition in partitions) - looks == 200  # after taking, and for the request
    assert sum(partition.looks for partition in partitions[100:]) == 2 * 9_900


def test_replicas_that_catch_up_are_left_out_of_requests_while_the_rate_is_above_the_quota() -> None:
    """KIP-73: 0 is listed and behind, 1 is listed and in sync, 2 is listed on another broker."""
    catching_up, in_sync, unlisted = Scripted(0), Scripted(1), Scripted(2)
    for partition in (catching_up, in_sync, unlisted):
        partition.outcomes = [FetchOutcome.PROGRESS] * 9
    shell = Shell(catching_up, in_sync, unlisted, rate=40)
    assert listed(shell.poll()) == [0, 1, 2]
    replies = [replace(data(number, b"x" * 50), high_watermark=9 if number != 1 else 6) for number in range(3)]
    request = shell.answer(*replies)  # 100 bytes in the first second
    assert (listed(request), forgotten(request)) == ([1, 2], [0])
    assert shell.fetcher.state(tp(0)) is FetchState.DELAYED
    assert shell.quota.rate(shell.now_ms) == 100
    shell.now_ms += BACK_OFF
    request = shell.answer(replace(data(1, b"x" * 50), high_watermark=7))  # it goes on, and is counted
    assert (listed(request), shell.quota.rate(shell.now_ms)) == ([1], 150)
    assert shell.answer() is not None and shell.fetcher.state(tp(0)) is FetchState.DELAYED
    shell.now_ms += 3700  # 150 bytes in 3.8 seconds
    assert listed(shell.answer()) == [0]


def test_a_replica_in_the_isr_is_fetched_before_its_leader_has_answered() -> None:
    """Kafka holds it up, until it has fallen out of the ISR."""
    shell = Shell(Scripted(0), Scripted(1, isr=(LEADER, ME)), rate=40)
    shell.quota.record(1000, shell.now_ms)
    assert listed(shell.poll()) == [1]


def test_a_throttle_that_ends_lets_replicas_go_on_after_a_back_off() -> None:
    shell = Shell(Scripted(0), rate=0)
    shell.quota.record(1, shell.now_ms)
    assert shell.poll() is None and shell.wakeup == shell.now_ms + BACK_OFF
    shell.now_ms += BACK_OFF
    assert shell.poll() is None and shell.wakeup == shell.now_ms + BACK_OFF
    shell.quota.bytes_per_second = 1
    shell.now_ms += BACK_OFF
    assert listed(shell.poll()) == [0]


def test_records_of_a_throttled_partition_are_appended_before_the_next_request() -> None:
    """Else the partition would go on to be fetched ahead of its append."""
    partition = Scripted(0, [FetchOutcome.PROGRESS], pipelined=FetchPosition(6, 1, 0))
    shell = Shell(partition, rate=10)
    shell.poll()
    assert shell.answer(replace(data(0, b"x" * 50), high_watermark=9)) is None
    assert len(partition.taken) == 1 and shell.fetcher.state(tp(0)) is FetchState.DELAYED
