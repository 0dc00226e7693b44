"""Processes of Spark beside the tests: their environment, their state, and those that drivers have started."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment() -> dict[str, str]:
    path = [ROOT / "tests" / "spark" / "startup", ROOT / "spark", ROOT]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}


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
