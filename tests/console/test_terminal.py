"""`kreplog top` in a pseudo-terminal, of a cluster of real brokers: what it shows, and how it leaves the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer

from kreplog.cli import main
from kreplog.cluster.local_cluster import LocalCluster
from tests.integration import clusters

WITHIN_S = 60.0
ENTER_SCREEN, LEAVE_SCREEN, SHOW_CURSOR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with clusters.running(tmp_path_factory.mktemp("top") / "c", clusters.GROUPS) as made:
        with clusters.admin_of(made.bootstrap()) as admin:
            admin.create_topics({name: {"num_partitions": 2, "replication_factor": 3} for name in ("events", "idle")})
        clusters.wait_for_topic(made, "events", 2)
        clusters.wait_for_topic(made, "idle", 2)
        servers = made.bootstrap().split(",")
        settings = {"group_id": "readers", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        with KafkaProducer(bootstrap_servers=servers, acks="all") as producer:
            for _ in range(30):
                producer.send("events", b"v", partition=0)
            producer.flush()
            with KafkaConsumer("events", bootstrap_servers=servers, consumer_timeout_ms=60_000, **settings) as consumer:
                for _ in zip(range(30), consumer, strict=False):
                    pass
                consumer.commit()
            for _ in range(7):
                producer.send("events", b"v", partition=0)
        yield made


@pytest.fixture
def cluster(shared_cluster: LocalCluster) -> Iterator[LocalCluster]:
    yield shared_cluster
    clusters.mend(shared_cluster)


class Terminal:
    """A pseudo-terminal and the command in it. before: the terminal's settings at the start."""

    def __init__(self, words: list[str], width: int, height: int, environment: dict[str, str]) -> None:
        self._ours, theirs = pty.openpty()
        self._theirs = theirs  # open, so that its settings can be read behind the command's end
        self.resize(width, height, None)
        self.before = termios.tcgetattr(theirs)
        self.out = b""
        self._changed = threading.Condition()
        # Where these are set, as in some runs of the tests, they are the size, and not the terminal's.
        without_size = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "kreplog", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**without_size, "TERM": "xterm-256color", **environment},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 1 << 16)
            except OSError:
                return
            with self._changed:
                self.out += data
                self._changed.notify_all()

    def resize(self, width: int, height: int, process: subprocess.Popen[bytes] | None) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def frame(self) -> str:
        """The last frame that is complete: each begins at the first row and column."""
        parts = self.out.split(b"\x1b[H")
        text = parts[-2 if len(parts) > 2 else -1].decode(errors="replace")
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)

    def until(self, true: Callable[[str], Any]) -> str:
        """The first frame for which `true` holds."""
        deadline = time.monotonic() + WITHIN_S
        with self._changed:
            while not true(self.frame()):
                assert self._changed.wait(deadline - time.monotonic()), self.frame()
            return self.frame()

    def sees(self, *texts: str) -> str:
        return self.until(lambda frame: all(text in frame for text in texts))

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def wait(self) -> int:
        """The exit status; the terminal is as it was."""
        status = self.process.wait(WITHIN_S)
        with self._changed:
            self._changed.wait_for(lambda: self.out.rstrip().endswith(LEAVE_SCREEN), WITHIN_S)
        assert self.out.index(ENTER_SCREEN) < self.out.rindex(SHOW_CURSOR)
        assert self.out.rstrip().endswith(LEAVE_SCREEN), self.out[-200:]
        assert termios.tcgetattr(self._theirs) == self.before
        return status

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._theirs)
        self._reader.join(WITHIN_S)
        os.close(self._ours)


@contextmanager
def top(cluster: LocalCluster, width: int = 80, height: int = 24, **environment: str) -> Iterator[Terminal]:
    terminal = Terminal(["top", "--cluster", str(cluster.directory)], width, height, environment)
    try:
        yield terminal
    finally:
        terminal.close()


def test_lists_and_what_is_open(cluster: LocalCluster) -> None:
    with top(cluster) as terminal:
        shown = terminal.sees("Healthy: 3 brokers", "events", "idle", "tab: groups")
        assert all(len(line) <= 80 for line in shown.splitlines()) and len(shown.splitlines()) <= 24
        terminal.until(lambda frame: re.search(r"> +events +2 +0 +0 +0 +7\b", frame))
        terminal.type(b"\r")
        terminal.sees("topic events", "epoch", "log end")
        terminal.until(lambda frame: re.search(r"> +0 +\d +\d+ +\d,\d,\d +\d,\d,\d +0 +37 +37\b", frame))
        terminal.type(b"\x1b")
        terminal.sees("tab: groups")
        terminal.type(b"\t")
        terminal.until(lambda frame: re.search(r"> +readers +Empty +0 +7\b.* events", frame))
        terminal.type(b"/nowhere")
        terminal.sees("none  /nowhere_")
        terminal.type(b"\x7f" * 7 + b"EVENTS\r")
        terminal.sees("/EVENTS  groups", "> ")
        terminal.type(b"\x1b[C")
        terminal.until(lambda frame: re.search(r"> +events +0 +30 +37 +7\b", frame))
        terminal.resize(120, 40, terminal.process)
        terminal.until(lambda frame: len(frame.splitlines()) == 40)
        terminal.type(b"\x1b[D")
        terminal.sees("/EVENTS  groups")
        terminal.type(b"\x1b")
        terminal.until(lambda frame: "/EVENTS" not in frame)
        terminal.type(b"\t")
        terminal.sees("events  up down: select", "tab: topics")
        terminal.type(b"q")
        assert terminal.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, None])
