"""Ctrl-C and SIGTERM, for commands that finish what they have begun before they exit."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Self

EXIT_CODE = 130
"""Exit status of a command that was interrupted."""


class Interruption:
    """Within the `with` block Ctrl-C and SIGTERM end `reading` and `raising` instead of the process.

    happened: a signal came. again: more than one."""

    def __init__(self) -> None:
        self._count = 0
        self._raises = False
        self._before: dict[signal.Signals, Any] = {}

    @property
    def happened(self) -> bool:
        return self._count > 0

    @property
    def again(self) -> bool:
        return self._count > 1

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, *_: object) -> None:
        self._count += 1
        if self._raises:
            raise KeyboardInterrupt

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Within the `with` block, a signal raises KeyboardInterrupt, also one that came before."""
        try:
            self._raises = True
            if self._count:
                raise KeyboardInterrupt
            yield
        finally:
            self._raises = False

    def reading(self, lines: IO[bytes]) -> Iterator[bytes]:
        """The lines, until the last one or a signal; work between two lines is not interrupted."""
        readline = lines.readline
        while True:
            try:
                with self.raising():
                    line = readline()
            except KeyboardInterrupt:
                return
            if not line:
                return
            yield line
