"""Readers in other processes during append, roll, truncation, deletion, retention and a new start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kreplog import Log
from kreplog._native import lookup
from kreplog.errors import StorageError
from tests.faults.shim import run_driver


def test_readers_beside_a_writer(folder: Path) -> None:
    output = run_driver("readers", folder, 4000, 1)
    match = re.search(r"committed=(\d+) seen=(\d+)", output)
    assert match and int(match[1]) > 1000 and int(match[2]) > 1000, output


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
