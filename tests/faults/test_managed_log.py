"""Logs of which a broker has thousands: what they do not sync one by one is durable before a record needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.shim import run_driver


@pytest.mark.parametrize("how", ["append", "sync_files"])
def test_a_record_waits_for_the_names(tmp_path: Path, shim: Path, how: str) -> None:
    run_driver("managed_log", tmp_path, how, shim=shim)


def test_a_record_that_begins_an_epoch_waits_for_no_fsync_and_its_flush_does(tmp_path: Path, shim: Path) -> None:
    """KAFKA-7415: no record is called durable before its epoch is."""
    run_driver("managed_log", tmp_path, "epochs", shim=shim)


def test_an_append_that_seals_a_segment_waits_for_no_fsync(tmp_path: Path, shim: Path) -> None:
    """Neither of those before it nor of the producers' snapshot: that is its owner's decision."""
    run_driver("managed_log", tmp_path, "sealed", shim=shim)


def test_producers_outlive_segments_that_are_deleted_before_a_flush(tmp_path: Path, shim: Path) -> None:
    """A loss of power would else leave neither the records nor a whole snapshot."""
    run_driver("managed_log", tmp_path, "deleted", shim=shim)
