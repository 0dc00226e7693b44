"""Full disks and disks that made themselves read-only: a broker says so, loses nothing and comes back where it can."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

pytest.importorskip("confluent_kafka", reason="the clients here are librdkafka's")

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core.broker import log_directory_state
from kreplog.errors import DiskFullError, LogFailedError, StorageError, is_disk_full
from kreplog.server.storage import disk_space
from tests.integration import faults
from tests.integration.clusters import end, eventually, pid_of
from tests.integration.faults import SHORT, examined, load_on
from tests.integration.judging import judge
from tests.integration.view import View

CANNOT_MOUNT = faults.cannot_mount()

pytestmark = pytest.mark.skipif(bool(CANNOT_MOUNT), reason=CANNOT_MOUNT)


def test_a_broker_alone_comes_back_once_its_only_disk_has_room(tmp_path: Path) -> None:
    cluster = LocalCluster.create(
        tmp_path / "cluster", [0], 0, [setting for setting in SHORT if "insync" not in setting]
    )
    with ExitStack() as stack:
        stack.enter_context(faults.small_disk(cluster.home(0) / "data", 64))
        stack.callback(end, cluster)
        cluster.start()
        process = pid_of(cluster, 0)
        with View(cluster) as view, load_on(cluster, "alone", partitions=2, replicas=1) as load:
            load.goes_on()
            ballast = faults.fill(cluster.home(0) / "data")
            eventually(lambda: examined(cluster)[0][0]["state"] == "degraded", "it does not say that it is degraded")
            assert any("without a leader" in reason for reason in examined(cluster)[1])
            ballast.unlink()
            view.await_replicated(load.topic)
            assert pid_of(cluster, 0) == process
            load.goes_on()
        judge(cluster, load)
        assert examined(cluster)[0][0]["state"] == "serving" and not examined(cluster)[1]


def test_a_disk_that_made_itself_read_only_costs_its_replicas_alone(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "cluster", [0, 1, 2], 0, SHORT)
    disk = cluster.home(1) / "data"
    with ExitStack() as stack:
        stack.enter_context(faults.loop_disk(disk, tmp_path / "image", 64))
        stack.callback(end, cluster)
        cluster.start()
        process = pid_of(cluster, 1)
        with View(cluster) as view, load_on(cluster, "read-only") as load:
            load.goes_on()
            faults.break_disk(disk)
            eventually(lambda: view.serves_none(load.partitions, 1), "its replicas do not go offline")
            load.goes_on()
            assert pid_of(cluster, 1) == process and 1 in view.registered()
            broker = examined(cluster)[0][1]
            assert broker["state"] == "degraded" and str(disk) in broker["detail"]
            log = (cluster.home(1) / "logs" / "server.log").read_text()
            # The kernel's answer depends on which call comes first: a write, or the fsync of what was written before.
            assert re.search(r"has failed: .*(Read-only file system|Input/output error)", log)
            assert "go offline until the broker is restarted" in log


def test_room_is_seen_by_what_is_free_and_by_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with faults.small_disk(tmp_path / "small", 8):
        assert disk_space.has_space(tmp_path / "small")
        ballast = faults.fill(tmp_path / "small")
        assert not disk_space.has_space(tmp_path / "small")
        monkeypatch.setattr(log_directory_state, "MIN_FREE_SHARE", 0.0)
        assert not disk_space.has_space(tmp_path / "small"), "as under a quota, which is none of statvfs"
        ballast.unlink()
        assert disk_space.has_space(tmp_path / "small") and not list((tmp_path / "small").iterdir())
    assert not disk_space.has_space(tmp_path / "missing")


def test_what_a_full_disk_raised_is_found_behind_what_was_raised_from_it() -> None:
    failed = LogFailedError("it takes no more")
    failed.__cause__ = DiskFullError("no space")
    assert is_disk_full(failed) and is_disk_full(OSError(28, "no space"))
    assert not any(map(is_disk_full, (StorageError("broken"), OSError(5, "broken"), None)))
