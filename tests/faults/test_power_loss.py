"""Power loss at any fsync and between: what was flushed is there, whatever became of the rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.shim import run_driver


@pytest.mark.parametrize("mode", ["flush", "every-append"])
def test_power_loss(tmp_path: Path, shim: Path, mode: str) -> None:
    output = run_driver("power_loss", tmp_path, mode, 1, shim=shim)
    match = re.search(r"moments=(\d+) images=(\d+)", output)
    assert match and int(match[1]) > 60, output
