"""Driver: an owned log waits for no fsync until there is a record, and the record waits for what it needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kreplog import Log, LogConfig
from tests.faults.shim import Shim

NAMES = {"partition.metadata", "kreplog.state", "topic-0", "data"}
EPOCHS = "leader-epoch-checkpoint.tmp"


def main(root: Path, how: str) -> None:
    shim = Shim()
    synced: list[str] = []
    written: list[int] = []
    segment = root / "data" / "topic-0" / f"{0:020}.log"

    def note(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}").rpartition("/")[2])
        written.append(first_bytes())

    def first_bytes() -> int:
        return int.from_bytes(segment.read_bytes()[:61], "big") if segment.exists() else 0

    (root / "data").mkdir()
    shim.on_sync(note)
    log = Log.open(root / "data" / "topic-0", LogConfig(replicated=True), owned=True)
    synced.clear()  # the id that a log gives itself; a broker's has one
    log.assign_leader_epoch(3)
    assert not synced, synced
    if how == "sync_files":
        log.sync_files()
        assert set(synced) == NAMES, synced
    log.append(b"value")
    assert not any(written), "a record was written before all that it needs was durable"
    assert set(synced) >= {EPOCHS, *NAMES}, synced
    synced.clear()
    log.append(b"value")
    log.sync_files()
    assert not synced, "nothing is left to sync"
    log.assign_leader_epoch(4)
    assert not synced
    log.append(b"value")
    assert set(synced) == {EPOCHS, "topic-0"}, synced
    log.assign_leader_epoch(5)
    log.close()
    shim.on_sync(None)
    with Log.open(root / "data" / "topic-0", LogConfig(replicated=True)) as again:
        assert again.leader_epochs == [(3, 0), (4, 2), (5, 3)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
