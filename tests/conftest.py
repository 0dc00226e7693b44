"""What tests of several folders share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write into tests/scenarios what the cores do now")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory in memory where there is one, for tests that open thousands of logs and are not about the disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as name:
        yield Path(name)
