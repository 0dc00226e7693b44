"""Driver: whom an fsync served returns at its end, whoever has the next one. Needs the shim; argument: directory.

One thread appends again and again, two others once each while its first fsync lasts. The second fsync covers both, so
they return before the third ends; a thread that comes back at once must not keep those asleep whom it served.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from kreplog import Log, LogConfig
from tests.faults.shim import Shim

_ROUNDS = 50
_DEADLINE_S = 30


def _round(log: Log, shim: Shim) -> bool:
    """Whether both had returned when the third fsync was over."""
    wanted = log.log_end_offset + 3
    many = threading.Thread(target=lambda: [log.append(b"many") for _ in range(6)])
    once = [threading.Thread(target=log.append, args=(b"once",)) for _ in range(2)]
    fsyncs = 0
    served = True

    def synced(_fd: int) -> None:
        nonlocal fsyncs, served
        fsyncs += 1
        if fsyncs == 1:
            for thread in once:
                thread.start()
            deadline = time.monotonic() + _DEADLINE_S
            while log.log_end_offset < wanted and time.monotonic() < deadline:
                time.sleep(0.0001)  # they have appended; nothing reports that while this fsync goes on
        elif fsyncs == 3:
            for thread in once:
                thread.join(_DEADLINE_S if served else 0)
                served = served and not thread.is_alive()

    shim.on_sync(synced)
    many.start()
    many.join()
    shim.on_sync(None)
    for thread in once:
        thread.join()
    return served


def main(directory: Path) -> None:
    shim = Shim()
    with Log.open(directory / "t-0", LogConfig(flush_messages=1)) as log:
        log.append(b"first")
        for number in range(_ROUNDS):
            if not _round(log, shim):
                sys.exit(f"round {number}: a thread slept through the fsync after the one that served it")
        assert log.recovery_point == log.log_end_offset == 1 + 8 * _ROUNDS


if __name__ == "__main__":
    main(Path(sys.argv[1]))
