"""Driver: a worker of a work queue broken off at its n-th file call, for n = 1, 2, ... until none is reached; then
another takes what is left.

Arguments: directory, what happens there: "kill", "halfway" (killed with half of a write done), "full" (ENOSPC),
"handles" (EMFILE) or "sync" (EIO of an fsync). Needs the shim. What must hold: what was acknowledged is not delivered
again, what was not is, and each dead letter is in its topic before its record is done; errors are typed, and the worker
goes on after them.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path

from kreplog import DeliveredRecord, LogConfig, Topic, WorkQueue, errors
from kreplog.topic import cursor_log
from tests.faults import shim as faults
from tests.faults.forked import acknowledge, broken_off_at_each_call, result_of

RECORDS = 4


def is_rejected(offset: int) -> bool:
    return offset % 4 == 2


def settle(queue: WorkQueue, record: DeliveredRecord) -> None:
    if is_rejected(record.offset):
        queue.nack(record, error="no such customer")
    else:
        queue.ack(record, durable=record.offset % 3 == 0)


def play(path: Path, mode: str, nth: int, pipe: int) -> None:
    """Take and settle record by record; acknowledge (offset, whether it is settled)."""
    kinds, how, error = faults.MODES[mode]
    shim = faults.Shim()
    refused = False
    try:
        with Topic.open(path, read_only=True) as topic:
            shim.arm(kinds, str(path.parent), nth, error, how)
            with topic.work_queue("mail", dead_letter="dead", delivery_count_limit=1) as queue:
                while True:
                    try:
                        records = queue.take(timeout=0)
                    except errors.StorageError:
                        refused = True
                        records = queue.take(timeout=0)  # no delivery was lost
                    if not records:
                        break
                    for record in records:
                        acknowledge(pipe, record.offset, 0)
                        try:
                            settle(queue, record)
                        except errors.StorageError:
                            refused = True
                            continue  # the next owner has it
                        acknowledge(pipe, record.offset, 1)
    except errors.StorageError:
        refused = True
    if refused:
        os._exit(faults.REFUSED)
    if not shim.counts()[1]:
        os._exit(faults.UNHARMED)


def look(path: Path) -> tuple[set[int], set[int]]:
    """(offsets that are delivered now, and then acknowledged; those of dead letters)."""
    with Topic.open(path, read_only=True) as topic:
        with topic.work_queue("mail") as queue:
            delivered = {record.offset for record in queue.take(100, timeout=0)}
        with topic.work_queue("mail") as queue:
            queue.ack(*queue.take(100, timeout=0), durable=True)
            assert queue.committed == {0: RECORDS}
    try:
        with Topic.open(path.parent / "dead", read_only=True) as dead:
            letters = {int(dict(record.headers)["__dlq.errors.offset"] or b"") for record in dead.read()}
    except errors.StorageError:  # there is none yet
        letters = set()
    return delivered, letters


def prepare(path: Path) -> None:
    with Topic.open(path, 1) as topic:
        for number in range(RECORDS):
            topic.append(b"%d" % number)


def check(path: Path, steps: list[tuple[int, int]]) -> None:
    begun = {offset for offset, _ in steps}
    settled = {offset for offset, is_settled in steps if is_settled}
    delivered, letters = result_of(partial(look, path))
    assert not delivered & settled, f"{delivered & settled} were settled, and are delivered again"
    assert set(range(RECORDS)) - begun <= delivered, f"of {delivered} none may be missing but {begun}"
    done = set(range(RECORDS)) - delivered
    assert {offset for offset in done if is_rejected(offset)} <= letters <= {n for n in begun if is_rejected(n)}


def main(directory: Path, mode: str) -> None:
    cursor_log.CONFIG = LogConfig(cleanup_policy="compact", segment_bytes=700)
    cursor_log.PARTITIONS = 2
    broken_off_at_each_call(directory, mode, "mails", prepare, play, check)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
