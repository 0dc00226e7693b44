"""Compiles shim.c, runs drivers under it, and speaks to it from inside a driver.

A driver is a module of this folder run as a process of its own: it imports kreplog once and forks a child for each
attempt, so that hundreds of deaths and failed calls take seconds.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

OPEN, WRITE, SYNC, RENAME, TRUNCATE, UNLINK, MMAP, READ, TIMES = (1 << bit for bit in range(9))
ALL_WRITES = OPEN | WRITE | SYNC | RENAME | TRUNCATE | UNLINK | MMAP
FAIL, SHORT, SHORT_THEN_FAIL, KILL_BEFORE, KILL_AFTER, KILL_HALFWAY, FAIL_FROM_HERE_ON = range(7)

MODES = {
    "kill": (ALL_WRITES, KILL_BEFORE, 0),
    "halfway": (WRITE, KILL_HALFWAY, 0),
    "full": (WRITE | OPEN | RENAME, FAIL, errno.ENOSPC),
    "handles": (OPEN, FAIL, errno.EMFILE),
    "sync": (SYNC, FAIL, errno.EIO),
}
"""What drivers let happen at the n-th file call, by name: kinds of calls, mode, errno."""

REFUSED, UNHARMED = 3, 4
"""Exit codes of a driver's child: it has met a typed error; it has made no n-th call."""

_SOURCE = Path(__file__).with_name("shim.c")
_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 900
"""So long nothing takes that has not come to a halt, also on a machine that has other work."""


def build(directory: Path) -> Path:
    """Compile the shim into `directory`; skips the test where LD_PRELOAD or a compiler is not to be had."""
    if not sys.platform.startswith("linux"):
        pytest.skip("needs LD_PRELOAD as on Linux with glibc")
    library = directory / "shim.so"
    subprocess.run([*c_compiler(), "-shared", "-fPIC", "-O1", "-o", library, _SOURCE, "-ldl"], check=True)
    return library


def c_compiler() -> list[str]:
    """The command of the C compiler; skips the test where there is none."""
    compiler = (sysconfig.get_config_var("CC") or "").split() or ["cc"]
    command = compiler if shutil.which(compiler[0]) else ["cc"]
    if not shutil.which(command[0]):
        pytest.skip("no C compiler")
    return command


def run_driver(
    name: str, *arguments: object, shim: Path | None = None, under: Sequence[str] = (), timeout_s: float = _TIMEOUT_S
) -> str:
    """Run `tests.faults.<name>` with `arguments`; return what it printed, or fail the test with it.

    under: a command that starts the driver, such as unshare. timeout_s: after so long it is killed.
    """
    environment = dict(os.environ, PYTHONPATH=str(_ROOT), PYTHONFAULTHANDLER="1")
    if shim is not None:
        environment["LD_PRELOAD"] = str(shim)
    with subprocess.Popen(
        [*under, sys.executable, "-m", f"tests.faults.{name}", *map(str, arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as driver:
        try:
            output, _ = driver.communicate(timeout=timeout_s)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
    if driver.returncode != 0:
        pytest.fail(f"{name} ended with {driver.returncode}:\n{output[-8000:]}", pytrace=False)
    return output


class Shim:
    """The preloaded library, seen from inside a process that runs under it."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.fault_arm.argtypes = [
            ctypes.c_int, ctypes.c_char_p, ctypes.c_long, ctypes.c_int, ctypes.c_int,
        ]  # fmt: skip
        self._library.fault_arm.restype = None
        for counter in ("fault_hits", "fault_fired", "fault_syncs_after"):
            getattr(self._library, counter).restype = ctypes.c_long
        self._callbacks: Sequence[object] = ()

    def arm(self, kinds: int, path_part: str, nth: int, error: int = 0, mode: int = FAIL) -> None:
        """From now count calls of `kinds` on paths holding `path_part`; the n-th one meets `mode`. Counters restart."""
        self._library.fault_arm(kinds, os.fsencode(path_part), nth, error, mode)

    def disarm(self) -> tuple[int, int, int]:
        """Stop; return calls counted, calls failed, and fsyncs made on the file whose fsync had failed."""
        counts = self.counts()
        self._library.fault_arm(0, b"", 0, 0, FAIL)
        return counts

    def counts(self) -> tuple[int, int, int]:
        library = self._library
        return int(library.fault_hits()), int(library.fault_fired()), int(library.fault_syncs_after())

    def on_sync(
        self, callback: Callable[[int], None] | None, of_file_system: Callable[[int], None] | None = None
    ) -> None:
        """Have `callback` called with the descriptor after each fsync or fdatasync that succeeded, and `of_file_system`
        after each syncfs."""
        wrapped = [c and ctypes.CFUNCTYPE(None, ctypes.c_int)(c) for c in (callback, of_file_system)]
        self._library.fault_on_sync(wrapped[0])
        self._library.fault_on_syncfs(wrapped[1])
        self._callbacks = wrapped
