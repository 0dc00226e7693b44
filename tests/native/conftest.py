"""A log that is followed: its writer, and a reader of another process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kreplog import Log


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "t-0"


@pytest.fixture
def writer(path: Path) -> Iterator[Log]:
    with Log.open(path) as log:
        yield log


@pytest.fixture
def log(writer: Log, path: Path) -> Iterator[Log]:
    """The writer's log as another process has it."""
    with Log.open(path, read_only=True) as reader:
        yield reader
