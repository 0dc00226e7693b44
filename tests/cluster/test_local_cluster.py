"""Clusters on this host: their directories, and the status of their processes."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from typer.testing import CliRunner

from kreplog.client.security import PLAINTEXT
from kreplog.cluster.expansion import extend
from kreplog.cluster.files import free_ports
from kreplog.cluster.local_cluster import ClusterError, LocalCluster, _clients_of, _live_brokers
from kreplog.cluster.pid_file import PidFile, read_pid_file
from kreplog.cluster.store_requests import registered_brokers
from kreplog.commands import clusters
from kreplog.coord.base import Session
from kreplog.coord.embedded import EmbeddedStore
from kreplog.errors import UsageError
from kreplog.server.network.internal import load_key
from kreplog.server.settings import BrokerSettings, load
from tests.integration.clusters import eventually
from tests.integration.faults import stopped


def test_a_cluster_is_created_once(tmp_path: Path) -> None:
    made = LocalCluster.create(tmp_path / "c", [2, 0], 19092, ['"min.insync.replicas" = 2'])
    found = LocalCluster(tmp_path / "c")
    assert found.brokers == (2, 0)
    assert found.bootstrap() == "127.0.0.1:19092,127.0.0.1:19093"
    settings = made.settings(0)
    assert (settings.broker_id, settings.topic.min_insync_replicas) == (0, 2)
    assert settings.coordination == f"embedded:{tmp_path / 'c'}/coordination"
    assert [(status.id, status.alive, status.port, status.controller) for status in found.status()] == [
        (0, False, 19093, False),
        (2, False, 19092, False),
    ]
    with pytest.raises(UsageError, match="contains a cluster already"):
        LocalCluster.create(tmp_path / "c", [1])
    with pytest.raises(UsageError, match="there is no broker 1"):
        found.home(1)


@pytest.mark.parametrize(
    ("text", "outgoing"),
    [
        ("32768\t60999\n", range(32768, 61000)),
        ("10100 65535", range(10100, 65536)),
        ("1024 20000", range(1024, 20001)),
        ("1024 65535", range(0)),  # there are no others
        ("no number", range(49152, 65536)),
    ],
)
def test_no_outgoing_connection_gets_the_port_of_a_stopped_broker(
    text: str, outgoing: range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "range").write_text(text)
    monkeypatch.setattr("kreplog.cluster.files._OUTGOING_PORTS", tmp_path / "range")
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert not [port for port in ports if port in outgoing]


def test_ports_without_descriptors_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        free_ports(1)


def test_refused_clusters(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no cluster"):
        LocalCluster(tmp_path)
    with pytest.raises(UsageError, match="each once"):
        LocalCluster.create(tmp_path, [1, 1])
    with pytest.raises(UsageError, match=r"no\.such is not a setting|no\.such in"):
        LocalCluster.create(tmp_path, [1], 0, ['"no.such" = 1'])
    with pytest.raises(UsageError, match="contains no cluster"):
        LocalCluster(tmp_path)


def test_a_cluster_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LocalCluster.create(tmp_path, [1], 0)

    def refuse(path: Path) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(UsageError, match=r"cluster\.json: this user may not read it: .*--bootstrap"):
        LocalCluster(tmp_path)


def test_a_pid_file_has_the_process_and_its_address(tmp_path: Path) -> None:
    assert read_pid_file(tmp_path) == (0, "", 0)
    mine = PidFile(tmp_path)
    assert read_pid_file(tmp_path) == (os.getpid(), "", 0)
    mine.write("127.0.0.1", 9092)
    assert read_pid_file(tmp_path) == (os.getpid(), "127.0.0.1", 9092)
    with pytest.raises(UsageError, match=f"is running already, as process {os.getpid()}"):
        PidFile(tmp_path)
    mine.close()
    assert read_pid_file(tmp_path) == (0, "", 0)


def test_commands(tmp_path: Path) -> None:
    runner = CliRunner()
    made = runner.invoke(clusters.cluster_app, ["create", str(tmp_path / "c"), "--brokers", "0,1", "--port", "0"])
    assert made.exit_code == 0
    assert "2 brokers (ids 0, 1) at 127.0.0.1:" in made.output
    outcome = runner.invoke(clusters.cluster_app, ["status", str(tmp_path / "c")])
    assert outcome.output.count("stopped") == 2


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["foo=1"], "foo in --set is not a setting of a broker"),
        (["foo"], "--set foo: not a line of TOML"),
        (['"min.insync.replicas" = 0'], "min.insync.replicas = 0 in --set: must be an integer from 1"),
        (["min.insync.replicas = 1", "min.insync.replicas = 2"], "these settings contradict each other"),
        (["broker.id = 7"], "broker.id differs from broker to broker"),
    ],
)
def test_settings_are_checked_before_anything_is_written(tmp_path: Path, settings: list[str], expected: str) -> None:
    with pytest.raises(UsageError) as error:
        LocalCluster.create(tmp_path / "c", [0, 1], 0, settings)
    assert expected in str(error.value)
    assert not (tmp_path / "c").exists()


def test_coordination_elsewhere(tmp_path: Path) -> None:
    made = LocalCluster.create(tmp_path / "c", [0], 0, [f'coordination = "embedded:{tmp_path}/elsewhere"'])
    assert made.settings(0).coordination == f"embedded:{tmp_path}/elsewhere"


def test_brokers_on_tcp_prove_the_key_that_was_made(tmp_path: Path) -> None:
    made = LocalCluster.create(tmp_path / "c", [0, 1], 0, ['"inter.broker.listener" = "127.0.0.1:0"'])
    try:
        made.start()
        assert {status.state for status in made.status()} == {"serving"}
    finally:
        made.stop()


def test_a_directory_of_a_version_without_a_key(tmp_path: Path) -> None:
    """It starts, its brokers at unix sockets, and a new broker is no stranger."""
    made = LocalCluster.create(tmp_path / "c", [0], 0)
    (tmp_path / "c" / "cluster.key").unlink()
    settings = made.home(0) / "broker.toml"
    lines = [line for line in settings.read_text().splitlines(keepends=True) if "inter.broker" not in line]
    settings.write_text("".join(lines))
    try:
        made.start()
        made = extend(made, [1], 0, [])
        assert load_key(made.settings(1).key_file or "")
        made.start()
        assert {status.state for status in made.status()} == {"serving"}
    finally:
        made.stop()


@pytest.mark.parametrize("internal", ["unix", "TCP"])
def test_a_cluster_starts_whatever_login_its_clients_have(
    tmp_path: Path, internal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The login of a client is none at the internal listener. Settings are read once, however long the start takes."""
    read: list[object] = []

    def counted(overrides: Mapping[str, Any], file: Path) -> BrokerSettings:
        read.append(file)
        return load(overrides, file)

    monkeypatch.setattr("kreplog.cluster.local_cluster.load", counted)
    at_address = [f'"inter.broker.listener" = "127.0.0.1:{free_ports(1)[0]}"']
    made = LocalCluster.create(tmp_path / "c", [0], 0, at_address if internal == "TCP" else [])
    path = made.home(0) / "broker.toml"
    path.write_text(path.read_text().replace('["127.0.0.1', '["SASL_PLAINTEXT://127.0.0.1'))
    (made.directory / "tls").mkdir()
    login = "sasl.mechanism=SCRAM-SHA-256\nsasl.username=nobody\nsasl.password=wrong\n"
    (made.directory / "tls" / "client.properties").write_text(f"security.protocol=SASL_PLAINTEXT\n{login}")
    try:
        made.start()
        assert len(read) <= 3
        assert {status.state for status in made.status()} == {"serving"}
    finally:
        made.stop()


