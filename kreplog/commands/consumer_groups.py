"""`kreplog group`: list, describe and delete consumer groups, and reset their offsets, over the Kafka protocol."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

import typer

from kreplog.client.bulk_errors import GroupRequestError, UnknownTopicError
from kreplog.client.cluster_connections import ClusterConnections
from kreplog.client.group_admin import (
    CLASSIC,
    CONSUMER,
    committed_offsets,
    delete_group,
    list_groups,
)
from kreplog.client.group_facts import lag_text, read_group
from kreplog.client.group_offsets import commit_offsets
from kreplog.client.offset_reset import PartitionReset, ResetTarget, plan_reset, require_resettable
from kreplog.commands import group_settings
from kreplog.commands.connecting import cluster_connections, coordinator_deadline
from kreplog.commands.group_settings import GroupId
from kreplog.commands.options import (
    App,
    AsJson,
    Bootstrap,
    CommandConfig,
    OptionalDir,
    milliseconds,
    print_json,
)
from kreplog.errors import ErrorCode, UsageError
from kreplog.types import TopicPartition, check_topic, counted, printable

NEW_TOPIC_S = 1.0
"""How long a topic is looked for that the first broker does not know."""

STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable", "Dead")
"""States of groups of both protocols, as Kafka names them."""

group_app = App("List, describe and delete consumer groups, reset their offsets, and alter their configs.")


@group_app.command("list")
def list_all(
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only groups in this state, as in Stable; may be repeated.")
    ] = None,
    type_: Annotated[
        list[str] | None,
        typer.Option("--type", help="Only groups of this type, classic or consumer (KIP-848); may be repeated."),
    ] = None,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """List the groups with their states and types."""
    states = _chosen("--state", "state", state, STATES)
    types = _chosen("--type", "type", type_, (CLASSIC, CONSUMER))
    with cluster_connections(cluster, bootstrap, command_config) as connections:
        groups = [
            each
            for each in list_groups(connections, coordinator_deadline())
            if (not states or each.state.lower() in states) and (not types or each.type.lower() in types)
        ]
    if as_json:
        print_json({"groups": [each._asdict() for each in groups]})
        return
    for each in groups:
        facts = each.state or "state unknown", each.type or "type unknown", each.protocol_type or "no protocol"
        print("  ".join((printable(each.group), *facts)))
    if not groups:
        print("there is no such group" if states or types else "there is no group")


def _chosen(option: str, noun: str, given: Sequence[str] | None, known: Sequence[str]) -> set[str]:
    """In lower case. Raises UsageError."""
    chosen = {each.lower() for each in given or ()}
    if unknown := sorted(chosen.difference(map(str.lower, known))):
        raise UsageError(f"{option} {unknown[0]!r} is no {noun} of a group: choose from {', '.join(known)}")
    return chosen


# Describe


@group_app.command()
def describe(
    group: GroupId,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show a group's state and members, and committed offset, log end and lag of each partition."""
    with cluster_connections(cluster, bootstrap, command_config) as connections:
        facts = read_group(connections, group, coordinator_deadline)
    if facts is None:
        raise _no_such_group(group)
    if as_json:
        print_json(facts)
    else:
        print("\n".join(description(facts)))


def description(facts: dict[str, Any]) -> list[str]:
    """The lines of a description in words. facts: as group_facts."""
    protocol = f", {printable(facts['protocol'])}" if facts["protocol"] else ""
    if facts["epoch"] is not None:
        protocol += f", epoch {facts['epoch']} (target of {facts['assignment_epoch']})"
    lines = [
        f"{printable(facts['group'])}: {facts['state']}{protocol}, coordinator {facts['coordinator']}, "
        f"{counted(len(facts['members']), 'member')}, lag {lag_text(facts['known_lag'], facts['lag_unknown'])}"
    ]
    for member in facts["members"]:
        static = f"  instance {printable(member['instance_id'])}" if member["instance_id"] is not None else ""
        epoch = "" if member["epoch"] is None else f"  epoch {member['epoch']}"
        name, host = printable(member["member_id"]), printable(member["host"])
        lines.append(f"    {name}{static}{epoch}  at {host}: {_list(member)}")
    for row in facts["offsets"]:
        numbers = "".join(f"  {word} {_number(row[key])}" for word, key in _COLUMNS.items())
        lines.append(f"{row['topic']}-{row['partition']}{numbers}  {printable(row['member_id'] or 'no member')}")
    return lines


_COLUMNS = {"committed": "offset", "end": "log_end_offset", "lag": "lag"}


def _list(member: dict[str, Any]) -> str:
    partitions = ", ".join(member["partitions"]) or "no partitions"
    if member["target"] is None or member["target"] == member["partitions"]:
        return partitions
    return f"{partitions}; to have {', '.join(member['target']) or 'none'}"


def _number(value: int | None) -> str:
    return "none" if value is None else f"{value:,}"


# Reset


