"""Driver: the writes that make pages ahead of small appends fail, or the process dies in one; no record is lost by it.

Argument: directory. Needs the shim. All writes to the log's file are of this kind here: records come by its mapping.
Prints how many there are where nothing fails, and where a flush follows each hundred records.
"""

from __future__ import annotations

import errno
import mmap
import signal
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kreplog import Log
from tests.faults import content
from tests.faults import shim as faults
from tests.faults.forked import ends_by, result_of

RECORDS = 10_000
"""Of 210 bytes with their batch: twice what is appended before pages are made."""

FAILURES = {
    "full": (errno.ENOSPC, faults.FAIL_FROM_HERE_ON),
    "unwritable": (errno.EIO, faults.FAIL_FROM_HERE_ON),
    "interrupted": (errno.EINTR, faults.FAIL_FROM_HERE_ON),
    "short": (0, faults.SHORT),
}
DEATHS = {"before": faults.KILL_BEFORE, "after": faults.KILL_AFTER, "halfway": faults.KILL_HALFWAY}


def value(offset: int) -> bytes:
    return content.value(offset).ljust(140, b".")


def append_all(log: Log, note: Callable[[int], None] = lambda end: None, flush_each: int = RECORDS) -> None:
    for offset in range(RECORDS):
        assert log.append(value(offset)) == offset
        note(offset + 1)
        if (offset + 1) % flush_each == 0:
            log.flush()


def check(path: Path, least: int, most: int) -> None:
    """Open again: the first `least` records or a few more are there, nothing is damaged, and appends go on."""
    with Log.open(path) as log:
        end = log.log_end_offset
        assert least <= end <= most, f"{end} records, of which {least} had been appended"
        assert list(log.values()) == [value(offset) for offset in range(end)]
        assert not log.verify().damages
        assert log.append(b"more") == end


def count_of(path: Path, flush_each: int) -> int:
    shim = faults.Shim()
    with Log.open(path) as log:
        shim.arm(faults.WRITE, ".log", 0)
        append_all(log, flush_each=flush_each)
        return shim.disarm()[0]


def fail(path: Path, error: int, mode: int, nth: int) -> int:
    shim = faults.Shim()
    with Log.open(path) as log:
        shim.arm(faults.WRITE, ".log", nth, error, mode)
        append_all(log)
        return shim.disarm()[1]


def die(path: Path, mode: int, nth: int, appended: mmap.mmap) -> None:
    shim = faults.Shim()
    with Log.open(path) as log:
        shim.arm(faults.WRITE, ".log", nth, 0, mode)
        append_all(log, lambda end: struct.pack_into("q", appended, 0, end))


def main(folder: Path) -> None:
    path = folder / "t-0"
    writes = result_of(partial(count_of, path, RECORDS))
    synced = result_of(partial(count_of, folder / "synced-0", 100))
    check(path, RECORDS, RECORDS)
    check(folder / "synced-0", RECORDS, RECORDS)
    print(f"writes={writes} synced={synced}")
    for nth in (1, 2, writes):
        for name, (error, mode) in FAILURES.items():
            path = folder / f"{name}{nth}-0"
            assert result_of(partial(fail, path, error, mode, nth)) > 0
            check(path, RECORDS, RECORDS)
        for name, mode in DEATHS.items():
            path = folder / f"{name}{nth}-0"
            appended = mmap.mmap(-1, 8)
            status, _ = ends_by(partial(die, path, mode, nth, appended))
            assert status == -signal.SIGKILL
            (least,) = struct.unpack_from("q", appended)
            check(path, least, least + 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
