"""Broker changes: startup, failure, failed disks and controlled shutdown, and the new leaders and ISRs after them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from kreplog.core import nodes
from kreplog.core.controller import election_policies, fencing, leader_selectors, store_reader
from kreplog.core.controller.config_changes import send_settings
from kreplog.core.controller.context import ControllerContext, LogDirEvent, PartitionAndReplica, named
from kreplog.core.controller.deletion import Deletion
from kreplog.core.controller.election_policies import ElectionPolicy
from kreplog.core.controller.leader_selectors import Election
from kreplog.core.controller.state_machines import StateMachines
from kreplog.core.controller.store_reader import RegisteredBroker
from kreplog.core.controller.transitions import PartitionStatus, ReplicaStatus
from kreplog.core.effects import DrainControlChannels, StateChange, Steps
from kreplog.core.messages import Configs
from kreplog.types import BrokerRegistration, Create, Delete, LeaderAndIsr, SetData, StoreOperation, TopicPartition

INIT_WAIT_MS = 500
"""Maximum wait of a new controller for responses to the leaders and ISRs that it changed, before it sends the INIT,
whose size would delay the last of those leaders."""

CHANGED_PER_MS = 40
"""Changed partitions for which brokers get one more millisecond before the INIT, to serve clients of new leaders."""


class BrokerChanges:
    """Handlers of /brokers/ids and /config/brokers, of log dir events, and of ControlledShutdown requests."""

    def __init__(self, machines: StateMachines, deletion: Deletion) -> None:
        self._machines = machines
        self._context = machines.context
        self._batch = machines.batch
        self._deletion = deletion

    # Failover of the controller

    def on_failover(
        self, registrations: Mapping[int, RegisteredBroker], default: Configs, events: tuple[LogDirEvent, ...]
    ) -> Steps[None]:
        """Apply all registrations, and the cluster-wide default of dynamic configs; requests are left in the batch, an
        INIT for each broker.

        A broker that failed or restarted while the cluster had no controller is handled as if one had seen it (F33), so
        that the outcome does not depend on which broker was the controller at that time.
        """
        context = self._context
        context.put_topic_defaults(default)
        context.log_dir_events = events
        for registered in registrations.values():
            if _is_handled(registered):
                self._add_broker(registered)
        self._machines.startup()
        yield from self._elect_and_shrink(self._missed_failures())
        never_elected = [
            partition
            for partition in context.leaderless
            if partition not in context.states and not context.is_pending_deletion(partition)
        ]
        yield from self._machines.partitions.handle_state_changes(never_elected, PartitionStatus.ONLINE)
        new = [registered for broker, registered in registrations.items() if broker not in context.brokers]
        yield from self._on_broker_startup(new)
        yield from self._delete_obsolete_log_dir_events()
        for broker in context.brokers:
            self._batch.add_init(broker)

    def _elect_and_shrink(self, partitions: Sequence[TopicPartition]) -> Steps[None]:
        """Elect leaders for, and shrink the ISRs of, partitions that lost a broker; send LeaderAndIsr before the INIT.

        Brokers get INIT_WAIT_MS to respond, and some time to serve clients, before the batch sends the full state.
        """
        for chunk in fencing.chunks(partitions, fencing.MAX_OPERATIONS - 1):
            yield from self._machines.partitions.handle_state_changes(
                chunk, PartitionStatus.ONLINE, election_policies.elect_offline
            )
            yield from self._machines.leader_and_isr.clear_obsolete_elr(chunk)
            yield from self._batch.send_leaders()
        if partitions:
            yield DrainControlChannels(INIT_WAIT_MS, min(INIT_WAIT_MS, len(partitions) // CHANGED_PER_MS))

    def _missed_failures(self) -> list[TopicPartition]:
        """Partitions whose leader, these first, or another in-sync replica is offline (F33)."""
        context = self._context
        leaderless, shrunk = [], []
        for partition in context.active_partitions():
            if not context.has_leader(partition):
                leaderless.append(partition)
            elif any(not context.is_online(partition, broker) for broker in context.states[partition].isr):
                shrunk.append(partition)
        return leaderless + shrunk

    # Startup and failure of brokers

    def on_change(self) -> Steps[None]:
        """Registrations were created, replaced, changed or deleted, or dynamic configs of brokers altered."""
        context = self._context
        found, default = yield from store_reader.brokers(context.last_readable_configs)
        failed = [
            id
            for id, registration in context.brokers.items()
            if id not in found or found[id].registration.epoch != registration.epoch
        ]
        if failed:
            yield from self._on_broker_failure(failed)
        yield from self._take_configs(found, default)
        new = [registered for id, registered in found.items() if id not in context.brokers]
        if new:
            yield from self._on_broker_startup(new)
            yield from self._delete_obsolete_log_dir_events()
            yield from self._batch.send()
        registrations = [
            _still_stopping(registered.registration, context.brokers[id]) for id, registered in found.items()
        ]
        changed = [registration for registration in registrations if registration != context.brokers[registration.id]]
        if changed:
            stopping = [registration.id for registration in changed if registration.stopping]
            context.brokers.update((registration.id, registration) for registration in changed)
            self._batch.add_update_metadata()
            yield from self._shut_down(stopping)
        if failed or new:
            context.touched.update(dict.fromkeys(context.reassignments))

    def _take_configs(self, found: Mapping[int, RegisteredBroker], default: Configs) -> Steps[None]:
        """Send altered configs to brokers that have registered before; new ones get theirs with the INIT. Topics take
        altered defaults."""
        held = self._context.broker_configs
        changed = {id: found[id].configs for id in held if id in found and found[id].configs != held[id]}
        topics = self._context.put_topic_defaults(default)
        if not changed and not topics:
            return
        if changed:
            held.update(changed)
            brokers = ", ".join(map(str, sorted(changed)))
            yield StateChange("info", f"the dynamic configs of brokers {brokers} have changed")
        self._batch.add_update_metadata()
        if topics:
            yield StateChange("info", f"the cluster-wide defaults of topics are now {self._context.topic_defaults}")
            yield from send_settings(self._machines, topics)
        else:
            yield from self._batch.send()

    def _on_broker_failure(self, failed: Collection[int]) -> Steps[None]:
        """The registrations of brokers ended: elect other leaders, and remove them from every ISR."""
        yield StateChange("warning", f"brokers {', '.join(map(str, sorted(failed)))} are no longer registered")
        for broker in failed:
            self._remove_broker(broker)
        self._batch.add_update_metadata()
        yield from self._on_replicas_offline(
            [
                PartitionAndReplica(partition, broker)
                for broker in failed
                for partition in self._context.replicas_on.get(broker, ())
            ]
        )
        yield from self._batch.send()

    def _on_broker_startup(self, registrations: Collection[RegisteredBroker]) -> Steps[None]:
        """Brokers have registered: they get an INIT, and their replicas lead or follow again.

        Requests are left in the batch. Each broker has been handled as failed before, or is new to this controller.
        """
        context = self._context
        started = []
        for registered in registrations:
            self._add_broker(registered)
            started.append(registered.registration.id)
            self._batch.add_init(registered.registration.id)
        if not started:
            return
        yield StateChange("info", f"brokers {', '.join(map(str, started))} have started")
        for broker in started:
            yield from self._drop_unclean(broker)
            led = self._led_by(broker)
            yield from self._machines.leader_and_isr.update(led, election_policies.bump_leader_epoch)
        yield from self._write_handled_epochs(registrations)
        self._batch.add_update_metadata()
        returned = [
            PartitionAndReplica(partition, broker)
            for broker in started
            for partition in context.replicas_on.get(broker, ())
        ]
        online = [replica for replica in returned if context.is_online(*replica)]
        yield from self._machines.replicas.handle_state_changes(
            [replica for replica in online if not context.is_pending_deletion(replica.partition)], ReplicaStatus.ONLINE
        )
        yield from self._machines.partitions.trigger_online()
        yield from self._deletion.retry(
            [replica for replica in online if context.is_pending_deletion(replica.partition)]
        )

    def _led_by(self, broker: int) -> list[TopicPartition]:
        replicas_on = self._context.replicas_on.get(broker, ())
        return [partition for partition in replicas_on if self._leads(broker, partition)]

    def _leads(self, broker: int, partition: TopicPartition) -> bool:
        state = self._context.states.get(partition)
        return state is not None and state.leader == broker and not self._context.is_pending_deletion(partition)

    def _drop_unclean(self, broker: int) -> Steps[None]:
        """Remove a broker from ISRs and eligible replicas after a crash that may have lost unflushed records, or after
        the loss of a disk (F17, KIP-966). Also where flush.messages is 1 now: it may have been larger when the lost
        records were written."""
        context = self._context
        if not context.brokers[broker].unclean:
            return

        def choose(context: ControllerContext, _: TopicPartition, current: LeaderAndIsr) -> Election | None:
            state = leader_selectors.drop_unclean(current, broker, context.epoch)
            return None if state is None else Election(state)

        doubtful = [
            partition for partition in context.replicas_on.get(broker, ()) if not context.is_pending_deletion(partition)
        ]
        dropped = yield from self._machines.leader_and_isr.update(doubtful, choose)
        yield from self._machines.partitions.handle_state_changes(dropped, PartitionStatus.ONLINE)

    def _write_handled_epochs(self, registrations: Iterable[RegisteredBroker]) -> Steps[None]:
        operations: list[StoreOperation] = []
        for registered in registrations:
            path = nodes.handled_epoch(registered.registration.id)
            data = str(registered.registration.epoch).encode()
            operations.append(Create(path, data) if registered.handled_epoch is None else SetData(path, data))
        for chunk in fencing.chunks(operations, fencing.MAX_OPERATIONS - 1):
            yield from fencing.fenced(self._context, chunk)

    def _add_broker(self, registered: RegisteredBroker) -> None:
        context, broker = self._context, registered.registration.id
        context.brokers[broker] = registered.registration
        context.registration_created[broker] = registered.created
        context.broker_configs[broker] = registered.configs
        for event in context.log_dir_events:
            if event.broker == broker and event.created > registered.created:
                context.failed_replicas.setdefault(broker, {}).update(dict.fromkeys(event.partitions))

    def _remove_broker(self, broker: int) -> None:
        self._context.brokers.pop(broker, None)
        self._context.registration_created.pop(broker, None)
        self._context.broker_configs.pop(broker, None)
        self._context.failed_replicas.pop(broker, None)

    def _on_replicas_offline(self, replicas: Collection[PartitionAndReplica]) -> Steps[None]:
        """Replicas went offline, with their broker or its disk. New leaders are sent as soon as they are written,
        before the ISRs of other partitions shrink."""
        context = self._context
        staying = [replica for replica in replicas if not context.is_pending_deletion(replica.partition)]
        led = [partition for partition, broker in staying if self._leads(broker, partition)]
        for chunk in fencing.chunks(led, fencing.MAX_OPERATIONS - 1):
            yield from self._machines.partitions.handle_state_changes(chunk, PartitionStatus.OFFLINE)
            yield from self._machines.partitions.handle_state_changes(chunk, PartitionStatus.ONLINE)
            yield from self._batch.send()
        yield from self._machines.replicas.handle_state_changes(staying, ReplicaStatus.OFFLINE)
        yield from self._deletion.fail(
            [replica for replica in replicas if context.is_pending_deletion(replica.partition)]
        )

    # Failed disks

    def on_log_dir_events(self) -> Steps[None]:
        """Brokers reported failed disks. An event stays in the store for later controllers until the broker registers
        again; then it is deleted."""
        context = self._context
        context.log_dir_events = yield from store_reader.log_dir_events()
        lost = [
            PartitionAndReplica(partition, event.broker)
            for event in context.log_dir_events
            if event.created > context.registration_created.get(event.broker, event.created)
            for partition in event.partitions
        ]
        yield from self.on_storage_errors(lost)
        yield from self._delete_obsolete_log_dir_events()

    def on_storage_errors(self, replicas: Iterable[PartitionAndReplica]) -> Steps[None]:
        """Brokers reported these replicas as offline, since a disk failed or a log was refused for want of descriptors;
        they stay offline until their broker registers again."""
        context = self._context
        lost = []
        for replica in dict.fromkeys(replicas):
            partition, broker = replica
            if context.is_online(partition, broker):
                context.failed_replicas.setdefault(broker, {})[partition] = None
                if context.has_partition(partition) and broker in context.replicas(partition):
                    lost.append(replica)
        if lost:
            brokers = ", ".join(map(str, sorted({replica.broker for replica in lost})))
            text = f"{len(lost)} replicas are offline, as reported by brokers {brokers}"
            yield StateChange("warning", f"{text}: {named(lost)}; see the server.log of these brokers")
            yield from self._on_replicas_offline(lost)
            yield from self._batch.send()

    def _delete_obsolete_log_dir_events(self) -> Steps[None]:
        """Delete the log dir events of registrations that have ended."""
        context = self._context
        old = [
            log_dir_event
            for log_dir_event in context.log_dir_events
            if log_dir_event.created < context.registration_created.get(log_dir_event.broker, 0)
        ]
        context.log_dir_events = tuple(
            log_dir_event for log_dir_event in context.log_dir_events if log_dir_event not in old
        )
        for path in (yield from store_reader.existing(event.path for event in old)):
            yield from fencing.fenced(context, [Delete(path)])

    # Controlled shutdown

    def on_controlled_shutdown(self, broker: int) -> Steps[list[TopicPartition]]:
        """Move leadership away from a broker; return the partitions that it still leads since no other replica can yet.
        Those of a single replica are left out: none ever will, and as in Kafka the broker does not wait for them."""
        registration = self._context.brokers[broker]
        if not registration.stopping:
            yield StateChange("info", f"broker {broker} is shutting down")
            self._context.brokers[broker] = replace(registration, stopping=True)
            self._batch.add_update_metadata()
        yield from self._shut_down([broker])
        return [partition for partition in self._led_by(broker) if len(self._context.replicas(partition)) > 1]

    def resume_controlled_shutdowns(self) -> Steps[None]:
        """At a failover: a request for controlled shutdown may have reached the last controller only."""
        yield from self._shut_down([broker.id for broker in self._context.brokers.values() if broker.stopping])

    def _shut_down(self, stopping: Collection[int]) -> Steps[None]:
        """Elect leaders elsewhere; remove followers from the ISR and stop them (F15)."""
        context = self._context
        replicas = [
            PartitionAndReplica(partition, broker)
            for broker in stopping
            for partition in context.replicas_on.get(broker, ())
            if partition in context.states and not context.is_pending_deletion(partition)
        ]
        choose: ElectionPolicy = election_policies.elect_for_shutdown
        led = dict.fromkeys(partition for partition, _ in replicas if context.has_leader(partition))
        yield from self._machines.partitions.handle_state_changes(led, PartitionStatus.ONLINE, choose)
        followers = [
            replica
            for replica in replicas
            if context.states[replica.partition].leader != replica.broker
            and context.replica_status(replica) in (ReplicaStatus.NEW, ReplicaStatus.ONLINE)
        ]
        yield from self._machines.replicas.handle_state_changes(followers, ReplicaStatus.OFFLINE)
        yield from self._batch.send()


def _is_handled(registered: RegisteredBroker) -> bool:
    return registered.handled_epoch == registered.registration.epoch


def _still_stopping(read: BrokerRegistration, held: BrokerRegistration) -> BrokerRegistration:
    """The registration as read, marked as stopping if a ControlledShutdown request was handled for it."""
    return replace(read, stopping=read.stopping or held.stopping)
