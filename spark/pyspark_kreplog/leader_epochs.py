"""Whether a log still holds the records that were read from it, by leader epochs, as a consumer checks it (KIP-320).

After an unclean election a log may have lost committed records and grown past the position again, so that its end
reveals nothing. An epoch reveals it: where the epoch of the last record that was read ends before the position, other
records took the place of those in between.
"""

from __future__ import annotations

from collections.abc import Sequence

Entries = Sequence[tuple[int, int]]
"""(leader epoch, start offset) of the epochs of a log, oldest first."""


def epoch_before(entries: Entries, offset: int) -> int | None:
    """The leader epoch of the record before `offset`; None where the log knows of none."""
    return next((epoch for epoch, start in reversed(entries) if start < offset), None)


def end_of_shared_log(entries: Entries, epoch: int, offset: int) -> int:
    """Up to where a log holds the records below `offset` that were read, the last of them in `epoch`; at most `offset`.

    Source: Kafka's endOffsetForEpoch, of the largest epoch that is not above `epoch`.
    """
    if not entries or entries[0][0] > epoch:
        return offset  # retention deleted all records of the epoch, and retention is checked by itself
    return min([offset, *(start for known, start in entries if known > epoch)])
