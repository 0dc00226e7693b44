"""`kreplog topic`: create, list, describe, alter and delete topics, over the Kafka protocol."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import ClusterDeniedError, raise_for_error
from kreplog.client.degraded_partitions import degraded_partitions
from kreplog.client.reassignment import OngoingReassignment, ongoing_reassignments
from kreplog.client.replica_rows import replica_rows
from kreplog.client.replica_states import replica_states
from kreplog.client.topic_admin import create_topic, delete_topic
from kreplog.client.topic_configs import alter_topic_configs, create_partitions, topic_configs, topic_id_text
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.commands.connecting import admin_client, kafka_admin_client
from kreplog.commands.options import (
    App,
    AsJson,
    Bootstrap,
    CommandConfig,
    OptionalDir,
    config_changes,
    pair,
    print_json,
)
from kreplog.commands.topic_folders import FOLDER, TopicName, describe_in_folder, list_in_folder, print_names
from kreplog.errors import ErrorCode, UsageError
from kreplog.types import NO_LEADER, TopicPartition, check_topic, counted

topic_app = App("Create, list, describe, alter and delete topics.")

Folder = Annotated[Path | None, FOLDER]
Configs = Annotated[
    list[str] | None, typer.Option("--config", help="Setting of the topic as NAME=VALUE, by Kafka's name.")
]


@topic_app.command()
def create(
    name: TopicName,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1, help="Number of partitions.")] = 1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", min=1, help="Replicas of each partition.")
    ] = 1,
    config: Configs = None,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Create a topic, and wait until its partitions have leaders."""
    check_topic(name)
    configs = dict(pair("--config", text) for text in config or ())
    with admin_client(cluster, bootstrap, command_config) as admin:
        create_topic(admin, name, partitions, replication_factor, configs)
    if as_json:
        print_json({"name": name, "partitions": partitions, "replication_factor": replication_factor})
    else:
        print(f"{name}: {counted(partitions, 'partition')}, {counted(replication_factor, 'replica')} each")


