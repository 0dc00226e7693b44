"""Clusters on this host: their directories, and who is known to live."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kreplog.errors import UsageError
from kreplog.server import commands
from kreplog.server.local_cluster import LocalCluster, PidFile, read_pid_file


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
    with pytest.raises(UsageError, match="holds a cluster already"):
        LocalCluster.create(tmp_path / "c", [1])
    with pytest.raises(UsageError, match="none of"):
        found.home(1)


def test_what_cannot_be_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no cluster"):
        LocalCluster(tmp_path)
    with pytest.raises(UsageError, match="each once"):
        LocalCluster.create(tmp_path, [1, 1])
    with pytest.raises(UsageError, match=r"no\.such is no setting|no\.such in"):
        LocalCluster.create(tmp_path, [1], 0, ['"no.such" = 1'])
    with pytest.raises(UsageError, match="holds no cluster"):
        LocalCluster(tmp_path)


def test_a_pid_file_says_who_lives(tmp_path: Path) -> None:
    assert read_pid_file(tmp_path) == (0, "", 0)
    mine = PidFile(tmp_path)
    assert read_pid_file(tmp_path) == (os.getpid(), "", 0)
    mine.write("127.0.0.1", 9092)
    assert read_pid_file(tmp_path) == (os.getpid(), "127.0.0.1", 9092)
    with pytest.raises(UsageError, match=f"runs already, as process {os.getpid()}"):
        PidFile(tmp_path)
    mine.close()
    assert read_pid_file(tmp_path) == (0, "", 0)


def test_commands(tmp_path: Path) -> None:
    runner = CliRunner()
    made = runner.invoke(commands.cluster_app, ["create", str(tmp_path / "c"), "--brokers", "0,1", "--port", "0"])
    assert made.exit_code == 0
    assert "brokers 0, 1 at 127.0.0.1:" in made.output
    told = runner.invoke(commands.cluster_app, ["status", str(tmp_path / "c")])
    assert told.output.count("stopped") == 2
    wrong = runner.invoke(commands.topic_app, ["list"], env={"KREPLOG_CLUSTER": ""})
    assert isinstance(wrong.exception, UsageError)
