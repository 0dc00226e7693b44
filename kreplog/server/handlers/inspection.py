"""Inspection of a producer's batches: decompression bombs are refused, large batches checked in a thread.

The block headers or the trailer of a compressed batch bound its decompressed size, so oversized batches are refused
before anything is decompressed. A batch is decompressed in a thread if the request is large, else on append; one that
its topic's compression.type wants otherwise is recompressed, in a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from kreplog.config import LogConfig
from kreplog.core.broker.client_requests import check_decompressed_size
from kreplog.core.messages import PartitionState, ProducePartition, ProduceRequest
from kreplog.errors import KreplogError
from kreplog.managed_log import InspectedBatches, has_other_codec, inflated_sizes, recompressed
from kreplog.types import TopicPartition

INLINE_INFLATED = 1 << 20
"""Decompressed bytes of one request that are checked on the event loop; more go to a thread."""


def refusals(request: ProduceRequest, frame_bytes: int) -> dict[int, KreplogError] | None:
    """Errors of corrupt and oversized batches, by index in request.partitions; None if nothing has to go to a thread.

    frame_bytes: size of the request. Only batch and block headers are read."""
    total = 0
    refused: dict[int, KreplogError] = {}
    for index, produced in enumerate(request.partitions):
        try:
            compressed, inflated = inflated_sizes(produced.records) if len(produced.records) else (0, 0)
            check_decompressed_size(produced.partition, compressed, inflated, total, frame_bytes)
        except KreplogError as error:
            refused[index] = error
        else:
            total += inflated
    return refused if refused or total > INLINE_INFLATED else None


class Recompression(NamedTuple):
    """The recompression that a partition's batches need. codec: "none" for no compression. level: of the codec, 0
    if it has none. max_message_bytes: maximum of a batch as its producer sent it."""

    codec: str
    level: int
    max_message_bytes: int


def recompressions(
    request: ProduceRequest, states: Mapping[TopicPartition, PartitionState], log: LogConfig
) -> dict[int, Recompression]:
    """The batches whose topic wants another codec, by index in request.partitions. log: the broker's settings."""
    found = {}
    for index, produced in enumerate(request.partitions):
        state = states.get(produced.partition)
        if state is None or (codec := state.config.codec) is None:
            continue
        if has_other_codec(produced.records, codec):
            config = state.config
            limit = log.max_message_bytes if config.max_message_bytes is None else config.max_message_bytes
            found[index] = Recompression(codec, config.compression_level, limit)
    return found


def inspected(
    request: ProduceRequest, refused: Mapping[int, KreplogError], codecs: Mapping[int, Recompression]
) -> ProduceRequest:
    """The request with InspectedBatches for records, each with its maximum timestamps or the error that an append
    raises. Blocking: recompresses what `codecs`, from `recompressions`, names, and decompresses all batches that
    `refused`, from `refusals`, does not name."""
    partitions = (
        _inspected(produced, refused.get(index), codecs.get(index)) for index, produced in enumerate(request.partitions)
    )
    return replace(request, partitions=tuple(partitions))


def _inspected(
    produced: ProducePartition, error: KreplogError | None, recompression: Recompression | None
) -> ProducePartition:
    if not len(produced.records):
        return produced
    sent = produced.records
    try:
        if error is None and recompression is not None:
            sent = recompressed(sent, *recompression, str(produced.partition))
        records = InspectedBatches(sent, error)
    except KreplogError as found:
        records = InspectedBatches(sent, found)
    return replace(produced, records=records)
