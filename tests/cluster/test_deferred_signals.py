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


def test_a_second_interruption_leaves_no_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the brokers end after the first: all have been terminated by then."""
    started: list[subprocess.Popen[bytes]] = []

    def spawn(*_: object, **options: Any) -> subprocess.Popen[bytes]:
        started.append(popen(["sleep", "60"]))
        if len(started) == 2:
            signal.raise_signal(signal.SIGINT)
        return started[-1]

    def wait(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        raise KeyboardInterrupt

    popen = subprocess.Popen
    cluster = LocalCluster.create(tmp_path / "cluster", [0, 1, 2], 0, ())
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", spawn)
        patch.setattr(popen, "wait", wait)
        with pytest.raises(KeyboardInterrupt):
            cluster.start()
    assert [process.wait() for process in started] == [-signal.SIGTERM] * 2


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


@pytest.mark.parametrize("handler", [None, signal.SIG_DFL, signal.SIG_IGN])
def test_what_no_function_handles_stays(monkeypatch: pytest.MonkeyPatch, handler: signal.Handlers | None) -> None:
    """None: a handler in C, which Python cannot set again. A child inherits what is ignored, and nothing else."""
    set_again: list[int] = []
    before = {signal.SIGTERM: handler, signal.SIGINT: signal.default_int_handler}
    monkeypatch.setattr(signal, "getsignal", before.get)
    monkeypatch.setattr(signal, "signal", lambda number, _: set_again.append(number))
    with deferred_signals():
        pass
    assert set_again == [signal.SIGINT] * 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("sets", [1, 2, 3, 4])
def test_a_signal_at_an_edge_of_the_block(monkeypatch: pytest.MonkeyPatch, number: signal.Signals, sets: int) -> None:
    """After each of the four times that a handler is set: it may raise there, and none is lost later."""
    calls: list[int] = []
    set_handler = signal.signal

    def interrupted(number_set: int, handler: Any) -> Any:
        calls.append(number_set)
        before = set_handler(number_set, handler)
        if len(calls) == sets:
            signal.raise_signal(number)
        return before

    own = {each: signal.signal(each, raise_interrupt) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        with monkeypatch.context() as patch:
            patch.setattr(signal, "signal", interrupted)
            with pytest.raises(KeyboardInterrupt), deferred_signals():
                pass
        for each in own:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(each)
    finally:
        for each, handler in own.items():
            signal.signal(each, handler)


def raise_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def test_another_thread_may_start_processes() -> None:
    done: list[Callable[..., Any] | int | None] = []

    def work() -> None:
        with deferred_signals():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.getsignal(signal.SIGINT)]
