"""Rolling upgrades: brokers of two versions in one cluster under load, and the level that is finalized afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from unittest import mock

import pytest

pytest.importorskip("confluent_kafka", reason="the clients here are librdkafka's")

from kreplog.client.feature_admin import BrokerFeature, describe_features
from kreplog.cluster.local_cluster import ClusterError, LocalCluster
from kreplog.commands.connecting import admin_client
from kreplog.types import KREPLOG_VERSION
from tests.commands.test_reaching import Run, run
from tests.integration.clusters import end, eventually
from tests.integration.faults import SHORT, load_on
from tests.integration.judging import judge
from tests.integration.view import View

__all__ = ["run"]

ROOT = Path(__file__).parents[2]
NEXT = "from kreplog.core import features\nfeatures.SUPPORTED = (1, 2)\n"
"""Makes a process that imports it at its start the next version, which supports one more level."""


class MixedCluster(LocalCluster):
    """A LocalCluster whose brokers are started by `version`."""

    sources: Path = ROOT
    path: Path = ROOT

    def use(self, sources: Path, path: Path) -> None:
        """Start brokers from now on by the package in `sources`, with the modules in `path` too."""
        self.sources, self.path = sources, path

    def _spawn(self, broker: int) -> subprocess.Popen[bytes]:
        with contextlib.chdir(self.sources), mock.patch.dict(os.environ, {"PYTHONPATH": str(self.path)}):
            return super()._spawn(broker)


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    directory = tmp_path_factory.mktemp("mixed") / "c"
    LocalCluster.create(directory, [0, 1, 2], 0, SHORT)
    made = MixedCluster(directory)
    try:
        yield made
    finally:
        end(made)


@pytest.fixture
def next_version(tmp_path: Path) -> Path:
    (tmp_path / "sitecustomize.py").write_text(NEXT)
    return tmp_path


def versions(cluster: LocalCluster) -> list[BrokerFeature | None]:
    """By broker: what it supports of kreplog.version, and what it knows to be finalized."""
    with admin_client(cluster.directory, None) as admin:
        return [features.get(KREPLOG_VERSION) for features in describe_features(admin).values()]


def restart(cluster: LocalCluster, broker: int) -> None:
    cluster.stop([broker])
    cluster.start([broker])


@pytest.mark.long
def test_all_brokers_are_upgraded_one_by_one_and_then_the_level_is_finalized(
    cluster: MixedCluster, next_version: Path, run: Run
) -> None:
    this, following = BrokerFeature(1, 1, 1), BrokerFeature(1, 2, 1)
    at = ("-c", cluster.directory)
    cluster.start()
    with View(cluster) as view, load_on(cluster, "upgraded") as load:
        for broker in cluster.brokers:
            load.goes_on()
            expected = [following] * broker + [this] * (3 - broker)
            assert versions(cluster) == expected
            refused = run("cluster", "features", "upgrade", "--feature", f"{KREPLOG_VERSION}=2", *at)
            assert refused.code == 1 and f"broker {broker} supports 1 to 1" in refused.err
            cluster.use(ROOT, next_version)
            restart(cluster, broker)
            view.await_replicated(load.topic)
        assert run("cluster", "features", "upgrade", "--dry-run", *at).out == "kreplog.version can be finalized at 2\n"
        assert versions(cluster) == [following] * 3
        assert run("cluster", "features", "upgrade", *at).out == "kreplog.version is finalized at 2\n"
        eventually(lambda: versions(cluster) == [BrokerFeature(1, 2, 2)] * 3, "a broker does not see the level")
        load.goes_on()
        cluster.stop([1])
        cluster.use(ROOT, ROOT)
        with pytest.raises(ClusterError) as raised:
            cluster.start([1])
        reason = "broker 1 supports kreplog.version 1 to 1, and its cluster is at 2: install the version of kreplog"
        assert any(reason in line for line in raised.value.lines), raised.value.lines
        assert (cluster.home(1) / "data" / ".kafka_cleanshutdown").exists()
        cluster.use(ROOT, next_version)
        cluster.start([1])
        view.await_replicated(load.topic)
        load.goes_on()
    judge(cluster, load)


def version_before_levels(folder: Path) -> None:
    """Unpack and build the last version that registers no levels. Skips where the repository has no history."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout

    try:
        added = git("log", "--diff-filter=A", "--format=%H", "--", "kreplog/core/features.py").decode().split()
        archive = git("archive", f"{added[-1]}~1") if added else b""
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"there is no history of the sources: {error}")
    if not archive:
        pytest.skip("the history of the sources does not reach back to the version before levels of kreplog.version")
    with tarfile.open(fileobj=BytesIO(archive)) as sources:
        sources.extractall(folder, filter="data")
    try:
        git("diff", "--quiet", f"{added[-1]}~1", "--", "kreplog/_native", "setup.py")
    except subprocess.CalledProcessError:
        subprocess.run([sys.executable, "setup.py", "build_ext", "--inplace"], cwd=folder, check=True)
    else:
        for module in (ROOT / "kreplog" / "_native").glob("*.so"):
            shutil.copy(module, folder / "kreplog" / "_native")


@pytest.mark.long
def test_the_version_before_levels_is_upgraded(cluster: MixedCluster, tmp_path: Path, run: Run) -> None:
    version_before_levels(tmp_path)
    cluster.use(tmp_path, tmp_path)
    cluster.start()
    this = BrokerFeature(1, 1, 1)
    with View(cluster) as view, load_on(cluster, "upgraded") as load:
        cluster.use(ROOT, ROOT)
        for broker in cluster.brokers:
            load.goes_on()
            assert versions(cluster) == [this] * broker + [None] * (3 - broker)
            unknown = run("cluster", "features", "upgrade", "-c", cluster.directory)
            assert unknown.code == 2 and f"{KREPLOG_VERSION} is unknown to broker {broker}" in unknown.err
            restart(cluster, broker)
            view.await_replicated(load.topic)
        load.goes_on()
        assert versions(cluster) == [this] * 3
    judge(cluster, load)
