"""Moves of replicas between the log directories of one broker while it runs (KIP-113): what happens next.

A move fills a copy of the replica, its future replica, in a directory that is named

    <topic>-<partition>.<id>-future    of the target log directory, id: 32 hexadecimal digits

from the log of the current one. Once the copy has caught up, it takes over between two appends: the current replica is
renamed to `<topic>-<partition>.<id>-delete`, with the same id, which is the commit; then the copy gets the name
`<topic>-<partition>`, and then the files of the old one are deleted. So a copy is complete if and only if the other
directory of its id exists, and a start after a crash needs nothing but the names to find the one valid replica.

The simulator copies and lets copies take over; it does not run `at_start` and `requested`, since its disks have one
directory. Source: Kafka's future replicas (KIP-113), where a crash between the renames leaves two replicas, neither of
which is opened.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum, auto

from kreplog.core.effects import LogState
from kreplog.core.replication import epochs
from kreplog.errors import ErrorCode


class AtStart(Enum):
    """Actions of a start for a copy that it finds. ADOPT: rename it to the replica. DROP: delete it. KEEP: nothing."""

    ADOPT = auto()
    DROP = auto()
    KEEP = auto()


def at_start(*, has_replica: bool, is_committed: bool, complete: bool) -> AtStart:
    """The action for a copy that is found.

    has_replica: a log directory has the partition under its own name. is_committed: one has the replaced replica of
    the copy's id. complete: all log directories could be opened; else the replica may be in a missing one. No broker
    leaves both a replica and a committed copy: nobody knows which is the newer."""
    if has_replica:
        return AtStart.KEEP if is_committed else AtStart.DROP
    if is_committed:
        return AtStart.ADOPT
    return AtStart.DROP if complete else AtStart.KEEP


class MoveAction(Enum):
    """Actions of an AlterReplicaLogDirs for a replica. START: begin a move, and end one to elsewhere first. CANCEL: end
    the move under way. NOTHING: it is there, or moves there already. PREFER: note the directory for its creation."""

    START = auto()
    CANCEL = auto()
    NOTHING = auto()
    PREFER = auto()


def requested(
    directory: Hashable,
    current: Hashable | None,
    moving_to: Hashable | None,
    *,
    known: bool,
    online: bool,
    current_online: bool,
    name_fits: bool,
) -> tuple[MoveAction, ErrorCode]:
    """The action for a partition, and the error that is returned.

    directory: the requested one. current: where the broker has a replica of the partition, None for nowhere; moving_to:
    where that moves already. known: `directory` is a log directory of the broker. online, current_online: they have not
    failed. name_fits: the name of the copy's directory is not too long for a file system.
    """
    if not name_fits:
        return MoveAction.NOTHING, ErrorCode.INVALID_TOPIC_EXCEPTION
    if not known:
        return MoveAction.NOTHING, ErrorCode.LOG_DIR_NOT_FOUND
    if not online:
        return MoveAction.NOTHING, ErrorCode.KAFKA_STORAGE_ERROR
    if current is None:
        return MoveAction.PREFER, ErrorCode.REPLICA_NOT_AVAILABLE
    if not current_online:
        return MoveAction.NOTHING, ErrorCode.KAFKA_STORAGE_ERROR
    if directory == current:
        return MoveAction.NOTHING if moving_to is None else MoveAction.CANCEL, ErrorCode.NONE
    return MoveAction.NOTHING if directory == moving_to else MoveAction.START, ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class Restart:
    """Empty the copy, and start it at `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the copy to `offset`."""

    offset: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Append what the replica has from `offset` on, where the copy ends."""

    offset: int


CopyStep = Restart | Truncate | Copy


def next_copy_step(current: LogState, copy: LogState) -> CopyStep | None:
    """The next step of a copy; None where it has all records of the replica, and no other.

    The copy follows as a follower does its leader: what the replica has truncated is found by the leader epochs
    (KIP-595). Records that the replica has deleted at its start are no reason to begin again."""
    if copy.leo < current.log_start or copy.log_start > current.log_start:
        return Restart(current.log_start)
    if copy.leo > copy.log_start:
        last_epoch = epochs.epoch_at(copy.epochs, copy.leo - 1)
        diverging = epochs.diverging(current.epochs, current.leo, copy.leo, last_epoch, current.log_start)
        if diverging is not None:
            offset = epochs.truncation_offset(copy.epochs, copy.leo, diverging)
            return Truncate(offset) if offset >= copy.log_start else Restart(current.log_start)
    if copy.leo > current.leo:
        return Truncate(current.leo) if current.leo >= copy.log_start else Restart(current.log_start)
    return Copy(copy.leo) if copy.leo < current.leo else None


def after_misfit(copy: LogState, base_offset: int) -> CopyStep | None:
    """The step before the append of a batch that begins at `base_offset`, before the copy's end, where it was read:
    the log starts within the batch; or the replica has got other batches in place of some that the copy has, which is
    then read again. None: it fits."""
    if base_offset >= copy.leo:
        return None
    return Restart(base_offset) if copy.leo == copy.log_start else Truncate(max(base_offset, copy.log_start))
