"""The stores' benchmark cannot rot: it runs tiny, and reads back what it wrote."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.coord.puppet import ROOT


def test_the_benchmark_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_coord", "--quick", "--directory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "embedded, one multi" in done.stdout
    assert list(tmp_path.iterdir()) == [], "scratch folders are removed"
