"""`kreplog partition`: where replicas are moved to, and leadership given back to the preferred ones."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from kreplog.client import reassignment as reassigning
from kreplog.client.admin_client import AdminClient
from kreplog.client.connecting import ADMIN_TIMEOUT_MS, TopicRequestError, succeed
from kreplog.client.reassignment import Progress, Targets
from kreplog.commands.connecting import admin_client_of
from kreplog.commands.interruption import EXIT_CODE
from kreplog.commands.options import App, AsJson, Bootstrap, OptionalDir, counted, print_json
from kreplog.errors import UsageError
from kreplog.types import TopicPartition, check_topic
from kreplog.wire.versions import ApiKey

PREFERRED = 0
ELECTION_NOT_NEEDED = 84
TOLD_EVERY_S = 1.0

partition_app = App("Move partitions between brokers; give leadership back.")


@partition_app.command()
def reassign(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC PARTITION=BROKER,BROKER...]", help="The preferred leader first."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="JSON, in the format of Kafka's kafka-reassign-partitions.")
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Lead back what is under way: all, a TOPIC, or some PARTITIONs of it.")
    ] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Show progress until it is done.")] = True,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    as_json: AsJson = False,
) -> None:
    """Move partitions to other brokers. Ctrl-C leaves them moving; without arguments one waits for what is moving."""
    given = _from_file(file) if file is not None else _from_words(words or [], cancel)
    if file is not None and words:
        raise UsageError("give either --file or a topic and its partitions")
    with admin_client_of(cluster, bootstrap) as brokers:
        if cancel:
            given = dict.fromkeys(_to_cancel(brokers, given, words))
        carry_out(brokers, given, wait=wait, as_json=as_json)


def carry_out(
    brokers: AdminClient, asked: Targets, *, wait: bool, as_json: bool, facts: Mapping[str, Any] | None = None
) -> None:
    """Ask for these and wait for them, and for what was under way before; tell how it ended, or that it was left.

    Progress goes to stderr. facts: what JSON is to hold beside that. Leaves with 1 when anything was refused or failed,
    with EXIT_CODE after Ctrl-C."""
    before = reassigning.exists(brokers, asked)
    targets: Targets = {**(dict.fromkeys(reassigning.under_way(brokers)) if not asked or facts else {}), **asked}
    sizes = reassigning.Sizes(brokers, asked, before if wait else {})
    refused = reassigning.submit(brokers, asked)
    taken = {one: target for one, target in targets.items() if one not in refused}
    progress = Progress(len(taken))
    started = time.monotonic()
    left = not wait
    if wait and taken:
        try:
            with _shown() as show:
                for progress in reassigning.watch(brokers, taken, sizes):
                    show(progress)
        except KeyboardInterrupt:
            left = True
    failed = {**refused, **progress.failed}
    moving = sorted(set(taken) - set(progress.done) - set(progress.failed))
    if as_json:
        print_json(
            {
                **(facts or {}),
                "done": [_json(one) for one in sorted(progress.done)],
                "moving": [_json(one) for one in moving],
                "failed": [{**_json(one), "error": error} for one, error in sorted(failed.items())],
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
            print(f"{counted(len(moving), 'partition')} moving on; `kreplog partition reassign` waits for the end")
    if failed:
        raise typer.Exit(1)
    if wait and left:
        raise typer.Exit(EXIT_CODE)


@contextmanager
def _shown() -> Iterator[Any]:
    """What shows progress: a bar where stderr is a terminal, a line now and then elsewhere."""
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
    told = (-1, 0.0)

    def tell(now: Progress) -> None:
        nonlocal told
        done = len(now.done) + len(now.failed)
        if done != told[0] and (now.ended or time.monotonic() - told[1] >= TOLD_EVERY_S):
            told = done, time.monotonic()
            print(
                f"{done:,} of {counted(now.partitions, 'partition')}, "
                f"{now.bytes:,} of {counted(now.bytes_to_copy, 'byte')} copied",
                file=sys.stderr,
                flush=True,
            )

    yield tell


def _json(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


# What is asked for


def _from_words(words: Sequence[str], cancel: bool) -> dict[TopicPartition, tuple[int, ...] | None]:
    if not words:
        return {}
    topic, *rest = words
    check_topic(topic)
    if not rest and not cancel:
        raise UsageError(f"to which brokers? write `{topic} 0=1,2,3` to have partition 0 on brokers 1, 2 and 3")
    found: dict[TopicPartition, tuple[int, ...] | None] = {}
    for word in rest:
        number, equals, brokers = word.partition("=")
        try:
            at = TopicPartition(topic, int(number))
            target = tuple(int(part) for part in brokers.split(",")) if equals else None
        except ValueError:
            raise UsageError(f"{word!r}: write PARTITION=BROKER,BROKER as in 0=1,2,3") from None
        if target is None and not cancel:
            raise UsageError(f"{word!r}: write PARTITION=BROKER,BROKER as in {number}=1,2,3")
        if at in found:
            raise UsageError(f"{at} is given twice")
        found[at] = target
    return found


def _from_file(path: Path) -> dict[TopicPartition, tuple[int, ...] | None]:
    """Kafka's format: {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2, 3]}, ...]}."""
    found: dict[TopicPartition, tuple[int, ...] | None] = {}
    try:
        content = json.loads(path.read_bytes())
        if content.get("version", 1) != 1:
            raise UsageError(f"{path} is of version {content['version']}: only 1 is known", path=str(path))
        for one in content["partitions"]:
            topic, number, replicas = one["topic"], one["partition"], one["replicas"]
            if not isinstance(number, int) or not all(isinstance(broker, int) for broker in replicas):
                raise TypeError("numbers are wanted")
            if any(directory != "any" for directory in one.get("log_dirs", ())):
                raise UsageError(f'{path}: log_dirs cannot be chosen: leave them out, or say "any"', path=str(path))
            check_topic(topic)
            if TopicPartition(topic, number) in found:
                raise UsageError(f"{path}: {topic}-{number} is in it twice", path=str(path))
            found[TopicPartition(topic, number)] = tuple(replicas)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        wanted = '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2, 3]}]}'
        raise UsageError(f"{path} is no reassignment ({error}): write {wanted}", path=str(path)) from error
    if not found:
        raise UsageError(f"{path} names no partition", path=str(path))
    return found


