"""`make spark-cluster`, whole: it builds and installs a wheel, and checks all that it does itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.cluster.hosts import cannot_isolate

ROOT = Path(__file__).parents[2]
NOT_HERE = cannot_isolate()

pytestmark = [pytest.mark.spark, pytest.mark.skipif(bool(NOT_HERE), reason=NOT_HERE)]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.spark.cluster", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


@pytest.mark.long
def test_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    done = run("--directory", tmp_path, "--rows", 24_000)
    assert done.returncode == 0 and done.stdout.endswith("All of it held.\n"), done.stdout
    assert done.stdout.count("was killed in mid-stage") == 4
    assert not list((tmp_path / "scratch").iterdir()), "the hosts' disks are gone with their namespaces"