def test_signals_leave_the_terminal_as_it_was(cluster: LocalCluster, number: signal.Signals | None) -> None:
    with top(cluster, NO_COLOR="1") as terminal:
        terminal.sees("Healthy")
        assert re.search(rb"\x1b\[[0-9;]*3[0-9]m", terminal.out) is None
        if number is None:
            terminal.type(b"\x03")
        else:
            terminal.process.send_signal(number)
        assert terminal.wait() == 0


def test_a_stop_by_the_keyboard_and_its_end(cluster: LocalCluster) -> None:
    with top(cluster) as terminal:
        terminal.sees("Healthy")
        terminal.type(b"\x1a")
        _, status = os.waitpid(terminal.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        clusters.eventually(lambda: terminal.out.rstrip().endswith(LEAVE_SCREEN), "it leaves the screen")
        assert termios.tcgetattr(terminal._theirs) == terminal.before
        terminal.process.send_signal(signal.SIGCONT)
        clusters.eventually(lambda: terminal.out.count(ENTER_SCREEN) == 2, "it comes back")
        terminal.sees("Healthy")
        terminal.type(b"q")
        assert terminal.wait() == 0


def test_brokers_that_are_gone_and_come_back(cluster: LocalCluster) -> None:
    with top(cluster) as terminal:
        terminal.sees("Healthy")
        clusters.kill(cluster, 2)
        terminal.until(lambda frame: re.search(r"2 +- +not running", frame) and "under-replicated: " in frame)
        terminal.sees("broker 2 is out of sync in ")
        terminal.type(b"\t\t")
        terminal.sees("broker 2 is gone", "ISR shrinks: broker 2 leaves")
        terminal.type(b"\t")
        clusters.kill(cluster, 0, 1)
        terminal.sees("What is shown is old: no broker")
        terminal.type(b"j")
        terminal.until(lambda frame: "2 of 3" in frame)  # it goes on, with what was known
        cluster.start()
        terminal.sees("Healthy: 3 brokers")
        terminal.type(b"q")
        assert terminal.wait() == 0


def test_under_tmux(cluster: LocalCluster, tmp_path: Path) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("needs a terminal multiplexer: apt-get install tmux")

    def tmux(*words: str) -> str:
        command = ["tmux", "-S", str(tmp_path / "tmux"), "-f", "/dev/null", *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=WITHIN_S).stdout

    def shows(*texts: str) -> None:
        def shown() -> bool:
            return all(text in tmux("capture-pane", "-p") for text in texts)

        clusters.eventually(shown, lambda: f"{texts} in {tmux('capture-pane', '-p')}", WITHIN_S)

    top_command = [sys.executable, "-m", "kreplog", "top", "--cluster", str(cluster.directory)]
    tmux("new-session", "-d", "-x", "100", "-y", "30", f"{shlex.join(top_command)}; echo status $?; exec cat")
    try:
        shows("Healthy: 3 brokers", "events", "tab: groups")
        tmux("send-keys", "Enter")
        shows("topic events", "log end", "read by readers")
        tmux("send-keys", "Escape")
        tmux("send-keys", "Tab")
        shows("readers", "tab: events")
        tmux("resize-window", "-x", "80", "-y", "24")
        shows("Healthy", "readers")
        assert all(len(line) <= 80 for line in tmux("capture-pane", "-p").splitlines())
        tmux("send-keys", "q")
        shows("status 0")
        assert "Healthy" not in tmux("capture-pane", "-p")  # the screen before it is back
    finally:
        tmux("kill-server")


def once(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, output and errors of the command in this process, whose output is no terminal."""
    with pytest.raises(SystemExit) as left:
        main(["top", *words])
    code = left.value.code
    return code if isinstance(code, int) else 0, *capsys.readouterr()


def test_one_frame_where_the_output_is_no_terminal(cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, errors = once(capsys, "--cluster", str(cluster.directory))
    assert code == 0 and "\x1b" not in out, errors
    assert "Healthy: 3 brokers" in out
    # Records a second are known from the second look on, and whether there was one depends on the machine.
    assert re.search(r"^events +2 +0 +0 +[0-] +7\b", out, re.MULTILINE)
    assert re.search(r"^readers +Empty +0 +7\b", out, re.MULTILINE)
    terminal = Terminal(["top", "--once", "--cluster", str(cluster.directory)], 80, 24, {})
    try:
        assert terminal.process.wait(WITHIN_S) == 0
        clusters.eventually(lambda: b"readers" in terminal.out, "one frame")
        assert ENTER_SCREEN not in terminal.out
    finally:
        terminal.close()


def test_a_cluster_that_does_not_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KREPLOG_CLUSTER", raising=False)
    made = LocalCluster.create(tmp_path / "c", [0], 0)
    code, _, errors = once(capsys, "--cluster", str(made.directory))
    assert code == 1 and "no broker of" in errors and "kreplog cluster start" in errors
    assert once(capsys)[0] == 2
