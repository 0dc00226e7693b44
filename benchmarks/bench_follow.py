"""Following a log: how soon another process has a record, and what readers that wait cost the writer.

    python -m benchmarks.bench_follow [--messages N] [--repetitions N] [--readers N] [--quick] [--directory DIR]

Latency: a message of 100 B that has the time in it is sent after random pauses of 0.3 to 1 ms, so that the receiver
sleeps; it notes the time at which it has the bytes. Both read the same monotonic clock. The cost: the time of
`Log.append` (row W1v) with so many readers, in processes of their own, beside none. Contestants take turns.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.follow_peers import CHANNELS, SIZE, Channel, Follow, Pipe
from benchmarks.harness import quiet
from kreplog import Log

T = TypeVar("T")
WARM_UP = 100
FAR = 1 << 40
MUST_US = {"p50": 30, "p99": 150}
AIM_US = {"p50": 10, "p99": 50}
MUST_COST = 0.2
_PARTS = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
_HEAD = struct.Struct("<QQ")
_FORK = multiprocessing.get_context("fork")


def latencies(channel: Channel, count: int, seed: int) -> list[float]:
    """Microseconds from before the send until the receiver has the bytes, in order, without the warm-up.

    Raises ValueError where a message is missing, or not as it was sent."""
    ours, theirs = _FORK.Pipe()
    receiver = _FORK.Process(target=_receive, args=(channel, theirs, count + WARM_UP), daemon=True)
    receiver.start()
    source = random.Random(seed)
    rest = bytes(SIZE - _HEAD.size)
    try:
        with channel.sender() as send, quiet():
            ours.send(None)
            for number in range(count + WARM_UP):
                if ours.poll(source.uniform(0.0003, 0.001)):
                    break
                send(_HEAD.pack(time.monotonic_ns(), number) + rest)
            if not ours.poll(60):
                raise ValueError(f"{channel.name}: a message has not come")
            samples = ours.recv()
        if isinstance(samples, str):
            raise ValueError(f"{channel.name}: {samples}")
        return [float(sample) / 1000 for sample in samples[WARM_UP:]]
    finally:
        receiver.kill()
        receiver.join()


def _receive(channel: Channel, results: Connection, count: int) -> None:
    results.recv()
    samples = []
    with quiet():
        for expected, data in zip(range(count), channel.receiver(), strict=False):
            now = time.monotonic_ns()
            sent, number = _HEAD.unpack_from(data or bytes(_HEAD.size))
            if number != expected or len(data or b"") != SIZE:
                results.send(f"message {number} came, not {expected}")
                results.recv()  # until it is killed: the sender's next message has to go somewhere
            samples.append(now - sent)
    results.send(samples)


class Cost(NamedTuple):
    """The time that one append takes, in nanoseconds."""

    elapsed: float
    cpu: float


def cost_of_append(directory: Path, readers: int, work: Callable[[Log], object], appends: int) -> Cost:
    """The cost of an append for the writer while `readers` processes do `work` on the log."""
    data = bytes(SIZE)
    with Log.open(directory / "t-0") as log:
        for _ in range(1000):
            log.append(data)
        with _crowd(directory / "t-0", readers, work), quiet():
            cpu, start = time.thread_time_ns(), time.perf_counter_ns()
            for _ in range(appends):
                log.append(data)
            elapsed, cpu = time.perf_counter_ns() - start, time.thread_time_ns() - cpu
        if log.log_end_offset != 1000 + appends:
            raise ValueError(f"{log.log_end_offset} records, not {1000 + appends}")
    return Cost(elapsed / appends, cpu / appends)


@contextmanager
def _crowd(path: Path, count: int, work: Callable[[Log], object]) -> Iterator[None]:
    ready = _FORK.Barrier(count + 1)
    readers = [_FORK.Process(target=_read, args=(path, work, ready), daemon=True) for _ in range(count)]
    try:
        for reader in readers:
            reader.start()
        ready.wait(60)  # all have opened the log; one that has failed must not stop the benchmark for ever
        yield
    finally:
        for reader in readers:
            reader.kill()
            reader.join()


def _read(path: Path, work: Callable[[Log], object], ready: object) -> None:
    with Log.open(path, read_only=True) as log:
        ready.wait(60)  # type: ignore[attr-defined]  # a barrier of multiprocessing, whose type is not public
        work(log)


def _wait(log: Log) -> object:
    return log.wait(FAR)


def _wait_for_each(log: Log) -> object:
    """The reader that is woken most: it has nothing else to do."""
    while True:
        log.wait(log.high_watermark)


def _follow(log: Log) -> object:
    return sum(1 for _ in log.follow(log.high_watermark))


def part(samples: Sequence[float], share: float) -> float:
    """The sample below which that share of them lies."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def main(
    messages: Annotated[int, typer.Option(min=1, help="Messages in each repetition.")] = 3000,
    repetitions: Annotated[int, typer.Option(min=1, help="Turns of each contestant.")] = 5,
    readers: Annotated[
        int, typer.Option(min=1, help="Processes that wait, or follow, while records are appended.")
    ] = 100,
    appends: Annotated[int, typer.Option(min=1, help="Records appended beside them.")] = 300_000,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: tests that it works.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Where scratch folders are made; on a real disk.")] = None,
) -> None:
    """Measure how soon another process has a record, and what readers that wait cost the writer."""
    if quick:
        messages, repetitions, readers, appends = 20, 1, 3, 2000
    console = Console(width=None if sys.stdout.isatty() else 200)
    taking_part = [channel for channel in CHANNELS if not channel.missing()]
    for channel in CHANNELS:
        if channel not in taking_part:
            console.print(f"without {channel.name}: {channel.missing()}", style="yellow", highlight=False)
    samples: dict[type[Channel], list[list[float]]] = {channel: [] for channel in taking_part}
    crowds: dict[str, tuple[int, Callable[[Log], object]]] = {
        "none": (0, _wait),
        f"{readers} wait for a later record": (readers, _wait),
        "1 waits for each record": (1, _wait_for_each),
        "4 wait for each record": (4, _wait_for_each),
        "1 follows": (1, _follow),
        f"{readers} follow": (readers, _follow),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in crowds}
    with tempfile.TemporaryDirectory(prefix="kreplog-bench-", dir=directory) as folder:
        for repetition in range(repetitions):
            for channel in _turned(taking_part, repetition):
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    samples[channel].append(latencies(channel(Path(scratch)), messages, repetition))
            for name in _turned(list(crowds), repetition):
                count, work = crowds[name]
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    costs[name].append(cost_of_append(Path(scratch), count, work, appends))
    console.print(_latency_table(samples), _cost_table(costs))
    console.print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, {repetitions} repetitions of {messages} messages",
        highlight=False,
    )


