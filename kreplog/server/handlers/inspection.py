"""Inspection of a producer's compressed batches: decompression bombs are refused, large batches checked in a thread.

The block headers or the trailer of a compressed batch bound its decompressed size, so oversized batches are refused
before anything is decompressed. Each batch is decompressed once: in a thread if the request is large, else on append.
"""

from __future__ import annotations

from dataclasses import replace

from kreplog.core.messages import ProducePartition, ProduceRequest
from kreplog.errors import KreplogError, RecordTooLargeError
from kreplog.managed_log import InspectedBatches, inflated_sizes

INLINE_INFLATED = 1 << 20
"""Decompressed bytes of one request that are checked on the event loop; more go to a thread."""

MAX_RATIO = 256
"""Maximum of a partition's decompressed bytes by its compressed ones, above ALWAYS_ALLOWED."""

ALWAYS_ALLOWED = 8 << 20
"""Decompressed bytes of one partition that are allowed at any ratio."""

MAX_REQUEST_BYTES = 64 << 20
"""Maximum of decompressed bytes of one request; sixteen times the request's size if that is more."""


def refusals(request: ProduceRequest, frame_bytes: int) -> dict[int, KreplogError] | None:
    """Errors of corrupt and oversized batches, by index in request.partitions; None if nothing has to go to a thread.

    frame_bytes: size of the request. Only batch and block headers are read."""
    total, refused = 0, {}
    limit = max(MAX_REQUEST_BYTES, 16 * frame_bytes)
    for index, produced in enumerate(request.partitions):
        try:
            compressed, inflated = inflated_sizes(produced.records) if len(produced.records) else (0, 0)
        except KreplogError as error:
            refused[index] = error
            continue
        if inflated > max(ALWAYS_ALLOWED, MAX_RATIO * compressed) or total + inflated > limit:
            refused[index] = RecordTooLargeError(
                f"{produced.partition}: {compressed} bytes of compressed batches expand to up to {inflated}, more than "
                f"{MAX_RATIO} times their size or, with others of the request, than {limit}: send smaller batches",
                partition=str(produced.partition),
            )
        else:
            total += inflated
    return refused if refused or total > INLINE_INFLATED else None


def inspected(request: ProduceRequest, refused: dict[int, KreplogError]) -> ProduceRequest:
    """The request with InspectedBatches for records, each with its maximum timestamps or the error that an append
    raises. Blocking: decompresses all batches that `refused`, from `refusals`, does not name."""
    partitions = (_inspected(produced, refused.get(index)) for index, produced in enumerate(request.partitions))
    return replace(request, partitions=tuple(partitions))


def _inspected(produced: ProducePartition, error: KreplogError | None) -> ProducePartition:
    if not len(produced.records):
        return produced
    try:
        records = InspectedBatches(produced.records, error)
    except KreplogError as found:
        records = InspectedBatches(produced.records, found)
    return replace(produced, records=records)
