"""The benchmarks of clusters work; what they find on a loaded machine says nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import bench_cluster, bench_groups
from benchmarks.bench_cluster import OURS, THEIRS

pytestmark = pytest.mark.interop


@pytest.mark.long
@pytest.mark.parametrize("module", [bench_cluster, bench_groups])
def test_every_measure_is_taken_of_both(tmp_path: Path, module: ModuleType) -> None:
    out = tmp_path / "samples.json"
    command = [sys.executable, "-m", module.__name__, "--quick", "--repetitions", "1"]
    command += ["--directory", str(tmp_path), "--out", str(out)]
    # The JVMs of tests have another garbage collector than Kafka's brokers.
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    samples = json.loads(out.read_text())
    for name in (OURS, THEIRS):
        (life,) = samples[name]
        assert life.keys() == {measure.name for measure in module.MEASURES}
        assert all(value >= 0 for value in life.values())
    assert list(tmp_path.iterdir()) == [out]
