"""Periodic work of a broker, beside the ticks of its cores: coroutines, each for a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from kreplog.core.events import RetentionDue
from kreplog.server.storage.disk_space import all_have_space
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.server.storage.log_manager import LogManager

DISK_SPACE_CHECK_S = 2.0
"""Interval of the checks whether a full file system has space again."""


async def write_checkpoints(logs: LogManager, interval_ms: int) -> None:
    """Write the checkpoint files, each `interval_ms`."""
    while True:
        await asyncio.sleep(interval_ms / 1000)  # ended by cancelling the task
        await logs.write_checkpoints()


async def enforce_retention(logs: LogManager, put: Callable[[RetentionDue], None], interval_ms: int) -> None:
    """Have the core enforce retention in every partition that has a limit, one event loop iteration for each, and
    delete strays whose retention is over."""
    while True:
        logs.hosted.strays.remove_expired()
        await asyncio.sleep(interval_ms / 1000)  # ended by cancelling the task
        for partition in logs.partitions_with_retention():
            put(RetentionDue(partition))
            await asyncio.sleep(0)  # connections have their turn between thousands of partitions


async def expire_producers(logs: LogManager, interval_ms: int) -> None:
    """Remove idle producer ids, each `interval_ms`."""
    while True:
        await asyncio.sleep(interval_ms / 1000)  # ended by cancelling the task
        await logs.expire_producers()


async def until_disk_space(hosted: HostedReplicas, full_at_start: Sequence[Path]) -> list[Path]:
    """Wait until log directories are full, and then until all of these have space again; returns them. full_at_start:
    those that could not be opened for lack of space."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(DISK_SPACE_CHECK_S)  # ended by cancelling the task
        full = [*full_at_start, *(directory.path for directory in hosted.directories if directory.is_full)]
        if not full:
            continue
        if await loop.run_in_executor(None, all_have_space, full):
            return full
