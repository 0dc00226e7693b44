"""A follower's fetcher that catches up: its threads beside the event loop, against the event loop alone, in turns.

    python -m benchmarks.bench_fetcher [--repetitions N] [--quick] [--directory DIR] [--out FILE]

A process sends long fetch responses over a unix socket, as a leader does; the fetcher of a broker receives them,
requests the next and appends them to managed logs, by the broker's own code. Another process is a quiet client, which
has a frame echoed every millisecond. "Loop appends" is the same code without the thread that appends; "loop alone" has
no thread, since no response counts as long. The CPU time of an event loop's thread says how much of it is left for
others; on a loaded machine it varies less than any rate.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import shutil
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import typer
from rich.console import Console
from rich.table import Table

from kreplog import Log, LogConfig
from kreplog.core.effects import AppendAsFollower, Send, Steps
from kreplog.core.messages import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from kreplog.errors import ErrorCode
from kreplog.managed_log import ManagedLog
from kreplog.server.network import connections
from kreplog.server.network.connections import Connection
from kreplog.server.network.internal import Address
from kreplog.server.replication import fetch_client
from kreplog.server.replication.fetch_client import VERSION, ReplicaFetchClient
from kreplog.server.runtime.runners import InThread, SyncCoreRunner
from kreplog.server.runtime.starting import keep_freed_memory, tune_interpreter
from kreplog.server.storage.log_manager import is_for_thread
from kreplog.types import TopicPartition
from kreplog.wire import fetch
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
RECORD_BYTES = 1024
PROBE_S = 0.001
NEVER = 1 << 62
SHAPES = {"1 partition, 4 MiB": (1, 4 << 20), "10 partitions, 1 MiB each": (10, 1 << 20)}
MODES = {"threads": (64 << 10, True), "loop appends": (64 << 10, False), "loop alone": (NEVER, False)}
"""From how many bytes on a response is received by the fetcher's thread, and whether a thread appends it."""

TITLES = {
    "rate": "rate, against a copy of the same batches",
    "loop_cpu_ms": "CPU of the event loop's thread, ms/GiB",
    "cpu_ms": "CPU of the process, ms/GiB",
    "longest_ms": "longest iteration of the event loop, ms of CPU",
    "p99_ms": "a quiet client waits, p99, ms",
    "max_ms": "a quiet client waits, at most, ms",
}


class _CpuSelector(selectors.DefaultSelector):
    """Notes the CPU time between two calls of select(): of an iteration of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = 0.0
        self._began = time.thread_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.longest_s = max(self.longest_s, time.thread_time() - self._began)
        try:
            return super().select(timeout)
        finally:
            self._began = time.thread_time()


def _fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def _respond(sock: socket.socket, responses: Sequence[bytes]) -> None:
    """The leader's end: a response to each request."""
    sock.setblocking(True)
    for number, response in enumerate(responses, 1):
        missing = 4 + struct.unpack(">i", sock.recv(4, socket.MSG_PEEK | socket.MSG_WAITALL))[0]
        sock.recv(missing, socket.MSG_WAITALL)
        sock.sendmsg([response[:4], struct.pack(">i", number), memoryview(response)[8:]])


def _probe(sock: socket.socket, out: int) -> None:
    """The quiet client: its waits, as JSON, once the other end is closed."""
    sock.setblocking(True)
    waits = []
    with suppress(OSError):  # the end
        while True:
            sent = time.perf_counter()
            sock.sendall(b"\0\0\0\1x")
            if not sock.recv(5, socket.MSG_WAITALL):
                break
            waits.append(time.perf_counter() - sent)
            time.sleep(PROBE_S)  # it is a quiet client
    with os.fdopen(out, "w") as file:
        json.dump(waits, file)


