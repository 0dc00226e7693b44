"""The commands of brokers and clusters of this host, and the way to those that speak to any over the Kafka protocol."""

from __future__ import annotations

import sys
from dataclasses import asdict, replace
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kreplog.client.connecting import UnreachableError
from kreplog.cluster.local_cluster import BrokerStatus, ClusterError, LocalCluster, PidFile
from kreplog.commands.add_brokers import add_brokers
from kreplog.commands.connecting import admin_client_of
from kreplog.commands.consume import consume_app
from kreplog.commands.health import degraded_partitions, offline_directories
from kreplog.commands.options import App, AsJson, ClusterDir, ids, print_json
from kreplog.commands.partitions import partition_app
from kreplog.commands.produce import produce_app
from kreplog.commands.topics import topic_app

broker_app = App("Run one broker.")
cluster_app = App("Make, start, stop and see a cluster of brokers on this host.")

BrokerIds = Annotated[str | None, typer.Option("--brokers", help="Ids, with commas between (default: all).")]

cluster_app.command("add-brokers")(add_brokers)

APPS = {
    "broker": broker_app,
    "cluster": cluster_app,
    "topic": topic_app,
    "partition": partition_app,
    "produce": produce_app,
    "consume": consume_app,
}
"""By the name in `kreplog <name>`; kreplog.cli imports this module when one of them is called."""


def run(name: str, arguments: list[str]) -> None:
    """Run `kreplog <name>` with these arguments, and leave by SystemExit. Raises KreplogError, OSError."""
    APPS[name](arguments, prog_name=f"kreplog {name}")


@broker_app.callback()
def _broker() -> None:
    """Run one broker."""


@broker_app.command("start")
def start_broker(
    directory: ClusterDir,
    broker_id: Annotated[int, typer.Option("--id", min=0, help="Which broker of the cluster.")],
    to_stderr: Annotated[bool, typer.Option("--log-to-stderr", help="Not to files in its logs directory.")] = False,
) -> None:
    """Run a broker in the foreground until SIGTERM or Ctrl-C, which let it hand over its leaders and stop cleanly."""
    from kreplog.server.broker import serve

    cluster = LocalCluster(directory)
    home = cluster.home(broker_id)
    pid_file = PidFile(home)
    serve(
        cluster.settings(broker_id),
        None if to_stderr else home / "logs",
        lambda broker: pid_file.write(*broker.address),
    )


@cluster_app.command()
def create(
    directory: ClusterDir,
    brokers: Annotated[str, typer.Option("--brokers", help="Ids, with commas between.")] = "0,1,2",
    port: Annotated[int, typer.Option("--port", min=0, max=65000, help="Of the first; 0: any that are free.")] = 9092,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of every broker: '\"name\" = value', as in TOML.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the directory of a new cluster; starts nothing."""
    cluster = LocalCluster.create(directory, ids(brokers), port, settings or ())
    if as_json:
        facts = {"directory": str(cluster.directory), "brokers": cluster.brokers, "bootstrap": cluster.bootstrap()}
        print_json(facts)
    else:
        print(f"{cluster.directory}: brokers {', '.join(map(str, cluster.brokers))} at {cluster.bootstrap()}")


@cluster_app.command()
def start(directory: ClusterDir, brokers: BrokerIds = None, as_json: AsJson = False) -> None:
    """Start the brokers that do not run, and wait until they serve."""
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
    """Stop the brokers cleanly, one after the other, and wait until they have."""
    cluster = LocalCluster(directory)
    cluster.stop(None if brokers is None else ids(brokers))
    _show_status(cluster, as_json)


@cluster_app.command()
def status(directory: ClusterDir, as_json: AsJson = False) -> None:
    """Show which brokers live, where, which of them is the controller, and what makes the cluster degraded."""
    _show_status(LocalCluster(directory), as_json)


def _show_status(cluster: LocalCluster, as_json: bool) -> None:
    found, degraded = _examined(cluster)
    if as_json:
        brokers = [asdict(one) for one in found]
        print_json({"directory": str(cluster.directory), "brokers": brokers, "degraded": degraded})
        return
    table = Table("broker", "address", "pid", "state", "controller")
    for one in found:
        address = f"{one.host}:{one.port}" if one.port else "-"
        table.add_row(str(one.id), address, str(one.pid or "-"), one.state, "yes" if one.controller else "")
    Console().print(table)
    for one in found:
        if one.detail:
            print(f"broker {one.id}: {one.detail}")
    for line in degraded:
        print(f"degraded: {line}")


def _examined(cluster: LocalCluster) -> tuple[list[BrokerStatus], list[str]]:
    """The brokers' states, "degraded" for one that serves without all its log directories, and what is wrong with
    partitions."""
    found = cluster.status()
    serving = [one for one in found if one.state == "serving"]
    try:
        if not serving:
            return found, []
        with admin_client_of(cluster.directory, None) as brokers:
            degraded = degraded_partitions(brokers.metadata().topics)
            offline = offline_directories(brokers, [one.id for one in serving])
    except UnreachableError as error:
        return found, [str(error)]
    for index, one in enumerate(found):
        if offline.get(one.id):
            detail = f"offline log directories: {', '.join(offline[one.id])}; its logs/server.log says why"
            found[index] = replace(one, state="degraded", detail=detail)
    return found, degraded
