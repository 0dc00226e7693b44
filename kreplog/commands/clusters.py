"""`kreplog broker` and `kreplog cluster`, and the table of all commands that need the extra `cluster`."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import UnreachableError
from kreplog.client.degraded_partitions import degraded_partitions
from kreplog.client.log_dirs import offline_directories
from kreplog.cluster import store_requests, tls_files
from kreplog.cluster.local_cluster import BrokerStatus, ClusterError, LocalCluster
from kreplog.cluster.tls_files import client_properties
from kreplog.commands.acls import acl_app
from kreplog.commands.add_brokers import add_brokers
from kreplog.commands.broker_settings import alter, describe
from kreplog.commands.cluster_features import features_app
from kreplog.commands.cluster_tracing import trace_app
from kreplog.commands.connecting import admin_client
from kreplog.commands.console import console_app
from kreplog.commands.consume import consume_app
from kreplog.commands.consumer_groups import group_app
from kreplog.commands.log_replay import replay
from kreplog.commands.options import (
    App,
    AsJson,
    ClusterDir,
    Config,
    OptionalClusterDir,
    Racks,
    ids,
    print_json,
    racks_in,
)
from kreplog.commands.partitions import partition_app
from kreplog.commands.produce import produce_app
from kreplog.commands.producer_transactions import transaction_app
from kreplog.commands.quotas import quota_app
from kreplog.commands.rebalancing import drain, rebalance
from kreplog.commands.top import top_app
from kreplog.commands.topics import topic_app
from kreplog.commands.users import user_app
from kreplog.errors import CoordinationError, ErrorCode, UsageError
from kreplog.types import counted

broker_app = App("Run a broker of a cluster on this host, and change settings of running ones.")
cluster_app = App("Create, start, stop and extend a cluster of brokers on this host, and show its status.")

BrokerIds = Annotated[str | None, typer.Option("--brokers", help="Broker ids, comma-separated (default: all).")]

broker_app.command("describe")(describe)
broker_app.command("alter")(alter)
cluster_app.command("add-brokers")(add_brokers)
cluster_app.command("rebalance")(rebalance)
cluster_app.command("drain")(drain)
cluster_app.command("replay")(replay)
cluster_app.add_typer(features_app, name="features")

APPS = {
    "broker": broker_app,
    "cluster": cluster_app,
    "topic": topic_app,
    "partition": partition_app,
    "group": group_app,
    "transaction": transaction_app,
    "acl": acl_app,
    "user": user_app,
    "quota": quota_app,
    "produce": produce_app,
    "consume": consume_app,
    "console": console_app,
    "top": top_app,
    "trace": trace_app,
}
"""Apps by the name in `kreplog <name>`; kreplog.cli imports this module when one of them is called."""


def run(name: str, arguments: list[str]) -> None:
    """Run `kreplog <name>` with these arguments; ends with SystemExit. Raises KreplogError, OSError."""
    APPS[name](arguments, prog_name=f"kreplog {name}")


@broker_app.callback()
def _broker() -> None:
    """Run a broker of a cluster on this host, and change settings of running ones."""


@broker_app.command("start")
def start_broker(
    directory: OptionalClusterDir = None,
    broker_id: Annotated[int | None, typer.Option("--id", min=0, help="Id of the broker in the directory.")] = None,
    config: Config = None,
    log_dir: Annotated[
        Path | None, typer.Option("--log-dir", help="With --config: log to files in this directory, not to stderr.")
    ] = None,
    to_stderr: Annotated[
        bool, typer.Option("--log-to-stderr", help="Log to stderr instead of files in its logs directory.")
    ] = False,
) -> None:
    """Run a broker in the foreground: of a cluster's directory on this host, or by a file of settings (--config).

    SIGTERM and Ctrl-C begin a controlled shutdown, which moves its leaders first."""
    from kreplog.cluster.broker_process import run_broker, run_configured_broker

    if config is not None:
        if broker_id is not None or to_stderr:
            raise UsageError("with --config the file has the broker's id, and logs go to stderr or --log-dir")
        run_configured_broker(config, log_dir)
        return
    if directory is None or broker_id is None:
        raise UsageError("give the directory of a cluster and --id, or --config with a file of settings")
    if log_dir is not None:
        raise UsageError("--log-dir is for --config: a broker of a cluster's directory logs there, or to stderr")
    run_broker(LocalCluster(directory), broker_id, log_to_stderr=to_stderr)


@cluster_app.command("zookeeper-acl")
def zookeeper_acl(
    action: Annotated[str, typer.Argument(help="secure: to the user of the file; unsecure: to everybody.")],
    config: Annotated[Path, typer.Option("--config", help="Settings of a broker, TOML.")],
) -> None:
    """Give all nodes of a cluster in ZooKeeper to the user or certificate of the brokers' settings, or to everybody.

    As Kafka's zookeeper-security-migration, for nodes from before zookeeper.set.acl, or before it is switched off."""
    if action not in ("secure", "unsecure"):
        raise UsageError(f"{action}: choose secure or unsecure")
    count = store_requests.set_zookeeper_acls(config, secure=action == "secure")
    print(f"{counted(count, 'node')} {action}d")


