"""One writer and an embedded log: the writer is a process, is killed half-way, and takes up where it stood."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from rich.console import Console

import kreplog
from flights.source import PARTITIONS, TOPIC, check, compare_records, events, load_flights
from flights.telling import records_bar

POLL_S = 0.002
STALL_S = 60


def write(directory: Path, rows: int | None, hold_at: int | None = None) -> None:
    """Append what the topic still lacks of the first `rows` flights (None: all), after recovery where that is needed.

    The log is all it needs to know where it stood: a partition that holds n records lacks the events after its n-th.
    Prints one JSON object before it appends: the offsets it resumes from and the seconds that opening took.
    hold_at: wait before this flight until standard input is closed."""
    waiting = list(events(load_flights(rows)))
    config = kreplog.LogConfig(compression_type="lz4")
    with ExitStack() as stack:
        started = time.perf_counter()
        logs = [stack.enter_context(kreplog.Log.open(path, config)) for path in partition_paths(directory)]
        held = [log.log_end_offset for log in logs]
        print(json.dumps({"offsets": held, "recovery_s": time.perf_counter() - started}), flush=True)
        appenders = [stack.enter_context(log.appender()) for log in logs]
        for number, event in enumerate(waiting):
            if number == hold_at:
                sys.stdin.read()
            if held[event.partition]:
                held[event.partition] -= 1
            else:
                appenders[event.partition].append(event.value, event.key, event.timestamp_ms)


def partition_paths(directory: Path) -> list[Path]:
    return [directory / f"{TOPIC}-{partition}" for partition in range(PARTITIONS)]


class Writer(NamedTuple):
    """`write` as a process, at the moment when it begins to append."""

    process: subprocess.Popen[str]
    offsets: list[int]
    recovery_s: float


@contextmanager
def writer_process(directory: Path, total: int, hold_at: int, console: Console) -> Iterator[Writer]:
    """Start `write` in a process and wait until it has read its source and opened the topic."""
    command = [sys.executable, "-m", __name__, str(directory), str(total), str(hold_at)]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        try:
            assert process.stdout is not None
            with console.status("the writer makes its events"):
                opened = process.stdout.readline()
            check(bool(opened), "the writer ended before it had opened the topic: its error is above")
            yield Writer(process, **json.loads(opened))
        finally:
            process.kill()


def append_and_kill(directory: Path, total: int, console: Console) -> tuple[list[int], float]:
    """Kill the writer once readers see half of the records; return what they saw before, by partition, and its rate.

    It would hold at three quarters, so that on the slowest machine, too, there is something left to resume."""
    with writer_process(directory, total, total * 3 // 4, console) as writer:
        seen, rate = watch(writer, directory, total, total // 2, console)
        writer.process.send_signal(signal.SIGKILL)
        code = writer.process.wait()
    check(
        code == -signal.SIGKILL, f"the writer was to die of SIGKILL but left with {code}: nothing is proved, run again"
    )
    return seen, rate


def resume(directory: Path, total: int, seen: list[int], console: Console) -> list[str]:
    """Start the writer again and let it finish. Raises DemoError if a record seen before the kill is gone."""
    with writer_process(directory, total, total, console) as writer:
        for partition, (before, after) in enumerate(zip(seen, writer.offsets, strict=True)):
            check(after >= before, f"{TOPIC}-{partition} held {before:,} records before the kill, {after:,} after it")
        _, rate = watch(writer, directory, total, total, console)
        check(writer.process.wait() == 0, "the resumed writer failed: its error is above")
    sent = sum(writer.offsets)
    return [
        f"recovered in {writer.recovery_s * 1000:.0f} ms: all {sum(seen):,} records seen before the kill are there",
        f"resumed at offsets {', '.join(f'{offset:,}' for offset in writer.offsets)}: "
        f"{total - sent:,} records more at {rate:,.0f}/s",
    ]


def watch(writer: Writer, directory: Path, total: int, target: int, console: Console) -> tuple[list[int], float]:
    """Show a bar of what readers of the topic see until that reaches `target`; return it by partition, and the rate.

    Raises DemoError if the writer ends before, or stands still for STALL_S."""
    first, started = sum(writer.offsets), time.perf_counter()
    with ExitStack() as stack:
        logs = [stack.enter_context(kreplog.Log.open(path, read_only=True)) for path in partition_paths(directory)]
        bar = stack.enter_context(records_bar(console))
        task = bar.add_task("", total=total, completed=first, rate=0.0)
        before, moved = writer.offsets, started
        while True:
            ended, now = writer.process.poll() is not None, time.perf_counter()
            seen = [log.high_watermark for log in logs]
            if seen != before:
                before, moved = seen, now
            rate = (sum(seen) - first) / (now - started)
            bar.update(task, completed=sum(seen), rate=rate)
            if sum(seen) >= target:
                return seen, rate
            check(not ended, f"the writer ended with {sum(seen):,} of {target:,} records in the topic")
            check(now - moved < STALL_S, f"the writer stands still at {sum(seen):,} of {target:,} records")
            time.sleep(POLL_S)


def read_back(directory: Path, flights: pd.DataFrame) -> list[str]:
    """Hold every record of the topic against the source."""
    with ExitStack() as stack:
        logs = [stack.enter_context(kreplog.Log.open(path, read_only=True)) for path in partition_paths(directory)]
        event_bytes = compare_records([log.read() for log in logs], flights)
        log_bytes = sum(log.size for log in logs)
    return [
        f"{len(flights):,} records, each once, in order, with its key, value and timestamp",
        f"{event_bytes:,} bytes of JSON take {log_bytes:,} bytes on disk (lz4)",
    ]


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
