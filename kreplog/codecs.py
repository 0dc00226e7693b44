"""Codecs of keys and values: what a program appends and reads, as the bytes that a record has.

A codec is a name of CODECS, a ObjectCodec, or a pair of functions (encode, decode). None is a null key or value, a
tombstone, in every codec: it is stored as null and read as None.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from kreplog.errors import ArgumentTypeError, RecordEncodeError, UsageError

__all__ = ["CODECS", "CodecLike", "ObjectCodec", "codec_of"]


@dataclass(frozen=True, slots=True)
class ObjectCodec:
    """How an object becomes bytes and comes back. name: for errors.

    encode: from an object, never None, to bytes-like. decode: from bytes. Each may raise any Exception for what it
    does not take.
    """

    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[bytes], Any]

    def encoded(self, item: object, field: str) -> Any:
        """`item` as bytes-like; None as None. field: "key" or "value". Raises RecordEncodeError."""
        if item is None:
            return None
        try:
            return self.encode(item)
        except Exception as error:
            raise RecordEncodeError(
                f"the {field}, of type {type(item).__name__}, cannot be encoded as {self.name}: {error}"
            ) from error


CodecLike: TypeAlias = str | ObjectCodec | tuple[Callable[[Any], Any], Callable[[bytes], Any]] | None
"""What is taken for a codec; None for bytes as they are."""


def _text() -> ObjectCodec:
    return ObjectCodec("str", lambda text: str.encode(text), lambda data: data.decode())


def _json() -> ObjectCodec:
    """By orjson where that is installed (`pip install 'kreplog[codecs]'`), else by the standard library."""
    try:
        import orjson
    except ImportError:
        encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return ObjectCodec("json", lambda item: encoder.encode(item).encode(), json.loads)
    return ObjectCodec("json", orjson.dumps, orjson.loads)


def _msgpack() -> ObjectCodec:
    try:
        import msgpack
    except ImportError as error:
        raise UsageError("the codec 'msgpack' needs its package: pip install 'kreplog[codecs]'") from error
    return ObjectCodec("msgpack", msgpack.packb, msgpack.unpackb)


CODECS: dict[str, Callable[[], ObjectCodec | None]] = {
    "bytes": lambda: None,
    "str": _text,
    "json": _json,
    "msgpack": _msgpack,
}
"""Codecs by name; "str" is UTF-8."""


def codec_of(given: CodecLike, name: str) -> ObjectCodec | None:
    """The codec that a caller gave as the argument `name`; None for bytes. Raises ArgumentTypeError, UsageError."""
    if given is None or isinstance(given, ObjectCodec):
        return given
    if isinstance(given, str):
        if given not in CODECS:
            raise UsageError(f"{name} = {given!r} is not known; known are {', '.join(CODECS)}")
        return CODECS[given]()
    pair: object = given
    if isinstance(pair, tuple) and len(pair) == 2 and all(map(callable, pair)):
        return ObjectCodec(f"the given {name}", *pair)
    raise ArgumentTypeError(
        f"{name} is a name ({', '.join(CODECS)}), a ObjectCodec, or a pair of functions (encode, decode), not {given!r}"
    )
