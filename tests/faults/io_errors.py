"""Driver: a script of operations whose n-th file call fails, for n = 1, 1 + stride, ... until none is reached.

Arguments: directory, name of the failure (a key of FAILURES), stride. Needs the shim. What must hold: the error is
typed, the log refuses writes from then on, a failed fsync is not repeated, readers in this and other processes go on,
and after reopening every acknowledged record is there. Where only a descriptor or memory was missing it goes on
instead: the operation is made again.
"""

from __future__ import annotations

import errno
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

from kreplog import Log, errors
from tests.faults import script
from tests.faults import shim as faults
from tests.faults.forked import result_of, shares


@dataclass(frozen=True)
class Failure:
    """Which calls fail and how; `seen`: the caller must get the error; `harmless`: the caller must not notice."""

    kinds: int
    error: int
    mode: int = faults.FAIL
    path_part: str = ""
    seen: bool = False
    harmless: bool = False


IN_PARTS = frozenset({"append_many", "appender"})
"""Steps of several writes, the first of which may be done."""

FAILURES = {
    "write-full": Failure(faults.WRITE, errno.ENOSPC, path_part=".log", seen=True),
    "write-any": Failure(faults.WRITE, errno.EIO),
    "write-short-then-full": Failure(faults.WRITE, errno.ENOSPC, faults.SHORT_THEN_FAIL, ".log", seen=True),
    "write-short": Failure(faults.WRITE, 0, faults.SHORT, harmless=True),
    "write-interrupted": Failure(faults.WRITE, errno.EINTR, harmless=True),
    "sync": Failure(faults.SYNC, errno.EIO, seen=True),
    "open": Failure(faults.OPEN, errno.EMFILE),
    "rename": Failure(faults.RENAME, errno.EIO),
    "truncate": Failure(faults.TRUNCATE, errno.EIO),
    "unlink": Failure(faults.UNLINK, errno.EIO),
    "map": Failure(faults.MMAP, errno.ENOMEM),
    "full-for-good": Failure(
        faults.WRITE | faults.TRUNCATE | faults.OPEN | faults.SYNC, errno.ENOSPC, faults.FAIL_FROM_HERE_ON
    ),
}


@dataclass(frozen=True)
class Outcome:
    """How far a run came: steps completed, whether a call failed, what the log said of it, and how many steps were
    made again."""

    done: int
    fired: bool
    raised: str
    again: int = 0


def play(path: Path, failure: Failure, nth: int) -> Outcome:
    """Run the script with the n-th call failing; check the log that failed, then leave without closing."""
    shim = faults.Shim()
    shim.arm(failure.kinds, failure.path_part or str(path.parent), nth, failure.error, failure.mode)
    steps = list(script.steps())
    done, again, raised, log = 0, 0, "", None
    try:
        log = Log.open(path, script.CONFIG)
        for step in steps:
            try:
                step.run(log)
            except errors.ResourceExhaustedError:
                again += 1
                assert not log.failed
                found = script.survey(log)
                if found != step.before:
                    assert step.name in IN_PARTS and step.may_leave(found), f"{step.name} left {found}"
                    raise
                step.run(log)
            done += 1
        log.close()
    except errors.StorageError as error:
        raised = type(error).__name__
        if log is not None and done < len(steps):
            if isinstance(error, errors.LogFailedError) or failure.seen:
                check_failed(log, steps[done])
            elif steps[done].name not in IN_PARTS:
                assert script.survey(log) == steps[done].before, "an error that leaves the log open leaves it as it was"
    _, fired, synced_again = shim.disarm()
    assert synced_again == 0, f"fsync was repeated {synced_again} times after it had failed"
    return Outcome(done, fired > 0, raised, again)


