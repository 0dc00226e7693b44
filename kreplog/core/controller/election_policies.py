"""Election policies: what a partition's leaderAndISR node should hold next, from the context and the state last read.

Pure functions, so that they can be applied again when a leader has changed its ISR meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from kreplog.core.controller import leader_selectors
from kreplog.core.controller.context import ControllerContext
from kreplog.core.controller.leader_selectors import Election
from kreplog.core.elr import shrink
from kreplog.types import LeaderAndIsr, TopicPartition

ElectionPolicy = Callable[[ControllerContext, TopicPartition, LeaderAndIsr], Election | None]
"""Returns what to write in place of a state, None to leave it."""


def elect_offline(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Election | None:
    """After brokers or disks have failed: another leader, or an ISR without the failed replicas.

    While no replica can lead, the ISR stays as it is: its members are the brokers whose return restores the partition.
    """
    if context.has_leader(partition):
        failed = [broker for broker in current.isr if not context.is_online(partition, broker)]
        return shrink_isr(context, partition, current, failed)
    return _offline_election(context, partition, current, context.unclean_allowed(partition))


def _offline_election(
    context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr, unclean_allowed: bool
) -> Election | None:
    """leader_selectors.offline of a partition without a leader."""
    return leader_selectors.offline(
        current,
        context.replicas(partition),
        context.can_lead(partition),
        unclean_allowed,
        context.epoch,
        context.min_isr(partition),
    )


def shrink_isr(
    context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr, failed: Collection[int]
) -> Election | None:
    """Remove followers from the ISR."""
    isr, elr = shrink(current, failed, context.min_isr(partition))
    if isr == current.isr:
        return None
    return Election(next_epoch(context, current)._replace(isr=isr, elr=elr))


def elect_preferred(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Election | None:
    """Elect the preferred replica of a partition that has a leader."""
    if not context.has_leader(partition):
        return None
    live = context.can_lead(partition)
    state = leader_selectors.preferred(current, context.replicas(partition), live, context.epoch)
    return None if state is None else Election(state)


def elect_unclean(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Election | None:
    """Elect any live replica of a partition without a leader, one in sync or eligible first, whatever the topic's
    unclean.leader.election.enable is."""
    if context.has_leader(partition):
        return None
    return _offline_election(context, partition, current, unclean_allowed=True)


def elect_for_shutdown(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Election | None:
    """Elect leaders among brokers that are not shutting down, and remove those that are from the ISR (F15)."""
    stopping = [broker.id for broker in context.brokers.values() if broker.stopping]
    state = leader_selectors.controlled_shutdown(
        current,
        context.replicas(partition),
        context.can_lead(partition),
        stopping,
        context.epoch,
        context.min_isr(partition),
    )
    return None if state is None else Election(state)


def bump_leader_epoch(context: ControllerContext, _: TopicPartition, current: LeaderAndIsr) -> Election | None:
    """Keep the state under a new leader epoch, so that the leader applies what else has changed."""
    return Election(next_epoch(context, current))


def clear_elr(context: ControllerContext, _: TopicPartition, current: LeaderAndIsr) -> Election | None:
    """Empty the eligible leader replicas (KIP-966)."""
    return Election(next_epoch(context, current)._replace(elr=())) if current.elr else None


def apply_flush_setting(
    context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr
) -> Election | None:
    """Begin another leader epoch where flush.messages has become 1, or is 1 no more. Within one epoch leader and
    followers must agree on it, and their requests arrive at different times."""
    following = with_flush_setting(context, partition, next_epoch(context, current))
    return None if following.flush_every_record == current.flush_every_record else Election(following)


def with_flush_setting(context: ControllerContext, partition: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr:
    """A state that begins a leader epoch, with the value that flush.messages has now: an election at a failover of the
    controller may be the first write since it changed."""
    flush_every_record = context.config(partition.topic).flushes_every_record
    return (
        state
        if state.flush_every_record == flush_every_record
        else state._replace(flush_every_record=flush_every_record)
    )


def next_epoch(context: ControllerContext, current: LeaderAndIsr) -> LeaderAndIsr:
    """Every write of a controller raises the leader epoch, so that older requests are recognised (F26, KIP-570)."""
    return current._replace(leader_epoch=current.leader_epoch + 1, controller_epoch=context.epoch)