def test_brokers_are_looked_at_as_clients_do_where_their_internal_socket_is_elsewhere(tmp_path: Path) -> None:
    """As where a broker has settings from its environment that this process has not."""
    made = LocalCluster.create(tmp_path / "c", [0], 0)
    path = made.home(0) / "broker.toml"
    try:
        made.start()
        path.write_text(f'"inter.broker.listener" = "unix:{tmp_path}/other"\n' + path.read_text())
        assert asyncio.run(_live_brokers(_clients_of(made.home(0), made.settings(0), PLAINTEXT))) == {0}
    finally:
        made.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Two brokers that are not started; what is started is killed at the end."""
    made = LocalCluster.create(tmp_path / "c", [0, 1], 0, ['"broker.session.timeout.ms" = 60000'])
    yield made
    for broker in made.brokers:
        pid = read_pid_file(made.home(broker))[0]
        if pid > 1 and pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
            made.wait_until_gone(broker)


def test_a_broker_with_unreadable_settings(cluster: LocalCluster) -> None:
    sound = cluster.bootstrap().split(",")[1]
    (cluster.home(0) / "broker.toml").write_text("broker.id: 0")
    first, second = cluster.status()
    assert (first.state, first.port) == ("unreadable", 0)
    assert f"the settings {cluster.home(0)}/broker.toml are not TOML" in first.detail
    assert (second.state, second.detail) == ("stopped", "")
    assert cluster.bootstrap() == sound
    outcome = CliRunner().invoke(clusters.cluster_app, ["status", str(cluster.directory)])
    assert "unreadable" in outcome.output
    assert "stopped" in outcome.output
    assert "broker 0: the settings" in outcome.output
    with pytest.raises(UsageError, match="not TOML"):
        cluster.start()
    assert not any(status.alive for status in cluster.status())


def test_a_start_that_fails_leaves_nothing_running(cluster: LocalCluster) -> None:
    port = next(listener.port for listener in cluster.settings(1).listeners if listener.host)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ClusterError) as error:
        cluster.start()
    message = str(error.value)
    assert "broker 1 exited with status 2 while it started: broker 1 cannot listen on" in message
    assert (
        f"127.0.0.1:{port}: another process listens there; change its setting listeners, or stop that process"
        in message
    )
    assert "the brokers started with it are stopped again" in message
    assert any("cannot listen" in line for line in error.value.lines)
    assert [status.state for status in cluster.status()] == ["stopped", "stopped"]


def test_a_broker_that_runs_stays_when_the_start_of_another_fails(cluster: LocalCluster) -> None:
    cluster.start([0])
    (cluster.home(1) / "data").write_text("a file where the directory should be")
    outcome = CliRunner().invoke(clusters.cluster_app, ["start", str(cluster.directory)])
    assert isinstance(outcome.exception, ClusterError)
    assert "broker 1 exited" in str(outcome.exception)
    assert "  " in outcome.output
    assert [status.state for status in cluster.status()] == ["serving", "stopped"]


def test_status_shows_what_a_starting_broker_waits_for(cluster: LocalCluster) -> None:
    mine = PidFile(cluster.home(0))
    (cluster.home(0) / "logs").mkdir()
    (cluster.home(0) / "logs" / "server.log").write_text(
        json.dumps({"message": "recovery: 500 of 900 replicas"}) + "\n"
    )
    status = cluster.status()[0]
    assert (status.state, status.pid) == ("starting", os.getpid())
    assert status.detail == (
        "it recovers its logs and does not listen yet; the last line of its log: recovery: 500 of 900 replicas"
    )
    mine.write("127.0.0.1", 1)
    assert (
        f"it waits for the coordination store, which cannot be read: {cluster.directory}/coordination does not exist"
        in (cluster.status()[0].detail)
    )
    with closing(EmbeddedStore(cluster.directory / "coordination")) as store:
        store.connect(1000)
        assert "it listens, but is not registered with the coordination store; the last line of its log" in (
            cluster.status()[0].detail
        )
    mine.close()


def test_a_broker_that_is_suspended(cluster: LocalCluster) -> None:
    if not Path("/proc/self/stat").exists():
        pytest.skip("/proc does not show suspended processes on this system")
    held = "from kreplog.cluster.pid_file import PidFile; import sys, time; mine = PidFile(__import__('pathlib')"
    code = f"{held}.Path(sys.argv[1])); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(cluster.home(0))], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        status = cluster.status()[0]
        assert status.state == "suspended"
        assert status.detail == f"its process is suspended; `kill -CONT {process.pid}` resumes it"
        with pytest.raises(ClusterError, match=r"is still running after 0 s: its process is suspended; `kill -CONT"):
            cluster.stop([0], 0)
        process.kill()


def test_a_start_goes_on_when_its_own_session_expires(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has no processor for it for so long."""
    sessions: list[Session] = []

    def expired_first(session: Session) -> tuple[int | None, set[int]]:
        if session not in sessions:
            sessions.append(session)
        if len(sessions) == 1:
            session.close()
        return registered_brokers(session)

    monkeypatch.setattr("kreplog.cluster.local_cluster.registered_brokers", expired_first)
    cluster.start([0])
    assert len(sessions) == 2


def test_a_broker_that_exceeds_the_timeout_goes_on_starting(cluster: LocalCluster) -> None:
    with pytest.raises(ClusterError, match=r"not all brokers serve after 0 s; they go on starting.*broker 0: it "):
        cluster.start([0], 0)
    eventually(lambda: cluster.status()[0].alive, "it does not go on")
    cluster.start([0])
    assert cluster.status()[0].state == "serving"


def test_a_start_waits_for_the_controllers_metadata(cluster: LocalCluster) -> None:
    cluster.start([0])
    with stopped(cluster, 0):
        with pytest.raises(ClusterError):
            cluster.start([1], 0)
        eventually(lambda: cluster.status()[1].registered, "it does not register")
        with pytest.raises(ClusterError, match=r"broker 1: .*no controller has sent it metadata of all brokers"):
            cluster.start([1], 0.1)
    cluster.start([1])
    assert [status.state for status in cluster.status()] == ["serving", "serving"]
