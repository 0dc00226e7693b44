"""Refusals: the batches that idempotent producers have still to send again, each because it was refused here.

A producer has several batches on their way at once. Where the first is refused, as by too small an ISR or by a replica
that does not lead yet, and the next ones arrive when all is well again, they are out of order only because of that. Who
hears so may take it for a loss: librdkafka then begins a new producer epoch for all its partitions, and what another
partition had taken without the answer getting through is written twice there. So those that follow a refused batch get
its answer, and come again behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kreplog.core.messages import ProducePartition
from kreplog.errors import ErrorCode
from kreplog.types import ProducerSequence, TopicPartition

HELD_FOR_MS = 1000
"""What was on its way when the batch was refused has arrived by then; who never sends that batch again is told so."""

MOST = 10_000
"""So many are remembered, the latest; without one its producer is told what Kafka would tell it."""

SequenceOf = Callable[[Any], ProducerSequence | None]

_SEQUENCES = 1 << 31


class _Refused(NamedTuple):
    epoch: int
    base_sequence: int
    error: ErrorCode
    until_ms: int


class Refusals:
    """See the module. sequence_of: where a producer's records, which nobody has checked yet, say that they stand; None
    where they are no idempotent producer's."""

    def __init__(self, sequence_of: SequenceOf) -> None:
        self._sequence_of = sequence_of
        self._refused: dict[tuple[TopicPartition, int], _Refused] = {}

    def __len__(self) -> int:
        return len(self._refused)

    def add(self, one: ProducePartition, error: ErrorCode, now_ms: int) -> None:
        """A batch was refused; of several the first counts."""
        self._forget(now_ms)
        if (sequence := self._sequence_of(one.records)) is None:
            return
        key = (one.partition, sequence.producer_id)
        known = self._refused.pop(key, None)
        first = sequence.base_sequence
        if known is not None and _is_at_or_behind(sequence, known):
            first = known.base_sequence
        self._refused[key] = _Refused(sequence.epoch, first, error, now_ms + HELD_FOR_MS)
        if len(self._refused) > MOST:
            del self._refused[next(iter(self._refused))]

    def taken(self, one: ProducePartition) -> None:
        """A batch was appended, or was there already: if it is the refused one or one behind it, that is over."""
        if self._refused and (sequence := self._sequence_of(one.records)) is not None:
            known = self._refused.get((one.partition, sequence.producer_id))
            if known is not None and (known.epoch != sequence.epoch or _is_at_or_behind(sequence, known)):
                del self._refused[one.partition, sequence.producer_id]

    def before(self, one: ProducePartition, now_ms: int) -> ErrorCode | None:
        """The answer to a batch that must come again before this one can be appended; None when there is no such."""
        return self._before(one, now_ms, first_only=False)

    def before_first(self, one: ProducePartition, now_ms: int) -> ErrorCode | None:
        """As `before`, where the producer's first batch must come again: a log that knows nothing of a producer would
        let it begin with this one, and have no place for that one any more."""
        return self._before(one, now_ms, first_only=True)

    def _before(self, one: ProducePartition, now_ms: int, first_only: bool) -> ErrorCode | None:
        self._forget(now_ms)
        if not self._refused or (sequence := self._sequence_of(one.records)) is None:
            return None
        known = self._refused.get((one.partition, sequence.producer_id))
        if known is None or (first_only and known.base_sequence != 0):
            return None
        is_behind = sequence.base_sequence != known.base_sequence and _is_at_or_behind(sequence, known)
        return known.error if is_behind else None

    def _forget(self, now_ms: int) -> None:
        """Those whose time is over; the oldest stand first."""
        while self._refused:
            key = next(iter(self._refused))
            if now_ms < self._refused[key].until_ms:
                break
            del self._refused[key]


def _is_at_or_behind(sequence: ProducerSequence, known: _Refused) -> bool:
    """Whether it is the refused batch, or one that follows it; sequences go round."""
    after = (sequence.base_sequence - known.base_sequence) % _SEQUENCES
    return known.epoch == sequence.epoch and after < _SEQUENCES // 2
