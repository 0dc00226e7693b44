"""LocalCluster: several broker processes on one host, with all their files in one directory.

<dir>/cluster.json              {"brokers": [ids]}
<dir>/cluster.key               authenticates brokers to each other on internal TCP listeners
<dir>/tls/                      of a cluster with TLS: ca.pem, ca.key, broker-<id>.pem, client.pem, client.properties
<dir>/coordination/             the embedded coordination store
<dir>/broker-<id>/broker.toml   settings
<dir>/broker-<id>/data/         log directory
<dir>/broker-<id>/data.internal/   unix socket for other brokers
<dir>/broker-<id>/logs/         server.log, state-change.log, authorizer.log, administration.log, console.log
<dir>/broker-<id>/broker.pid    {"pid", "host", "port"}, locked while the process lives: port 0 until it listens
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import Self

from kreplog.client.broker_client import BrokerClient
from kreplog.client.security import PLAINTEXT, ClientSecurity
from kreplog.cluster import log_tail
from kreplog.cluster.deferred_signals import deferred_signals
from kreplog.cluster.files import (
    check_settings,
    create_cluster_key,
    free_ports,
    with_offsets_replicas,
    with_rack,
    write_broker,
    write_cluster,
)
from kreplog.cluster.pid_file import open_for_owner, read_pid_file
from kreplog.cluster.store_requests import controller_epoch, pending_removals, registered_brokers, request_removal
from kreplog.cluster.tls_files import client_properties, create_authority, create_certificates, with_tls
from kreplog.coord.base import Session
from kreplog.errors import (
    AuthenticationError,
    CoordinationError,
    KreplogError,
    PeerProtocolError,
    SessionExpiredError,
    UsageError,
)
from kreplog.managed_log import make_directory
from kreplog.server.listeners import endpoints
from kreplog.server.network.internal import Dialer, load_key
from kreplog.server.runtime.store import make_store
from kreplog.server.settings import BrokerSettings, load
from kreplog.types import Endpoint, address_text

POLL_S = 0.02
SESSION_MS = 10_000
REQUEST_TIMEOUT_S = 2.0
STOP_TIMEOUT_S = 20.0
"""How long brokers that a failed start had started may take to stop, before they are killed."""
LINES_SHOWN = 6
"""Lines of each log file of a broker that did not start, at most."""


class ClusterError(KreplogError):
    """A broker process did not start or stop; the message says which one. lines: the last of its log."""

    def __init__(self, message: str, lines: Sequence[str] = (), *, path: str | None = None) -> None:
        super().__init__(message, path=path)
        self.lines = tuple(lines)


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker of a local cluster and its process. pid, port: 0 for none. controller: it is the controller. registered:
    it is registered with the store.

    state: "serving", "starting" (or stopping: it is running and not registered), "suspended" by a signal, "stopped",
    or "unreadable", which its settings are. `kreplog cluster status` shows "degraded" for a serving broker with offline
    log directories. detail: what is wrong or what it waits for; "" for nothing.
    """

    id: int
    host: str
    port: int
    pid: int
    alive: bool
    registered: bool
    controller: bool
    state: str
    detail: str


