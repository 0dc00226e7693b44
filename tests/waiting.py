"""Readers that wait, for tests: in a thread or a child process, and seen to wait by the state file alone."""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATE = "kreplog.state"
WAKE_AT = 584
LOOKED_AT = 592
SESSION = 640
TIMEOUT_S = 30


def wake_at(path: Path) -> int:
    """The high watermark at which the first waiting reader of the log wants to be woken, 0 for none."""
    return _number(path, WAKE_AT)


def looked_at(path: Path) -> int:
    """When a waiting reader has last begun to look at the writer, in ns; -1 where it has found it dead."""
    return _number(path, LOOKED_AT)


def _number(path: Path, position: int) -> int:
    with (path / STATE).open("rb") as file:
        file.seek(position)
        (number,) = struct.unpack("<q", file.read(8))
        return int(number)


def until(condition: Callable[[], bool]) -> None:
    """Return when the condition holds; fails the test if it never does."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "what was waited for has not come"
        time.sleep(0.001)


def until_open(path: Path) -> None:
    """Return when a process has opened the log for writing: a reader that opens it earlier may find no state file."""

    def has_session() -> bool:
        try:
            content = (path / STATE).read_bytes()
        except FileNotFoundError:
            return False
        return any(content[SESSION : SESSION + 8])

    until(has_session)


def until_waiting(path: Path, offset: int) -> None:
    """Return when a reader waits for the record at `offset`."""
    until(lambda: wake_at(path) == offset + 1)


class InThread:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # raised again by `result`
            self._error = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def result(self) -> Any:
        """What the call returned; raises what it raised."""
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive(), "the call waits still"
        if self._error is not None:
            raise self._error
        return self._result


class InChild:
    """A call in a forked process, whose result can be pickled."""

    def __init__(self, call: Callable[[], Any]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(reading)
                try:
                    answer = pickle.dumps(call())
                except BaseException:
                    answer = pickle.dumps(AssertionError(traceback.format_exc()))
                with open(writing, "wb") as file:
                    file.write(answer)
            finally:
                os._exit(0)
        os.close(writing)
        self._reading = open(reading, "rb")  # noqa: SIM115 - closed by `result`

    def result(self) -> Any:
        """What the call returned; fails the test if it raised an error or the process was killed."""
        with self._reading as file:
            if not select.select([file], [], [], 2 * TIMEOUT_S)[0]:
                os.kill(self.pid, signal.SIGKILL)
            answer = file.read()
        os.waitpid(self.pid, 0)
        assert answer, "the process was killed"
        result = pickle.loads(answer)
        if isinstance(result, AssertionError):
            raise result
        return result
