"""A name is durable once the directory that contains it is synced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kreplog.syncing import sync_directory, sync_parents


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Device and inode of what has been fsynced, in order."""
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fsync", lambda file: found.append(identity_of(os.fstat(file))))
    return found


def identity_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def test_a_directory_is_synced(tmp_path: Path, synced: list[tuple[int, int]]) -> None:
    sync_directory(tmp_path)
    assert synced == [identity_of(tmp_path.stat())]
    with pytest.raises(FileNotFoundError):
        sync_directory(tmp_path / "missing")


def test_all_directories_above_a_file_are_synced(
    tmp_path: Path, synced: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").touch()
    above = [inner, inner.parent, tmp_path, *tmp_path.parents]
    monkeypatch.chdir(inner)
    sync_parents(Path("file"))
    assert synced == [identity_of(folder.stat()) for folder in above]


def test_a_directory_that_may_not_be_read_is_passed_over(
    tmp_path: Path, synced: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This user has created nothing in it."""
    right = os.open

    def refused(path: Path, flags: int) -> int:
        if path == tmp_path.parent:
            raise PermissionError(13, "refused", path)
        return right(path, flags)

    monkeypatch.setattr(os, "open", refused)
    sync_parents(tmp_path)
    assert synced == [identity_of(folder.stat()) for folder in tmp_path.parents[1:]]
