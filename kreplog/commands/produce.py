"""`kreplog produce`: produces a record for each line, with kafka-python; for tests and small amounts.

A line's bytes are not changed. The summary goes to stderr, or as JSON to stdout.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from kafka import KafkaProducer
from kafka import codec as codecs

from kreplog.client.bootstrap import ADMIN_TIMEOUT_MS, TopicRequestError, kafka_errors
from kreplog.commands.connecting import admin_client
from kreplog.commands.interruption import EXIT_CODE, Interruption
from kreplog.commands.options import App, AsJson, Bootstrap, CommandConfig, OptionalDir, print_json
from kreplog.errors import UsageError
from kreplog.types import Codec, counted

MAX_UNACKNOWLEDGED_BYTES = 32 << 20
"""Maximum of unacknowledged bytes; kafka-python itself has no such limit."""

MAX_REQUEST_BYTES = 1 << 20
LINGER_MS = 5
ERRORS_SHOWN = 10
POLL_S = 0.2

produce_app = App()


class Acks(StrEnum):
    """Replicas that must have a record before it is acknowledged: none, the leader, all in sync."""

    none = "0"
    leader = "1"
    all = "all"


@produce_app.command()
def produce(
    topic: Annotated[str, typer.Argument(help="Topic to produce to.")],
    file: Annotated[Path | None, typer.Argument(help="File to read (default: stdin).")] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-k", help="Separator of key and value in each line (default: no keys)."),
    ] = None,
    acks: Annotated[
        Acks, typer.Option("--acks", help="Replicas that must have a record: none, the leader, all in sync.")
    ] = Acks.all,
    compression: Annotated[Codec, typer.Option("--compression", help="Compression codec.")] = Codec.none,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Partition (default: by key).")
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds to wait for the acknowledgement of a record.")
    ] = 30,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Produce a record for each line of a file or stdin. Exits with status 1 if any is not acknowledged."""
    if key_separator == "":
        raise UsageError("--key-separator must not be empty")
    _check_codec(compression)
    with admin_client(cluster, bootstrap, command_config) as admin:
        admin.partitions_of(topic, [] if partition is None else [partition])
        servers, security = admin.addresses, admin.security
    separator = None if key_separator is None else key_separator.encode()
    with kafka_errors(), _lines(file) as lines, Interruption() as interruption:
        producer = KafkaProducer(
            bootstrap_servers=servers,
            bootstrap_timeout_ms=ADMIN_TIMEOUT_MS,
            acks=acks.value if acks is Acks.all else int(acks.value),
            enable_idempotence=acks is Acks.all,
            compression_type=None if compression is Codec.none else compression.value,
            linger_ms=LINGER_MS,
            batch_size=64 << 10,
            max_request_size=MAX_REQUEST_BYTES,
            request_timeout_ms=int(timeout * 1000) - 2 * LINGER_MS,
            delivery_timeout_ms=int(timeout * 1000),
            max_block_ms=int(timeout * 1000),
            allow_auto_create_topics=False,
            metrics_enabled=False,
            **security.of_kafka_python(),
        )
        sending = Sending(lambda key, value: producer.send(topic, value, key, partition=partition))
        try:
            error = _send(lines, sending, separator, interruption)
            if not interruption.again:
                sending.wait(interruption)
        finally:
            producer.close(timeout=0 if sending.unacknowledged else 5)
    _report(topic, sending, acks, interruption, error, as_json)


def _send(lines: IO[bytes], sending: Sending, separator: bytes | None, interruption: Interruption) -> str | None:
    """Send a record for every line; returns an error message if a line cannot be one."""
    for number, line in enumerate(interruption.reading(lines), 1):
        text = line.removesuffix(b"\n")
        key, found, value = (None, b"", text) if separator is None else text.partition(separator)
        if separator is not None and not found:
            return f"line {number}: no key separator {separator.decode()!r} in it; no line from there on was produced"
        sending.send(number, key, value, interruption)
        if interruption.happened:
            break
    return None


