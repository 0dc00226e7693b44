"""`kreplog log`: one partition directory, seen and worked on from the shell.

Owns arguments and output and nothing else: whatever a command does, `kreplog.Log` does it. Commands that only look open
the log read-only and write nothing. Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from enum import StrEnum
from itertools import chain, islice
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn
from rich.table import Table

import kreplog
from kreplog._native import batch
from kreplog._native.checkpoint import EpochCache
from kreplog._native.compression import CODECS
from kreplog.commands.interruption import EXIT_CODE as INTERRUPTED
from kreplog.commands.interruption import Interruption
from kreplog.commands.options import App, AsJson, Codec, counted, print_json
from kreplog.errors import CorruptBatchError, StorageError, UsageError
from kreplog.types import TopicPartition

logger = logging.getLogger("kreplog")

FOLLOW_POLL_S = 0.1
FETCH_BYTES = 1 << 20
PROGRESS_EVERY_LINES = 1000
PARTITIONS_SHOWN = 10
CODEC_NAMES = {number: name for name, number in CODECS.items()}


class Encoding(StrEnum):
    """How keys, values and header values are written out."""

    text = "text"
    hex = "hex"
    base64 = "base64"


def _check_partition(path: Path) -> Path:
    """`path`, unless it is the directory above partitions: then raise UsageError, which names them."""
    if path.is_dir() and not any(path.glob("*.log")):
        partitions = sorted(_partitions_in(path))
        if partitions:
            shown = ", ".join(str(partition) for partition in partitions[:PARTITIONS_SHOWN])
            more = f" and {len(partitions) - PARTITIONS_SHOWN:,} more" if len(partitions) > PARTITIONS_SHOWN else ""
            raise UsageError(
                f"{path} is no partition, but holds {shown}{more}; name one, as in {path / str(partitions[0])}",
                path=str(path),
            )
    return path


def _partitions_in(path: Path) -> Iterator[TopicPartition]:
    for entry in path.iterdir():
        try:
            partition = TopicPartition.parse(entry.name)
        except UsageError:
            continue
        if entry.is_dir() and any(entry.glob("*.log")):
            yield partition


PartitionPath = Annotated[
    Path, typer.Argument(help="Partition directory, <dir>/<topic>-<partition>.", callback=_check_partition)
]
ShowProgress = Annotated[
    bool | None,
    typer.Option("--progress/--no-progress", help="Draw a bar on stderr (default: on a terminal)."),
]
AsEncoding = Annotated[Encoding, typer.Option("--encoding", "-e", help="How bytes are shown.")]
FromOffset = Annotated[int | None, typer.Option("--from", min=0, help="First offset (default: log start offset).")]
ToOffset = Annotated[int | None, typer.Option("--to", min=0, help="Offset to stop before (default: the end).")]

app = App()


@app.command()
def info(path: PartitionPath, as_json: AsJson = False) -> None:
    """Show a partition's offsets, sizes, times, leader epochs and segments. Writes nothing."""
    with _open_to_read(path) as log:
        facts = _facts(log)
    if as_json:
        print_json(facts)
    else:
        _print_facts(facts)


@app.command()
def dump(
    path: PartitionPath,
    start: FromOffset = None,
    stop: ToOffset = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="At most so many.")] = None,
    batches: Annotated[bool, typer.Option("--batches", help="Record batch headers instead of records.")] = False,
    log_end: Annotated[
        bool, typer.Option("--log-end", help="Up to the log end offset, not only what is committed.")
    ] = False,
    encoding: AsEncoding = Encoding.text,
    as_json: AsJson = False,
) -> None:
    """Print records, or record batch headers, in offset order. Writes nothing.

    With --json each line is an object that `append --json-lines` takes back unchanged."""
    with _open_to_read(path) as log:
        first = log.log_start_offset if start is None else start
        end = log.log_end_offset if log_end else log.high_watermark
        last = end if stop is None else min(stop, end)
        if batches:
            show_batch = print_json if as_json else _print_batch
            for header, _ in islice(_batches(log, first, last, log_end), limit):
                show_batch(_batch_facts(header))
        else:
            show = _record_printer(encoding, as_json)
            for record in islice(_records(log, first, last, log_end), limit):
                show(record)