def _turned(contestants: list[T], repetition: int) -> list[T]:
    turn = repetition % len(contestants)
    return contestants[turn:] + contestants[:turn]


def _latency_table(samples: dict[type[Channel], list[list[float]]]) -> Table:
    """Beside other work both wait for a processor: a ratio to the pipe is of the same repetition."""
    heads = [f"{name} us (range)" for name in _PARTS] + [f"{name} to the pipe" for name in MUST_US]
    table = Table("way", *heads, "reached", title="a record in another process")
    for channel, runs in samples.items():
        parts = {name: [part(run, share) for run in runs] for name, share in _PARTS.items()}
        middle = {name: statistics.median(values) for name, values in parts.items()}
        reached = ""
        if channel is Follow:
            within = [all(middle[name] <= bound for name, bound in goal.items()) for goal in (AIM_US, MUST_US)]
            reached = "aim" if within[0] else "yes" if within[1] else "NO"
        cells = [f"{middle[name]:.1f} ({min(values):.1f}..{max(values):.1f})" for name, values in parts.items()]
        for share in (_PARTS[name] for name in MUST_US):
            pairs = zip(runs, samples[Pipe], strict=True)
            cells.append(_ratio([part(run, share) / part(limit, share) for run, limit in pairs]))
        table.add_row(channel.name, *cells, reached)
    return table


def _cost_table(costs: dict[str, list[Cost]]) -> Table:
    """The rate is what the goal is of, and contains what readers take of the processors; CPU is the writer's alone."""
    table = Table("readers", "records/s", "to none (range)", "CPU ns", "to none (range)", "reached", title="the writer")
    for name, measured in costs.items():
        pairs = list(zip(measured, costs["none"], strict=True))
        rates = [alone.elapsed / beside.elapsed for beside, alone in pairs]
        cpu = [beside.cpu / alone.cpu for beside, alone in pairs]
        reached = "" if name == "none" else "yes" if statistics.median(rates) >= 1 - MUST_COST else "NO"
        table.add_row(
            name, f"{1e9 / statistics.median(cost.elapsed for cost in measured):,.0f}", _ratio(rates),
            f"{statistics.median(cost.cpu for cost in measured):.0f}", _ratio(cpu), reached,
        )  # fmt: skip
    return table


def _ratio(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}..{max(ratios):.2f})"


if __name__ == "__main__":
    typer.run(main)
