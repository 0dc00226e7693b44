"""Hypothesis strategies for records and batches, as the reference describes them."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.reference import CONTROL, LOG_APPEND_TIME, Batch, Rec

payloads = st.none() | st.binary(max_size=200)
header_lists = st.lists(st.tuples(st.text(max_size=12), st.none() | st.binary(max_size=20)), max_size=4).map(tuple)
timestamps = st.integers(-1, 2**53) | st.integers(1_700_000_000_000 - 5000, 1_700_000_000_000 + 5000)


@st.composite
def records(draw: st.DrawFn, base_offset: int = 0, max_size: int = 12) -> tuple[Rec, ...]:
    """Records at consecutive offsets; timestamps jump both ways."""
    drawn = draw(st.lists(st.tuples(timestamps, payloads, payloads, header_lists), min_size=1, max_size=max_size))
    return tuple(Rec(base_offset + number, *fields) for number, fields in enumerate(drawn))


@st.composite
def batches(draw: st.DrawFn, base_offset: int | None = None) -> Batch:
    """Any sound uncompressed batch, producer fields, log-append time and control flag included."""
    start = draw(st.integers(0, 2**62)) if base_offset is None else base_offset
    found = draw(records(start))
    attributes = draw(st.sampled_from([0, LOG_APPEND_TIME, CONTROL]))
    largest = max(record.timestamp for record in found)
    producer = draw(
        st.none() | st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1))
    )
    producer_id, producer_epoch, sequence = producer or (-1, -1, -1)
    if attributes == LOG_APPEND_TIME:
        found = tuple(Rec(r.offset, largest, r.key, r.value, r.headers) for r in found)
    return Batch(
        found, start, draw(st.integers(0, 2**31 - 1)), attributes, found[0].timestamp, largest,
        producer_id, producer_epoch, sequence,
    )  # fmt: skip
