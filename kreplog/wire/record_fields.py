"""Fields of the records of Kafka's internal topics, written and read.

Numbers are big-endian. In plain versions a text has an int16 length, bytes and arrays an int32 one, -1 for null. In
flexible versions (KIP-482) lengths are unsigned varints, one more than the length and 0 for null, and each struct ends
in tagged fields: varint count, then varint tag, varint size and content of each.
Source: Kafka protocol guide, protocol primitive types.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from kreplog._native.wire import topic_id_of

SHORT = struct.Struct(">h")
INT = struct.Struct(">i")
LONG = struct.Struct(">q")

_UUID_BYTES = 16


def text(value: str | None) -> bytes:
    if value is None:
        return SHORT.pack(-1)
    encoded = value.encode()
    return SHORT.pack(len(encoded)) + encoded


def octets(value: bytes) -> bytes:
    return INT.pack(len(value)) + value


def varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def compact_text(value: str | None) -> bytes:
    return varint(0) if value is None else compact_octets(value.encode())


def compact_octets(value: bytes) -> bytes:
    return varint(len(value) + 1) + value


def compact_numbers(values: Sequence[int]) -> bytes:
    return varint(len(values) + 1) + struct.pack(f">{len(values)}i", *values)


def compact_array(items: Sequence[bytes]) -> bytes:
    """An array of a flexible version. items: encoded already."""
    return varint(len(items) + 1) + b"".join(items)


def tags(fields: Mapping[int, bytes] | None = None) -> bytes:
    """The end of a struct. fields: encoded contents by tag, in order."""
    fields = fields or {}
    parts = [varint(len(fields))]
    for tag, content in fields.items():
        parts += [varint(tag), varint(len(content)), content]
    return b"".join(parts)


class FieldReader:
    """Reads fields from bytes, which end where they end: struct.error or ValueError beyond."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self._at = at

    # Of both

    def byte(self) -> int:
        """Signed."""
        return int.from_bytes(self._take(1), "big", signed=True)

    def short(self) -> int:
        return self._number(SHORT)

    def number(self) -> int:
        return self._number(INT)

    def long(self) -> int:
        return self._number(LONG)

    def topic_id(self) -> str:
        return topic_id_of(self._take(_UUID_BYTES))

    def _number(self, form: struct.Struct) -> int:
        (number,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return int(number)

    def _take(self, length: int) -> bytes:
        if not 0 <= length <= len(self._data) - self._at:
            raise ValueError(f"{length} bytes where {len(self._data) - self._at} are left")
        taken = self._data[self._at : self._at + length]
        self._at += length
        return taken

    def _checked(self, count: int, item_bytes: int) -> int:
        left = len(self._data) - self._at
        if not 0 <= count <= left // item_bytes:
            raise ValueError(f"an array of {count} items in {left} bytes")
        return count

    # Plain

    def count(self) -> int:
        """The length of an array whose items take at least a byte each. Raises ValueError."""
        return self._checked(self.number(), 1)

    def text(self) -> str:
        return _not_null(self.text_or_null())

    def text_or_null(self) -> str | None:
        length = self.short()
        return None if length == -1 else self._take(length).decode()

    def octets(self) -> bytes:
        return self._take(self.number())

    def numbers(self) -> tuple[int, ...]:
        return self._numbers(self._checked(self.number(), INT.size))

    def _numbers(self, count: int) -> tuple[int, ...]:
        found = struct.unpack_from(f">{count}i", self._data, self._at)
        self._at += count * INT.size
        return found

    # Flexible

    def varint(self) -> int:
        number = 0
        for shift in range(0, 35, 7):
            if self._at >= len(self._data):
                raise ValueError("a number is cut short")
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ValueError("a number has more than 5 bytes")

    def compact_count(self) -> int:
        """The length of an array whose items take at least a byte each; 0 for null. Raises ValueError."""
        return self._checked(max(0, self.varint() - 1), 1)

    def compact_text(self) -> str:
        return _not_null(self.compact_text_or_null())

    def compact_text_or_null(self) -> str | None:
        length = self.varint()
        return None if length == 0 else self._take(length - 1).decode()

    def compact_octets(self) -> bytes:
        return self._take(self.varint() - 1)

    def compact_numbers(self) -> tuple[int, ...]:
        return self._numbers(self._checked(self.varint() - 1, INT.size))

    def compact_numbers_or_null(self) -> tuple[int, ...] | None:
        count = self.varint()
        return None if count == 0 else self._numbers(self._checked(count - 1, INT.size))

    def tags(self) -> dict[int, bytes]:
        """Contents by tag, at the end of a struct."""
        return {self.varint(): self._take(self.varint()) for _ in range(self._checked(self.varint(), 2))}


def _not_null(value: str | None) -> str:
    if value is None:
        raise ValueError("null in place of a text")
    return value
