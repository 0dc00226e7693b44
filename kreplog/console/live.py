"""Watch and Viewer: what changes in a source is read once for all pages, and sent to each that looks at it.

A page has one websocket. It sends what it looks at,

    {"topic": name or null, "partitions": [numbers that are visible], "events": number of the first event it lacks,
     "run": the `run` that it received, "" for none}

and receives messages with any of `run` (in the first: a random id of the Watch, which numbers its events from 0),
`error` (why the source cannot be read, "" once it can), `overview`, `events` (oldest first, a burst in several),
`rows` (partitions of the topic that changed since they were sent: number, leader, epoch, replicas, ISR), `gone`
(numbers of those that are no more), `out_of_sync` (of the topic, as OutOfSync.brokers) and `replicas` (of the visible
partitions, with their offsets). One without any of these comes every ALIVE_S where nothing else does: the page calls
what it shows old where none comes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from aiohttp import WSMsgType, web

from kreplog.console.cluster_changes import differences
from kreplog.console.out_of_sync import OutOfSync
from kreplog.console.snapshot import ClusterSnapshot, PartitionRow
from kreplog.console.timeline import Timeline
from kreplog.errors import KreplogError

POLL_S = 0.4
"""The least time between two looks at the source; a failure is on the page within a second."""

SHARE = 0.5
"""The most of the time that looks at the source take: where one takes long, there are fewer."""

MAX_VISIBLE = 200
"""Partitions whose offsets a page may follow."""

PAGE_EVENTS = 2000
"""The newest events that a page without any receives; it fetches earlier ones where one looks for them."""

ALIVE_S = 1.0

MAX_MESSAGE_BYTES = 64 << 10
SEND_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 5.0

_log = logging.getLogger("kreplog")

Replicas = dict[int, list[dict[str, Any]]]
"""Of a topic, by partition."""


class Source(Protocol):
    """A cluster or a directory. views: names of the page's views that it has. Methods raise KreplogError or OSError
    where it cannot be read now."""

    @property
    def views(self) -> tuple[str, ...]: ...
    async def snapshot(self) -> ClusterSnapshot: ...
    async def replicas(self, topic: str, rows: Mapping[int, PartitionRow]) -> Replicas: ...
    async def read(self, name: str, parameters: Mapping[str, str]) -> dict[str, Any]: ...
    async def record_field(self, parameters: Mapping[str, str]) -> bytes | None: ...
    async def act(self, name: str, parameters: Mapping[str, str], confirmed: str | None) -> dict[str, Any]: ...
    async def close(self) -> None: ...


class Watch:
    """The last snapshot of a source, and the events so far. writable: pages may act. log_replays: they can replay what
    the brokers logged. error: why the snapshot is old, "" where it is not. run_id: a random name, as events of another
    watch have the same numbers."""

    def __init__(self, source: Source, writable: bool, log_replays: bool) -> None:
        self.source = source
        self.writable = writable
        self.log_replays = log_replays
        self.run_id = secrets.token_hex(8)
        self.timeline = Timeline()
        self._out_of_sync = OutOfSync()
        self.snapshot = ClusterSnapshot()
        self.overview: dict[str, Any] = {}
        self.error = ""
        self.version = 0
        self._changed = asyncio.Condition()
        self._replicas: dict[Hashable, tuple[float, asyncio.Task[Replicas]]] = {}

    async def run(self) -> None:
        """Look at the source until cancelled."""
        while True:
            began = time.monotonic()
            await self.look()
            seconds = time.monotonic() - began
            # Brokers report to nobody what changes: the console looks again, the less often the longer a look takes.
            await asyncio.sleep(max(POLL_S, seconds / SHARE - seconds))

    async def look(self) -> None:
        """Read the source, and note what has changed."""
        try:
            snapshot = await self.source.snapshot()
            error = ""
        except (KreplogError, OSError) as failure:
            snapshot, error = self.snapshot, str(failure)
        except Exception as failure:  # a page that says so is of more use than one that stands still
            _log.exception("the console cannot read its source")
            snapshot, error = self.snapshot, f"{type(failure).__name__}: {failure}"
        if error == self.error and snapshot == self.snapshot and self.version:
            return
        now_ms = time.time_ns() // 1_000_000
        if self.version and self.overview:
            self.timeline.add(now_ms, differences(self.snapshot, snapshot))
        if error != self.error:
            text = f"cannot be read: {error}" if error else "can be read again"
            self.timeline.add(now_ms, [{"kind": "unreachable" if error else "reachable", "text": text}])
        if not error:
            self._out_of_sync.update(now_ms, snapshot)
            self.overview = {
                "views": self.source.views,
                "writable": self.writable,
                "log_replays": self.log_replays,
                **snapshot.overview(),
                "out_of_sync": self._out_of_sync.brokers(),
            }
        self.snapshot, self.error = snapshot, error
        async with self._changed:
            self.version += 1
            self._changed.notify_all()

    async def replicas(self, topic: str, rows: Mapping[int, PartitionRow]) -> Replicas:
        """As of the source, which is read once for all who look at the same rows within POLL_S. Raises as it does."""
        now = time.monotonic()
        key = (topic, *rows.items())
        self._replicas = {
            known: each for known, each in self._replicas.items() if not each[1].done() or now - each[0] < POLL_S
        }
        if key not in self._replicas:
            task = asyncio.create_task(self.source.replicas(topic, rows))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
            self._replicas[key] = now, task
        return await asyncio.shield(self._replicas[key][1])  # one page that is closed ends it for no other

    async def close(self) -> None:
        """End the looks at replicas that are going on."""
        tasks = [task for _, task in self._replicas.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def out_of_sync(self, topic: str) -> list[dict[str, Any]]:
        """As OutOfSync.brokers."""
        return self._out_of_sync.brokers(topic)

    async def wait(self, version: int, timeout_s: float) -> None:
        """Until there is a newer version, or the time has passed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self.version > version)


