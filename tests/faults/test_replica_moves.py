"""The move of a replica to another log directory broken off at every file call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.shim import run_driver


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "least"), [("kill", 200), ("halfway", 20), ("full", 100), ("handles", 100), ("sync", 50), ("start", 20)]
)
def test_broken_off_at_every_file_call(folder: Path, shim: Path, mode: str, least: int) -> None:
    """Wherever it ends, a start finds one replica, with every acknowledged record. Most failures end the move alone."""
    output = run_driver("replica_moves", folder, mode, shim=shim)
    assert int(output.rpartition("calls=")[2].partition(" ")[0]) > least, output
