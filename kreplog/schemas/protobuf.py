"""Protobuf: a codec of records that are Protobuf messages."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

from kreplog.codecs import ObjectCodec, TopicCodec
from kreplog.errors import ArgumentTypeError, UsageError
from kreplog.schemas import wire_format
from kreplog.schemas.registry import Reference, Schema, SchemaVersion
from kreplog.schemas.subjects import RegistryLike, Subject, subject_of

BUILT_IN = "google/protobuf/"
"""Files that every implementation has, and no registry."""

CACHED_SCHEMAS = 1000


class Protobuf(TopicCodec):
    """A codec of messages of one class. Fields that the class does not know come back when such a message is appended
    again.

    message: the class, as protoc generates it. registry: its URL, or an object; by default the file
    `<folder>/kreplog.schemas`. subject: by default `<topic>-key` or `<topic>-value`; the files that the message's
    imports are registered under their own names. A record of another message does not decode, where the registry has
    the descriptor; of a .proto text, as Java programs register it, the record is taken for a `message`.
    Raises UsageError where protobuf is not installed, ArgumentTypeError.
    """

    def __init__(self, message: type[Any], registry: RegistryLike = None, *, subject: str | None = None) -> None:
        try:
            from google.protobuf.message import Message
        except ImportError as error:
            raise UsageError("Protobuf needs its package: pip install 'kreplog[schemas]'") from error
        given: object = message
        if not isinstance(given, type) or not issubclass(given, Message) or given is Message:
            raise ArgumentTypeError(f"message is a class that protoc generates, not {given!r}")
        self._message = message
        self._registry = registry
        self._subject = subject

    def for_topic(self, path: str, field: str) -> ObjectCodec:
        message = self._message
        name = message.DESCRIPTOR.full_name
        subject = subject_of(path, field, self._registry, self._subject)
        indexes = wire_format.encoded_indexes(tuple(_indexes(message.DESCRIPTOR)))
        written_name = _written_names(subject)
        file = message.DESCRIPTOR.file

        known: Schema | None = None

        def schema(place_of: Callable[[Schema, str], SchemaVersion | None]) -> Schema | None:
            nonlocal known
            if known is None:
                known = _schema(file, place_of)
            return known

        def payload_of(item: Any) -> bytes:
            if not isinstance(item, message):
                raise TypeError(f"it is no {name}")
            data: bytes = item.SerializeToString(deterministic=True)  # of a key, equal bytes
            return indexes + data

        def encode(item: Any) -> bytes:
            payload = payload_of(item)
            registered = schema(subject.register)
            assert registered is not None
            return wire_format.with_id(subject.register(registered).id, payload)

        def find(item: Any) -> bytes | None:
            payload = payload_of(item)
            found = schema(subject.find)
            place = None if found is None else subject.find(found)
            return None if place is None else wire_format.with_id(place.id, payload)

        def decode(data: bytes) -> Any:
            written_id, payload = wire_format.id_and_payload(data)
            written, payload = wire_format.decoded_indexes(payload)
            is_a = written_name(written_id, written)
            if is_a not in (name, None):
                raise ValueError(f"it is a {is_a}, not a {name}")
            return message.FromString(payload)

        return ObjectCodec(f"Protobuf message {name}", encode, decode, find)


def _indexes(descriptor: Any) -> Iterable[int]:
    """Where a message is in its file, outermost first."""
    outer = descriptor.containing_type
    if outer is None:
        yield list(descriptor.file.message_types_by_name).index(descriptor.name)
    else:
        yield from _indexes(outer)
        yield [nested.name for nested in outer.nested_types].index(descriptor.name)


def _text(file: Any) -> str:
    return base64.b64encode(file.serialized_pb).decode()


def _schema(file: Any, place_of: Callable[[Schema, str], SchemaVersion | None]) -> Schema | None:
    """The schema of a file, which refers to those that it imports; None where one of them has no place."""
    references = []
    for imported in file.dependencies:
        if not imported.name.startswith(BUILT_IN):
            schema = _schema(imported, place_of)
            place = None if schema is None else place_of(schema, imported.name)
            if place is None:
                return None
            references.append(Reference(imported.name, imported.name, place.version))
    return Schema("PROTOBUF", _text(file), tuple(references))


def _written_names(subject: Subject) -> Callable[[int, tuple[int, ...]], str | None]:
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
    from google.protobuf.message import DecodeError

    @lru_cache(CACHED_SCHEMAS)
    def written_name(schema_id: int, indexes: tuple[int, ...]) -> str | None:
        """The full name of the message; None where the registry has a .proto text."""
        schema = subject.schema(schema_id, "Protobuf")
        try:
            file = FileDescriptorProto.FromString(base64.b64decode(schema.text, validate=True))
        except (ValueError, DecodeError):
            return None
        names = [file.package] if file.package else []
        messages: list[DescriptorProto] = list(file.message_type)
        for index in indexes:
            if index >= len(messages):
                raise ValueError(f"schema {schema_id} has no message {indexes}")
            names.append(messages[index].name)
            messages = list(messages[index].nested_type)
        return ".".join(names)

    return written_name
