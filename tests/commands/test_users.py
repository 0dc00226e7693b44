"""`kreplog user`: before any broker runs, beside running ones, over Kafka's protocol; and what it refuses."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core import nodes
from kreplog.server.runtime.store import make_store
from tests.commands.test_reaching import Outcome, Run, run
from tests.integration.clusters import WITHIN_S, end, eventually

__all__ = ["run"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker that runs, and was created with the user `first`."""
    made = LocalCluster.create(tmp_path_factory.mktemp("users") / "c", [0], 0)
    made.start()
    try:
        yield made
    finally:
        end(made)


@pytest.fixture
def fresh(tmp_path: Path) -> LocalCluster:
    return LocalCluster.create(tmp_path / "c", [0], 0)


def given(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def stored(cluster: LocalCluster) -> dict[str, Any]:
    """Credentials as the store has them, by user."""
    store = make_store(cluster.settings(0).coordination)
    try:
        session = store.connect(10_000)
        paths = [f"{nodes.USERS}/{name}" for name in session.children(nodes.USERS)]
        return {nodes.user_name(path): json.loads(session.get(path).data) for path in paths}
    finally:
        store.close()


def test_a_user_is_added_before_any_broker_runs(fresh: LocalCluster, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = fresh.directory
    assert run("user", "list", "-c", directory) == Outcome(0, "there is no user\n", "")
    given(monkeypatch, "pencil\n")
    assert run("user", "add", "alice", "-c", directory) == Outcome(
        0, "user alice has credentials of SCRAM-SHA-256 and SCRAM-SHA-512\n", ""
    )
    assert run("user", "list", "-c", directory).out == (
        "alice: SCRAM-SHA-256 (4,096 iterations), SCRAM-SHA-512 (4,096 iterations)\n"
    )
    first = stored(fresh)
    assert sorted(first["alice"]) == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    given(monkeypatch, "paper")
    assert not run("user", "add", "alice", "--mechanism", "SCRAM-SHA-512", "--iterations", 5000, "-c", directory).code
    changed = stored(fresh)["alice"]
    assert changed["SCRAM-SHA-256"] == first["alice"]["SCRAM-SHA-256"]
    assert changed["SCRAM-SHA-512"].endswith("iterations=5000")
    assert run("user", "remove", "alice", "-c", directory) == Outcome(0, "user alice removed\n", "")
    outcome = run("user", "remove", "alice", "-c", directory)
    assert (outcome.code, outcome.err) == (1, "kreplog: there is no user alice\n")
    assert stored(fresh) == {}


def test_a_broker_that_starts_later_knows_the_user(
    fresh: LocalCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, "pencil\n")
    run("user", "add", "alice", "-c", fresh.directory)
    try:
        fresh.start()
        bootstrap = fresh.bootstrap()
        eventually(lambda: "alice" in run("user", "list", "-b", bootstrap).out, "the broker does not know the user")
    finally:
        end(fresh)


def test_over_the_protocol(cluster: LocalCluster, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bootstrap = cluster.bootstrap()
    password = tmp_path / "password"
    password.write_text("pencil\n")
    outcome = run("user", "add", "b\u00f6b, =", "--password-file", password, "-b", bootstrap, "--json")
    assert json.loads(outcome.out) == {
        "user": "b\u00f6b, =",
        "mechanisms": ["SCRAM-SHA-256", "SCRAM-SHA-512"],
        "iterations": 4096,
    }
    iterations = {"SCRAM-SHA-256": 4096, "SCRAM-SHA-512": 4096}
    listed = json.loads(run("user", "list", "-b", bootstrap, "--json").out)
    assert listed == {"users": [{"name": "b\u00f6b, =", "iterations": iterations}]}
    assert json.loads(run("user", "list", "-c", cluster.directory, "--json").out) == listed
    assert run("user", "remove", "b\u00f6b, =", "-b", bootstrap).code == 0
    outcome = run("user", "remove", "carol", "-b", bootstrap)
    assert outcome.code == 1
    assert "there is no user carol" in outcome.err


@pytest.mark.parametrize("where", ["directory", "bootstrap"])
@pytest.mark.parametrize(
    ("arguments", "text", "reason", "code"),
    [
        (["", "--mechanism", "SCRAM-SHA-256"], "x", "Username must not be empty", {1, 2}),
        (["x" * 256], "x", "255 bytes", {1, 2}),
        (["alice", "--mechanism", "PLAIN"], "x", "PLAIN is no mechanism", {2}),
        (["alice", "--mechanism", "SCRAM-SHA-256", "--mechanism", "SCRAM-SHA-256"], "x", "altered twice", {1, 2}),
        (["alice", "--iterations", "4095"], "x", "4096", {2}),
        (["alice"], "", "stdin has 0 lines", {2}),
        (["alice"], "\n", "the password is empty", {2}),
        (["alice"], "one\ntwo\n", "stdin has 2 lines", {2}),
        (["alice", "--password-file", "/nowhere"], "x", "cannot be read from /nowhere: No such file", {2}),
    ],
)
def test_what_is_refused_changes_nothing(
    cluster: LocalCluster,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    arguments: list[str],
    text: str,
    reason: str,
    code: set[int],
) -> None:
    given(monkeypatch, text)
    at = ["-c", str(cluster.directory)] if where == "directory" else ["-b", cluster.bootstrap()]
    outcome = run("user", "add", *arguments, *at)
    assert reason in outcome.err
    assert outcome.code in code
    assert "there is no user" in run("user", "list", *at).out


def test_the_password_is_never_an_argument(fresh: LocalCluster, run: Run) -> None:
    outcome = run("user", "add", "alice", "pencil", "-c", fresh.directory)
    assert outcome.code == 2


def test_a_terminal_shows_a_prompt_and_no_password(fresh: LocalCluster) -> None:
    """In a process with a terminal of its own, as getpass reads from /dev/tty."""
    arguments = ["user", "add", "alice", "-c", str(fresh.directory)]
    code = (
        f"import os; os.setsid(); os.open(os.ttyname(0), os.O_RDWR)\nfrom kreplog.cli import main; main({arguments!r})"
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        for prompt in (b"Password: ", b"The same again: "):
            while not seen.endswith(prompt):
                seen += os.read(ours, 1000)
            os.write(ours, b"pencil\n")
        assert process.wait(WITHIN_S) == 0
        seen += os.read(ours, 1000)
        os.close(ours)
    assert b"pencil" not in seen
    assert b"user alice has credentials" in seen
    assert list(stored(fresh)) == ["alice"]
