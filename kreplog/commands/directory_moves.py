"""`kreplog partition move`: replicas to another log directory of their broker, which goes on serving them meanwhile."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import ClusterDeniedError, TopicRequestError, raise_for_error
from kreplog.client.log_dirs import ReplicaFiles, move_replicas, online_directories, replica_files
from kreplog.client.reassignment import partitions_in
from kreplog.commands.connecting import admin_client
from kreplog.commands.interruption import EXIT_CODE
from kreplog.commands.options import AsJson, Bootstrap, CommandConfig, OptionalDir, print_json
from kreplog.errors import ErrorCode, UsageError
from kreplog.types import TopicPartition, check_topic, counted

POLL_S = 0.25


def move(
    topic: Annotated[str, typer.Argument(help="A topic.")],
    broker: Annotated[int, typer.Option("--broker", help="The broker that has the replicas.")],
    directory: Annotated[str, typer.Option("--to", help="Log directory of the broker, as in its log.dirs.")],
    numbers: Annotated[
        list[int] | None, typer.Argument(metavar="[PARTITION]...", help="Default: all that the broker has of it.")
    ] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Move the replicas.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the moves.")] = True,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Move replicas to another log directory of their broker, which serves them meanwhile. Without --execute only show
    which replicas would move, and their bytes.

    To move them to where they are cancels a move. Ctrl-C ends the wait; the moves continue.
    """
    check_topic(topic)
    target = os.path.abspath(directory)
    with admin_client(cluster, bootstrap, command_config) as admin:
        listed = _listed(admin, broker, target, topic, numbers)
        replicas = {partition: next(each for each in files if not each.is_copy) for partition, files in listed.items()}
        to_cancel = [
            partition
            for partition, files in listed.items()
            if replicas[partition].directory == target and any(each.is_copy for each in files)
        ]
        moved = {partition: found for partition, found in replicas.items() if found.directory != target}
        total = sum(found.bytes for found in moved.values())
        if not as_json:
            for partition, found in moved.items():
                print(f"{partition}  broker {broker}  {found.directory} -> {target}  {counted(found.bytes, 'byte')}")
            print(f"{counted(len(moved), 'replica')} to move, {counted(total, 'byte')}")
            if to_cancel:
                print(f"{counted(len(to_cancel), 'move')} to cancel")
            if not execute and (moved or to_cancel):
                print("nothing changed: use --execute to move the replicas")
        failed: dict[TopicPartition, str] = {}
        left: list[TopicPartition] = []
        interrupted = False
        if execute and (moved or to_cancel):
            errors = move_replicas(admin, broker, target, [*moved, *to_cancel])
            failed = _failures(broker, errors, [*moved, *to_cancel])
            left = [partition for partition in moved if partition not in failed]
            try:
                while left and wait:
                    left, given_up = _still_moving(admin, broker, target, left)
                    failed |= given_up
                    time.sleep(POLL_S if left else 0)  # no request waits for the end of a move
            except KeyboardInterrupt:
                interrupted = True
    if as_json:
        print_json(
            {
                "broker": broker,
                "moves": [
                    {**_json(partition), "from": found.directory, "to": target, "bytes": found.bytes}
                    for partition, found in moved.items()
                ],
                "cancelled": [_json(partition) for partition in to_cancel],
                "bytes": total,
                "executed": execute,
                "moving": [_json(partition) for partition in left],
                "failed": [{**_json(partition), "error": error} for partition, error in failed.items()],
            }
        )
    else:
        for error in failed.values():
            print(error, file=sys.stderr)
        done = len(moved) - len(left) - len(failed)
        if execute and done > 0:
            print(f"{counted(done, 'replica')} moved")
        if left:
            print(f"{counted(len(left), 'replica')} still moving")
    if failed:
        raise typer.Exit(1)
    if interrupted:
        raise typer.Exit(EXIT_CODE)


def _listed(
    admin: AdminClient, broker: int, target: str, topic: str, numbers: list[int] | None
) -> dict[TopicPartition, list[ReplicaFiles]]:
    """The replicas that are meant, and their copies. Raises UsageError, TopicRequestError."""
    metadata = admin.metadata([topic])
    for found in metadata.topics:
        raise_for_error("topic", found.name, found)
    present = [partition for partition, found in partitions_in(metadata).items() if broker in found.replica_nodes]
    wanted = [TopicPartition(topic, number) for number in numbers] if numbers else sorted(present)
    if missing := sorted(set(wanted) - set(present)):
        raise UsageError(f"broker {broker} has no replica of {', '.join(map(str, missing))}")
    if not wanted:
        raise UsageError(f"broker {broker} has no replica of topic {topic}")
    directories = online_directories(admin, [broker]).get(broker)
    if directories is None:
        raise TopicRequestError(f"broker {broker} does not respond: start it first")
    if target not in directories:
        raise UsageError(
            f"broker {broker} has no log directory {target} that works: those that do are {', '.join(directories)}"
        )
    files = replica_files(admin, {broker: wanted}).get(broker, {})
    without = [each for each in wanted if all(found.is_copy for found in files.get(each, ()))]
    if without:
        raise TopicRequestError(f"broker {broker} lists no replica of {', '.join(map(str, without))}: try again")
    return {partition: files[partition] for partition in wanted}


def _failures(
    broker: int, errors: Mapping[TopicPartition, ErrorCode], requested: Iterable[TopicPartition]
) -> dict[TopicPartition, str]:
    if any(error is ErrorCode.CLUSTER_AUTHORIZATION_FAILED for error in errors.values()):
        raise ClusterDeniedError("moving replicas needs the ACL Alter on the cluster")
    failed = {}
    for partition in requested:
        error = errors.get(partition)
        if error is None:
            failed[partition] = f"{partition}: broker {broker} did not respond; the move may have begun"
        elif error is not ErrorCode.NONE:
            failed[partition] = f"{partition}: {error.name}: server.log of broker {broker} has the reason"
    return failed


def _still_moving(
    admin: AdminClient, broker: int, target: str, moving: list[TopicPartition]
) -> tuple[list[TopicPartition], dict[TopicPartition, str]]:
    """The partitions of `moving` that still move, and why others have not arrived."""
    files = replica_files(admin, {broker: moving}).get(broker)
    if files is None:
        raise TopicRequestError(f"broker {broker} does not respond any more: a broker that starts again ends its moves")
    left, failed = [], {}
    for partition in moving:
        found = files.get(partition, [])
        if any(each.is_copy and each.directory == target for each in found):
            left.append(partition)
        elif not any(each.directory == target for each in found):
            failed[partition] = f"{partition}: its move was given up: server.log of broker {broker} has the reason"
    return left, failed


def _json(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}
