"""The checker of what a broker submits to the coordination store.

submission order   submissions are answered in their order, each once                              at the answer
submission answer  ... with the results of their own operations, or the refusal of one of these    at the answer
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kreplog.errors import CoordinationError
from kreplog.types import Create, NodeStat, SetData, StoreOperation


class SubmissionChecker:
    """Judges the answers to the submissions of one process of a broker, numbered from 1. violate: takes the kind and
    the text of a violation."""

    def __init__(self, broker: int, violate: Callable[[str, str], None]) -> None:
        self._broker = broker
        self._violate = violate
        self._answered = 0

    def answered(
        self,
        number: int,
        operations: Sequence[StoreOperation],
        results: Sequence[Any] | None,
        error: CoordinationError | None,
    ) -> None:
        """Check an answer of the store. operations: none for a read. results: None after an error."""
        if number != self._answered + 1:
            text = f"broker {self._broker} gets the answer to submission {number} after that to {self._answered}"
            self._violate("submission order", text)
        self._answered = number
        if operations and not _is_own(operations, results, error):
            paths = " ".join(operation.path for operation in operations)
            self._violate("submission answer", f"broker {self._broker} submits {paths}, and gets {error or results}")


def _is_own(
    operations: Sequence[StoreOperation], results: Sequence[Any] | None, error: CoordinationError | None
) -> bool:
    if results is not None:
        return len(results) == len(operations) and all(map(_is_result, operations, results))
    if error is None:
        return False
    if error.index is None or error.path is None:
        return True
    if error.index >= len(operations):
        return False
    operation = operations[error.index]
    sequential = isinstance(operation, Create) and operation.sequential
    return error.path.startswith(operation.path) if sequential else error.path == operation.path


def _is_result(operation: StoreOperation, result: object) -> bool:
    """As Session.multi has it."""
    match operation:
        case Create(path=path, sequential=sequential):
            return isinstance(result, str) and (result.startswith(path) if sequential else result == path)
        case SetData(version=version):
            return isinstance(result, NodeStat) and version in (-1, result.version - 1)
        case _:
            return result is None
