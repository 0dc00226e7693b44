"""What the tests of topics in folders share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a topic, in a folder that is not there yet."""
    return tmp_path / "data" / "orders"
