"""A test run that is killed leaves no process behind, and those of other runs alone."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.waiting import until

RUN = """
import os, subprocess, time
from tests import orphans
orphans.watch()
sleeper = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, start_new_session=True)
fork = os.fork()
if fork:
    print(sleeper.pid, fork, flush=True)
time.sleep(600)  # until it is killed
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_killed_run_leaves_no_process_behind() -> None:
    runs = [subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE) for _ in range(2)]
    started = []
    for run in runs:
        assert run.stdout is not None
        with run.stdout as output:
            started.append([int(process) for process in output.readline().split()])
    for run, processes, others in zip(runs, started, (started[1], []), strict=True):
        run.kill()
        run.wait()
        for process in processes:
            until(partial(_has_ended, process))
        assert not any(map(_has_ended, others))


def _has_ended(process: int) -> bool:
    """A zombie has, even if nobody has waited for it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True