def _report(
    topic: str, sending: Sending, acks: Acks, interruption: Interruption, error: str | None, as_json: bool
) -> None:
    failed = sorted(sending.failed.items())
    word = "sent" if acks is Acks.none else "acknowledged"
    if as_json:
        print_json(
            {
                "topic": topic,
                word: sending.acknowledged,
                "unknown": sending.unacknowledged,
                "failed": [{"line": number, "error": reason} for number, reason in failed],
                "partitions": {
                    str(partition): {"first_offset": first, "last_offset": last}
                    for partition, (first, last) in sorted(sending.offsets.items())
                },
                "error": error,
            }
        )
    else:
        for number, reason in failed[:ERRORS_SHOWN]:
            print(f"line {number}: {reason}", file=sys.stderr)
        if len(failed) > ERRORS_SHOWN:
            print(f"and {len(failed) - ERRORS_SHOWN:,} more, up to line {failed[-1][0]}", file=sys.stderr)
        counts = [f"{counted(sending.acknowledged, 'record')} {word}"]
        counts += [f"{len(failed):,} failed"] if failed else []
        counts += [f"{sending.unacknowledged:,} unknown: produced or not"] if sending.unacknowledged else []
        print(f"{topic}: {', '.join(counts)}", file=sys.stderr)
    if error is not None:
        raise UsageError(error)
    if interruption.happened:
        raise typer.Exit(EXIT_CODE)
    if failed or sending.unacknowledged:
        raise typer.Exit(1)


class Sending:
    """Records in flight. acknowledged: their number. failed: errors by line. offsets: first and last, by partition."""

    def __init__(self, send: Callable[[bytes | None, bytes], Any]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self.unacknowledged_bytes = 0
        self.unacknowledged = 0
        self.acknowledged = 0
        self.failed: dict[int, str] = {}
        self.offsets: dict[int, tuple[int, int]] = {}

    def send(self, number: int, key: bytes | None, value: bytes, interruption: Interruption) -> None:
        """Send a record, as soon as fewer than MAX_UNACKNOWLEDGED_BYTES are in flight; an error counts it as failed."""
        size = len(value) + len(key or b"")
        with self._changed:
            while (
                self.unacknowledged_bytes
                and self.unacknowledged_bytes + size > MAX_UNACKNOWLEDGED_BYTES
                and not interruption.happened
            ):
                self._changed.wait(POLL_S)
            self.unacknowledged_bytes += size
            self.unacknowledged += 1
        try:
            future = self._send(key, value)
        except Exception as error:  # kafka-python raises errors of Python too, such as ValueError for a partition
            self._failed(error, number, size)
            return
        future.add_callback(self._acknowledged, size)
        future.add_errback(self._refused, number, size)

    def wait(self, interruption: Interruption) -> None:
        """Wait until every record is acknowledged or failed, or until a second Ctrl-C."""
        with self._changed:
            while self.unacknowledged and not interruption.again:
                self._changed.wait(POLL_S)

    def _acknowledged(self, size: int, metadata: Any) -> None:
        with self._changed:
            self.acknowledged += 1
            if metadata.offset >= 0:
                first, last = self.offsets.get(metadata.partition, (metadata.offset, metadata.offset))
                self.offsets[metadata.partition] = min(first, metadata.offset), max(last, metadata.offset)
            self._finished(size)

    def _refused(self, number: int, size: int, error: Exception) -> None:
        self._failed(error, number, size)

    def _failed(self, error: Exception, number: int, size: int) -> None:
        with self._changed:
            self.failed[number] = _reason(error)
            self._finished(size)

    def _finished(self, size: int) -> None:
        self.unacknowledged -= 1
        self.unacknowledged_bytes -= size
        self._changed.notify_all()


@contextmanager
def _lines(file: Path | None) -> Iterator[IO[bytes]]:
    if file is None or str(file) == "-":
        yield sys.stdin.buffer
    else:
        with open(file, "rb") as lines:
            yield lines


def _check_codec(codec: Codec) -> None:
    """Raise UsageError for a codec whose library kafka-python cannot import."""
    packages = {Codec.snappy: "python-snappy", Codec.lz4: "lz4", Codec.zstd: "zstandard"}
    if codec in packages and not getattr(codecs, f"has_{codec.value}")():
        raise UsageError(
            f"--compression {codec.value} needs a package that is not installed: pip install {packages[codec]}"
        )


def _reason(error: Exception) -> str:
    try:
        with kafka_errors():
            raise error
    except TopicRequestError as translated:
        return str(translated).removeprefix("the cluster refused the request: ")
    except Exception as other:
        return str(other)
