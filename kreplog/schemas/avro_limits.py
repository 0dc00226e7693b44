"""Limits of Avro schemas, and of data by them: fastavro recurses in C and believes counts, so that without them a
schema or a record of somebody else ends the process, or takes its memory.

Source: Avro's specification, "Binary encoding".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

MAX_TEXT = 1 << 20
"""Characters of a schema, with those that it refers to."""

MAX_NESTING = 100
"""Records, arrays and maps within each other; fastavro needs 2.5 KB of the C stack for each."""

MAX_JSON_NESTING = 300
"""Of a schema's text: a record in a record is three levels."""

MAX_FREE_VALUES = 1_000_000
"""Values of a record, such as null, beyond one for each of its bytes."""

_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_VARINTS = ("int", "long", "enum")


def parsed_json(text: str) -> Any:
    """Raises ValueError."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"it has {len(text)} characters, more than {MAX_TEXT}")
    try:
        schema = json.loads(text)
        is_deep = is_nested_deeper(schema, MAX_JSON_NESTING)
    except RecursionError:
        is_deep = True
    if is_deep:
        raise ValueError(f"its JSON is nested more than {MAX_JSON_NESTING} deep")
    return schema


def is_nested_deeper(item: Any, levels: int) -> bool:
    """Whether lists and mappings are nested in each other so."""
    at_level = [item]
    for _ in range(levels + 1):
        at_level = [
            part
            for outer in at_level
            if isinstance(outer, (Mapping, list, tuple))
            for part in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
        if not at_level:
            return False
    return True


class AvroLimits:
    """The limits of data by a parsed schema. named: the types that it uses by name.

    is_recursive: a record can contain itself. Raises ValueError for a schema of which no data, or none within
    MAX_NESTING, can be.
    """

    def __init__(self, schema: Any, named: Mapping[str, Any]) -> None:
        self._schema = schema
        self._named = named
        self.is_recursive = False
        self._has_free_items = False
        self._free = 0  # values that have no byte of their own, at most, for each that has one
        self._known: dict[str, tuple[int, int, bool]] = {}
        self._open: dict[str, int] = {}  # records that the one at hand is in, and the choices on the way to each
        self._nesting_of(schema, 0)
        if self._free > MAX_FREE_VALUES:
            raise ValueError(f"it has more than {MAX_FREE_VALUES} values without a byte")

    def _nesting_of(self, schema: Any, choices: int) -> tuple[int, int, bool]:
        """Levels of nesting; values without bytes of their own; whether it can be without a byte at all."""
        if len(self._open) > MAX_NESTING:
            raise ValueError(f"its types are nested more than {MAX_NESTING} deep")
        if isinstance(schema, list):
            inner = [self._nesting_of(branch, choices + 1) for branch in schema]
            self._free = max([self._free, *(free for _, free, _ in inner)])
            return max((nesting for nesting, _, _ in inner), default=0), 0, False
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, (dict, list)):
            return self._nesting_of(kind, choices)
        if kind in ("array", "map"):
            nesting, free, can_be_empty = self._nesting_of(
                schema["items" if kind == "array" else "values"], choices + 1
            )
            self._free = max(self._free, free)
            self._has_free_items |= kind == "array" and can_be_empty
            return self._checked(nesting + 1), 0, False
        if kind in ("record", "error"):
            return self._nesting_of_record(schema, choices)
        if kind in self._named:
            return self._nesting_of(self._named[kind], choices)
        is_free = kind == "null" or (kind == "fixed" and schema["size"] == 0)
        return 0, int(is_free), is_free

    def _nesting_of_record(self, schema: dict[str, Any], choices: int) -> tuple[int, int, bool]:
        name = schema["name"]
        if name in self._open:
            if self._open[name] == choices:
                raise ValueError(f"a {name} always contains another, without end")
            self.is_recursive = True
            return 0, 0, False
        if name not in self._known:
            self._open[name] = choices
            fields = [self._nesting_of(field["type"], choices) for field in schema["fields"]]
            del self._open[name]
            nesting = max((nesting for nesting, _, _ in fields), default=0)
            free = 1 + sum(free for _, free, _ in fields)
            self._known[name] = self._checked(nesting + 1), free, all(is_free for _, _, is_free in fields)
            self._free = max(self._free, free)
        return self._known[name]

    def _checked(self, nesting: int) -> int:
        if nesting > MAX_NESTING:
            raise ValueError(f"its types are nested more than {MAX_NESTING} deep")
        return nesting

    def check_data(self, data: bytes) -> None:
        """Raise ValueError if decoding them would go beyond the limits. Looks at the values only where the schema has
        no limits of its own."""
        is_bounded = (len(data) + 1) * self._free <= MAX_FREE_VALUES + len(data)
        if self.is_recursive or self._has_free_items or not is_bounded:
            _DataWalk(data, self._named).value(self._schema, 0)

    def check_item(self, item: Any) -> None:
        """Raise ValueError if its encoding would go beyond the limits, or could not be decoded."""
        if self.is_recursive and is_nested_deeper(item, MAX_NESTING):
            raise ValueError(f"it is nested more than {MAX_NESTING} deep")


class _DataWalk:
    """A walk over encoded values, which counts them and makes none."""

    def __init__(self, data: bytes, named: Mapping[str, Any]) -> None:
        self._data = data
        self._at = 0
        self._named = named
        self._values = 0
        self._most = MAX_FREE_VALUES + len(data)

    def value(self, schema: Any, depth: int) -> None:
        """Skip a value of the schema. depth: records, arrays and maps around it. Raises ValueError."""
        self._values += 1
        self._check_count(self._values)
        while True:
            if isinstance(schema, list):
                index = self._long()
                if not 0 <= index < len(schema):
                    raise ValueError(f"a union of {len(schema)} types has none at {index}")
                schema = schema[index]
                continue
            kind = schema["type"] if isinstance(schema, dict) else schema
            if isinstance(kind, (dict, list)):
                schema = kind
            elif kind in self._named:
                schema = self._named[kind]
            else:
                break
        if kind in _BYTES:
            self._skip(_BYTES[kind])
        elif kind in _VARINTS:
            self._long()
        elif kind in ("bytes", "string"):
            self._skip(self._long())
        elif kind == "fixed":
            self._skip(schema["size"])
        else:
            self._container(kind, schema, depth + 1)

    def _container(self, kind: str, schema: dict[str, Any], depth: int) -> None:
        if depth > MAX_NESTING:
            raise ValueError(f"its values are nested more than {MAX_NESTING} deep")
        if kind in ("record", "error"):
            for field in schema["fields"]:
                self.value(field["type"], depth)
            return
        while count := self._long():
            if count < 0:
                count = -count
                self._long()  # bytes of the block
            self._check_count(self._values + count)
            for _ in range(count):
                if kind == "map":
                    self._skip(self._long())
                self.value(schema["items" if kind == "array" else "values"], depth)

    def _check_count(self, values: int) -> None:
        if values > self._most:
            raise ValueError(f"it has more than {self._most} values")

    def _skip(self, size: int) -> None:
        if not 0 <= size <= len(self._data) - self._at:
            raise ValueError(f"it ends at byte {len(self._data)}, within a value of {size} bytes")
        self._at += size

    def _long(self) -> int:
        number = shift = 0
        while True:
            if self._at == len(self._data) or shift > 63:
                raise ValueError(f"at byte {self._at} a number is cut short or has more than 10 bytes")
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 127) << shift
            if byte < 128:
                return number >> 1 ^ -(number & 1)
            shift += 7
