"""Brokers that come, go, restart, stop or lose a disk, and what that does to the replicas on them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from kreplog.core import nodes
from kreplog.core.controller import election_policies, fencing, selectors, store_reader
from kreplog.core.controller.context import ControllerContext, LogDirEvent, Replica, named
from kreplog.core.controller.deletion import Deletion
from kreplog.core.controller.election_policies import ElectionPolicy
from kreplog.core.controller.selectors import Election
from kreplog.core.controller.state_machines import StateMachines
from kreplog.core.controller.store_reader import RegisteredBroker
from kreplog.core.controller.transitions import PartitionStatus, ReplicaStatus
from kreplog.core.effects import AwaitAnswers, StateChange, Steps
from kreplog.types import BrokerRegistration, Create, Delete, LeaderAndIsr, SetData, StoreOperation, TopicPartition

INIT_WAIT_MS = 500
"""How long a new controller waits, at most, for brokers to take the leaders and ISRs that it repaired, before it makes
the INIT of everything. That takes both sides long enough to hold up the last of those leaders."""

REPAIRED_PER_MS = 40
"""So many repaired partitions give brokers a millisecond more before the INIT, for clients that waited for a leader."""


class BrokerChanges:
    """What follows from /brokers/ids, from the events of failed disks, and from a broker's wish to stop."""

    def __init__(self, machines: StateMachines, deletion: Deletion) -> None:
        self._machines = machines
        self._context = machines.context
        self._batch = machines.batch
        self._deletion = deletion

    # At a failover

    def take_over(self, registrations: Mapping[int, RegisteredBroker], events: tuple[LogDirEvent, ...]) -> Steps[None]:
        """Take in all brokers at once; what is to be sent is left in the batch, an INIT for each broker.

        Whoever died, or restarted, while there was no controller is dealt with as if one had seen it (F33), so that the
        outcome does not depend on who was the controller when.
        """
        context = self._context
        context.log_dir_events = events
        for registration in registrations.values():
            if _was_handled(registration):
                self._enter(registration)
        self._machines.startup()
        yield from self._repair(self._missed_failures())
        never_elected = [
            one for one in context.leaderless if one not in context.states and not context.is_pending_deletion(one)
        ]
        yield from self._machines.partitions.handle_state_changes(never_elected, PartitionStatus.ONLINE)
        new = [registration for broker, registration in registrations.items() if broker not in context.brokers]
        yield from self._start(new)
        yield from self._forget_events()
        for broker in context.brokers:
            self._batch.add_init(broker)

    def _repair(self, partitions: Sequence[TopicPartition]) -> Steps[None]:
        """Others lead, and those that are gone leave the ISRs. Those that take part are told as soon as it is written,
        and have INIT_WAIT_MS to take it, and some time to serve by it, before there is an INIT of everything."""
        for some in fencing.chunks(partitions, fencing.MAX_OPERATIONS - 1):
            yield from self._machines.partitions.handle_state_changes(
                some, PartitionStatus.ONLINE, election_policies.elect_offline
            )
            yield from self._machines.leader_and_isr.end_eligibility(some)
            yield from self._batch.send_leaders()
        if partitions:
            yield AwaitAnswers(INIT_WAIT_MS, min(INIT_WAIT_MS, len(partitions) // REPAIRED_PER_MS))

    def _missed_failures(self) -> list[TopicPartition]:
        """Partitions with a leader, these first, or an in-sync replica that is gone (F33)."""
        context = self._context
        leaderless, shrunk = [], []
        for partition in context.everything():
            if not context.has_leader(partition):
                leaderless.append(partition)
            elif any(not context.is_online(partition, broker) for broker in context.states[partition].isr):
                shrunk.append(partition)
        return leaderless + shrunk

    # After that

    def on_change(self) -> Steps[None]:
        """Brokers have come or gone, or say something else of themselves."""
        context = self._context
        found = yield from store_reader.brokers()
        gone = [id for id, held in context.brokers.items() if id not in found or found[id].broker.epoch != held.epoch]
        if gone:
            yield from self._fail(gone)
        new = [registration for id, registration in found.items() if id not in context.brokers]
        if new:
            yield from self._start(new)
            yield from self._forget_events()
            yield from self._batch.send()
        said = [_still_stopping(one.broker, context.brokers[id]) for id, one in found.items()]
        changed = [broker for broker in said if broker != context.brokers[broker.id]]
        if changed:
            stopping = [one.id for one in changed if one.stopping]
            context.brokers.update((broker.id, broker) for broker in changed)
            self._batch.add_update_metadata()
            yield from self._evacuate(stopping)
        if gone or new:
            context.touched.update(dict.fromkeys(context.reassignments))

    def _fail(self, gone: Collection[int]) -> Steps[None]:
        """The registrations of brokers ended: others lead, and they leave every ISR."""
        yield StateChange("warning", f"brokers {', '.join(map(str, sorted(gone)))} are gone")
        for broker in gone:
            self._leave(broker)
        self._batch.add_update_metadata()
        yield from self._lose(
            [Replica(partition, broker) for broker in gone for partition in self._context.replicas_on.get(broker, ())]
        )
        yield from self._batch.send()

    def _start(self, registrations: Collection[RegisteredBroker]) -> Steps[None]:
        """Brokers have registered: they learn all that they should have, and lead or follow again.

        What is to be sent is left in the batch. Each was taken for failed before, whether it was known or not.
        """
        context = self._context
        started = []
        for registration in registrations:
            self._enter(registration)
            started.append(registration.broker.id)
            self._batch.add_init(registration.broker.id)
        if not started:
            return
        yield StateChange("info", f"brokers {', '.join(map(str, started))} have started")
        for broker in started:
            yield from self._distrust(broker)
            led = [one for one in context.replicas_on.get(broker, ()) if self._leads(broker, one)]
            yield from self._machines.leader_and_isr.update(led, election_policies.bump_leader_epoch)
        yield from self._note_handled(registrations)
        self._batch.add_update_metadata()
        returned = [Replica(one, broker) for broker in started for one in context.replicas_on.get(broker, ())]
        online = [replica for replica in returned if context.is_online(*replica)]
        yield from self._machines.replicas.handle_state_changes(
            [replica for replica in online if not context.is_pending_deletion(replica.partition)], ReplicaStatus.ONLINE
        )
        yield from self._machines.partitions.trigger_online()
        yield from self._deletion.retry(
            [replica for replica in online if context.is_pending_deletion(replica.partition)]
        )

    def _leads(self, broker: int, partition: TopicPartition) -> bool:
        state = self._context.states.get(partition)
        return state is not None and state.leader == broker and not self._context.is_pending_deletion(partition)

    def _distrust(self, broker: int) -> Steps[None]:
        """A broker that crashed so that unflushed records may be lost, or that lost a disk, is no longer in sync (F17,
        KIP-966). Nor where every record is fsynced now: it may not have been when those lost were written."""
        context = self._context
        if not context.brokers[broker].unclean:
            return

        def choose(context: ControllerContext, _: TopicPartition, current: LeaderAndIsr) -> Election | None:
            state = selectors.drop_unclean(current, broker, context.epoch)
            return None if state is None else Election(state)

        doubtful = [
            partition for partition in context.replicas_on.get(broker, ()) if not context.is_pending_deletion(partition)
        ]
        dropped = yield from self._machines.leader_and_isr.update(doubtful, choose)
        yield from self._machines.partitions.handle_state_changes(dropped, PartitionStatus.ONLINE)

    def _note_handled(self, registrations: Iterable[RegisteredBroker]) -> Steps[None]:
        operations: list[StoreOperation] = []
        for registration in registrations:
            path = nodes.handled_epoch(registration.broker.id)
            data = str(registration.broker.epoch).encode()
            operations.append(Create(path, data) if registration.handled is None else SetData(path, data))
        for some in fencing.chunks(operations, fencing.MAX_OPERATIONS - 1):
            yield from fencing.fenced(self._context, some)

    def _enter(self, registration: RegisteredBroker) -> None:
        context, broker = self._context, registration.broker
        context.brokers[broker.id] = broker
        context.registered[broker.id] = registration.created
        for event in context.log_dir_events:
            if event.broker == broker.id and event.created > registration.created:
                context.failed.setdefault(broker.id, {}).update(dict.fromkeys(event.partitions))

    def _leave(self, broker: int) -> None:
        self._context.brokers.pop(broker, None)
        self._context.registered.pop(broker, None)
        self._context.failed.pop(broker, None)

    def _lose(self, replicas: Collection[Replica]) -> Steps[None]:
        """Replicas have gone offline, with their broker or its disk. Whoever is to lead is told as soon as that is
        written: smaller ISRs take their time."""
        context = self._context
        staying = [replica for replica in replicas if not context.is_pending_deletion(replica.partition)]
        led = [partition for partition, broker in staying if self._leads(broker, partition)]
        for some in fencing.chunks(led, fencing.MAX_OPERATIONS - 1):
            yield from self._machines.partitions.handle_state_changes(some, PartitionStatus.OFFLINE)
            yield from self._machines.partitions.handle_state_changes(some, PartitionStatus.ONLINE)
            yield from self._batch.send()
        yield from self._machines.replicas.handle_state_changes(staying, ReplicaStatus.OFFLINE)
        yield from self._deletion.fail(
            [replica for replica in replicas if context.is_pending_deletion(replica.partition)]
        )

    # Disks

    def on_log_dir_events(self) -> Steps[None]:
        """Brokers have lost disks. The events stay in the store until the broker registers anew, for the next
        controller to know; then they are deleted."""
        context = self._context
        context.log_dir_events = yield from store_reader.log_dir_events()
        lost = [
            Replica(partition, event.broker)
            for event in context.log_dir_events
            if event.created > context.registered.get(event.broker, event.created)
            for partition in event.partitions
        ]
        yield from self.on_storage_errors(lost)
        yield from self._forget_events()

    def on_storage_errors(self, replicas: Iterable[Replica]) -> Steps[None]:
        """Replicas have failed; nobody counts on them until their broker registers anew."""
        context = self._context
        lost = []
        for replica in dict.fromkeys(replicas):
            partition, broker = replica
            if context.is_online(partition, broker):
                context.failed.setdefault(broker, {})[partition] = None
                if context.knows(partition) and broker in context.replicas(partition):
                    lost.append(replica)
        if lost:
            yield StateChange("warning", f"{len(lost)} replicas have lost their disk: {named(lost)}")
            yield from self._lose(lost)
            yield from self._batch.send()

    def _forget_events(self) -> Steps[None]:
        """Delete the events of registrations that have ended."""
        context = self._context
        old = [
            log_dir_event
            for log_dir_event in context.log_dir_events
            if log_dir_event.created < context.registered.get(log_dir_event.broker, 0)
        ]
        context.log_dir_events = tuple(
            log_dir_event for log_dir_event in context.log_dir_events if log_dir_event not in old
        )
        for path in (yield from store_reader.existing(one.path for one in old)):
            yield from fencing.fenced(context, [Delete(path)])

    # Brokers that stop

    def on_controlled_shutdown(self, broker: int) -> Steps[list[TopicPartition]]:
        """Move all that a broker leads away from it; returns what it leads still, since nobody else can."""
        held = self._context.brokers[broker]
        if not held.stopping:
            yield StateChange("info", f"broker {broker} is stopping")
            self._context.brokers[broker] = replace(held, stopping=True)
            self._batch.add_update_metadata()
        yield from self._evacuate([broker])
        return [one for one in self._context.replicas_on.get(broker, ()) if self._leads(broker, one)]

    def evacuate_stopping(self) -> Steps[None]:
        """At a failover: the broker's wish may have been heard by the last controller only."""
        yield from self._evacuate([broker.id for broker in self._context.brokers.values() if broker.stopping])

    def _evacuate(self, stopping: Collection[int]) -> Steps[None]:
        """Leaders move, followers leave the ISR and stop (F15)."""
        context = self._context
        there = [
            Replica(partition, broker)
            for broker in stopping
            for partition in context.replicas_on.get(broker, ())
            if partition in context.states and not context.is_pending_deletion(partition)
        ]
        choose: ElectionPolicy = election_policies.elect_for_shutdown
        led = dict.fromkeys(partition for partition, _ in there if context.has_leader(partition))
        yield from self._machines.partitions.handle_state_changes(led, PartitionStatus.ONLINE, choose)
        followers = [
            replica
            for replica in there
            if context.states[replica.partition].leader != replica.broker
            and context.replica_status(replica) in (ReplicaStatus.NEW, ReplicaStatus.ONLINE)
        ]
        yield from self._machines.replicas.handle_state_changes(followers, ReplicaStatus.OFFLINE)
        yield from self._batch.send()


def _was_handled(registration: RegisteredBroker) -> bool:
    return registration.handled == registration.broker.epoch


def _still_stopping(said: BrokerRegistration, held: BrokerRegistration) -> BrokerRegistration:
    """What a broker says of itself; one that asked to be shut down stays marked until it registers anew."""
    return replace(said, stopping=said.stopping or held.stopping)
