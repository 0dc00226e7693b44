"""Clusters on this host: their directories, and who is known to live."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from typer.testing import CliRunner

from kreplog.cluster.expansion import extend
from kreplog.cluster.local_cluster import ClusterError, LocalCluster
from kreplog.cluster.pid_file import PidFile, read_pid_file
from kreplog.commands import clusters
from kreplog.coord.embedded import EmbeddedStore
from kreplog.errors import UsageError
from kreplog.server.network.internal import load_key
from tests.integration.clusters import eventually
from tests.integration.faults import stopped


def test_a_cluster_is_made_once_and_found_again(tmp_path: Path) -> None:
    made = LocalCluster.create(tmp_path / "c", [2, 0], 19092, ['"min.insync.replicas" = 2'])
    found = LocalCluster(tmp_path / "c")
    assert found.brokers == (2, 0)
    assert found.bootstrap() == "127.0.0.1:19092,127.0.0.1:19093"
    settings = made.settings(0)
    assert (settings.broker_id, settings.topic.min_insync_replicas) == (0, 2)
    assert settings.coordination == f"embedded:{tmp_path / 'c'}/coordination"
    assert [(one.id, one.alive, one.port, one.controller) for one in found.status()] == [
        (0, False, 19093, False),
        (2, False, 19092, False),
    ]
    with pytest.raises(UsageError, match="contains a cluster already"):
        LocalCluster.create(tmp_path / "c", [1])
    with pytest.raises(UsageError, match="there is no broker 1"):
        found.home(1)


def test_what_cannot_be_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no cluster"):
        LocalCluster(tmp_path)
    with pytest.raises(UsageError, match="each once"):
        LocalCluster.create(tmp_path, [1, 1])
    with pytest.raises(UsageError, match=r"no\.such is not a setting|no\.such in"):
        LocalCluster.create(tmp_path, [1], 0, ['"no.such" = 1'])
    with pytest.raises(UsageError, match="contains no cluster"):
        LocalCluster(tmp_path)


def test_a_pid_file_says_who_lives(tmp_path: Path) -> None:
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
    assert "brokers 0, 1 at 127.0.0.1:" in made.output
    told = runner.invoke(clusters.cluster_app, ["status", str(tmp_path / "c")])
    assert told.output.count("stopped") == 2


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["foo=1"], "foo in --set is not a setting of a broker"),
        (["foo"], "--set foo: not a line of TOML"),
        (['"min.insync.replicas" = 0'], "min.insync.replicas = 0 in --set: must be an integer from 1"),
        (["min.insync.replicas = 1", "min.insync.replicas = 2"], "these settings contradict each other"),
        (["broker.id = 7"], "broker.id differs from broker to broker"),
    ],
)
def test_settings_are_checked_before_anything_is_written(tmp_path: Path, settings: list[str], told: str) -> None:
    with pytest.raises(UsageError) as error:
        LocalCluster.create(tmp_path / "c", [0, 1], 0, settings)
    assert told in str(error.value)
    assert not (tmp_path / "c").exists()


def test_coordination_elsewhere(tmp_path: Path) -> None:
    made = LocalCluster.create(tmp_path / "c", [0], 0, [f'coordination = "embedded:{tmp_path}/elsewhere"'])
    assert made.settings(0).coordination == f"embedded:{tmp_path}/elsewhere"


def test_brokers_on_tcp_prove_the_key_that_was_made(tmp_path: Path) -> None:
    made = LocalCluster.create(tmp_path / "c", [0, 1], 0, ['"inter.broker.listener" = "127.0.0.1:0"'])
    try:
        made.start()
        assert {one.state for one in made.status()} == {"serving"}
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
        assert {one.state for one in made.status()} == {"serving"}
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


def test_settings_of_one_that_cannot_be_read(cluster: LocalCluster) -> None:
    sound = cluster.bootstrap().split(",")[1]
    (cluster.home(0) / "broker.toml").write_text("broker.id: 0")
    first, second = cluster.status()
    assert (first.state, first.port) == ("unreadable", 0)
    assert f"the settings {cluster.home(0)}/broker.toml are not TOML" in first.detail
    assert (second.state, second.detail) == ("stopped", "")
    assert cluster.bootstrap() == sound
    told = CliRunner().invoke(clusters.cluster_app, ["status", str(cluster.directory)])
    assert "unreadable" in told.output
    assert "stopped" in told.output
    assert "broker 0: the settings" in told.output
    with pytest.raises(UsageError, match="not TOML"):
        cluster.start()
    assert not any(one.alive for one in cluster.status())


def test_a_start_that_fails_leaves_nothing_running(cluster: LocalCluster) -> None:
    port = next(one.port for one in cluster.settings(1).listeners if one.host)
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ClusterError) as error:
        cluster.start()
    told = str(error.value)
    assert "broker 1 exited with status 2 while it started: broker 1 cannot listen on" in told
    assert (
        f"127.0.0.1:{port}: another process listens there; change its setting listeners, or stop that process" in told
    )
    assert "the brokers started with it are stopped again" in told
    assert any("cannot listen" in line for line in error.value.lines)
    assert [one.state for one in cluster.status()] == ["stopped", "stopped"]


def test_a_broker_that_runs_stays_when_the_start_of_another_fails(cluster: LocalCluster) -> None:
    cluster.start([0])
    (cluster.home(1) / "data").write_text("a file where the directory should be")
    told = CliRunner().invoke(clusters.cluster_app, ["start", str(cluster.directory)])
    assert isinstance(told.exception, ClusterError)
    assert "broker 1 exited" in str(told.exception)
    assert "  " in told.output
    assert [one.state for one in cluster.status()] == ["serving", "stopped"]


def test_what_a_broker_that_does_not_serve_waits_for(cluster: LocalCluster) -> None:
    mine = PidFile(cluster.home(0))
    (cluster.home(0) / "logs").mkdir()
    (cluster.home(0) / "logs" / "server.log").write_text(
        json.dumps({"message": "recovery: 500 of 900 replicas"}) + "\n"
    )
    told = cluster.status()[0]
    assert (told.state, told.pid) == ("starting", os.getpid())
    assert told.detail == (
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
        pytest.skip("the system does not tell of suspended processes in /proc")
    held = "from kreplog.cluster.pid_file import PidFile; import sys, time; mine = PidFile(__import__('pathlib')"
    code = f"{held}.Path(sys.argv[1])); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code, str(cluster.home(0))], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        told = cluster.status()[0]
        assert told.state == "suspended"
        assert told.detail == f"its process is suspended; `kill -CONT {process.pid}` resumes it"
        with pytest.raises(ClusterError, match=r"is still running after 0 s: its process is suspended; `kill -CONT"):
            cluster.stop([0], 0)
        process.kill()


def test_one_that_takes_longer_goes_on_starting(cluster: LocalCluster) -> None:
    with pytest.raises(ClusterError, match=r"not all brokers serve after 0 s; they go on starting.*broker 0: it "):
        cluster.start([0], 0)
    eventually(lambda: cluster.status()[0].alive, "it does not go on")
    cluster.start([0])
    assert cluster.status()[0].state == "serving"


def test_a_start_is_over_once_the_controller_has_taken_the_broker_in(cluster: LocalCluster) -> None:
    cluster.start([0])
    with stopped(cluster, 0):
        with pytest.raises(ClusterError):
            cluster.start([1], 0)
        eventually(lambda: cluster.status()[1].registered, "it does not register")
        with pytest.raises(ClusterError, match=r"broker 1: .*no controller has sent it metadata of all brokers"):
            cluster.start([1], 0.1)
    cluster.start([1])
    assert [one.state for one in cluster.status()] == ["serving", "serving"]
