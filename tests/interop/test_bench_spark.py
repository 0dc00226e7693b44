"""The benchmark of Spark beside its own Kafka connector runs; what it finds on a loaded machine says nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop


@pytest.mark.long
def test_every_part_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.bench_spark", "--quick", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    for row in ("path", "network, Kafka", "connector, kreplog's broker", "counting", "a micro-batch of"):
        assert row in done.stdout, done.stdout
    assert not [*tmp_path.iterdir()]
