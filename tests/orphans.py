"""Ends what a killed test run would leave behind, such as brokers: run beside each process of pytest.

A run that is killed, or that its time limit ends, runs no fixture to its end. Its processes are known by the variable
KREPLOG_TEST_RUN of their environment, which each inherits. Linux only: elsewhere there is no /proc to find them in.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

VARIABLE = "KREPLOG_TEST_RUN"


def watch() -> None:
    """Start the watching process of this one."""
    if sys.platform == "linux":
        run = os.environ[VARIABLE] = f"{uuid.uuid4()}"
        without = {name: value for name, value in os.environ.items() if name != VARIABLE}
        command = (sys.executable, "-S", __file__, str(os.getpid()), run)
        subprocess.Popen(command, env=without, start_new_session=True)


def _end(run: str) -> None:
    marker = f"{VARIABLE}={run}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        # Gone meanwhile, or another user's.
        with contextlib.suppress(OSError):
            if marker in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def main(parent: int, run: str) -> None:
    while os.getppid() == parent:
        time.sleep(1)  # nothing reports the end of a parent everywhere
    _end(run)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
