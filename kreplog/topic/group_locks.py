"""GroupLocks: which members of a cursor group live, and which of them owns a partition, by locks of the kernel.

    data/orders@billing.lock
      byte n              locked by member n while it lives
      byte 2**32 + p      locked by the owner of partition p

The locks are of the open file (F_OFD_SETLK): members exclude each other as threads of one process, too, and the kernel
frees a member's at the moment of its death. A process that is stopped keeps them.
"""

from __future__ import annotations

import fcntl
import os
import struct

from kreplog._native.directory import leads_to
from kreplog._native.files import error_of
from kreplog.core.cursor_groups import next_member
from kreplog.errors import CursorFencedError, UsageError

FIRST_PARTITION = 1 << 32
_FLOCK = struct.Struct("@hhqqi0q")  # Linux's struct flock: type, whence, start, length (0: to the end), process


class GroupLocks:
    """A member's locks, on a descriptor of the file that it is given and owns. member: its number.

    Raises UsageError (a system without such locks), StorageError."""

    def __init__(self, file: int, path: str) -> None:
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise UsageError(f"{path}: a cursor group needs locks of open files, which this system does not have")
        self._file = file
        self._path = path
        while not self._lock(member := next_member(self.members())):
            pass  # another has joined with this number, which the next look counts
        self.member = member

    def members(self) -> list[int]:
        """The numbers of the members that live, with this one's."""
        own = [self.member] if hasattr(self, "member") else []
        return sorted(own + [n for taken in self._taken(0, FIRST_PARTITION) for n in taken])

    def free(self, partitions: int) -> list[int]:
        """The partitions that no other member owns."""
        taken = self._taken(FIRST_PARTITION, FIRST_PARTITION + partitions)
        owned = {position - FIRST_PARTITION for positions in taken for position in positions}
        return [number for number in range(partitions) if number not in owned]

    def acquire(self, partition: int) -> bool:
        """Own the partition; False if another does."""
        return self._lock(FIRST_PARTITION + partition)

    def release(self, partition: int) -> None:
        self._call(fcntl.F_OFD_SETLK, fcntl.F_UNLCK, FIRST_PARTITION + partition, 1)

    def check(self) -> None:
        """Raises CursorFencedError where others do not see these locks: the file was deleted or replaced."""
        if leads_to(self._path, self._file):
            return
        raise CursorFencedError(
            f"{self._path}, by whose locks members share the partitions, was deleted or replaced: another may own what "
            "this one does, and it commits nothing any more; close the cursor and open it again",
            path=self._path,
        )

    def _lock(self, position: int) -> bool:
        try:
            self._call(fcntl.F_OFD_SETLK, fcntl.F_WRLCK, position, 1)
        except BlockingIOError:
            return False
        except OSError as error:
            raise error_of("cannot lock", self._path, error) from error
        return True

    def _taken(self, start: int, stop: int) -> list[range]:
        """The positions in [start, stop) that others have locked. The kernel names any one lock of those in a range, so
        what is on either side of it is looked at next."""
        found: list[range] = []
        ranges = [(start, stop)]
        while ranges:
            start, stop = ranges.pop()
            try:
                kind, _, first, length, _ = self._call(fcntl.F_OFD_GETLK, fcntl.F_WRLCK, start, stop - start)
            except OSError as error:
                raise error_of("cannot look at the locks of", self._path, error) from error
            if kind == fcntl.F_UNLCK:
                continue
            end = first + length if length else stop
            found.append(range(max(first, start), min(end, stop)))
            ranges += [piece for piece in ((start, first), (end, stop)) if piece[0] < piece[1]]
        return found

    def _call(self, command: int, kind: int, start: int, length: int) -> tuple[int, ...]:
        return _call(self._file, command, kind, start, length)


def unlock_all(file: int) -> None:
    """Release the locks that a member has by this descriptor, if it has any. Raises OSError."""
    if hasattr(fcntl, "F_OFD_SETLK"):
        _call(file, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, 0, 0)


def _call(file: int, command: int, kind: int, start: int, length: int) -> tuple[int, ...]:
    return _FLOCK.unpack(fcntl.fcntl(file, command, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0)))
