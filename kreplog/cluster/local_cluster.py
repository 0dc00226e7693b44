"""LocalCluster: several brokers on one host, each a process, with one directory for all that is theirs.

<dir>/cluster.json              {"brokers": [ids]}
<dir>/cluster.key               what its brokers prove to each other where their internal listeners are TCP
<dir>/coordination/             the embedded store
<dir>/broker-<id>/broker.toml   its settings
<dir>/broker-<id>/data/         its log directory
<dir>/broker-<id>/data.internal/   its unix socket for other brokers
<dir>/broker-<id>/logs/         server.log, state-change.log, console.log
<dir>/broker-<id>/broker.pid    {"pid", "host", "port"}, locked while the process lives: port 0 until it listens
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kreplog.client.broker_client import BrokerClient
from kreplog.cluster import log_tail as telling
from kreplog.cluster.files import check_settings, free_ports, make_key, write_broker, write_cluster
from kreplog.coord.base import Session
from kreplog.core import nodes
from kreplog.errors import CoordinationError, KreplogError, NoNodeError, PeerProtocolError, UsageError
from kreplog.managed_log import make_directory
from kreplog.server.runtime.store import make_store
from kreplog.server.settings import BrokerSettings, Listener, load
from kreplog.wire.versions import ApiKey

POLL_S = 0.02
SESSION_MS = 10_000
ANSWER_S = 2.0
"""How long a broker that is registered may take to say whom it knows, before it is asked again."""
STOP_S = 20.0
"""How long a broker that is to stop again may take for it."""
LINES_SHOWN = 6
"""Of each log of a broker that did not start."""

_LOCK_TRIES = 25


class ClusterError(KreplogError):
    """A broker process did not do what it was told; the message says which one, `lines` are the last of its log."""

    def __init__(self, message: str, lines: Sequence[str] = (), *, path: str | None = None) -> None:
        super().__init__(message, path=path)
        self.lines = tuple(lines)


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """pid, port: 0 where there is none. controller: whether it is. registered: whether the store knows it.

    state: "serving", "starting" (or stopping: it lives and is not registered), "suspended" by a signal, "stopped", or
    "unreadable": its settings are. `kreplog cluster status` says "degraded" for one that serves without all its log
    directories.
    detail: what is wrong with it or what it waits for, "" for nothing.
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
        for settings that a broker would not take; nothing is written then.
        """
        root = Path(directory).absolute()
        if not brokers or len(set(brokers)) < len(brokers) or min(brokers) < 0:
            raise UsageError(f"brokers {list(brokers)}: give at least one id, each once, none below 0")
        if (root / "cluster.json").exists():
            raise UsageError(f"{root} holds a cluster already: choose another directory", path=str(root))
        ports = free_ports(len(brokers)) if first_port == 0 else range(first_port, first_port + len(brokers))
        check_settings(root, brokers[0], settings)
        for broker, port in zip(brokers, ports, strict=True):
            write_broker(root, broker, port, settings)
        make_key(root)
        write_cluster(root, brokers)
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
        """host:port of all brokers whose settings can be read, as clients take it. Raises UsageError where none can."""
        found = [f"{one.host}:{one.port}" for one in map(_address, self._readable().values())]
        return ",".join(found) if found else str(_address(self.settings(self.brokers[0])))

    def _readable(self) -> dict[int, BrokerSettings]:
        """The settings of the brokers whose settings can be read."""
        found = {}
        for broker in self.brokers:
            with suppress(UsageError):
                found[broker] = self.settings(broker)
        return found

    # Processes

    def start(self, brokers: Iterable[int] | None = None, timeout_s: float = 30.0) -> None:
        """Start those that do not run, and wait until all of them serve: what a client asks any of them next, such as
        a topic with a replica on each, is not refused because the controller, or one of them, has not heard of another.

        Raises UsageError for settings that a broker would not take: nothing is started then; ClusterError for one that
        ends as it starts: what was started with it is stopped again; and when it takes longer: they go on starting.
        """
        wanted = list(self.brokers if brokers is None else brokers)
        coordination = next(self.settings(broker).coordination for broker in wanted or self.brokers)
        for broker in wanted:
            self.settings(broker)
        before = {broker: telling.marks(self.home(broker)) for broker in wanted}
        started: dict[int, subprocess.Popen[bytes]] = {}
        try:
            for broker in wanted:
                if read_pid_file(self.home(broker))[0] == 0:
                    started[broker] = self._spawn(broker)
            missing = self._wait_until_serving(wanted, started, before, coordination, timeout_s)
        except BaseException:
            for process in started.values():
                _end(process)
            raise
        if missing is not None:
            states = {one.id: one for one in self.status()}
            told = "; ".join(f"broker {broker}: {_how_far(states[broker])}" for broker in missing)
            raise ClusterError(
                f"not all brokers serve after {timeout_s:g} s; they go on starting, `kreplog cluster status` shows how "
                f"far they are, `kreplog cluster stop` ends them: {told}",
                telling.last_lines(self.home(missing[0]), before[missing[0]], LINES_SHOWN),
            )

    def _wait_until_serving(
        self,
        wanted: list[int],
        started: dict[int, subprocess.Popen[bytes]],
        before: dict[int, telling.Marks],
        coordination: str,
        timeout_s: float,
    ) -> list[int] | None:
        """None once all are registered and the controller has told each of all; when the time is over, those that lack
        one or the other (all, for want of a controller).

        Raises ClusterError for one that ended.
        """
        deadline = time.monotonic() + timeout_s
        with closing(make_store(coordination)) as store, asyncio.Runner() as runner:
            session = store.connect(SESSION_MS)
            while True:
                for broker, process in started.items():
                    if process.poll() is not None:
                        raise self._ended(broker, process.returncode, before[broker], len(started) > 1)
                controller, registered = _registered(session)
                missing = [broker for broker in wanted if broker not in registered]
                if not missing and controller is not None:
                    missing = runner.run(self._strangers(wanted, controller))
                    if not missing:
                        return None
                if time.monotonic() > deadline:
                    return missing or wanted
                time.sleep(POLL_S)  # a process that ends is no news of the store's

    async def _strangers(self, brokers: list[int], controller: int) -> list[int]:
        """Those of these brokers, and the controller, that have not heard of all of them, in this life, from whoever
        controls; one that a signal has suspended is not waited for."""
        asked = {*brokers, controller} & {*self.brokers}
        running = [one for one in sorted(asked) if not _is_suspended(read_pid_file(self.home(one))[0])]
        heard = await asyncio.gather(*(_heard_of(self.home(broker)) for broker in running))
        return [broker for broker, known in zip(running, heard, strict=True) if not known.issuperset(brokers)]

    def _ended(self, broker: int, status: int, before: telling.Marks, others: bool) -> ClusterError:
        home = self.home(broker)
        how = f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
        words = telling.last_words(home, before) or "it said nothing"
        return ClusterError(
            f"broker {broker} {how} as it started: {words}; "
            + ("the brokers started with it are stopped again; " if others else "")
            + f"its logs are in {home / 'logs'}",
            telling.last_lines(home, before, LINES_SHOWN),
            path=str(home / "logs"),
        )

    def _spawn(self, broker: int) -> subprocess.Popen[bytes]:
        logs = self.home(broker) / "logs"
        make_directory(str(logs))
        command = [sys.executable, "-m", "kreplog", "broker", "start", "--id", str(broker), str(self.directory)]
        # The same kreplog as this one, wherever it was found.
        path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        with open(logs / "console.log", "ab", opener=_open_for_owner) as console:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )

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
                why = f": its process is suspended; {_wake(pid)}" if _is_suspended(pid) else ""
                raise ClusterError(f"broker {broker} (pid {pid}) still runs after {timeout_s:g} s{why}")
            time.sleep(POLL_S)  # it is no child of this process

    def status(self) -> list[BrokerStatus]:
        """Every broker, by id. A store that cannot be asked knows of none."""
        readable = self._readable()
        controller, registered, trouble = self._ask_store(readable)
        found = []
        for broker in sorted(self.brokers):
            pid, host, port = read_pid_file(self.home(broker))
            here = broker in registered
            listens = bool(port)
            state = "serving" if pid and here else "starting" if pid else "stopped"
            detail = self._waits_for(broker, listens, trouble) if state == "starting" else ""
            if pid and _is_suspended(pid):
                state, detail = "suspended", f"its process is suspended; {_wake(pid)}"
            if broker in readable:
                if not listens:
                    listener = _address(readable[broker])
                    host, port = listener.host, listener.port
            else:
                state = "unreadable" if state == "stopped" else state
                detail = self._why_unreadable(broker)
            found.append(
                BrokerStatus(broker, host, port, pid, pid != 0, here, here and controller == broker, state, detail)
            )
        return found

    def _why_unreadable(self, broker: int) -> str:
        try:
            self.settings(broker)
        except UsageError as error:
            return str(error)
        return ""

    def _waits_for(self, broker: int, listens: bool, trouble: str) -> str:
        """What keeps a broker from being registered, as far as can be seen from outside."""
        if not listens:
            waits = "it recovers its logs and does not listen yet"
        elif trouble:
            waits = f"it waits for the coordination store, which cannot be asked: {trouble}"
        else:
            waits = "it listens, but is not registered with the coordination store"
        words = telling.last_words(self.home(broker), {"console.log": sys.maxsize})
        return f"{waits}; the last in its log: {words}" if words else waits

    def _ask_store(self, readable: dict[int, BrokerSettings]) -> tuple[int | None, set[int], str]:
        """Who controls, who is registered, and why the store could not be asked."""
        places = {settings.coordination for settings in readable.values()}
        if not places:
            return None, set(), "the settings of no broker can be read"
        place = min(places)
        kind, _, directory = place.partition(":")
        if kind == "embedded" and not Path(directory).exists():
            return None, set(), f"there is no {directory}"
        try:
            with closing(make_store(place)) as store:
                return *_registered(store.connect(SESSION_MS)), ""
        except (CoordinationError, OSError) as error:
            return None, set(), str(error)


def _registered(session: Session) -> tuple[int | None, set[int]]:
    """The controller, and all that are registered."""
    try:
        ids = {int(child) for child in session.children(nodes.BROKER_IDS)}
    except NoNodeError:
        return None, set()
    (node,) = session.get_many((nodes.CONTROLLER,))
    return None if node is None else nodes.decode_controller(node), ids


class PidFile:
    """Says that a broker's process lives, for as long as it does. Raises UsageError when one does already."""

    def __init__(self, home: Path) -> None:
        self._fd = _open_for_owner(str(home / "broker.pid"), os.O_RDWR | os.O_CREAT)
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


