"""LocalCluster: several brokers on one host, each a process, with one directory for all that is theirs.

<dir>/cluster.json              {"brokers": [ids]}
<dir>/coordination/             the embedded store
<dir>/broker-<id>/broker.toml   its settings
<dir>/broker-<id>/data/         its log directory
<dir>/broker-<id>/logs/         server.log, state-change.log, console.log
<dir>/broker-<id>/broker.pid    {"pid", "host", "port"}, locked while the process lives: port 0 until it listens
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kreplog.coord.base import Session
from kreplog.core import nodes
from kreplog.errors import CoordinationError, KreplogError, NoNodeError, UsageError
from kreplog.server.settings import BrokerSettings, load
from kreplog.server.store import make_store

HOST = "127.0.0.1"
POLL_S = 0.02
SESSION_MS = 10_000
_LONGEST_SOCKET_PATH = 100
_LOCK_TRIES = 25


class ClusterError(KreplogError):
    """A broker process did not do what it was told; the message says which one and where its log is."""


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """pid, port: 0 where there is none. controller: whether it is. registered: whether the store knows it."""

    id: int
    host: str
    port: int
    pid: int
    alive: bool
    registered: bool
    controller: bool


class LocalCluster:
    """The cluster in `directory`. Raises UsageError when there is none."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory).absolute()
        path = self.directory / "cluster.json"
        try:
            self.brokers = tuple(int(one) for one in json.loads(path.read_text())["brokers"])
        except FileNotFoundError:
            raise UsageError(
                f"{self.directory} holds no cluster: make one with `kreplog cluster create {self.directory}`",
                path=str(self.directory),
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
    ) -> LocalCluster:
        """Write a new cluster's directory; starts nothing.

        first_port: the brokers get it and those after it; 0 for ports that are free now. settings: "name = value" lines
        of TOML for every broker. Raises UsageError for a directory that holds a cluster, for brokers given twice, and
        for settings that a broker would not take.
        """
        root = Path(directory).absolute()
        if not brokers or len(set(brokers)) < len(brokers) or min(brokers) < 0:
            raise UsageError(f"brokers {list(brokers)}: give at least one id, each once, none below 0")
        if (root / "cluster.json").exists():
            raise UsageError(f"{root} holds a cluster already: choose another directory", path=str(root))
        ports = _free_ports(len(brokers)) if first_port == 0 else range(first_port, first_port + len(brokers))
        for broker, port in zip(brokers, ports, strict=True):
            home = root / f"broker-{broker}"
            home.mkdir(parents=True, exist_ok=True)
            (home / "broker.toml").write_text(_toml(root, broker, port, settings), encoding="utf-8")
            load({}, home / "broker.toml", {})
        (root / "cluster.json").write_text(json.dumps({"brokers": list(brokers)}) + "\n")
        return cls(root)

    def home(self, broker: int) -> Path:
        """The directory of one broker. Raises UsageError for one that is not of this cluster."""
        if broker not in self.brokers:
            raise UsageError(f"broker {broker} is none of {list(self.brokers)} in {self.directory}")
        return self.directory / f"broker-{broker}"

    def settings(self, broker: int) -> BrokerSettings:
        """As in its file, and in the environment. Raises UsageError."""
        return load({}, self.home(broker) / "broker.toml")

    def bootstrap(self) -> str:
        """host:port of all brokers, as clients take it."""
        listeners = [next(one for one in self.settings(broker).listeners if one.host) for broker in self.brokers]
        return ",".join(f"{one.host}:{one.port}" for one in listeners)

    # Processes

    def start(self, brokers: Iterable[int] | None = None, timeout_s: float = 30.0) -> None:
        """Start those that do not run, and wait until all of them are registered. Raises ClusterError, UsageError."""
        wanted = list(self.brokers if brokers is None else brokers)
        started = {broker: self._spawn(broker) for broker in wanted if read_pid_file(self.home(broker))[0] == 0}
        deadline = time.monotonic() + timeout_s
        with closing(make_store(self.settings(self.brokers[0]).coordination)) as store:
            session = store.connect(SESSION_MS)
            while True:
                for broker, process in started.items():
                    if process.poll() is not None:
                        raise ClusterError(
                            f"broker {broker} ended with {process.returncode} as it started: {self._last_words(broker)}"
                        )
                controller, registered = _registered(session)
                missing = [broker for broker in wanted if broker not in registered]
                if not missing and controller is not None:
                    return
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"brokers {missing} have not registered within {timeout_s:g} s; see {self.home(wanted[0])}/logs"
                    )
                time.sleep(POLL_S)

    def _spawn(self, broker: int) -> subprocess.Popen[bytes]:
        logs = self.home(broker) / "logs"
        logs.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "kreplog", "broker", "start", "--id", str(broker), str(self.directory)]
        # The same kreplog as this one, wherever it was found.
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        with open(logs / "console.log", "ab") as console:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )

    def _last_words(self, broker: int) -> str:
        """The last line that it wrote."""
        for name in ("console.log", "server.log"):
            with suppress(OSError):
                lines = (self.home(broker) / "logs" / name).read_text(errors="replace").splitlines()
                if lines:
                    return lines[-1]
        return f"see {self.home(broker)}/logs"

    def stop(self, brokers: Iterable[int] | None = None, timeout_s: float = 30.0) -> None:
        """Have them stop cleanly, one after the other. Raises ClusterError for one that does not."""
        for broker in self.brokers if brokers is None else brokers:
            pid, _, _ = read_pid_file(self.home(broker))
            if pid:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                self.wait_until_gone(broker, timeout_s)

    def wait_until_gone(self, broker: int, timeout_s: float = 30.0) -> None:
        """Until its process has ended, however it does. Raises ClusterError."""
        deadline = time.monotonic() + timeout_s
        while (pid := read_pid_file(self.home(broker))[0]) != 0:
            if time.monotonic() > deadline:
                raise ClusterError(f"broker {broker} (pid {pid}) still runs after {timeout_s:g} s")
            time.sleep(POLL_S)

    def status(self) -> list[BrokerStatus]:
        """Every broker, by id. A store that cannot be asked knows of none."""
        controller, registered = self._ask_store()
        found = []
        for broker in sorted(self.brokers):
            pid, host, port = read_pid_file(self.home(broker))
            alive = pid != 0
            if not port:
                listener = next(one for one in self.settings(broker).listeners if one.host)
                host, port = listener.host, listener.port
            here = broker in registered
            found.append(BrokerStatus(broker, host, port, pid, alive, here, here and controller == broker))
        return found

    def _ask_store(self) -> tuple[int | None, set[int]]:
        """Who controls, and who is registered."""
        if not (self.directory / "coordination").exists():
            return None, set()
        try:
            with closing(make_store(self.settings(self.brokers[0]).coordination)) as store:
                return _registered(store.connect(SESSION_MS))
        except CoordinationError:
            return None, set()


