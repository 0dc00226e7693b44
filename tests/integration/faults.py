"""What is done to the processes and disks of a cluster, and undone again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core import nodes
from tests.integration.clusters import admin_of, pid_of, set_line, tls_of
from tests.integration.view import View
from tests.integration.workload import Load

SHORT = (
    '"min.insync.replicas" = 2',
    '"broker.session.timeout.ms" = 1500',
    '"replica.lag.time.max.ms" = 1500',
    '"log.flush.offset.checkpoint.interval.ms" = 200',
    '"log.segment.bytes" = 100000',
)
"""Settings of brokers whose sessions end soon, and whose segments do."""

_KAFKA_PYTHON = {
    "security.protocol": "security_protocol",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
}
"""Settings of TLS by librdkafka's names; the PEM file of a certificate here has its key too."""

_BLOCK = 1 << 16


@contextmanager
def stopped(cluster: LocalCluster, broker: int) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end."""
    pid = pid_of(cluster, broker)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def set_log_dirs(cluster: LocalCluster, broker: int, directories: Sequence[Path]) -> None:
    """For its next start."""
    set_line(cluster, broker, "log.dirs", json.dumps([str(directory) for directory in directories]))


def cannot_mount() -> str:
    """Why this process can mount nothing; empty when it can."""
    if os.geteuid() != 0:
        return "a full disk needs a file system of its own, and mounting one needs root"
    probe = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    return "" if probe.returncode == 0 else f"this root cannot mount: {probe.stderr.decode(errors='replace').strip()}"


@contextmanager
def small_disk(where: Path, megabytes: int) -> Iterator[None]:
    """A file system of its own at `where`, in memory."""
    where.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "kreplog-test", str(where)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


@contextmanager
def loop_disk(where: Path, image: Path, megabytes: int) -> Iterator[None]:
    """An ext4 of its own at `where`, in the file `image`. Skips the test where there are no loop devices."""
    where.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop,errors=remount-ro", str(image), str(where)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no loop device can be mounted: {mounted.stderr.decode(errors='replace').strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def fill(directory: Path) -> Path:
    """Take all that is free there; delete the file that this returns to give it back."""
    ballast = directory / "ballast"
    with ballast.open("wb", buffering=0) as file:
        size = _BLOCK
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    return ballast


def break_disk(where: Path) -> None:
    """Have the ext4 there see an error, on which it makes itself read-only, and wait until all that was mapped is
    clean: a store into a page of it is a write again. Skips the test where the kernel offers no such thing."""
    found = subprocess.run(["findmnt", "-n", "-o", "SOURCE", str(where)], check=True, capture_output=True, text=True)
    trigger = Path("/sys/fs/ext4", Path(found.stdout.strip()).name, "trigger_fs_error")
    try:
        trigger.write_text("1")
    except OSError as error:
        pytest.skip(f"no error of the file system can be had: {error}")
    os.sync()


def load_on(cluster: LocalCluster, topic: str, partitions: int = 4, replicas: int = 3, **settings: int) -> Load:
    """A topic with three replicas, and clients that are ready to work on it."""
    tls = tls_of(cluster)
    with admin_of(cluster.bootstrap(), **{_KAFKA_PYTHON[name]: tls[name] for name in _KAFKA_PYTHON if tls}) as admin:
        topics = {topic: {"num_partitions": partitions, "replication_factor": replicas}}
        admin.create_topics(topics, wait_for_metadata=True)
    with View(cluster) as view:
        topic_id = nodes.decode_topic(nodes.topic(topic), view.dump()[nodes.topic(topic)]).topic_id
    return Load(cluster.bootstrap(), topic, topic_id, partitions, tls=tls, **settings)


def examined(cluster: LocalCluster) -> tuple[list[dict[str, Any]], list[str]]:
    """What `kreplog cluster status` says of the brokers, and of what makes the cluster degraded."""
    command = [sys.executable, "-m", "kreplog", "cluster", "status", str(cluster.directory), "--json"]
    answer = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    return answer["brokers"], answer["degraded"]
