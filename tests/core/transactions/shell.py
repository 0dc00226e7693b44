"""Shell: a coordinator of transactions whose log is a list."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from kreplog.config import TransactionConfig
from kreplog.core.effects import AppendGroupRecords, ReadGroupRecords, Reply, SendMarkers, WallClock
from kreplog.core.events import (
    Event,
    GroupRecordsAppended,
    GroupRecordsRead,
    LeadershipChanged,
    MarkersReplied,
    Received,
    Tick,
)
from kreplog.core.memory import MemoryAccount
from kreplog.core.transaction_messages import (
    LAST_EPOCH,
    TRANSACTIONS_TOPIC,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    TransactionRecord,
)
from kreplog.core.transactions.transaction_coordinator import TransactionCoordinator
from kreplog.core.transactions.transaction_states import TransactionState
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

LOG = TopicPartition(TRANSACTIONS_TOPIC, 0)
A, B, GONE = TopicPartition("topic", 0), TopicPartition("topic", 1), TopicPartition("gone", 0)
TIMEOUT_MS = 1000


class Shell:
    """A coordinator whose log is a list. automatic: appends are committed at once, and markers written; else they wait
    in `appends` and `sent`. known, leaders, controller_epoch: of the cluster's metadata, which it has for the
    coordinator."""

    def __init__(
        self,
        memory: MemoryAccount | None = None,
        config: TransactionConfig | None = None,
        last_epoch: int = LAST_EPOCH,
    ) -> None:
        self.memory = memory
        self.last_epoch = last_epoch
        self.config = config or TransactionConfig()
        self.log: list[TransactionRecord] = []
        self.known = {LOG, A, B}
        self.leaders = {A: 1, B: 2}
        self.controller_epoch = 1
        self.now_ms = 0
        self.epoch = 0
        self.automatic = True
        self.start()

    def start(self) -> None:
        """A new process over the same log, which leads it."""
        self.appends: list[AppendGroupRecords] = []
        self.sent: list[SendMarkers] = []
        self.replies: dict[Hashable, Any] = {}
        self.count = 0
        self.core = TransactionCoordinator(self.config, self, self.memory, self.last_epoch)
        self.epoch += 1
        self.step(LeadershipChanged(LOG, self.epoch, len(self.log)))

    @property
    def partitions(self) -> set[TopicPartition]:
        return self.known

    def partition_count(self, topic: str) -> int:
        return sum(partition.topic == topic for partition in self.known)

    def leader_of(self, partition: TopicPartition) -> int:
        return self.leaders.get(partition, -1)

    def step(self, event: Event) -> None:
        follow: list[Event] = []
        answer: Any = None
        steps = self.core.step(event, self.now_ms)
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration:
                break
            answer = None
            match effect:
                case Reply(reply_to, response):
                    assert reply_to not in self.replies
                    self.replies[reply_to] = response
                case WallClock():
                    answer = 1_000_000 + self.now_ms
                case ReadGroupRecords(partition, epoch, offset):
                    records = tuple(enumerate(self.log))
                    follow.append(GroupRecordsRead(partition, epoch, offset, records, len(self.log)))
                case AppendGroupRecords():
                    self.appends.append(effect)
                case SendMarkers():
                    self.sent.append(effect)
        for each in follow:
            self.step(each)
        while self.automatic and (self.appends or self.sent):
            self.commit()
            self.answer()

    def commit(self, error: ErrorCode = ErrorCode.NONE, *, written: bool = True) -> None:
        """Answer all appends; written: whether the records are in the log."""
        appends, self.appends = self.appends, []
        for append in appends:
            if written:
                self.log += append.records
            self.step(GroupRecordsAppended(append.tag, error, len(self.log) - 1))

    def answer(self, error: ErrorCode = ErrorCode.NONE, *, lost: bool = False) -> None:
        """The leaders answer the markers that were sent."""
        sent, self.sent = self.sent, []
        for each in sent:
            partitions = () if lost else tuple((produced.partition, error) for produced in each.request.partitions)
            self.step(MarkersReplied(each.tag, partitions))

    def tick(self, ms: int) -> None:
        self.now_ms += ms
        self.step(Tick())

    def request(self, request: Any) -> Any:
        """The response; None if there is none yet."""
        self.count += 1
        self.step(Received(self.count, request))
        return self.replies.get(self.count)

    def init(self, new_id: int = 100, known: tuple[int, int] = (-1, -1), timeout_ms: int = TIMEOUT_MS) -> Any:
        return self.request(InitProducerIdRequest("id", timeout_ms, new_id, *known))

    def add(self, *partitions: TopicPartition, epoch: int = 0, producer_id: int = 100) -> ErrorCode | None:
        self.request(AddPartitionsToTxnRequest("id", producer_id, epoch, partitions))
        return self.added()

    def added(self) -> ErrorCode | None:
        """The error of the last request, which adds partitions; None if it has no response yet."""
        response: AddPartitionsToTxnResponse | None = self.replies.get(self.count)
        if response is None:
            return None
        (error,) = {error for _, error in response.partitions}
        return error

    def end(self, committed: bool = True, epoch: int = 0, producer_id: int = 100) -> ErrorCode | None:
        response: EndTxnResponse | None = self.request(EndTxnRequest("id", producer_id, epoch, committed))
        return None if response is None else response.error

    @property
    def state(self) -> str:
        """By the log."""
        value = self.log[-1].value
        assert value is not None
        return TransactionState(value.state).label

    def markers(self) -> list[tuple[int, bool, int, int, list[TopicPartition]]]:
        """(leader, committed, producer epoch, coordinator epoch, partitions) of those that were sent."""
        return [
            (
                each.leader,
                each.request.partitions[0].records.committed,
                each.request.partitions[0].records.producer_epoch,
                each.request.partitions[0].records.coordinator_epoch,
                [produced.partition for produced in each.request.partitions],
            )
            for each in self.sent
        ]


def ongoing() -> Shell:
    """A producer with an open transaction in A and B; nothing is committed by itself any more."""
    shell = Shell()
    shell.init()
    assert shell.add(A, B) is ErrorCode.NONE
    shell.automatic = False
    return shell


def end_second(shell: Shell, epoch: int, committed: bool = True, producer_id: int = 100, new_id: int = -1) -> Any:
    """An EndTxn of version 5."""
    return shell.request(EndTxnRequest("id", producer_id, epoch, committed, True, new_id))


def for_leader(
    shell: Shell, *partitions: TopicPartition, epoch: int = 0, verify_only: bool = False, producer_id: int = 100
) -> Any:
    return shell.request(AddPartitionsToTxnRequest("id", producer_id, epoch, partitions, True, verify_only))
