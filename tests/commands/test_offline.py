"""`kreplog acl`, `quota` and `user`: --cluster, --offline, --bootstrap and --command-config mean the same for all."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cluster.local_cluster import LocalCluster
from tests.commands.test_reaching import Run, run

__all__ = ["run"]

COMMANDS = {"acl": "no ACLs\n", "quota": "there is no quota\n", "user": "there is no user\n"}
"""What `list` prints where there is nothing."""

each_command = pytest.mark.parametrize("command", COMMANDS)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """The directory of a cluster whose broker does not run."""
    return LocalCluster.create(tmp_path / "c", [0], 0).directory


@each_command
def test_offline_uses_the_store_of_a_cluster_whose_brokers_do_not_run(command: str, stopped: Path, run: Run) -> None:
    assert run(command, "list", "--offline", "--cluster", stopped).out == COMMANDS[command]


@each_command
@pytest.mark.parametrize("more", [("--bootstrap", "127.0.0.1:1"), ("--command-config", "c")], ids=lambda more: more[0])
def test_offline_is_for_a_cluster_in_a_directory(command: str, stopped: Path, run: Run, more: tuple[str, ...]) -> None:
    for at in ((), ("--cluster", stopped, *more)):
        outcome = run(command, "list", "--offline", *at)
        assert (outcome.code, outcome.out) == (2, "")
        assert "--offline is for a cluster in a directory" in outcome.err


@each_command
def test_a_login_is_one_to_brokers(command: str, stopped: Path, run: Run, tmp_path: Path) -> None:
    """Whatever --cluster alone means."""
    login = tmp_path / "client.properties"
    login.write_text("security.protocol=PLAINTEXT\n")
    outcome = run(command, "list", "--cluster", stopped, "--command-config", login)
    assert (outcome.code, outcome.out) == (1, "")
    assert f"no broker of {stopped} is running" in outcome.err
