"""Disk full, write errors, short writes, failed fsync and the rest, at every call of a script of operations."""

from __future__ import annotations

import os
import re
import resource
import signal
from pathlib import Path

import pytest

from kreplog import Log, errors
from tests.faults import content
from tests.faults.forked import result_of
from tests.faults.io_errors import FAILURES
from tests.faults.shim import run_driver

STRIDES = {
    "full-for-good": 19,
    "map": 3,
    "open": 9,
    "rename": 3,
    "sync": 5,
    "truncate": 3,
    "unlink": 5,
    "write-any": 5,
    "write-short": 5,
    "write-interrupted": 5,
}
"""Failures of which one in so many calls fails; a long test lets every call fail. These take the longest."""


@pytest.mark.parametrize(
    ("failure", "stride"),
    [
        *((failure, STRIDES.get(failure, 1)) for failure in FAILURES),
        *(pytest.param(failure, 1, marks=pytest.mark.long) for failure in STRIDES),
    ],
)
def test_nth_call_fails(folder: Path, shim: Path, failure: str, stride: int) -> None:
    output = run_driver("io_errors", folder, failure, stride, shim=shim)
    match = re.search(r"calls=(\d+) reported=(\d+)", output)
    assert match and int(match[1]) > 0, output
    if FAILURES[failure].seen:
        assert int(match[2]) == int(match[1])


def test_nth_read_fails(folder: Path, shim: Path) -> None:
    output = run_driver("io_errors", folder, "reading", 1, shim=shim)
    match = re.search(r"calls=(\d+) reported=(\d+)", output)
    assert match and int(match[1]) > 5 and int(match[2]) > 0, output


def test_an_opening_that_fails_leaves_no_writer_session(folder: Path, shim: Path) -> None:
    output = run_driver("failed_open", folder, shim=shim)
    for writer in ("closed", "died"):
        match = re.search(rf"{writer}=(\d+)", output)
        assert match and int(match[1]) > 2, output


def test_a_piece_of_a_large_append_fails(folder: Path, shim: Path) -> None:
    output = run_driver("large_append", folder, shim=shim)
    assert "refused: LogFailedError\n" in output
    assert "writes=3 failed=1 batches=31\n" in output, "two pieces were written, so 31 batches are whole"


def test_writes_that_make_pages_fail(folder: Path, shim: Path) -> None:
    output = run_driver("pages_ahead", folder, shim=shim)
    match = re.search(r"writes=(\d+) synced=(\d+)", output)
    assert match and int(match[1]) > 10, output
    assert match[2] == "0", "a log that is synced now and then has zeros written that a sync writes to the disk"


def test_file_size_limit(tmp_path: Path) -> None:
    """A true short write by the kernel: the record that does not fit is refused, those before it stay."""

    def fill() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        log = Log.open(tmp_path / "full-0")
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        written = 0
        try:
            while True:
                assert log.append(content.value(written)) == written
                written += 1
        except errors.StorageError:
            assert log.failed
            with pytest.raises(errors.LogFailedError):
                log.append(b"more")
            assert sum(1 for _ in log.read()) == written
        return written

    written = result_of(fill)
    with Log.open(tmp_path / "full-0") as log:
        assert written <= log.log_end_offset <= written + 1
        for record in log.read():
            content.generation_of(record.value, record.offset)
        assert log.append(b"room again") == log.log_end_offset - 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "named-0"
    path.mkdir()
    os.symlink("/dev/full", path / "00000000000000000000.log")
    with pytest.raises(errors.StorageError) as caught:
        Log.open(path).append(b"x" * 100)
    assert str(path) in str(caught.value)
