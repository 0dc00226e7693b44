"""The process of one broker: of a cluster on this host, or by a file of settings."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.pid_file import PidFile
from kreplog.server.broker import serve
from kreplog.server.settings import load


def run_broker(cluster: LocalCluster, broker_id: int, *, log_to_stderr: bool) -> None:
    """Run a broker in this process until SIGTERM or SIGINT. Raises KreplogError."""
    home = cluster.home(broker_id)
    pid_file = PidFile(home)
    serve(
        cluster.settings(broker_id),
        None if log_to_stderr else home / "logs",
        lambda broker: pid_file.write(*broker.address),
    )


def run_configured_broker(config: Path, log_dir: Path | None) -> None:
    """As run_broker, by a file of settings. log_dir: of its log files; None: lines go to stderr. Raises KreplogError.

    The locks of its log directories keep a second process out."""
    serve(load({}, config), log_dir, lambda broker: _notify_systemd())


def _notify_systemd() -> None:
    """Report to a unit of Type=notify that the broker serves. Source: sd_notify(3)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify:
            notify.connect("\0" + address[1:] if address.startswith("@") else address)
            notify.sendall(b"READY=1")