@cluster_app.command()
def create(
    directory: ClusterDir,
    brokers: Annotated[str, typer.Option("--brokers", help="Broker ids, comma-separated.")] = "0,1,2",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65000, help="Port of the first broker; 0: any free ports.")
    ] = 9092,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of every broker, in TOML: '\"name\" = value'.")
    ] = None,
    racks: Racks = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Listeners with TLS and a private CA's certificates, for trying out.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create the directory of a new cluster, without starting it."""
    broker_ids = ids(brokers)
    cluster = LocalCluster.create(directory, broker_ids, port, settings or (), racks_in(racks, broker_ids), tls=tls)
    properties = client_properties(cluster.directory)
    if as_json:
        facts = {"directory": str(cluster.directory), "brokers": cluster.brokers, "bootstrap": cluster.bootstrap()}
        print_json(facts | ({"client_properties": str(properties)} if tls else {}))
    else:
        named = f"{'id' if len(broker_ids) == 1 else 'ids'} {', '.join(map(str, cluster.brokers))}"
        print(f"{cluster.directory}: {counted(len(broker_ids), 'broker')} ({named}) at {cluster.bootstrap()}")
        if tls:
            print(f"clients need the certificates in {properties}: --command-config of kreplog's and Kafka's tools")


@cluster_app.command("renew-certificates")
def renew_certificates(directory: ClusterDir, as_json: AsJson = False) -> None:
    """Renew all certificates of a cluster that was created with --tls; its CA keeps its key.

    Running brokers load theirs by themselves. Clients that have copies of the CA's or the client's file need new ones
    before these expire."""
    cluster = LocalCluster(directory)
    expires = tls_files.renew_certificates(cluster.directory, cluster.brokers).isoformat(" ", "seconds")
    if as_json:
        print_json({"directory": str(cluster.directory), "expires": expires})
    else:
        print(f"the certificates in {cluster.directory / 'tls'} are new, and valid until {expires}")


@cluster_app.command()
def start(directory: ClusterDir, brokers: BrokerIds = None, as_json: AsJson = False) -> None:
    """Start the brokers that are not running, and wait until all serve."""
    cluster = LocalCluster(directory)
    try:
        cluster.start(None if brokers is None else ids(brokers))
    except ClusterError as error:
        for line in error.lines:
            print(f"  {line}", file=sys.stderr)
        raise
    _show_status(cluster, as_json)


@cluster_app.command()
def stop(directory: ClusterDir, brokers: BrokerIds = None, as_json: AsJson = False) -> None:
    """Stop brokers by controlled shutdowns, one after the other, and wait until they have stopped."""
    cluster = LocalCluster(directory)
    cluster.stop(None if brokers is None else ids(brokers))
    _show_status(cluster, as_json)


@cluster_app.command()
def status(directory: ClusterDir, as_json: AsJson = False) -> None:
    """Show each broker's address, process and state, the controller, and degraded partitions."""
    _show_status(LocalCluster(directory), as_json)


def _show_status(cluster: LocalCluster, as_json: bool) -> None:
    statuses, degraded = _status(cluster)
    if as_json:
        brokers = [asdict(status) for status in statuses]
        print_json({"directory": str(cluster.directory), "brokers": brokers, "degraded": degraded})
        return
    table = Table("broker", "address", "pid", "state", "controller")
    for status in statuses:
        address = f"{status.host}:{status.port}" if status.port else "-"
        table.add_row(str(status.id), address, str(status.pid or "-"), status.state, "yes" if status.controller else "")
    Console().print(table)
    for status in statuses:
        if status.detail:
            print(f"broker {status.id}: {status.detail}")
    for line in degraded:
        print(f"degraded: {line}")


def _status(cluster: LocalCluster) -> tuple[list[BrokerStatus], list[str]]:
    """The status of each broker, "degraded" if it serves without all its log directories, and lines about degraded
    partitions."""
    statuses = cluster.status()
    serving = [status.id for status in statuses if status.state == "serving"]
    try:
        if not serving:
            return statuses, []
        with admin_client(cluster.directory, None) as admin:
            topics = admin.metadata().topics
            degraded = [*degraded_partitions(topics), *_denied(cluster, admin, {topic.name for topic in topics})]
            offline = offline_directories(admin, serving)
    except UnreachableError as error:
        return statuses, [str(error)]
    for index, status in enumerate(statuses):
        if offline.get(status.id):
            detail = f"offline log directories: {', '.join(offline[status.id])}; see its logs/server.log"
            statuses[index] = replace(status, state="degraded", detail=detail)
    return statuses, degraded


def _denied(cluster: LocalCluster, admin: AdminClient, described: set[str]) -> list[str]:
    """A line if there are topics that ACLs leave out of Metadata."""
    if not any(cluster.settings(broker).authorizer for broker in cluster.brokers):
        return []
    try:
        with cluster.store_session() as session:
            others = store_requests.topic_names(session) - described
    except CoordinationError as error:
        return [f"topics that may not be described are unknown: {error}"]
    found = admin.metadata(others).topics if others else []
    count = sum(topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED for topic in found)
    if not count:
        return []
    return [f"unknown for {counted(count, 'topic')}: no ACL lets the principal of this command describe them"]
