"""Avro: a codec of records that have an Avro schema, by fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from kreplog.codecs import ObjectCodec, TopicCodec
from kreplog.errors import SchemaRegistryError, UsageError
from kreplog.schemas import wire_format
from kreplog.schemas.avro_limits import AvroLimits, parsed_json
from kreplog.schemas.registry import Registry, Schema
from kreplog.schemas.subjects import RegistryLike, Subject, subject_of

AvroSchema: TypeAlias = str | Mapping[str, Any] | Sequence[Any]
"""As fastavro takes it, such as "string" or a dict; or in JSON."""

CACHED_SCHEMAS = 1000
MAX_REFERENCES = 100


class Avro(TopicCodec):
    """A codec of objects as fastavro has them: a record is a dict. A record is read by the schema that it was written
    with, and converted to `schema` by Avro's rules of schema resolution.

    schema: the program's own; None to read what was written as it is, and append nothing. registry: its URL, or an
    object; by default the file `<folder>/kreplog.schemas`. subject: by default `<topic>-key` or `<topic>-value`.
    Raises UsageError where fastavro is not installed, or does not take the schema.
    """

    def __init__(self, schema: AvroSchema | None, registry: RegistryLike = None, *, subject: str | None = None) -> None:
        self._registry = registry
        self._subject = subject
        self._schema = None if schema is None else Schema("AVRO", _normalized(schema))
        self._parsed = None if self._schema is None else _own(self._schema.text)

    def for_topic(self, path: str, field: str) -> ObjectCodec:
        _fastavro()  # where it is missing, that is an error here, not at the first record
        schema = self._schema
        subject = subject_of(path, field, self._registry, self._subject)
        readers = _readers(subject, None if self._parsed is None else self._parsed.schema)

        def payload_of(item: Any) -> bytes:
            if self._parsed is None:
                raise TypeError("the codec has no schema of its own to append by")
            return self._parsed.encoded(item)

        def encode(item: Any) -> bytes:
            payload = payload_of(item)
            assert schema is not None
            return wire_format.with_id(subject.register(schema).id, payload)

        def find(item: Any) -> bytes | None:
            payload = payload_of(item)
            assert schema is not None
            registered = subject.find(schema)
            return None if registered is None else wire_format.with_id(registered.id, payload)

        def decode(data: bytes) -> Any:
            schema_id, payload = wire_format.id_and_payload(data)
            return readers(schema_id)(payload)

        return ObjectCodec("Avro", encode, decode, find)


class _Parsed:
    """A schema that fastavro takes, of a record with one field, which has the same bytes, since fastavro finds named
    types from a record alone.

    named: types that the schema may use; those that it defines are added. Raises ValueError.
    """

    def __init__(self, text: str, named: dict[str, Any]) -> None:
        schema = {"type": "record", "name": "kreplog_item", "fields": [{"name": "item", "type": parsed_json(text)}]}
        self._fastavro = _fastavro()
        try:
            self.schema = self._fastavro.parse_schema(schema, named_schemas=named)
            self.limits = AvroLimits(self.schema["fields"][0]["type"], named)
        except Exception as error:  # fastavro raises what it meets
            raise ValueError(f"the Avro schema cannot be used: {error}") from error

    def encoded(self, item: Any) -> bytes:
        self.limits.check_item(item)
        buffer = io.BytesIO()
        self._fastavro.schemaless_writer(buffer, self.schema, {"item": item}, strict_allow_default=True)
        return buffer.getvalue()

    def decoded(self, payload: bytes, reader_schema: Any) -> Any:
        """Converted to `reader_schema`, if that is given. Raises any Exception."""
        self.limits.check_data(payload)
        stream = io.BytesIO(payload)
        item = self._fastavro.schemaless_reader(stream, self.schema, reader_schema)["item"]
        if rest := stream.read():
            raise ValueError(f"{len(rest)} bytes follow what its schema describes")
        return item


def _readers(subject: Subject, reader_schema: Any) -> Callable[[int], Callable[[bytes], Any]]:
    """The readers of records, by the id of the schema that these were written with; to `reader_schema`, if that is
    given."""

    @lru_cache(CACHED_SCHEMAS)
    def reader_of(schema_id: int) -> Callable[[bytes], Any]:
        schema = subject.schema(schema_id, "Avro")
        named: dict[str, Any] = {}
        try:
            _add_references(subject.registry, schema, named, set())
            writer = _Parsed(schema.text, named)
        except ValueError as error:
            raise ValueError(f"{subject.registry}: schema {schema_id}: {error}") from error
        return lambda payload: writer.decoded(payload, reader_schema)

    return reader_of


def _add_references(registry: Registry, schema: Schema, named: dict[str, Any], seen: set[tuple[str, int]]) -> None:
    """Add to `named` the types of the schemas that a schema refers to. Raises ValueError, SchemaRegistryError."""
    for _, subject, version in schema.references:
        if (subject, version) in seen:
            continue
        seen.add((subject, version))
        if len(seen) > MAX_REFERENCES:
            raise ValueError(f"it refers to more than {MAX_REFERENCES} others")
        found = registry.version(subject, version)
        if found is None:
            raise SchemaRegistryError(f"{registry} has no version {version} of {subject}, to which a schema refers")
        _add_references(registry, found, named, seen)
        _Parsed(found.text, named)


def _own(text: str) -> _Parsed:
    try:
        return _Parsed(text, {})
    except ValueError as error:
        raise UsageError(str(error)) from error


def _normalized(schema: AvroSchema) -> str:
    """The same text for the same schema, as far as that is one of JSON."""
    try:
        if isinstance(schema, str) and schema.lstrip()[:1] in ('"', "{", "["):
            schema = json.loads(schema)
        return json.dumps(_without_hints(schema), sort_keys=True)
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"the Avro schema is no JSON: {error}") from error


def _without_hints(schema: Any) -> Any:
    """A schema without the notes of fastavro, which has parsed it; `{"type": "string"}` is "string"."""
    if isinstance(schema, Mapping):
        found = {key: _without_hints(value) for key, value in schema.items() if not key.startswith("__")}
        return found["type"] if found.keys() == {"type"} else found
    return list(map(_without_hints, schema)) if isinstance(schema, Sequence) and not isinstance(schema, str) else schema


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise UsageError("Avro needs its package: pip install 'kreplog[schemas]'") from error
    return fastavro
