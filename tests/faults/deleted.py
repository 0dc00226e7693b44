"""Driver: a segment that is deleted while a flush has still to sync it takes nothing with it."""

from __future__ import annotations

import sys
from pathlib import Path

from kreplog import Log, LogConfig
from kreplog._native.writable import abandon
from tests.faults.shim import Shim


def main(path: Path) -> None:
    config = LogConfig(segment_bytes=1000)
    log = Log.open(path, config)
    log.append_many([bytes(100)] * 20)
    log.roll()
    log.append(b"value")
    abandon(log)

    shim = Shim()
    gone: list[int] = []

    def delete(_descriptor: int) -> None:
        if not gone:
            gone.append(len(log.segments) - 1)
            log.delete_records_before(20)

    # Found after a crash, so that no segment's file is open.
    log = Log.open(path, config)
    shim.on_sync(delete)
    log.flush()
    shim.on_sync(None)
    assert gone[0] >= 2 and len(log.segments) == 1, (gone, log.segments)
    assert not log.failed and log.recovery_point == 21
    log.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
