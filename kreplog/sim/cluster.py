"""A simulated cluster: machines, network, store, clients, fault injector and checkers, in virtual time.

The cluster decides nothing; it connects the parts, reads the present state from the store for parts that need a target,
and determines when the cluster has come to rest.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from random import Random
from typing import Any

from kreplog.config import BUILT_IN_DEFAULTS, TopicConfig
from kreplog.core import effects, nodes
from kreplog.core import messages as m
from kreplog.core.group_messages import OFFSETS_TOPIC
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.role import Role
from kreplog.core.topic_defaults import topic_defaults
from kreplog.core.transaction_messages import TRANSACTIONS_TOPIC
from kreplog.errors import ErrorCode
from kreplog.sim.brokers.administrator import Administrator
from kreplog.sim.brokers.broker import BrokerProcess, Machine, MetadataRequest
from kreplog.sim.checks import final_checks
from kreplog.sim.checks.checkers import Checkers
from kreplog.sim.checks.config_checker import UnreadableConfigs
from kreplog.sim.checks.producer_id_checker import ProducerIdChecker
from kreplog.sim.checks.request_checker import RequestChecker
from kreplog.sim.clients import consumer_group_client, group_client, migrating_consumer, transaction_client, workload
from kreplog.sim.clients.group_membership import EpochMembership, GroupMembership
from kreplog.sim.clients.intruder import intruder
from kreplog.sim.clients.producer_id_client import REQUESTERS, id_requester, new_producer_id
from kreplog.sim.clients.rack_consumer import rack_consumer
from kreplog.sim.clients.session_consumer import session_consumer
from kreplog.sim.descriptions import describe_history
from kreplog.sim.faults import EXTRA_TOPIC, OWN_TOPICS, TRANSACTED_TOPIC, SimulationPlan, TopicPlan
from kreplog.sim.history import DeletionDone, DeletionRequested, Event, History, StableEnd, Violation, Watermark
from kreplog.sim.injector import Injector
from kreplog.sim.machines.disk import Disks, Loss
from kreplog.sim.machines.network import CLIENTS, Network
from kreplog.sim.machines.partition_model import PartitionModel
from kreplog.sim.machines.scheduler import MS, Scheduler
from kreplog.sim.machines.store import StoreServer
from kreplog.sim.topic_creation import WANTED, AutomaticCreationChecker, topic_user
from kreplog.sim.trace import CHECKER, Trace
from kreplog.types import NO_LEADER, LeaderAndIsr, TopicPartition


class NetworkPort:
    """The ClientPort of the client `host` on the simulated network."""

    def __init__(self, cluster: Cluster, host: str) -> None:
        self._network = cluster.network
        self._scheduler = cluster.scheduler
        self._host = host

    def call(self, broker: int, request: Any, timeout_ms: int, on_reply: Callable[[Any], None]) -> None:
        self._network.call(self._host, f"b{broker}", CLIENTS, request, on_reply, timeout_ms * MS)

    def post(self, broker: int, request: Any) -> None:
        self._network.send(self._host, f"b{broker}", CLIENTS, request)

    def metadata(self, broker: int, timeout_ms: int, on_reply: Callable[[Any], None]) -> None:
        self.call(broker, MetadataRequest(), timeout_ms, on_reply)

    def after(self, ms: int, action: Callable[[], None]) -> None:
        self._scheduler.after(ms * MS, action)


class _Checkers(Checkers):
    """Checkers that add each violation to the trace when they find it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.disks, cluster.history, cluster.replica_of, cluster.leader_of)
        self._trace = cluster.trace

    def violate(self, kind: str, text: str, model: PartitionModel | None, offset: int = -1) -> None:
        before = len(self.violations)
        super().violate(kind, text, model, offset)
        for violation in self.violations[before:]:
            self._trace.note(CHECKER, f"{kind}: {violation.text}", *violation.partitions)


