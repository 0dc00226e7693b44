"""Driver: a script of operations broken off at its n-th file call, for n = 1, 1 + stride, ... until none is reached.

Arguments: directory, what happens there ("kill", "halfway": killed with half of a write done), stride. Needs the shim.
"""

from __future__ import annotations

import shutil
import sys
from functools import partial
from itertools import count
from pathlib import Path

from kreplog import Log
from kreplog.errors import StorageError
from tests.faults import script
from tests.faults import shim as faults
from tests.faults.forked import acknowledge, ends_by, finish, result_of, shares, start


def play(path: Path, kinds: int, nth: int, mode: int, pipe: int) -> None:
    """Run the script with the n-th call deadly, reporting each step to the parent completed; then open once more."""
    shim = faults.Shim()
    shim.arm(kinds, str(path.parent), nth, mode=mode)
    log = Log.open(path, script.CONFIG)
    for number, step in enumerate(script.steps()):
        step.run(log)
        acknowledge(pipe, number, 0)
    log.close()
    Log.open(path, script.CONFIG)


def reopen(path: Path, kinds: int, nth: int, mode: int) -> None:
    """Open (recovering) with the n-th call deadly, and close."""
    shim = faults.Shim()
    shim.arm(kinds, str(path.parent), nth, mode=mode)
    Log.open(path, script.CONFIG).close()


def look(path: Path) -> script.State:
    """Open, survey, and see that the log takes one more record (which is cut off again)."""
    with Log.open(path, script.CONFIG) as log:
        found = script.survey(log)
        assert log.append(b"one more") == found.end
        assert log.truncate_to(found.end) == found.end
        return found


def read(path: Path) -> script.State:
    """As a reader finds it that comes before the next writer; empty where the log was not made yet."""
    try:
        log = Log.open(path, script.CONFIG, read_only=True)
    except StorageError as error:
        assert str(error).endswith(("does not exist", "holds no log segment")), error
        return script.State()
    with log:
        return script.survey(log)


def deaths_in_script(directory: Path, mode_name: str, first: int, step: int) -> int:
    """Kill at the calls first, first + step, ... of the script; return how many of them there were."""
    kinds, mode, _ = faults.MODES[mode_name]
    steps = list(script.steps())
    deaths = 0
    for nth in count(first, step):
        path = directory / f"{mode_name}-{nth}" / "each-0"
        path.parent.mkdir()
        pid, pipe = start(partial(play, path, kinds, nth, mode))
        code, received = finish(pid, pipe)
        assert code in (0, -9), f"call {nth}: the writer ended with {code}"
        done = len(received) // 16
        seen = result_of(partial(read, path))
        found = result_of(partial(look, path))
        if done == len(steps):
            assert seen == found == steps[-1].after, f"call {nth}, after the end: {seen}, then {found}"
        else:
            assert steps[done].may_leave(seen), f"call {nth}, in step {done} {steps[done]}: a reader sees {seen}"
            assert steps[done].may_leave(found), f"call {nth}, in step {done} {steps[done]}: found {found}"
        shutil.rmtree(path.parent)
        if code == 0:
            break
        deaths += 1
    return deaths


def deaths_in_recovery(directory: Path, mode_name: str) -> int:
    """Kill each start of an uncleanly left log at its n-th call, one after the other on the same directory."""
    kinds, mode, _ = faults.MODES[mode_name]
    path = directory / f"recovery-{mode_name}" / "each-0"
    path.parent.mkdir()
    steps = list(script.steps())[:40]

    def leave_unclean() -> None:
        log = Log.open(path, script.CONFIG)
        for step in steps:
            step.run(log)

    result_of(leave_unclean)
    nth = 0
    while True:
        nth += 1
        code, _ = ends_by(partial(reopen, path, kinds, nth, mode))
        assert code in (0, -9), f"call {nth}: opening ended with {code}"
        seen = result_of(partial(read, path))
        assert seen == steps[-1].after, f"call {nth} of recovery: a reader sees {seen}, expected {steps[-1].after}"
        spare = directory / "spare" / "each-0"
        shutil.copytree(path.parent, spare.parent)
        found = result_of(partial(look, spare))
        assert found == steps[-1].after, f"call {nth} of recovery: {found}, expected {steps[-1].after}"
        shutil.rmtree(spare.parent)
        if code == 0:
            return nth - 1


def main(directory: Path, mode_name: str, stride: int) -> None:
    in_script = sum(
        shares(lambda share, step: deaths_in_script(directory, mode_name, 1 + share * stride, step * stride))
    )
    in_recovery = deaths_in_recovery(directory, mode_name)
    print(f"in_script={in_script} in_recovery={in_recovery}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
