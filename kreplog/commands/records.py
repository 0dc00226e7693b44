"""How records are shown: keys, values and header values as text, hexadecimal or base64, and timestamps in UTC."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum

from kreplog.commands.options import print_json
from kreplog.log import Record


class Encoding(StrEnum):
    """The notation of bytes as text."""

    text = "text"
    hex = "hex"
    base64 = "base64"


def record_printer(encoding: Encoding, as_json: bool) -> Callable[[Record], None]:
    """A function that prints a record, as text or as a JSON object on a line."""

    def print_fields(record: Record) -> None:
        print_json(
            {
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                "key": bytes_to_json(record.key, encoding),
                "value": bytes_to_json(record.value, encoding),
                "headers": [[name, bytes_to_json(value, encoding)] for name, value in record.headers],
            }
        )

    def print_text(record: Record) -> None:
        headers = "".join(f"  {_escaped(name)}={_to_text(value, encoding)}" for name, value in record.headers)
        print(
            f"{record.offset}  {time_text(record.timestamp_ms)}  "
            f"{_to_text(record.key, encoding)}  {_to_text(record.value, encoding)}{headers}"
        )

    return print_fields if as_json else print_text


def bytes_to_json(data: bytes | None, encoding: Encoding = Encoding.text) -> str | dict[str, str] | None:
    """Bytes for JSON; those that are not UTF-8 become {"base64": ...} under the text encoding, so that none is lost."""
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
    return _escaped(data.decode(errors="backslashreplace"))


def _escaped(text: str) -> str:
    """`text` with control characters escaped: records must not control the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def time_text(timestamp_ms: int) -> str:
    """ISO 8601 in UTC; the number for a time outside the calendar, "-" for none."""
    if timestamp_ms == -1:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC).replace(microsecond=timestamp_ms % 1000 * 1000)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
