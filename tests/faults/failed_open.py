"""Driver: openings for writing whose n-th file call fails, for n = 1, 2, ... until none is reached; of a log that was
closed, and of one whose writer died.

Argument: directory. Needs the shim. What must hold: after an opening that raises, a reader sees the writer that was
there before, closed or dead, and neither a live one nor another death; and the log can be opened, also while the error
is held.
"""

from __future__ import annotations

import errno
import shutil
import sys
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from kreplog import Log, LogConfig, errors
from tests.faults import shim as faults
from tests.faults.forked import result_of

CONFIG = LogConfig(segment_bytes=1000)
RECORDS = 20


def leave(path: Path, closed: bool) -> None:
    log = Log.open(path, CONFIG)
    log.append_many([bytes(100)] * (RECORDS - 1))
    log.roll()
    log.append(b"value")
    if closed:
        log.close()


def fails(path: Path, nth: int) -> errors.StorageError | None:
    """The error of an opening whose n-th call fails; None where it goes on nevertheless. Raises StopIteration where
    there is no such call."""
    shim = faults.Shim()
    shim.arm(faults.ALL_WRITES, str(path), nth, errno.EIO)
    try:
        log = Log.open(path, CONFIG)
    except errors.StorageError as error:
        shim.disarm()
        return error
    _, fired, _ = shim.disarm()
    log.close()
    if not fired:
        raise StopIteration
    return None


def failed_openings(original: Path, outcome: type[errors.KreplogError]) -> int:
    found = 0
    for nth in count(1):
        path = original.parent / str(nth) / "open-0"
        shutil.copytree(original, path)
        with Log.open(path, read_only=True) as reader:
            try:
                error = fails(path, nth)
            except StopIteration:
                return found
            if error is not None:
                found += 1
                with Log.open(path, read_only=True) as other:
                    for waiting in (reader, other):
                        with pytest.raises(outcome):
                            waiting.wait(RECORDS, timeout=30)
                with Log.open(path, CONFIG) as log:
                    assert log.append(b"more") == RECORDS, f"call {nth}"
                    assert reader.wait(RECORDS, timeout=30)
        shutil.rmtree(path.parent)
    raise AssertionError("count has an end")


def main(directory: Path) -> None:
    for name, outcome in (("closed", errors.WriterClosedError), ("died", errors.WriterDiedError)):
        original = directory / name / "open-0"
        original.parent.mkdir()
        result_of(partial(leave, original, closed=name == "closed"))
        print(f"{name}={result_of(partial(failed_openings, original, outcome))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
