"""IsrProposer: a leader's ISR and what it commits: shrinks, expansions, the change in flight, the high watermark.

One change is in flight at a time (KIP-497); isr_change.py judges the store's responses to it, isr.py has the rules as
functions of values. Until a change has an outcome the high watermark advances by the maximal ISR.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import replace
from typing import Protocol, Self

from kreplog.config import ReplicationConfig
from kreplog.core import elr, nodes
from kreplog.core.effects import SizeFrom, StateChange, Steps, SubmitMulti, SubmitRead
from kreplog.core.events import StoreReplied
from kreplog.core.replication import isr
from kreplog.core.replication.isr import RemoteReplica
from kreplog.core.replication.isr_change import IsrChange, Outcome, isr_operations
from kreplog.core.replication.local_replica import UNREADABLE, LocalReplica
from kreplog.core.replication.partition_change import PartitionChange
from kreplog.core.replication.role import Role
from kreplog.types import LeaderAndIsr, StoreOperation, TopicPartition


class LiveBrokers(Protocol):
    """The registered brokers, which of them can join an ISR, and where clients reach them; MetadataCache in a
    broker."""

    def is_alive(self, broker_id: int) -> bool: ...

    def epoch_of(self, broker_id: int) -> int: ...

    def can_join_isr(self, broker_id: int, broker_epoch: int) -> bool: ...

    def rack_of(self, broker_id: int) -> str | None: ...

    def has_listeners_of(self, broker_id: int, other: int) -> bool: ...


class IsrProposer(LocalReplica):
    """The part of a Partition that maintains the ISR while this broker leads.

    isr, elr, partition_epoch: as the store has them, as far as this broker knows. replicas: the followers' state
    in this leader epoch, by broker id; empty unless it leads. pending: the ISR change in flight.
    """

    def __init__(
        self,
        broker_id: int,
        topic_partition: TopicPartition,
        topic_id: str,
        config: ReplicationConfig,
        brokers: LiveBrokers,
        changed: deque[Self],
    ) -> None:
        super().__init__(broker_id, topic_partition, topic_id, changed)
        self.partition_epoch = -1
        self.controller_epoch = -1
        self.assigned_replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.elr: tuple[int, ...] = ()
        self.replicas: dict[int, RemoteReplica] = {}
        self.pending: IsrChange | None = None
        self._settings = config
        self._brokers = brokers
        self._submitted = 0

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Committed and proposed members together: any of them may be elected (KIP-497)."""
        if self.pending is None:
            return self.isr
        return tuple(sorted({*self.isr, *self.pending.proposed.isr}))

    def has_min_isr(self) -> bool:
        """Whether the committed ISR is large enough to commit (KIP-966)."""
        return isr.has_min_isr(self.isr, self.config.min_insync_replicas, self.assigned_replicas)

    def needs_tick(self) -> bool:
        """Whether time alone can change anything here: a member of the ISR lags, another replica could join, a write
        has no outcome, or the log has to be reopened."""
        if self.interrupted:
            return self.role is not Role.OFFLINE
        if self.role is not Role.LEADER:
            return False
        if self.pending is not None or (self.elr and self.has_min_isr()):
            return True
        for replica in self.replicas.values():
            if self._is_behind(replica) if replica.broker_id in self.isr else self._may_join(replica):
                return True
        return False

    def store_replied(self, event: StoreReplied, now_ms: int) -> Steps[None]:
        """The outcome of an ISR write, or of the read that follows a refused one; isr_change.py judges it."""
        change = self.pending
        if self.role is not Role.LEADER or change is None or change.tag != event.tag:
            return
        match change.outcome(event):
            case Outcome.ADOPTED, LeaderAndIsr() as state:
                self._adopt(state)
                yield from self._recheck()
                yield from self._maybe_expand(now_ms)
            case Outcome.OVERTAKEN, _:
                tag = self._next_tag()
                self.pending = replace(change, tag=tag)
                yield SubmitRead(tag, (change.path,))
            case Outcome.DROPPED, _:
                yield StateChange(
                    "info", f"{self.topic_partition}: ISR change to {change.proposed.isr} dropped: {event.error}"
                )
                self.pending = None
                yield from self._shrink_by_bytes()
                yield from self._advance_high_watermark()
            case Outcome.DEPOSED, state:
                yield StateChange("warning", f"{self.topic_partition}: deposed: the store has {state}")
                self.step_down()
            case Outcome.UNKNOWN, _:
                retry_ms = now_ms + self._settings.replica_fetch_backoff_ms
                self.pending = replace(change, tag=None, retry_ms=retry_ms)

    def _set_role(self, role: Role) -> None:
        super()._set_role(role)
        self.pending = None
        self.replicas = {}

    def _adopt(self, state: LeaderAndIsr) -> None:
        """Take over the ISR that the store has; a change of ours that is still in flight fails on its version."""
        self.isr = state.isr
        self.elr = state.elr
        self.partition_epoch = state.partition_epoch
        self.controller_epoch = state.controller_epoch
        self.flush_every_record = state.flush_every_record
        self.pending = None

    def _recheck(self) -> Steps[None]:
        """After a change of settings or ISR under the same leader and epoch."""
        if self.role is Role.LEADER and not self.has_min_isr():
            self._mark_changed(PartitionChange.BELOW_MIN_ISR)
        elif self.needs_tick():
            self._mark_changed(PartitionChange.UNSETTLED)
        yield from self._flush_tail()
        yield from self._shrink_by_bytes()
        yield from self._advance_high_watermark()

    def _advance_high_watermark(self) -> Steps[None]:
        """Advance the leader's high watermark as far as the maximal ISR allows; not while the ISR is below
        min.insync.replicas, nor while the store has eligible leader replicas, which hold all that is committed
        (KIP-966)."""
        if self.role is not Role.LEADER or not self.has_min_isr() or self._has_elr():
            return
        watermark = isr.high_watermark(
            self.high_watermark, self._local_end(), self.broker_id, self.maximal_isr, self.replicas
        )
        if watermark > self.high_watermark:
            yield from self._set_high_watermark(watermark)

    def _has_elr(self) -> bool:
        return bool(self.elr)

    # Shrink and expand

    def _check_isr(self, now_ms: int) -> Steps[None]:
        """Retry a write without outcome; else clear the ELR once the ISR is large enough, expand, and shrink."""
        if self.role is not Role.LEADER:
            return
        if self.pending is not None:
            if self.pending.tag is None and now_ms >= self.pending.retry_ms:
                yield from self._submit(self.pending)
            return
        if self.elr and self.has_min_isr():  # min.insync.replicas is lower than when they left
            yield from self._propose(self.isr, None)
        yield from self._maybe_expand(now_ms)
        if self.pending is None:
            lagging = [member for member in self._followers_in_sync() if self._is_lagging(member, now_ms)]
            yield from self._shrink(lagging)
            yield from self._shrink_by_bytes()

    def _followers_in_sync(self) -> list[RemoteReplica]:
        return [self.replicas[member] for member in self.isr if member in self.replicas]

    def _is_lagging(self, replica: RemoteReplica, now_ms: int) -> bool:
        return isr.is_lagging(replica, self.log.leo, now_ms, self._settings.replica_lag_time_max_ms)

    def _is_lagging_in_bytes(self, replica: RemoteReplica) -> Steps[bool]:
        """False while its position is unknown, or its lag cannot be read: then it is judged by time alone."""
        max_bytes = self._settings.replica_lag_max_bytes
        if max_bytes < 0 or not isr.UNKNOWN_OFFSET < replica.leo < self.log.leo:
            return False
        try:
            behind: int = yield SizeFrom(self.topic_partition, max(replica.leo, self.log.log_start))
        except UNREADABLE:
            return False
        return isr.is_lagging_in_bytes(behind, max_bytes)

    def _shrink_by_bytes(self) -> Steps[None]:
        """Where replica.lag.max.bytes is set: after whatever may have moved a member, or the log end away from it."""
        if self.role is not Role.LEADER or self.pending is not None or self._settings.replica_lag_max_bytes < 0:
            return
        members = self._followers_in_sync()
        lagging = {}
        for member in members:
            lagging[member.broker_id] = yield from self._is_lagging_in_bytes(member)
        yield from self._shrink([member for member in members if lagging[member.broker_id]])

    def _shrink(self, lagging: list[RemoteReplica]) -> Steps[None]:
        if lagging:
            leaving = [replica.broker_id for replica in lagging]
            staying = tuple(member for member in self.isr if member not in leaving)
            yield StateChange(
                "info", f"{self.topic_partition}: shrinking the ISR from {self.isr} to {staying}: {leaving} lag"
            )
            yield from self._propose(staying, None)

    def _maybe_expand(self, now_ms: int) -> Steps[None]:
        """Propose the first replica that may join and would not be dropped again at once; the others follow when the
        store has replied."""
        for replica in self._joiners():
            if (
                self.pending is None
                and not self._is_lagging(replica, now_ms)
                and self._brokers.can_join_isr(replica.broker_id, replica.broker_epoch)
                and not (yield from self._is_lagging_in_bytes(replica))
            ):
                members = tuple(sorted((*self.isr, replica.broker_id)))
                yield StateChange(
                    "info",
                    f"{self.topic_partition}: expanding the ISR from {self.isr} to {members}: "
                    f"{replica.broker_id} has caught up",
                )
                yield from self._propose(members, replica)

    def _joiners(self) -> list[RemoteReplica]:
        return [
            replica
            for replica in self.replicas.values()
            if replica.broker_id not in self.isr and self._may_join(replica)
        ]

    def _may_join(self, replica: RemoteReplica) -> bool:
        return isr.is_caught_up(replica, self.high_watermark, self.epoch_start)

    def _is_behind(self, replica: RemoteReplica) -> bool:
        return replica.leo < self.log.leo

    # The change in flight

    def _propose(self, members: Collection[int], joiner: RemoteReplica | None) -> Steps[None]:
        """Write a new ISR, on condition that the node has not been written since; one change in flight (KIP-497)."""
        members = tuple(sorted(members))
        min_isr = self.config.min_isr(len(self.assigned_replicas))
        proposed = LeaderAndIsr(
            self.leader,
            self.leader_epoch,
            members,
            elr.elr_after(self.isr, self.elr, members, min_isr),
            self.controller_epoch,
            self.partition_epoch,
            self.flush_every_record,
        )
        path = nodes.leader_and_isr(self.topic_partition)
        yield from self._submit(IsrChange(proposed, path, self._isr_operations(proposed, joiner), None))

    def _submit(self, change: IsrChange) -> Steps[None]:
        tag = self._next_tag()
        self.pending = replace(change, tag=tag)
        self._mark_changed(PartitionChange.UNSETTLED)
        yield SubmitMulti(tag, change.operations)

    def _isr_operations(self, proposed: LeaderAndIsr, joiner: RemoteReplica | None) -> tuple[StoreOperation, ...]:
        return isr_operations(self.topic_partition, proposed, self._expected_version(), joiner)

    def _expected_version(self) -> int:
        return self.partition_epoch

    def _next_tag(self) -> Hashable:
        self._submitted += 1
        return ("isr", self.topic_partition, self.leader_epoch, self._submitted)
