"""Readers in other processes during append, roll, truncation, deletion, retention and a new start."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from kreplog import Log, LogConfig
from kreplog._native import lookup
from kreplog.errors import StorageError
from tests.faults.shim import run_driver


def test_readers_beside_a_writer(folder: Path) -> None:
    output = run_driver("readers", folder, 4000, 1)
    match = re.search(r"committed=(\d+) seen=(\d+)", output)
    assert match and int(match[1]) > 1000 and int(match[2]) > 1000, output


def race(folder: Path, seconds: float, seed: int, figure: Callable[[str], None]) -> None:
    """The driver `truncating`; all readers live, and saw no record that was never written."""
    output = run_driver("truncating", folder, seconds, seed, timeout_s=seconds + 120)
    match = re.search(r"truncations=(\d+) looks=(\d+) records=(\d+)", output)
    assert match and min(map(int, match.groups())) > 100, output
    figure(match[0])


def test_readers_beside_a_writer_that_truncates(folder: Path, figure: Callable[[str], None]) -> None:
    race(folder, 8, 1, figure)


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_readers_beside_a_writer_that_truncates_for_minutes(
    folder: Path, seed: int, figure: Callable[[str], None]
) -> None:
    race(folder, 200, seed, figure)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_segment_that_another_program_cuts_is_an_error(tmp_path: Path, read_only: bool) -> None:
    """As rsync --inplace and logrotate's copytruncate do: the file is shortened under those who have it mapped."""
    config = LogConfig(segment_bytes=64 << 10)
    with Log.open(tmp_path / "t-0", config) as log:
        log.append_many([bytes(1000)] * 200)
        with Log.open(tmp_path / "t-0", config, read_only=read_only) if read_only else nullcontext(log) as reader:
            assert len(list(reader.values(0, 50))) == 50
            os.truncate(log.segments[0].path, 100)
            for look in (lambda: list(reader.values(0, 50)), lambda: reader.fetch(30)):
                with pytest.raises(StorageError, match=r"another program has cut .* to 100 bytes"):
                    look()
            assert len(list(reader.values(150))) == 50


def test_a_look_that_meets_a_cut_under_way_is_done_again(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log, Log.open(tmp_path / "t-0", read_only=True) as reader:
        log.append(b"a")

        def look(seen: Log, cut: list[bool]) -> int:
            if cut.pop():
                log.truncate_fully_and_start_at(7)
                raise StorageError("the first segment is missing")
            return seen.log_start_offset

        assert lookup.steadily(reader, look, [False, True]) == 7
        with pytest.raises(StorageError, match="is missing"):
            lookup.steadily(reader, refuse)


def refuse(seen: Log) -> None:
    raise StorageError(f"{seen.path} is missing")
