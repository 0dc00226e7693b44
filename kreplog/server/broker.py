"""Broker: one broker process: how its parts are made, and how it starts and stops.

The thread of the event loop owns the cores and all state that they change; other threads do only what blocks. A start
locks the log directories, recovers the logs, listens, and registers. A stop is a controlled shutdown: the broker moves
its leaders, closes its connections, ends its session, closes the logs and writes the clean shutdown marks.
The effects of the cores are carried out in kreplog.server.runtime.effect_executor.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kreplog.core import features
from kreplog.core.broker.metadata_waits import MetadataWaits
from kreplog.core.memory import MemoryAccount
from kreplog.errors import RegistrationRefusedError, UsageError
from kreplog.server.authorization.acl_cache import AclCache
from kreplog.server.clock import loop_ms
from kreplog.server.dynamic_settings import DynamicSettings
from kreplog.server.handlers.api import Api, Host
from kreplog.server.handlers.topics import TopicViews
from kreplog.server.listeners import Listener, endpoints
from kreplog.server.monitoring.counters import EventCounters, Traffic
from kreplog.server.monitoring.exporter import Exporter
from kreplog.server.monitoring.health import readiness
from kreplog.server.monitoring.logs import LogSettings, set_up
from kreplog.server.monitoring.metrics import CONTENT_TYPE, render
from kreplog.server.network.internal import Address, Dialer, load_key, make_private_directory
from kreplog.server.network.serving import Server
from kreplog.server.network.tls_listeners import TlsListeners
from kreplog.server.replication.addresses import BrokerAddresses
from kreplog.server.replication.senders import make_senders
from kreplog.server.runtime.core_runners import CoreRunners, make_cores
from kreplog.server.runtime.effect_executor import EffectExecutor
from kreplog.server.runtime.feature_cache import FeatureCache
from kreplog.server.runtime.group_config_cache import GroupConfigCache
from kreplog.server.runtime.pauses import MeasuredEventLoop
from kreplog.server.runtime.periodic import (
    enforce_retention,
    expire_producers,
    until_disk_space,
    write_checkpoints,
)
from kreplog.server.runtime.quota_cache import QuotaCache
from kreplog.server.runtime.starting import (
    RecoveryProgress,
    authorizer_of,
    cleaner_settings_of,
    freeze_heap,
    keep_freed_memory,
    limits_of,
    log_config_of,
    max_replicas_of,
    open_directories,
    quota_manager_of,
    tune_interpreter,
)
from kreplog.server.runtime.store import StoreLink, make_store
from kreplog.server.runtime.watchdog import Watchdog
from kreplog.server.security.credential_cache import CredentialCache
from kreplog.server.settings import BrokerSettings
from kreplog.server.storage import log_loader
from kreplog.server.storage.background import BackgroundTasks
from kreplog.server.storage.coordinator_logs import CoordinatorLogs
from kreplog.server.storage.directories import DataDirectory
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.server.storage.log_manager import LogManager
from kreplog.server.storage.open_files import OpenFiles, raise_limit
from kreplog.types import BrokerRegistration, Endpoint, named_endpoints
from kreplog.wire import transaction_records

_log = logging.getLogger("kreplog.server")


class Broker:
    """A broker from one start to the next stop. `run` it once; `stop` may be called from the event loop at any time.

    ready: set once it listens. endpoints: of its listeners for clients. address: of the first of them. metrics: their
    HTTP endpoint, once it is ready. restarts: `run` has returned for the process to start the broker again, since a
    full disk has space.
    """

    def __init__(self, settings: BrokerSettings) -> None:
        self.settings = settings
        self.dynamic = DynamicSettings(settings)
        self.id = settings.broker_id
        self.ready = asyncio.Event()
        self.address: Address = ("", 0)
        self.endpoints: tuple[Endpoint, ...] = ()
        self.memory = MemoryAccount(settings.max_memory)
        self._stop = asyncio.Event()
        self._may_exit = asyncio.Event()
        self._failure: BaseException | None = None
        self.restarts = False
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(8, "kreplog-files")
        self.started_at = time.time()
        self.traffic = Traffic()
        self.event_counters = EventCounters()
        self.metrics = Exporter(partial(render, self), CONTENT_TYPE, partial(readiness, self))

    async def run(self) -> None:
        """Start, serve until `stop` or a failure, and shut down. Raises the error that prevented the start, or that
        stopped the broker."""
        await self._start()
        watchdog = Watchdog(self.settings.session_timeout_ms / 1000, self.store.abandon)
        self.ready.set()
        settings, logs = self.settings, self.logs
        work = {
            "store": self.store.run(),
            "credentials": self.user_credentials.run(),
            "quotas": self.quota_cache.run(),
            "group-configs": self.group_config_cache.run(),
            "features": self.feature_cache.run(),
            "checkpoints": write_checkpoints(logs, settings.checkpoint_interval_ms),
            "retention": enforce_retention(logs, self.runners.replicas.put, settings.retention_check_interval_ms),
            "producers": expire_producers(logs, settings.producer_check_interval_ms),
            "disk-space": self._restart_with_disk_space(),
            "certificates": self.tls.run(),
        }
        if self.acl_cache is not None:
            work["acls"] = self.acl_cache.run()
        if settings.cleaner_enable:
            work["cleaner"] = logs.cleaner.run()
        tasks = [self._loop.create_task(each, name=f"kreplog-{name}") for name, each in work.items()]
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
        self.tls = TlsListeners(settings)
        files = OpenFiles.of_process()
        files.limit_log_files()
        directories, self._full = open_directories(settings)
        self.hosted = await self._load_logs(directories, files)
        self.server = Server(limits_of(settings, files), self.memory)
        clients, internal = self._listen(key)
        self._create_cores(internal)
        self._connect_cores(Dialer(key, self.tls.dialing), files)
        if settings.metrics_listener is not None:
            with self._named("metrics.listener", settings.metrics_listener):
                await self.metrics.start(settings.metrics_listener)
            _log.info("metrics are served at http://%s/metrics", self.metrics.address)
        addresses = ", ".join(map(str, clients))
        _log.info("broker %d listens on %s, and for other brokers on %s", self.id, addresses, internal)

    async def _load_logs(self, directories: Sequence[DataDirectory], files: OpenFiles) -> HostedReplicas:
        settings = self.settings
        hosted = HostedReplicas(
            directories,
            log_config_of(settings),
            BackgroundTasks(self._pool, self._core_failed),
            complete=len(directories) == len(settings.log_dirs),
            stray_retention_ms=settings.stray_retention_ms,
            files=files,
            memory=self.memory,
        )
        load = partial(log_loader.load, hosted, settings.num_recovery_threads, RecoveryProgress())
        await self._loop.run_in_executor(None, load)
        freeze_heap()
        return hosted

    def _listen(self, key: bytes | None) -> tuple[list[Listener], Listener]:
        """Open all listeners; returns those for clients, and the one for other brokers."""
        settings = self.settings
        clients = []
        for listener in settings.listeners:
            with self._named("listeners", listener):
                own = settings.listener_values.get(listener.name, {})
                rate = own.get("max.connection.creation.rate")
                clients.append(self.server.listen(listener, self.tls.of(listener), rate))
        self.endpoints = endpoints(clients, settings.advertised)
        self.address = self.endpoints[0].host, self.endpoints[0].port
        with self._named("inter.broker.listener", settings.internal):
            if settings.internal.path:
                make_private_directory(Path(settings.internal.path).parent)
            at = settings.internal_advertised
            return clients, self.server.listen_internally(settings.internal, key, self.tls.internal, at)

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

    def _create_cores(self, internal: Listener) -> None:
        """The cores, the runners that take their events, and what is read of their state. internal: the listener for
        other brokers."""
        host, port = self.address
        registration = BrokerRegistration(
            self.id,
            -1,
            host,
            port,
            self.settings.rack,
            unclean=any(directory.start.may_have_lost for directory in self.hosted.directories),
            internal=(internal.path or internal.host, internal.port),
            directories=tuple(directory.id for directory in self.hosted.directories),
            endpoints=named_endpoints(self.endpoints),
            supported_versions=features.SUPPORTED,
        )
        self.cores = make_cores(self.settings, self.hosted, registration, self.memory)
        self.manager, self.controller = self.cores.replicas, self.cores.controller
        self.registration = self.cores.registration
        self.topics = TopicViews(self.manager)
        self.metadata_waits = MetadataWaits(self.id, self.manager.metadata)
        self.runners = CoreRunners(self.cores, self._core_failed)

    def _connect_cores(self, dialer: Dialer, files: OpenFiles) -> None:
        """Connect the cores to the store, the logs, clients and other brokers, and have them stepped."""
        settings, runners = self.settings, self.runners
        self.store = StoreLink(
            make_store(settings.coordination, settings.zookeeper),
            settings.session_timeout_ms,
            self._session_started,
            self._session_lost,
            self._task_ended,
        )
        authorizer = authorizer_of(settings)
        self.acl_cache = None if authorizer is None else AclCache(self.store, authorizer)
        self.user_credentials = CredentialCache(self.store)
        quotas = self.server.client_quotas = quota_manager_of(settings)
        self.quota_cache = QuotaCache(self.store, quotas, self.server.unmute_all)
        self.group_config_cache = GroupConfigCache(self.store, self.cores.groups.configs, settings.groups)
        self.feature_cache = FeatureCache(self.store)
        append, transactions = runners.replicas.put, runners.transactions.put
        self.logs = LogManager(self.hosted, append, self._pool, cleaner_settings_of(settings))
        self.logs.moves.rate = settings.alter_log_dirs_max_bytes_per_second
        self.group_logs = CoordinatorLogs(self.hosted, append, runners.groups.put)
        self.transaction_logs = CoordinatorLogs(
            self.hosted, append, transactions, transaction_records, "kreplog-transactions"
        )
        host = Host(
            settings=settings,
            dynamic=self.dynamic,
            address=self.address,
            endpoints=self.endpoints,
            manager=self.manager,
            transactions=self.cores.transactions,
            store=self.store,
            user_credentials=self.user_credentials,
            topics=self.topics,
            metadata_waits=self.metadata_waits,
            hosted=self.hosted,
            moves=self.logs.moves,
            max_replicas=max_replicas_of(settings, files),
            receive=runners.receive,
            after_steps=runners.replicas.call_after,
            authorizer=authorizer,
            acl_cache=self.acl_cache,
            quotas=quotas,
            quota_cache=self.quota_cache,
            group_configs=self.cores.groups.configs,
            group_config_cache=self.group_config_cache,
            feature_cache=self.feature_cache,
        )
        self.api = Api(host)
        self.senders = make_senders(
            settings,
            runners,
            self.cores.channels,
            BrokerAddresses(self.manager.metadata, self.controller, self.store),
            lambda: self.topics.names,
            dialer.connect,
            self.api.handle_local_control,
            self._connection_closed,
            self._task_ended,
        )
        self.server.serve(self.api.handle, self.api.sasl.connection)
        EffectExecutor(
            cores=self.cores,
            runners=runners,
            store=self.store,
            logs=self.logs,
            group_logs=self.group_logs,
            transaction_logs=self.transaction_logs,
            senders=self.senders,
            api=self.api,
            server=self.server,
            dynamic=self.dynamic,
            files=files,
            traffic=self.traffic,
            event_counters=self.event_counters,
            may_exit=self._may_exit,
        ).start()

    # Events

    def _session_started(self, session_id: int) -> None:
        if self.acl_cache is not None:
            self.acl_cache.session_started()
        self.user_credentials.session_started()
        self.quota_cache.session_started()
        self.group_config_cache.session_started()
        self.feature_cache.session_started()
        self.runners.session_started(session_id)

    def _session_lost(self) -> None:
        _log.warning("the session with the coordination store has ended: this broker leads nothing until the next one")
        self.event_counters.expired += 1
        self.runners.session_lost()

    def _connection_closed(self, broker_id: int) -> None:
        """Another broker has closed a connection of this one."""
        self.metadata_waits.recently_failed.connection_closed(broker_id, loop_ms())

    def _core_failed(self, name: str, error: BaseException) -> None:
        self._failure = error
        self._stop.set()
        self._may_exit.set()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._core_failed(task.get_name(), error)

    async def _restart_with_disk_space(self) -> None:
        """Once all log directories that were full have space again, stop for a restart: it recovers their logs and
        registers the broker again, after which the controller counts on their replicas."""
        full = await until_disk_space(self.hosted, self._full)
        if not self._stop.is_set():
            names = ", ".join(map(str, full))
            _log.warning("%s: disk space is available again; the broker restarts to recover the logs there", names)
            self.stop()
            self.restarts = True

    # Stop

    async def _controlled_shutdown(self) -> None:
        """Have the controller move this broker's leaders, for at most controlled.shutdown.max.wait.ms."""
        _log.info("broker %d stops: controlled shutdown", self.id)
        self.runners.begin_shutdown()
        await self._may_exit.wait()

    async def _shut_down(self) -> None:
        await self.metrics.close()
        self.server.close()
        self.api.close()
        self.runners.stop()
        self.logs.moves.stop()
        self.senders.close()
        await self.store.close()
        # A broker that may not register has done nothing wrong: another process takes its logs over as they are.
        intact = self._failure is None or isinstance(self._failure, RegistrationRefusedError)
        if intact:
            await self.logs.write_checkpoints()
        self.group_logs.close()
        self.transaction_logs.close()
        clean = await self._loop.run_in_executor(None, partial(self.logs.close, mark=intact))
        self._pool.shutdown()
        _log.info("broker %d has stopped%s", self.id, "" if clean else ", not cleanly")


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