def check_failed(log: Log, step: script.Step) -> None:
    """A log whose write failed during `step`: it takes no more writes, and reads as before."""
    assert log.failed, f"{step.name} failed, but the log takes further writes"
    for refused in (
        partial(log.append, b"more"),
        partial(log.append_many, [b"more"]),
        partial(log.truncate_to, log.log_start_offset),
        log.flush,
    ):
        try:
            refused()
        except errors.LogFailedError:
            continue
        raise AssertionError(f"{refused} was not refused after a failure in {step.name}")
    found = script.survey(log)
    assert step.may_leave(found), f"in {step.name}: {found} is not between {step.before} and {step.after}"


def read_elsewhere(path: Path) -> script.State:
    with Log.open(path, script.CONFIG, read_only=True) as log:
        return script.survey(log)


def reopen(path: Path) -> script.State:
    with Log.open(path, script.CONFIG) as log:
        found = script.survey(log)
        assert log.append(b"one more") == found.end
        return found


def read_with_failure(path: Path, kinds: int, error: int, nth: int, read_only: bool) -> tuple[bool, bool]:
    """Open and survey with the n-th call failing: right records or a typed error. Returns (call failed, raised)."""
    shim = faults.Shim()
    shim.arm(kinds, str(path.parent), nth, error)
    reported = False
    try:
        with Log.open(path, script.CONFIG, read_only=read_only) as log:
            assert script.survey(log) == list(script.steps())[-1].after
    except errors.StorageError:
        reported = True
    return shim.disarm()[1] > 0, reported


def reading(directory: Path) -> None:
    """Each read, open and mmap of opening and reading a log fails in turn; nothing is lost by that."""
    path = directory / "reading" / "io-0"
    path.parent.mkdir()
    result_of(partial(play, path, Failure(0, 0), 1))
    calls = reported = 0
    for kinds, error in ((faults.READ, errno.EIO), (faults.OPEN, errno.EMFILE), (faults.MMAP, errno.ENOMEM)):
        for read_only in (True, False):
            nth, fired = 0, True
            while fired:
                nth += 1
                fired, raised = result_of(partial(read_with_failure, path, kinds, error, nth, read_only))
                assert fired or not raised, f"an error at read {nth}, but no call failed"
                calls, reported = calls + fired, reported + raised
    assert result_of(partial(read_with_failure, path, 0, 0, 1, False)) == (False, False)
    print(f"calls={calls} reported={reported}")


def failing_in_turn(directory: Path, name: str, first: int, step: int) -> tuple[int, int, int]:
    """Let the calls first, first + step, ... fail. Returns how many there were, how many errors were raised, and how
    many steps were made again."""
    failure = FAILURES[name]
    steps = list(script.steps())
    calls = reported = again = 0
    for nth in count(first, step):
        path = directory / f"{name}-{nth}" / "io-0"
        path.parent.mkdir()
        outcome = result_of(partial(play, path, failure, nth))
        where = f"{name}, call {nth}, {outcome}"
        if outcome.fired:
            assert not (failure.seen and not outcome.raised), f"{where}: the failure was swallowed"
            assert not (failure.harmless and outcome.raised), f"{where}: this must not be noticed"
        else:
            assert not outcome.raised, f"{where}: an error, but no call failed"
        for look in (read_elsewhere, reopen) if path.exists() and outcome.done else (reopen,):
            try:
                found = result_of(partial(look, path))
                if outcome.done == len(steps):
                    assert found == steps[-1].after, f"{found}, not {steps[-1].after}"
                else:
                    assert steps[outcome.done].may_leave(found), f"{found} after {steps[outcome.done]}"
            except AssertionError as error:
                raise AssertionError(f"{where}, {look.__name__}: {error}") from error
        shutil.rmtree(path.parent)
        if not outcome.fired:
            break
        calls += 1
        reported += bool(outcome.raised)
        again += outcome.again
    return calls, reported, again


def main(directory: Path, name: str, stride: int) -> None:
    if name == "reading":
        reading(directory)
        return
    counts = shares(lambda share, step: failing_in_turn(directory, name, 1 + share * stride, step * stride))
    calls, reported, again = map(sum, zip(*counts, strict=True))
    print(f"calls={calls} reported={reported} again={again}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
