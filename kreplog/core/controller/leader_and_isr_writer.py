"""Reads and writes of leaderAndISR nodes: conditional on the version that was read, and batched into few multis."""

from __future__ import annotations

from collections.abc import Iterable

from kreplog.core import nodes
from kreplog.core.controller import fencing
from kreplog.core.controller.context import ControllerContext, named
from kreplog.core.controller.election_policies import ElectionPolicy, clear_elr, with_flush_setting
from kreplog.core.controller.leader_selectors import Election
from kreplog.core.controller.request_batch import ControllerBrokerRequestBatch
from kreplog.core.effects import GetNodes, Nodes, StateChange, Steps, UncleanElection
from kreplog.errors import BadVersionError, CoordinationError, NoNodeError
from kreplog.types import NO_LEADER, LeaderAndIsr, SetData, TopicPartition


def expected_version(state: LeaderAndIsr) -> int:
    """The version that a write of leaderAndISR is conditional on: the one that was read, since leaders write ISRs
    too."""
    return state.partition_epoch


def write_of(partition: TopicPartition, state: LeaderAndIsr) -> SetData:
    """The conditional write that replaces the state that `state` was made from."""
    return SetData(nodes.leader_and_isr(partition), nodes.encode_leader_and_isr(state), expected_version(state))


class LeaderAndIsrWriter:
    """Reads and writes the states of partitions, in the store and in the context together."""

    def __init__(self, context: ControllerContext, batch: ControllerBrokerRequestBatch) -> None:
        self._context = context
        self._batch = batch

    def update(self, partitions: Iterable[TopicPartition], policy: ElectionPolicy) -> Steps[list[TopicPartition]]:
        """Write what `policy` makes of each state and queue LeaderAndIsr for its brokers; return those written.

        Where a leader wrote first the state is read again and `policy` applied again, ATTEMPTS times; then those
        partitions wait for the next Tick. Raises DeposedError and ConnectionLossError.
        """
        written: list[TopicPartition] = []
        waiting = [partition for partition in partitions if partition in self._context.states]
        for _ in range(fencing.ATTEMPTS):
            refused = yield from self._write(waiting, policy, written)
            if not refused:
                return written
            yield from self.refresh(refused)
            waiting = [partition for partition in refused if partition in self._context.states]
        self._context.to_retry.update(dict.fromkeys(waiting))
        yield StateChange(
            "warning", f"{len(waiting)} partitions could not be written, other writers were first: {named(waiting)}"
        )
        return written

    def _write(
        self, partitions: Iterable[TopicPartition], policy: ElectionPolicy, written: list[TopicPartition]
    ) -> Steps[list[TopicPartition]]:
        """One attempt; returns the partitions of refused multis."""
        context = self._context
        elections = [(partition, policy(context, partition, context.states[partition])) for partition in partitions]
        chosen = [
            (partition, Election(with_flush_setting(context, partition, election.state), election.unclean))
            for partition, election in elections
            if election is not None
        ]
        refused: list[TopicPartition] = []
        for chunk in fencing.chunks(chosen, fencing.MAX_OPERATIONS - 1):
            try:
                yield from fencing.fenced(
                    context, [write_of(partition, election.state) for partition, election in chunk]
                )
            except (BadVersionError, NoNodeError):
                refused += [partition for partition, _ in chunk]
                continue
            for partition, election in chunk:
                yield from self.written(partition, election)
                written.append(partition)
            yield StateChange(
                "info", f"{len(chunk)} leaders or ISRs are written: {named(partition for partition, _ in chunk)}"
            )
        return refused

    def written(self, partition: TopicPartition, election: Election) -> Steps[None]:
        """Apply to the context what a multi has written, and queue LeaderAndIsr."""
        state = election.state._replace(partition_epoch=election.state.partition_epoch + 1)
        before = self._context.states.get(partition)
        if state.leader != NO_LEADER and (before is None or before.leader != state.leader):
            self._context.elections += 1
        self._context.put_state(partition, state)
        self._batch.add_leader_and_isr(partition)
        if election.unclean:
            yield UncleanElection(partition, state.leader, state.leader_epoch)
            yield StateChange(
                "error",
                f"{partition}: broker {state.leader} leads epoch {state.leader_epoch} although it was out of sync: "
                "committed records may be lost",
            )

    def clear_obsolete_elr(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Clear the eligible leader replicas of partitions whose ISR is large enough for a lowered min.insync.replicas,
        before their leaders receive it: they then commit without the eligible replicas, which must not be elected
        (KIP-966).

        Raises CoordinationError when that cannot be written: then no leader may receive the setting.
        """
        obsolete = [partition for partition in partitions if self._is_elr_obsolete(partition)]
        yield from self.update(obsolete, clear_elr)
        for partition in obsolete:
            if self._is_elr_obsolete(partition):
                raise CoordinationError(f"{partition}: its eligible replicas could not be written")

    def _is_elr_obsolete(self, partition: TopicPartition) -> bool:
        state = self._context.states.get(partition)
        return state is not None and bool(state.elr) and len(state.isr) >= self._context.min_isr(partition)

    def refresh(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Read states again. A deleted one is dropped from the context; an unreadable one is reported."""
        wanted = [partition for partition in partitions if self._context.has_partition(partition)]
        if not wanted:
            return
        found: Nodes = yield GetNodes(tuple(map(nodes.leader_and_isr, wanted)))
        for partition, node in zip(wanted, found, strict=True):
            try:
                state = None if node is None else nodes.decode_leader_and_isr(nodes.leader_and_isr(partition), node)
            except CoordinationError as error:
                yield StateChange("error", str(error))
                continue
            if state is None:
                self._context.states.pop(partition, None)
            elif state != self._context.states.get(partition):
                self._context.put_state(partition, state)
