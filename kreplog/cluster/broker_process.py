"""The process of one broker of a cluster on this host."""

from __future__ import annotations

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.pid_file import PidFile
from kreplog.server.broker import serve


def run_broker(cluster: LocalCluster, broker_id: int, *, log_to_stderr: bool) -> None:
    """Run a broker in this process until SIGTERM or SIGINT. Raises KreplogError."""
    home = cluster.home(broker_id)
    pid_file = PidFile(home)
    serve(
        cluster.settings(broker_id),
        None if log_to_stderr else home / "logs",
        lambda broker: pid_file.write(*broker.address),
    )
