"""The compiled shim, once for all fault tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults import shim as faults


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faults.build(tmp_path_factory.mktemp("shim"))
