"""A topic's creation, growth and use broken off at every file call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.shim import run_driver


@pytest.mark.parametrize(
    ("mode", "least"), [("kill", 200), ("halfway", 20), ("full", 100), ("handles", 100), ("sync", 30)]
)
def test_broken_off_at_every_file_call(folder: Path, shim: Path, mode: str, least: int) -> None:
    """A creation or growth is completed by the next opening, and no acknowledged record is lost."""
    output = run_driver("topic_calls", folder, mode, shim=shim)
    assert int(output.rpartition("broken_off=")[2]) > least, output


@pytest.mark.parametrize(
    ("failure", "lines"),
    [("fsync", ["refused", "close says so"]), ("full", ["others are compacted", "and then it"])],
)
def test_the_background_thread_meets_a_failure(folder: Path, shim: Path, failure: str, lines: list[str]) -> None:
    output = run_driver("topic_maintenance", folder, failure, shim=shim)
    assert [line for line in output.splitlines() if line in lines] == lines, output