class Viewer:
    """The view of one page, and what it has received."""

    def __init__(self, watch: Watch, socket: web.WebSocketResponse) -> None:
        self._watch = watch
        self._socket = socket
        self._version = -1
        self._run_sent = False
        self._sent = 0.0
        self._error: str | None = None
        self._overview: dict[str, Any] = {}
        self._event = 0
        self._topic: str | None = None
        self._visible: list[int] = []
        self._rows: dict[int, PartitionRow] = {}
        self._out_of_sync: list[dict[str, Any]] = []
        self._looks = asyncio.Event()

    def look_at(self, request: Any) -> None:
        """Raises ValueError for what is no request of a page."""
        match request:
            case {"topic": str() | None as topic, "partitions": [*numbers], "events": int(event), "run": str(run)}:
                if len(numbers) > MAX_VISIBLE or not all(type(number) is int for number in numbers):
                    raise ValueError("partitions")
            case _:
                raise ValueError("not what a page sends")
        if run != self._watch.run_id:
            event = max(0, self._watch.timeline.end - PAGE_EVENTS)
        if topic != self._topic:
            self._rows = {}
            self._out_of_sync = []
        self._topic, self._visible, self._event = topic, numbers, event
        self._version = -1
        self._looks.set()

    async def send_all(self) -> None:
        """Send what the page lacks, until cancelled or the page is gone."""
        await self._looks.wait()
        while True:
            await self._send(self._lacking())
            await self._send(await self._replicas())  # by itself: a broker that stalls holds back no event
            if self._event >= self._watch.timeline.end:
                await self._watch.wait(self._version, POLL_S)

    async def _send(self, message: dict[str, Any]) -> None:
        if message or time.monotonic() - self._sent >= ALIVE_S:
            self._sent = time.monotonic()
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await self._socket.send_str(json.dumps(message, separators=(",", ":")))

    def _lacking(self) -> dict[str, Any]:
        watch = self._watch
        message: dict[str, Any] = {}
        if not self._run_sent:
            self._run_sent = True
            message["run"] = watch.run_id
        if self._error != watch.error:
            message["error"] = self._error = watch.error
        if self._overview is not watch.overview:
            message["overview"] = self._overview = watch.overview
        if self._event < watch.timeline.end:
            message["events"] = events = watch.timeline.since(self._event)
            self._event = events[-1]["number"] + 1
        if self._version == watch.version:
            return message
        self._version = watch.version
        if self._topic is None:
            return message
        topic = watch.snapshot.topics.get(self._topic)
        rows = {} if topic is None else dict(topic.partitions)
        changed = [(number, *row) for number, row in rows.items() if self._rows.get(number) != row]
        gone = [number for number in self._rows if number not in rows]
        if changed or gone or not self._rows:
            message |= {"topic": self._topic, "rows": changed, "gone": gone, "exists": topic is not None}
        self._rows = rows
        if self._out_of_sync != (found := watch.out_of_sync(self._topic)):
            self._out_of_sync = found
            message |= {"topic": self._topic, "out_of_sync": found}
        return message

    async def _replicas(self) -> dict[str, Any]:
        topic = self._topic
        rows = {number: self._rows[number] for number in self._visible if number in self._rows}
        if topic is None or not rows or self._watch.error:
            return {}
        try:
            replicas = await self._watch.replicas(topic, rows)
        except (KreplogError, OSError):  # the watch meets it too, and reports it
            return {}
        return {"topic": topic, "replicas": replicas} if topic == self._topic else {}


async def serve_page(watch: Watch, request: web.Request) -> web.StreamResponse:
    """Serve the websocket of a page, until it is closed."""
    socket = web.WebSocketResponse(heartbeat=15.0, max_msg_size=MAX_MESSAGE_BYTES)
    await socket.prepare(request)
    viewer = Viewer(watch, socket)
    tasks = [asyncio.create_task(each) for each in (viewer.send_all(), _receive(viewer, socket))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for error in [task.exception() for task in done]:
            if error is not None and not isinstance(error, OSError):  # neither a page that is gone nor a slow one
                _log.error("what a page looks at cannot be sent", exc_info=error)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await socket.close()  # the page connects again
    return socket


async def _receive(viewer: Viewer, socket: web.WebSocketResponse) -> None:
    """Until the page is gone, or sends what pages do not."""
    async for message in socket:
        if message.type is not WSMsgType.TEXT:
            break
        try:
            viewer.look_at(json.loads(message.data))
        except (ValueError, RecursionError):
            await socket.close(code=1008, message=b"not a request of a page")
            break
