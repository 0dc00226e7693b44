"""The checker of what producers and consumers get.

too early        an acks=all batch is committed when it is acknowledged, at that offset     at the response
refused          ... and not refused because an earlier acknowledged batch is missing       at the response
phantom          a consumer sees committed records only, never another one at that offset   at the response
gap              ... offset by offset, from where it began                                  at the response
out of range     ... and its position is never outside the log                              at the response
unrequested      a fetch response has what its session has, each partition once             at the response
watermark fell   a client never gets a lower high watermark from the same or a later leader at the response
misdirected      a leader sends a consumer to a follower only if that has its offset        at the response (KIP-392)
"""

from __future__ import annotations

from typing import Protocol

from kreplog.sim.history import (
    DeletionDone,
    DeletionRequested,
    Event,
    Fail,
    Misdirected,
    Ok,
    Position,
    Read,
    UnrequestedPartition,
    Watermark,
)
from kreplog.sim.machines.partition_model import PartitionModel, describe
from kreplog.types import TopicPartition


class Violate(Protocol):
    """Records a violation; Checkers.violate."""

    def __call__(self, kind: str, text: str, model: PartitionModel | None, offset: int = -1) -> None: ...


class ClientChecker:
    """Checks the responses to all clients of one run. violate: takes kind, text, partition and offset of a violation.
    counts: records acknowledged under acks=all, and read."""

    def __init__(self, violate: Violate) -> None:
        self._violate = violate
        self._positions: dict[tuple[str, TopicPartition, str], int] = {}
        self._watermarks: dict[tuple[str, TopicPartition, str], tuple[int, int]] = {}
        self.counts = {"acked": 0, "read": 0}

    def observe(self, model: PartitionModel, event: Event) -> None:
        """Check an event of a client. model: of the partition of the event."""
        match event:
            case Ok(acks=-1):
                self._acknowledged(model, event)
            case Fail(acks=-1):
                text = f"{event.client} was refused sequence {event.sequence} of producer {event.producer_id}"
                if not model.forgotten(event.producer_id):
                    self._violate("refused", f"{text}: {event.error}", model)
            case Read():
                self._read(model, event)
            case Watermark():
                self._watermark(model, event)
            case Position():
                key = (event.client, event.partition, event.topic_id)
                before, self._positions[key] = self._positions.get(key, -1), event.offset
                if event.offset < 0 and not 0 <= before < model.released:
                    self._violate("out of range", f"{event.client}: {event.reason}", model)
            case Misdirected():
                self._misdirected(model, event)
            case UnrequestedPartition():
                self._violate("unrequested", f"{event.client} gets {event.partition}, which is {event.reason}", None)
            case DeletionRequested():
                model.all_requested = model.all_requested or event.offset < 0
                model.released = max(model.released, event.offset)
            case DeletionDone():
                if event.low_watermark < event.offset:
                    text = f"deletion below {event.offset} is done, but the low watermark is {event.low_watermark}"
                    self._violate("too early", text, model, event.offset)

    def _acknowledged(self, model: PartitionModel, event: Ok) -> None:
        self.counts["acked"] += len(event.values)
        for index, value in enumerate(event.values):
            sequence = event.sequence + index
            has_offset = event.base_offset >= 0
            offset = event.base_offset + index if has_offset else model.place_of(event.producer_id, sequence)
            fact = (event.producer_id, sequence, value.encode())
            model.acked.append((offset, fact))
            found = model.values.get(offset)
            if found != fact:
                committed = "no record" if found is None else describe(found)
                where = f"at offset {offset}" if has_offset else "without an offset"
                text = f"{event.client} got {describe(fact)} acknowledged {where}, but {committed} is committed there"
                self._violate("too early" if found is None else "two values", text, model, offset)

    def _read(self, model: PartitionModel, event: Read) -> None:
        self.counts["read"] += 1
        key = (event.client, event.partition, event.topic_id)
        expected = self._positions.get(key, event.offset)
        self._positions[key] = event.offset + 1
        if event.offset != expected:
            text = f"{event.client} was at offset {expected} and got offset {event.offset}"
            self._violate("gap", text, model, event.offset)
        fact = (event.producer_id, event.sequence, event.value.encode())
        found = model.values.get(event.offset)
        if found != fact:
            committed = "no record" if found is None else describe(found)
            text = (
                f"{event.client} read {describe(fact)} at offset {event.offset} from broker {event.broker} in "
                f"leader epoch {event.leader_epoch}, where {committed} is committed"
            )
            self._violate("phantom", text, model, event.offset)

    def _watermark(self, model: PartitionModel, event: Watermark) -> None:
        if event.high_watermark > model.end:
            text = f"{event.client} got high watermark {event.high_watermark}; only {model.end} is committed"
            self._violate("phantom", text, model, model.end)
        key = (event.client, event.partition, event.topic_id)
        epoch, highest = self._watermarks.get(key, (-1, -1))
        if event.leader_epoch < epoch or event.source == "replica":
            return
        if event.high_watermark < highest:
            text = (
                f"{event.client} got high watermark {highest} in leader epoch {epoch}, "
                f"then {event.high_watermark} from broker {event.broker} in leader epoch {event.leader_epoch}"
            )
            self._violate("watermark fell", text, model, event.high_watermark)
        self._watermarks[key] = (event.leader_epoch, event.high_watermark)

    def _misdirected(self, model: PartitionModel, event: Misdirected) -> None:
        """Records may be deleted meanwhile."""
        if event.offset >= model.released:
            text = (
                f"{event.client} was sent to broker {event.broker} in leader epoch {event.leader_epoch}, whose log "
                f"does not have its offset {event.offset}"
            )
            self._violate("misdirected", text, model, event.offset)
