"""`kreplog partition`: reassign partitions to other brokers, and elect leaders."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from kreplog.client import reassignment
from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import TopicRequestError, raise_for_error
from kreplog.client.leader_election import ElectionResult, elect_leaders
from kreplog.client.reassignment import Progress, Targets
from kreplog.client.replication_throttles import remove_throttles, set_throttles
from kreplog.commands.connecting import admin_client
from kreplog.commands.directory_moves import move
from kreplog.commands.interruption import EXIT_CODE
from kreplog.commands.options import App, AsJson, Bootstrap, CommandConfig, OptionalDir, print_json
from kreplog.errors import UsageError
from kreplog.types import NO_LEADER, ElectionType, TopicPartition, check_topic, counted

PROGRESS_INTERVAL_S = 1.0

Throttle = Annotated[
    int | None,
    typer.Option("--throttle", min=1, help="Bytes by the second that each broker may send and fetch for the moves."),
]

partition_app = App("Reassign partitions to brokers, move replicas between log directories, and elect leaders.")


@partition_app.command()
def reassign(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC PARTITION=BROKER,BROKER...]", help="New replicas, the preferred leader first."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="JSON file in the format of kafka-reassign-partitions.")
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel ongoing reassignments: all, of a TOPIC, or of PARTITIONs of it.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is done, and show progress.")] = True,
    throttle: Throttle = None,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Reassign partitions to brokers. Without arguments, wait for the ongoing reassignments.

    Ctrl-C ends the wait; the reassignments continue. Whoever waits to their end removes their throttles.
    """
    targets = _from_file(file) if file is not None else _from_words(words or [], cancel)
    if throttle is not None and (cancel or not targets):
        raise UsageError("--throttle is for partitions that are given, to be moved")
    if file is not None and words:
        raise UsageError("give either --file or a topic and its partitions")
    with admin_client(cluster, bootstrap, command_config) as admin:
        if cancel:
            targets = dict.fromkeys(_to_cancel(admin, targets, words))
        carry_out(admin, targets, wait=wait, as_json=as_json, throttle=throttle)


