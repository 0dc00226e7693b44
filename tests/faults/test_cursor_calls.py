"""A cursor's commits, and the deliveries and acknowledgements of a work queue, broken off at every file call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.shim import run_driver


@pytest.mark.parametrize(
    ("mode", "least"),
    [
        ("kill", 100),
        pytest.param("halfway", 12, marks=pytest.mark.long),
        pytest.param("full", 50, marks=pytest.mark.long),
        pytest.param("handles", 50, marks=pytest.mark.long),
        pytest.param("sync", 30, marks=pytest.mark.long),
    ],
)
def test_broken_off_at_every_file_call(folder: Path, shim: Path, mode: str, least: int) -> None:
    """The place is that of the latest commit that returned, or of the one under way."""
    output = run_driver("cursor_calls", folder, mode, shim=shim)
    assert int(output.rpartition("broken_off=")[2]) >= least, output


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "least"), [("kill", 100), ("halfway", 12), ("full", 20), ("handles", 20), ("sync", 30)]
)
def test_a_work_queue_broken_off_at_every_file_call(folder: Path, shim: Path, mode: str, least: int) -> None:
    """What was acknowledged is not delivered again, what was not is, and no dead letter is missing."""
    output = run_driver("queue_calls", folder, mode, shim=shim)
    assert int(output.rpartition("broken_off=")[2]) >= least, output
