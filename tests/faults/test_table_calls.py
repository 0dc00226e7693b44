"""The snapshot of a table broken off at every file call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.shim import run_driver


@pytest.mark.parametrize(("mode", "least"), [("kill", 15), ("halfway", 9), ("full", 15), ("handles", 6), ("sync", 6)])
def test_broken_off_at_every_file_call(folder: Path, shim: Path, mode: str, least: int) -> None:
    """The snapshot is sound, and that of the latest save that returned or of the one under way."""
    output = run_driver("table_calls", folder, mode, shim=shim)
    assert int(output.rpartition("broken_off=")[2]) >= least, output