def _registered(session: Session) -> tuple[int | None, set[int]]:
    """The controller, and all that are registered."""
    try:
        ids = {int(one) for one in session.children(nodes.BROKER_IDS)}
    except NoNodeError:
        return None, set()
    (node,) = session.get_many((nodes.CONTROLLER,))
    return None if node is None else int(json.loads(node.data)["broker_id"]), ids


class PidFile:
    """Says that a broker's process lives, for as long as it does. Raises UsageError when one does already."""

    def __init__(self, home: Path) -> None:
        self._fd = os.open(home / "broker.pid", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(POLL_S)  # whoever only looks holds it for a moment
            else:
                self.write("", 0)
                return
        os.close(self._fd)
        raise UsageError(f"the broker of {home} runs already, as process {read_pid_file(home)[0]}")

    def write(self, host: str, port: int) -> None:
        """Where it listens now."""
        text = json.dumps({"pid": os.getpid(), "host": host, "port": port}) + "\n"
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text.encode(), 0)

    def close(self) -> None:
        """As the end of the process does."""
        os.close(self._fd)


def read_pid_file(home: Path) -> tuple[int, str, int]:
    """(pid, host, port) of the broker's process; pid 0: none lives; port 0: it does not listen yet.

    Raises ClusterError when one lives that has not written who it is.
    """
    for _ in range(_LOCK_TRIES):
        try:
            with open(home / "broker.pid", "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    content: dict[str, Any] = json.loads(file.read())
                    pid = int(content["pid"])
                    if pid > 1:
                        return pid, str(content["host"]), int(content["port"])
                else:
                    return 0, "", 0
        except FileNotFoundError:
            return 0, "", 0
        except (ValueError, KeyError, TypeError):
            pass  # it is being written
        time.sleep(POLL_S)
    raise ClusterError(f"{home / 'broker.pid'} is locked, but does not say by which process")


def _toml(root: Path, broker: int, port: int, settings: Sequence[str]) -> str:
    home = root / f"broker-{broker}"
    listeners = [f"{HOST}:{port}"]
    if len(str(home / "broker.sock")) < _LONGEST_SOCKET_PATH:
        listeners.append(f"unix:{home}/broker.sock")
    lines = [
        f'"broker.id" = {broker}',
        f'"listeners" = {json.dumps(listeners)}',
        f'"log.dirs" = {json.dumps([str(home / "data")])}',
        f'"coordination" = {json.dumps(f"embedded:{root}/coordination")}',
    ]
    return "\n".join([*lines, *settings, ""])


def _free_ports(count: int) -> list[int]:
    """Free at this moment; what else is started on the host may still take one."""
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
