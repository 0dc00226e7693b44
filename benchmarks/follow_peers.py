"""The contestants of `bench_follow`: ways for a message of one process to reach another that waits for it.

A channel is made before the receiving process is forked, `sender` is used in this one and `receiver` in the other; the
receiver opens after the sender did.
"""

from __future__ import annotations

import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path

from benchmarks.redis_server import RedisServer
from kreplog import Log

SIZE = 100
POLL_S = 0.001

Send = Callable[[bytes], object]


class Channel(ABC):
    """One way, in an empty directory of its own."""

    name: str

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()

    @staticmethod
    def missing() -> str:
        """Why it cannot take part here; empty if it can."""
        return ""

    @abstractmethod
    def sender(self) -> AbstractContextManager[Send]:
        """A function that sends one message, in this process."""

    @abstractmethod
    def receiver(self) -> Iterator[bytes | None]:
        """The messages, in the other process; waits for each."""


class Follow(Channel):
    name = "kreplog, follow"

    @contextmanager
    def sender(self) -> Iterator[Send]:
        with Log.open(self.directory / "t-0") as log:
            yield log.append

    def receiver(self) -> Iterator[bytes | None]:
        with Log.open(self.directory / "t-0", read_only=True) as log:
            for record in log.follow():
                yield record.value


class Pipe(Channel):
    """The limit: nothing is kept."""

    name = "pipe"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._ends = os.pipe()

    @contextmanager
    def sender(self) -> Iterator[Send]:
        reading, writing = self._ends
        os.close(reading)
        yield lambda data: os.write(writing, data)
        os.close(writing)

    def receiver(self) -> Iterator[bytes | None]:
        reading, writing = self._ends
        os.close(writing)
        while data := os.read(reading, SIZE):
            yield data


class ZeroMq(Channel):
    """Nothing is kept."""

    name = "ZeroMQ, ipc"

    @staticmethod
    def missing() -> str:
        if find_spec("zmq") is None:
            return "pyzmq is not installed: pip install -e '.[bench]'"
        return ""

    @contextmanager
    def sender(self) -> Iterator[Send]:
        import zmq

        with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
            socket.bind(f"ipc://{self.directory / 'socket'}")
            yield socket.send

    def receiver(self) -> Iterator[bytes | None]:
        import zmq

        with zmq.Context() as context, context.socket(zmq.PULL) as socket:
            socket.connect(f"ipc://{self.directory / 'socket'}")
            while True:
                yield socket.recv()


class Redis(Channel):
    """A stream over a Unix socket; nothing is written to the disk."""

    name = "Redis, XREAD BLOCK"

    @staticmethod
    def missing() -> str:
        return RedisServer.missing()

    @contextmanager
    def sender(self) -> Iterator[Send]:
        server = RedisServer(self.directory)
        try:
            with RedisServer.client(self.directory) as client:
                yield lambda data: client.xadd("stream", {"value": data})
        finally:
            server.close()

    def receiver(self) -> Iterator[bytes | None]:
        last = b"0"
        with RedisServer.client(self.directory) as client:
            while True:
                for _, entries in client.xread({"stream": last}, block=0):
                    for _, fields in entries:
                        yield fields[b"value"]
                    last = entries[-1][0]


class Sqlite(Channel):
    """A table in write-ahead mode, which the reader looks at every millisecond."""

    name = "SQLite, polled each ms"

    @contextmanager
    def sender(self) -> Iterator[Send]:
        connection = sqlite3.connect(self.directory / "queue.db", isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("CREATE TABLE messages (id INTEGER PRIMARY KEY, value BLOB)")
        yield lambda data: connection.execute("INSERT INTO messages (value) VALUES (?)", (data,))
        connection.close()

    def receiver(self) -> Iterator[bytes | None]:
        connection = sqlite3.connect(self.directory / "queue.db", isolation_level=None)
        last = 0
        while True:
            rows = connection.execute("SELECT id, value FROM messages WHERE id > ? ORDER BY id", (last,)).fetchall()
            for _, value in rows:
                yield value
            if rows:
                last = rows[-1][0]
            else:
                time.sleep(POLL_S)  # SQLite wakes no reader: polling is what is measured


CHANNELS: list[type[Channel]] = [Follow, Pipe, ZeroMq, Redis, Sqlite]
