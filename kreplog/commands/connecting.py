"""The cluster that a command is for: in a directory on this host, or at bootstrap addresses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import (
    ADMIN_TIMEOUT_MS,
    UnreachableError,
    kafka_errors,
    reachable_brokers,
)
from kreplog.client.cluster_connections import ClusterConnections
from kreplog.client.security import PLAINTEXT, ClientSecurity
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.pid_file import read_pid_file
from kreplog.errors import UsageError

COORDINATOR_TIMEOUT_S = 15.0
"""How long a command waits for a coordinator that is loading or moving, or for the markers of a transaction."""


def coordinator_deadline() -> float:
    """When requests to coordinators that begin now give up, by the monotonic clock."""
    return time.monotonic() + COORDINATOR_TIMEOUT_S


def bootstrap_servers(
    cluster: Path | None, bootstrap: str | None, command_config: Path | None
) -> tuple[list[str], ClientSecurity]:
    """host:port of the brokers that respond now, of the cluster in a directory or at addresses ("host:port,..."), and
    how clients connect to them: by the properties in `command_config`, or else by those of the directory.

    Raises UnreachableError within about CONNECT_TIMEOUT_S if none does, UsageError.
    """
    security = PLAINTEXT if command_config is None else ClientSecurity.from_file(command_config)
    if bootstrap is not None:
        return reachable_brokers(bootstrap, "check the address, and that the brokers are running", security), security
    if cluster is None:
        raise UsageError(
            "no cluster given: use its directory (--cluster DIR where there is that option) or --bootstrap HOST:PORT, "
            "or set KREPLOG_CLUSTER"
        )
    local = LocalCluster(cluster)
    if not any(read_pid_file(local.home(broker))[0] for broker in local.brokers):
        raise UnreachableError(f"no broker of {cluster} is running: start them with `kreplog cluster start {cluster}`")
    if command_config is None:
        security = local.client_security()
    return reachable_brokers(local.bootstrap(), f"see `kreplog cluster status {cluster}`", security), security


def offline_cluster(
    cluster: Path | None, bootstrap: str | None, command_config: Path | None, *, offline: bool
) -> LocalCluster | None:
    """The cluster whose coordination store a command with --offline uses; None without. Raises UsageError."""
    if not offline:
        return None
    if cluster is None or bootstrap is not None or command_config is not None:
        raise UsageError(
            "--offline is for a cluster in a directory: give --cluster DIR, no --bootstrap, no --command-config"
        )
    return LocalCluster(cluster)


def stored_cluster(
    cluster: Path | None, bootstrap: str | None, command_config: Path | None, *, offline: bool
) -> LocalCluster | None:
    """As offline_cluster, for commands where --cluster alone means --offline. Raises UsageError."""
    alone = cluster is not None and bootstrap is None and command_config is None
    return offline_cluster(cluster, bootstrap, command_config, offline=offline or alone)


@contextmanager
def admin_client(
    cluster: Path | None, bootstrap: str | None, command_config: Path | None = None
) -> Iterator[AdminClient]:
    """A client for requests that client libraries lack. Raises UnreachableError, UsageError."""
    servers, security = bootstrap_servers(cluster, bootstrap, command_config)
    with asyncio.Runner() as runner:
        yield AdminClient(runner, servers, security)


@contextmanager
def kafka_admin_client(
    cluster: Path | None, bootstrap: str | None, command_config: Path | None
) -> Iterator[KafkaAdminClient]:
    """kafka-python's client; its errors become TopicRequestErrors. Raises UnreachableError, AuthenticationError,
    UsageError."""
    servers, security = bootstrap_servers(cluster, bootstrap, command_config)
    if security.login is not None:
        _require_metadata(servers, security)
    with kafka_errors():
        try:
            admin = KafkaAdminClient(
                bootstrap_servers=servers,
                bootstrap_timeout_ms=ADMIN_TIMEOUT_MS,
                request_timeout_ms=ADMIN_TIMEOUT_MS + 5000,
                **security.of_kafka_python(),
            )
        except KafkaError:
            _require_metadata(servers, security)
            raise
        try:
            yield admin
        finally:
            admin.close()


def _require_metadata(servers: list[str], security: ClientSecurity) -> None:
    """Raises UnreachableError or AuthenticationError with the reason: kafka-python reports a login that is refused, or
    that is lacking, as a time-out."""
    with asyncio.Runner() as runner:
        AdminClient(runner, servers, security).metadata(())


@contextmanager
def cluster_connections(
    cluster: Path | None, bootstrap: str | None, command_config: Path | None
) -> Iterator[ClusterConnections]:
    """Connections for requests to leaders and coordinators. Raises UnreachableError, UsageError."""
    servers, security = bootstrap_servers(cluster, bootstrap, command_config)
    connections = ClusterConnections(servers, "kreplog", ADMIN_TIMEOUT_MS / 1000, security)
    try:
        yield connections
    finally:
        connections.close()
