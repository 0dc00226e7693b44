"""What the tests of topics in folders share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kreplog import Topic


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of a topic, in a folder that is not there yet."""
    return tmp_path / "data" / "orders"


@pytest.fixture
def topic(path: Path) -> Iterator[Topic]:
    """Of two partitions, with five records in each."""
    with Topic.open(path, 2) as opened:
        for number in range(10):
            opened.append(b"%d" % number, partition=number % 2)
        yield opened
