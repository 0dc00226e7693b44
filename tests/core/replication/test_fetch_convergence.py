"""A fetcher and a leader's sessions, at random: whatever is lost, added, removed, flushed or cut, the logs converge."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pytest

from kreplog.config import ReplicationConfig
from kreplog.core.effects import Send, StateChange, Steps
from kreplog.core.events import FetchReplied
from kreplog.core.messages import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from kreplog.core.quota_windows import QuotaWindow
from kreplog.core.replication import epochs
from kreplog.core.replication.replica_fetcher import FetchOutcome, FetchPosition, FetchState, ReplicaFetcher
from kreplog.core.replication.replication_quota import ReplicationQuota
from kreplog.core.replication.sessions import FetchContext, FetchSessions
from kreplog.core.throttled_replicas import FOLLOWER_THROTTLED_REPLICAS
from kreplog.errors import ErrorCode
from kreplog.types import NO_EPOCH, EpochEndOffset
from tests.core.replication.test_replica_fetcher import BROKER_EPOCH, LEADER, ME, THROTTLED, tp


class ToyLog:
    """A log as the epochs of its records."""

    def __init__(self, records: Iterable[int] = ()) -> None:
        self.records = list(records)

    @property
    def leo(self) -> int:
        return len(self.records)

    @property
    def epochs(self) -> epochs.Epochs:
        log = self.records
        return tuple((epoch, at) for at, epoch in enumerate(log) if not at or log[at - 1] != epoch)


class Follower:
    """A replica with a log of its own, which checks that nothing is appended but where it fits."""

    topic_id = "id"
    awaits_flush = False
    config = THROTTLED
    isr = ()

    def __init__(self, number: int, log: ToyLog, flushes: bool, leader_epoch: int) -> None:
        self.topic_partition = tp(number)
        self.log = log
        self.flushes = flushes
        self.leader_epoch = leader_epoch
        self.high_watermark = 0
        self.refuses = False

    def fetch_position(self) -> FetchPosition:
        return FetchPosition(self.log.leo, epochs.epoch_at(self.log.epochs, self.log.leo - 1), 0)

    def pipelined_fetch_position(self, request: FetchPartition, data: FetchedPartition) -> Steps[FetchPosition | None]:
        yield from ()
        if self.flushes or self.is_late(request):
            return None
        return FetchPosition(request.fetch_offset + len(data.records), data.records[-1], 0)

    def is_late(self, request: FetchPartition) -> bool:
        return request.current_leader_epoch != self.leader_epoch or request.fetch_offset != self.log.leo

    def take_fetched(self, request: FetchPartition, data: FetchedPartition, now_ms: int) -> Steps[FetchOutcome]:
        yield StateChange("info", "taken")
        if self.is_late(request):
            return FetchOutcome.IDLE
        if data.error != ErrorCode.NONE or self.refuses:
            self.refuses = False
            return FetchOutcome.BACK_OFF
        if data.diverging is not None:
            del self.log.records[epochs.truncation_offset(self.log.epochs, self.log.leo, data.diverging) :]
            return FetchOutcome.TRUNCATED
        self.log.records += data.records
        self.high_watermark = min(data.high_watermark, self.log.leo)
        if not data.records:
            return FetchOutcome.IDLE
        return FetchOutcome.AWAIT_FLUSH if self.flushes else FetchOutcome.PROGRESS


class Leader:
    """Answers at once, from its logs and through its sessions; leads every partition in `epoch`."""

    def __init__(self, logs: list[ToyLog], slots: int) -> None:
        self.logs = logs
        self.epoch = 1
        self.sessions = FetchSessions(slots, itertools.count(1))

    def append(self, number: int) -> None:
        self.logs[number].records.append(self.epoch)
        self.sessions.mark(tp(number))

    def answer(self, request: FetchRequest, now_ms: int) -> FetchResponse:
        context = self.sessions.begin(request, now_ms)
        if not isinstance(context, FetchContext):
            return FetchResponse(context)
        room, results = request.max_bytes, []
        for requested in context.evaluate():
            results.append(self._read(requested, room))
            room -= len(results[-1].records)
        return context.finish(results)

    def _read(self, requested: FetchPartition, room: int) -> FetchedPartition:
        log = self.logs[requested.partition.partition]
        if requested.current_leader_epoch != self.epoch:
            return FetchedPartition(requested.partition, ErrorCode.FENCED_LEADER_EPOCH)
        parted = epochs.diverging(log.epochs, log.leo, requested.fetch_offset, requested.last_fetched_epoch)
        if parted is not None:
            return FetchedPartition(requested.partition, ErrorCode.NONE, diverging=parted)
        end = requested.fetch_offset + max(0, min(room, requested.max_bytes))
        return FetchedPartition(
            requested.partition, ErrorCode.NONE, log.leo, 0, records=log.records[requested.fetch_offset : end]
        )


class World:
    """One follower broker, one leader, seven partitions, and what chance does to them."""

    def __init__(self, seed: int, rate: int = 2**63 - 1) -> None:
        """rate: the quota of two of the partitions."""
        self.random = random.Random(seed)
        self.now_ms = 0
        self.leader = Leader([ToyLog() for _ in range(7)], self.random.choice([0, 1, 1, 1]))
        config = ReplicationConfig(
            replica_fetch_backoff_ms=20,
            replica_fetch_max_bytes=self.random.choice([1, 3]),
            replica_fetch_response_max_bytes=self.random.choice([2, 5, 100]),
        )
        quota = ReplicationQuota(ME, FOLLOWER_THROTTLED_REPLICAS, rate, QuotaWindow(2, 2))
        self.fetcher = ReplicaFetcher(ME, LEADER, config, itertools.count(), quota)
        self.followers = [Follower(number, ToyLog(), number % 3 == 0, 1) for number in range(7)]
        self.sent: Send | None = None
        self.rounds = 0
        for follower in self.followers:
            self.fetcher.add(follower, 0)

    def run(self, steps: Steps[None]) -> None:
        for effect in steps:
            if isinstance(effect, Send):
                assert self.sent is None
                self.sent = effect

    def round(self, calm: bool) -> None:
        chance = self.random.random
        self.now_ms += 1
        self.rounds += 1
        if self.sent is not None:
            sent, self.sent = self.sent, None
            lost = not calm and chance() < 0.1
            response = None if lost and chance() < 0.5 else self.leader.answer(sent.request, self.now_ms)
            event = FetchReplied(LEADER, sent.correlation, None if lost else response)
            if not calm and chance() < 0.2:
                self.disturb()  # while the answer is under way
            self.run(self.fetcher.on_fetched(event, self.now_ms, BROKER_EPOCH))
        for follower in self.followers:
            if self.fetcher.state(follower.topic_partition) is FetchState.AWAITING_FLUSH and (calm or chance() < 0.3):
                self.fetcher.resume(follower.topic_partition)
        due = self.fetcher.next_wakeup(self.now_ms)
        if due is not None and calm:
            self.now_ms = due
        self.run(self.fetcher.poll(self.now_ms, BROKER_EPOCH))

    def disturb(self) -> None:
        follower = self.random.choice(self.followers)
        action = self.random.randrange(6)
        if action == 0:
            self.fetcher.remove(follower.topic_partition)
        elif action == 1:
            self.fetcher.add(follower, self.now_ms)
        elif action == 2:  # the leader leads in a new epoch, with one of the logs made otherwise; not all hear of it
            self.leader.epoch += 2
            log = self.random.choice(self.leader.logs)
            del log.records[self.random.randint(0, log.leo) :]
            for number in range(7):
                self.leader.append(number)
            for each in self.followers:
                if self.random.random() < 0.7:
                    each.leader_epoch = self.leader.epoch
                    self.fetcher.add(each, self.now_ms)
        elif action == 3:  # the follower led for a moment, and wrote records that no other replica has
            self.fetcher.remove(follower.topic_partition)
            follower.log.records += [self.leader.epoch + 1] * 2
            self.leader.epoch += 2
            self.leader.sessions.mark(follower.topic_partition)
        elif action == 4:
            follower.refuses = True
        else:
            self.leader.sessions = FetchSessions(1, itertools.count(self.rounds * 100 + 100))

    def settle(self) -> None:
        """No more disturbances; only partitions that have to be added are, so changes sent before must not be lost."""
        for follower in self.followers:
            if follower.leader_epoch != self.leader.epoch or follower.topic_partition not in self.fetcher.partitions:
                follower.leader_epoch = self.leader.epoch
                self.fetcher.add(follower, self.now_ms)
        for appended in [None, *self.random.choices(range(7), k=5)]:
            if appended is not None:
                self.leader.append(appended)
            for _ in range(120):
                self.round(calm=True)
            for follower, log in zip(self.followers, self.leader.logs, strict=True):
                assert follower.log.records == log.records
                assert follower.high_watermark == log.leo


@pytest.mark.parametrize("rate", [1000, 2**63 - 1])
@pytest.mark.parametrize("seed", range(25))
def test_whatever_happens_logs_become_the_leaders(seed: int, rate: int) -> None:
    world = World(seed, rate)
    for _ in range(300):
        if world.random.random() < 0.3:
            world.leader.append(world.random.randrange(7))
        if world.random.random() < 0.05:
            world.disturb()
        world.round(calm=False)
    world.settle()


def test_without_changes_no_partition_is_read() -> None:
    """Both sides at rest: requests list nothing, and the leader looks at nothing."""
    world = World(3)
    world.leader.sessions = FetchSessions(1, itertools.count(1))
    for number in range(7):
        world.leader.append(number)
    for _ in range(50):
        world.round(calm=True)
    assert world.sent is not None
    assert (world.sent.request.partitions, world.sent.request.forgotten) == ((), ())
    context = world.leader.sessions.begin(world.sent.request, world.now_ms)
    assert isinstance(context, FetchContext)
    assert list(context.evaluate()) == []


def test_the_fetch_of_an_empty_log_has_no_epoch() -> None:
    follower = Follower(0, ToyLog(), False, 1)
    assert follower.fetch_position() == FetchPosition(0, NO_EPOCH, 0)
    assert epochs.diverging(((4, 0),), 9, 0, NO_EPOCH) is None
    assert epochs.diverging(((4, 0),), 9, 3, 2) == EpochEndOffset(2, 0)
