"""Fenced writes: every multi of a controller checks that /controller_epoch is still its own (F27)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from kreplog.core import nodes
from kreplog.core.controller.context import ControllerContext
from kreplog.core.effects import Multi, Steps
from kreplog.errors import BadVersionError, CoordinationError, NoNodeError
from kreplog.types import Check, StoreOperation

MAX_OPERATIONS = 500
"""Maximum of operations in one multi, the check of the controller epoch included."""

ATTEMPTS = 10
"""Attempts of a write that loses against other writers, before it waits for the next Tick."""

T = TypeVar("T")


class DeposedError(CoordinationError):
    """Another controller has been elected; this one must resign. What it tried to write was not applied."""


def fence(context: ControllerContext) -> tuple[StoreOperation, ...]:
    """The check that begins every multi of a controller, so that a deposed one writes nothing (F27)."""
    return (Check(nodes.CONTROLLER_EPOCH, context.epoch_version),)


def fenced(context: ControllerContext, operations: Sequence[StoreOperation]) -> Steps[tuple[Any, ...]]:
    """Apply `operations`, at most MAX_OPERATIONS - 1, or none of them; their results.

    Raises DeposedError, or as Session.multi; `index` of the error counts `operations`. With ConnectionLossError their
    fate is unknown, and the controller starts over under a new epoch.
    """
    guard = fence(context)
    try:
        results = yield Multi((*guard, *operations))
    except CoordinationError as error:
        if error.index is None:
            raise
        if error.index < len(guard) and isinstance(error, BadVersionError | NoNodeError):
            raise DeposedError(
                f"controller {context.controller_id} of epoch {context.epoch} has been deposed",
                path=nodes.CONTROLLER_EPOCH,
            ) from error
        error.index -= len(guard)
        raise
    return tuple(results[len(guard) :])


def chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """`items` in pieces of at most `size`."""
    return (items[start : start + size] for start in range(0, len(items), size))
