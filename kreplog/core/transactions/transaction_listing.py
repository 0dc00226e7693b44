"""Answers about transactional ids: DescribeTransactions and ListTransactions (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from kreplog.core.effects import Reply, Steps, WallClock
from kreplog.core.patterns import whole_text_matcher
from kreplog.core.timers import Deadline, Timers
from kreplog.core.transaction_messages import (
    DescribedTransaction,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kreplog.core.transactions.transaction_shard import TransactionalId, TransactionShard
from kreplog.core.transactions.transaction_states import TransactionState
from kreplog.errors import ErrorCode

IDS_PER_STEP = 500
"""Transactional ids that one step of a listing looks at."""

CHARACTERS_PER_STEP = 2000
"""Characters of them, about, that it compares with a pattern: for each RE2 takes up to 30 µs, whatever a client's ids
and patterns are."""

_LABELS = frozenset(state.label for state in TransactionState)


def describe(transactional_id: str, shard: TransactionShard | ErrorCode) -> DescribedTransaction:
    """A transaction as it is described. shard: that of the id, or why this broker cannot answer for it."""
    if isinstance(shard, ErrorCode):
        return DescribedTransaction(shard, transactional_id)
    transaction = shard.transactions.get(transactional_id)
    if transaction is None or transaction.stored.producer_epoch < 0:  # its first record is being appended
        return DescribedTransaction(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id)
    stored = transaction.stored
    return DescribedTransaction(
        ErrorCode.NONE,
        transactional_id,
        transaction.state.label,
        stored.timeout_ms,
        stored.start_ms,
        stored.producer_id,
        stored.producer_epoch,
        stored.partitions,
    )


class TransactionListings:
    """ListTransactions requests under way, each walked in steps. shards: those of the coordinator. is_led: whether it
    still leads one."""

    def __init__(
        self,
        timers: Timers,
        shards: Callable[[], Iterable[TransactionShard]],
        is_led: Callable[[TransactionShard], bool],
    ) -> None:
        self._timers = timers
        self._shards = shards
        self._is_led = is_led

    def begin(self, reply_to: Hashable, request: ListTransactionsRequest, now_ms: int) -> Steps[None]:
        """Reply with the ids of all shards that pass the request's filters, in this step or a later one; with an error
        while one of the shards is loaded, or moves away, and for a pattern that is no regular expression of RE2."""
        unknown = tuple(state for state in request.states if state not in _LABELS)
        matches = whole_text_matcher(request.pattern) if request.pattern else bool
        if matches is None:
            yield Reply(reply_to, ListTransactionsResponse(ErrorCode.INVALID_REGULAR_EXPRESSION, unknown))
            return
        wall_ms: int = yield WallClock()
        wanted = frozenset(request.states), frozenset(request.producer_ids)
        listing = _TransactionListing(reply_to, request, *wanted, wall_ms, matches, unknown, deque(self._shards()))
        yield from self._go_on(listing, now_ms)

    def _go_on(self, listing: _TransactionListing, now_ms: int) -> Steps[None]:
        remaining = IDS_PER_STEP
        while listing.shards and remaining > 0:
            shard = listing.shards[0]
            if not (shard.active and self._is_led(shard)):
                response = ListTransactionsResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, listing.unknown_states)
                yield Reply(listing.reply_to, response)
                return
            remaining -= listing.take(shard, remaining)
        if listing.shards:
            self._timers.set(Deadline(partial(self._go_on, listing)), now_ms + 1)
        else:
            response = ListTransactionsResponse(ErrorCode.NONE, listing.unknown_states, tuple(listing.found))
            yield Reply(listing.reply_to, response)


@dataclass(slots=True)
class _TransactionListing:
    """A request under way. states, producer_ids: those that it wants, empty for all. shards: those that are not walked
    to their end. ids: those left of the first shard, as they were when its turn came; None before."""

    reply_to: Hashable
    request: ListTransactionsRequest
    states: frozenset[str]
    producer_ids: frozenset[int]
    wall_ms: int
    matches: Callable[[str], object]
    unknown_states: tuple[str, ...]
    shards: deque[TransactionShard]
    ids: Iterator[TransactionalId] | None = None
    found: list[ListedTransaction] = field(default_factory=list)

    def take(self, shard: TransactionShard, most: int) -> int:
        """Walk ids of the first shard until they have cost `most`, or to its end. Returns the cost: of an id 1, or as
        many ids as could be looked at without a pattern in the time that the comparison may take."""
        if self.ids is None:
            self.ids = iter(list(shard.transactions.values()))
        cost = 0
        for each in self.ids:
            name = each.transactional_id
            if self._passes(each) and self.matches(name):
                self.found.append(ListedTransaction(name, each.stored.producer_id, each.state.label))
            cost += max(1, len(name) * IDS_PER_STEP // CHARACTERS_PER_STEP) if self.request.pattern else 1
            if cost >= most:
                return cost
        self.shards.popleft()
        self.ids = None
        return cost

    def _passes(self, transaction: TransactionalId) -> bool:
        stored, longer_than_ms = transaction.stored, self.request.longer_than_ms
        if stored.producer_epoch < 0:
            return False
        if self.states and transaction.state.label not in self.states:
            return False
        if self.producer_ids and stored.producer_id not in self.producer_ids:
            return False
        return longer_than_ms < 0 or 0 <= stored.start_ms < self.wall_ms - longer_than_ms
