"""OpenFiles: the limit on open files (RLIMIT_NOFILE) of a broker, and how it is shared out.

Client connections take a quarter at most, a reserve is kept for what opens files without a look at this (the store,
connections of other brokers, listings of directories), and the rest is for logs. An idle replica holds no descriptor;
one that was written to holds that of its active segment until it is fsynced, since a failed write-back is reported to
that descriptor alone. So each replica counts as one, and what is left is for reading, rolling and syncing.
"""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass

from kreplog._native.segment import keep_open

RESERVE = 64
"""Descriptors of the reserve at least; a sixteenth of the limit where that is more."""

UNLIMITED = 1 << 30
"""What stands for no limit: more than a kernel gives."""


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """limit: of the process."""

    limit: int = UNLIMITED

    @classmethod
    def of_process(cls) -> OpenFiles:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(UNLIMITED if soft == resource.RLIM_INFINITY else soft)

    @property
    def connections(self) -> int:
        """Of clients, at most."""
        return self.limit // 4

    @property
    def logs(self) -> int:
        """Files of logs, before idle ones are closed."""
        return max(1, self.limit - self.connections - max(RESERVE, self.limit // 16))

    @property
    def replicas(self) -> int:
        """So many may be open."""
        return max(1, self.logs - max(RESERVE // 2, self.logs // 8))

    def share_out(self) -> None:
        """From now on logs close idle files where they would have more than their share."""
        keep_open(self.logs)


def raise_limit() -> None:
    """As many open files as this process may ask for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems call it unlimited and take no such number
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
