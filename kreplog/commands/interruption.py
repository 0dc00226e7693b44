"""Ctrl-C and SIGTERM, for commands that have something to finish first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import IO, Any, Self

EXIT_CODE = 130
"""Of a command that was left before it was done."""


class Interruption:
    """Ctrl-C and SIGTERM while this is entered: noted, and an end to reading. again: more than once."""

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
            self._before = {one: signal.signal(one, self._note) for one in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)

    def _note(self, *_: object) -> None:
        self._count += 1
        if self._raises:
            raise KeyboardInterrupt

    def reading(self, lines: IO[bytes]) -> Iterator[bytes]:
        """The lines, until there are no more or it happens; what is done between two is never broken off."""
        readline = lines.readline
        while True:
            try:
                self._raises = True
                if self._count or not (line := readline()):
                    return
            except KeyboardInterrupt:
                return
            finally:
                self._raises = False
            yield line
