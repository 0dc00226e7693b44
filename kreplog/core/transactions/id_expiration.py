"""IdExpiration: deletes transactional ids that no producer has used for a long time.

An id is deleted by a record without a value, and forgotten once all in-sync replicas have that. Until then its
producers are refused as while any record of it is appended. A producer that comes back later is refused for good
(INVALID_PRODUCER_ID_MAPPING): it has to begin again. Source: Kafka, TransactionStateManager; KIP-98.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from kreplog.config import TransactionConfig
from kreplog.core.deletion_batches import deletion_batches
from kreplog.core.effects import StateChange, Steps, WallClock
from kreplog.core.timers import Deadline, Timers
from kreplog.core.transaction_messages import TransactionRecord
from kreplog.core.transactions.transaction_shard import TransactionalId, TransactionShard
from kreplog.core.transactions.transaction_states import IDLE
from kreplog.errors import ErrorCode

IDS_PER_STEP = 200
"""Transactional ids that one step checks; those of one shard that are deleted then share an append, if one batch
has room for them."""

Append = Callable[
    [TransactionShard, tuple[TransactionRecord, ...], Callable[[ErrorCode, int], Steps[None]]], Steps[None]
]
"""Append records, and take the step that is given once they are committed or refused."""


class IdExpiration:
    """Expires transactional ids. shards: those of the coordinator. is_led: whether it still leads one. deleted: the
    step for an id that is no longer there. The rest as in the coordinator."""

    def __init__(
        self,
        config: TransactionConfig,
        timers: Timers,
        shards: Callable[[], Iterable[TransactionShard]],
        is_led: Callable[[TransactionShard], bool],
        append: Append,
        deleted: Callable[[TransactionShard, TransactionalId, int], Steps[None]],
    ) -> None:
        self._config = config
        self._timers = timers
        self._shards = shards
        self._is_led = is_led
        self._append = append
        self._deleted = deleted
        self._next_check = Deadline(self._begin)
        self._to_check: Iterator[tuple[TransactionShard, TransactionalId]] = iter(())

    def loaded(self, now_ms: int) -> None:
        """A shard is loaded: its ids are checked from now on."""
        if self._next_check.at_ms is None:
            self._check_later(now_ms)

    def _check_later(self, now_ms: int) -> None:
        interval_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._timers.set(self._next_check, now_ms + interval_ms)

    def _begin(self, now_ms: int) -> Steps[None]:
        self._to_check = iter(
            [(shard, each) for shard in self._shards() if shard.active for each in shard.transactions.values()]
        )
        yield from self._check(now_ms)

    def _check(self, now_ms: int) -> Steps[None]:
        """Check as many ids as a step may, and the others in further steps."""
        wall_ms: int = yield WallClock()
        checked = list(islice(self._to_check, IDS_PER_STEP))
        expired: dict[TransactionShard, list[TransactionalId]] = {}
        for shard, transaction in checked:
            if self._is_led(shard) and self._is_expired(transaction, wall_ms):
                expired.setdefault(shard, []).append(transaction)
        for shard, transactions in expired.items():
            yield from self._delete(shard, transactions)
        if len(checked) == IDS_PER_STEP:
            self._timers.set(Deadline(self._check), now_ms + 1)
        else:
            self._check_later(now_ms)

    def _is_expired(self, transaction: TransactionalId, wall_ms: int) -> bool:
        unused_ms = wall_ms - transaction.stored.update_ms
        return self._may_expire(transaction) and unused_ms >= self._config.transactional_id_expiration_ms

    def _may_expire(self, transaction: TransactionalId) -> bool:
        return not transaction.pending and transaction.state in IDLE

    def _delete(self, shard: TransactionShard, transactions: list[TransactionalId]) -> Steps[None]:
        for transaction in transactions:
            transaction.pending = True
        for batch in deletion_batches(transactions, lambda each: len(each.transactional_id.encode())):
            records = tuple(TransactionRecord(transaction.transactional_id, None) for transaction in batch)
            yield from self._append(shard, records, partial(self._appended, shard, batch))

    def _appended(
        self, shard: TransactionShard, transactions: list[TransactionalId], error: ErrorCode, now_ms: int
    ) -> Steps[None]:
        for transaction in transactions:
            transaction.pending = False
            if error is ErrorCode.NONE:
                shard.remove(transaction.transactional_id)
            yield from self._deleted(shard, transaction, now_ms)
        if error is ErrorCode.NONE:
            yield StateChange("info", f"{shard.partition}: {len(transactions)} transactional ids are expired")