class LocalCluster:
    """The cluster in `directory`. Raises UsageError if there is none."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory).absolute()
        path = self.directory / "cluster.json"
        try:
            self.brokers = tuple(int(broker_id) for broker_id in json.loads(path.read_text())["brokers"])
        except FileNotFoundError:
            raise UsageError(
                f"{self.directory} contains no cluster: create one with `kreplog cluster create {self.directory}`",
                path=str(self.directory),
            ) from None
        except PermissionError:
            raise UsageError(
                f"{path}: this user may not read it: run the command as the user who created the cluster; those "
                "with --bootstrap need the addresses of brokers alone",
                path=str(path),
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{path} is damaged: {error}", path=str(path)) from error

    @classmethod
    def create(
        cls,
        directory: str | os.PathLike[str],
        brokers: Sequence[int],
        first_port: int = 9092,
        settings: Sequence[str] = (),
        racks: Mapping[int, str] = MappingProxyType({}),
        *,
        tls: bool = False,
    ) -> Self:
        """Write a new cluster's directory; starts nothing.

        first_port: of the first broker, the others get those after it; 0 for any free ports. settings: "name = value"
        lines of TOML for every broker. racks: broker.rack of brokers, by id. tls: with listeners of SSL that require
        clients' certificates, and a private CA's certificates of the brokers and of a client; needs the extra `tls`.
        Raises UsageError for a directory that contains a cluster, repeated broker ids, and settings that a broker would
        refuse; nothing is written then.
        """
        root = Path(directory).absolute()
        if not brokers or len(set(brokers)) < len(brokers) or min(brokers) < 0:
            raise UsageError(f"brokers {list(brokers)}: give at least one id, each once, none negative")
        if (root / "cluster.json").exists():
            raise UsageError(f"{root} contains a cluster already: choose another directory", path=str(root))
        ports = free_ports(len(brokers)) if first_port == 0 else range(first_port, first_port + len(brokers))
        settings = with_offsets_replicas(settings, len(brokers))
        of_brokers = [with_rack(settings, racks.get(broker)) for broker in brokers]
        if tls:
            of_brokers = [with_tls(root, broker, lines) for broker, lines in zip(brokers, of_brokers, strict=True)]
        for broker, lines in zip(brokers, of_brokers, strict=True):
            check_settings(root, broker, lines)
        authority = create_authority() if tls else None
        for broker, port, lines in zip(brokers, ports, of_brokers, strict=True):
            write_broker(root, broker, port, lines)
        if authority is not None:
            create_certificates(root, authority, brokers)
        create_cluster_key(root)
        write_cluster(root, brokers)
        return cls(root)

    def client_security(self) -> ClientSecurity:
        """The security of this host's clients: by tls/client.properties, if the cluster has them. Raises UsageError."""
        path = client_properties(self.directory)
        return ClientSecurity.from_file(path) if path.exists() else PLAINTEXT

    def home(self, broker: int) -> Path:
        """The directory of a broker. Raises UsageError if it is not in this cluster."""
        if broker not in self.brokers:
            raise UsageError(f"there is no broker {broker} in {self.directory}: its brokers are {list(self.brokers)}")
        return self.directory / f"broker-{broker}"

    def settings(self, broker: int) -> BrokerSettings:
        """A broker's settings, from its file and the environment. Raises UsageError."""
        return load({}, self.home(broker) / "broker.toml")

    def bootstrap(self) -> str:
        """host:port of all brokers whose settings can be read, as bootstrap.servers takes it. Raises UsageError if none
        can."""
        settings = list(self._readable().values()) or [self.settings(self.brokers[0])]
        return ",".join(address_text(address.host, address.port) for address in map(_address, settings))

    def _readable(self) -> dict[int, BrokerSettings]:
        """The settings of the brokers whose settings can be read."""
        found = {}
        for broker in self.brokers:
            with suppress(UsageError):
                found[broker] = self.settings(broker)
        return found

    # Processes

    def start(self, brokers: Iterable[int] | None = None, timeout_s: float = 30.0) -> None:
        """Start the brokers that are not running, and wait until all of them serve: registered, and each with metadata
        of all others, so that a topic with a replica on each can be created through any of them.

        Raises UsageError for settings that a broker would refuse: none is started then; ClusterError for a broker that
        exits: those started with it are stopped again; ClusterError after `timeout_s`: they go on starting.
        """
        wanted = list(self.brokers if brokers is None else brokers)
        settings = self.settings(next(iter(wanted or self.brokers)))
        for broker in wanted:
            self.settings(broker)
        before = {broker: log_tail.marks(self.home(broker)) for broker in wanted}
        started: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for broker in wanted:
                if read_pid_file(self.home(broker))[0] == 0:
                    with deferred_signals():
                        started[broker] = self._spawn(broker)
            missing = self._wait_until_serving(wanted, started, before, settings, timeout_s)
        except BaseException:
            for process in started.values():
                process.terminate()
            for process in started.values():
                _await_end(process)
            raise
        if missing is not None:
            statuses = {status.id: status for status in self.status()}
            details = "; ".join(f"broker {broker}: {_progress(statuses[broker])}" for broker in missing)
            raise ClusterError(
                f"not all brokers serve after {timeout_s:g} s; they go on starting: `kreplog cluster status` shows "
                f"their progress, `kreplog cluster stop` stops them: {details}",
                log_tail.last_lines(self.home(missing[0]), before[missing[0]], LINES_SHOWN),
            )

    def _wait_until_serving(
        self,
        wanted: list[int],
        started: dict[int, subprocess.Popen[bytes]],
        before: dict[int, log_tail.Marks],
        settings: BrokerSettings,
        timeout_s: float,
    ) -> list[int] | None:
        """Wait until all are registered and each has metadata of all. Returns None then; at the deadline the brokers
        that lack either (all, if there is no controller).

        Raises ClusterError for a broker that exited.
        """
        deadline = time.monotonic() + timeout_s
        security, readable = self.client_security(), self._readable()
        clients = {
            broker: partial(_clients_of, self.home(broker), readable.get(broker), security) for broker in self.brokers
        }
        with closing(make_store(settings.coordination, settings.zookeeper)) as store, asyncio.Runner() as runner:
            session = store.connect(SESSION_MS)
            while True:
                for broker, process in started.items():
                    if process.poll() is not None:
                        raise self._ended(broker, process.returncode, before[broker], len(started) > 1)
                try:
                    controller, registered = registered_brokers(session)
                except SessionExpiredError:  # this process had no processor for that long
                    session = store.connect(SESSION_MS)
                    controller, registered = None, set()
                missing = [broker for broker in wanted if broker not in registered]
                if not missing and controller is not None:
                    missing = runner.run(self._without_metadata(wanted, controller, clients))
                    if not missing:
                        return None
                if time.monotonic() > deadline:
                    return missing or wanted
                time.sleep(POLL_S)  # the store does not report that a process has exited

    async def _without_metadata(
        self, brokers: list[int], controller: int, clients: Mapping[int, Callable[[], list[BrokerClient]]]
    ) -> list[int]:
        """The brokers, of `brokers` and the controller, that have not got metadata of all `brokers` from the current
        controller yet; without suspended processes. clients: make those of each broker."""
        required = {*brokers, controller} & {*self.brokers}
        running = [broker for broker in sorted(required) if not _is_suspended(read_pid_file(self.home(broker))[0])]
        known = await asyncio.gather(*(_live_brokers(clients[broker]()) for broker in running))
        return [broker for broker, live in zip(running, known, strict=True) if not live.issuperset(brokers)]

    def _ended(self, broker: int, status: int, before: log_tail.Marks, others: bool) -> ClusterError:
        home = self.home(broker)
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        message = log_tail.last_message(home, before) or "its log is empty"
        return ClusterError(
            f"broker {broker} {how} while it started: {message}; "
            + ("the brokers started with it are stopped again; " if others else "")
            + f"its logs are in {home / 'logs'}",
            log_tail.last_lines(home, before, LINES_SHOWN),
            path=str(home / "logs"),
        )

    def _spawn(self, broker: int) -> subprocess.Popen[bytes]:
        logs = self.home(broker) / "logs"
        make_directory(str(logs))
        command = [sys.executable, "-m", "kreplog", "broker", "start", "--id", str(broker), str(self.directory)]
        # The child imports kreplog from where this process did.
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        with open(logs / "console.log", "ab", opener=open_for_owner) as console:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )

    def stop(self, brokers: Iterable[int] | None = None, timeout_s: float = 30.0) -> None:
        """Stop brokers by a controlled shutdown, one after the other. Raises ClusterError for a broker that is still
        running after `timeout_s`."""
        for broker in self.brokers if brokers is None else brokers:
            pid, _, _ = read_pid_file(self.home(broker))
            if pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                self.wait_until_gone(broker, timeout_s)

    def wait_until_gone(self, broker: int, timeout_s: float = 30.0) -> None:
        """Wait until a broker's process has ended, for whatever reason. Raises ClusterError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while (pid := read_pid_file(self.home(broker))[0]) != 0:
            if time.monotonic() > deadline:
                reason = f": its process is suspended; {_resume_advice(pid)}" if _is_suspended(pid) else ""
                raise ClusterError(f"broker {broker} (pid {pid}) is still running after {timeout_s:g} s{reason}")
            time.sleep(POLL_S)  # it is not a child of this process

    # Topics

    def remove_partitions(self, topic: str, keep: int, timeout_s: float = 30.0) -> tuple[list[int], list[int]]:
        """Delete partitions `keep` and above of a topic, with their records.

        Returns their numbers, and those that are not deleted after `timeout_s`: they are once all brokers that have
        their replicas have run. Raises UsageError, InvalidPartitionsError, CoordinationError.
        """
        deadline = time.monotonic() + timeout_s
        with self.store_session() as session:
            numbers = request_removal(session, topic, keep)
            while True:
                pending = [number for number in pending_removals(session, topic) if number in numbers]
                if not pending or time.monotonic() > deadline:
                    return numbers, pending
                time.sleep(POLL_S)  # a watch would need a thread for an operation that takes milliseconds

    # The coordination store

    @contextmanager
    def store_session(self) -> Iterator[Session]:
        """A session with the coordination store, whether brokers run or not. Raises CoordinationError."""
        settings = self.settings(self.brokers[0])
        with closing(make_store(settings.coordination, settings.zookeeper)) as store:
            yield store.connect(SESSION_MS)

    def controller_epoch(self) -> int:
        """The epoch of the last controller that was elected. Raises CoordinationError, OSError."""
        with self.store_session() as session:
            return controller_epoch(session)

    # Status

    def status(self) -> list[BrokerStatus]:
        """The status of every broker, by id. None counts as registered while the store cannot be read."""
        readable = self._readable()
        controller, registered, store_error = self._read_store(readable)
        found = []
        for broker in sorted(self.brokers):
            pid, host, port = read_pid_file(self.home(broker))
            is_registered = broker in registered
            listens = bool(port)
            state = "serving" if pid and is_registered else "starting" if pid else "stopped"
            detail = self._pending(broker, listens, store_error) if state == "starting" else ""
            if pid and _is_suspended(pid):
                state, detail = "suspended", f"its process is suspended; {_resume_advice(pid)}"
            if broker in readable:
                if not listens:
                    listener = _address(readable[broker])
                    host, port = listener.host, listener.port
            else:
                state = "unreadable" if state == "stopped" else state
                detail = self._why_unreadable(broker)
            found.append(
                BrokerStatus(
                    broker,
                    host,
                    port,
                    pid,
                    pid != 0,
                    is_registered,
                    is_registered and controller == broker,
                    state,
                    detail,
                )
            )
        return found

    def _why_unreadable(self, broker: int) -> str:
        try:
            self.settings(broker)
        except UsageError as error:
            return str(error)
        return ""

    def _pending(self, broker: int, listens: bool, store_error: str) -> str:
        """The event that a running broker waits for before it is registered, as far as files and the store show."""
        if not listens:
            pending = "it recovers its logs and does not listen yet"
        elif store_error:
            pending = f"it waits for the coordination store, which cannot be read: {store_error}"
        else:
            pending = "it listens, but is not registered with the coordination store"
        message = log_tail.last_message(self.home(broker), {"console.log": sys.maxsize})
        return f"{pending}; the last line of its log: {message}" if message else pending

    def _read_store(self, readable: dict[int, BrokerSettings]) -> tuple[int | None, set[int], str]:
        """(controller, registered brokers, why the store could not be read or "")."""
        if not readable:
            return None, set(), "the settings of no broker can be read"
        settings = min(readable.values(), key=attrgetter("coordination"))
        kind, _, directory = settings.coordination.partition(":")
        if kind == "embedded" and not Path(directory).exists():
            return None, set(), f"{directory} does not exist"
        try:
            with closing(make_store(settings.coordination, settings.zookeeper)) as store:
                return *registered_brokers(store.connect(SESSION_MS)), ""
        except (CoordinationError, OSError) as error:
            return None, set(), str(error)


def _clients_of(home: Path, settings: BrokerSettings | None, security: ClientSecurity) -> list[BrokerClient]:
    """Clients of the broker in `home`, the first of which is tried first.

    By its internal listener, as its brokers: by this user at a unix socket, by the cluster's key at an address without
    TLS, and without a login. Else, or where it is not reached as another user or with other settings than the broker's,
    as clients do. settings: of the broker, if they can be read."""
    _, host, port = read_pid_file(home)
    clients = [BrokerClient((host, port), REQUEST_TIMEOUT_S, security)]
    if settings is not None:
        with suppress(UsageError):  # a key or certificate that only brokers can read
            connect = _internal_connect(settings)
            if connect is not None:
                clients.insert(0, BrokerClient((host, port), REQUEST_TIMEOUT_S, connect=connect))
    return clients


def _internal_connect(settings: BrokerSettings) -> Callable[[], Awaitable[socket.socket]] | None:
    """Connects to the internal listener; None where its port is any free one, or it has TLS, whose sockets the streams
    of asyncio do not take. Raises UsageError."""
    at = settings.internal_advertised or settings.internal
    if at.path:
        return partial(Dialer(None).connect, (at.path, 0))
    if not at.port or settings.key_file is None or settings.internal.security_protocol.encrypts:
        return None
    return partial(Dialer(load_key(settings.key_file)).connect, (at.host, at.port))


async def _live_brokers(clients: Sequence[BrokerClient]) -> set[int]:
    """The brokers in the metadata that a controller has sent to the broker of the clients; empty if none gets an
    answer."""
    for client in clients:
        try:
            return await client.live_brokers()
        except (OSError, TimeoutError, PeerProtocolError, AuthenticationError):
            continue
        finally:
            client.close()
    return set()


def _progress(status: BrokerStatus) -> str:
    """The progress of a broker that has not started yet."""
    return status.detail or (
        "it is registered, but no controller has sent it metadata of all brokers"
        if status.alive
        else "it is just starting"
    )


def _address(settings: BrokerSettings) -> Endpoint:
    """The address that clients of a broker's first listener use."""
    return endpoints(settings.listeners, settings.advertised)[0]


def _await_end(process: subprocess.Popen[bytes]) -> None:
    """Wait until a terminated process has ended; kill it after STOP_TIMEOUT_S."""
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _resume_advice(pid: int) -> str:
    return f"`kill -CONT {pid}` resumes it"


def _is_suspended(pid: int) -> bool:
    """Whether a signal has suspended a process; False on systems without /proc."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith(("T", "t"))
    except OSError:
        return False
