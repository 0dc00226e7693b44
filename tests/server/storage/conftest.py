"""Fixtures of the tests of a broker's logs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import kreplog
from tests.server.storage.life import Life


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A record batch of three records."""
    with kreplog.Log.open(tmp_path_factory.mktemp("source") / "source-0") as log:
        log.append_many([b"a", b"b", b"c"])
        return bytes(log.fetch(0).data)


@pytest.fixture
def life(tmp_path: Path) -> Iterator[Life]:
    with ThreadPoolExecutor(2) as pool:
        yield Life(tmp_path, pool)
