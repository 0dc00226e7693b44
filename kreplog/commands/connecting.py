"""The cluster that a command is about: that of a directory on this host, or one at given addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka.admin import KafkaAdminClient

from kreplog.client.admin_client import AdminClient
from kreplog.client.connecting import ADMIN_TIMEOUT_MS, REACH_S, UnreachableError, answering, in_our_words
from kreplog.cluster.local_cluster import LocalCluster, read_pid_file
from kreplog.errors import UsageError


def reached(cluster: Path | None, bootstrap: str | None) -> list[str]:
    """Of the cluster in this directory, or at these addresses ("host:port,..."): those brokers that answer now.

    Raises UnreachableError within about REACH_S when none does, UsageError.
    """
    if bootstrap is not None:
        return answering(bootstrap, "is that where the brokers are?")
    if cluster is None:
        raise UsageError("which cluster? give --cluster DIR or --bootstrap host:port (or set KREPLOG_CLUSTER)")
    local = LocalCluster(cluster)
    if not any(read_pid_file(local.home(broker))[0] for broker in local.brokers):
        raise UnreachableError(f"no broker of {cluster} runs: start them with `kreplog cluster start {cluster}`")
    return answering(local.bootstrap(), f"see `kreplog cluster status {cluster}`")


@contextmanager
def admin_client_of(cluster: Path | None, bootstrap: str | None) -> Iterator[AdminClient]:
    """For requests that client libraries lack. Raises UnreachableError, UsageError."""
    servers = reached(cluster, bootstrap)
    with asyncio.Runner() as runner:
        yield AdminClient(runner, servers)


@contextmanager
def kafka_admin_of(cluster: Path | None, bootstrap: str | None) -> Iterator[KafkaAdminClient]:
    """kafka-python's client. Its errors become TopicRequestErrors. Raises UnreachableError, UsageError."""
    servers = reached(cluster, bootstrap)
    with in_our_words():
        admin = KafkaAdminClient(
            bootstrap_servers=servers,
            bootstrap_timeout_ms=int(REACH_S * 1000),
            request_timeout_ms=ADMIN_TIMEOUT_MS + 5000,
        )
        try:
            yield admin
        finally:
            admin.close()
