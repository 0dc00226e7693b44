"""Codecs of keys and values: what a program appends and reads, as the bytes that a record has.

A codec is a name of CODECS, an ObjectCodec, a TopicCodec, or a pair of functions (encode, decode). None is a null key
or value, a tombstone, in every codec: it is stored as null and read as None.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from kreplog.errors import ArgumentTypeError, KreplogError, RecordEncodeError, UsageError

__all__ = ["CODECS", "CodecLike", "ObjectCodec", "TopicCodec", "codec_of"]


@dataclass(frozen=True, slots=True)
class ObjectCodec:
    """An encoding of objects as bytes. name: for errors.

    encode: from an object, never None, to bytes-like. decode: from bytes. Each may raise any Exception for what it
    does not take; a KreplogError is raised as it is: something else has failed, such as a registry of schemas.
    find: as `encode`, to look a key up, where that differs: it changes nothing, and is None for a key that no record
    can have yet.
    """

    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[bytes], Any]
    find: Callable[[Any], Any] | None = None

    def encoded(self, item: object, field: str) -> Any:
        """`item` as bytes-like; None as None. field: "key" or "value". Raises RecordEncodeError."""
        return self._encoded(item, field, self.encode)

    def encoded_to_find(self, item: object, field: str) -> Any:
        """As `encoded`, to look for it; None where no record has it."""
        return self._encoded(item, field, self.find or self.encode)

    def _encoded(self, item: object, field: str, encode: Callable[[Any], Any]) -> Any:
        if item is None:
            return None
        try:
            return encode(item)
        except KreplogError:
            raise
        except Exception as error:
            raise RecordEncodeError(
                f"the {field}, of type {type(item).__name__}, cannot be encoded as {self.name}: {error}"
            ) from error


class TopicCodec(ABC):
    """A codec that depends on the topic, such as by the schemas that are registered for it."""

    @abstractmethod
    def for_topic(self, path: str, field: str) -> ObjectCodec:
        """The codec of keys or values of a topic.

        path: `<folder>/<topic>`. field: "key" or "value". Raises UsageError."""


CodecLike: TypeAlias = str | ObjectCodec | TopicCodec | tuple[Callable[[Any], Any], Callable[[bytes], Any]] | None
"""What is taken for a codec; None for bytes as they are."""


def _text() -> ObjectCodec:
    return ObjectCodec("str", lambda text: str.encode(text), lambda data: data.decode())


def _json() -> ObjectCodec:
    """JSON, by orjson if that is installed (`pip install 'kreplog[codecs]'`), else by the standard library."""
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


def codec_of(given: CodecLike, field: str, path: str) -> ObjectCodec | None:
    """The codec that a caller gave for the keys or values of the topic at `<folder>/<topic>`; None for bytes. field:
    "key" or "value". Raises ArgumentTypeError, UsageError."""
    if given is None or isinstance(given, ObjectCodec):
        return given
    if isinstance(given, TopicCodec):
        return given.for_topic(path, field)
    if isinstance(given, str):
        if given not in CODECS:
            raise UsageError(f"{field}_codec = {given!r} is not known; known are {', '.join(CODECS)}")
        return CODECS[given]()
    pair: object = given
    if isinstance(pair, tuple) and len(pair) == 2 and all(map(callable, pair)):
        return ObjectCodec(f"the given {field}_codec", *pair)
    raise ArgumentTypeError(
        f"{field}_codec is a name ({', '.join(CODECS)}), a codec of kreplog.codecs or kreplog.schemas, or a pair of "
        f"functions (encode, decode), not {given!r}"
    )