@topic_app.command("list")
def list_topics(
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """List the topics of a cluster, or of a folder."""
    if folder is not None:
        _refuse_brokers(bootstrap, command_config)
        list_in_folder(folder, as_json)
        return
    with kafka_admin_client(cluster, bootstrap, command_config) as admin:
        print_names(sorted(admin.list_topics()), as_json)


@topic_app.command()
def delete(
    name: TopicName,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Delete a topic with all its records."""
    check_topic(name)
    with admin_client(cluster, bootstrap, command_config) as admin:
        delete_topic(admin, name)
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        print(f"{name}: deleted")


# Describe


@topic_app.command()
def describe(
    name: TopicName,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    folder: Folder = None,
    as_json: AsJson = False,
) -> None:
    """Show a topic's settings, its partitions, and the log end offset, high watermark and lag of each replica.

    With --folder its partitions alone, their offsets and sizes; takes no lock and changes nothing.
    """
    check_topic(name)
    if folder is not None:
        _refuse_brokers(bootstrap, command_config)
        describe_in_folder(name, folder, as_json)
        return
    with admin_client(cluster, bootstrap, command_config) as admin:
        (topic,) = admin.metadata([name]).topics
        raise_for_error("topic", name, topic)
        facts = _facts(admin, topic)
    if as_json:
        print_json(facts)
    else:
        _show(facts)


def _refuse_brokers(bootstrap: str | None, command_config: Path | None) -> None:
    if bootstrap is not None or command_config is not None:
        raise UsageError("--folder is for files: give it without --bootstrap and --command-config")


def _facts(admin: AdminClient, topic: Any) -> dict[str, Any]:
    replicas: dict[int, list[TopicPartition]] = {}
    for partition in topic.partitions:
        for broker in partition.replica_nodes:
            replicas.setdefault(broker, []).append(TopicPartition(topic.name, partition.partition_index))
    states = replica_states(admin, replicas)
    numbers = [partition.partition_index for partition in topic.partitions]
    try:
        ongoing = ongoing_reassignments(admin, {topic.name: numbers})
    except ClusterDeniedError:  # it needs Describe on the cluster, all else only rights on the topic
        ongoing = None
    partitions = []
    for partition in sorted(topic.partitions, key=lambda partition: int(partition.partition_index)):
        moves = _moves(ongoing, TopicPartition(topic.name, partition.partition_index))
        partitions.append(
            {
                "partition": partition.partition_index,
                "leader": partition.leader_id,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replica_nodes),
                "isr": list(partition.isr_nodes),
                **moves,
                "replica_states": replica_rows(
                    TopicPartition(topic.name, partition.partition_index),
                    partition.leader_id,
                    partition.replica_nodes,
                    partition.isr_nodes,
                    states,
                ),
            }
        )
    return {
        "name": topic.name,
        "topic_id": topic_id_text(topic),
        "configs": topic_configs(admin, topic.name),
        "partitions": partitions,
        "degraded": degraded_partitions([topic]),
    }


def _moves(
    ongoing: Mapping[TopicPartition, OngoingReassignment] | None, partition: TopicPartition
) -> dict[str, list[int] | None]:
    """Replicas that are added and removed; None where reassignments may not be listed."""
    if ongoing is None:
        return {"adding": None, "removing": None}
    move = ongoing.get(partition)
    return {"adding": list(move.adding) if move else [], "removing": list(move.removing) if move else []}


_OFFSETS = {"start": "log_start_offset", "LEO": "log_end_offset", "HW": "high_watermark", "lag": "lag"}


def _show(facts: dict[str, Any]) -> None:
    print(f"{facts['name']} ({facts['topic_id']}): {counted(len(facts['partitions']), 'partition')}")
    for name, value in facts["configs"].items():
        print(f"    {name} = {value}")
    for partition in facts["partitions"]:
        leader = "none" if partition["leader"] == NO_LEADER else partition["leader"]
        moves = "".join(f"  {word} {_list(partition[word])}" for word in ("adding", "removing") if partition[word])
        print(
            f"{facts['name']}-{partition['partition']}  leader {leader}  epoch {partition['leader_epoch']}  "
            f"AR {_list(partition['replicas'])}  ISR {_list(partition['isr'])}{moves}"
        )
        for replica in partition["replica_states"]:
            offsets = "".join(
                f"  {word} {replica[key]:,}" for word, key in _OFFSETS.items() if replica[key] is not None
            )
            print(f"    {replica['broker']}  {replica['state']:<7}{offsets}".rstrip())
    for line in facts["degraded"]:
        print(f"degraded: {line}")


def _list(replicas: list[int]) -> str:
    return ",".join(map(str, replicas)) or "none"


# Alter


@topic_app.command()
def alter(
    name: TopicName,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="New number of partitions, greater than the present one."),
    ] = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", help="Setting to reset to its default.")
    ] = None,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Add partitions to a topic, or change its settings. If any change is refused, none is applied."""
    check_topic(name)
    changes = config_changes(config, delete_config)
    if partitions is None and not changes:
        raise UsageError("nothing to alter: give --partitions, --config or --delete-config")
    with admin_client(cluster, bootstrap, command_config) as admin:
        for validate_only in (True, False):
            if changes:
                alter_topic_configs(admin, name, changes, validate_only)
            if partitions is not None:
                create_partitions(admin, name, partitions, validate_only)
    facts: dict[str, Any] = {"name": name}
    if partitions is not None:
        facts["partitions"] = partitions
    if changes:
        facts["configs"] = changes
    if as_json:
        print_json(facts)
        return
    results = [] if partitions is None else [counted(partitions, "partition")]
    results += [
        f"{key} = {value}" if value is not None else f"{key} reset to default" for key, value in changes.items()
    ]
    print(f"{name}: {', '.join(results)}")


@topic_app.command("remove-partitions")
def remove_partitions(
    name: TopicName,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Number of partitions that remain, the first ones.")],
    cluster: Annotated[
        Path,
        typer.Option("--cluster", "-c", help="Directory of the cluster on this host.", envvar="KREPLOG_CLUSTER"),
    ],
    execute: Annotated[bool, typer.Option("--execute", help="Delete the partitions.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the last partitions of a topic WITH ALL THEIR RECORDS. Without --execute only show how many records.

    Producers that partition by key send a key to another partition afterwards.
    """
    check_topic(name)
    local = LocalCluster(cluster)
    with admin_client(cluster, None) as admin:
        (topic,) = admin.metadata([name]).topics
        raise_for_error("topic", name, topic)
        if topic.is_internal:
            raise UsageError(f"{name} is internal: its records are found by the number of its partitions, which stays")
        removed = [partition for partition in topic.partitions if partition.partition_index >= keep]
        if not removed:
            raise UsageError(f"{name} has {counted(len(topic.partitions), 'partition')}: there is none beyond {keep}")
        facts = [
            _removed(admin, name, partition) for partition in sorted(removed, key=lambda found: found.partition_index)
        ]
    if not as_json:
        for fact in facts:
            count = (
                "unknown records: it has no leader" if fact["records"] is None else counted(fact["records"], "record")
            )
            print(f"{name}-{fact['partition']}  {count}")
    if not execute:
        if as_json:
            print_json({"name": name, "partitions": keep, "removed": facts, "executed": False})
        else:
            print("nothing changed: use --execute to delete these partitions and their records")
        return
    _, pending = local.remove_partitions(name, keep)
    if as_json:
        print_json({"name": name, "partitions": keep, "removed": facts, "executed": True, "pending": pending})
    elif pending:
        print(f"{name}: partitions {pending} are deleted once all brokers with their replicas run")
    else:
        print(f"{name}: {counted(keep, 'partition')}")


def _removed(admin: AdminClient, topic: str, partition: Any) -> dict[str, Any]:
    """A partition and how many offsets it has, None without a leader."""
    topic_partition = TopicPartition(topic, partition.partition_index)
    states = replica_states(admin, {partition.leader_id: [topic_partition]})
    state = states.get(partition.leader_id, {}).get(topic_partition)
    known = state is not None and state.error is ErrorCode.NONE
    records = state.log_end_offset - state.log_start_offset if state is not None and known else None
    return {"partition": partition.partition_index, "records": records}