class Cluster:
    """The cluster of one seed. failures: cores that raised an unexpected error. presumed_dead: number of registrations
    that failure detectors have ended. detects_failures: brokers hold connections to each other. producer_ids: that
    nobody has, in seeds where brokers do not allocate them."""

    def __init__(self, plan: SimulationPlan, disks: Disks, traced: bool) -> None:
        self.plan = plan
        self.disks = disks
        self.scheduler = Scheduler(plan.seed)
        self.trace = Trace(self.scheduler, traced)
        self.network = Network(self.scheduler)
        self.network.jitter = (plan.late, 150 * MS)
        self.store = StoreServer(self.scheduler, self.network)
        self.machines: dict[int, Machine] = {}
        self.failures: list[Violation] = []
        self.crashes = 0
        self.presumed_dead = 0
        self.detects_failures = True
        self.history = History(lambda: self.scheduler.now_ms)
        self.checkers = _Checkers(self)
        self.created_automatically = AutomaticCreationChecker(
            lambda kind, text: self.checkers.violate(kind, text, None)
        )
        self.given_producer_ids = ProducerIdChecker(lambda kind, text: self.checkers.violate(kind, text, None))
        self.requests = RequestChecker(
            lambda path: self.store.store.peek(path),
            lambda kind, text: self.checkers.violate(kind, text, None),
            self._is_served,
            self._controls,
        )
        self.unreadable_configs = UnreadableConfigs(lambda kind, text: self.checkers.violate(kind, text, None))
        self.checkers.transactions.last_epoch = plan.last_epoch
        self.history.listener = self._heard
        self.store.on_change = self._store_changed
        self.clients: dict[str, workload.ClientRunner] = {}
        self.producer_ids = count(1000)
        self._switch = workload.Switch()
        self.admin = Administrator(self)
        self.injector = Injector(self)
        self._plans: dict[str, TopicPlan] = {plan.name: plan for plan in plan.topics}
        self._states_at = -1
        self._states: dict[TopicPartition, LeaderAndIsr] = {}
        self._topics: dict[str, nodes.TopicNode] = {}
        self._configs: dict[str, TopicConfig] = {}
        self._broker_configs: dict[str, dict[str, str]] = {}

    # Machines

    def start(self) -> None:
        """Start the brokers, create the topics, start the clients, and schedule the faults of the plan."""
        for _ in range(self.plan.brokers):
            self.add_machine()
        for host in self.plan.starved:
            self.network.starved[f"b{host}"] = (100 * MS, 2000 * MS)
        for topic in self.plan.topics:
            self.scheduler.after(20 * MS, self._create_topic, topic)
        self._start_clients()
        self.injector.schedule(self.plan.actions)

    def add_machine(self) -> None:
        broker_id = len(self.machines) + 1
        rack = rack_name(broker_id % self.plan.racks) if self.plan.racks else None
        machine = self.machines[broker_id] = Machine(broker_id, self.disks.disk(broker_id), rack)
        self.start_machine(machine)

    def start_machine(self, machine: Machine) -> None:
        self.trace.note("fault", f"broker {machine.id} is started")
        process = machine.process = BrokerProcess(self, machine, self.plan.config)
        process.start()

    def crash_machine(self, machine: Machine, lost_cache: bool) -> None:
        """Kill the process; lost_cache: by a power failure, which loses everything not fsynced."""
        process = machine.process
        random = self.scheduler.random
        if process is not None:
            self.crashes += 1
            process.crash(5 * MS + int(30 * MS * random.random()) if self.plan.quick_notice else None)
        machine.lost_power = machine.lost_power or lost_cache
        losses = machine.disk.crash(lost_cache, random)
        for loss in losses:
            self.trace.note("fault", f"broker {machine.id} lost [{loss.start}, {loss.end})", loss.partition)
        self.checkers.power_lost(losses)

    def may_replace_disk(self, machine: Machine) -> bool:
        """Whether the loss of a whole disk keeps the guarantee: every committed record is on another known disk.
        fsync does not help here, so the disk must have no partition that relies on it."""
        if not self.may_lose_power(machine):
            return False
        for partition in self.partitions():
            state = self.state_of(partition)
            if state is None or {*state.isr, *state.elr} == {machine.id}:
                return False  # no other replica is known to hold the committed records
        assigned = {name for name, topic in self.topics().items() if _has_replica(topic, machine.id)}
        assigned.update(partition.topic for partition in machine.disk.on_disk())
        configs = [self._plans[name].config for name in sorted(assigned)]
        configs += [self.config_of(name) for name in sorted(assigned)]
        return all(config.min_insync_replicas >= 2 and config.flush_messages != 1 for config in configs)

    def replace_disk(self, machine: Machine) -> None:
        """The broker fails with its disk, and gets an empty one."""
        self.crash_machine(machine, lost_cache=True)
        losses = []
        self.checkers.disk_replaced(machine.id, machine.disk.on_disk())
        for partition, topic_id in machine.disk.on_disk().items():
            end, _ = machine.disk.ends(partition, topic_id)
            if end:
                losses.append(Loss(machine.id, partition, topic_id, 0, end))
            machine.disk.delete(partition)
        machine.disk.strays.clear()
        machine.new_disk = True
        machine.disks += 1
        self.checkers.power_lost(losses)

    def core_failed(self, process: BrokerProcess, actor: str, error: BaseException) -> None:
        """A core raised an unexpected error: the broker stops, and the seed has failed."""
        lines = traceback.format_exception(error)
        where = lines[-2].strip().split("\n")[0] if len(lines) > 1 else ""
        text = f"{actor} raised {type(error).__name__}: {error} ({where})"
        self.trace.note(actor, text)
        self.trace.note(actor, "".join(lines))
        self.failures.append(Violation("core failed", text))
        self.crash_machine(process.machine, lost_cache=False)

    # The state in the store

    def _read_store(self) -> None:
        store = self.store.store
        if store.transaction == self._states_at:
            return
        self._states_at = store.transaction
        self._topics, self._states, self._configs, self._broker_configs = {}, {}, {}, {}
        for path, node in sorted(store.dump().items()):
            names = path.split("/")
            if path.startswith(nodes.TOPICS + "/"):
                if len(names) == 4:
                    self._topics[names[3]] = nodes.decode_topic(path, node)
                elif len(names) == 6:
                    partition = TopicPartition(names[3], int(names[4]))
                    self._states[partition] = nodes.decode_leader_and_isr(path, node)
            elif path.startswith(nodes.TOPIC_CONFIGS + "/"):
                self._configs[names[3]] = nodes.decode_topic_config(path, node)
            elif path.startswith(nodes.BROKER_CONFIGS + "/"):
                subject = None if names[3] == "default" else int(names[3])
                if subject in self.unreadable_configs:
                    self._broker_configs[names[3]] = dict(self.unreadable_configs.configs_of(subject))
                else:
                    self._broker_configs[names[3]] = dict(nodes.decode_broker_config(path, node))

    def partitions(self) -> list[TopicPartition]:
        """All partitions in the store."""
        self._read_store()
        return [
            TopicPartition(name, number) for name, topic in self._topics.items() for number in sorted(topic.partitions)
        ]

    def topics(self) -> dict[str, nodes.TopicNode]:
        self._read_store()
        return self._topics

    def topic_names(self) -> list[str]:
        """Names of the topics that operators may change."""
        self._read_store()
        return [name for name in self._topics if name not in OWN_TOPICS]

    def state_of(self, partition: TopicPartition) -> LeaderAndIsr | None:
        self._read_store()
        return self._states.get(partition)

    def config_of(self, topic: str) -> TopicConfig:
        self._read_store()
        own = self._configs.get(topic, self._plans[topic].config if topic in self._plans else TopicConfig())
        default = tuple(self._broker_configs.get("default", {}).items())
        return own.with_defaults(topic_defaults(BUILT_IN_DEFAULTS, default)) if own.inherited else own

    def leader_of(self, partition: TopicPartition) -> int:
        state = self.state_of(partition)
        return NO_LEADER if state is None else state.leader

    def controller(self) -> int:
        node = self.store.store.peek(nodes.CONTROLLER)
        return -1 if node is None else nodes.decode_controller(node)

    def may_lose_power(self, machine: Machine) -> bool:
        """Whether a power failure here keeps the guarantee: with min.insync.replicas in memory all but one may be lost,
        so no other replica may still be catching up after a power failure."""
        self._read_store()
        for other in self.machines.values():
            if other is machine or not other.lost_power:
                continue
            if not self._is_in_sync(other):
                return False
            other.lost_power = False
        return True

    def _is_in_sync(self, machine: Machine) -> bool:
        if machine.process is None or machine.disk.unclean or machine.new_disk:
            return False
        for name, topic in self._topics.items():
            for number, assignment in topic.partitions.items():
                state = self._states.get(TopicPartition(name, number))
                if machine.id in assignment.replicas and (state is None or machine.id not in state.isr):
                    return False
        return True

    # Topics

    def _create_topic(self, plan: TopicPlan) -> None:
        if not self.admin.create_topic(plan, list(self.machines)):
            self.scheduler.after(50 * MS, self._create_topic, plan)

    def topic_plan(self, name: str) -> TopicPlan:
        return self._plans[name]

    def extra_topic(self, name: str, draws: Any) -> TopicPlan:
        flushes = self.plan.all_flush or draws[3] < 0.3
        config = TopicConfig(min_insync_replicas=2, flush_messages=1 if flushes else TopicConfig().flush_messages)
        plan = self._plans[name] = TopicPlan(name, 1 + int(2 * draws[4]), min(3, len(self.machines)), config)
        return plan

    def automatic_topic(self, name: str) -> TopicPlan:
        """A topic that a broker is about to create, since clients request its metadata; perhaps with fewer replicas."""
        config = TopicConfig(2, False, 1 if self.plan.all_flush else TopicConfig().flush_messages)
        plan = self._plans[name] = TopicPlan(name, 1, min(3, len(self.machines)), config)
        return plan

    def topic_created(self, name: str, topic_id: str, config: TopicConfig, partitions: int) -> None:
        self.trace.note("admin", f"topic {name} is created: {partitions} partitions, {config}, id {topic_id}")

    def topic_deleted(self, name: str) -> None:
        partitions = [partition for partition in self.partitions() if partition.topic == name]
        self.trace.note("admin", f"topic {name} is to be deleted", *partitions)

    def partition_added(self, partition: TopicPartition) -> None:
        self.trace.note("admin", f"partition {partition} is to be added", partition)

    def partition_removed(self, partition: TopicPartition) -> None:
        self.trace.note("admin", f"partition {partition} is to be removed", partition)

    def unclean_election(self, effect: effects.UncleanElection) -> None:
        """A controller has reported an unclean election."""
        self.checkers.unclean_election(effect)

    def topic_configured(self, name: str, config: TopicConfig) -> None:
        partitions = [partition for partition in self.partitions() if partition.topic == name]
        self.trace.note("admin", f"the settings of topic {name} are now {config}", *partitions)

    def records_deleted(self, partition: TopicPartition, offset: int, timeout_ms: int) -> bool:
        """An operator sends DeleteRecords below `offset` to the leader, -1 for all committed records."""
        topic, leader = self.topics().get(partition.topic), self.leader_of(partition)
        if topic is None or leader == NO_LEADER or partition.topic == TRANSACTED_TOPIC:
            return False
        requested = (partition, topic.topic_id, offset)
        self.history.add(DeletionRequested(self.scheduler.now_ms, *requested))

        def answered(response: m.DeleteRecordsResponse | None) -> None:
            self.deletion_answered(partition, None if response is None else response.partitions[0])
            if response is not None and response.partitions[0].error is ErrorCode.NONE:
                self.history.add(DeletionDone(self.scheduler.now_ms, *requested, response.partitions[0].low_watermark))

        request = m.DeleteRecordsRequest(timeout_ms, (m.DeleteRecordsPartition(partition, offset),))
        self.network.call("operator", f"b{leader}", CLIENTS, request, answered, 2 * timeout_ms * MS)
        return True

    def deletion_answered(self, partition: TopicPartition, answer: m.DeletedRecords | None) -> None:
        """Hook for the response to an operator, which the history contains already."""

    # Clients

    def _start_clients(self) -> None:
        new_id = partial(new_producer_id, None if self.plan.allocates_producer_ids else self.producer_ids)
        for kind, number in (("producer", self.plan.producers), ("consumer", self.plan.consumers)):
            for index in range(1, number + 1):
                context = self._client_context(f"{kind}-{index}", kind)
                drawn = context.settings
                # Few records, and fetches large enough to read them all: a seed tests the faults between them.
                settings = replace(drawn, pause_ms=6 * drawn.pause_ms, fetch_bytes=max(drawn.fetch_bytes, 300))
                context = replace(context, settings=settings)
                client = workload.producer(context, new_id) if kind == "producer" else workload.consumer(context)
                self._start_client(context, client)
        for number in range(1, REQUESTERS + 1) if self.plan.allocates_producer_ids else ():
            context = self._client_context(f"id-requester-{number}")
            self._start_client(context, id_requester(context))
        partitions = {topic.name: topic.partitions for topic in self.plan.topics}
        for index in range(1, self.plan.members + 1):
            context = self._client_context(f"member-{index}")
            self._start_client(context, group_client.member(context, partitions[OFFSETS_TOPIC]))
        if self.plan.subscribers:
            self._start_subscribers(partitions[OFFSETS_TOPIC])
        if self.plan.writers:
            self._start_transactions(partitions)
        for name, client_of in (
            (("session-consumer", session_consumer), ("intruder", intruder)) if self.plan.misused else ()
        ):
            context = self._client_context(name)
            self._start_client(context, client_of(context))
        for number in range(self.plan.racks) if self.plan.reads_in_racks else ():
            context = self._client_context(f"rack-consumer-{number + 1}")
            self._start_client(context, rack_consumer(context, rack_name(number)))
        for topic in WANTED if self.plan.creates_topics else ():
            context = self._client_context(topic)
            self._start_client(context, topic_user(context))

    def _start_subscribers(self, partitions: int) -> None:
        topics = (
            *(topic.name for topic in self.plan.topics if topic.name not in OWN_TOPICS),
            EXTRA_TOPIC,
            OFFSETS_TOPIC,
        )
        kind = consumer_group_client.GroupConsumer
        if self.plan.migrates:  # a name may be that of two topics while one is deleted and created again
            kind = migrating_consumer.MigratingConsumer
            topics = tuple(name for name in topics if name != EXTRA_TOPIC)
        settled = workload.Switch()
        members = []
        for index in range(1, self.plan.subscribers + 1):
            context = self._client_context(f"subscriber-{index}")
            member = kind(context, partitions, topics, settled, calm=self.plan.seed % 3 == 0)
            members.append(member)
            self._start_client(context, member.run())
        context = self._client_context("observer")
        self._start_client(context, consumer_group_client.observer(context, members, settled))

    def _start_transactions(self, partitions: Mapping[str, int]) -> None:
        """The first half of the processes copy, the others write; each transactional id has two processes. Each process
        of a crowd has its own."""
        topics = transaction_client.TransactionTopics(partitions[TRANSACTED_TOPIC], partitions[TRANSACTIONS_TOPIC])
        membership = EpochMembership if self.plan.subscribers else GroupMembership
        writers = []
        ids = [transaction_client.COPIER if index < 2 else "writer" for index in range(self.plan.writers)]
        crowd = [f"writer-{number + 1}" for number in range(self.plan.crowd)]
        for index, transactional_id in enumerate((*ids, *crowd)):
            context = self._client_context(f"transactional-{index + 1}")
            pause_ms = 600 if index < len(ids) else 20
            context = replace(context, settings=replace(context.settings, pause_ms=pause_ms))
            writer = transaction_client.TransactionalProcess(
                context,
                transactional_id,
                topics,
                misuses=self.plan.misused,
                hasty=self.plan.hasty,
                joins=membership if self.plan.copiers_join else None,
            )
            writers.append(writer)
            self._start_client(context, writer.run())
        context = self._client_context("stable-reader")
        self._start_client(context, transaction_client.stable_reader(context, topics, writers))

    def _client_context(self, name: str, kind: str = "consumer") -> workload.ClientContext:
        """The context of a new client. Its settings are drawn, by its own random numbers, from those of its kind."""
        random = Random(f"{self.plan.seed}-{name}")
        settings = workload.draw(random, kind)
        brokers = list(self.machines)
        return workload.ClientContext(name, settings, self.history, self.disks.codec, random, brokers, self._switch)

    def _start_client(self, context: workload.ClientContext, client: workload.Client) -> None:
        self.trace.note(context.name, f"starts with {context.settings}")
        self.clients[context.name] = workload.ClientRunner(client, NetworkPort(self, context.name))
        self.clients[context.name].start()

    def stop_clients(self) -> None:
        """Signal the clients to finish."""
        self._switch.off = True

    def clients_done(self) -> bool:
        return all(client.done for client in self.clients.values())

    def client_hosts(self) -> list[str]:
        return list(self.clients)

    def metadata_of(self, process: BrokerProcess) -> Any:
        cache = process.manager.metadata
        return dict(cache.brokers), dict(cache.partitions)

    # History and checkers

    def _heard(self, event: Event) -> None:
        """A client, or a declared event, has added to the history."""
        if self.trace.enabled and not isinstance(event, Watermark | StableEnd):
            self.trace.note(getattr(event, "client", CHECKER), describe_history(event), event.partition)
        self.checkers.observe(event)

    def replica_of(self, broker: int, partition: TopicPartition) -> Partition | None:
        process = self.machines[broker].process
        return None if process is None else process.manager.partitions.get(partition)

    def _is_served(self, broker: int, partition: TopicPartition) -> bool:
        """Whether a broker has a replica of the partition, and its log works."""
        replica = self.replica_of(broker, partition)
        return replica is not None and replica.role is not Role.OFFLINE and not replica.interrupted

    def _controls(self) -> bool:
        """Whether there is an active controller, between two steps and with no event to handle."""
        machine = self.machines.get(self.controller())
        process = None if machine is None else machine.process
        return process is not None and process.controller.active and process.control.idle

    def _store_changed(self) -> None:
        self.checkers.store(self.store.store.dump())
        self.requests.store_changed()

    def stats(self) -> dict[str, int]:
        node = self.store.store.peek(nodes.CONTROLLER_EPOCH)
        return {
            **self.checkers.stats(),
            "controllers": 0 if node is None else int(node.data),
            "leader epochs": sum(state.leader_epoch for state in self._states.values()),
            "crashes": self.crashes,
            "presumed dead": self.presumed_dead,
            "messages": self.network.messages,
            "faults": sum(self.injector.counts.values()),
        }

    @property
    def broken(self) -> bool:
        """Whether a violation has been found already."""
        return bool(self.failures or self.checkers.violations)

    def verdict(self, at_rest: bool) -> list[Violation]:
        """All violations, at the end of the run."""
        machine = self.machines.get(self.controller())
        process = None if machine is None else machine.process
        controls = process is not None and process.controller.active
        context = process.controller.context if process is not None and controls else None
        return final_checks.judge(self.checkers, self.store.store.dump(), context, at_rest)

    # At rest

    def unrest(self) -> tuple[str, tuple[TopicPartition, ...]] | None:
        """Why the cluster is not at rest yet, and the partitions concerned; None when it is.

        At rest: all brokers are registered, without unclean mark and connected to each other, and have the dynamic
        configs in the store, one is the active controller, no request of an operator is pending, every partition has a
        leader and its full ISR, all logs have the same end and are committed, and no disk has an unassigned replica.
        """
        for machine in self.machines.values():
            reason = self._unrest_of_broker(machine)
            if reason is not None:
                return reason, ()
        controller = self.machines.get(self.controller())
        if controller is None or controller.process is None or not controller.process.controller.active:
            return "there is no active controller", ()
        pending = self.admin.pending()
        if pending is not None:
            return f"{pending} is still pending", ()
        self._read_store()
        for name, topic in self._topics.items():
            for number, assignment in sorted(topic.partitions.items()):
                partition = TopicPartition(name, number)
                reason = self._unrest_of(partition, topic.topic_id, assignment)
                if reason is not None:
                    return f"{partition}: {reason}", (partition,)
        for machine in self.machines.values():
            for partition in machine.disk.on_disk():
                owner = self._topics.get(partition.topic)
                assigned = None if owner is None else owner.partitions.get(partition.partition)
                if assigned is None or machine.id not in assigned.replicas:
                    return f"broker {machine.id} still has {partition}", (partition,)
        context = controller.process.controller.context
        if context.deleting or context.removing:  # the store has done it, perhaps, and has not replied yet
            return "the controller still deletes topics or partitions", ()
        if not controller.process.cores.channels.idle:
            return "the controller has requests to send", ()
        return None

    def _unrest_of_broker(self, machine: Machine) -> str | None:
        process = machine.process
        if process is None or process.registration.registered is None:
            return f"broker {machine.id} is not registered"
        if machine.disk.unclean or machine.new_disk:
            return f"broker {machine.id} still has its unclean mark"
        self._read_store()
        stored = self._broker_configs.get("default", {}) | self._broker_configs.get(str(machine.id), {})
        if process.dynamic_configs != stored:
            return f"broker {machine.id} has the dynamic configs {process.dynamic_configs}, the store has {stored}"
        for other in self.machines if self.detects_failures else ():
            if other != machine.id and not process.connected_to(other):
                return f"the failure detector of broker {machine.id} has no connection to broker {other}"
        return None

    def _unrest_of(self, partition: TopicPartition, topic_id: str, assignment: nodes.Assignment) -> str | None:
        state = self._states.get(partition)
        if state is None or state.leader == NO_LEADER:
            return "it has no leader"
        if assignment.adding or assignment.removing:
            return "it is being reassigned"
        if state.isr != tuple(sorted(assignment.replicas)):
            return f"the ISR is {list(state.isr)} of {list(assignment.replicas)}"
        ends, starts = {}, {}
        for broker_id in assignment.replicas:
            process = self.machines[broker_id].process
            assert process is not None
            replica = process.manager.partitions.get(partition)
            if replica is None or replica.topic_id != topic_id:
                return f"broker {broker_id} has no replica of it"
            wanted = Role.LEADER if state.leader == broker_id else Role.FOLLOWER
            if replica.role is not wanted or replica.leader_epoch != state.leader_epoch:
                return f"broker {broker_id} is {replica.role.name} in epoch {replica.leader_epoch}"
            if replica.role is Role.LEADER and replica.isr != state.isr:
                return f"its leader has the ISR {list(replica.isr)}, the store {list(state.isr)}"
            if replica.config != self.config_of(partition.topic):
                return f"broker {broker_id} has settings {replica.config}, the store {self.config_of(partition.topic)}"
            ends[broker_id] = (replica.log.leo, replica.high_watermark)
            starts[broker_id] = replica.log.log_start
        if len({offset for pair in ends.values() for offset in pair}) > 1:
            offsets = ", ".join(f"{broker}: {leo} and {watermark}" for broker, (leo, watermark) in ends.items())
            return f"log ends and high watermarks differ ({offsets})"
        late = [broker for broker, start in starts.items() if start < starts[state.leader]]
        if late:
            return f"brokers {late} have records below the log start offset {starts[state.leader]} of its leader"
        return None


def rack_name(number: int) -> str:
    return f"r{number}"


def _has_replica(topic: nodes.TopicNode, broker_id: int) -> bool:
    return any(broker_id in assignment.replicas for assignment in topic.partitions.values())
