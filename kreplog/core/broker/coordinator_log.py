"""What the effects of a coordinator mean for its log, and which events follow from their outcomes.

The group coordinator's log is `__consumer_offsets`, that of transactions `__transaction_state`. An append is a produce
to this broker's own replication core. A read takes what is committed, in slices, from the log start or later. Markers
are a produce to the leaders of their partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from kreplog.core.effects import AppendGroupRecords, ReadGroupRecords, SendMarkers
from kreplog.core.events import GroupRecordsAppended, GroupRecordsRead, MarkersReplied
from kreplog.core.messages import CoordinatorProduce, ProducedPartition, ProducePartition, ProduceResponse
from kreplog.errors import InvariantError, KreplogError

ACKS_ALL = -1

Records = tuple[tuple[int, Any], ...]
"""Decoded records of a coordinator, each with its offset."""


class CoordinatorLog(Protocol):
    """A coordinator's partition, open for reading."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def fetch(self, offset: int) -> tuple[Records, int]:
        """Records from `offset` on, of at least one whole batch, and the offset after the last batch. They may lie
        above the high watermark. Raises KreplogError."""


def produce(effect: AppendGroupRecords, batch: Any) -> CoordinatorProduce:
    """The request for the replication core. batch: the effect's records, encoded."""
    partitions = (ProducePartition(effect.partition, batch),)
    transaction = effect.transactional_id, effect.adds_partitions
    return CoordinatorProduce(ACKS_ALL, effect.timeout_ms, partitions, effect.leader_epoch, *transaction)


def appended(effect: AppendGroupRecords, response: ProduceResponse) -> GroupRecordsAppended:
    """The outcome of the effect's produce."""
    (produced,) = response.partitions
    return GroupRecordsAppended(effect.tag, produced.error, produced.base_offset)


def read(effect: ReadGroupRecords, log: CoordinatorLog | None) -> GroupRecordsRead:
    """Read the next slice. log: None if this broker's replica is not open."""
    if log is None:
        return _failed(effect, "its replica is not open")
    try:
        offset, end = max(effect.offset, log.log_start_offset), log.high_watermark
        records, next_offset = _committed(*log.fetch(offset), end) if offset < end else ((), offset)
    except InvariantError:
        raise
    except KreplogError as error:
        return _failed(effect, str(error))
    return GroupRecordsRead(effect.partition, effect.leader_epoch, effect.offset, records, next_offset)


def _committed(records: Records, next_offset: int, end: int) -> tuple[Records, int]:
    """The records below the high watermark `end`, and where the next slice begins."""
    if next_offset <= end:
        return records, next_offset
    return tuple(record for record in records if record[0] < end), end


def _failed(effect: ReadGroupRecords, failure: str) -> GroupRecordsRead:
    return GroupRecordsRead(effect.partition, effect.leader_epoch, effect.offset, failure=failure)


def markers_replied(effect: SendMarkers, partitions: Iterable[ProducedPartition]) -> MarkersReplied:
    """The outcome of the effect. partitions: its own of the response; none if that is lost."""
    return MarkersReplied(effect.tag, tuple((produced.partition, produced.error) for produced in partitions))
