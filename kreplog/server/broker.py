"""Broker: one broker process: its parts, how it starts and stops, and how the effects of its cores are carried out.

The thread of the event loop owns the cores and all state that they change; other threads do only what blocks. A start
locks the log directories, recovers the logs, listens, and registers. A stop is a controlled shutdown: the broker moves
its leaders, closes its connections, ends its session, closes the logs and writes the clean shutdown marks.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import time
import uuid
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from kreplog.config import RANGES, LogConfig
from kreplog.core import effects, events, nodes
from kreplog.core import messages as m
from kreplog.core.broker.broker import BrokerCores
from kreplog.core.broker.metadata_waits import MetadataWaits
from kreplog.core.broker.shutdown import ControlledShutdown
from kreplog.core.controller.controller import Controller
from kreplog.core.failures import FailureDetector
from kreplog.core.groups.coordinator import GroupCoordinator
from kreplog.core.memory import MemoryAccount
from kreplog.core.registration import Registration
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.partition import Partition
from kreplog.core.transactions.transaction_coordinator import TransactionCoordinator
from kreplog.errors import CoordinationError, InvariantError, PeerProtocolError, StorageError, UsageError
from kreplog.server.dynamic_settings import DynamicSettings
from kreplog.server.handlers.api import Api
from kreplog.server.handlers.topics import TopicViews
from kreplog.server.monitoring.counters import EventCounters, Traffic
from kreplog.server.monitoring.exporter import Exporter
from kreplog.server.monitoring.health import readiness
from kreplog.server.monitoring.logs import LogSettings, log_state_change, set_up
from kreplog.server.monitoring.metrics import CONTENT_TYPE, render
from kreplog.server.network.internal import Address, Dialer, load_key, make_private_directory
from kreplog.server.network.peers import Peer
from kreplog.server.network.serving import LocalRequest, RequestContext, Server
from kreplog.server.replication.add_partitions_sender import AddPartitionsSender
from kreplog.server.replication.control_sender import ControlSender, control_header
from kreplog.server.replication.fetch_client import ReplicaFetchClient
from kreplog.server.replication.marker_sender import MarkerSender
from kreplog.server.replication.peer_connections import PeerConnections
from kreplog.server.runtime.pauses import MeasuredEventLoop
from kreplog.server.runtime.runners import AsyncCoreRunner, SyncCoreRunner
from kreplog.server.runtime.starting import (
    RecoveryProgress,
    freeze_heap,
    keep_freed_memory,
    limits_of,
    max_replicas_of,
    open_directories,
    tune_interpreter,
)
from kreplog.server.runtime.store import StoreLink, make_store
from kreplog.server.runtime.watchdog import Watchdog
from kreplog.server.settings import BrokerSettings, Listener
from kreplog.server.storage import log_loader
from kreplog.server.storage.background import BackgroundTasks
from kreplog.server.storage.coordinator_logs import CoordinatorLogs
from kreplog.server.storage.directories import DataDirectory
from kreplog.server.storage.disk_space import all_have_space
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.server.storage.log_cleaner import CleanerSettings
from kreplog.server.storage.log_manager import LOG_EFFECTS, LogManager
from kreplog.server.storage.open_files import OpenFiles, raise_limit
from kreplog.types import BrokerRegistration, TopicPartition
from kreplog.wire import control_messages, transaction_records

_log = logging.getLogger("kreplog.server")

SHUTDOWN_TIMEOUT_S = 5.0
"""Time-out of one ControlledShutdown request."""

DISK_SPACE_CHECK_S = 2.0
"""Interval of the checks whether a full file system has space again."""


class Broker:
    """A broker from one start to the next stop. `run` it once; `stop` may be called from the event loop at any time.

    ready: set once it listens. address: of its first client listener. metrics: their HTTP endpoint, once it is ready.
    max_replicas: max.broker.partitions, lowered to what the limit on open files allows. restarts: `run` has returned
    for the process to start the broker again, since a full disk has space.
    """

    cores: BrokerCores
    replicas: SyncCoreRunner
    control: AsyncCoreRunner
    register: AsyncCoreRunner
    detect: AsyncCoreRunner
    stopper: SyncCoreRunner
    groups: SyncCoreRunner
    transactions: SyncCoreRunner

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.dynamic = DynamicSettings(settings)
        self.id = settings.broker_id
        self.ready = asyncio.Event()
        self.address: Address = ("", 0)
        self._stop = asyncio.Event()
        self._may_exit = asyncio.Event()
        self._runner_of: dict[effects.Core, SyncCoreRunner | AsyncCoreRunner] = {}
        self._shutdown_request: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None
        self.restarts = False
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(8, "kreplog-files")
        self._client_id = f"broker-{self.id}"
        self.started_at = time.time()
        self.traffic = Traffic()
        self.event_counters = EventCounters()
        self.metrics = Exporter(partial(render, self), CONTENT_TYPE, partial(readiness, self))

    async def run(self) -> None:
        """Start, serve until `stop` or a failure, and shut down. Raises the error that prevented the start, or that
        stopped the broker."""
        await self._start()
        watchdog = Watchdog(self.settings.session_timeout_ms / 1000, self._abandon_session)
        self.ready.set()
        tasks = [
            self._loop.create_task(self.store.run(), name="kreplog-store"),
            self._loop.create_task(self._checkpoint(), name="kreplog-checkpoints"),
            self._loop.create_task(self._retain(), name="kreplog-retention"),
            self._loop.create_task(self._expire_producers(), name="kreplog-producers"),
            self._loop.create_task(self._await_disk_space(), name="kreplog-disk-space"),
        ]
        if self.settings.cleaner_enable:
            tasks.append(self._loop.create_task(self.logs.cleaner.run(), name="kreplog-cleaner"))
        for task in tasks:
            task.add_done_callback(self._task_ended)
        await self._stop.wait()
        if self._failure is None:
            await self._controlled_shutdown()
        for task in tasks:
            task.cancel()
        await self._shut_down()
        watchdog.close()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Begin to stop; `run` returns when the broker has stopped."""
        self.restarts = False
        self._stop.set()

    # Start

    async def _start(self) -> None:
        settings = self.settings
        key = None if settings.key_file is None else load_key(settings.key_file)
        self.dialer = Dialer(key)
        files = OpenFiles.of_process()
        files.limit_log_files()
        self._files = files
        self.max_replicas = max_replicas_of(settings, files)
        self.memory = MemoryAccount(settings.max_memory)
        directories, self._full = open_directories(settings)
        await self._load_logs(directories, files)
        self._create_cores(directories)
        self.api = Api(self)
        self.server = Server(self.api.handle, limits_of(settings, files), self.memory)
        clients, internal = self._listen(key)
        self._create_registration(directories, internal)
        self._connect_cores()
        if settings.metrics_listener is not None:
            with self._named("metrics.listener", settings.metrics_listener):
                await self.metrics.start(settings.metrics_listener)
            _log.info("metrics are served at http://%s/metrics", self.metrics.address)
        addresses = ", ".join(map(str, clients))
        _log.info("broker %d listens on %s, and for other brokers on %s", self.id, addresses, internal)

    async def _load_logs(self, directories: Sequence[DataDirectory], files: OpenFiles) -> None:
        settings = self.settings
        self.hosted = HostedReplicas(
            directories,
            log_config_of(settings),
            BackgroundTasks(self._pool, self._core_failed),
            complete=len(directories) == len(settings.log_dirs),
            stray_retention_ms=settings.stray_retention_ms,
            files=files,
            memory=self.memory,
        )
        load = partial(log_loader.load, self.hosted, settings.num_recovery_threads, RecoveryProgress())
        await self._loop.run_in_executor(None, load)
        freeze_heap()

    def _create_cores(self, directories: Sequence[DataDirectory]) -> None:
        """The replication core with its runner, and all that its effects need; the controller."""
        settings = self.settings
        topic_ids, strays = self.hosted.topic_ids(), self.hosted.strays.keys()
        disk_lost = any(directory.start.is_new for directory in directories)
        self.manager = ReplicaManager(self.id, settings.replication, topic_ids, disk_lost, strays, self.memory)
        self.controller = Controller(self.id, settings.replication, topic_defaults=settings.topic)
        self.store = StoreLink(
            make_store(settings.coordination),
            settings.session_timeout_ms,
            self._session_started,
            self._session_lost,
            self._task_ended,
        )
        self.replicas = self._run_sync("replicas", self.manager, self._apply, self.store.check)
        self.logs = LogManager(self.hosted, self.replicas.put, self._pool, cleaner_settings_of(settings))
        self.topics = TopicViews(self.manager)
        self.metadata_waits = MetadataWaits(self.id, self.manager.metadata)
        self.fetch_client = ReplicaFetchClient(
            self._client_id,
            settings.socket_request_max_bytes,
            self.known_address,
            self.address_of,
            self.topics.name_of,
            self.replicas.put,
            self._connection_closed,
            self.dialer.connect,
        )

    def _listen(self, key: bytes | None) -> tuple[list[Listener], Listener]:
        """Open all listeners; returns those for clients, and the one for other brokers."""
        settings = self.settings
        clients = []
        for listener in settings.listeners:
            with self._named("listeners", listener):
                clients.append(self.server.listen(listener))
        first = settings.advertised or next(listener for listener in clients if listener.host)
        self.address = first.host, first.port
        with self._named("inter.broker.listener", settings.internal):
            if settings.internal.path:
                make_private_directory(Path(settings.internal.path).parent)
            return clients, self.server.listen_internally(settings.internal, key)

    def _create_registration(self, directories: Sequence[DataDirectory], internal: Listener) -> None:
        host, port = self.address
        self.registration = Registration(
            BrokerRegistration(
                self.id,
                -1,
                host,
                port,
                self.settings.rack,
                unclean=any(directory.start.may_have_lost for directory in directories),
                internal=(internal.path or internal.host, internal.port),
                directories=tuple(directory.id for directory in directories),
            )
        )

    def _connect_cores(self) -> None:
        """Join the cores, run those that wait for the store, and make what their effects need."""
        manager, controller, registration = self.manager, self.controller, self.registration
        detector, max_wait_ms = FailureDetector(self.id), self.settings.controlled_shutdown_max_wait_ms
        shutdown = ControlledShutdown(self.id, registration, manager.metadata, max_wait_ms)
        groups = GroupCoordinator(self.settings.groups, manager.metadata, lambda: str(uuid.uuid4()), self.memory)
        transactions = TransactionCoordinator(
            self.settings.transactions, lambda: manager.metadata.partitions, manager.metadata.leader_of, self.memory
        )
        self.cores = BrokerCores(manager, controller, registration, detector, shutdown, groups, transactions)

        def run(name: str, core: effects.Core) -> AsyncCoreRunner:
            return AsyncCoreRunner(name, core, self._apply_awaited, partial(self._after_step, core), self._core_failed)

        self.control = run("controller", controller)
        self.register = run("registration", registration)
        self.detect = run("failure detector", detector)
        self.stopper = self._run_sync("shutdown", shutdown, self._apply_shutdown)
        self.groups = self._run_sync("groups", groups, self._apply_groups)
        self.group_logs = CoordinatorLogs(self.hosted, self.replicas.put, self.groups.put)
        self.transactions = self._run_sync("transactions", transactions, self._apply_transactions)
        put = self.transactions.put
        self.transaction_logs = CoordinatorLogs(
            self.hosted, self.replicas.put, put, transaction_records, "kreplog-transactions"
        )
        self.markers = MarkerSender(
            self._client_id, self.id, self.replicas.put, put, self.known_address, self.dialer.connect
        )
        self.add_partitions = AddPartitionsSender(
            self._client_id, self.id, put, self.replicas.put, self.known_address, self.dialer.connect
        )
        runners = (
            *(self.replicas, self.control, self.register, self.detect, self.stopper),
            *(self.groups, self.transactions),
        )
        self._runner_of = dict(zip(self.cores.cores, runners, strict=True))
        self.peers = PeerConnections(self.dialer.connect, self.detect.put, self._connection_closed)
        self.sender = ControlSender(
            self.cores.channels,
            self._client_id,
            self._controlled_address,
            self.control.put,
            self.id,
            self.api.handle_local_control,
            self.dialer.connect,
        )

    def _run_sync(
        self,
        name: str,
        core: effects.Core,
        apply: Callable[[effects.Effect], Any],
        before: Callable[[], None] = lambda: None,
    ) -> SyncCoreRunner:
        return SyncCoreRunner(name, core, apply, partial(self._after_step, core), self._core_failed, before)

    @contextmanager
    def _named(self, setting: str, listener: Listener) -> Iterator[None]:
        """Turn the OSError of a listener into a UsageError that names the setting."""
        try:
            yield
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "another process listens there" if taken else str(error.strerror or error)
            raise UsageError(
                f"broker {self.id} cannot listen on {listener}: {reason}; change its setting {setting}"
                + (", or stop that process" if taken else "")
            ) from error

    # Events

    def receive(self, event: events.Received) -> None:
        """A request has arrived: pass it to its core."""
        self._runner_of[self.cores.core_for(event.request)].put(event)

    def _session_started(self, session_id: int) -> None:
        self._carry_out(self.cores.session_started(session_id))

    def _session_lost(self) -> None:
        _log.warning("the session with the coordination store has ended: this broker leads nothing until the next one")
        self.event_counters.expired += 1
        self._carry_out(self.cores.session_lost())

    def _connection_closed(self, broker_id: int) -> None:
        """Another broker has closed a connection of this one."""
        self.metadata_waits.recently_failed.connection_closed(broker_id, self._now_ms())

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _abandon_session(self) -> None:
        """End the session; from any thread."""
        self.store.abandon()

    def _after_step(self, core: effects.Core) -> None:
        self._carry_out(self.cores.stepped(core))

    def _carry_out(self, following: Sequence[effects.Effect]) -> None:
        """Carry out the effects of one core on the others, and on the process."""
        for effect in following:
            match effect:
                case effects.Deliver(core, event):
                    self._runner_of[core].put(event)
                    if core is self.controller and isinstance(event, events.Registered):
                        _log.info("registered with broker epoch %d", event.broker_epoch)
                        self.api.registered()
                case effects.Reply():
                    self._answer(effect)
                case effects.SyncFiles(applied):
                    self.logs.sync_files(partial(self._files_synced, applied))
                case effects.ClearUncleanMark():
                    self._clear_unclean_mark()
                case effects.CloseControlChannel(broker):
                    self.sender.close_channel(broker)
                case _:
                    raise InvariantError(f"a broker cannot carry out {type(effect).__name__}")

    def _files_synced(self, applied: effects.LeaderAndIsrApplied) -> None:
        self._carry_out(self.cores.files_synced(applied))

    def _clear_unclean_mark(self) -> None:
        for directory in self.hosted.directories:
            if directory.start.may_have_lost and directory.may_clear_unclean():
                try:
                    directory.clear_unclean()
                except (OSError, StorageError) as error:
                    text = "%s: cannot write the boot mark, so the next start registers as unclean again: %s"
                    _log.error(text, directory.path, error)

    def _core_failed(self, name: str, error: BaseException) -> None:
        self._failure = error
        self._stop.set()
        self._may_exit.set()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._core_failed(task.get_name(), error)

    # Effects

    def _apply(self, effect: effects.Effect) -> Any:
        """Carry out an effect of the replication core; returns its answer."""
        kind = type(effect)
        if kind in LOG_EFFECTS:
            answer = self.logs.execute(effect)
            if isinstance(effect, effects.AppendAsLeader):
                self.traffic.appended(effect.partition.topic, len(effect.records), answer[0].records)
            elif isinstance(effect, effects.AppendAsFollower):
                self.traffic.replicated(effect.partition.topic, len(effect.records))
            return answer
        if isinstance(effect, effects.Reply):
            self._answer(effect)
        elif isinstance(effect, effects.ConfigureBroker):
            self._configure(effect.configs)
        elif isinstance(effect, effects.LeaderAndIsrApplied):
            self._carry_out(self.cores.applied(effect))
        elif isinstance(effect, effects.Send):
            self.fetch_client.send(effect)
        elif isinstance(effect, effects.SendAddPartitions):
            self.add_partitions.send(effect)
        elif isinstance(effect, effects.SubmitMulti):
            self.store.submit_multi(effect.operations, partial(self._store_replied, effect.tag))
        elif isinstance(effect, effects.SubmitRead):
            self.store.submit_read(effect.paths, partial(self._store_replied, effect.tag))
        else:
            self._note(effect)
        return None

    def _configure(self, configs: m.BrokerConfigs) -> None:
        """Apply other dynamic configs; the core has each log configured after this."""
        self.dynamic.take(configs)
        settings = self.dynamic.current
        self.hosted.config = log_config_of(settings)
        self.logs.cleaner.configure(cleaner_settings_of(settings))
        self.server.limits = limits_of(settings, self._files)

    def _apply_groups(self, effect: effects.Effect) -> Any:
        """Carry out an effect of the group coordinator; returns its answer."""
        return self._apply_coordinator(effect, self.group_logs)

    def _apply_transactions(self, effect: effects.Effect) -> Any:
        """Carry out an effect of the coordinator of transactions; returns its answer."""
        if isinstance(effect, effects.SendMarkers):
            self.markers.send(effect)
            return None
        return self._apply_coordinator(effect, self.transaction_logs)

    def _apply_coordinator(self, effect: effects.Effect, logs: CoordinatorLogs) -> Any:
        if isinstance(effect, effects.Reply):
            self._answer(effect)
        elif isinstance(effect, effects.StateChange):
            self._note(effect)
        else:
            return logs.execute(effect)
        return None

    def _store_replied(self, tag: Hashable, results: Iterable[Any] | None, error: CoordinationError | None) -> None:
        change = self._isr_change(tag)
        self.replicas.put(events.StoreReplied(tag, tuple(results or ()), error))
        if change is not None:
            partition, before = change
            self.event_counters.isr_changed(before, partition.isr, error is not None)

    def _isr_change(self, tag: Hashable) -> tuple[Partition, tuple[int, ...]] | None:
        """The partition, led here, whose ISR change has this tag, and its ISR before."""
        key = tag[1] if isinstance(tag, tuple) and tag[0] == "isr" else None
        partition = self.manager.partitions.get(key) if isinstance(key, TopicPartition) else None
        return None if partition is None else (partition, partition.isr)

    async def _apply_awaited(self, runner: Any, effect: effects.Effect) -> Any:
        """Carry out an effect of a core that waits for the store; returns its answer."""
        on_watch: Callable[[Any], None] = runner.on_watch
        if isinstance(effect, effects.Multi):
            return await self.store.multi(effect.operations)
        if isinstance(effect, effects.GetNodes):
            return await self.store.get_nodes(effect.paths, on_watch if effect.watch else None)
        if isinstance(effect, effects.GetChildren):
            return await self.store.get_children(effect.path, on_watch if effect.watch else None)
        if isinstance(effect, effects.SendControl):
            self.sender.send(effect)
            await asyncio.sleep(0)  # it is sent while the controller prepares the requests to other brokers
        elif isinstance(effect, effects.DrainControlChannels):
            await self.sender.until_idle(effect.max_ms / 1000, effect.rest_ms / 1000)
        elif isinstance(effect, effects.ConnectPeer):
            self.peers.connect(effect.broker)
        elif isinstance(effect, effects.DisconnectPeer):
            self.peers.disconnect(effect.broker)
        elif isinstance(effect, effects.Reply):
            self._answer(effect)
        else:
            self._note(effect)
        return None

    def metadata_changed(self) -> None:
        """A control request was applied: the registered brokers may have changed."""
        self.metadata_waits.recently_failed.metadata_changed(self._now_ms())
        self._carry_out(self.cores.stepped(self.manager))

    def _note(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.StateChange):
            log_state_change(effect.level, effect.text)
        elif isinstance(effect, effects.UncleanElection):
            self.event_counters.unclean_elections += 1
            text = (
                f"{effect.partition}: UNCLEAN ELECTION of {effect.leader} in epoch {effect.leader_epoch}: data is lost"
            )
            log_state_change("error", text)
            _log.error("%s", text)
        else:
            raise InvariantError(f"a broker cannot carry out {type(effect).__name__}")

    def _answer(self, effect: effects.Reply) -> None:
        context, response = effect.reply_to, effect.response
        if not isinstance(context, RequestContext | LocalRequest):
            raise InvariantError(f"{type(response).__name__} has no request to reply to: {context!r}")
        if isinstance(response, m.FetchResponse):
            self.traffic.fetched(response, isinstance(context, RequestContext) and context.follower)
        elif isinstance(response, m.ProduceResponse):
            self.traffic.produced(response)
        context.reply(response)

    # Addresses of brokers

    def known_address(self, broker_id: int) -> Address | None:
        """A broker's internal endpoint by this broker's metadata, None if it is not in them."""
        known = self.manager.metadata.brokers.get(broker_id)
        return None if known is None else known.internal

    async def address_of(self, broker_id: int) -> Address | None:
        """A broker's internal endpoint by this broker's metadata, or else by its registration in the store; None if it
        is in neither. Raises CoordinationError."""
        known = self.known_address(broker_id)
        if known is not None:
            return known
        path = nodes.broker(broker_id)
        (node,) = await self.store.get_nodes((path,))
        if node is None:
            return None
        return nodes.decode_broker(path, node, -1).internal

    def _controlled_address(self, broker_id: int) -> Address | None:
        """A broker's internal endpoint as the controller knows it."""
        known = self.controller.context.brokers.get(broker_id)
        return None if known is None else known.internal

    # Periodic work

    async def _checkpoint(self) -> None:
        while True:
            await asyncio.sleep(self.settings.checkpoint_interval_ms / 1000)  # ended by cancelling the task
            await self.logs.write_checkpoints()

    async def _await_disk_space(self) -> None:
        """Once all log directories that were full have space again, stop for a restart: it recovers their logs and
        registers the broker again, after which the controller counts on their replicas."""
        while not self.restarts:
            await asyncio.sleep(DISK_SPACE_CHECK_S)  # ended by cancelling the task
            full = [*self._full, *(directory.path for directory in self.hosted.directories if directory.is_full)]
            if not full:
                continue
            if await self._loop.run_in_executor(None, all_have_space, full) and not self._stop.is_set():
                names = ", ".join(map(str, full))
                _log.warning("%s: disk space is available again; the broker restarts to recover the logs there", names)
                self.stop()
                self.restarts = True

    async def _retain(self) -> None:
        """Have the core enforce retention in every partition that has a limit, one event loop iteration for each."""
        while True:
            self.hosted.strays.remove_expired()
            await asyncio.sleep(self.settings.retention_check_interval_ms / 1000)  # ended by cancelling the task
            for partition in self.logs.partitions_with_retention():
                self.replicas.put(events.RetentionDue(partition))
                await asyncio.sleep(0)

    async def _expire_producers(self) -> None:
        while True:
            await asyncio.sleep(self.settings.producer_check_interval_ms / 1000)  # ended by cancelling the task
            await self.logs.expire_producers()

    # Stop

    async def _controlled_shutdown(self) -> None:
        """Have the controller move this broker's leaders, for at most controlled.shutdown.max.wait.ms."""
        _log.info("broker %d stops: controlled shutdown", self.id)
        self._carry_out(self.cores.stop())
        await self._may_exit.wait()

    def _apply_shutdown(self, effect: effects.Effect) -> None:
        if isinstance(effect, effects.SubmitRead):
            self.store.submit_read(effect.paths, partial(self._shutdown_read, effect.tag))
        elif isinstance(effect, effects.SendShutdown):
            self._shutdown_request = self._loop.create_task(self._send_shutdown(effect), name="kreplog-shutdown")
            self._shutdown_request.add_done_callback(self._task_ended)
        elif isinstance(effect, effects.Exit):
            self._may_exit.set()
        else:
            self._note(effect)

    def _shutdown_read(self, tag: Hashable, results: Iterable[Any] | None, error: CoordinationError | None) -> None:
        self.stopper.put(events.StoreReplied(tag, tuple(results or ()), error))

    async def _send_shutdown(self, effect: effects.SendShutdown) -> None:
        response: Any = None
        peer = Peer(self.settings.socket_request_max_bytes, connect=self.dialer.connect)
        try:
            address = await self.address_of(effect.controller)
            if address is None:
                raise ConnectionError(f"the controller, broker {effect.controller}, is not registered")
            header = control_header(effect.request, 1, self._client_id)
            frame = await peer.call(
                address, control_messages.encode_request(effect.request, header), SHUTDOWN_TIMEOUT_S
            )
            response = control_messages.decode_response(frame, header)
            if not isinstance(response, m.ControlledShutdownResponse):
                raise PeerProtocolError(f"the response to a ControlledShutdown is a {type(response).__name__}")
        except (OSError, TimeoutError, CoordinationError, PeerProtocolError) as error:
            _log.info("controlled shutdown: no response from the controller: %s", str(error) or type(error).__name__)
            response = None
        finally:
            peer.close()
        self.stopper.put(events.ControlledShutdownReplied(effect.attempt, response))

    async def _shut_down(self) -> None:
        await self.metrics.close()
        self.server.close()
        self.api.close()
        for runner in self._runner_of.values():
            runner.stop()
        if self._shutdown_request is not None:
            self._shutdown_request.cancel()
        self.sender.close()
        self.peers.close()
        self.fetch_client.close()
        await self.store.close()
        if self._failure is None:
            await self.logs.write_checkpoints()
        self.group_logs.close()
        self.transaction_logs.close()
        self.markers.close()
        self.add_partitions.close()
        clean = await self._loop.run_in_executor(None, partial(self.logs.close, mark=self._failure is None))
        self._pool.shutdown()
        _log.info("broker %d has stopped%s", self.id, "" if clean else ", not cleanly")


