"""Processes of Spark beside the tests: their environment, their state, and those that drivers have started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.integration.clusters import eventually

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    path = [ROOT / "tests" / "spark" / "startup", ROOT / "spark", ROOT]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}


@contextmanager
def group_of(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is killed at the end, with all of its group."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command, env=environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # it has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def spark_driver(command: Sequence[str], log: Path, *, kill_workers: bool) -> Iterator[subprocess.Popen[bytes]]:
    """Killed at the end with its JVM, as if its machine had gone. kill_workers: its workers too, those that are paused
    as well; else they end by themselves."""
    workers: list[int] = []
    try:
        with group_of(command, log) as process:
            try:
                yield process
            finally:
                workers += workers_of(process.pid)
    finally:
        for pid in workers if kill_workers else ():
            with suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: not any(map(is_alive, workers)), "the workers of a dead driver live on", 60)


def stat_of(pid: int) -> list[str]:
    """State, parent, group, session, ...: empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def is_alive(pid: int) -> bool:
    return stat_of(pid)[:1] not in ([], ["Z"], ["X"])


def workers_of(driver_pid: int) -> list[int]:
    """The Python processes that the daemons of the driver's JVM have forked: they run tasks, plans and commits."""
    parents = {}
    for entry in Path("/proc").iterdir():
        fields = stat_of(int(entry.name)) if entry.name.isdigit() else []
        if fields and fields[0] not in "ZX":
            parents[int(entry.name)] = int(fields[1])
    children = {driver_pid}
    for _ in range(3):  # JVM, daemon, worker
        children = {pid for pid, parent in parents.items() if parent in children}
    return sorted(pid for pid in children if b"pyspark.daemon" in command_of(pid))


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
