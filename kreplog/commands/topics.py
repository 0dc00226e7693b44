"""`kreplog topic`: topics are worked on over the Kafka protocol, as any client would.

--bootstrap names brokers anywhere, --cluster those of a cluster on this host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from kreplog.client.admin_client import AdminClient
from kreplog.client.connecting import ADMIN_TIMEOUT_MS, succeed
from kreplog.client.replica_states import ReplicaState, replica_states
from kreplog.commands.connecting import admin_client_of, kafka_admin_of
from kreplog.commands.health import degraded_partitions
from kreplog.commands.options import App, AsJson, Bootstrap, OptionalDir, counted, pair, print_json
from kreplog.errors import ErrorCode, UsageError
from kreplog.types import NO_LEADER, TopicPartition, check_topic
from kreplog.wire import generic
from kreplog.wire.versions import ApiKey

TOPIC_RESOURCE = 2
TOPIC_CONFIG = 1
"""Where a setting comes from: given to the topic itself."""
SET, DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""

topic_app = App("Make, list, describe, alter and delete topics.")

Configs = Annotated[list[str] | None, typer.Option("--config", help="name=value, under Kafka's names.")]


@topic_app.command()
def create(
    name: str,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1)] = 1,
    replication_factor: Annotated[int, typer.Option("--replication-factor", "-r", min=1)] = 1,
    config: Configs = None,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    as_json: AsJson = False,
) -> None:
    """Make a topic, and wait until its partitions have leaders."""
    check_topic(name)
    configs = dict(pair("--config", text) for text in config or ())
    topic = {"num_partitions": partitions, "replication_factor": replication_factor, "configs": configs}
    with kafka_admin_of(cluster, bootstrap) as admin:
        answer = admin.create_topics({name: topic}, timeout_ms=ADMIN_TIMEOUT_MS, raise_errors=False)
    succeed("topic", name, answer["topics"][0])
    if as_json:
        print_json({"name": name, "partitions": partitions, "replication_factor": replication_factor})
    else:
        print(f"{name}: {counted(partitions, 'partition')}, {counted(replication_factor, 'replica')} each")


@topic_app.command("list")
def list_topics(cluster: OptionalDir = None, bootstrap: Bootstrap = None, as_json: AsJson = False) -> None:
    """List the topics."""
    with kafka_admin_of(cluster, bootstrap) as admin:
        names = sorted(admin.list_topics())
    if as_json:
        print_json({"topics": names})
    else:
        for name in names:
            print(name)


@topic_app.command()
def delete(name: str, cluster: OptionalDir = None, bootstrap: Bootstrap = None, as_json: AsJson = False) -> None:
    """Delete a topic and all that is in it."""
    check_topic(name)
    with kafka_admin_of(cluster, bootstrap) as admin:
        answer = admin.delete_topics([name], timeout_ms=ADMIN_TIMEOUT_MS, raise_errors=False)
    succeed("topic", name, answer["topics"][0])
    if as_json:
        print_json({"name": name, "deleted": True})
    else:
        print(f"{name}: deleted")


# Describe


@topic_app.command()
def describe(name: str, cluster: OptionalDir = None, bootstrap: Bootstrap = None, as_json: AsJson = False) -> None:
    """Show a topic's settings, its partitions and where each replica is: log end offset, high watermark, lag."""
    check_topic(name)
    with admin_client_of(cluster, bootstrap) as brokers:
        (topic,) = brokers.metadata([name]).topics
        succeed("topic", name, {"error_code": topic.error_code})
        facts = _facts(brokers, topic)
    if as_json:
        print_json(facts)
    else:
        _show(facts)


def _facts(brokers: AdminClient, topic: Any) -> dict[str, Any]:
    held: dict[int, list[TopicPartition]] = {}
    for partition in topic.partitions:
        for broker in partition.replica_nodes:
            held.setdefault(broker, []).append(TopicPartition(topic.name, partition.partition_index))
    states = replica_states(brokers, held)
    moving = brokers.ask(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        0,
        topics=[
            {"name": topic.name, "partition_indexes": [partition.partition_index for partition in topic.partitions]}
        ],
        timeout_ms=ADMIN_TIMEOUT_MS,
    )
    moves = {partition.partition_index: partition for found in moving.topics for partition in found.partitions}
    return {
        "name": topic.name,
        "topic_id": generic.topic_id(topic.topic_id),
        "configs": _configs(brokers, topic.name),
        "partitions": [
            {
                "partition": partition.partition_index,
                "leader": partition.leader_id,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replica_nodes),
                "isr": list(partition.isr_nodes),
                "adding": list(moves[partition.partition_index].adding_replicas)
                if partition.partition_index in moves
                else [],
                "removing": list(moves[partition.partition_index].removing_replicas)
                if partition.partition_index in moves
                else [],
                "replica_states": _replicas(topic.name, partition, states),
            }
            for partition in sorted(topic.partitions, key=lambda one: int(one.partition_index))
        ],
        "degraded": degraded_partitions([topic]),
    }


