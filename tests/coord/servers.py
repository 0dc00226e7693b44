"""A real ZooKeeper server for the tests, and a proxy in front of it that can cut its clients off."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from kreplog.cluster.files import free_ports

JARS = Path("/usr/share/java")
MISSING = (
    "ZooKeeper's tests need java and Debian's package: apt-get install zookeeper"
    if shutil.which("java") is None or not (JARS / "zookeeper.jar").exists()
    else ""
)
"""Why there can be no server here; empty when there can."""

CONFIG = """\
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=20000
maxClientCnxns=0
4lw.commands.whitelist=srvr,envi,dump
"""

LOGGING = "log4j.rootLogger=WARN, E\nlog4j.appender.E=org.apache.log4j.ConsoleAppender\n"
LOGGING += "log4j.appender.E.target=System.err\nlog4j.appender.E.layout=org.apache.log4j.SimpleLayout\n"


def until(true: Callable[[], object], description: str, seconds: float = 30.0) -> float:
    """Wait until `true()` is true, and return how many seconds that took; fail after `seconds`."""
    start = time.monotonic()
    while not true():
        assert time.monotonic() < start + seconds, f"{description}: not within {seconds} s"
        time.sleep(0.002)
    return time.monotonic() - start


class ZooKeeperServer:
    """One server on a free port of the loopback interface, with its own data directory. config: more lines of it."""

    def __init__(self, directory: Path, *java_options: str, config: str = "") -> None:
        self.directory = directory
        (self.port,) = free_ports(1)
        self.java_options = java_options
        (directory / "zoo.cfg").write_text(CONFIG.format(data=directory / "data", port=self.port) + config)
        (directory / "log4j.properties").write_text(LOGGING)
        self.start()

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *self.java_options),
                    *("-cp", f"{self.directory}:{JARS}/zookeeper.jar:{JARS}/*"),
                    *("org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self.directory / "zoo.cfg")),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        until(self.serves, f"ZooKeeper's start, see {self.directory}/server.log", 60)

    def serves(self) -> bool:
        with suppress(OSError):
            return "Mode:" in self._answer(b"srvr")
        assert self.process.poll() is None, (self.directory / "server.log").read_text()
        return False

    def sessions(self) -> set[int]:
        """Those that have not ended."""
        expiries, _, _ = self._answer(b"dump").partition("ephemeral nodes dump")
        return {int(number, 16) for number in re.findall(r"0x([0-9a-f]+)", expiries)}

    def _answer(self, command: bytes) -> str:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.settimeout(1)
            connection.sendall(command)
            answer = b""
            while chunk := connection.recv(4096):
                answer += chunk
            return answer.decode()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class Proxy:
    """Forwards connections to `port`; while `held` it forwards nothing, and cut() also breaks those there are."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._flows = threading.Event()
        self._flows.set()
        self._refuses = False
        self._ignored = 0
        self._broken_text = b""
        self.to_break = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def hold(self) -> None:
        """Swallow nothing, forward nothing: as a network that drops every packet."""
        self._flows.clear()

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        self._refuses = True
        self._break()

    def drop(self, ignored: int) -> None:
        """Break all connections, and take the next `ignored` ones without ever answering on them."""
        self._ignored = ignored
        self._break()

    def break_at(self, text: bytes, times: int) -> None:
        """Break all connections, and then that many in place of sending `text`; to_break: those that are left."""
        self._broken_text, self.to_break = text, times
        self._break()

    def heal(self) -> None:
        self._refuses = False
        self._flows.set()

    def close(self) -> None:
        self._refuses = True
        self._flows.set()
        self._listener.close()
        self._break()

    def _break(self) -> None:
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._open.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._refuses:
                    client.close()
                    continue
                if self._ignored:
                    self._ignored -= 1
                    self._open.append(client)
                    continue
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open += client, server
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._flows.wait()
                if self.to_break and self._broken_text in data:
                    self.to_break -= 1
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
