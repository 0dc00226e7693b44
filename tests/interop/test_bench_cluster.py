"""The cluster benchmark works; what it finds on a loaded machine says nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.bench_cluster import MEASURES, OURS, THEIRS

pytestmark = pytest.mark.interop


@pytest.mark.long
def test_every_measure_is_taken_of_both(tmp_path: Path) -> None:
    out = tmp_path / "samples.json"
    command = [sys.executable, "-m", "benchmarks.bench_cluster", "--quick", "--repetitions", "1"]
    done = subprocess.run([*command, "--directory", str(tmp_path), "--out", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    samples = json.loads(out.read_text())
    for name in (OURS, THEIRS):
        (life,) = samples[name]
        assert life.keys() == {measure.name for measure in MEASURES}
        assert all(value >= 0 for value in life.values())
    assert not [*tmp_path.glob("kreplog-clusters-*")]