@app.command()
def verify(
    path: PartitionPath,
    start: FromOffset = None,
    stop: ToOffset = None,
    progress: ShowProgress = None,
    as_json: AsJson = False,
) -> None:
    """Check every checksum and every record up to the log end. Writes nothing; leaves with 1 when there is damage."""
    with _open_to_read(path) as log, _progress(progress) as bar:
        report = log.verify(start, stop, progress=_drawn_by(bar, "verify"))
    if as_json:
        print_json({"ok": not report.damages, **asdict(report)})
    else:
        for damage in report.damages:
            print(f"{damage.path}: position {damage.position}, offset {damage.offset}: {damage.reason}")
        print(
            f"{path}: {'DAMAGED' if report.damages else 'sound'}; "
            f"{_span(report.start_offset, report.end_offset)}, segments: {report.segments:,}, "
            f"batches: {report.batches:,}, records: {report.records:,}, bytes: {report.bytes:,}, "
            f"damages: {len(report.damages):,}"
        )
    if report.damages:
        raise typer.Exit(1)


@app.command()
def recover(
    path: PartitionPath,
    replicated: Annotated[
        bool,
        typer.Option("--replicated", help="One replica of several: leave the high watermark where it was."),
    ] = False,
    progress: ShowProgress = None,
    as_json: AsJson = False,
) -> None:
    """Mend a partition after a crash: open it for writing, tell what was cut off, close it cleanly.

    Only what was not yet flushed is checked; `verify` checks everything.
    """
    if not path.is_dir():
        what = "is no directory" if path.exists() else "does not exist"
        raise UsageError(f"{path} {what}: there is nothing to recover", path=str(path))
    started = time.perf_counter()
    with _progress(progress) as bar, _warnings() as warnings:
        config = kreplog.LogConfig(replicated=replicated)
        with kreplog.Log.open(path, config, progress=_drawn_by(bar, "recover")) as log:
            facts = {
                "path": str(path),
                "log_start_offset": log.log_start_offset,
                "high_watermark": log.high_watermark,
                "log_end_offset": log.log_end_offset,
                "bytes": log.size,
                "bytes_cut": sum(cut.bytes for cut in log.cuts),
                "cuts": [asdict(cut) for cut in log.cuts],
                "warnings": warnings,
            }
    facts["seconds"] = round(time.perf_counter() - started, 6)
    if as_json:
        print_json(facts)
    else:
        _print_recovery(facts)


@app.command()
def append(
    path: PartitionPath,
    file: Annotated[
        typer.FileBinaryRead | None,
        typer.Option("--file", "-f", metavar="<file>", help="Read lines from this file (default: stdin)."),
    ] = None,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-k", help="What parts the key from the value in each line.")
    ] = None,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json-lines",
            help='Each line is an object: "value" (a string, null or {"base64": ...}), and "key", "timestamp_ms" and '
            '"headers" (a list of name and value pairs) where wanted.',
        ),
    ] = False,
    compression: Annotated[Codec, typer.Option("--compression", "-c", help="Codec of the batches.")] = Codec.none,
    progress: ShowProgress = None,
    as_json: AsJson = False,
) -> None:
    """Append a record for each line of a file or of stdin; makes the partition where there is none."""
    parse = _line_parser(key_separator, json_lines)
    lines: IO[bytes] = sys.stdin.buffer if file is None else file
    started = time.perf_counter()
    with Interruption() as interruption:
        incoming = interruption.reading(lines)
        first_line = next(incoming, b"")
        _check_first(first_line, parse)
        with (
            kreplog.Log.open(path, kreplog.LogConfig(compression_type=compression.value)) as log,
            _progress(progress) as bar,
        ):
            first = log.log_end_offset
            all_lines = chain([first_line] if first_line else [], incoming)
            bytes_read = _append_lines(log, all_lines, _size_of(lines), parse, bar)
            facts: dict[str, Any] = {
                "path": str(path),
                "first_offset": first,
                "next_offset": log.log_end_offset,
                "records": log.log_end_offset - first,
                "bytes_read": bytes_read,
            }
    facts["seconds"] = round(time.perf_counter() - started, 6)
    if as_json:
        print_json(facts)
    else:
        print(
            f"{path}: {counted(facts['records'], 'record')} appended, {_span(first, facts['next_offset'])}, "
            f"{counted(bytes_read, 'byte')} read in {facts['seconds']:.3f} s"
        )
    if interruption.happened:
        raise typer.Exit(INTERRUPTED)


