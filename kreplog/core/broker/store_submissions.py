"""StoreSubmissions: writes and reads of the coordination store that a broker's cores do not wait for, in order.

One request is in flight at a time. Multis of one session that wait meanwhile share the next transaction, up to
MAX_SHARED_OPERATIONS, so that thousands of ISR changes need few; a read is never shared. If the store refuses an
operation of a shared transaction, none is applied, and each multi is run on its own before all later submissions. With
any other error, of the connection or the session, none of them is run again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar

from kreplog.errors import CoordinationError
from kreplog.types import StoreOperation

MAX_SHARED_OPERATIONS = 500
"""Maximum of operations in a shared transaction; a single multi may have more."""

SessionT = TypeVar("SessionT")
ReplyTo = TypeVar("ReplyTo")


@dataclass(frozen=True, slots=True)
class Submission(Generic[SessionT, ReplyTo]):
    """A multi, or without operations a read of `paths`. session: the one at the time of submission, which alone may run
    it. reply_to: for the shell."""

    session: SessionT
    operations: tuple[StoreOperation, ...]
    paths: tuple[str, ...]
    reply_to: ReplyTo

    def can_share(self, later: Submission[SessionT, ReplyTo]) -> bool:
        """Whether a later submission may be in its transaction."""
        return bool(self.operations and later.operations) and self.session is later.session


Outcome = tuple[Submission[SessionT, ReplyTo], Sequence[Any] | None, CoordinationError | None]
"""(submission, results, None) with the results of its own operations or paths, as of Session.multi or Session.get_many;
or (submission, None, error)."""


class StoreSubmissions(Generic[SessionT, ReplyTo]):
    """The submissions that have no outcome yet. The shell sends one request after the other: `next`, then `finished`,
    until `next` returns none."""

    def __init__(self) -> None:
        self._waiting: deque[Submission[SessionT, ReplyTo]] = deque()
        self._unshared = 0  # of the waiting, the first so many were refused together
        self._in_flight: tuple[Submission[SessionT, ReplyTo], ...] = ()
        self._busy = False

    def submit(self, submission: Submission[SessionT, ReplyTo]) -> bool:
        """Returns whether the shell is to begin with `next`, since it is not sending."""
        self._waiting.append(submission)
        idle, self._busy = not self._busy, True
        return idle

    def next(self) -> tuple[Submission[SessionT, ReplyTo], ...]:
        """The submissions of the next request, all of one session: a read, or the multis of a transaction, whose
        operations are theirs in this order. Empty: none waits."""
        self._in_flight = self._batch() if self._waiting else ()
        self._busy = bool(self._in_flight)
        return self._in_flight

    def _batch(self) -> tuple[Submission[SessionT, ReplyTo], ...]:
        waiting = self._waiting
        batch = [waiting.popleft()]
        if self._unshared:
            self._unshared -= 1
            return tuple(batch)
        room = MAX_SHARED_OPERATIONS - len(batch[0].operations)
        while waiting and batch[0].can_share(waiting[0]):
            room -= len(waiting[0].operations)
            if room < 0:
                break
            batch.append(waiting.popleft())
        return tuple(batch)

    def finished(
        self, results: Sequence[Any] | None, error: CoordinationError | None
    ) -> list[Outcome[SessionT, ReplyTo]]:
        """The request in flight has been answered, with results or an error. Returns the outcomes of its submissions,
        in order; none yet for multis that were refused together."""
        batch = self._in_flight
        if results is not None:
            return [(submission, part, None) for submission, part in zip(batch, split(batch, results), strict=True)]
        if error is not None and is_refusal(error) and len(batch) > 1:
            self._run_singly(batch)
            return []
        return [(submission, None, error) for submission in batch]

    def _run_singly(self, refused: Sequence[Submission[SessionT, ReplyTo]]) -> None:
        self._waiting.extendleft(reversed(refused))
        self._unshared = len(refused)


def is_refusal(error: CoordinationError) -> bool:
    """Whether the store refused an operation of a transaction, of which then nothing was applied."""
    return error.index is not None


def split(batch: Sequence[Submission[Any, Any]], results: Sequence[Any]) -> list[Sequence[Any]]:
    """The results of each submission of a request."""
    if len(batch) == 1:
        return [results]
    ends = list(accumulate(len(submission.operations) for submission in batch))
    return [results[start:end] for start, end in pairwise((0, *ends))]
