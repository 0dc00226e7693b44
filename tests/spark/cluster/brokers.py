"""Two brokers, on hosts of their own, from an installed kreplog.

The embedded coordination store is a file, which both reach; brokers on hosts that share nothing need ZooKeeper.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.pid_file import read_pid_file
from tests.integration.clusters import set_line
from tests.spark.cluster.hosts import Host

PORT = 9092
INTERNAL_PORT = 9093


class HostedCluster(LocalCluster):
    """A LocalCluster that starts each broker on its host, with the Python of a virtual environment."""

    hosts: Mapping[int, Host]
    python: Path

    def _spawn(self, broker: int) -> subprocess.Popen[bytes]:
        logs = self.home(broker) / "logs"
        logs.mkdir(exist_ok=True)
        words = [self.python, "-m", "kreplog", "broker", "start", "--id", broker, self.directory]
        return self.hosts[broker].start(words, logs / "console.log", {})

    def pid(self, broker: int) -> int:
        return read_pid_file(self.home(broker))[0]


def create(directory: Path, hosts: Mapping[int, Host], python: Path, data: Path) -> HostedCluster:
    """A cluster with a broker on each of the hosts, by broker id. Starts nothing. data: of each, on its own disk."""
    settings: Sequence[str] = ('"allow.plaintext.remote" = true', '"log.segment.bytes" = 1000000')
    cluster = HostedCluster.create(directory, list(hosts), PORT, settings)
    assert isinstance(cluster, HostedCluster)
    cluster.hosts, cluster.python = hosts, python
    for broker, host in hosts.items():
        set_line(cluster, broker, "listeners", json.dumps([f"{host.address}:{PORT}"]))
        set_line(cluster, broker, "log.dirs", json.dumps([str(data)]))
        with (cluster.home(broker) / "broker.toml").open("a") as settings_file:
            settings_file.write(f'"inter.broker.listener" = "{host.address}:{INTERNAL_PORT}"\n')
    return cluster
