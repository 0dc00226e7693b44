"""Mutations of what a broker submits to the coordination store: shared transactions, their results and refusals.

Two rules have none: submissions of two sessions share no transaction, since in the simulator a process has the outcome
of all that it submitted in one session before it is in the next; and a refusal together is settled before what was
submitted later. tests/core/broker/test_store_submissions.py has both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kreplog.core.broker import store_submissions
from kreplog.core.broker.store_submissions import StoreSubmissions, Submission
from kreplog.sim.mutations.mutation import MutationGroup, Patch

MUTATIONS = MutationGroup()


@MUTATIONS.add("shared-results-to-the-wrong-change")
def _shared_results_to_the_wrong_change() -> list[Patch]:
    """The changes that share a transaction get each other's results, and leaders another ISR version than their own."""
    right = store_submissions.split

    def split(batch: Sequence[Submission[Any, Any]], results: Sequence[Any]) -> list[Sequence[Any]]:
        return right(batch, results)[::-1]

    return [(store_submissions, "split", split)]


@MUTATIONS.add("shared-refusal-refuses-all")
def _shared_refusal_refuses_all() -> list[Patch]:
    """A change that shares a transaction is refused because the store has refused another one."""
    return [(store_submissions, "is_refusal", lambda error: False)]


@MUTATIONS.add("refused-together-run-in-reverse")
def _refused_together_run_in_reverse() -> list[Patch]:
    """Changes that were refused together are run one by one in reverse order."""

    def run_singly(self: StoreSubmissions[Any, Any], refused: Sequence[Submission[Any, Any]]) -> None:
        right(self, refused[::-1])

    right = StoreSubmissions._run_singly
    return [(StoreSubmissions, "_run_singly", run_singly)]


@MUTATIONS.add("refused-together-run-twice")
def _refused_together_run_twice() -> list[Patch]:
    """Changes that were refused together are run one by one, and then again."""

    def run_singly(self: StoreSubmissions[Any, Any], refused: Sequence[Submission[Any, Any]]) -> None:
        right(self, (*refused, *refused))

    right = StoreSubmissions._run_singly
    return [(StoreSubmissions, "_run_singly", run_singly)]
