"""OpenFiles: how a broker divides its limit on open files (RLIMIT_NOFILE) among connections, replicas and the rest.

Client connections get at most a quarter. A reserve is left for descriptors that nothing here counts: the coordination
store, connections between brokers, directory listings. Log files get what remains.

An idle replica holds no descriptor. A segment that was written to is open until the next fsync, because the kernel
reports a failed write-back to that descriptor alone. Where more than the logs' share are, all logs are synced
(kreplog.server.storage.flusher), so each replica is counted as one descriptor, that of its active segment, and the rest
of the share is for reading, rolling and syncing.
"""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass

from kreplog.managed_log import keep_open

RESERVE = 64
"""Minimum of the reserve; a sixteenth of the limit where that is more."""

UNLIMITED = 1 << 30
"""Stands for RLIM_INFINITY; more descriptors than any kernel grants."""


@dataclass(frozen=True, slots=True)
class OpenFiles:
    """The broker's budget of open files. limit: maximum of open files of the process."""

    limit: int = UNLIMITED

    @classmethod
    def of_process(cls) -> OpenFiles:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return cls(UNLIMITED if soft == resource.RLIM_INFINITY else soft)

    @property
    def connections(self) -> int:
        """Maximum of client connections."""
        return self.limit // 4

    @property
    def logs(self) -> int:
        """Log files that may be open; beyond it idle ones are closed."""
        return max(1, self.limit - self.connections - max(RESERVE, self.limit // 16))

    @property
    def replicas(self) -> int:
        """Maximum of replicas on this broker."""
        return max(1, self.logs - max(RESERVE // 2, self.logs // 8))

    def limit_log_files(self) -> None:
        """Have the logs of this process close idle files beyond their share, from now on."""
        keep_open(self.logs)


def raise_limit() -> None:
    """Raise the soft limit on open files to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS reports an unlimited hard limit that it does not accept
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