def carry_out(
    admin: AdminClient,
    requested: Targets,
    *,
    wait: bool,
    as_json: bool,
    throttle: int | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Request reassignments, wait for them and for the ongoing ones, and print the outcome; progress goes to stderr.

    throttle: bytes by the second that each broker may send and fetch for them; None for no limit. extra: further fields
    of the JSON output. Exits with status 1 if any is refused or fails, with EXIT_CODE after Ctrl-C."""
    before = reassignment.existing_partitions(admin, requested)
    ongoing = dict.fromkeys(reassignment.ongoing_reassignments(admin)) if not requested or extra else {}
    targets: Targets = {**ongoing, **requested}
    copied = reassignment.CopiedBytes(admin, requested, before if wait else {})
    if throttle is not None:
        set_throttles(admin, requested, before, throttle)
    refused = reassignment.alter_reassignments(admin, requested)
    accepted = {partition: target for partition, target in targets.items() if partition not in refused}
    progress = Progress(len(accepted))
    started = time.monotonic()
    left = not wait
    if wait and accepted:
        try:
            with _progress_display() as show:
                for progress in reassignment.follow(admin, accepted, copied):
                    show(progress)
        except KeyboardInterrupt:
            left = True
    failed = {**refused, **progress.failed}
    moving = sorted(set(accepted) - set(progress.done) - set(progress.failed))
    if as_json:
        print_json(
            {
                **(extra or {}),
                "done": [_json(partition) for partition in sorted(progress.done)],
                "moving": [_json(partition) for partition in moving],
                "failed": [{**_json(partition), "error": error} for partition, error in sorted(failed.items())],
                "bytes_copied": progress.bytes,
            }
        )
    else:
        for error in failed.values():
            print(error, file=sys.stderr)
        if not targets:
            print("no partition is being reassigned")
        elif progress.done:
            seconds = time.monotonic() - started
            print(
                f"{counted(len(progress.done), 'partition')} reassigned, {counted(progress.bytes, 'byte')} copied, "
                f"in {seconds:.1f} s"
            )
        if left and moving:
            print(f"{counted(len(moving), 'partition')} still moving: wait with `kreplog partition reassign`")
    if (throttle is not None or not requested) and not moving:
        remove_throttles(admin, targets)
    if failed:
        raise typer.Exit(1)
    if wait and left:
        raise typer.Exit(EXIT_CODE)


@contextmanager
def _progress_display() -> Iterator[Callable[[Progress], None]]:
    """A function that shows progress: a bar if stderr is a terminal, else a line every PROGRESS_INTERVAL_S."""
    if sys.stderr.isatty():
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=None)

            def draw(now: Progress) -> None:
                done = len(now.done) + len(now.failed)
                text = f"{done:,} of {counted(now.partitions, 'partition')}"
                bar.update(task, description=text, completed=now.bytes, total=now.bytes_to_copy or None)

            yield draw
        return
    printed = (-1, 0.0)

    def print_line(now: Progress) -> None:
        nonlocal printed
        done = len(now.done) + len(now.failed)
        if done != printed[0] and (now.ended or time.monotonic() - printed[1] >= PROGRESS_INTERVAL_S):
            printed = done, time.monotonic()
            print(
                f"{done:,} of {counted(now.partitions, 'partition')}, "
                f"{now.bytes:,} of {counted(now.bytes_to_copy, 'byte')} copied",
                file=sys.stderr,
                flush=True,
            )

    yield print_line


def _json(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


# Arguments


def _from_words(words: Sequence[str], cancel: bool) -> dict[TopicPartition, tuple[int, ...] | None]:
    if not words:
        return {}
    topic, *rest = words
    check_topic(topic)
    if not rest and not cancel:
        raise UsageError(f"no partitions given: use `{topic} 0=1,2,3` to move partition 0 to brokers 1, 2 and 3")
    targets: dict[TopicPartition, tuple[int, ...] | None] = {}
    for word in rest:
        partition, target = reassignment.target_in(topic, word)
        if target is None and not cancel:
            raise UsageError(f"{word!r}: give PARTITION=BROKER,BROKER as in {partition.partition}=1,2,3")
        if partition in targets:
            raise UsageError(f"{partition} is given twice")
        targets[partition] = target
    return targets


def _from_file(path: Path) -> dict[TopicPartition, tuple[int, ...] | None]:
    """Kafka's format: {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2, 3]}, ...]}."""
    targets: dict[TopicPartition, tuple[int, ...] | None] = {}
    try:
        content = json.loads(path.read_bytes())
        if content.get("version", 1) != 1:
            raise UsageError(f"{path} has version {content['version']}: only version 1 is supported", path=str(path))
        for entry in content["partitions"]:
            topic, number, replicas = entry["topic"], entry["partition"], entry["replicas"]
            if not isinstance(number, int) or not all(isinstance(broker, int) for broker in replicas):
                raise TypeError("partition and replicas must be integers")
            if any(directory != "any" for directory in entry.get("log_dirs", ())):
                raise UsageError(
                    f'{path}: log_dirs are not supported: omit them, or use "any"; `kreplog partition move` moves a '
                    "replica to another log directory of its broker",
                    path=str(path),
                )
            check_topic(topic)
            if TopicPartition(topic, number) in targets:
                raise UsageError(f"{path} contains {topic}-{number} twice", path=str(path))
            targets[TopicPartition(topic, number)] = tuple(replicas)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        form = '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2, 3]}]}'
        raise UsageError(f"{path} is not a reassignment ({error}): the format is {form}", path=str(path)) from error
    if not targets:
        raise UsageError(f"{path} contains no partition", path=str(path))
    return targets


def _to_cancel(
    admin: AdminClient, given: Iterable[TopicPartition], words: Sequence[str] | None
) -> list[TopicPartition]:
    """The partitions that are given, or else the ongoing reassignments of the topic or the cluster."""
    partitions = list(given)
    ongoing = reassignment.ongoing_reassignments(admin)
    if not partitions:
        partitions = [partition for partition in ongoing if not words or partition.topic == words[0]]
        if not partitions:
            raise TopicRequestError("no partition is being reassigned: there is nothing to cancel")
    return partitions


# Leaders


partition_app.command()(move)


@partition_app.command("elect-preferred")
def elect_preferred(
    topics: Annotated[list[str] | None, typer.Argument(help="Topics (default: all).")] = None,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Elect the preferred replica, the first of those assigned, as leader of every partition."""
    for topic in topics or ():
        check_topic(topic)
    with admin_client(cluster, bootstrap, command_config) as admin:
        partitions = _partitions_of(admin, topics or None)
        result = elect_leaders(admin, ElectionType.PREFERRED, partitions)
    unchanged = len(partitions) - len(result.elected) - len(result.failed)
    if as_json:
        print_json(
            {
                "elected": [
                    {**_json(partition), "leader": partitions[partition].replica_nodes[0]}
                    for partition in result.elected
                ],
                "unchanged": unchanged,
                "failed": [{**_json(partition), "error": text} for partition, text in result.failed.items()],
            }
        )
    else:
        for partition in result.elected:
            print(f"{partition}: leader {partitions[partition].replica_nodes[0]}")
        for text in result.failed.values():
            print(text, file=sys.stderr)
        print(
            f"{counted(len(result.elected), 'leader')} elected, {unchanged:,} preferred already, "
            f"{len(result.failed):,} not elected"
        )
    if result.failed:
        raise typer.Exit(1)


@partition_app.command("elect-unclean")
def elect_unclean(
    topic: Annotated[str, typer.Argument(help="A topic.")],
    numbers: Annotated[list[int] | None, typer.Argument(metavar="[PARTITION]...", help="Default: all of it.")] = None,
    execute: Annotated[bool, typer.Option("--execute", help="Elect; without, print what would be done.")] = False,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Elect a live replica, in sync or not, as leader of partitions without one. Committed records may be lost.

    For partitions whose in-sync replicas will not return. Whatever the leader lacks is deleted from the others.
    """
    check_topic(topic)
    with admin_client(cluster, bootstrap, command_config) as admin:
        partitions = _partitions_of(admin, [topic])
        unknown = sorted(set(numbers or ()) - {partition.partition for partition in partitions})
        if unknown:
            raise UsageError(f"topic {topic} has no partition {', '.join(map(str, unknown))}")
        leaderless = {
            partition: found
            for partition, found in partitions.items()
            if found.leader_id == NO_LEADER and (not numbers or partition.partition in numbers)
        }
        result, leaders = ElectionResult(), dict[TopicPartition, int]()
        if execute and leaderless:
            result = elect_leaders(admin, ElectionType.UNCLEAN, leaderless)
            leaders = {partition: found.leader_id for partition, found in _partitions_of(admin, [topic]).items()}
    if as_json:
        print_json(
            {
                "leaderless": [
                    {
                        **_json(partition),
                        "isr": found.isr_nodes,
                        "live": _live(found),
                        "leader": leaders.get(partition, NO_LEADER),
                        "error": result.failed.get(partition),
                    }
                    for partition, found in leaderless.items()
                ]
            }
        )
    else:
        for partition, found in leaderless.items():
            if leaders.get(partition, NO_LEADER) != NO_LEADER:
                outcome = f"leader {leaders[partition]}"
            else:
                outcome = result.failed.get(partition) or f"no leader, in sync {found.isr_nodes}, live {_live(found)}"
            print(f"{partition}: {outcome}")
        text = f"{counted(len(leaderless), 'partition')} without a leader"
        print(
            f"{text}, {counted(len(result.elected), 'leader')} elected"
            if execute
            else f"{text}: --execute elects leaders"
        )
    if result.failed:
        raise typer.Exit(1)


def _partitions_of(admin: AdminClient, topics: list[str] | None) -> dict[TopicPartition, Any]:
    """None for all topics."""
    metadata = admin.metadata(topics)
    for found in metadata.topics:
        raise_for_error("topic", found.name, found)
    return reassignment.partitions_in(metadata)


def _live(found: Any) -> list[int]:
    return [broker for broker in found.replica_nodes if broker not in found.offline_replicas]
