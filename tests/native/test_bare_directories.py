"""Partition directories without a state file, as Kafka leaves them: what readers take for committed."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import kreplog

RECORDS = [b"a", b"b", b"c"]


def bare(root: Path, name: str = "topic-0") -> Path:
    """A partition directory alone, as it was copied out of a Kafka broker's log directory."""
    with kreplog.Log.open(root / name) as log:
        log.append_many(RECORDS)
    (root / name / "kreplog.state").unlink()
    for checkpoint in root.glob("*-offset-checkpoint"):
        checkpoint.unlink()
    return root / name


def values(path: Path) -> list[bytes | None]:
    with kreplog.Log.open(path, read_only=True) as log:
        return list(log.values())


def test_a_sibling_that_is_written_to_hides_no_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = bare(tmp_path)
    assert values(path) == RECORDS
    with kreplog.Log.open(path, read_only=True) as reader:
        assert reader.high_watermark == 3
        with kreplog.Log.open(tmp_path / "sibling-0") as sibling:
            sibling.append(b"x")
        assert "sibling 0 1" in (tmp_path / "replication-offset-checkpoint").read_text()
        assert reader.high_watermark == 3
    with caplog.at_level(logging.WARNING):
        assert values(path) == RECORDS
    assert "taking all sound batches" in caplog.text


def test_a_checkpoint_that_names_the_partition_holds(tmp_path: Path) -> None:
    path = bare(tmp_path)
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\ntopic 0 0\n")
    assert values(path) == []


def test_in_a_brokers_directory_what_it_has_not_checkpointed_is_not_committed(tmp_path: Path) -> None:
    """A broker names each of its partitions a few seconds after it has made it."""
    path = bare(tmp_path)
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=x\nnode.id=1\n")
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nother 0 5\n")
    assert values(path) == []
