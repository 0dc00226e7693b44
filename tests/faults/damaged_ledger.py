"""Driver: a bulk append killed at its n-th file call, for n = 1, 1 + stride, ..., then opened with a damaged ledger.

Arguments: directory, stride, "some" or "all" damages. Needs the shim. Whatever the damage: the records before the
append are there; a committed append is there as a whole; one that is not committed is there as a whole or not at all,
and the log goes on where it ends.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from kreplog import Log, LogConfig
from kreplog._native import batch
from kreplog.bulk_append import BulkAppend
from kreplog.errors import CorruptCheckpointError
from tests.faults import shim as faults
from tests.faults.forked import acknowledge, finish, shares, start

CONFIG = LogConfig(segment_bytes=300)
BEFORE = [b"committed earlier", b"before"]
BULK = [b"%d" % number + b"x" * 50 for number in range(7)]


def prepare(path: Path) -> None:
    with Log.open(path, CONFIG) as log:
        log.append_once([batch.build([BEFORE[0]])], writer="w", sequence=0)


def play(path: Path, nth: int, aborts: bool, pipe: int) -> None:
    """Append in bulk beside a record that is acknowledged and not flushed; report each step that is done."""
    log = Log.open(path, CONFIG)
    log.append(BEFORE[1])
    faults.Shim().arm(faults.ALL_WRITES, str(path.parent), nth, mode=faults.KILL_BEFORE)
    with BulkAppend(log, "w", 1) as bulk:
        for value in BULK:
            bulk.append(batch.build([value]))
        bulk.flush()
        if not aborts:
            bulk.commit()
            acknowledge(pipe, 1, 1)
            bulk.publish()
    log.append(b"after")
    acknowledge(pipe, 2, 2)


def damages(whole: bytes, every: bool) -> Iterator[bytes | None]:
    """Of the file's content; None: the file is gone."""
    yield whole
    yield None
    if not every:
        yield whole[:-1]
        return
    yield bytes(len(whole))
    for at in range(len(whole)):
        yield whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :]
        yield whole[:at]


def check(path: Path, content: bytes | None, committed: bool, last_is_there: bool, sound: bool, aborts: bool) -> None:
    """Open the log with this content of its ledger. Raises AssertionError."""
    ledger = path / "kreplog.writers"
    ledger.unlink(missing_ok=True)
    if content is not None:
        ledger.write_bytes(content)
    without: list[bytes | None] = [*BEFORE]
    whole: list[bytes | None] = [*BEFORE, *BULK]
    allowed = [whole] if committed else [without] if aborts else [without, whole]
    expected = [[*values, b"after"] for values in allowed]
    if not last_is_there:  # or it is, but was not acknowledged
        expected += allowed
    if sound:  # one look, since a reader waits for two seconds where the writer was killed in a truncation
        with Log.open(path, read_only=True) as reader:
            seen = list(reader.values())
        assert [value for value in seen if value != b"after"] in (without, whole), f"seen: {seen}"
    for attempt in range(2):
        with Log.open(path, CONFIG) as log:
            found = list(log.values())
            assert found in expected, f"opening {attempt}: found {found}"
            assert log.log_end_offset == len(found)
            assert not log.verify().damages
            if attempt == 0:
                assert log.append(b"one more") == len(found)
                expected = [[*found, b"one more"]]
            elif sound or content is None:
                again = log.append_once([batch.build([b"again"])], writer="w", sequence=1)
                assert (again is None) == (sound and found[: len(whole)] == whole), again
            else:
                try:
                    log.append_once([batch.build([b"again"])], writer="w", sequence=1)
                except CorruptCheckpointError:
                    continue
                raise AssertionError("a bulk append goes by a damaged ledger")


def crash_in_turn(directory: Path, stride: int, every: bool, ways: Sequence[bool]) -> tuple[int, int]:
    """Kill the writers that abort, or do not, at every stride-th call; returns deaths, and openings after them."""
    deaths = openings = 0
    for aborts in ways:
        template = directory / f"template-{aborts}" / "once-0"
        template.parent.mkdir()
        prepare(template)
        nth, code = 1 - stride, -9
        while code:
            nth += stride
            path = directory / f"live-{aborts}" / "once-0"
            shutil.copytree(template.parent, path.parent)
            code, received = finish(*start(partial(play, path, nth, aborts)))
            assert code in (0, -9), f"call {nth}: the writer ended with {code}"
            whole = (path / "kreplog.writers").read_bytes()
            for content in damages(whole, every):
                spare = directory / f"spare-{aborts}" / "once-0"
                shutil.copytree(path.parent, spare.parent)
                committed, done = len(received) >= 16 and not aborts, code == 0
                try:
                    check(spare, content, committed, done, content == whole, aborts)
                except AssertionError as error:
                    raise AssertionError(f"killed at call {nth} ({aborts=}), ledger {content!r}: {error}") from error
                shutil.rmtree(spare.parent)
                openings += 1
            shutil.rmtree(path.parent)
            deaths += code != 0
    return deaths, openings


def main(directory: Path, stride: int, every: bool) -> None:
    crashes = shares(lambda share, step: crash_in_turn(directory, stride, every, (False, True)[share::step]))
    deaths, openings = map(sum, zip(*crashes, strict=True))
    print(f"deaths={deaths} openings={openings}")


if __name__ == "__main__":
    logging.getLogger("kreplog").setLevel(logging.CRITICAL)  # recovery says what it does, hundreds of times
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "all")
