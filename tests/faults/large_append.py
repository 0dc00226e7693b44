"""Driver: an append of 4 MiB is written piece by piece, and the third piece does not fit on the disk.

Argument: directory. Needs the shim. What must hold: the third write is within the append, the error is typed, and
reopening leaves whole batches, behind which the rest fits.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path

from kreplog import Log, errors
from tests.faults import shim as faults

VALUES = [bytes([number]) * 1024 for number in range(64)]


def main(folder: Path) -> None:
    shim = faults.Shim()
    with Log.open(folder / "source-0") as source:
        for _ in range(64):
            source.append_many(VALUES)
        batches = bytes(source.fetch(0, max_bytes=8 << 20).data)
    assert 4 << 20 < len(batches) < 5 << 20
    log = Log.open(folder / "large-0")
    shim.arm(faults.WRITE, "large-0/00000000000000000000.log", 3, errno.ENOSPC)
    try:
        log.append_as_follower(batches)
    except errors.StorageError as error:
        print("refused:", type(error).__name__)
    written, failed, _ = shim.disarm()
    assert log.failed
    log.close()
    with Log.open(folder / "large-0") as log:
        batches_left = log.log_end_offset // len(VALUES)
        assert [record.value for record in log.read()] == VALUES * batches_left
        log.append_as_follower(batches[sum(segment.size for segment in log.segments) :])
        assert [record.value for record in log.read()] == VALUES * 64
    print(f"writes={written} failed={failed} batches={batches_left}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
