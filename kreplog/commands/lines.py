"""Lines of a file or of stdin as records, for `kreplog log append`: plain, with keys, or as JSON objects."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import IO, NamedTuple

from rich.progress import Progress

from kreplog.batches import check_record
from kreplog.errors import UsageError
from kreplog.log import Log
from kreplog.types import counted

PROGRESS_EVERY_LINES = 1000


class LineRecord(NamedTuple):
    """A line as a record."""

    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()


def line_parser(key_separator: str | None, json_lines: bool) -> Callable[[bytes], LineRecord]:
    """A function that parses a line without its newline; it raises UsageError."""
    if json_lines:
        if key_separator is not None:
            raise UsageError("--key-separator and --json-lines exclude each other")
        return _parse_json_line
    if key_separator is None:
        return LineRecord
    if not key_separator:
        raise UsageError("--key-separator must not be empty")
    separator = key_separator.encode()

    def parse(line: bytes) -> LineRecord:
        key, found, value = line.partition(separator)
        if not found:
            raise UsageError(f"no key separator {key_separator!r} in it")
        return LineRecord(value, key)

    return parse


def _parse_json_line(line: bytes) -> LineRecord:
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
    return LineRecord(
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


def check_first_line(line: bytes, parse: Callable[[bytes], LineRecord]) -> None:
    """Raise UsageError if the first line cannot be a record, before a directory is created for it."""
    if line:
        try:
            check_record(*parse(line.removesuffix(b"\n")))
        except UsageError as error:
            raise UsageError(f"line 1: {error}; nothing was appended") from error


def append_lines(
    log: Log, lines: Iterable[bytes], size: int | None, parse: Callable[[bytes], LineRecord], bar: Progress
) -> int:
    """Append a record for each line; returns the number of bytes read. size: bytes of all lines, for the progress bar.

    Raises UsageError with the number of a line that cannot be a record; the lines before it are appended."""
    task = bar.add_task("append", total=size)
    bytes_read = 0
    with log.appender() as out:
        for number, line in enumerate(lines, 1):
            try:
                out.append(*parse(line.removesuffix(b"\n")))
            except UsageError as error:
                out.flush()
                raise UsageError(
                    f"line {number}: {error}; {counted(number - 1, 'line')} before it appended, the next offset is "
                    f"{log.log_end_offset:,}",
                    path=log.path,
                ) from error
            bytes_read += len(line)
            if number % PROGRESS_EVERY_LINES == 0:
                bar.update(task, completed=bytes_read)
        bar.update(task, completed=bytes_read)
    return bytes_read


def size_of(lines: IO[bytes]) -> int | None:
    """Size of a regular file; None for a pipe or terminal."""
    try:
        return os.fstat(lines.fileno()).st_size or None
    except OSError:
        return None
