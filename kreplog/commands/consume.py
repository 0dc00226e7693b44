"""`kreplog consume`: the records of a topic, over the Kafka protocol through kafka-python; for quick use.

Keys and values go to stdout as they are, byte for byte; everything else that is told goes to stderr.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPartition

from kreplog.client.connecting import REACH_S, in_our_words
from kreplog.commands.connecting import admin_client_of
from kreplog.commands.interruption import Interruption
from kreplog.commands.options import App, AsJson, Bootstrap, OptionalDir, counted
from kreplog.errors import UsageError

POLL_MS = 200

consume_app = App()


@consume_app.command()
def consume(
    topic: str,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="All there is (default: new ones).")] = False,
    offset: Annotated[int | None, typer.Option("--offset", "-o", min=0, help="From here on, in one partition.")] = None,
    timestamp: Annotated[
        str | None, typer.Option("--timestamp", "-t", help="From this time on: ISO 8601 or milliseconds.")
    ] = None,
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this one, or these.")
    ] = None,
    max_messages: Annotated[int | None, typer.Option("--max-messages", "-n", min=0, help="At most so many.")] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Leave when nothing came for so many seconds.")
    ] = None,
    print_key: Annotated[bool, typer.Option("--print-key", help="The key before each value.")] = False,
    print_offset: Annotated[bool, typer.Option("--print-offset", help="partition:offset before each line.")] = False,
    key_separator: Annotated[str, typer.Option("--key-separator", "-k", help="Between key and value.")] = "\t",
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    as_json: AsJson = False,
) -> None:
    """Print the committed records of a topic until Ctrl-C, or for as long as asked; as they are, a line each."""
    if sum([from_beginning, offset is not None, timestamp is not None]) > 1:
        raise UsageError("--from-beginning, --offset and --timestamp say three different things: give one")
    time_ms = None if timestamp is None else _milliseconds(timestamp)
    with admin_client_of(cluster, bootstrap) as brokers:
        there = brokers.partitions_of(topic, partition or ())
        servers = brokers.addresses
    wanted = sorted(set(partition)) if partition else there
    if offset is not None and len(wanted) > 1:
        raise UsageError(
            f"--offset means another record in each of {counted(len(wanted), 'partition')}: add --partition"
        )
    show = _as_json if as_json else _as_text(print_key, print_offset, key_separator.encode())
    count = 0
    with in_our_words(), Interruption() as interruption:
        consumer = KafkaConsumer(
            bootstrap_servers=servers,
            bootstrap_timeout_ms=int(REACH_S * 1000),
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )
        try:
            assigned = [KafkaPartition(topic, one) for one in wanted]
            consumer.assign(assigned)
            _seek(consumer, assigned, from_beginning, offset, time_ms)
            for record in _records(consumer, max_messages, timeout, interruption):
                sys.stdout.buffer.write(show(record))
                count += 1
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # or Python fails on its own flush at the end
        finally:
            consumer.close(autocommit=False, timeout_ms=1000)
    print(f"{topic}: {counted(count, 'record')}", file=sys.stderr)


def _seek(consumer: Any, assigned: list[Any], from_beginning: bool, offset: int | None, time_ms: int | None) -> None:
    if from_beginning:
        consumer.seek_to_beginning(*assigned)
    elif offset is not None:
        (one,) = assigned
        first, end = consumer.beginning_offsets([one])[one], consumer.end_offsets([one])[one]
        if first == end != offset:
            raise UsageError(
                f"{one.topic}-{one.partition} is empty, and the next record gets offset {end:,}: there is no {offset:,}"
            )
        if not first <= offset <= end:
            raise UsageError(
                f"{one.topic}-{one.partition} has offsets {first:,} to {end - 1:,}: there is no {offset:,}"
            )
        consumer.seek(one, offset)
    elif time_ms is not None:
        found = consumer.offsets_for_times(dict.fromkeys(assigned, time_ms))
        ends = consumer.end_offsets(assigned)
        for one in assigned:
            consumer.seek(one, ends[one] if found[one] is None else found[one].offset)
    else:
        for one, end in consumer.end_offsets(assigned).items():
            consumer.seek(one, end)


def _records(consumer: Any, most: int | None, timeout_s: float | None, interruption: Interruption) -> Iterator[Any]:
    """What comes, at most `most`, until nothing has come for `timeout_s` or it is interrupted."""
    last = time.monotonic()
    left = most
    while not interruption.happened and left != 0:
        found = consumer.poll(timeout_ms=POLL_MS, max_records=500 if left is None else min(left, 500))
        for records in found.values():
            yield from records
            left = None if left is None else left - len(records)
        if found:
            sys.stdout.buffer.flush()
            last = time.monotonic()
        elif timeout_s is not None and time.monotonic() - last >= timeout_s:
            return


# How records are written


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
        "key": _to_json(record.key),
        "value": _to_json(record.value),
        "headers": [[name, _to_json(value)] for name, value in record.headers],
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _to_json(data: bytes | None) -> str | dict[str, str] | None:
    """What is not UTF-8 becomes {"base64": ...}, as `kreplog log` writes it."""
    if data is None:
        return None
    try:
        return bytes(data).decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _milliseconds(text: str) -> int:
    """ISO 8601, in UTC unless it says otherwise, or milliseconds since 1970. Raises UsageError."""
    if text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--timestamp {text!r}: write it as in 2025-01-31T12:00:00Z, or as milliseconds") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
