"""`kreplog log`: inspect, verify, recover and append to one partition directory.

Only arguments and output are here; kreplog.Log does the work. Commands that inspect open the log read-only and write
nothing. Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn
from rich.table import Table

import kreplog
from kreplog.batches import batch_facts, decode, leader_epochs, read_batches
from kreplog.commands.interruption import EXIT_CODE as INTERRUPTED
from kreplog.commands.interruption import Interruption
from kreplog.commands.lines import append_lines, check_first_line, line_parser, size_of
from kreplog.commands.options import App, AsJson, Isolation, IsolationLevel, print_json
from kreplog.commands.records import Encoding, record_printer, time_text
from kreplog.errors import LogTruncatedError, OffsetOutOfRangeError, StorageError, UsageError
from kreplog.types import Codec, TopicPartition, counted, topic_id_text

logger = logging.getLogger("kreplog")

PARTITIONS_SHOWN = 10


def _check_partition(path: Path) -> Path:
    """`path`. Raises UsageError, which lists the partitions, if it is a directory of partitions."""
    if path.is_dir() and not any(path.glob("*.log")):
        partitions = sorted(_partitions_in(path))
        if partitions:
            shown = ", ".join(str(partition) for partition in partitions[:PARTITIONS_SHOWN])
            more = f" and {len(partitions) - PARTITIONS_SHOWN:,} more" if len(partitions) > PARTITIONS_SHOWN else ""
            raise UsageError(
                f"{path} is not a partition directory, but contains {shown}{more}: give one of them, as in "
                f"{path / str(partitions[0])}",
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
    Path, typer.Argument(help="The partition's directory, <dir>/<topic>-<partition>.", callback=_check_partition)
]
ShowProgress = Annotated[
    bool | None,
    typer.Option("--progress/--no-progress", help="Show a progress bar on stderr (default: if it is a terminal)."),
]
AsEncoding = Annotated[Encoding, typer.Option("--encoding", "-e", help="How keys, values and header values are shown.")]
FromOffset = Annotated[int | None, typer.Option("--from", min=0, help="First offset (default: the log start offset).")]
ToOffset = Annotated[
    int | None, typer.Option("--to", min=0, help="End offset, exclusive (default: the end of the log).")
]

app = App()


@app.command()
def info(path: PartitionPath, as_json: AsJson = False) -> None:
    """Show a partition's offsets, size, timestamps, leader epochs and segments; changes nothing."""
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
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=0, help="Print at most this many.")] = None,
    batches: Annotated[bool, typer.Option("--batches", help="Print record batch headers instead of records.")] = False,
    log_end: Annotated[
        bool, typer.Option("--log-end", help="Print uncommitted records too, up to the log end offset.")
    ] = False,
    encoding: AsEncoding = Encoding.text,
    as_json: AsJson = False,
) -> None:
    """Print records, or record batch headers, in offset order; changes nothing.

    The output of --json is the input of `kreplog log append --json-lines`."""
    with _open_to_read(path) as log:
        first = log.log_start_offset if start is None else start
        end = log.log_end_offset if log_end else log.high_watermark
        last = end if stop is None else min(stop, end)
        if batches:
            show_batch = print_json if as_json else _print_batch
            isolation = "log_end" if log_end else "committed"
            for header, _ in islice(read_batches(log, first, last, isolation=isolation), limit):
                show_batch(batch_facts(header))
        else:
            show = record_printer(encoding, as_json)
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
    """Check the checksum of every batch, and every record, up to the log end offset; changes nothing.

    Exits with status 1 if it finds damage."""
    with _open_to_read(path) as log, _progress(progress) as bar:
        report = log.verify(start, stop, progress=_bar_callback(bar, "verify"))
    if as_json:
        print_json({"ok": not report.damages, **asdict(report)})
    else:
        for damage in report.damages:
            print(f"{damage.path}: position {damage.position}, offset {damage.offset}: {damage.reason}")
        print(
            f"{path}: {'DAMAGED' if report.damages else 'no damage'}; "
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
        typer.Option(
            "--replicated",
            help="Required for a broker's log: keep its high watermark, instead of committing every record.",
        ),
    ] = False,
    progress: ShowProgress = None,
    as_json: AsJson = False,
) -> None:
    """Repair a partition after a crash: truncate its log at the first damaged batch, and close it cleanly.

    Checks only what was not flushed; `kreplog log verify` checks everything.
    """
    if not path.is_dir():
        problem = "is not a directory" if path.exists() else "does not exist"
        raise UsageError(f"{path} {problem}: there is nothing to recover", path=str(path))
    started = time.perf_counter()
    with _progress(progress) as bar, _warnings() as warnings:
        config = kreplog.LogConfig(replicated=replicated)
        with kreplog.Log.open(path, config, progress=_bar_callback(bar, "recover")) as log:
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
def compact(
    path: PartitionPath,
    roll: Annotated[
        bool, typer.Option("--roll", help="Start a new segment first, so that all records are compacted.")
    ] = False,
    delete_retention_ms: Annotated[
        int,
        typer.Option("--delete-retention-ms", min=0, help="How long a tombstone stays after its first compaction."),
    ] = kreplog.LogConfig().delete_retention_ms,
    min_lag_ms: Annotated[
        int, typer.Option("--min-compaction-lag-ms", min=0, help="How long every record stays after its timestamp.")
    ] = 0,
    max_bytes_per_second: Annotated[
        int | None, typer.Option("--max-bytes-per-second", min=1, help="Limit of reading (default: none).")
    ] = None,
    drop_keyless: Annotated[
        bool,
        typer.Option("--drop-keyless", help="Drop records without a key (default: refuse a log that has some)."),
    ] = False,
    replicated: Annotated[
        bool,
        typer.Option("--replicated", help="Required for a broker's log: compact only below its high watermark."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compact the sealed segments as Kafka does: the newest record of each key stays, with its offset.

    A log with records without a key is refused, unless --drop-keyless is given. Nothing else may
    write the log meanwhile; it can be read."""
    if not path.is_dir():
        raise UsageError(f"{path} is no directory: there is nothing to compact", path=str(path))
    config = kreplog.LogConfig(
        replicated=replicated,
        cleanup_policy="compact",
        delete_retention_ms=delete_retention_ms,
        min_compaction_lag_ms=min_lag_ms,
    )
    started = time.perf_counter()
    with kreplog.Log.open(path, config) as log:
        if roll:
            log.roll()
        report = log.compact(force=True, max_bytes_per_second=max_bytes_per_second, drop_keyless=drop_keyless)
    seconds = round(time.perf_counter() - started, 6)
    facts = {"path": str(path), "compacted": report is not None, "seconds": seconds}
    if as_json:
        print_json(facts if report is None else facts | asdict(report))
    elif report is None:
        print(f"{path}: nothing to compact: no segment is sealed and committed")
    else:
        print(
            f"{path}: {counted(report.records_dropped, 'record')} dropped, {counted(report.keys, 'key')} in "
            f"{_span(report.start_offset, report.end_offset)}, "
            f"{report.bytes_before:,} -> {report.bytes_after:,} bytes, "
            f"{report.segments_before:,} -> {report.segments_after:,} segments in {seconds:.3f} s"
        )


@app.command()
def append(
    path: PartitionPath,
    file: Annotated[
        typer.FileBinaryRead | None,
        typer.Option("--file", "-f", metavar="<file>", help="File to read (default: stdin)."),
    ] = None,
    key_separator: Annotated[
        str | None,
        typer.Option("--key-separator", "-k", help="Separator between key and value in each line (default: no keys)."),
    ] = None,
    json_lines: Annotated[
        bool,
        typer.Option(
            "--json-lines",
            help='Each line is a JSON object: "value" (a string, null or {"base64": ...}), and optionally "key", '
            '"timestamp_ms" and "headers" (a list of \\[name, value]).',
        ),
    ] = False,
    compression: Annotated[Codec, typer.Option("--compression", "-c", help="Compression codec.")] = Codec.none,
    progress: ShowProgress = None,
    as_json: AsJson = False,
) -> None:
    """Append a record for each line of a file or stdin; creates the partition if it does not exist."""
    parse = line_parser(key_separator, json_lines)
    lines: IO[bytes] = sys.stdin.buffer if file is None else file
    started = time.perf_counter()
    with Interruption() as interruption:
        incoming = interruption.reading(lines)
        first_line = next(incoming, b"")
        check_first_line(first_line, parse)
        with (
            kreplog.Log.open(path, kreplog.LogConfig(compression_type=compression.value)) as log,
            _progress(progress) as bar,
        ):
            first = log.log_end_offset
            all_lines = chain([first_line] if first_line else [], incoming)
            bytes_read = append_lines(log, all_lines, size_of(lines), parse, bar)
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
    count: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of last records to begin with.")] = 10,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new records too, until Ctrl-C.")] = False,
    isolation_level: Isolation = IsolationLevel.READ_UNCOMMITTED,
    encoding: AsEncoding = Encoding.text,
    as_json: AsJson = False,
) -> None:
    """Print the last committed records, and with --follow those that are committed later; changes nothing."""
    show = record_printer(encoding, as_json)
    with _open_to_read(path) as log:
        committed = isolation_level is IsolationLevel.READ_COMMITTED
        end = log.last_stable_offset if committed else log.high_watermark
        for record in _last_records(log, count, end, isolation_level):
            show(record)
        if not follow:
            return
        sys.stdout.flush()
        try:
            for records in _followed(log, end, isolation_level):
                for record in records:
                    show(record)
                sys.stdout.flush()
        except KeyboardInterrupt:
            return


# Reading


def _open_to_read(path: Path) -> kreplog.Log:
    if not path.exists():
        raise UsageError(
            f"{path} does not exist: give a partition directory, <dir>/<topic>-<partition>", path=str(path)
        )
    return kreplog.Log.open(path, read_only=True)


def _records(log: kreplog.Log, start: int, stop: int, log_end: bool) -> Iterator[kreplog.Record]:
    if not log_end:
        yield from log.read(start, stop)
        return
    for _, data in read_batches(log, start, stop, isolation="log_end"):
        for record in decode(data):
            if start <= record.offset < stop:
                yield record


def _last_records(log: kreplog.Log, count: int, end: int, isolation: str) -> Sequence[kreplog.Record]:
    """The last `count` records below `end`; reads further back where offsets are missing, as after compaction."""
    window = count
    while True:
        start = max(log.log_start_offset, end - window)
        records = deque(log.read(start, end, isolation=isolation), maxlen=count)
        if len(records) == count or start == log.log_start_offset:
            return records
        window *= 8


def _followed(log: kreplog.Log, start: int, isolation: str) -> Iterator[list[kreplog.Record]]:
    """The records from `start` on as they are committed, across writers; goes on where records were removed."""
    while True:
        try:
            for records in log.follow_batches(start, across_writers=True, isolation=isolation):
                start = records[-1].offset + 1
                yield records
            return
        except LogTruncatedError as error:
            logger.warning("%s", error)
            start = min(start, log.log_end_offset) if error.offset is None else error.offset
        except OffsetOutOfRangeError as error:
            if log.log_start_offset <= start <= log.log_end_offset:
                raise
            logger.warning("%s", error)
        start = min(max(start, log.log_start_offset), log.log_end_offset)


def _facts(log: kreplog.Log) -> dict[str, Any]:
    timestamps = [segment.max_timestamp for segment in log.segments]
    return {
        "path": log.path,
        "topic": log.topic_partition.topic,
        "partition": log.topic_partition.partition,
        "topic_id": _unless_damaged(lambda: _topic_id(log), None),
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "log_end_offset": log.log_end_offset,
        "recovery_point": log.recovery_point,
        "bytes": log.size,
        "first_timestamp_ms": _unless_damaged(lambda: _first_timestamp(log), -1),
        "max_timestamp_ms": max(timestamps, default=-1),
        "leader_epochs": _unless_damaged(lambda: _leader_epochs(log), []),
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
    """The topic id as Kafka writes it."""
    return None if log.topic_id is None else topic_id_text(log.topic_id)


def _first_timestamp(log: kreplog.Log) -> int:
    """Timestamp of the first committed record, -1 for none."""
    first = next(log.read(), None)
    return -1 if first is None else first.timestamp_ms


def _leader_epochs(log: kreplog.Log) -> list[dict[str, int]]:
    return [{"epoch": epoch, "start_offset": start} for epoch, start in leader_epochs(log)]


def _unless_damaged(read: Callable[[], object], default: object) -> object:
    """The result of `read`; `default` and a warning if it finds damage, so that the rest is still shown."""
    try:
        return read()
    except StorageError as error:
        logger.warning("%s", error)
        return default


# Output


def _progress(shown: bool | None) -> Progress:
    """A progress bar on stderr; None: if stderr is a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        disable=not (sys.stderr.isatty() if shown is None else shown),
    )


def _bar_callback(bar: Progress, title: str) -> Callable[[int, int], None]:
    """A progress callback for a log, called with (bytes done, bytes in all)."""
    task = bar.add_task(title, total=None)
    return lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collects the log's warnings within the `with` block; they are still printed to stderr."""
    warnings: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        warnings.append(record.getMessage())
        return True

    logger.addFilter(collect)
    try:
        yield warnings
    finally:
        logger.removeFilter(collect)


def _span(start: int, end: int) -> str:
    """The offsets in [start, end) as text."""
    if end - start <= 1:
        return f"offset {start:,}" if end > start else "no offsets"
    return f"offsets {start:,} to {end - 1:,}"


def _print_batch(header: dict[str, Any]) -> None:
    print("  ".join(f"{name}={time_text(value) if name.endswith('_ms') else value}" for name, value in header.items()))


def _print_facts(facts: dict[str, Any]) -> None:
    console = Console()
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name in ("path", "topic", "partition", "topic_id"):
        table.add_row(name.replace("_", " "), "none" if facts[name] is None else str(facts[name]))
    for name in ("log_start_offset", "high_watermark", "log_end_offset", "recovery_point", "bytes"):
        table.add_row(name.replace("_", " "), f"{facts[name]:,}")
    table.add_row("first timestamp", time_text(facts["first_timestamp_ms"]))
    table.add_row("max timestamp", time_text(facts["max_timestamp_ms"]))
    epochs = (f"{entry['epoch']} from offset {entry['start_offset']:,}" for entry in facts["leader_epochs"])
    table.add_row("leader epochs", ", ".join(epochs) or "none")
    console.print(table, markup=False)
    segments = Table("base offset", "next offset", "bytes", "max timestamp", title="segments", title_justify="left")
    for segment in facts["segments"]:
        segments.add_row(
            f"{segment['base_offset']:,}",
            f"{segment['next_offset']:,}",
            f"{segment['bytes']:,}",
            time_text(segment["max_timestamp_ms"]),
        )
    console.print(segments)


def _print_recovery(facts: dict[str, Any]) -> None:
    for cut in facts["cuts"]:
        print(
            f"{cut['path']}: {counted(cut['bytes'], 'byte')} truncated at position {cut['position']:,}: {cut['reason']}"
        )
    print(
        f"{facts['path']}: {_span(facts['log_start_offset'], facts['log_end_offset'])}, high watermark "
        f"{facts['high_watermark']:,}; {counted(facts['bytes_cut'], 'byte')} truncated, {facts['bytes']:,} left, "
        f"in {facts['seconds']:.3f} s"
    )