def _configs(brokers: AdminClient, topic: str) -> dict[str, str]:
    """The settings that the topic was given; all others are as its brokers have them."""
    asked = {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configuration_keys": None}
    answer = brokers.ask(
        ApiKey.DESCRIBE_CONFIGS, 1, resources=[asked], include_synonyms=False, include_documentation=False
    )
    _succeed(topic, answer.results[0])
    return {config.name: config.value for config in answer.results[0].configs if config.config_source == TOPIC_CONFIG}


def _replicas(
    topic: str, partition: Any, states: Mapping[int, Mapping[TopicPartition, ReplicaState]]
) -> list[dict[str, Any]]:
    """Offsets are None where nobody tells them."""
    at = TopicPartition(topic, partition.partition_index)
    leader = states.get(partition.leader_id, {}).get(at)
    rows = []
    for broker in partition.replica_nodes:
        told = states.get(broker, {}).get(at)
        offsets: dict[str, int | None] = dict.fromkeys(("log_start_offset", "log_end_offset", "high_watermark", "lag"))
        if told is not None and told.error is ErrorCode.NONE:
            offsets = {
                "log_start_offset": told.log_start_offset,
                "log_end_offset": told.log_end_offset,
                "high_watermark": told.high_watermark,
                "lag": None,
            }
            if leader is not None and leader.error is ErrorCode.NONE:
                offsets["lag"] = max(0, leader.log_end_offset - told.log_end_offset)
        state = _word(broker, partition, told, answers=broker in states)
        rows.append({"broker": broker, "state": state, **offsets})
    return rows


def _word(broker: int, partition: Any, told: ReplicaState | None, *, answers: bool) -> str:
    if not answers:
        return "down"
    if told is None or told.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return "missing"
    if told.error is not ErrorCode.NONE:
        return "failed"
    if broker == partition.leader_id:
        return "leader"
    return "in sync" if broker in partition.isr_nodes else "lagging"


def _show(facts: dict[str, Any]) -> None:
    print(f"{facts['name']} ({facts['topic_id']}): {counted(len(facts['partitions']), 'partition')}")
    for name, value in facts["configs"].items():
        print(f"    {name} = {value}")
    for one in facts["partitions"]:
        leader = "none" if one["leader"] == NO_LEADER else one["leader"]
        moves = "".join(f"  {word} {_list(one[word])}" for word in ("adding", "removing") if one[word])
        print(
            f"{facts['name']}-{one['partition']}  leader {leader}  epoch {one['leader_epoch']}  "
            f"AR {_list(one['replicas'])}  ISR {_list(one['isr'])}{moves}"
        )
        for replica in one["replica_states"]:
            told = {"start": "log_start_offset", "LEO": "log_end_offset", "HW": "high_watermark", "lag": "lag"}
            offsets = "".join(f"  {word} {replica[key]:,}" for word, key in told.items() if replica[key] is not None)
            print(f"    {replica['broker']}  {replica['state']:<7}{offsets}".rstrip())
    for line in facts["degraded"]:
        print(f"degraded: {line}")


def _list(replicas: list[int]) -> str:
    return ",".join(map(str, replicas)) or "none"


# Alter


@topic_app.command()
def alter(
    name: str,
    partitions: Annotated[int | None, typer.Option("--partitions", "-p", min=1, help="So many in all.")] = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", help="A setting that is to have its default again.")
    ] = None,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    as_json: AsJson = False,
) -> None:
    """Give a topic more partitions or other settings; if one of these is refused, nothing is changed."""
    check_topic(name)
    changes: list[tuple[str, str | None, int]] = [(*pair("--config", text), SET) for text in config or ()]
    changes += [(text, None, DELETE) for text in delete_config or ()]
    if partitions is None and not changes:
        raise UsageError("nothing to alter: give --partitions, --config or --delete-config")
    names = [change[0] for change in changes]
    if len(set(names)) < len(names):
        raise UsageError("each setting can be given once, and not be deleted as well")
    with admin_client_of(cluster, bootstrap) as brokers:
        for validate_only in (True, False):
            if changes:
                _alter_configs(brokers, name, changes, validate_only)
            if partitions is not None:
                _add_partitions(brokers, name, partitions, validate_only)
    facts: dict[str, Any] = {"name": name}
    if partitions is not None:
        facts["partitions"] = partitions
    if changes:
        facts["configs"] = {one: value for one, value, _ in changes}
    if as_json:
        print_json(facts)
        return
    told = [] if partitions is None else [counted(partitions, "partition")]
    told += [f"{one} = {value}" if value is not None else f"{one} as by default" for one, value, _ in changes]
    print(f"{name}: {', '.join(told)}")


def _alter_configs(
    brokers: AdminClient, name: str, changes: Sequence[tuple[str, str | None, int]], validate_only: bool
) -> None:
    configs = [{"name": one, "value": value, "config_operation": operation} for one, value, operation in changes]
    answer = brokers.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[{"resource_type": TOPIC_RESOURCE, "resource_name": name, "configs": configs}],
        validate_only=validate_only,
    )
    _succeed(name, answer.responses[0])


def _add_partitions(brokers: AdminClient, name: str, count: int, validate_only: bool) -> None:
    answer = brokers.ask(
        ApiKey.CREATE_PARTITIONS,
        2,
        topics=[{"name": name, "count": count, "assignments": None}],
        timeout_ms=ADMIN_TIMEOUT_MS,
        validate_only=validate_only,
    )
    _succeed(name, answer.results[0])


def _succeed(name: str, answer: Any) -> None:
    succeed("topic", name, {"error_code": answer.error_code, "error_message": answer.error_message})
