"""Mutations of the ISR, the high watermark and acknowledgements."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kreplog.core.controller import leader_selectors
from kreplog.core.effects import LogState, OpenedLog, Steps
from kreplog.core.replication import isr
from kreplog.core.replication.isr import RemoteReplica
from kreplog.core.replication.isr_proposer import IsrProposer
from kreplog.core.replication.leader import LeaderRole
from kreplog.core.replication.local_replica import LocalReplica
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.partition import Partition
from kreplog.sim.machines.model_log import ModelLog
from kreplog.sim.mutations.mutation import MutationGroup, Patch
from kreplog.types import LeaderAndIsr

MUTATIONS = MutationGroup()


@MUTATIONS.add("joins-before-epoch-start")
def _joins_before_epoch_start() -> list[Patch]:
    """A follower joins the ISR at the leader's high watermark, also below the start of the leader epoch (F12)."""
    right = IsrProposer._is_lagging

    def caught_up(replica: RemoteReplica, watermark: int, epoch_start: int) -> bool:
        return replica.leo >= watermark

    def lagging(self: Partition, replica: RemoteReplica, now_ms: int) -> bool:
        return replica.broker_id in self.isr and right(self, replica, now_ms)

    return [(isr, "is_caught_up", caught_up), (IsrProposer, "_is_lagging", lagging)]


@MUTATIONS.add("joins-at-once")
def _joins_at_once() -> list[Patch]:
    """A follower counts as caught up with its first fetch."""
    return [(isr, "is_caught_up", lambda replica, watermark, epoch_start: replica.leo >= 0)]


@MUTATIONS.add("watermark-ignores-pending-isr")
def _watermark_ignores_pending() -> list[Patch]:
    """The high watermark is computed over a proposed ISR, before the store has accepted it (F13)."""

    def proposed(self: Partition) -> tuple[int, ...]:
        return self.isr if self.pending is None else self.pending.proposed.isr

    return [(IsrProposer, "maximal_isr", property(proposed))]


@MUTATIONS.add("watermark-without-slowest")
def _watermark_without_slowest() -> list[Patch]:
    """The high watermark is computed without the slowest member of the ISR."""

    def high_watermark(
        current: int, local_end: int, local_id: int, maximal_isr: Collection[int], replicas: Mapping[int, RemoteReplica]
    ) -> int:
        ends = sorted(local_end if member == local_id else isr._known_end(member, replicas) for member in maximal_isr)
        return max(current, ends[1] if len(ends) > 1 else ends[0] if ends else current)

    return [(isr, "high_watermark", high_watermark)]


@MUTATIONS.add("isr-write-unconditional")
def _isr_write_unconditional() -> list[Patch]:
    """A leader writes the ISR whatever the version of the node (F14)."""
    return [(IsrProposer, "_expected_version", lambda self: -1)]


@MUTATIONS.add("stale-registration-joins")
def _stale_registration_joins() -> list[Patch]:
    """A replica joins the ISR by fetches of an earlier registration of its broker (F16)."""
    right = IsrProposer._isr_operations

    def operations(self: Partition, proposed: LeaderAndIsr, joiner: int | None) -> Any:
        return right(self, proposed, None)

    return [
        (LeaderRole, "_is_old_registration", lambda self, replica, broker_epoch: False),
        (IsrProposer, "_isr_operations", operations),
        (MetadataCache, "can_join_isr", lambda self, broker_id, broker_epoch: True),
    ]


@MUTATIONS.add("unclean-return-trusted")
def _unclean_return_trusted() -> list[Patch]:
    """The last replica standing leads again although a power failure may have lost its records (F17)."""
    return [(leader_selectors, "drop_unclean", lambda current, broker_id, controller_epoch: None)]


@MUTATIONS.add("commits-below-min-isr")
def _commits_below_min_isr() -> list[Patch]:
    """The high watermark advances, and acks=all is accepted, below min.insync.replicas (F17, F18)."""
    return [(isr, "has_min_isr", lambda members, min_insync_replicas, assigned_replicas: True)]


@MUTATIONS.add("log-end-becomes-watermark")
def _log_end_becomes_watermark() -> list[Patch]:
    """A new leader advances the high watermark to its log end (F20)."""
    become_leader = LeaderRole._become_leader

    def becomes(self: Partition, now_ms: int) -> Steps[None]:
        yield from become_leader(self, now_ms)
        if self.log.leo > self.high_watermark:
            yield from self._set_high_watermark(self.log.leo)

    return [(LeaderRole, "_become_leader", becomes)]


@MUTATIONS.add("uncommitted-read")
def _uncommitted_read() -> list[Patch]:
    """A consumer reads up to the end of the log (F22)."""
    return [(LocalReplica, "limit", lambda self, consumer: self.log.leo)]


@MUTATIONS.add("acks-before-watermark")
def _acks_before_watermark() -> list[Patch]:
    """acks=all is acknowledged when the leader has appended the record."""
    return [(LeaderRole, "is_committed", lambda self, next_offset: True)]


@MUTATIONS.add("producer-state-lost")
def _producer_state_lost() -> list[Patch]:
    """A new leader has no producer state, so that retried batches are written twice (F24)."""
    assign = ModelLog.assign_leader_epoch

    def assigned(self: ModelLog, epoch: int) -> None:
        assign(self, epoch)
        self._producers = {}

    return [(ModelLog, "assign_leader_epoch", assigned)]


@MUTATIONS.add("checkpointed-watermark-ignored")
def _checkpointed_watermark_ignored() -> list[Patch]:
    """After a restart the high watermark is the log end, not the checkpoint."""

    def recovered(self: Partition, opened: OpenedLog) -> int:
        state: LogState = opened.state
        return state.leo

    return [(LocalReplica, "_recovered_high_watermark", recovered)]
