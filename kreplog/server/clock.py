"""The clocks of a broker, in milliseconds; its event loop has one of its own, which the cores get."""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """The clock of rules that requests apply outside of the cores."""
    return time.monotonic_ns() // 1_000_000


def wall_clock_ms() -> int:
    """Milliseconds since 1970, as in the timestamps of records and files."""
    return time.time_ns() // 1_000_000
