"""Where leader epochs begin and end in a log, and where two logs diverge: pure functions (KIP-101, KIP-279, KIP-595).

`epochs` is always a log's leader-epoch cache, (leader epoch, start offset) with both rising, and `leo` its log end
offset. An epoch has one leader, which writes its records in one order: two logs that hold a record of the same epoch at
the same offset are equal up to there. So a log is described by its last record's epoch and its end, and the follower
and the leader find the point of divergence by comparing epochs, never by a high watermark (F1 to F3).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from kreplog.types import NO_EPOCH, EpochEndOffset

Epochs = tuple[tuple[int, int], ...]


def end_offset_for(epochs: Epochs, leo: int, epoch: int) -> EpochEndOffset:
    """The largest known epoch at or below `epoch` and where it ends; the latest one ends at `leo`.

    For an epoch older than all known ones: that epoch, ending where the first known one begins. For one newer than all,
    or where none is known: (-1, -1). Same as Log.end_offset_for_epoch. Source: KIP-101, KIP-279 (F3).
    """
    after = _count_up_to(epochs, epoch)
    if epoch < 0 or after == len(epochs):
        known = after > 0 and epochs[-1][0] == epoch
        return EpochEndOffset(epoch, leo) if known else EpochEndOffset(NO_EPOCH, -1)
    return EpochEndOffset(epochs[after - 1][0] if after else epoch, epochs[after][1])


def epoch_at(epochs: Epochs, offset: int) -> int:
    """The epoch of the record at `offset`; NO_EPOCH below the first one known.

    A follower's last_fetched_epoch is epoch_at(epochs, leo - 1): an epoch without records does not count (KIP-595).
    """
    if epochs and offset >= epochs[-1][1]:
        return epochs[-1][0]
    index = bisect_right(epochs, offset, key=_start)
    return epochs[index - 1][0] if index else NO_EPOCH


def diverging(
    epochs: Epochs, leo: int, fetch_offset: int, last_fetched_epoch: int, log_start: int = 0
) -> EpochEndOffset | None:
    """Leader's side of KIP-595: None where a log ending at `fetch_offset` in `last_fetched_epoch` is a prefix of ours.

    Otherwise the largest epoch of ours at or below `last_fetched_epoch` and where it ends; with no epoch of our own,
    (NO_EPOCH, leo). NO_EPOCH as last_fetched_epoch cannot be compared: None, and the caller checks the range of
    `fetch_offset`. A log that ends below our log start cannot be distinguished from a prefix either; one that ends
    right there, in an epoch that we no longer have, is taken to diverge.
    """
    if last_fetched_epoch == NO_EPOCH:
        return None
    if not epochs:
        return EpochEndOffset(NO_EPOCH, leo) if fetch_offset > leo else None
    ours = end_offset_for(epochs, leo, min(last_fetched_epoch, epochs[-1][0]))
    if ours.leader_epoch == last_fetched_epoch and fetch_offset <= ours.end_offset:
        forgotten = last_fetched_epoch < epochs[0][0] and 0 < log_start == fetch_offset
        return ours if forgotten else None
    return ours


def truncation_offset(epochs: Epochs, leo: int, diverging: EpochEndOffset) -> int:
    """Follower's side: where to truncate our log, which diverges from the leader's; 0 <= offset < leo.

    The end of our largest epoch not above the leader's, or the end of the leader's, whichever comes first (KIP-279).
    What remains may still diverge, as the next response says, but nothing that both have is truncated. The result may
    lie below the log start; then the two have nothing in common.
    leo: above 0, since an empty log diverges from none.
    """
    if diverging.leader_epoch == NO_EPOCH or not epochs:
        cut = diverging.end_offset
    elif diverging.leader_epoch > epochs[-1][0]:
        cut = min(leo, diverging.end_offset)
    else:
        cut = min(end_offset_for(epochs, leo, diverging.leader_epoch).end_offset, diverging.end_offset)
    return _progress(cut, leo)


def divergence_from(epochs: Epochs, leo: int, position: int, leader_epoch: int) -> int | None:
    """A reader's side of KIP-320: where this log diverges from the one in which it had read up to `position`.

    leader_epoch: of the record before `position`. None where nothing shows that they part; -1 where they do, and the
    offset is not known: all our epochs are older. Otherwise the end of our largest epoch not above the reader's, which
    is below `position`. With NO_EPOCH, or no epochs of our own, only the end of our log counts.
    """
    end = leo
    if leader_epoch != NO_EPOCH and epochs:
        end = end_offset_for(epochs, leo, leader_epoch).end_offset
        if end < 0 and leo < position:
            end = leo
    return end if end < position else None


def _progress(cut: int, leo: int) -> int:
    """The offset to truncate to, below `leo`: else a response that makes no sense would be fetched over and over."""
    return max(0, min(cut, leo - 1))


def _count_up_to(epochs: Epochs, epoch: int) -> int:
    return bisect_left(epochs, (epoch + 1,))


def _start(entry: tuple[int, int]) -> int:
    return entry[1]
