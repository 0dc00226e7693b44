"""MarkerWriter: writes the markers of decided transactions to the leaders of their partitions, until all have one.

A marker is written again where its outcome is unknown: a second one of the same producer epoch changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container
from typing import Protocol

from kreplog.core.effects import SendMarkers, StateChange, Steps
from kreplog.core.events import MarkersReplied
from kreplog.core.messages import ProducePartition, TransactionMarker, WriteMarkersRequest
from kreplog.core.timers import Timers
from kreplog.core.transactions.transaction_shard import TransactionalId, TransactionShard
from kreplog.core.transactions.transaction_states import TransactionState
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

RESEND_MS = 50
"""Pause before markers are written again."""

FENCED_RESEND_MS = 30_000
"""Pause where all that is missing was refused with TRANSACTION_COORDINATOR_FENCED: a partition has a marker of a later
coordinator. This one is soon replaced, or somebody wrote that marker by hand."""

ABSENCE_MS = 30_000
"""A partition that is in no metadata of one controller for this long is deleted. A new controller sends them in pieces,
and may die after the first: the next one follows sooner than this, by the default of broker.session.timeout.ms."""

APPEND_TIMEOUT_MS = 10_000
"""How long a leader waits until its in-sync replicas have a marker. After that it answers REQUEST_TIMED_OUT, and the
marker is written again."""

RESPONSE_TIMEOUT_MS = 30_000
"""How long a coordinator waits for a leader's response, as for a lost one; more than APPEND_TIMEOUT_MS."""

_DONE = frozenset({ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH})
"""INVALID_PRODUCER_EPOCH: a later producer epoch has begun there, so a later coordinator has written the marker."""

Complete = Callable[[TransactionShard, TransactionalId, int], Steps[None]]


class KnownPartitions(Protocol):
    """The part of the cluster's metadata that coordinators of transactions need. partitions: known ones.
    controller_epoch: of the controller that has sent them, -1 before that."""

    @property
    def partitions(self) -> Container[TopicPartition]: ...

    @property
    def controller_epoch(self) -> int: ...

    def partition_count(self, topic: str) -> int:
        """0 for an unknown topic."""

    def leader_of(self, partition: TopicPartition) -> int:
        """The id of the partition's leader, -1 for none."""


class MarkerWriter:
    """Sends the markers of decided transactions until every partition has one. complete: the step once every partition
    has its marker. The rest as in the coordinator."""

    def __init__(
        self,
        timers: Timers,
        metadata: KnownPartitions,
        complete: Complete,
        is_led: Callable[[TransactionShard], bool],
    ) -> None:
        self._timers = timers
        self._metadata = metadata
        self._complete = complete
        self._is_led = is_led
        self._controller_epoch = -1
        self._controller_since = 0
        self._tag = 0
        self._sent: dict[int, tuple[TransactionShard, TransactionalId]] = {}

    def begin(self, shard: TransactionShard, transaction: TransactionalId, now_ms: int) -> Steps[None]:
        """The transaction has been decided."""
        transaction.unmarked = set(transaction.stored.partitions)
        transaction.absent_since = {}
        transaction.fenced = frozenset()
        yield from self.send(shard, transaction, now_ms)

    def send(self, shard: TransactionShard, transaction: TransactionalId, now_ms: int) -> Steps[None]:
        """Send the markers that are missing to the leaders; those without a leader wait for the next attempt, and those
        that were fenced for all others. A partition that has been deleted needs none."""
        if transaction.in_flight:
            return
        self._drop_deleted(transaction, now_ms)
        if not transaction.unmarked:
            yield from self._complete(shard, transaction, now_ms)
            return
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        missing = transaction.unmarked - transaction.absent_since.keys()
        for name in sorted((missing - transaction.fenced) or missing):
            by_leader[self._metadata.leader_of(name)].append(name)
        by_leader.pop(-1, None)
        if not by_leader:
            self._timers.set(transaction.deadline, now_ms + RESEND_MS)
            return
        stored = transaction.stored
        committed = transaction.state is TransactionState.PREPARE_COMMIT
        marker = TransactionMarker(stored.producer_id, stored.producer_epoch, committed, shard.leader_epoch)
        transaction.in_flight = len(by_leader)
        for leader, names in by_leader.items():
            self._tag += 1
            self._sent[self._tag] = shard, transaction
            produced = tuple(ProducePartition(name, marker) for name in names)
            yield SendMarkers(self._tag, leader, WriteMarkersRequest(-1, APPEND_TIMEOUT_MS, produced))

    def _drop_deleted(self, transaction: TransactionalId, now_ms: int) -> None:
        epoch, known = self._metadata.controller_epoch, self._metadata.partitions
        if epoch != self._controller_epoch:
            self._controller_epoch, self._controller_since = epoch, now_ms
        if epoch < 0:
            return
        absent = [name for name in transaction.unmarked if name not in known]
        transaction.absent_since = {name: transaction.absent_since.get(name, now_ms) for name in absent}
        transaction.unmarked -= {name for name in absent if self._is_deleted(transaction, name, now_ms)}

    def _is_deleted(self, transaction: TransactionalId, name: TopicPartition, now_ms: int) -> bool:
        return now_ms - max(transaction.absent_since[name], self._controller_since) >= ABSENCE_MS

    def replied(self, event: MarkersReplied, now_ms: int) -> Steps[None]:
        """A leader has answered, or its answer is lost."""
        shard, transaction = self._sent.pop(event.tag)
        transaction.in_flight -= 1
        if not self._is_led(shard):
            return
        for name, error in event.partitions:
            if error in _DONE:
                transaction.unmarked.discard(name)
            elif error is ErrorCode.TRANSACTION_COORDINATOR_FENCED and name not in transaction.fenced:
                transaction.fenced |= {name}
                yield StateChange("warning", _fenced(transaction.transactional_id, name, shard))
        if transaction.in_flight:
            return
        if transaction.unmarked:
            pause_ms = FENCED_RESEND_MS if transaction.unmarked <= transaction.fenced else RESEND_MS
            self._timers.set(transaction.deadline, now_ms + pause_ms)
        else:
            yield from self._complete(shard, transaction, now_ms)


def _fenced(transactional_id: str, name: TopicPartition, shard: TransactionShard) -> str:
    reason = f"{name} has one of a later coordinator than that of epoch {shard.leader_epoch} of {shard.partition}"
    return f"the marker of {transactional_id} is refused: {reason}; tried again every {FENCED_RESEND_MS // 1000} s"
