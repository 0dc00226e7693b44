"""`kreplog consume`: prints the records of a topic, with kafka-python; for tests and small amounts.

Keys and values go to stdout byte for byte, the number of records to stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition
from kafka.errors import CommitFailedError, RebalanceInProgressError
from kafka.structs import MemberState

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import UnreachableError, kafka_errors
from kreplog.client.security import ClientSecurity
from kreplog.commands.connecting import admin_client
from kreplog.commands.interruption import Interruption
from kreplog.commands.options import (
    App,
    AsJson,
    Bootstrap,
    CommandConfig,
    Isolation,
    IsolationLevel,
    OptionalDir,
    milliseconds,
)
from kreplog.commands.patience import NOTE_S, Patience
from kreplog.commands.records import bytes_to_json
from kreplog.errors import UsageError
from kreplog.types import NO_LEADER, counted

POLL_MS = 200

consume_app = App()


@consume_app.command()
def consume(
    topic: Annotated[str, typer.Argument(help="Topic to consume.")],
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Start with the earliest record (default: with new records).")
    ] = False,
    offset: Annotated[
        int | None, typer.Option("--offset", "-o", min=0, help="Start at this offset; needs --partition.")
    ] = None,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", "-t", help="Start at this time: ISO 8601, or milliseconds since 1970.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Partition; may be repeated (default: all).")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Share the partitions with the other members of this group, continue where it was, and commit what is "
            "printed; --from-beginning applies where the group has committed nothing.",
        ),
    ] = None,
    isolation_level: Isolation = IsolationLevel.READ_UNCOMMITTED,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", "-n", min=0, help="Exit after this many records.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Exit after this many seconds without a record.")
    ] = None,
    print_key: Annotated[bool, typer.Option("--print-key", help="Print each key before its value.")] = False,
    print_offset: Annotated[
        bool, typer.Option("--print-offset", help="Print partition:offset before each record.")
    ] = False,
    key_separator: Annotated[
        str,
        typer.Option(
            "--key-separator", "-k", show_default=False, help="Printed between key and value (default: a tab)."
        ),
    ] = "\t",
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Print the committed records of a topic, one on each line, until Ctrl-C, --max-messages or --timeout."""
    _check_options(from_beginning, offset, timestamp, partition, group)
    time_ms = None if timestamp is None else milliseconds("--timestamp", timestamp)
    show = _as_json if as_json else _as_text(print_key, print_offset, key_separator.encode())
    count = 0
    with kafka_errors(), suppress(KeyboardInterrupt), Interruption() as interruption:
        patience = Patience(interruption, timeout)
        existing, servers, security = patience.retry(
            lambda _: _partitions(cluster, bootstrap, command_config, topic, partition or ()), "a broker that responds"
        )
        numbers = sorted(set(partition)) if partition else existing
        if offset is not None and len(numbers) > 1:
            raise UsageError(
                f"--offset applies to one partition, not to {counted(len(numbers), 'partition')}: add --partition"
            )
        with _consumer(servers, security, group, from_beginning, isolation_level, patience) as consumer:
            if group is None:
                _assign(consumer, topic, numbers, from_beginning, offset, time_ms, patience)
            else:
                consumer.subscribe([topic])
            printed = partial(_commit, consumer, patience) if group is not None else None
            idle = partial(_subject_of_wait, consumer, topic, numbers, group, servers, security)
            count = _print(_records(consumer, max_messages, timeout, interruption, printed, idle, patience), show)
    print(f"{topic}: {counted(count, 'record')}", file=sys.stderr)


def _partitions(
    cluster: Path | None, bootstrap: str | None, command_config: Path | None, topic: str, required: Iterable[int]
) -> tuple[list[int], list[str], ClientSecurity]:
    """The partitions of the topic; the addresses of the brokers, and how clients connect to them."""
    with admin_client(cluster, bootstrap, command_config) as admin:
        return admin.partitions_of(topic, required), admin.addresses, admin.security


def _check_options(
    from_beginning: bool, offset: int | None, timestamp: str | None, partition: list[int] | None, group: str | None
) -> None:
    """Raise UsageError for options that exclude each other."""
    if sum([from_beginning, offset is not None, timestamp is not None]) > 1:
        raise UsageError("--from-beginning, --offset and --timestamp exclude each other: give one of them")
    if group is not None and (offset is not None or timestamp is not None or partition):
        raise UsageError("--group excludes --offset, --timestamp and --partition: the group has offsets and partitions")


@contextmanager
def _consumer(
    servers: list[str],
    security: ClientSecurity,
    group: str | None,
    from_beginning: bool,
    isolation_level: IsolationLevel,
    patience: Patience,
) -> Iterator[Any]:
    """A consumer that commits only when it is called to; without a group its partitions are assigned by hand."""
    reset = "earliest" if from_beginning else "latest"
    with patience.noting(f"a response of the brokers at {', '.join(servers)}"):
        consumer = KafkaConsumer(
            bootstrap_servers=servers,
            bootstrap_timeout_ms=patience.limit_ms,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="none" if group is None else reset,
            allow_auto_create_topics=False,
            metrics_enabled=False,
            isolation_level=isolation_level.value,
            **security.of_kafka_python(),
        )
    try:
        yield consumer
    finally:
        consumer.close(autocommit=False, timeout_ms=1000)


