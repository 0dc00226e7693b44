"""What watching costs the watched: three brokers of 1,000 partitions without a watcher, with the console, and with top.

    python -m benchmarks.bench_console [--repetitions N] [--partitions N] [--quick] [--directory DIR]

In each repetition, in an order that rotates: nobody watches; `kreplog console` runs with a page on the topic, of which
40 partitions are in view, with their sizes and the groups that read the topic; `kreplog top` runs in a terminal. Each
for the same time, while a client sends small Produce requests with acks=all at a fixed rate. Three groups have
committed offsets in all partitions, and lag more and more. Figures: the CPU time that a broker took beyond that without
a watcher in the same repetition, as a share of one core, of the broker whose median is the highest; and the latencies
of the produces, each from when it was due.
"""

from __future__ import annotations

import asyncio
import math
import os
import pty
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import typer
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from benchmarks import report
from benchmarks.clusters import BROKERS, READY_S, KreplogCluster, create_topic, wait_in_sync
from kreplog.types import counted

TOPIC = "watched"
IN_VIEW = 40
RECORD = b"x" * 100
PERIOD_S = 0.05
"""Between produces: brokers that are busy hide what watching costs."""

SETTLE_S = 3.0
GROUPS = 3
GROUPS_S, SIZES_S = 2.0, 5.0
"""How often a page requests the groups that read a topic, and the sizes of the partitions in view."""

TICKS = os.sysconf("SC_CLK_TCK")


def broker_cpu_s(cluster: KreplogCluster) -> list[float]:
    """CPU seconds of each broker's process so far."""
    found = []
    for broker in BROKERS:
        fields = Path(f"/proc/{cluster.pid(broker)}/stat").read_text().rpartition(")")[2].split()
        found.append((int(fields[11]) + int(fields[12])) / TICKS)
    return found


def commit_offsets(cluster: KreplogCluster, partitions: int) -> None:
    """GROUPS groups commit the start of all partitions, and read nothing."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    offsets = [TopicPartition(TOPIC, partition, 0) for partition in range(partitions)]
    deadline = time.monotonic() + READY_S
    for number in range(GROUPS):
        request = [ConsumerGroupTopicPartitions(f"reader-{number}", offsets)]
        while True:
            (future,) = admin.alter_consumer_group_offsets(request, request_timeout=READY_S).values()
            failed = [each for each in future.result().topic_partitions if each.error is not None]
            if not failed:
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"offsets are not committed: {failed[:1]}")
            time.sleep(0.1)  # the coordinator moves, of which the client hears at the next attempt


def produce_latencies_ms(bootstrap: str, partitions: int, seconds: float) -> list[float]:
    """Latencies of single records, one each PERIOD_S unless the last is not acknowledged yet; to all partitions in
    turn."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all"})
    found: list[float] = []
    errors: list[Any] = []
    due = time.perf_counter()
    until = due + seconds
    while due < until:
        time.sleep(max(0.0, due - time.perf_counter()))  # the same load in each turn, of a quiet client
        partition = len(found) % partitions
        producer.produce(TOPIC, RECORD, partition=partition, on_delivery=lambda error, _: errors.append(error))
        producer.flush(30)
        if len(errors) != len(found) + 1 or errors[-1] is not None:
            raise RuntimeError(f"a produce failed: {errors[-1:]}")
        found.append((time.perf_counter() - due) * 1000)
        due += PERIOD_S
    return found


@dataclass
class Page:
    """Messages that a page has received. rows: numbers of partitions. complete_s: after its connection, the last time
    that there were more. views: number of those with the replicas of the partitions in view. readers: groups that the
    last response about them named. sized: partitions with sizes in the last one."""

    rows: set[int] = field(default_factory=set)
    complete_s: float = 0.0
    views: int = 0
    readers: int = 0
    sized: int = 0


