"""A crash in a bulk append and a damaged ledger: nothing uncommitted is shown, nothing committed is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.shim import run_driver


def crash(folder: Path, shim: Path, stride: int, damages: str) -> tuple[int, int]:
    """Deaths, and openings after them."""
    output = run_driver("damaged_ledger", folder, stride, damages, shim=shim, timeout_s=3600)
    deaths, openings = (int(number) for number in re.findall(r"=(\d+)", output))
    return deaths, openings


def test_crashes_and_a_damaged_ledger(folder: Path, shim: Path) -> None:
    deaths, openings = crash(folder, shim, 9, "some")
    assert deaths > 12 and openings > 2 * deaths


@pytest.mark.long
def test_a_crash_at_each_step_and_damage_of_each_byte(folder: Path, shim: Path) -> None:
    deaths, openings = crash(folder, shim, 1, "all")
    assert deaths > 80 and openings > 100 * deaths
