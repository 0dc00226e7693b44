"""Deletions beside a flush."""

from __future__ import annotations

from pathlib import Path

from tests.faults.shim import run_driver


def test_a_segment_is_deleted_before_a_flush_comes_to_it(tmp_path: Path, shim: Path) -> None:
    run_driver("deleted", tmp_path / "deleted-0", shim=shim)
