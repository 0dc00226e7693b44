"""How long a broker keeps strays: the replicas that a controller no longer assigned to it (log.stray.retention.ms)."""

from __future__ import annotations

FOR_EVER = -1

DEFAULT_RETENTION_MS = 7 * 24 * 3600 * 1000


def is_expired(since_ms: int, now_ms: int, retention_ms: int) -> bool:
    """Whether a stray may be deleted. since_ms: when the replica became one; now_ms: both by the wall clock.
    retention_ms: FOR_EVER keeps them. One of a clock that was set back since is kept longer."""
    return retention_ms != FOR_EVER and now_ms - since_ms >= retention_ms
