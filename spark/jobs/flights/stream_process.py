"""The streaming job as a process: start, kill, end; and how far its checkpoint says it is."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flights import stream
from flights.source import DemoError, check
from kreplog.cluster.deferred_signals import deferred_signals

POLL_S = 0.05
WITHIN_S = 300


class StreamProcess:
    """Spark's driver, its JVM and its workers; what they print is in DIRECTORY/stream.log."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self._log = directory / "stream.log"
        for folder in ("data", "tmp"):
            (directory / folder).mkdir(parents=True, exist_ok=True)
        path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", stream.__name__, bootstrap, str(directory)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(directory / "tmp")},
                start_new_session=True,
            )

    def wait_for(self, true: Callable[[], bool], failed: str) -> None:
        """Wait until `true()`. Raises DemoError when the job has ended, or after WITHIN_S."""
        deadline = time.monotonic() + WITHIN_S
        while not true():
            self._check_running()
            check(time.monotonic() < deadline, f"{failed} after {WITHIN_S} s (see {self._log})")
            time.sleep(POLL_S)  # another process writes the checkpoint, and notifies nobody

    def _check_running(self) -> None:
        check(self._process.poll() is None, f"the streaming job has ended: {self._error()}")

    def kill(self) -> None:
        """SIGKILL to the driver and its JVM; workers end when the JVM does. None of them writes a file after this."""
        self._check_running()
        self.close()

    def finish(self) -> None:
        """Have it process what the topics contain and end."""
        try:
            self._process.communicate(timeout=WITHIN_S)
        except subprocess.TimeoutExpired:
            raise DemoError(f"the streaming job has not ended after {WITHIN_S} s (see {self._log})") from None
        check(self._process.returncode == 0, f"the streaming job has failed: {self._error()}")

    def close(self) -> None:
        """SIGKILL to what still runs of it; a JVM may outlive its driver."""
        with deferred_signals():
            if self._process.poll() is None or _processes_of(self._process.pid):
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        await_session_end(self._process.pid)

    def _error(self) -> str:
        return f"{error_of(self._log.read_text(errors='replace'))} (see {self._log})"


@contextmanager
def running_stream(bootstrap: str, directory: Path) -> Iterator[StreamProcess]:
    process = None
    try:
        with deferred_signals():
            process = StreamProcess(bootstrap, directory)
        yield process
    finally:
        if process is not None:
            process.close()


def await_session_end(session: int) -> None:
    """Wait until no process of the session runs: the JVM of a killed driver, and workers, go on for some milliseconds.
    Raises DemoError after WITHIN_S. Source: proc_pid_stat(5)."""
    deadline = time.monotonic() + WITHIN_S
    while running := _processes_of(session):
        check(time.monotonic() < deadline, f"processes {running} of the streaming job still run after {WITHIN_S} s")
        time.sleep(POLL_S)  # most are not children of this process, which hears nothing of their end


def _processes_of(session: int) -> list[int]:
    """Processes of the session that have not ended; none where there is no /proc. Of a process in state Z, threads may
    still run, as those of a killed JVM that wait for the disk."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            pid, rest = path.parent.name, path.read_text().rpartition(") ")[2].split()
            if int(rest[3]) == session and (rest[0] not in "ZX" or int(rest[17]) > 1):
                found.append(int(pid))
    return found


def batches(directory: Path) -> tuple[int, int]:
    """The newest batch that the query of the topic has planned and the newest that it has committed; -1 for none."""
    return _newest(directory, "offsets"), _newest(directory, "commits")


def _newest(directory: Path, folder: str) -> int:
    files = (stream.checkpoint(directory, "departures") / folder).glob("*")
    return max((int(file.name) for file in files if file.name.isdecimal()), default=-1)


def error_of(output: str) -> str:
    """The error with which a job ended: the last that its output names. Spark prints its state after that."""
    errors = re.findall(r"^[\w.]+(?:Error|Exception): .*", output, re.MULTILINE)
    return str(errors[-1]) if errors else "no error in its output"
