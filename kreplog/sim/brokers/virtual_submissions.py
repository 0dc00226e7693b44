"""VirtualSubmissions: core.broker.store_submissions of one process, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kreplog.coord.memory import MemorySession
from kreplog.core.broker.store_submissions import StoreSubmissions, Submission
from kreplog.errors import CoordinationError, SessionExpiredError
from kreplog.sim.checks.submission_checker import SubmissionChecker
from kreplog.sim.machines.store import Outcome
from kreplog.types import StoreOperation

if TYPE_CHECKING:
    from kreplog.sim.brokers.broker import BrokerProcess

ENDED_SESSION_US = 100
"""Delay of the error for a session that has ended; the store does not see the request."""


@dataclass(frozen=True, slots=True)
class _ReplyTo:
    """The shell's part of a submission. number: of the submission in its process. written: called once the store has
    carried the multi out."""

    number: int
    outcome: Outcome
    written: Callable[[], None] | None


class VirtualSubmissions:
    """The submissions of one process, which sends nothing while it is paused."""

    def __init__(self, process: BrokerProcess) -> None:
        self._process = process
        self._scheduler = process.cluster.scheduler
        self._submissions: StoreSubmissions[MemorySession | None, _ReplyTo] = StoreSubmissions()
        self._checker = SubmissionChecker(process.id, partial(process.cluster.checkers.violate, model=None))
        self._count = 0
        self._held = False

    def multi(
        self, operations: Sequence[StoreOperation], outcome: Outcome, written: Callable[[], None] | None = None
    ) -> None:
        """As VirtualStoreLink.multi, in the order of submission."""
        self._submit(tuple(operations), (), outcome, written)

    def get_nodes(self, paths: Sequence[str], outcome: Outcome) -> None:
        """As VirtualStoreLink.get_nodes, in the order of submission."""
        self._submit((), tuple(paths), outcome, None)

    def resume(self) -> None:
        """The process continues after a pause."""
        if self._held:
            self._held = False
            self._send()

    def _submit(
        self,
        operations: tuple[StoreOperation, ...],
        paths: tuple[str, ...],
        outcome: Outcome,
        written: Callable[[], None] | None,
    ) -> None:
        self._count += 1
        reply_to = _ReplyTo(self._count, outcome, written)
        if self._submissions.submit(Submission(self._process.link.session, operations, paths, reply_to)):
            self._scheduler.after(0, self._send)  # what the same step submits after it shares its transaction

    def _send(self) -> None:
        process = self._process
        if not process.running:
            self._held = True
            return
        batch = self._submissions.next()
        if not batch:
            return
        operations = [operation for submission in batch for operation in submission.operations]
        if batch[0].session is not process.link.session:
            error = SessionExpiredError("the session of the submission has ended")
            self._scheduler.after(ENDED_SESSION_US, self._finished, None, error)
        elif operations:
            process.link.multi(operations, self._finished, lambda: _written(batch))
        else:
            process.link.get_nodes(batch[0].paths, None, self._finished)

    def _finished(self, results: Any, error: CoordinationError | None) -> None:
        if not self._process.alive:
            return
        for submission, own, failure in self._submissions.finished(results, error):
            reply_to = submission.reply_to
            self._checker.answered(reply_to.number, submission.operations, own, failure)
            reply_to.outcome(own, failure)
        self._send()


def _written(batch: Sequence[Submission[MemorySession | None, _ReplyTo]]) -> None:
    for submission in batch:
        if submission.reply_to.written is not None:
            submission.reply_to.written()
