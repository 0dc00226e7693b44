"""The commands of brokers and clusters: `kreplog broker`, `kreplog cluster` and `kreplog topic`.

Topics are worked on over the Kafka protocol, as any client would; --bootstrap names brokers anywhere, a directory those
of a cluster on this host.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kreplog.errors import UsageError
from kreplog.server.connecting import ADMIN_TIMEOUT_MS, admin_of, succeed
from kreplog.server.local_cluster import LocalCluster, PidFile
from kreplog.types import check_topic
from kreplog.wire import cold

_STYLE: dict[str, Any] = {"no_args_is_help": True, "add_completion": False, "pretty_exceptions_enable": False}

broker_app = typer.Typer(help="Run one broker.", **_STYLE)
cluster_app = typer.Typer(help="Make, start, stop and see a cluster of brokers on this host.", **_STYLE)
topic_app = typer.Typer(help="Make, list, describe and delete topics.", **_STYLE)

AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
ClusterDir = Annotated[Path, typer.Argument(help="The cluster's directory.", envvar="KREPLOG_CLUSTER")]
OptionalDir = Annotated[
    Path | None, typer.Option("--cluster", "-c", help="The cluster's directory.", envvar="KREPLOG_CLUSTER")
]
Bootstrap = Annotated[str | None, typer.Option("--bootstrap", "-b", help="host:port of brokers, with commas between.")]
BrokerIds = Annotated[str | None, typer.Option("--brokers", help="Ids, with commas between (default: all).")]


def run(name: str, arguments: list[str]) -> None:
    """Run `kreplog <name>` with these arguments, and leave by SystemExit. Raises KreplogError, OSError."""
    apps = {"broker": broker_app, "cluster": cluster_app, "topic": topic_app}
    apps[name](arguments, prog_name=f"kreplog {name}")


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
) -> None:
    """Write the directory of a new cluster; starts nothing."""
    cluster = LocalCluster.create(directory, _ids(brokers), port, settings or ())
    print(f"{cluster.directory}: brokers {', '.join(map(str, cluster.brokers))} at {cluster.bootstrap()}")


@cluster_app.command()
def start(directory: ClusterDir, brokers: BrokerIds = None, as_json: AsJson = False) -> None:
    """Start the brokers that do not run, and wait until they serve."""
    cluster = LocalCluster(directory)
    cluster.start(None if brokers is None else _ids(brokers))
    _show_status(cluster, as_json)


@cluster_app.command()
def stop(directory: ClusterDir, brokers: BrokerIds = None, as_json: AsJson = False) -> None:
    """Stop the brokers cleanly, one after the other, and wait until they have."""
    cluster = LocalCluster(directory)
    cluster.stop(None if brokers is None else _ids(brokers))
    _show_status(cluster, as_json)


@cluster_app.command()
def status(directory: ClusterDir, as_json: AsJson = False) -> None:
    """Show which brokers live, where, and which of them is the controller."""
    _show_status(LocalCluster(directory), as_json)


def _show_status(cluster: LocalCluster, as_json: bool) -> None:
    found = cluster.status()
    if as_json:
        _print_json({"directory": str(cluster.directory), "brokers": [asdict(one) for one in found]})
        return
    table = Table("broker", "address", "pid", "state", "controller")
    for one in found:
        state = "serving" if one.alive and one.registered else "starting" if one.alive else "stopped"
        table.add_row(
            str(one.id), f"{one.host}:{one.port}", str(one.pid or "-"), state, "yes" if one.controller else ""
        )
    Console().print(table)


# Topics


@topic_app.command("create")
def create_topic(
    name: str,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1)] = 1,
    replication_factor: Annotated[int, typer.Option("--replication-factor", "-r", min=1)] = 1,
    config: Annotated[list[str] | None, typer.Option("--config", help="name=value, under Kafka's names.")] = None,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
) -> None:
    """Make a topic, and wait until its partitions have leaders."""
    check_topic(name)
    configs = dict(_pair(text) for text in config or ())
    topic = {"num_partitions": partitions, "replication_factor": replication_factor, "configs": configs}
    with admin_of(cluster, bootstrap) as admin:
        answer = admin.create_topics({name: topic}, timeout_ms=ADMIN_TIMEOUT_MS, raise_errors=False)
    succeed("topic", name, answer["topics"][0])
    print(f"{name}: {_counted(partitions, 'partition')}, {_counted(replication_factor, 'replica')} each")


@topic_app.command("list")
def list_topics(cluster: OptionalDir = None, bootstrap: Bootstrap = None, as_json: AsJson = False) -> None:
    """List the topics."""
    with admin_of(cluster, bootstrap) as admin:
        names = sorted(admin.list_topics())
    if as_json:
        _print_json({"topics": names})
    else:
        for name in names:
            print(name)


@topic_app.command()
def describe(name: str, cluster: OptionalDir = None, bootstrap: Bootstrap = None, as_json: AsJson = False) -> None:
    """Show a topic's partitions: leader, leader epoch, replicas, in-sync replicas."""
    check_topic(name)
    with admin_of(cluster, bootstrap) as admin:
        (topic,) = admin.describe_topics([name])
    succeed("topic", name, topic)
    facts: dict[str, Any] = {
        "name": name,
        "topic_id": cold.topic_id(uuid.UUID(topic["topic_id"])),
        "partitions": [
            {
                "partition": one["partition_index"],
                "leader": one["leader_id"],
                "leader_epoch": one["leader_epoch"],
                "replicas": one["replica_nodes"],
                "isr": one["isr_nodes"],
            }
            for one in sorted(topic["partitions"], key=lambda one: int(one["partition_index"]))
        ],
    }
    if as_json:
        _print_json(facts)
        return
    table = Table("partition", "leader", "epoch", "replicas", "in sync", title=f"{name} ({facts['topic_id']})")
    for one in facts["partitions"]:
        table.add_row(
            *(str(one[key]) for key in ("partition", "leader", "leader_epoch")),
            *(",".join(map(str, one[key])) for key in ("replicas", "isr")),
        )
    Console().print(table)


@topic_app.command("delete")
def delete_topic(name: str, cluster: OptionalDir = None, bootstrap: Bootstrap = None) -> None:
    """Delete a topic and all that is in it."""
    check_topic(name)
    with admin_of(cluster, bootstrap) as admin:
        answer = admin.delete_topics([name], timeout_ms=ADMIN_TIMEOUT_MS, raise_errors=False)
    succeed("topic", name, answer["topics"][0])
    print(f"{name}: deleted")


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"brokers {text!r}: write ids with commas between, as in 0,1,2") from None


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise UsageError(f"--config {text!r}: write name=value")
    return name, value


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _print_json(facts: object) -> None:
    print(json.dumps(facts, ensure_ascii=False, separators=(",", ":")))