@app.command()
def tail(
    path: PartitionPath,
    count: Annotated[int, typer.Option("--lines", "-n", min=0, help="Start with the last so many records.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what is appended, until Ctrl-C.")] = False,
    encoding: AsEncoding = Encoding.text,
    as_json: AsJson = False,
) -> None:
    """Print the last committed records, and with --follow what comes after them. Writes nothing."""
    show = _record_printer(encoding, as_json)
    with _open_to_read(path) as log:
        end = log.high_watermark
        for record in _last_records(log, count, end):
            show(record)
        try:
            while follow:
                sys.stdout.flush()
                time.sleep(FOLLOW_POLL_S)  # a writer in another process tells nobody
                start, end = max(end, log.log_start_offset), max(end, log.high_watermark)
                for record in log.read(start, end) if start < end else ():
                    show(record)
        except KeyboardInterrupt:
            return


# Reading


def _open_to_read(path: Path) -> kreplog.Log:
    if not path.exists():
        raise UsageError(
            f"{path} does not exist: name a partition directory, <dir>/<topic>-<partition>", path=str(path)
        )
    return kreplog.Log.open(path, read_only=True)


def _batches(log: kreplog.Log, start: int, stop: int, log_end: bool) -> Iterator[tuple[batch.BatchInfo, memoryview]]:
    """Header and bytes of every batch that holds an offset in [start, stop), its CRC checked."""
    offset = start
    while offset < stop:
        fetched = log.fetch(offset, max_bytes=FETCH_BYTES, isolation="log_end" if log_end else "committed")
        data = fetched.data
        while len(data):
            try:
                header = batch.validate(data)
            except CorruptBatchError as error:
                raise CorruptBatchError(
                    f"{log.path}, offset {offset}: {error}; `kreplog log verify` tells where", path=log.path
                ) from error
            if header.base_offset >= stop:
                return
            yield header, data[: header.size]
            data = data[header.size :]
            offset = header.last_offset + 1
        if not len(fetched.data):
            return


def _batch_facts(header: batch.BatchInfo) -> dict[str, Any]:
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size,
        "leader_epoch": header.leader_epoch,
        "compression": CODEC_NAMES.get(header.codec, str(header.codec)),
        "timestamp_type": "LogAppendTime" if header.is_log_append_time else "CreateTime",
        "base_timestamp_ms": header.base_timestamp,
        "max_timestamp_ms": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "control": header.is_control,
    }


def _records(log: kreplog.Log, start: int, stop: int, log_end: bool) -> Iterator[kreplog.Record]:
    if not log_end:
        yield from log.read(start, stop)
        return
    for _, data in _batches(log, start, stop, log_end):
        for record in batch.decode(data):
            if start <= record.offset < stop:
                yield record


def _last_records(log: kreplog.Log, count: int, end: int) -> Sequence[kreplog.Record]:
    """The last `count` records below `end`; looks further back where offsets are missing, as after compaction."""
    window = count
    while True:
        start = max(log.log_start_offset, end - window)
        records = deque(log.read(start, end), maxlen=count)
        if len(records) == count or start == log.log_start_offset:
            return records
        window *= 8


def _facts(log: kreplog.Log) -> dict[str, Any]:
    timestamps = [segment.max_timestamp for segment in log.segments]
    return {
        "path": log.path,
        "topic": log.topic_partition.topic,
        "partition": log.topic_partition.partition,
        "topic_id": _if_sound(lambda: _topic_id(log), None),
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "log_end_offset": log.log_end_offset,
        "recovery_point": log.recovery_point,
        "bytes": log.size,
        "first_timestamp_ms": _if_sound(lambda: _first_timestamp(log), -1),
        "max_timestamp_ms": max(timestamps, default=-1),
        "leader_epochs": _if_sound(lambda: _leader_epochs(log), []),
        "segments": [
            {
                "base_offset": segment.base_offset,
                "next_offset": segment.next_offset,
                "bytes": segment.size,
                "max_timestamp_ms": segment.max_timestamp,
                "file": segment.path,
            }
            for segment in log.segments
        ],
    }


def _topic_id(log: kreplog.Log) -> str | None:
    """As Kafka writes it."""
    return None if log.topic_id is None else base64.urlsafe_b64encode(log.topic_id.bytes).decode().rstrip("=")


