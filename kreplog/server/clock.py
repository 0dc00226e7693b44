"""The clocks of a broker, in milliseconds."""

from __future__ import annotations

import asyncio
import time


def loop_ms() -> int:
    """The clock of the running event loop, which the cores get."""
    return int(asyncio.get_running_loop().time() * 1000)


def monotonic_ms() -> int:
    """The clock of rules that requests apply outside of the cores."""
    return time.monotonic_ns() // 1_000_000


def wall_clock_ms() -> int:
    """Milliseconds since 1970, as in the timestamps of records and files."""
    return time.time_ns() // 1_000_000