def _resume_rebalance(consumer: Any) -> None:
    """Have the next poll wait for the rebalance that an earlier one has begun. kafka-python forgets it if this member
    leads the group and began it for a change of the topic's partitions: it would get no assignment, and send no
    heartbeats, for ever."""
    if consumer.group_metadata().state == MemberState.REBALANCING:
        consumer._coordinator.request_rejoin()


def _commit(consumer: Any, patience: Patience) -> None:
    """Commit what has been printed, as a member. If that is refused, another member prints it again."""
    try:
        patience.retry(lambda timeout_ms: consumer.commit(timeout_ms=timeout_ms), "the group's coordinator, to commit")
    except (CommitFailedError, RebalanceInProgressError):
        print("the group is in another generation: its members will print some records again", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted before a commit: the group's members will print some records again", file=sys.stderr)


def _subject_of_wait(
    consumer: Any, topic: str, numbers: list[int], group: str | None, servers: list[str], security: ClientSecurity
) -> str:
    """The subject of a wait: brokers, a leader or an assignment without which no records come; "" if all is there.
    Raises AuthenticationError if brokers refuse the login now: kafka-python retries for ever."""
    try:
        with asyncio.Runner() as runner:
            (found,) = AdminClient(runner, servers, security).metadata([topic]).topics
    except UnreachableError:
        return f"a response of the brokers at {', '.join(servers)}"
    wanted = found.partitions if group is not None else [p for p in found.partitions if p.partition_index in numbers]
    for partition in wanted:
        if partition.leader_id == NO_LEADER:
            return f"a leader of {topic}-{partition.partition_index}"
    if group is not None and consumer.group_metadata().state != MemberState.STABLE:
        return f"the coordinator of group {group}, to assign partitions"
    return ""


def _assign(
    consumer: Any,
    topic: str,
    numbers: list[int],
    from_beginning: bool,
    offset: int | None,
    time_ms: int | None,
    patience: Patience,
) -> None:
    """Assign partitions, and seek to where their records are printed from."""
    assigned = [KafkaPartition(topic, number) for number in numbers]
    leaders = f"the leaders of {topic}, to look offsets up"

    def looked_up(lookup: Callable[..., Any], of: Any) -> Any:
        return patience.retry(lambda timeout_ms: lookup(of, timeout_ms=timeout_ms), leaders)

    consumer.assign(assigned)
    if from_beginning:
        consumer.seek_to_beginning(*assigned)
    elif offset is not None:
        (partition,) = assigned
        name = f"{partition.topic}-{partition.partition}"
        first = looked_up(consumer.beginning_offsets, [partition])[partition]
        end = looked_up(consumer.end_offsets, [partition])[partition]
        if first == end != offset:
            raise UsageError(f"{name} is empty, its next record gets offset {end:,}: there is no offset {offset:,}")
        if not first <= offset <= end:
            raise UsageError(f"{name} has offsets {first:,} to {end - 1:,}: there is no offset {offset:,}")
        consumer.seek(partition, offset)
    elif time_ms is not None:
        found = looked_up(consumer.offsets_for_times, dict.fromkeys(assigned, time_ms))
        ends = looked_up(consumer.end_offsets, assigned)
        for partition in assigned:
            consumer.seek(partition, ends[partition] if found[partition] is None else found[partition].offset)
    else:
        for partition, end in looked_up(consumer.end_offsets, assigned).items():
            consumer.seek(partition, end)


def _records(
    consumer: Any,
    limit: int | None,
    timeout_s: float | None,
    interruption: Interruption,
    printed: Callable[[], None] | None,
    idle: Callable[[], str],
    patience: Patience,
) -> Iterator[Any]:
    """Records as they are committed, at most `limit`, until none has come for `timeout_s` or the command is
    interrupted. printed: called when those before it are on stdout. idle: called at times while none comes, returns
    what the command waits for."""
    last = checked = time.monotonic()
    remaining = limit
    while not interruption.happened and remaining != 0:
        _resume_rebalance(consumer)
        found = consumer.poll(timeout_ms=POLL_MS, max_records=500 if remaining is None else min(remaining, 500))
        for records in found.values():
            yield from records
            remaining = None if remaining is None else remaining - len(records)
        if found:
            sys.stdout.buffer.flush()
            if printed is not None:
                printed()
            last = time.monotonic()
            continue
        now = time.monotonic()
        ends = timeout_s is not None and now - last >= timeout_s
        if ends or now - max(last, checked) >= NOTE_S:
            subject = idle()
            if ends:
                return
            patience.note(subject)
            checked = now


# Output


def _print(records: Iterable[Any], show: Callable[[Any], bytes]) -> int:
    """Write the records to stdout until its reader goes away; return their number."""
    count = 0
    try:
        for record in records:
            sys.stdout.buffer.write(show(record))
            count += 1
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        # Python flushes stdout once more when it exits, and would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return count


def _as_text(print_key: bool, print_offset: bool, separator: bytes) -> Callable[[Any], bytes]:
    def show(record: Any) -> bytes:
        line = b"null" if record.value is None else bytes(record.value)
        if print_key:
            line = (b"null" if record.key is None else bytes(record.key)) + separator + line
        if print_offset:
            line = b"%d:%d\t" % (record.partition, record.offset) + line
        return line + b"\n"

    return show


def _as_json(record: Any) -> bytes:
    fields = {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp,
        "key": bytes_to_json(record.key),
        "value": bytes_to_json(record.value),
        "headers": [[name, bytes_to_json(value)] for name, value in record.headers],
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
