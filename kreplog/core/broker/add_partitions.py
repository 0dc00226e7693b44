"""What a leader sends a coordinator about the partitions of transactions, in one request (KIP-890).

A transactional id stands once in a request: with the same producer and the same purpose, its partitions are joined.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from kreplog.core.effects import SendAddPartitions
from kreplog.core.events import AddPartitionsReplied
from kreplog.core.transaction_messages import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse

RESPONSE_TIMEOUT_MS = 30_000
"""How long a leader waits for a coordinator's response, as for a lost one."""


@dataclass(frozen=True, slots=True)
class CoalescedAddPartitions:
    """One request. transactions: what it holds. effects: those that it carries out."""

    transactions: tuple[AddPartitionsToTxnRequest, ...]
    effects: tuple[SendAddPartitions, ...]

    def replied(self, responses: Mapping[str, AddPartitionsToTxnResponse]) -> Iterator[AddPartitionsReplied]:
        """The outcomes for the replication core. responses: by transactional id; empty if the response is lost."""
        for effect in self.effects:
            yield outcome_of(effect, responses.get(effect.request.transactional_id))


def coalesce(waiting: deque[SendAddPartitions]) -> CoalescedAddPartitions:
    """Remove the next request to a coordinator from what waits for it, oldest first."""
    transactions: dict[str, AddPartitionsToTxnRequest] = {}
    together, others = [], []
    for effect in waiting:
        request = effect.request
        first = transactions.setdefault(request.transactional_id, request)
        if not _joins(first, request):
            others.append(effect)
            continue
        partitions = dict.fromkeys((*first.partitions, *request.partitions))
        transactions[request.transactional_id] = replace(first, partitions=tuple(partitions))
        together.append(effect)
    waiting.clear()
    waiting.extend(others)
    return CoalescedAddPartitions(tuple(transactions.values()), tuple(together))


def _joins(first: AddPartitionsToTxnRequest, request: AddPartitionsToTxnRequest) -> bool:
    """Whether they differ in nothing but their partitions."""
    return replace(first, partitions=request.partitions) == request


def outcome_of(effect: SendAddPartitions, response: AddPartitionsToTxnResponse | None) -> AddPartitionsReplied:
    """The outcome for the effect's partition; None: the response is lost."""
    if response is None:
        return AddPartitionsReplied(effect.tag)
    (partition,) = effect.request.partitions
    return AddPartitionsReplied(effect.tag, dict(response.partitions).get(partition), response.coordinator_epoch)


class GatheredResponses:
    """The coordinator's responses to the transactions of one request."""

    def __init__(self, transactions: int) -> None:
        self._missing = transactions
        self._responses: dict[str, AddPartitionsToTxnResponse] = {}

    def add(self, transactional_id: str, response: AddPartitionsToTxnResponse) -> dict[str, AddPartitionsToTxnResponse]:
        """All responses once this is the last; empty before."""
        self._missing -= 1
        self._responses[transactional_id] = response
        return {} if self._missing else self._responses
