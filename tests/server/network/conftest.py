"""Certificates of one CA for all tests of a module."""

from __future__ import annotations

import pytest

from tests.certificates import Certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))
