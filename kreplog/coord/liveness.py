"""Liveness of sessions between the processes of one host, and wake-ups: three files per session.

    <token>.alive   FIFO that the session holds open for writing. The kernel closes it when the process ends, in any
                    way, and every reader's poll returns at once: POLLHUP.
    <token>.beat    8 bytes, the monotonic clock in ms when the session last ran; detects a process that hangs.
    <token>.bell    FIFO that the session reads: a byte in it means that the store has changed.

The files only show liveness; the database is authoritative. All processes share the monotonic clock since boot.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

_KINDS = ("alive", "beat", "bell")
_BEAT = struct.Struct("=q")
_BELL_FULL = 4096


def monotonic_ms() -> int:
    """Monotonic milliseconds, the same for all processes until the next boot."""
    return time.monotonic_ns() // 1_000_000


class Pulse:
    """The files of this process's own session. Raises OSError if they cannot be created, as without support for
    FIFOs."""

    def __init__(self, directory: Path, token: str, now_ms: int) -> None:
        self.bell = self._ringer = self._alive = self._beat = -1
        self._directory, self._token = directory, token
        self._lock = threading.Lock()
        remove(directory, token)
        try:
            self._beat = os.open(directory / f"{token}.beat", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.fchmod(self._beat, 0o600)
            self.beat(now_ms)
            _make_fifo(directory / f"{token}.bell")
            self.bell = os.open(directory / f"{token}.bell", os.O_RDONLY | os.O_NONBLOCK)
            # Held open, or else the bell would be at its end of file, and poll return at once, without another writer.
            self._ringer = os.open(directory / f"{token}.bell", os.O_WRONLY | os.O_NONBLOCK)
            _make_fifo(directory / f"{token}.alive")
            reader = os.open(
                directory / f"{token}.alive", os.O_RDONLY | os.O_NONBLOCK
            )  # without a reader the next open waits
            try:
                self._alive = os.open(directory / f"{token}.alive", os.O_WRONLY | os.O_NONBLOCK)
            finally:
                os.close(reader)
        except BaseException:
            self.close()
            raise

    def beat(self, now_ms: int) -> None:
        """Write that the session runs at `now_ms`."""
        os.pwrite(self._beat, _BEAT.pack(now_ms), 0)

    def quieten(self) -> None:
        """Empty the bell."""
        with suppress(BlockingIOError):
            while len(os.read(self.bell, _BELL_FULL)) == _BELL_FULL:
                pass

    def ring(self) -> None:
        """Ring the own bell. Thread-safe; does nothing when closed."""
        with self._lock, suppress(OSError):
            if self._ringer >= 0:
                os.write(self._ringer, b"!")

    def close(self) -> None:
        """Close and remove the files: other processes then see the session as dead."""
        with self._lock:
            self.close_files()
        remove(self._directory, self._token)

    def close_files(self) -> None:
        """Close the files without removing them. For the child of a fork too, where a vanished thread may hold the
        lock."""
        for fd in (self._alive, self._beat, self.bell, self._ringer):
            if fd >= 0:
                os.close(fd)
        self.bell = self._ringer = self._alive = self._beat = -1


class PeerSession:
    """The files of another process's session, for observers."""

    def __init__(self, directory: Path, token: str) -> None:
        self.alive = self._beat = -1
        with suppress(FileNotFoundError):
            self._beat = os.open(directory / f"{token}.beat", os.O_RDONLY)
            self.alive = os.open(directory / f"{token}.alive", os.O_RDONLY | os.O_NONBLOCK)

    def is_closed(self) -> bool:
        """Whether no process holds the session's files any more."""
        if self.alive < 0:
            return True
        try:
            return os.read(self.alive, 1) == b""
        except BlockingIOError:
            return False

    def beat_ms(self) -> int:
        """When the session last ran."""
        data = os.pread(self._beat, _BEAT.size, 0) if self._beat >= 0 else b""
        return int(_BEAT.unpack(data)[0]) if len(data) == _BEAT.size else 0

    def close(self) -> None:
        """Stop observing."""
        for fd in (self.alive, self._beat):
            if fd >= 0:
                os.close(fd)
        self.alive = self._beat = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def ring(directory: Path, token: str) -> None:
    """Wake the session; does nothing if it has ended, or its bell is full."""
    with suppress(OSError):
        bell = os.open(directory / f"{token}.bell", os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(bell, b"!")
        finally:
            os.close(bell)


def remove(directory: Path, token: str) -> None:
    """Remove the files of a session that has ended; any of them may be missing."""
    for kind in _KINDS:
        with suppress(FileNotFoundError):
            os.unlink(directory / f"{token}.{kind}")


def tokens(directory: Path) -> set[str]:
    """The tokens of all sessions with files."""
    return {path.name.partition(".")[0] for path in directory.iterdir()}


def _make_fifo(path: Path) -> None:
    """Create a FIFO with mode 0600, whatever the umask."""
    os.mkfifo(path, 0o600)
    path.chmod(0o600)
