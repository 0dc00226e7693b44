"""The leaderAndISR nodes: reading them, and writing them in few multis, each only if nobody wrote it in between.

The `choose` functions say what a partition's node should hold next; they look at the context and at the state last
read, so that they can be asked again when a leader has changed its ISR meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from kreplog.core import nodes
from kreplog.core.controller import fencing, selectors
from kreplog.core.controller.context import ControllerContext, named
from kreplog.core.controller.requests import ControllerBrokerRequestBatch
from kreplog.core.controller.selectors import Election
from kreplog.core.effects import GetNodes, Nodes, StateChange, Steps, UncleanElection
from kreplog.core.eligible import shrink
from kreplog.errors import BadVersionError, CoordinationError, NoNodeError
from kreplog.types import NO_LEADER, LeaderAndIsr, SetData, TopicPartition

Choice = Callable[[ControllerContext, TopicPartition, LeaderAndIsr], Election | None]
"""What to write in place of a state, None to leave it."""


def repair(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Election | None:
    """What the death of brokers and disks asks for: another leader, or an ISR without those that are gone.

    While nobody can lead, the ISR stays as it is: it says whose return is waited for, the same whoever saw whom die.
    """
    if context.has_leader(partition):
        gone = [broker for broker in current.isr if not context.is_online(partition, broker)]
        return without(context, partition, current, gone)
    return selectors.offline(
        current,
        context.replicas(partition),
        context.can_lead(partition),
        context.unclean_allowed(partition),
        context.epoch,
        context.min_isr(partition),
    )


def without(
    context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr, gone: Collection[int]
) -> Election | None:
    """Take followers out of the ISR."""
    isr, eligible = shrink(current, gone, context.min_isr(partition))
    if isr == current.isr:
        return None
    return Election(next_epoch(context, current)._replace(isr=isr, eligible=eligible))


def prefer(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Election | None:
    """Lead again by the preferred replica."""
    live = context.can_lead(partition)
    state = selectors.preferred(current, context.replicas(partition), live, context.epoch)
    return None if state is None else Election(state)


def evacuate(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Election | None:
    """Lead by brokers that stay, and count on nobody else (F15)."""
    stopping = [broker.id for broker in context.brokers.values() if broker.stopping]
    state = selectors.controlled_shutdown(
        current,
        context.replicas(partition),
        context.can_lead(partition),
        stopping,
        context.epoch,
        context.min_isr(partition),
    )
    return None if state is None else Election(state)


def renew(context: ControllerContext, _: TopicPartition, current: LeaderAndIsr) -> Election | None:
    """The same under a new leader epoch, so that the leader takes in what else is new."""
    return Election(next_epoch(context, current))


def retire(context: ControllerContext, _: TopicPartition, current: LeaderAndIsr) -> Election | None:
    """Nobody outside the ISR is eligible any more."""
    return Election(next_epoch(context, current)._replace(eligible=())) if current.eligible else None


def next_epoch(context: ControllerContext, current: LeaderAndIsr) -> LeaderAndIsr:
    """Every write of a controller raises the leader epoch, so that older requests can be told (F26, KIP-570)."""
    return current._replace(leader_epoch=current.leader_epoch + 1, controller_epoch=context.epoch)


def expected_version(state: LeaderAndIsr) -> int:
    """The version that a write of leaderAndISR is conditional on: what was read, for leaders change their ISR too."""
    return state.partition_epoch


def write_of(partition: TopicPartition, state: LeaderAndIsr) -> SetData:
    """The conditional write that puts `state` in place of the one it was made from."""
    return SetData(nodes.leader_and_isr(partition), nodes.encode_leader_and_isr(state), expected_version(state))


class Leadership:
    """Reads and writes the states of partitions, in the context and in the store alike."""

    def __init__(self, context: ControllerContext, batch: ControllerBrokerRequestBatch) -> None:
        self._context = context
        self._batch = batch

    def update(self, partitions: Iterable[TopicPartition], choose: Choice) -> Steps[list[TopicPartition]]:
        """Write what `choose` makes of each state and have its brokers told; returns those that were written.

        Where a leader was faster the state is read anew and `choose` asked again, ATTEMPTS times; then those partitions
        are left to the next Tick. Raises DeposedError and ConnectionLossError.
        """
        written: list[TopicPartition] = []
        waiting = [partition for partition in partitions if partition in self._context.states]
        for _ in range(fencing.ATTEMPTS):
            refused = yield from self._write(waiting, choose, written)
            if not refused:
                return written
            yield from self.refresh(refused)
            waiting = [partition for partition in refused if partition in self._context.states]
        self._context.unsettled.update(dict.fromkeys(waiting))
        yield StateChange("warning", f"{len(waiting)} partitions are written by others all the time: {named(waiting)}")
        return written

    def _write(
        self, partitions: Iterable[TopicPartition], choose: Choice, written: list[TopicPartition]
    ) -> Steps[list[TopicPartition]]:
        """One try; returns the partitions of those multis that were refused."""
        context = self._context
        elections = [(one, choose(context, one, context.states[one])) for one in partitions]
        chosen = [(partition, election) for partition, election in elections if election is not None]
        refused: list[TopicPartition] = []
        for some in fencing.chunks(chosen, fencing.MAX_OPERATIONS - 1):
            try:
                yield from fencing.fenced(context, [write_of(one, election.state) for one, election in some])
            except (BadVersionError, NoNodeError):
                refused += [partition for partition, _ in some]
                continue
            for partition, election in some:
                yield from self.written(partition, election)
                written.append(partition)
            yield StateChange("info", f"{len(some)} leaders or ISRs are written: {named(one for one, _ in some)}")
        return refused

    def written(self, partition: TopicPartition, election: Election) -> Steps[None]:
        """Take in what a multi has written."""
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
                f"{partition}: broker {state.leader} leads epoch {state.leader_epoch} although it was not in sync: "
                "committed records may be lost",
            )

    def end_eligibility(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Before leaders hear of a lower min.insync.replicas: with that many in sync they will commit without those
        that are eligible, who could then be elected without what was committed (KIP-966).

        Raises CoordinationError when that cannot be written: then no leader may be told.
        """
        late = [partition for partition in partitions if self._is_eligibility_over(partition)]
        yield from self.update(late, retire)
        for partition in late:
            if self._is_eligibility_over(partition):
                raise CoordinationError(f"{partition}: its eligible replicas could not be written")

    def _is_eligibility_over(self, partition: TopicPartition) -> bool:
        state = self._context.states.get(partition)
        return state is not None and bool(state.eligible) and len(state.isr) >= self._context.min_isr(partition)

    def refresh(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        """Read states anew; one that is gone or unreadable is forgotten."""
        wanted = [partition for partition in partitions if self._context.knows(partition)]
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
