"""A test run that is killed leaves no process behind, and those of other runs alone."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.waiting import until

RUN = """
import subprocess, sys, time
from tests import orphans
orphans.watch()
sleeper = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, start_new_session=True)
print(sleeper.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_killed_run_leaves_no_process_behind() -> None:
    runs = [subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE) for _ in range(2)]
    sleepers = []
    for run in runs:
        assert run.stdout is not None
        with run.stdout as output:
            sleepers.append(int(output.readline()))
    for run, sleeper, others in zip(runs, sleepers, (sleepers[1:], []), strict=True):
        run.kill()
        run.wait()
        until(partial(_has_ended, sleeper))
        assert not any(map(_has_ended, others))


def _has_ended(process: int) -> bool:
    """A zombie has, even if nobody has waited for it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
