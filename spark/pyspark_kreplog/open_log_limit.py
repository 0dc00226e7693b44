"""The limit on open files (RLIMIT_NOFILE), met before a commit opens the logs of all its partitions at once."""

from __future__ import annotations

import os
import resource

from kreplog.errors import UsageError

FILES_OF_A_LOG = 2
"""Its lock and its active segment."""

_RESERVE = 32


def allow_open_logs(logs: int, path: str) -> None:
    """Raise the soft limit of this process as far as that many more logs need. Raises UsageError where the hard limit
    does not allow it."""
    needed = _open_files() + FILES_OF_A_LOG * logs + _RESERVE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise UsageError(
            f"nothing is committed: the rows go to {logs} partitions below {path}, which needs {needed} open files, "
            f"and the driver may open {hard}: raise its hard limit (ulimit -Hn), or write to fewer partitions at once",
            path=path,
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # not Linux
        return 256
