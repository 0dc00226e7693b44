"""Answers about transactional ids: DescribeTransactions and ListTransactions (KIP-664, KIP-994, KIP-1152)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kreplog.core.transaction_messages import (
    DescribedTransaction,
    ListedTransaction,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kreplog.core.transactions.transaction_shard import TransactionalId, TransactionShard
from kreplog.core.transactions.transaction_states import TransactionState
from kreplog.errors import ErrorCode

_LABELS = frozenset(state.label for state in TransactionState)
_PATTERN_MEMORY = 1 << 20


def describe(transactional_id: str, shard: TransactionShard | ErrorCode) -> DescribedTransaction:
    """shard: that of the id, or why this broker cannot answer for it."""
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


def list_transactions(
    shards: Iterable[TransactionShard], request: ListTransactionsRequest, wall_ms: int
) -> ListTransactionsResponse:
    """Those of all shards that pass the request's filters; an error while one of them is being loaded, or for a pattern
    that is no regular expression of RE2."""
    unknown = tuple(state for state in request.states if state not in _LABELS)
    matches = _matcher(request.pattern)
    if matches is None:
        return ListTransactionsResponse(ErrorCode.INVALID_REGULAR_EXPRESSION, unknown)
    listed: list[ListedTransaction] = []
    for shard in shards:
        if not shard.active:
            return ListTransactionsResponse(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, unknown)
        listed += [
            ListedTransaction(name, transaction.stored.producer_id, transaction.state.label)
            for name, transaction in shard.transactions.items()
            if _passes(transaction, request, wall_ms) and matches(name)
        ]
    return ListTransactionsResponse(ErrorCode.NONE, unknown, tuple(listed))


def _matcher(pattern: str) -> Callable[[str], object] | None:
    """Of whole ids, in time linear in them whoever wrote the pattern; None if it is no regular expression."""
    if not pattern:
        return bool
    import re2  # of the extra `cluster`, which simulations do without

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PATTERN_MEMORY
    try:
        matches: Callable[[str], object] = re2.compile(pattern, options).fullmatch
    except re2.error:
        return None
    return matches


def _passes(transaction: TransactionalId, request: ListTransactionsRequest, wall_ms: int) -> bool:
    stored = transaction.stored
    if stored.producer_epoch < 0:
        return False
    if request.states and transaction.state.label not in request.states:
        return False
    if request.producer_ids and stored.producer_id not in request.producer_ids:
        return False
    return request.longer_than_ms < 0 or 0 <= stored.start_ms < wall_ms - request.longer_than_ms