def _first_timestamp(log: kreplog.Log) -> int:
    """Of the first committed record, -1 where there is none."""
    first = next(log.read(), None)
    return -1 if first is None else first.timestamp_ms


def _leader_epochs(log: kreplog.Log) -> list[dict[str, int]]:
    entries = EpochCache(os.path.join(log.path, "leader-epoch-checkpoint")).entries
    return [{"epoch": epoch, "start_offset": start} for epoch, start in entries]


def _if_sound(read: Callable[[], object], otherwise: object) -> object:
    """What `read` returns; `otherwise` and a warning where it meets damage, so that the rest can still be shown."""
    try:
        return read()
    except StorageError as error:
        logger.warning("%s", error)
        return otherwise


# Appending


class _Line(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


def _line_parser(key_separator: str | None, json_lines: bool) -> Callable[[bytes], _Line]:
    """What turns one line, without its newline, into a record; the parsers raise UsageError."""
    if json_lines:
        if key_separator is not None:
            raise UsageError("--key-separator has no meaning with --json-lines: leave one of them out")
        return _parse_json_line
    if key_separator is None:
        return _Line
    if not key_separator:
        raise UsageError("--key-separator must not be empty")
    separator = key_separator.encode()

    def parse(line: bytes) -> _Line:
        key, found, value = line.partition(separator)
        if not found:
            raise UsageError(f"no key separator {key_separator!r} in it")
        return _Line(value, key)

    return parse


def _parse_json_line(line: bytes) -> _Line:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise UsageError(f"not JSON: {error}") from error
    if not isinstance(fields, dict) or "value" not in fields:
        raise UsageError('not a JSON object with a "value"')
    unknown = fields.keys() - {"offset", "value", "key", "timestamp_ms", "headers"}
    if unknown:
        raise UsageError(f"unknown fields: {', '.join(sorted(unknown))}")
    headers = fields.get("headers") or []
    if not isinstance(headers, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in headers):
        raise UsageError('"headers" must be a list of [name, value]')
    return _Line(
        _from_json(fields["value"]),
        _from_json(fields.get("key")),
        fields.get("timestamp_ms"),
        [(name, _from_json(value)) for name, value in headers],
    )


def _from_json(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        try:
            return base64.b64decode(value["base64"], validate=True)
        except (TypeError, binascii.Error) as error:
            raise UsageError(f"not base64: {value['base64']!r}") from error
    raise UsageError(f'{json.dumps(value)} must be a string, null or {{"base64": ...}}')


def _check_first(line: bytes, parse: Callable[[bytes], _Line]) -> None:
    """Raise UsageError if the first line can be no record, before a directory is made for it."""
    if line:
        try:
            record = parse(line.removesuffix(b"\n"))
            stamps = None if record.timestamp_ms is None else [record.timestamp_ms]
            batch.build([record.value], [record.key], stamps, [record.headers])
        except UsageError as error:
            raise UsageError(f"line 1: {error}; nothing was appended") from error


def _append_lines(
    log: kreplog.Log, lines: Iterable[bytes], size: int | None, parse: Callable[[bytes], _Line], bar: Progress
) -> int:
    """Append a record per line and return how many bytes were read; size: of all lines, for the progress bar.

    Raises UsageError for a line that cannot be a record, naming it; the lines before it are appended."""
    task = bar.add_task("append", total=size)
    bytes_read = 0
    with log.appender() as out:
        for number, line in enumerate(lines, 1):
            try:
                out.append(*parse(line.removesuffix(b"\n")))
            except UsageError as error:
                out.flush()
                raise UsageError(
                    f"line {number}: {error}; appended: {counted(number - 1, 'line')} before it, so that the next "
                    f"offset is {log.log_end_offset:,}",
                    path=log.path,
                ) from error
            bytes_read += len(line)
            if number % PROGRESS_EVERY_LINES == 0:
                bar.update(task, completed=bytes_read)
        bar.update(task, completed=bytes_read)
    return bytes_read


def _size_of(lines: IO[bytes]) -> int | None:
    """Bytes in a regular file; None for a pipe or terminal."""
    try:
        return os.fstat(lines.fileno()).st_size or None
    except OSError:
        return None


# Writing out


def _progress(wanted: bool | None) -> Progress:
    """A bar on stderr; None: only where stderr is a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not (sys.stderr.isatty() if wanted is None else wanted),
    )


def _drawn_by(bar: Progress, title: str) -> Callable[[int, int], None]:
    """What the log calls with (bytes done, bytes in all)."""
    task = bar.add_task(title, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """The log's warnings while it is held; they are still shown on stderr."""
    warnings: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        warnings.append(record.getMessage())
        return True

    logger.addFilter(keep)
    try:
        yield warnings
    finally:
        logger.removeFilter(keep)


def _record_printer(encoding: Encoding, as_json: bool) -> Callable[[kreplog.Record], None]:
    def print_fields(record: kreplog.Record) -> None:
        print_json(
            {
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                "key": _to_json(record.key, encoding),
                "value": _to_json(record.value, encoding),
                "headers": [[name, _to_json(value, encoding)] for name, value in record.headers],
            }
        )

    def print_text(record: kreplog.Record) -> None:
        headers = "".join(f"  {_printable(name)}={_to_text(value, encoding)}" for name, value in record.headers)
        print(
            f"{record.offset}  {_time(record.timestamp_ms)}  "
            f"{_to_text(record.key, encoding)}  {_to_text(record.value, encoding)}{headers}"
        )

    return print_fields if as_json else print_text


def _to_json(data: bytes | None, encoding: Encoding) -> str | dict[str, str] | None:
    """Bytes that are not UTF-8 become {"base64": ...} under the text encoding, so that nothing is lost."""
    if data is None:
        return None
    if encoding is Encoding.hex:
        return data.hex()
    if encoding is Encoding.text:
        try:
            return data.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(data).decode()}
    return base64.b64encode(data).decode()


def _to_text(data: bytes | None, encoding: Encoding) -> str:
    if data is None:
        return "null"
    if encoding is Encoding.hex:
        return data.hex()
    if encoding is Encoding.base64:
        return base64.b64encode(data).decode()
    return _printable(data.decode(errors="backslashreplace"))


def _printable(text: str) -> str:
    """`text` with control characters escaped: a record must not drive the terminal it is shown on."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _span(start: int, end: int) -> str:
    """The offsets of [start, end) in words."""
    if end - start <= 1:
        return f"offset {start:,}" if end > start else "no offsets"
    return f"offsets {start:,} to {end - 1:,}"


def _time(timestamp_ms: int) -> str:
    """ISO 8601 in UTC; a plain number for what no calendar holds, "-" for none."""
    if timestamp_ms == -1:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC).replace(microsecond=timestamp_ms % 1000 * 1000)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _print_batch(header: dict[str, Any]) -> None:
    print("  ".join(f"{name}={_time(value) if name.endswith('_ms') else value}" for name, value in header.items()))


def _print_facts(facts: dict[str, Any]) -> None:
    console = Console()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name in ("path", "topic", "partition", "topic_id"):
        table.add_row(name.replace("_", " "), "none" if facts[name] is None else str(facts[name]))
    for name in ("log_start_offset", "high_watermark", "log_end_offset", "recovery_point", "bytes"):
        table.add_row(name.replace("_", " "), f"{facts[name]:,}")
    table.add_row("first timestamp", _time(facts["first_timestamp_ms"]))
    table.add_row("max timestamp", _time(facts["max_timestamp_ms"]))
    epochs = (f"{entry['epoch']} from offset {entry['start_offset']:,}" for entry in facts["leader_epochs"])
    table.add_row("leader epochs", ", ".join(epochs) or "none")
    console.print(table, markup=False)
    segments = Table("base offset", "next offset", "bytes", "max timestamp", title="segments", title_justify="left")
    for segment in facts["segments"]:
        segments.add_row(
            f"{segment['base_offset']:,}",
            f"{segment['next_offset']:,}",
            f"{segment['bytes']:,}",
            _time(segment["max_timestamp_ms"]),
        )
    console.print(segments)


def _print_recovery(facts: dict[str, Any]) -> None:
    for cut in facts["cuts"]:
        print(f"{cut['path']}: {counted(cut['bytes'], 'byte')} cut from byte {cut['position']:,} on: {cut['reason']}")
    print(
        f"{facts['path']}: {_span(facts['log_start_offset'], facts['log_end_offset'])}, high watermark "
        f"{facts['high_watermark']:,}; {counted(facts['bytes_cut'], 'byte')} cut, {facts['bytes']:,} kept, "
        f"in {facts['seconds']:.3f} s"
    )
