"""Closing: the context manager of what has a `close`."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self


class _HasClose(Protocol):
    def close(self) -> None: ...


class Closing:
    """To inherit from: `with` calls `close` at its end, whether or not an error ended it. contextlib.closing wraps an
    object instead, whose own type would be lost."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self: _HasClose, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as failure:
            if error is None or isinstance(error, Exception):
                raise
            error.add_note(f"and the end of the `with`: {failure}")  # an interrupt stays one
