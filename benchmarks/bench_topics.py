"""Topics in a folder: opening one of many partitions, and how soon another member of a cursor group reads a dead one's.

    python -m benchmarks.bench_topics [--partitions N] [--deaths N] [--quick] [--directory DIR]

Opening: by the clock and in CPU time, and the segments that are open afterwards. Deaths: two members, each a process of
its own with half of the partitions; one is killed, then a record is appended to each partition; the time is that from
the kill until the other has the last of these records. Beside it stands that of a record in a partition which the other
has had before: of it the record's way takes so much.
"""

from __future__ import annotations

import os
import select
import signal
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from kreplog import LogConfig, Topic

MEMBERS_PARTITIONS = 4
WAIT_S = 60.0
_SEEN = struct.Struct("=id")


class Opening(NamedTuple):
    seconds: float
    cpu_s: float
    open_segments: int


def opening(path: Path, read_only: bool) -> Opening:
    cpu, start = time.process_time(), time.perf_counter()
    with Topic.open(path, read_only=read_only) as topic:
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        assert topic.partitions
        return Opening(seconds, cpu, open_segments(path.parent))


def open_segments(folder: Path) -> int:
    """Segments in the folder that this process has open; Linux only."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # of the list itself
            continue
        found += target.startswith(str(folder)) and target.endswith(".log")
    return found


class Member:
    """A process that reads as a member of a group, and reports the partition and the time of each batch."""

    def __init__(self, path: Path) -> None:
        self._reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                with Topic.open(path, read_only=True) as topic, topic.group_cursor("billing") as cursor:
                    for records in cursor.follow_batches():
                        os.write(writing, _SEEN.pack(records[0].partition, time.monotonic()))
                        cursor.commit()
            finally:
                os._exit(1)
        os.close(writing)

    def seen(self, timeout_s: float) -> tuple[int, float] | None:
        """The next report; None where none comes. Raises OSError where the member has ended."""
        if not select.select([self._reading], [], [], timeout_s)[0]:
            return None
        data = os.read(self._reading, _SEEN.size)
        if not data:
            raise OSError("a member of the group has ended")
        partition, moment = _SEEN.unpack(data)
        return partition, moment

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._reading)


def settle(topic: Topic, members: list[Member]) -> list[set[int]]:
    """Append until each member has half of the partitions, in two rounds; returns which. Raises OSError."""
    steady, before = 0, None
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        append_to_each(topic)
        owned: list[set[int]] = [set() for _ in members]
        while sum(map(len, owned)) < topic.partitions and time.monotonic() < deadline:
            for partitions, member in zip(owned, members, strict=True):
                if (report := member.seen(0.002)) is not None:
                    partitions.add(report[0])
        steady = steady + 1 if owned == before else 0
        before = owned
        if steady and all(len(partitions) == topic.partitions // len(members) for partitions in owned):
            return owned
    raise OSError(f"the members of the group have not come to rest in {WAIT_S:.0f} s")


def append_to_each(topic: Topic) -> None:
    for number in range(topic.partitions):
        topic.append(b"record", partition=number)


def deaths(path: Path, count: int) -> list[tuple[float, float]]:
    """Seconds, for each death, until the last of the dead member's partitions was read, and the first of the other's.
    Raises OSError."""
    measured = []
    with Topic.open(path, MEMBERS_PARTITIONS) as topic:
        members = [Member(path), Member(path)]
        try:
            for _ in range(count):
                of_dead, of_other = settle(topic, members)
                start = time.monotonic()
                os.kill(members[0].pid, signal.SIGKILL)
                append_to_each(topic)
                first: dict[int, float] = {}
                while not of_dead | of_other <= set(first):
                    if (report := members[1].seen(WAIT_S)) is None:
                        raise OSError(f"no record of a dead member's partition came in {WAIT_S:.0f} s")
                    first.setdefault(*report)
                taken_over = max(first[number] for number in of_dead)
                measured.append((taken_over - start, min(first[number] for number in of_other) - start))
                members[0].kill()
                members = [members[1], Member(path)]
        finally:
            for member in members:
                member.kill()
    return measured


def main(
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the topic that is opened.")] = 10_000,
    repetitions: Annotated[int, typer.Option(min=1, help="Openings of each kind.")] = 5,
    killed: Annotated[int, typer.Option("--deaths", min=1, help="Members that are killed.")] = 20,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: tests that it works.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Where scratch folders are made; on a real disk.")] = None,
) -> None:
    """The opening of a topic of many partitions, and what becomes of a dead member's partitions."""
    if quick:
        partitions, repetitions, killed = 20, 1, 1
    console = Console(width=None if sys.stdout.isatty() else 120)
    with tempfile.TemporaryDirectory(prefix="kreplog-bench-", dir=directory) as folder:
        path = Path(folder) / "many" / "orders"
        start = time.perf_counter()
        Topic.open(path, partitions, config=LogConfig()).close()
        created = time.perf_counter() - start
        table = Table("opening", "s", "CPU s", "open segments")
        for read_only in (False, True):
            runs = [opening(path, read_only) for _ in range(repetitions)]
            table.add_row(
                "read-only" if read_only else "to append",
                *(_spread([run[column] for run in runs]) for column in (0, 1)),
                str(max(run.open_segments for run in runs)),
            )
        console.print(f"{partitions:,} partitions, created in {created:.2f} s", highlight=False)
        console.print(table)
        measured = deaths(Path(folder) / "few" / "orders", killed)
    table = Table("after a member's death", "ms", "at most")
    for name, times in zip(("its partitions are read", "those of the other"), zip(*measured, strict=True), strict=True):
        table.add_row(name, f"{statistics.median(times) * 1000:.1f}", f"{max(times) * 1000:.1f}")
    console.print(table)
    console.print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, {killed} deaths", highlight=False)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f}..{max(values):.3f})"


if __name__ == "__main__":
    typer.run(main)
