"""An interruption while a process is started: it is handled once the process is known, so none is left."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kreplog.cluster.deferred_signals import deferred_signals
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.pid_file import read_pid_file
from tests.integration.clusters import eventually


class InterruptedPopen(subprocess.Popen[bytes]):
    """Is interrupted by SIGINT when its process has been started, before the caller has it."""

    pids: ClassVar[list[int]] = []

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.pids.append(self.pid)
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Those of all processes that are started, each of which is interrupted."""
    monkeypatch.setattr(subprocess, "Popen", InterruptedPopen)
    monkeypatch.setattr(InterruptedPopen, "pids", [])
    return InterruptedPopen.pids


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def test_no_broker_is_left(tmp_path: Path, pids: list[int]) -> None:
    cluster = LocalCluster.create(tmp_path / "cluster", [0, 1], 0, ())
    with pytest.raises(KeyboardInterrupt):
        cluster.start()
    (pid,) = pids
    eventually(lambda: not runs(pid), f"{pid} still runs")
    assert [read_pid_file(cluster.home(broker))[0] for broker in cluster.brokers] == [0, 0]


def test_no_driver_of_the_demo_is_left(tmp_path: Path, pids: list[int]) -> None:
    job = pytest.importorskip("flights.stream_process", reason="needs the extra `demo`")
    with pytest.raises(KeyboardInterrupt), job.running_stream("127.0.0.1:1", tmp_path):
        pass
    (pid,) = pids
    assert not runs(pid)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_handler_of_before_handles_each_signal_once(number: signal.Signals) -> None:
    handled: list[tuple[int, bool]] = []
    inside = False
    before = signal.signal(number, lambda number, _: handled.append((number, inside)))
    try:
        with deferred_signals():
            inside = True
            signal.raise_signal(number)
            inside = False
        assert handled == [(number, False)]
        with pytest.raises(ZeroDivisionError), deferred_signals():
            os.kill(os.getpid(), number)
            _ = 1 / 0
        assert handled == [(number, False)] * 2
    finally:
        signal.signal(number, before)


def test_a_handler_in_c_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python cannot set it again."""
    set_again: list[int] = []
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGTERM else signal.SIG_DFL)
    monkeypatch.setattr(signal, "signal", lambda number, _: set_again.append(number))
    with deferred_signals():
        pass
    assert set_again == [signal.SIGINT] * 2


def test_another_thread_may_start_processes() -> None:
    done: list[Callable[..., Any] | int | None] = []

    def work() -> None:
        with deferred_signals():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.getsignal(signal.SIGINT)]