def _to_cancel(
    brokers: AdminClient, given: Iterable[TopicPartition], words: Sequence[str] | None
) -> list[TopicPartition]:
    given = list(given)
    moving = reassigning.under_way(brokers)
    if not given:
        given = [one for one in moving if not words or one.topic == words[0]]
        if not given:
            raise TopicRequestError("no partition is being reassigned, so there is nothing to cancel")
    return given


# Leaders


@partition_app.command("elect-preferred")
def elect_preferred(
    topics: Annotated[list[str] | None, typer.Argument(help="Of these only (default: all).")] = None,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    as_json: AsJson = False,
) -> None:
    """Have every partition led by its preferred replica, the first of those assigned."""
    for topic in topics or ():
        check_topic(topic)
    with admin_client_of(cluster, bootstrap) as brokers:
        metadata = brokers.metadata(topics or None)
        for one in metadata.topics:
            succeed("topic", one.name, {"error_code": one.error_code})
        there = reassigning.assignment(metadata)
        answer = brokers.ask(
            ApiKey.ELECT_LEADERS,
            1,
            election_type=PREFERRED,
            topic_partitions=[
                {"topic": topic, "partitions": [one.partition for one in group]}
                for topic, group in reassigning.by_topic(there)
            ],
            timeout_ms=ADMIN_TIMEOUT_MS // 3,
        )
    succeed("request to the", "cluster", {"error_code": answer.error_code})
    elected, failed = [], {}
    for result in answer.replica_election_results:
        for one in result.partition_result:
            at = TopicPartition(result.topic, one.partition_id)
            try:
                if one.error_code != ELECTION_NOT_NEEDED:
                    succeed("partition", str(at), {"error_code": one.error_code, "error_message": one.error_message})
                    elected.append(at)
            except TopicRequestError as error:
                failed[at] = str(error)
    if as_json:
        print_json(
            {
                "elected": [{**_json(one), "leader": there[one].replica_nodes[0]} for one in elected],
                "unchanged": len(there) - len(elected) - len(failed),
                "failed": [{**_json(one), "error": text} for one, text in failed.items()],
            }
        )
    else:
        for one in elected:
            print(f"{one}: led by {there[one].replica_nodes[0]} again")
        for text in failed.values():
            print(text, file=sys.stderr)
        unchanged = len(there) - len(elected) - len(failed)
        print(
            f"{counted(len(elected), 'leader')} elected, {unchanged:,} preferred already, {len(failed):,} not elected"
        )
    if failed:
        raise typer.Exit(1)
