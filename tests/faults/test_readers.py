"""Readers in other processes during append, roll, truncation, deletion, retention and a new start."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.shim import run_driver


def test_readers_beside_a_writer(folder: Path) -> None:
    output = run_driver("readers", folder, 4000, 1)
    match = re.search(r"committed=(\d+) seen=(\d+)", output)
    assert match and int(match[1]) > 1000 and int(match[2]) > 1000, output
