"""Driver: the move of a replica to another log directory broken off at its n-th file call, for n = 1, 2, ... until none
is reached; then the broker's logs are opened again.

Arguments: directory, what happens there: "kill", "halfway" (killed with half of a write done), "full" (ENOSPC),
"handles" (EMFILE), "sync" (EIO of an fsync), or "start": killed while a start finishes a move. Needs the shim.
What must hold: one directory has the replica, no copy is left, every acknowledged record is there once, and no
cleaner checkpoint says more than was compacted, as that of an earlier partition of the name does at first.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from kreplog import errors
from kreplog.config import TopicConfig
from kreplog.core import effects
from kreplog.server.storage import replica_moves
from tests.faults import shim as faults
from tests.faults.forked import acknowledge, broken_off_at_each_call, ends_by, result_of
from tests.server.loop import until
from tests.server.storage.life import ID, TP, Life, opened
from tests.server.storage.test_replica_moves import Moving, append, cleaner_checkpoint, content

APPENDS = 4


def play(root: Path, mode: str, nth: int, pipe: int) -> None:
    """Append, move from one directory to the other and back, and append meanwhile; acknowledge the records."""
    kinds, how, error = faults.MODES[mode]
    shim = faults.Shim()
    shim.arm(kinds, str(root), nth, error, how)
    try:
        with ThreadPoolExecutor(2) as pool:
            moving = Moving(Life(root, pool), "a", "b")
            moving.run(partial(_move, moving, pipe))
            moving.logs.close()
    except (errors.KreplogError, OSError):
        os._exit(faults.REFUSED)
    if not shim.counts()[1]:
        os._exit(faults.UNHARMED)


async def _move(moving: Moving, pipe: int) -> None:
    moving.logs.execute(effects.OpenLog(TP, ID, TopicConfig(cleanup_policy="compact")))
    replica_moves.PIECE_BYTES = 1
    for target in ("b", "a"):
        _append(moving, pipe)
        log = moving.logs.hosted.of(TP).log
        log.roll()
        log.compact()
        await moving.alter(target)
        _append(moving, pipe)
        await until(lambda: not moving.logs.hosted.moves and not moving.logs.moves._unsettled)
        _append(moving, pipe)


def _append(moving: Moving, pipe: int) -> None:
    for _ in range(APPENDS):
        append(moving.logs)
        acknowledge(pipe, 0, moving.logs.hosted.of(TP).log.log_end_offset)


def prepare(root: Path) -> None:
    """An earlier partition of the name was compacted in both directories."""
    for name in "ab":
        (root / name).mkdir(parents=True)
        (root / name / "cleaner-offset-checkpoint").write_text("0\n1\ntopic 0 1000\n")


def prepare_committed(root: Path) -> None:
    """A broker is killed after the commit of a move."""
    root.mkdir(parents=True)

    def move() -> None:
        replica_moves.ReplicaMoves._settle = lambda *_: os._exit(0)  # type: ignore[method-assign]  # a death there
        _, write = os.pipe()
        with ThreadPoolExecutor(2) as pool:
            moving = Moving(Life(root, pool), "a", "b")
            moving.run(partial(_move, moving, write))

    code, _ = ends_by(move)
    assert code == 0 and list(root.glob("a/topic-0.*-delete")) and list(root.glob("b/topic-0.*-future"))


def start(root: Path, mode: str, nth: int, pipe: int) -> None:
    shim = faults.Shim()
    acknowledge(pipe, 0, 2 * 2 * APPENDS)
    kinds, how, error = faults.MODES[mode]
    shim.arm(kinds, str(root), nth, error, how)
    with ThreadPoolExecutor(2) as pool:
        Life(root, pool).open("a", "b")
    if not shim.counts()[1]:
        os._exit(faults.UNHARMED)


def look(root: Path) -> list[int]:
    """The records, after a start that appends one more."""
    with ThreadPoolExecutor(2) as pool:
        moving = Moving(Life(root, pool), "a", "b")
        found: list[int] = []

        async def work() -> None:
            opened(moving.logs)
            log = moving.logs.hosted.of(TP).log
            moving.logs.execute(effects.AdvanceHighWatermark(TP, log.log_end_offset))
            found.extend(offset for offset, _ in content(moving.logs))
            for offset, value in content(moving.logs):
                assert value == (b"%d" % offset if offset % 2 == 0 else bytes(500)), offset
            append(moving.logs)

        moving.run(work)
        created = [path for path in root.glob("*/topic-0*") if not path.name.endswith("-aside")]  # before it had an id
        places = [f"{path.parent.name}/{path.name}" for path in created]
        assert places in (["a/topic-0"], ["b/topic-0"]), places
        assert cleaner_checkpoint(created[0].parent).get(TP, 0) <= len(found)
        assert moving.logs.close()
    return found


def check(root: Path, steps: list[tuple[int, int]]) -> None:
    acknowledged = max((stop for _, stop in steps), default=0)
    found = result_of(partial(look, root))
    assert found == list(range(len(found))), found
    assert acknowledged <= len(found) <= acknowledged + 2, f"{acknowledged} acknowledged, {len(found)} found"
    assert len(result_of(partial(look, root))) == len(found) + 2


def main(directory: Path, mode: str) -> None:
    if mode == "start":
        broken_off_at_each_call(directory, "kill", "logs", prepare_committed, start, check)
    else:
        broken_off_at_each_call(directory, mode, "logs", prepare, play, check)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
