"""PidFile: broker.pid in a broker's directory, {"pid", "host", "port"}, locked while the broker's process lives."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from kreplog.errors import KreplogError, UsageError

_LOCK_ATTEMPTS = 25
_RETRY_S = 0.02


class PidFileError(KreplogError):
    """A pid file is locked, but its content is not that of a broker."""


class PidFile:
    """Held by a broker's process until it ends. Raises UsageError if another process holds it."""

    def __init__(self, home: Path) -> None:
        self._fd = open_for_owner(str(home / "broker.pid"), os.O_RDWR | os.O_CREAT)
        for _ in range(_LOCK_ATTEMPTS):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_RETRY_S)  # a reader locks it for a moment
            else:
                self.write("", 0)
                return
        os.close(self._fd)
        raise UsageError(f"the broker in {home} is running already, as process {read_pid_file(home)[0]}")

    def write(self, host: str, port: int) -> None:
        """Write the address on which the broker listens."""
        text = json.dumps({"pid": os.getpid(), "host": host, "port": port}) + "\n"
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text.encode(), 0)

    def close(self) -> None:
        """Unlock it, as the end of the process does."""
        os.close(self._fd)


def open_for_owner(path: str, flags: int) -> int:
    """Open or create a file with mode 0600, whatever the umask."""
    file = os.open(path, flags | os.O_CLOEXEC, 0o600)
    os.fchmod(file, 0o600)
    return file


def read_pid_file(home: Path) -> tuple[int, str, int]:
    """(pid, host, port) of the broker's process; pid 0: it is not running; port 0: it does not listen yet.

    Raises PidFileError if the process that holds the file has not written its pid.
    """
    for _ in range(_LOCK_ATTEMPTS):
        try:
            with open(home / "broker.pid", "rb") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    content: dict[str, Any] = json.loads(file.read())
                    pid = int(content["pid"])
                    if pid > 1:
                        return pid, str(content["host"]), int(content["port"])
                else:
                    return 0, "", 0
        except FileNotFoundError:
            return 0, "", 0
        except (ValueError, KeyError, TypeError):
            pass
        time.sleep(_RETRY_S)  # it is being written, which takes a moment
    raise PidFileError(f"{home / 'broker.pid'} is locked, but does not contain the pid of the process that holds it")
