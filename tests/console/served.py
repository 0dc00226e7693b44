"""A console in a thread of this process, and what a browser would send to it."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kreplog.console import web_server
from kreplog.console.access import LOGIN, ConsoleAccess
from kreplog.console.live import Source
from kreplog.console.replays import Replays
from kreplog.console.snapshot import BrokerRow, ClusterSnapshot, PartitionRow, TopicSnapshot
from kreplog.errors import UsageError

WITHIN_S = 20.0


class FakeSource:
    """A cluster that is what the test sets. error: is raised in place of the next snapshots."""

    views = ("cluster", "records")

    def __init__(self) -> None:
        self.now = ClusterSnapshot(
            "id",
            0,
            {0: BrokerRow("a", 1, None), 1: BrokerRow("b", 2, None)},
            {"t": topic(PartitionRow(0, 3, (0, 1), (0, 1)))},
        )
        self.error: Exception | None = None
        self.read_names: list[tuple[str, dict[str, str]]] = []
        self.answers: dict[str, dict[str, Any]] = {}
        self.acts: list[tuple[str, dict[str, str], str | None]] = []
        self.closed = False

    async def snapshot(self) -> ClusterSnapshot:
        if self.error is not None:
            raise self.error
        return self.now

    async def replicas(self, topic: str, rows: Mapping[int, PartitionRow]) -> dict[int, list[dict[str, Any]]]:
        return {number: [{"broker": broker} for broker in row.replicas] for number, row in rows.items()}

    async def read(self, name: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        self.read_names.append((name, dict(parameters)))
        if name == "nothing":
            raise UsageError("there is nothing")
        return self.answers.get(name, {"name": name, "sizes": {}})

    async def record_field(self, parameters: Mapping[str, str]) -> bytes | None:
        return b"<script>alert(1)</script>"

    async def act(self, name: str, parameters: Mapping[str, str], confirmed: str | None) -> dict[str, Any]:
        self.acts.append((name, dict(parameters), confirmed))
        return {"done": name}

    async def close(self) -> None:
        self.closed = True


def topic(*rows: PartitionRow) -> TopicSnapshot:
    return TopicSnapshot(False, dict(enumerate(rows)))


@dataclass(slots=True)
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Console:
    """A console that runs. tokens: those announced, the last of which is good. cookie: of `log_in`."""

    port: int
    tokens: list[str] = field(default_factory=list)
    cookie: str = ""

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, path: str, method: str = "GET", body: bytes | None = None, **headers: str | None) -> Answer:
        """headers: with underscores for hyphens; None: not sent."""
        sent = {"Host": f"127.0.0.1:{self.port}", "Cookie": self.cookie or None}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WITHIN_S)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                if value is not None:
                    connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        finally:
            connection.close()

    def log_in(self) -> None:
        answer = self.request(f"{LOGIN}?token={self.tokens[-1]}")
        assert answer.status == 303, answer
        self.cookie = str(answer.headers["Set-Cookie"]).partition(";")[0]


@contextmanager
def serving(
    source: Source,
    *,
    port: int = 0,
    origin: str = "",
    bearer: str = "",
    allow_writes: bool = False,
    replays: Replays | None = None,
) -> Iterator[Console]:
    """A console of `source`. port: 0 for any free one."""
    with web_server.listen(port) as listening:
        console = Console(listening.getsockname()[1])
        ready, failures = threading.Event(), []
        loop = asyncio.new_event_loop()
        stop = asyncio.Event()

        async def run() -> None:
            access = ConsoleAccess(console.port, console.tokens.append, origin, bearer)
            app = web_server.application(source, access, replays or Replays(), allow_writes=allow_writes)
            async with web_server.serving(listening, app, access):
                ready.set()
                await stop.wait()

        def in_thread() -> None:
            try:
                loop.run_until_complete(run())
            except BaseException as error:
                failures.append(error)
            finally:
                ready.set()

        thread = threading.Thread(target=in_thread)
        thread.start()
        assert ready.wait(WITHIN_S)
        try:
            if not failures:
                yield console
        finally:
            loop.call_soon_threadsafe(stop.set)
            thread.join(WITHIN_S)
            loop.close()
        if failures:
            raise failures[0]
