"""The log start offset comes down, and the process is broken off at every file call: no later record is hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.shim import run_driver


@pytest.mark.parametrize("mode", ["kill", "halfway", "full"])
@pytest.mark.parametrize("reason", ["power", "truncation"])
def test_records_below_the_old_start_are_there_by_kafkas_files(
    folder: Path, shim: Path, reason: str, mode: str
) -> None:
    output = run_driver("lowered_start", folder, reason, mode, shim=shim)
    assert int(output.rpartition("broken_off=")[2]) >= 2, output
