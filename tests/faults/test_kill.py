"""SIGKILL at any moment: what was acknowledged is there after reopening, with no gap and nothing torn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.shim import run_driver


def _numbers(output: str) -> dict[str, int]:
    return {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", output)}


def test_random_kills(folder: Path) -> None:
    seen = _numbers(run_driver("kill_loop", folder, 300, 1))
    assert seen["kills"] == 300
    assert seen["acknowledged"] > 1000  # few on a machine that has other work: writers die before they have begun
    assert seen["while_opening"] > 0
    assert seen["in_bulk"] > 0, "no death within a bulk append"


@pytest.mark.parametrize(
    ("mode", "stride"),
    [("kill", 11), ("halfway", 3), *(pytest.param(mode, 1, marks=pytest.mark.long) for mode in ("kill", "halfway"))],
)
def test_killed_at_every_file_call(folder: Path, shim: Path, mode: str, stride: int) -> None:
    seen = _numbers(run_driver("each_call", folder, mode, stride, shim=shim))
    assert seen["in_script"] > {"kill": 240, "halfway": 80}[mode] // stride


@pytest.mark.parametrize("mode", ["kill", "halfway"])
def test_readers_see_no_aborted_record_where_recovery_was_killed(folder: Path, shim: Path, mode: str) -> None:
    assert _numbers(run_driver("aborted_transactions", folder, mode, shim=shim))["deaths"] > 0