class Source:
    """The batches of a leader's logs and the responses that have them."""

    def __init__(self, folder: Path, partitions: int, piece: int, total: int) -> None:
        self.pieces: list[bytes] = []
        values = [os.urandom(RECORD_BYTES) for _ in range(1000)]
        with Log.open(folder / "source-0") as log:
            while log.log_end_offset * RECORD_BYTES < total // partitions:
                log.append_many(values)
            at = 0
            while at < log.log_end_offset:
                fetched = log.fetch(at, max_bytes=piece, isolation="log_end")
                self.pieces.append(bytes(fetched.data))
                at = fetched.next_offset
        shutil.rmtree(folder / "source-0")
        self.partitions = partitions
        self.size = sum(map(len, self.pieces)) * partitions
        header = RequestHeader(ApiKey.FETCH, VERSION, 0, "bench")
        responses = map(self._response, self.pieces)
        self.responses = [b"".join(fetch.encode_response(each, header, lambda topic: TOPIC_ID)) for each in responses]

    def _response(self, data: bytes) -> FetchResponse:
        listed = tuple(
            FetchedPartition(TopicPartition("t", number), ErrorCode.NONE, 0, 0, records=data, topic_id=TOPIC_ID)
            for number in range(self.partitions)
        )
        return FetchResponse(ErrorCode.NONE, 1, listed)

    def logs(self, folder: Path) -> list[ManagedLog]:
        config = LogConfig(replicated=True)
        return [ManagedLog.open(folder / f"t-{number}", config) for number in range(self.partitions)]


def copy_s(source: Source, folder: Path) -> float:
    """Seconds of one thread that checks and appends all, without a leader: the ceiling."""
    logs = source.logs(folder)
    began = time.perf_counter()
    for data in source.pieces:
        for log in logs:
            log.append_as_follower(data)
    taken = time.perf_counter() - began
    for log in logs:
        log.close()
    return taken


class _Core:
    """Requests the next response, and then appends this one, as the replication core does."""

    def __init__(self, request: Callable[[], None], done: Callable[[], None], responses: int) -> None:
        self._request = request
        self._done = done
        self._left = responses

    def step(self, event: Any, now_ms: int) -> Steps[None]:
        self._left -= 1
        if self._left:
            self._request()  # as a pipelined fetch
        for fetched in event.response.partitions:
            yield AppendAsFollower(fetched.partition, fetched.records)
        if not self._left:
            self._done()

    def next_wakeup(self, now_ms: int) -> int | None:
        return None


def _failed(name: str, error: BaseException) -> None:
    raise error


async def _catch_up(
    source: Source,
    folder: Path,
    sock: socket.socket,
    quiet: socket.socket,
    selector: _CpuSelector,
    *,
    appends: bool,
) -> dict[str, float]:
    logs, done = source.logs(folder), asyncio.Event()
    correlation = 0
    pool = ThreadPoolExecutor(1)

    async def connect(address: Address) -> socket.socket:
        return sock

    async def resolve(broker: int) -> Address:
        return "", 0

    def request() -> None:
        nonlocal correlation
        correlation += 1
        listed = FetchPartition(TopicPartition("t", 0), TOPIC_ID, 1, correlation)
        client.send(
            Send(1, correlation, FetchRequest(2, 1, 500, 1, 1 << 20, (listed,), session_epoch=0), catches_up=True)
        )

    def apply(effect: Any) -> Any:
        log = logs[effect.partition.partition]
        if appends and is_for_thread(effect.records):
            future = pool.submit(log.append_as_follower, effect.records)
            return InThread(future, future.result)
        return log.append_as_follower(effect.records)

    runner = SyncCoreRunner("follower", _Core(request, done.set, len(source.responses)), _failed)
    runner.start(apply, lambda: None)
    client = ReplicaFetchClient(
        "bench",
        NEVER,
        lambda broker: ("", 0),
        resolve,
        lambda: {TOPIC_ID: "t"},
        runner.put,
        lambda broker: None,
        connect,
    )
    echo = Connection(quiet, 100, lambda frame: echo.send([b"\0\0\0\1", frame]), lambda: None)
    await asyncio.sleep(0.05)  # the quiet client is at work
    selector.longest_s = 0.0
    began, cpu_s, loop_s = time.perf_counter(), time.process_time(), time.thread_time()
    request()
    await done.wait()
    longest_s = selector.longest_s
    wall_s, loop_s, cpu_s = time.perf_counter() - began, time.thread_time() - loop_s, time.process_time() - cpu_s
    echo.close()
    client.close()
    pool.shutdown()
    for log in logs:
        log.close()
    gib = source.size / (1 << 30)
    return {
        "wall_s": wall_s,
        "loop_cpu_ms": loop_s / gib * 1e3,
        "cpu_ms": cpu_s / gib * 1e3,
        "longest_ms": longest_s * 1e3,
    }


