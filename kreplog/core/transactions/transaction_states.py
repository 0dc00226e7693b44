"""The states of a transactional id as a table: for each, those it may be entered from.

    Empty            a producer, and no transaction yet                    from Empty, CompleteCommit, CompleteAbort
    Ongoing          records are written                                   from Empty, Ongoing, the Complete states
    PrepareCommit    decided: markers are written to its partitions        from Ongoing
    PrepareAbort     the same, to abort; without partitions (KIP-890)      from Ongoing, Empty, the Complete states
    CompleteCommit   every partition has its marker                        from PrepareCommit
    CompleteAbort    the same                                              from PrepareAbort
    Dead             deleted, or its coordinator has moved                 from all others

Source: Kafka, TransactionState; KIP-98.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class TransactionState(IntEnum):
    """A state of the table above, by its number in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def label(self) -> str:
        """Kafka's name of it."""
        return self.name.title().replace("_", "")


_S = TransactionState

DECIDED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
"""The states in which markers are being written."""

ENDED = DECIDED | {_S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}
"""The states after the end of a transaction."""

IDLE = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""The states without a transaction."""

TRANSACTION_TRANSITIONS: Mapping[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: IDLE,
    _S.ONGOING: IDLE | {_S.ONGOING},
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: IDLE | {_S.ONGOING},
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: frozenset(_S) - {_S.DEAD},
}
"""State entered -> states it may be entered from."""


def table() -> str:
    """The table as text, one state a line."""
    return "\n".join(
        f"{new.label:<14} from {', '.join(state.label for state in sorted(old))}"
        for new, old in TRANSACTION_TRANSITIONS.items()
    )
