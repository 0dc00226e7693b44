"""Ends what a killed test run would leave behind, such as brokers: run beside each process of pytest.

A run that is killed, or that its time limit ends, runs no fixture to its end. Programs that it has started are known
by the variable KREPLOG_TEST_RUN of their environment, which each inherits, and its forks by a pipe that they have
open. Linux only: elsewhere there is no /proc to find them in.
"""

from __future__ import annotations

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
        reading, _ = os.pipe()  # both ends stay open; neither is inherited by other programs
        run = os.environ[VARIABLE] = f"{uuid.uuid4()}"
        without = {name: value for name, value in os.environ.items() if name != VARIABLE}
        command = (sys.executable, "-S", __file__, str(os.getpid()), run, os.readlink(f"/proc/self/fd/{reading}"))
        subprocess.Popen(command, env=without, start_new_session=True)


def _end(run: str, pipe: str) -> bool:
    """Whether there was any process to end."""
    marker = f"{VARIABLE}={run}".encode()
    found = False
    for process in Path("/proc").glob("[0-9]*"):
        try:
            is_program = marker in (process / "environ").read_bytes().split(b"\0")
            if is_program or pipe in map(os.readlink, (process / "fd").iterdir()):
                os.kill(int(process.name), signal.SIGKILL)
                found = True
        except OSError:
            continue  # gone meanwhile, or another user's
    return found


def main(parent: int, run: str, pipe: str) -> None:
    while os.getppid() == parent:
        time.sleep(1)  # nothing reports the end of a parent everywhere
    while _end(run, pipe):
        time.sleep(0.1)  # until they are gone, with what they have forked meanwhile


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
