"""Driver: recovery of a log with aborted transactions, killed at its n-th file call, for n = 1, 2, ... until none is
reached. After each, before any writer recovers, a reader sees no aborted record.

Arguments: directory, what happens there ("kill", "halfway": killed with half of a write done). Needs the shim.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from kreplog import Log, LogConfig
from tests.faults import shim as faults
from tests.faults.forked import ends_by, result_of
from tests.reference import sent

CONFIG = LogConfig(segment_bytes=2000)
TRANSACTIONS = 40


def leave_unclean(path: Path) -> list[bytes]:
    """Every third transaction is committed. Returns the values of those."""
    log = Log.open(path, CONFIG)
    for producer in range(TRANSACTIONS):
        log.append_batches(sent(producer, 0, b"%d" % producer), transactional=True)
    for producer in range(TRANSACTIONS):
        log.append_transaction_marker(producer, 0, committed=producer % 3 == 0, coordinator_epoch=0)
    return [b"%d" % producer for producer in range(0, TRANSACTIONS, 3)]


def recover(path: Path, kinds: int, nth: int, mode: int) -> None:
    faults.Shim().arm(kinds, str(path.parent), nth, mode=mode)
    Log.open(path, CONFIG)


def read_committed(path: Path) -> list[bytes | None]:
    with Log.open(path, read_only=True) as reader:
        return list(reader.values(isolation="read_committed"))


def main(directory: Path, mode_name: str) -> None:
    kinds, mode, _ = faults.MODES[mode_name]
    path = directory / "t-0"
    committed = result_of(partial(leave_unclean, path))
    deaths = 0
    while True:
        code, _ = ends_by(partial(recover, path, kinds, deaths + 1, mode))
        assert code in (0, -9), f"call {deaths + 1}: recovery ended with {code}"
        found = result_of(partial(read_committed, path))
        assert found == committed, f"killed at call {deaths + 1} of recovery: {found}"
        if code == 0:
            break
        deaths += 1
    print(f"deaths={deaths}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