def _open_for_owner(path: str, flags: int) -> int:
    """Whatever the umask."""
    file = os.open(path, flags | os.O_CLOEXEC, 0o600)
    os.fchmod(file, 0o600)
    return file


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
            pass
        time.sleep(POLL_S)  # it is being written, which takes a moment
    raise ClusterError(f"{home / 'broker.pid'} is locked, but does not say by which process")


async def _heard_of(home: Path) -> set[int]:
    """The brokers that a controller has told the one at `home` of; none, too, when it does not answer."""
    _, host, port = read_pid_file(home)
    line = BrokerClient((host, port), ANSWER_S)
    try:
        answer = await line.request(ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False)
    except (OSError, TimeoutError, PeerProtocolError):
        return set()
    finally:
        line.close()
    return set() if answer.controller_id < 0 else {broker.broker_id for broker in answer.brokers}


def _how_far(status: BrokerStatus) -> str:
    """Of one that is waited for."""
    return status.detail or (
        "it is registered, but no controller has told it of all" if status.alive else "it has just begun"
    )


def _address(settings: BrokerSettings) -> Listener:
    """Where clients reach a broker."""
    return settings.advertised or next(listener for listener in settings.listeners if listener.host)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Cleanly, or by force when that takes too long."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wake(pid: int) -> str:
    return f"`kill -CONT {pid}` lets it go on"


def _is_suspended(pid: int) -> bool:
    """Whether a signal has stopped it; False where the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith(("T", "t"))
    except OSError:
        return False
