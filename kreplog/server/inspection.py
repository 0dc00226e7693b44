"""Inspection of a producer's compressed batches, in a thread where they may expand to much.

A bound on what a batch expands to stands in its block headers or at its end, so what expands too far is refused before
anything is decompressed: MAX_RATIO times its size, or more in one request than MAX_REQUEST_BYTES. Every batch is
decompressed once: here or, if little, as it is appended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kreplog._native.encoded import InspectedBatches, inflated_sizes
from kreplog.core.messages import ProducePartition, ProduceRequest
from kreplog.errors import KreplogError, RecordTooLargeError

INLINE_INFLATED = 1 << 20
"""What one request's batches may expand to on the event loop."""

MAX_RATIO = 256
ALWAYS_ALLOWED = 8 << 20
"""A batch may expand to so much whatever its ratio."""

MAX_REQUEST_BYTES = 64 << 20
"""What the batches of one request may expand to together; of one that is larger than that, sixteen times its size."""


def refusals(request: ProduceRequest, frame_bytes: int) -> dict[int, KreplogError] | None:
    """By position, the partitions whose batches expand too far or are none; None where nothing needs a thread.

    Headers are all that is read."""
    total, refused = 0, {}
    most = max(MAX_REQUEST_BYTES, 16 * frame_bytes)
    for position, one in enumerate(request.partitions):
        try:
            compressed, inflated = inflated_sizes(one.records) if len(one.records) else (0, 0)
        except KreplogError as error:
            refused[position] = error
            continue
        if inflated > max(ALWAYS_ALLOWED, MAX_RATIO * compressed) or total + inflated > most:
            refused[position] = RecordTooLargeError(
                f"{one.partition}: {compressed} bytes of compressed batches expand to as many as {inflated}, more than "
                f"{MAX_RATIO} times their size or, with others of the request, than {most}: send smaller batches",
                partition=str(one.partition),
            )
        else:
            total += inflated
    return refused if refused or total > INLINE_INFLATED else None


def inspected(request: ProduceRequest, refused: dict[int, KreplogError]) -> ProduceRequest:
    """The request with every batch inspected, or with what an append of it raises; takes its time."""
    return replace(request, partitions=tuple(_inspected(request.partitions, refused)))


def _inspected(partitions: Sequence[ProducePartition], refused: dict[int, KreplogError]) -> list[ProducePartition]:
    out = []
    for position, one in enumerate(partitions):
        if len(one.records):
            error = refused.get(position)
            try:
                records = InspectedBatches(one.records, error)
            except KreplogError as found:
                records = InspectedBatches(one.records, found)
            one = replace(one, records=records)
        out.append(one)
    return out
