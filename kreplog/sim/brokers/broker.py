"""The shell of one broker process in virtual time: its cores, and the handlers of their effects.

A `BrokerProcess` lasts from its start to its crash or clean shutdown; its `Machine` outlives it, with the disk and the
facts for the next start. A crash can happen between any two effects: the steps under way are dropped, and everything
that the disk has not written is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplog.config import ReplicationConfig
from kreplog.core import dynamic_configs, effects, events
from kreplog.core import messages as m
from kreplog.core.broker.add_partitions import outcome_of
from kreplog.core.broker.broker import BrokerCores
from kreplog.core.broker.control_channel import ControlChannel
from kreplog.core.broker.request_parts import PartResponses, split_control
from kreplog.core.broker.shutdown import ControlledShutdown
from kreplog.core.controller.controller import Controller
from kreplog.core.failures import FailureDetector
from kreplog.core.groups.coordinator import GroupCoordinator
from kreplog.core.memory import NO_LIMIT, MemoryAccount
from kreplog.core.registration import Registration
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.transaction_messages import AddPartitionsToTxnResponse
from kreplog.core.transactions.transaction_coordinator import TransactionCoordinator
from kreplog.errors import CoordinationError, ErrorCode, InvariantError, KreplogError
from kreplog.sim.brokers.add_partitions_requests import VirtualAddPartitionsSender, receive_add_partitions
from kreplog.sim.brokers.control_channels import VirtualControlSender
from kreplog.sim.brokers.coordinator_partitions import VirtualCoordinatorLogs
from kreplog.sim.brokers.core_runner import AWAITED, CoreRunner, LocalReply
from kreplog.sim.brokers.incoming_requests import IncomingRequests
from kreplog.sim.brokers.marker_requests import VirtualMarkerSender
from kreplog.sim.brokers.metadata_requests import VirtualMetadataRequests
from kreplog.sim.brokers.producer_id_requests import VirtualProducerIds
from kreplog.sim.brokers.virtual_log_directory import VirtualLogDirectory
from kreplog.sim.brokers.virtual_submissions import VirtualSubmissions
from kreplog.sim.clients.producer_id_client import ProducerIdRequest
from kreplog.sim.machines.broker_clock import BrokerClock
from kreplog.sim.machines.disk import Disk
from kreplog.sim.machines.network import CLIENTS, Fate, HeldConnection
from kreplog.sim.machines.scheduler import MS
from kreplog.sim.machines.store import VirtualStoreLink
from kreplog.sim.topic_creation import TopicMetadataRequest, VirtualAutomaticTopics
from kreplog.types import BrokerRegistration, EpochEndOffset

if TYPE_CHECKING:
    from kreplog.sim.cluster import Cluster
    from kreplog.sim.faults import SimulationPlan

FEW_BYTES = 20_000
"""Memory limit for fetch sessions and waiting fetches, in seeds with few sessions."""

GROUP_BYTES = 12_000
"""Memory limit for groups in the same seeds; half of it is for what lasts between requests."""

CONSUMER_GROUP_BYTES = 60_000
"""What a group whose coordinator assigns has in addition to that."""

FETCH_SLACK_MS = 700
"""Time beyond max_wait after which the connection of a fetch is closed."""

UNKNOWN_TOPIC_ERRORS = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

SHUTDOWN_MAX_WAIT_MS = 4000
SHUTDOWN_TIMEOUT_MS = 1000

EXIT_DELAY_MS = 300
"""Delay before a paused process tries again to exit."""


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    """A client's metadata request; the response is a copy of the broker's MetadataCache."""


class Machine:
    """The part of a broker that outlives its process. clock_us: how far its clock is ahead of virtual time.
    lost_power: its power failed, and it may not have caught up since. new_disk: its replicas are not known. disks: how
    many it has had."""

    def __init__(self, broker_id: int, disk: Disk, rack: str | None) -> None:
        self.id = broker_id
        self.disk = disk
        self.rack = rack
        self.process: BrokerProcess | None = None
        self.clock_us = 0
        self.lost_power = False
        self.new_disk = True
        self.disks = 1

    @property
    def host(self) -> str:
        return f"b{self.id}"


class BrokerProcess:
    """One process of a broker.

    running: neither stopped nor paused. dynamic_configs: those in effect. fuse: effects until `on_fuse` is
    called; None if not set.
    """

    def __init__(self, cluster: Cluster, machine: Machine, config: ReplicationConfig) -> None:
        self.cluster = cluster
        self.machine = machine
        self.id = machine.id
        self.host = machine.host
        self.disk = machine.disk
        self.alive = True
        self.paused = False
        self.running = True
        self.stopping = False
        self.fuse: int | None = None
        self.on_fuse: Callable[[], None] = lambda: None
        self.dynamic_configs: dict[str, str] = {}
        self._configs = m.NO_CONFIGS
        self._exited: Callable[[], None] = lambda: None
        self._held: dict[int, HeldConnection] = {}
        self._term_epoch = -1
        self._scheduler = cluster.scheduler
        self.clock = BrokerClock(cluster.scheduler, machine.clock_us)
        self.link = VirtualStoreLink(
            cluster.store,
            cluster.network,
            cluster.scheduler,
            self.host,
            cluster.plan.session_timeout_ms,
            cluster.plan.fence_late_ms * MS,
            self._connected,
            self._session_lost,
        )
        self.submissions = VirtualSubmissions(self)
        self._make_cores(config)
        self._make_runners()
        self._make_senders()
        self._metadata_requests = VirtualMetadataRequests(self)
        violate = partial(cluster.checkers.violate, model=None)
        self._incoming = IncomingRequests(self.manager, self._reply_soon, self._serve, violate)
        self.directory = VirtualLogDirectory(self)
        self._effects = self._effect_handlers()

    def _make_cores(self, config: ReplicationConfig) -> None:
        plan, machine = self.cluster.plan, self.machine
        few_sessions = config.max_incremental_fetch_session_cache_slots == 2
        memory = MemoryAccount(FEW_BYTES) if few_sessions else None
        self.group_memory = MemoryAccount(_group_bytes(plan) if few_sessions else NO_LIMIT)
        self.transaction_memory = MemoryAccount()
        strays = [(topic_id, partition.partition) for partition, topic_id in self.disk.strays_since()]
        self.manager = ReplicaManager(self.id, config, self.disk.on_disk(), machine.new_disk, strays, memory)
        self.controller = Controller(self.id, config, self._transition)
        self.registration = Registration(
            BrokerRegistration(
                self.id,
                -1,
                f"host{self.id}",
                9092,
                machine.rack,
                unclean=self.disk.unclean or machine.new_disk,
                directories=(f"disk {machine.disks} of {self.id}",),
            )
        )
        metadata = self.manager.metadata
        self.cores = BrokerCores(
            self.manager,
            self.controller,
            self.registration,
            FailureDetector(self.id),
            ControlledShutdown(self.id, self.registration, metadata, SHUTDOWN_MAX_WAIT_MS),
            GroupCoordinator(plan.groups, metadata, self._unique_id, self.group_memory),
            TransactionCoordinator(
                plan.transactions, metadata, self.transaction_memory, plan.last_epoch, plan.patience_ms
            ),
        )

    def _make_runners(self) -> None:
        names = ("broker", "controller", "registration", "failure detector", "shutdown", "groups", "transactions")
        self.runners = tuple(CoreRunner(self, *named) for named in zip(names, self.cores.cores, strict=True))
        self.replicas, self.control, self.register, self.detect, self.stopper, self.groups, *_ = self.runners
        self.transactions = self.runners[-1]
        self._runner_of = {runner.core: runner for runner in self.runners}

    def _make_senders(self) -> None:
        """Make the senders of the cores' requests, and the coordinators' readers of logs."""
        cluster, scheduler, replicas = self.cluster, self._scheduler, self.replicas
        self.sender = VirtualControlSender(
            *(self.cores.channels, cluster.network, scheduler, self.host),
            *(lambda: self.running, self._check_control_request, self.control.put),
        )
        self._coordinator_logs = {
            runner: VirtualCoordinatorLogs(
                *(scheduler, self.disk, cluster.disks.codec, lambda: self.alive, replicas.put, runner.put),
                self._check_coordinator_read,
                of_transactions=runner is self.transactions,
            )
            for runner in (self.groups, self.transactions)
        }
        self._markers = VirtualMarkerSender(
            cluster.network, self.id, lambda: self.alive, replicas.put, self.transactions.put
        )
        self._add_partitions = VirtualAddPartitionsSender(cluster.network, self.host, lambda: self.alive, replicas.put)
        self._producer_ids = VirtualProducerIds(self)
        self._automatic = VirtualAutomaticTopics(self)

    def _effect_handlers(self) -> dict[type, Callable[[CoreRunner, Any], Any]]:
        return {
            **self.directory.effects,
            effects.EndOfRecords: self._end_of_records,
            effects.AppendGroupRecords: lambda runner, effect: self._coordinator_logs[runner].append(effect),
            effects.ReadGroupRecords: lambda runner, effect: self._coordinator_logs[runner].read(effect),
            effects.SendMarkers: lambda _, effect: self._markers.send(effect),
            effects.SendAddPartitions: self._send_add_partitions,
            effects.WallClock: lambda runner, effect: self._scheduler.now_ms,
            effects.Send: self._send,
            effects.Reply: self._reply,
            effects.ConfigureBroker: self._configure,
            effects.Deliver: lambda _, effect: self._runner_of[effect.core].put(effect.event),
            effects.SendShutdown: self._send_shutdown,
            effects.Exit: self._exit,
            effects.SendControl: lambda _, effect: self.sender.put(effect),
            effects.CloseControlChannel: lambda _, effect: self.sender.channel_closed(),
            effects.DrainControlChannels: self._drain_control_channels,
            effects.ConnectPeer: self._connect_peer,
            effects.DisconnectPeer: self._disconnect_peer,
            effects.SubmitMulti: self._submit_multi,
            effects.SubmitRead: self._submit_read,
            effects.Multi: self._multi,
            effects.GetNodes: self._get_nodes,
            effects.GetChildren: self._get_children,
            effects.StateChange: self._state_change,
            effects.UncleanElection: self._unclean_election,
            # Not simulated: what retention leaves of a log is a fault of the disk (Disk.retention_bytes).
            effects.ConfigureLog: lambda _, effect: None,
        }

    def _unique_id(self) -> str:
        """The id of a new group member; drawn, so that no process repeats it."""
        return f"{self._scheduler.random.getrandbits(64):016x}"

    @property
    def now_ms(self) -> int:
        """This broker's monotonic clock."""
        return self.clock.now_ms

    def set_clock(self, jump_ms: int, rate: int) -> None:
        """Set its clock as BrokerClock.set does; its timers follow."""
        self.clock.set(jump_ms, rate)
        if self.running:
            for runner in self.runners:
                runner.arm()

    # Lifecycle

    def start(self) -> None:
        """Attach to the network and request a session of the store."""
        self.cluster.network.attach(self.host, self._requested)
        self.link.connect()
        self._metadata_requests.started()
        self.directory.checkpoint_later()
        if self.cluster.plan.moves_replicas:
            self.directory.moves.go_on_later()

    def crash(self, notice_us: int | None) -> None:
        """End the process now, in the middle of its steps. notice_us: as in VirtualStoreLink.kill."""
        self._end()
        self.link.kill(notice_us)

    def pause(self) -> None:
        """Stop as SIGSTOP does: messages queue up, the clock continues."""
        self.paused = True
        self.running = False
        self.link.paused = True

    def resume(self) -> None:
        """Resume after a pause, with all queued events."""
        if not self.paused or not self.alive:
            return
        self.paused = False
        self.running = True
        self.link.resume()
        self.submissions.resume()
        for runner in self.runners:
            if self.running:
                runner.run()
        if self.running:
            self.sender.resume()

    def count_effect(self) -> None:
        """Count an effect towards the fuse."""
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse <= 0:
                self.fuse = None
                self.on_fuse()

    def shut_down(self, exited: Callable[[], None]) -> None:
        """Controlled shutdown: move leaders, close the logs, exit; `exited` is called then, unless the process
        crashes."""
        self.stopping = True
        self._exited = exited
        self.apply_all(self.cores.stop())

    def _send_shutdown(self, runner: CoreRunner, effect: effects.SendShutdown) -> None:
        def replied(response: m.ControlledShutdownResponse | None) -> None:
            if self.alive:
                runner.put(events.ControlledShutdownReplied(effect.attempt, response))

        timeout_us = SHUTDOWN_TIMEOUT_MS * MS
        self.cluster.network.call(self.host, f"b{effect.controller}", "shutdown", effect.request, replied, timeout_us)

    def _exit(self, runner: CoreRunner, effect: effects.Exit) -> None:
        if not self.alive:
            return
        if self.paused:
            self._scheduler.after(EXIT_DELAY_MS * MS, self._exit, runner, effect)
            return
        self.cluster.checkers.exits(self.id, effect.all_moved)
        self.disk.shutdown()
        self._end()
        self.link.close()
        self._exited()

    def _end(self) -> None:
        self.alive = self.running = False
        self.cores.channels.retain({})
        self.cluster.network.detach(self.host)
        self.machine.process = None

    # Events

    def _requested(self, reply_to: int, request: Any, channel: str) -> None:
        if isinstance(request, MetadataRequest):
            if self.cluster.plan.awaits_metadata:
                self._metadata_requests.receive(reply_to)
            else:
                self._reply_soon(reply_to, lambda: self.cluster.metadata_of(self))
        elif isinstance(request, TopicMetadataRequest):
            self._reply_soon(reply_to, partial(self._automatic.receive, request))
        elif isinstance(request, ProducerIdRequest):
            self._producer_ids.respond(reply_to)
        elif isinstance(request, tuple):
            receive_add_partitions(request, self.transactions.put, partial(self.cluster.network.reply, reply_to))
        else:
            self._incoming.receive(reply_to, request, channel != CLIENTS)

    def _serve(self, reply_to: Any, request: Any) -> None:
        self._producer_ids.add(request, partial(self.cluster.network.reply, reply_to), partial(self._put, reply_to))

    def _put(self, reply_to: Any, request: Any) -> None:
        parts = [request]
        if isinstance(request, m.LeaderAndIsrRequest):
            self._metadata_requests.leader_and_isr(request)
        if isinstance(request, m.ControlRequest):
            parts = split_control(request, self.manager.partitions, self.cluster.plan.replicas_per_part)
        if len(parts) == 1:
            self._runner_of[self.cores.core_for(request)].put(events.Received(reply_to, request))
        else:
            self._put_parts(parts, PartResponses(len(parts), "partitions"), reply_to)

    def _put_parts(
        self, parts: Sequence[m.ControlRequest], responses: PartResponses, reply_to: int, at: int = 0
    ) -> None:
        """Pass the parts from number `at` on to their core, with other events in between."""

        def replied(response: Any) -> None:
            complete = responses.add(at, response)
            if complete is not None:
                self.cluster.network.reply(reply_to, complete)

        if self.alive:
            self.replicas.put(events.Received(LocalReply(replied), parts[at]))
            if at + 1 < len(parts):
                delay_us = int(2 * MS * self._scheduler.random.random())
                self._scheduler.after(delay_us, self._put_parts, parts, responses, reply_to, at + 1)

    def _reply_soon(self, reply_to: int, response: Callable[[], Any]) -> None:
        """Reply as soon as the process is not paused."""
        if self.paused:
            self._scheduler.after(200 * MS, self._reply_soon, reply_to, response)
        elif self.alive:
            self.cluster.network.reply(reply_to, response())

    def _connected(self, session_id: int, late: bool = False) -> None:
        session, late_ms = self.link.session, self.cluster.plan.registers_late_ms
        if late_ms and not late:
            self._scheduler.after(late_ms * MS, self._connected, session_id, True)
        elif self.alive and session is not None and session.id == session_id:
            self.apply_all(self.cores.session_started(session_id))

    def stepped(self, runner: CoreRunner) -> None:
        """A step has ended."""
        if runner is self.replicas:
            self.cluster.checkers.stepped(self.id, self.manager)
            if self.cluster.plan.awaits_metadata:
                self._metadata_requests.changed()
        elif runner is self.groups:
            self.cluster.checkers.memory.groups_stepped(self.id, self.cores.groups, self.group_memory)
        elif runner is self.transactions:
            self.cluster.checkers.memory.transactions_stepped(self.id, self.cores.transactions, self.transaction_memory)
        elif runner is self.control:
            self._term_epoch = self.controller.epoch
        self.apply_all(self.cores.stepped(runner.core))
        if runner is self.register and self.registration.registered is None:
            self._check_deposed(self.control.idle and self.controller.active)

    def _check_deposed(self, controls: bool) -> None:
        """The registration has ended. controls: whether this broker is the active controller nevertheless."""
        leads = self.manager if self.running and self.replicas.idle else None
        self.cluster.checkers.deposed(self.id, leads, controls and self.running)

    def _check_control_request(self, channel: ControlChannel, request: m.ControlRequest) -> None:
        """A control request is about to be sent, between two steps of the controller or within one."""
        controller = self.controller
        to = controller.context.brokers.get(channel.broker)
        is_live = controller.active and request.controller_epoch == controller.epoch and to is not None
        if self.control.idle and not (is_live and to is not None and to.epoch == channel.broker_epoch):
            self.cluster.checkers.sent_in_vain(self.id, channel.broker, request)

    def apply_all(self, following: Sequence[effects.Effect]) -> None:
        """Apply the effects that BrokerCores has decided."""
        for effect in following:
            self.apply(self.replicas, effect)

    def _transition(self, changed: object, old: str, new: str) -> None:
        """Pass transitions to the checkers, except for the first states that a newly elected controller sets."""
        if self.controller.epoch == self._term_epoch or not old.startswith("NonExistent"):
            self.cluster.checkers.transition(changed, old, new)

    def _session_lost(self) -> None:
        if not self.alive:
            return
        self.apply_all(self.cores.session_lost())
        self._check_deposed(controls=False)
        self.link.connect(int(300 * MS * self._scheduler.random.random()))

    # Effects

    def apply(self, runner: CoreRunner, effect: effects.Effect) -> Any:
        """Apply an effect; return its answer, AWAITED if that comes later, None for none. Raises KreplogError."""
        handler = self._effects.get(type(effect))
        if handler is None:
            raise InvariantError(f"a simulated broker cannot carry out {type(effect).__name__}")
        return handler(runner, effect)

    def _check_coordinator_read(self, read: events.GroupRecordsRead, high_watermark: int) -> None:
        """A coordinator takes only what is committed: the next leader has it as well."""
        for offset, _ in read.records:
            if offset >= high_watermark:
                text = f"the coordinator of {read.partition} on broker {self.id} takes the record at offset {offset}"
                self.cluster.checkers.violate("uncommitted load", f"{text}, not below {high_watermark}", None)

    def _end_of_records(self, _runner: CoreRunner, effect: effects.EndOfRecords) -> EpochEndOffset | None:
        return self.cluster.disks.codec.end_of(effect.records)

    def _send(self, _runner: CoreRunner, effect: effects.Send) -> None:
        def answered(response: m.FetchResponse | None) -> None:
            self.replicas.put(events.FetchReplied(effect.leader, effect.correlation, response))

        timeout_us = (effect.request.max_wait_ms + FETCH_SLACK_MS) * MS
        self.cluster.network.call(self.host, f"b{effect.leader}", "fetch", effect.request, answered, timeout_us)

    def _send_add_partitions(self, runner: CoreRunner, effect: effects.SendAddPartitions) -> None:
        def answered(response: AddPartitionsToTxnResponse) -> None:
            runner.put(outcome_of(effect, response))

        if effect.coordinator == self.id:
            self.transactions.put(events.Received(LocalReply(answered), effect.request))
        else:
            self._add_partitions.send(effect)

    def _reply(self, _runner: CoreRunner, effect: effects.Reply) -> None:
        if isinstance(effect.reply_to, LocalReply):
            effect.reply_to.reply(effect.response)
            return
        assert isinstance(effect.reply_to, int)
        if self.manager.metadata.controller_epoch < 0:
            for partition in getattr(effect.response, "partitions", ()):
                if getattr(partition, "error", None) in UNKNOWN_TOPIC_ERRORS:
                    self.cluster.checkers.denied(self.id, partition.partition)
        self.cluster.network.reply(effect.reply_to, effect.response)

    def _configure(self, _runner: CoreRunner, effect: effects.ConfigureBroker) -> None:
        epoch, before = self.manager.controller_epoch, self._configs
        self.cluster.unreadable_configs.taken(self.id, epoch, before, effect.configs)
        self._configs = effect.configs
        self.dynamic_configs = dynamic_configs.effective(effect.configs)

    def _drain_control_channels(self, runner: CoreRunner, effect: effects.DrainControlChannels) -> Any:
        """In most seeds for the maximum, as if a broker did not respond."""

        def drained(unanswered: list[int]) -> None:
            if unanswered:
                text = f"broker {self.id} goes on as controller before brokers {unanswered} have responded"
                self.cluster.checkers.violate("drained early", text, None)
            self._scheduler.after(effect.rest_ms * MS, self.resume_step, runner, None, None)

        if self.cluster.plan.drains_channels:
            self.sender.until_idle(effect.max_ms, drained)
        else:
            self._scheduler.after((effect.max_ms + effect.rest_ms) * MS, self.resume_step, runner, None, None)
        return AWAITED

    def _connect_peer(self, runner: CoreRunner, effect: effects.ConnectPeer) -> None:
        peer = effect.broker.id, effect.broker.epoch

        def on_fate(fate: Fate) -> None:
            if fate is Fate.CONNECTED:
                runner.put(events.PeerConnected(*peer))
            elif fate is Fate.RESET:
                self._metadata_requests.connection_closed(effect.broker.id)
                runner.put(events.PeerDisconnected(*peer))
            else:
                runner.put(events.PeerUnreachable(*peer, refused=fate is Fate.REFUSED))

        self._hang_up(effect.broker.id)
        self._held[effect.broker.id] = self.cluster.network.dial(self.host, f"b{effect.broker.id}", on_fate)

    def _disconnect_peer(self, _runner: CoreRunner, effect: effects.DisconnectPeer) -> None:
        self._hang_up(effect.broker)

    def _hang_up(self, broker: int) -> None:
        held = self._held.pop(broker, None)
        if held is not None:
            self.cluster.network.hang_up(held)

    def connected_to(self, broker: int) -> bool:
        """Whether the failure detector has a connection to that broker."""
        held = self._held.get(broker)
        return held is not None and held.open and held.accepted

    def _submit_multi(self, runner: CoreRunner, effect: effects.SubmitMulti) -> None:
        checkers, epoch = self.cluster.checkers, self.manager.broker_epoch
        written = partial(checkers.written, self.id, epoch, effect.operations) if runner is self.replicas else None
        self.submissions.multi(effect.operations, partial(self._store_replied, runner, effect.tag), written)

    def _submit_read(self, runner: CoreRunner, effect: effects.SubmitRead) -> None:
        self.submissions.get_nodes(effect.paths, partial(self._store_replied, runner, effect.tag))

    def _store_replied(self, runner: CoreRunner, tag: Hashable, results: Any, error: CoordinationError | None) -> None:
        if self.alive:
            runner.put(events.StoreReplied(tag, () if results is None else tuple(results), error))

    def _multi(self, runner: CoreRunner, effect: effects.Multi) -> Any:
        self.link.multi(effect.operations, partial(self.resume_step, runner))
        return AWAITED

    def _get_nodes(self, runner: CoreRunner, effect: effects.GetNodes) -> Any:
        watcher = runner.on_watch if effect.watch else None
        self.link.get_nodes(effect.paths, watcher, partial(self.resume_step, runner))
        return AWAITED

    def _get_children(self, runner: CoreRunner, effect: effects.GetChildren) -> Any:
        watcher = runner.on_watch if effect.watch else None
        self.link.get_children(effect.path, watcher, partial(self.resume_step, runner))
        return AWAITED

    def resume_step(self, runner: CoreRunner, answer: Any, error: KreplogError | None) -> None:
        if self.alive:
            runner.resume(answer, error)

    def _state_change(self, runner: CoreRunner, effect: effects.StateChange) -> None:
        if runner is self.detect and effect.level == "warning":  # it has ended a registration
            self.cluster.presumed_dead += 1

    def _unclean_election(self, _runner: CoreRunner, effect: effects.UncleanElection) -> None:
        self.cluster.unclean_election(effect)


def _group_bytes(plan: SimulationPlan) -> int:
    """Memory limit for groups in seeds with few sessions. The group of transactional producers is one more."""
    groups = 2 * GROUP_BYTES if plan.writers else GROUP_BYTES
    return groups + CONSUMER_GROUP_BYTES if plan.subscribers else groups
