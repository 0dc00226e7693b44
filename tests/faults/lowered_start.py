"""Driver: the log start offset comes down, in a process that is broken off at its n-th file call, for n = 1, 2, ...;
then records are appended below the old one, and flushed.

Arguments: directory, why it comes down ("power": a loss of power has left nothing of the records around it,
"truncation": the log is truncated and starts at a lower offset), what happens at the call: "kill", "halfway" (killed
with half of a write done) or "full" (ENOSPC). Needs the shim. What must hold: the records are there for whoever goes by
Kafka's checkpoint files alone, as Kafka does, and kreplog where the state file is gone.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from kreplog import Log, TopicPartition, errors
from kreplog._native.checkpoint import OffsetCheckpoint
from kreplog._native.state import STATE_NAME
from tests.faults import shim as faults
from tests.faults.forked import broken_off_at_each_call, result_of

PARTITION = TopicPartition("events", 0)
RECORDS = 100
OLD_START = 50
LOWER_START = 10
APPENDED = 20


def prepare(reason: str, path: Path) -> None:
    path.mkdir(parents=True)
    result_of(partial(delete_records, reason, path))


def delete_records(reason: str, path: Path) -> None:
    log = Log.open(path / "events-0")
    log.append_many([b"%d" % offset for offset in range(RECORDS)])
    log.delete_records_before(OLD_START)
    if reason == "truncation":
        log.close()
        return
    start_checkpoint(path).update(PARTITION, OLD_START)  # as a broker or a topic does, also of what is not flushed
    os.truncate(path / "events-0" / f"{0:020d}.log", 0)


def start_checkpoint(path: Path) -> OffsetCheckpoint:
    return OffsetCheckpoint(str(path / "log-start-offset-checkpoint"))


def play(reason: str, path: Path, mode: str, nth: int, _pipe: int) -> None:
    kinds, how, error = faults.MODES[mode]
    shim = faults.Shim()
    shim.arm(kinds, str(path), nth, error, how)
    try:
        log = Log.open(path / "events-0")
        if reason == "truncation":
            log.truncate_fully_and_start_at(LOWER_START)
    except errors.StorageError:
        os._exit(faults.REFUSED)
    if not shim.counts()[1]:
        os._exit(faults.UNHARMED)


def check(path: Path, _acknowledged: object) -> None:
    result_of(partial(append, path))
    records = result_of(partial(survey, path, read_only=True))  # closing a writer would write the file
    assert len(records) >= APPENDED
    checkpointed = start_checkpoint(path).read().get(PARTITION, 0)
    assert checkpointed <= records[0][0], f"the checkpoint file says {checkpointed}, the log begins at {records[0][0]}"
    (path / "events-0" / STATE_NAME).unlink()
    with Log.open(path / "events-0", read_only=True) as log:
        assert log.log_start_offset <= records[0][0]
    found = dict(result_of(partial(survey, path, read_only=False)))
    assert not {offset for offset, value in records if found.get(offset) != value}


def append(path: Path) -> None:
    log = Log.open(path / "events-0")
    log.append_many([b"%d" % number for number in range(APPENDED)])
    log.flush()


def survey(path: Path, *, read_only: bool) -> list[tuple[int, bytes | None]]:
    with Log.open(path / "events-0", read_only=read_only) as log:
        return [(record.offset, record.value) for record in log.read()]


def main(directory: Path, reason: str, mode: str) -> None:
    broken_off_at_each_call(directory, mode, "data", partial(prepare, reason), partial(play, reason), check)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