@contextmanager
def console(directory: Path, pages: list[Page]) -> Iterator[None]:
    """A console with a page that follows IN_VIEW partitions, as a browser's would; it is added to `pages`."""
    command = [sys.executable, "-m", "kreplog", "console", "--cluster", str(directory), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    stop = threading.Event()
    pages.append(Page())
    failures: list[BaseException] = []
    try:
        address = re.findall(r"http://\S+", process.stdout.readline())[0]

        def in_thread() -> None:
            try:
                asyncio.run(_visit(address, stop, pages[-1]))
            except BaseException as error:
                failures.append(error)

        page = threading.Thread(target=in_thread)
        page.start()
        try:
            yield
        finally:
            stop.set()
            page.join()
        if failures or not pages[-1].views or pages[-1].readers != GROUPS or not pages[-1].sized:
            raise RuntimeError(f"the page received {pages[-1]}: {failures}")
    finally:
        process.terminate()
        process.wait()


async def _visit(address: str, stop: threading.Event, page: Page) -> None:
    origin = address.partition("/login")[0]
    async with aiohttp.ClientSession(headers={"Origin": origin}, cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        async with session.get(address):
            pass
        visible = ",".join(map(str, range(IN_VIEW)))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_follow(session, origin, stop, page))
            tasks.create_task(_repeat(session, f"{origin}/api/groups?topic={TOPIC}", GROUPS_S, stop, page))
            tasks.create_task(
                _repeat(session, f"{origin}/api/sizes?topic={TOPIC}&partitions={visible}", SIZES_S, stop, page)
            )


async def _follow(session: aiohttp.ClientSession, origin: str, stop: threading.Event, page: Page) -> None:
    async with session.ws_connect(f"{origin}/live") as socket:
        await socket.send_json({"topic": TOPIC, "partitions": list(range(IN_VIEW)), "events": 0, "run": ""})
        began = time.perf_counter()
        while not stop.is_set():
            message = await socket.receive_json(timeout=30)
            page.views += "replicas" in message
            numbers = {row[0] for row in message.get("rows", ())}
            if numbers - page.rows:
                page.rows |= numbers
                page.complete_s = time.perf_counter() - began


async def _repeat(
    session: aiohttp.ClientSession, address: str, pause_s: float, stop: threading.Event, page: Page
) -> None:
    while not stop.is_set():
        async with session.get(address) as response:
            found = await response.json()
        response.raise_for_status()
        page.readers = len(found.get("groups", ())) or page.readers
        page.sized = len(found.get("sizes", ())) or page.sized
        paused = time.perf_counter()
        while not stop.is_set() and time.perf_counter() - paused < pause_s:
            await asyncio.sleep(0.1)  # in steps, to see `stop`


@contextmanager
def top(directory: Path, _: list[Page]) -> Iterator[None]:
    """`kreplog top` in a terminal of its own."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "kreplog", "top", "--cluster", str(directory)]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "50"}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown: list[int] = []

    def drain() -> None:
        try:
            while data := os.read(ours, 1 << 16):
                shown.append(len(data))
        except OSError:  # the terminal is closed
            return

    reader = threading.Thread(target=drain)
    reader.start()
    try:
        yield
        if process.poll() is not None or not shown:
            raise RuntimeError(f"kreplog top has shown {sum(shown)} bytes, and ended: {process.poll()}")
    finally:
        process.terminate()
        process.wait()
        reader.join()
        os.close(ours)


@contextmanager
def nobody(_directory: Path, _pages: list[Page]) -> Iterator[None]:
    yield


WATCHERS: dict[str, Callable[[Path, list[Page]], AbstractContextManager[None]]] = {
    "nobody": nobody,
    "console": console,
    "top": top,
}


def main(
    repetitions: Annotated[int, typer.Option(min=1, help="Repetitions, of which the median counts.")] = 3,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the topic, of three replicas each.")] = 1000,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny: shows that it works, not what it costs.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Where the cluster is made.")] = None,
) -> None:
    seconds, partitions = (2.0, 8) if quick else (30.0, partitions)
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        cluster = KreplogCluster(Path(folder) / "c")
        try:
            cluster.spawn()
            create_topic(cluster, TOPIC, partitions)
            wait_in_sync(cluster, TOPIC)
            commit_offsets(cluster, partitions)
            print(
                f"sizes: {counted(partitions, 'partition')} of three replicas, read by {GROUPS} groups; {seconds:g} s "
                f"each; a record of {len(RECORD)} B each {PERIOD_S * 1000:g} ms; {counted(repetitions, 'repetition')}"
            )
            for name, fact in report.host(Path(folder)).items():
                print(f"{name}: {fact}")
            _measure(cluster, Path(folder) / "c", partitions, repetitions, seconds)
        finally:
            cluster.stop()


def _measure(cluster: KreplogCluster, directory: Path, partitions: int, repetitions: int, seconds: float) -> None:
    cpu: dict[str, list[list[float]]] = {name: [] for name in WATCHERS}
    latencies: dict[str, list[list[float]]] = {name: [] for name in WATCHERS}
    names, pages = list(WATCHERS), list[Page]()
    produce_latencies_ms(cluster.bootstrap, partitions, SETTLE_S)
    for repetition in range(repetitions):
        for name in names[repetition % 3 :] + names[: repetition % 3]:
            with WATCHERS[name](directory, pages):
                time.sleep(SETTLE_S)  # its start is not what is measured
                before, began = broker_cpu_s(cluster), time.monotonic()
                latencies[name].append(produce_latencies_ms(cluster.bootstrap, partitions, seconds))
                spent = time.monotonic() - began
                cpu[name].append(
                    [(now - then) / spent for now, then in zip(broker_cpu_s(cluster), before, strict=True)]
                )
    complete_s = statistics.median(page.complete_s for page in pages)
    views = statistics.median(page.views for page in pages) / (seconds + SETTLE_S)
    print(
        f"the page has all {len(pages[0].rows):,} partitions after {complete_s:.1f} s, and {views:.1f} views of "
        f"{IN_VIEW} partitions a second"
    )
    for name in names:
        more = [
            [100 * (share - without) for share, without in zip(ours, alone, strict=True)]
            for ours, alone in zip(cpu[name], cpu["nobody"], strict=True)
        ]
        most = max(zip(*more, strict=True), key=statistics.median)  # of the broker that takes most
        mean = statistics.median(100 * statistics.mean(shares) for shares in cpu[name])
        error = statistics.stdev(most) / math.sqrt(len(most)) if len(most) > 1 else math.nan
        middle = [statistics.median(each) for each in latencies[name]]
        high = [statistics.quantiles(each, n=100)[98] for each in latencies[name]]
        print(
            f"{name}: brokers {mean:.1f} % of a core each; one {statistics.median(most):.1f} % more than without "
            f"({min(most):.1f} to {max(most):.1f}; mean {statistics.mean(most):.1f}, its standard error {error:.1f}); "
            f"produce p50 {statistics.median(middle):.2f} ms "
            f"({min(middle):.2f} to {max(middle):.2f}), p99 {statistics.median(high):.2f} ms "
            f"({min(high):.2f} to {max(high):.2f})"
        )


if __name__ == "__main__":
    typer.run(main)
