"""A broker that its cluster refuses: its process ends with a status after which systemd does not start it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cli import REFUSED, _exit_status
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core import nodes
from kreplog.core.features import FinalizedVersion, encode
from kreplog.errors import DuplicateBrokerIdError, KreplogError, UsageError
from kreplog.types import SetData
from tests.integration.clusters import WITHIN_S, end

UNIT = Path(__file__).parents[2] / "docs" / "several-hosts.md"


def test_a_broker_of_a_version_that_its_cluster_has_left_behind_is_not_restarted(tmp_path: Path) -> None:
    made = LocalCluster.create(tmp_path / "c", [0], 0)
    try:
        made.start()
    finally:
        end(made)
    with made.store_session() as session:
        session.multi([SetData(nodes.FEATURE, encode(FinalizedVersion(2)))])
    words = ["broker", "start", str(made.directory), "--id", "0", "--log-to-stderr"]
    done = subprocess.run([sys.executable, "-m", "kreplog", *words], capture_output=True, timeout=WITHIN_S)
    assert done.returncode == REFUSED
    assert b"broker 0 supports kreplog.version 1 to 1, and its cluster is at 2" in done.stderr
    unit = UNIT.read_text(encoding="utf-8")
    assert "Restart=on-failure\n" in unit and f"RestartPreventExitStatus={REFUSED}\n" in unit


def test_a_broker_whose_id_another_has_exits_with_the_same_status() -> None:
    assert _exit_status(DuplicateBrokerIdError("")) == REFUSED
    assert (_exit_status(UsageError("")), _exit_status(KreplogError(""))) == (2, 1)
