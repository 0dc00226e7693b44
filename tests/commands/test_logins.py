"""Commands at a broker whose only listener has SASL: a login that it refuses is no broker that is down."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.client.user_admin import new_credentials
from kreplog.cluster import store_requests
from kreplog.cluster.local_cluster import LocalCluster
from tests.commands.conftest import Kreplog
from tests.integration.clusters import WITHIN_S, end, eventually

SASL = '"listener.security.protocol.map" = "PLAINTEXT:SASL_PLAINTEXT"'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Where alice may log in."""
    made = LocalCluster.create(tmp_path_factory.mktemp("logins") / "c", [0], 0, [SASL])
    with made.store_session() as session:
        store_requests.put_user(session, new_credentials("alice", "pencil", ["SCRAM-SHA-256"], 4096))
    try:
        made.start()
        yield made
    finally:
        end(made)


@pytest.fixture
def bootstrap(cluster: LocalCluster) -> str:
    return cluster.bootstrap()


@pytest.mark.parametrize("words", [("topic", "list"), ("topic", "create", "t"), ("user", "list"), ("group", "list")])
@pytest.mark.parametrize(
    ("login", "reason"),
    [
        (("alice", "wrong"), "invalid credentials with SASL mechanism SCRAM-SHA-256 (user alice)"),
        (("carol", "pencil"), "invalid credentials with SASL mechanism SCRAM-SHA-256 (user carol)"),
        (None, "or does its listener have another security.protocol?"),
    ],
)
def test_a_refused_login_is_named(
    kreplog: Kreplog, bootstrap: str, tmp_path: Path, words: tuple[str, ...], login: tuple[str, str] | None, reason: str
) -> None:
    file = properties(tmp_path, login)
    outcome = kreplog(*words, "--bootstrap", bootstrap, "--command-config", file)
    assert (outcome.code, outcome.out) == (1, b"")
    assert reason in outcome.err


def test_a_login_that_is_accepted(kreplog: Kreplog, bootstrap: str, tmp_path: Path) -> None:
    file = properties(tmp_path, ("alice", "pencil"))
    assert kreplog("topic", "list", "--bootstrap", bootstrap, "--command-config", file).code == 0


def properties(directory: Path, login: tuple[str, str] | None) -> Path:
    lines = ["security.protocol=PLAINTEXT"]
    if login is not None:
        user, password = login
        lines = [
            "security.protocol=SASL_PLAINTEXT",
            "sasl.mechanism=SCRAM-SHA-256",
            f"sasl.username={user}",
            f"sasl.password={password}",
        ]
    file = directory / "client.properties"
    file.write_text("\n".join(lines))
    return file


@pytest.mark.parametrize("options", [("--timeout", "7"), ()], ids=["until a time-out", "without end"])
def test_a_consumer_whose_user_is_removed_fails(
    cluster: LocalCluster, bootstrap: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    """It has no group, whose coordinator would refuse it: kafka-python retries the login in silence."""
    file, topic = properties(tmp_path, ("bob", "pencil")), f"of-bob-{len(options)}"
    with cluster.store_session() as session:
        store_requests.put_user(session, new_credentials("bob", "pencil", ["SCRAM-SHA-256"], 4096))
    words = ["--bootstrap", bootstrap, "--command-config", str(file)]
    command = [sys.executable, "-m", "kreplog"]
    created = [*command, "topic", "create", topic, *words]
    eventually(lambda: subprocess.run(created, check=False).returncode == 0, "the broker does not know bob")
    subprocess.run([*command, "produce", topic, *words], input=b"first\n", check=True)
    consume = [*command, "consume", topic, "--from-beginning", *options, *words]
    with subprocess.Popen(consume, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"first\n"
        with cluster.store_session() as session:
            store_requests.remove_user(session, "bob")
        _, err = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 1
    assert b"invalid credentials with SASL mechanism SCRAM-SHA-256 (user bob)" in err
