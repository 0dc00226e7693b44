"""Threads whose records one fsync makes durable together."""

from __future__ import annotations

from pathlib import Path

from tests.faults.shim import run_driver


def test_whom_an_fsync_served_returns_at_its_end(tmp_path: Path, shim: Path) -> None:
    run_driver("group_commit", tmp_path, shim=shim)
