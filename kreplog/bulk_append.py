"""Appends of many batches that become visible together, in one log or in several: what sinks are built from.

`Log.append_once` is all that one log needs. Several logs, or batches that other processes encode, take the parts of it:
PartitionedWriter stages batches in a file, BulkAppend puts them into a log, commits, and shows them to readers.
`encode_arrow` makes batches of rows that keep their timestamps.
"""

from __future__ import annotations

from collections.abc import Iterator

from kreplog._native.arrow_records import BatchEncoder, arrow_pieces
from kreplog._native.bulk import BulkAppend, last_sequence
from kreplog._native.checkpoint import atomic_write
from kreplog._native.ledger import latest_append
from kreplog._native.partitioned import NULL_HEADER, PartitionedWriter
from kreplog._native.partitioner import murmur2, partition_for

__all__ = [
    "NULL_HEADER",
    "BulkAppend",
    "PartitionedWriter",
    "atomic_write",
    "encode_arrow",
    "last_sequence",
    "latest_append",
    "murmur2",
    "partition_for",
]


def encode_arrow(data: object, *, batch_bytes: int = 65536, compression: str = "none") -> Iterator[bytes]:
    """Iterate over the rows of `data`, in order, as record batches for `Log.append_once`.

    data: a table, record batch, reader or DataFrame that exports the Arrow PyCapsule interface, with the columns value,
    key (binary or string), timestamp and headers, all optional; a row without a timestamp gets the time of the call.
    batch_bytes: of a batch before compression; a larger record has a batch of its own.
    Raises ArgumentTypeError, UsageError (compression, a timestamp before 1970, a record of 1 GiB).
    """
    encoder = BatchEncoder(batch_bytes, compression)
    for piece in arrow_pieces(data):
        if not piece.length:
            continue
        rows = piece.whole(0)
        while rows.position < rows.length:
            batch, _ = rows.next_batch(encoder, -1, -1, -1)
            yield batch
