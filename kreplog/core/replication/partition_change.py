"""PartitionChange: what changed in a partition that the replica manager must react to."""

from __future__ import annotations

from enum import Enum, auto


class PartitionChange(Enum):
    """Flags of what changed in a partition. APPENDED: the log end moved. COMMITTED: the high watermark moved. DELETED:
    the log start moved. ROLE: the role or the leader epoch changed. BELOW_MIN_ISR: the ISR has become too small to
    commit. UNSETTLED: an ISR change has no outcome yet, a replica that has caught up cannot join yet, or the log must
    be reopened: the partition needs ticks."""

    APPENDED = auto()
    COMMITTED = auto()
    DELETED = auto()
    UNSETTLED = auto()
    BELOW_MIN_ISR = auto()
    ROLE = auto()

    __hash__ = object.__hash__  # Enum's own is slow, and every change of every partition is hashed


CHANGES_FOR_READERS = frozenset(
    {PartitionChange.APPENDED, PartitionChange.COMMITTED, PartitionChange.DELETED, PartitionChange.ROLE}
)
"""Changes that may affect the response to a Fetch; a change of the ISR alone does not."""

CHANGES_FOR_FOLLOWERS = CHANGES_FOR_READERS - {PartitionChange.COMMITTED}
"""Those that may complete the delayed fetch of a follower, which reads up to the log end. It learns of a high watermark
with its next response."""
