"""SequenceGapGrace: when a gap in a producer's sequence numbers is retriable rather than an error (KIP-98)."""

from __future__ import annotations

SEQUENCE_GAP_GRACE_MS = 60_000
"""How long after a change of leader or a refusal the retry of a batch may arrive: longer than the request timeouts of
the common clients (30 s; librdkafka 60 s)."""


class SequenceGapGrace:
    """The period in which the missing batch before a gap may still arrive.

    An idempotent producer may have sent that batch to the previous leader, or it was refused here; the producer retries
    it, but later batches may overtake the retry. To append those would lose the missing batch: a client that sees a
    later batch acknowledged, as librdkafka does, may take the earlier one for acknowledged as well.
    """

    __slots__ = ("_until_ms",)

    def __init__(self) -> None:
        self._until_ms = 0

    def begin(self, now_ms: int) -> None:
        """Start the period, or extend it."""
        self._until_ms = now_ms + SEQUENCE_GAP_GRACE_MS

    def applies(self, now_ms: int) -> bool:
        """Whether a gap may still be filled."""
        return now_ms < self._until_ms