@group_app.command("reset-offsets")
def reset_offsets(
    group: GroupId,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="Topic, or partitions of it as in events:0,2; may be repeated."),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All partitions with a committed offset of the group.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first record.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end: only new records.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="To this offset.")] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", help="By this many records from the committed offset, back if negative.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option("--to-datetime", help="To the first record from then on: ISO 8601, or milliseconds since 1970."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Commit the new offsets (default: show them only).")
    ] = False,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show, or with --execute commit, offsets from which a group without members is to continue.

    An offset outside of the log becomes its nearest end."""
    target = _target(to_earliest, to_latest, to_offset, shift_by, to_datetime)
    if bool(topic) == all_topics:
        raise UsageError("give either --topic or --all-topics")
    requested = [_topic_and_partitions(text) for text in topic or ()]
    with cluster_connections(cluster, bootstrap, command_config) as connections:
        require_resettable(connections, group, coordinator_deadline())
        committed = committed_offsets(connections, group, coordinator_deadline())
        partitions = _partitions(connections, requested) if requested else list(committed)
        if not partitions:
            raise _no_such_group(group)
        resets = plan_reset(connections, partitions, committed, target, coordinator_deadline())
        if execute:
            commit_offsets(
                connections, group, {at: reset.offset for at, reset in resets.items()}, {}, coordinator_deadline()
            )
    _show_resets(group, resets, execute, as_json)


def _target(
    to_earliest: bool, to_latest: bool, to_offset: int | None, shift_by: int | None, to_datetime: str | None
) -> ResetTarget:
    given = [to_earliest, to_latest, to_offset is not None, shift_by is not None, to_datetime is not None]
    if sum(given) != 1:
        raise UsageError("give one of --to-earliest, --to-latest, --to-offset, --shift-by and --to-datetime")
    if to_offset is not None or shift_by is not None:
        return ResetTarget(offset=to_offset, shift=shift_by)
    if to_datetime is not None:
        return ResetTarget(timestamp=milliseconds("--to-datetime", to_datetime))
    return ResetTarget.earliest() if to_earliest else ResetTarget.latest()


def _topic_and_partitions(text: str) -> tuple[str, list[int] | None]:
    """The topic of a --topic, and the partitions, None for all. Raises UsageError."""
    name, colon, numbers = text.partition(":")
    check_topic(name)
    if not colon:
        return name, None
    try:
        return name, [int(number) for number in numbers.split(",")]
    except ValueError:
        raise UsageError(f"--topic {text!r}: give partitions as in {name}:0,2") from None


def _partitions(
    connections: ClusterConnections, requested: Sequence[tuple[str, list[int] | None]]
) -> list[TopicPartition]:
    with suppress(UnknownTopicError):  # a broker may not know a new topic yet
        connections.require([TopicPartition(name, 0) for name, _ in requested], time.monotonic() + NEW_TOPIC_S)
    metadata = connections.refresh({name for name, _ in requested}, coordinator_deadline())
    found: dict[TopicPartition, None] = {}
    for name, numbers in requested:
        existing = sorted(at for at in metadata.partitions if at.topic == name)
        wanted = existing if numbers is None else [TopicPartition(name, number) for number in numbers]
        for at in wanted or [TopicPartition(name, 0)]:
            if at not in metadata.partitions:
                raise UsageError(f"there is no partition {at}: topic {name} has {len(existing)}")
            found[at] = None
    return list(found)


def _show_resets(group: str, resets: Mapping[TopicPartition, PartitionReset], execute: bool, as_json: bool) -> None:
    if as_json:
        rows = [
            {"topic": at.topic, "partition": at.partition, **reset._asdict()} for at, reset in sorted(resets.items())
        ]
        print_json({"group": group, "executed": execute, "offsets": rows})
        return
    for at, reset in sorted(resets.items()):
        wanted = "" if reset.wanted is None else f"  ({reset.wanted:,} is outside of the log)"
        print(f"{at}  committed {_number(reset.committed)}  new {reset.offset:,}{wanted}")
    changed = f"{counted(len(resets), 'offset')} of group {printable(group)}"
    print(f"{changed} committed" if execute else f"{changed} would be committed: add --execute to do so")


# Delete


@group_app.command()
def delete(
    groups: Annotated[list[str], typer.Argument(help="Ids of the groups.")],
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Delete groups without members, with their committed offsets."""
    deleted: list[str] = []
    with cluster_connections(cluster, bootstrap, command_config) as connections:
        for group in dict.fromkeys(groups):
            try:
                delete_group(connections, group, coordinator_deadline())
            except GroupRequestError as error:
                raise _not_deleted(error, group, deleted) from error
            deleted.append(group)
            if not as_json:
                print(f"{printable(group)}: deleted")
    if as_json:
        print_json({"deleted": deleted})


def _no_such_group(group: str) -> GroupRequestError:
    return GroupRequestError(
        f"there is no group {printable(group)} with members or offsets: `kreplog group list` lists them",
        group=group,
        code=ErrorCode.GROUP_ID_NOT_FOUND,
    )


def _not_deleted(error: GroupRequestError, group: str, deleted: Sequence[str]) -> GroupRequestError:
    """The error of a group after the deletion of others."""
    text = str(_no_such_group(group) if error.code is ErrorCode.GROUP_ID_NOT_FOUND else error)
    before = f"; {', '.join(map(printable, deleted))} deleted before" if deleted else ""
    return GroupRequestError(f"{text}{before}", group=group, code=error.code)


# Configs

group_app.command("describe-configs")(group_settings.describe)
group_app.command("alter-configs")(group_settings.alter)
