"""Arrow record batches of several partitions, one after the other or merged by time as `merge` defines it.

What is merged is looked at by NumPy, a piece at a time: the pieces at hand, up to the partition that is least far in
time, sorted by (latest timestamp so far, partition, offset).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

Stream = tuple[int, Iterator["pa.RecordBatch"]]


def in_turn(streams: Iterable[Stream]) -> Iterator[pa.RecordBatch]:
    """All batches, with a column `partition`."""
    for number, batches in streams:
        for batch in batches:
            yield _numbered(number, batch)


def _numbered(number: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    return batch.append_column("partition", pa.array(np.full(len(batch), number, np.int32)))


class _Ahead:
    """A partition's next piece. latest: of each row, the latest timestamp up to it in this piece."""

    def __init__(self, number: int, batches: Iterator[pa.RecordBatch]) -> None:
        self.number = number
        self.batches = batches
        self.piece: Any = None
        self.latest: Any = None

    def fill(self) -> bool:
        """Have rows, if there are any left."""
        import numpy as np

        while self.piece is None or not len(self.piece):
            batch = next(self.batches, None)
            if batch is None:
                self.piece = None
                return False
            self.piece = _numbered(self.number, batch)
            times = np.asarray(batch.column("timestamp").cast("int64"))
            self.latest = np.maximum.accumulate(times)
        return True

    def take(self, count: int) -> tuple[pa.RecordBatch, npt.NDArray[np.int64]]:
        taken = self.piece.slice(0, count), self.latest[:count]
        self.piece, self.latest = self.piece.slice(count), self.latest[count:]
        return taken


def by_time(streams: Sequence[Stream]) -> Iterator[pa.RecordBatch]:
    """All rows in order, with a column `partition`; each batch must have its timestamps."""
    ahead = [_Ahead(number, batches) for number, batches in sorted(streams, key=lambda stream: stream[0])]
    while ahead := [partition for partition in ahead if partition.fill()]:
        yield from _earliest(ahead)


def _earliest(ahead: list[_Ahead]) -> Iterator[pa.RecordBatch]:
    """The rows that no later piece can precede: all of the partition that is least far, and what is earlier."""
    import numpy as np
    import pyarrow as pa

    bound, last = min((int(partition.latest[-1]), partition.number) for partition in ahead)
    taken = []
    for partition in ahead:
        side: Literal["left", "right"] = "right" if partition.number <= last else "left"
        count = int(np.searchsorted(partition.latest, bound, side))
        if count:
            taken.append(partition.take(count))
    order = np.argsort(np.concatenate([latest for _, latest in taken]), kind="stable")
    table = pa.Table.from_batches([piece for piece, _ in taken])
    yield from (table if len(taken) == 1 else table.take(pa.array(order))).combine_chunks().to_batches()