def turn(source: Source, folder: Path, long: int, *, appends: bool) -> dict[str, float]:
    """One catching up. long: bytes from which on a response is long. appends: by a thread."""
    ours, theirs = socket.socketpair()
    quiet, client = socket.socketpair()
    reader, writer = os.pipe()

    def leader() -> None:
        quiet.close()
        _respond(theirs, source.responses)

    def probe() -> None:
        for each in (ours, theirs, quiet):
            each.close()
        _probe(client, writer)

    children = [_fork(leader), _fork(probe)]
    client.close()
    theirs.close()
    os.close(writer)
    selector = _CpuSelector()
    with (
        patch.object(connections, "THREAD_BYTES", long),
        patch.object(fetch_client, "THREAD_BYTES", long),
        asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner,
    ):
        found = runner.run(_catch_up(source, folder, ours, quiet, selector, appends=appends))
    with os.fdopen(reader) as file:
        waits = sorted(json.load(file))
    for child in children:
        os.waitpid(child, 0)
    found["p99_ms"] = waits[len(waits) * 99 // 100] * 1e3
    found["max_ms"] = waits[-1] * 1e3
    return found


def measure(source: Source, root: Path, repetition: int) -> dict[str, dict[str, float]]:
    """All modes, one after the other."""
    found: dict[str, dict[str, float]] = {}
    for mode in list(MODES) if repetition % 2 == 0 else list(MODES)[::-1]:
        long, appends = MODES[mode]
        with tempfile.TemporaryDirectory(dir=root) as folder:
            copied_s = copy_s(source, Path(folder))
        with tempfile.TemporaryDirectory(dir=root) as folder:
            found[mode] = turn(source, Path(folder), long, appends=appends)
        found[mode]["rate"] = copied_s / found[mode].pop("wall_s")
    return found


def main(
    repetitions: Annotated[int, typer.Option(min=1)] = 7,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: tests that it works.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Where scratch folders are made; on a real disk.")] = None,
    out: Annotated[Path | None, typer.Option(help="A JSON file for every sample.")] = None,
) -> None:
    """A fetcher's thread against the event loop alone."""
    keep_freed_memory()
    tune_interpreter()
    console = Console(width=None if sys.stdout.isatty() else 150)
    samples: dict[str, list[dict[str, dict[str, float]]]] = {}
    root = Path(tempfile.mkdtemp(prefix="kreplog-fetcher-", dir=directory))
    try:
        for shape, (partitions, piece) in SHAPES.items():
            source = Source(root, partitions, piece, (20 if quick else 400) << 20)
            samples[shape] = [measure(source, root, repetition) for repetition in range(repetitions)]
            show(console, shape, samples[shape])
    finally:
        shutil.rmtree(root)
    if out is not None:
        out.write_text(json.dumps(samples, indent=1) + "\n")


def show(console: Console, shape: str, turns: Sequence[dict[str, dict[str, Any]]]) -> None:
    first, *others = MODES
    table = Table("measure", *MODES, *(f"{first} / {other}" for other in others), title=f"responses of {shape}")
    for name, title in TITLES.items():
        values = {mode: [found[mode][name] for found in turns] for mode in MODES}
        row = [f"{statistics.median(found):,.3g}" for found in values.values()]
        for other in others:
            ratios = [ours / theirs for ours, theirs in zip(values[first], values[other], strict=True)]
            row.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})")
        table.add_row(title, *row)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