def log_config_of(settings: BrokerSettings) -> LogConfig:
    """The settings of every log. log.cleaner.dedupe.buffer.size is shared by the cleaner threads."""
    config = settings.log
    share = max(RANGES["dedupe_buffer_size"][0], config.dedupe_buffer_size // settings.cleaner_threads)
    return replace(config, dedupe_buffer_size=share)


def cleaner_settings_of(settings: BrokerSettings) -> CleanerSettings:
    return CleanerSettings(settings.cleaner_threads, settings.cleaner_backoff_ms, settings.cleaner_max_bytes_per_second)


def serve(
    settings: BrokerSettings, log_folder: Path | None = None, on_ready: Callable[[Broker], None] | None = None
) -> None:
    """Run a broker in this process until SIGTERM or SIGINT; restart it whenever a full disk has space again.

    Raises as Broker.run."""
    os.umask(0o077)  # for files that libraries create
    files = LogSettings(settings.log_format, settings.log_level, settings.log_file_max_bytes, settings.log_file_backups)
    set_up(settings.broker_id, log_folder, files)
    raise_limit()
    keep_freed_memory()
    tune_interpreter()

    async def run_once() -> bool:
        broker = Broker(settings)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, broker.stop)
        running = asyncio.create_task(broker.run())
        waiting = asyncio.create_task(broker.ready.wait())
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        if broker.ready.is_set() and on_ready is not None:
            on_ready(broker)
        await running
        return broker.restarts

    restarts = True
    while restarts:
        with asyncio.Runner(loop_factory=MeasuredEventLoop) as runner:
            restarts = runner.run(run_once())
