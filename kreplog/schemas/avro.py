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
from kreplog.schemas.registry import Registry, Schema
from kreplog.schemas.subjects import RegistryLike, subject_of

AvroSchema: TypeAlias = str | Mapping[str, Any] | Sequence[Any]
"""As fastavro takes it, such as "string" or a dict; or in JSON."""

CACHED_SCHEMAS = 1000


class Avro(TopicCodec):
    """Of objects as fastavro has them: a record is a dict. A record is read by the schema that it was written with, and
    converted to `schema` by Avro's rules of schema resolution.

    schema: the program's own; None to read what was written as it is, and append nothing. registry: its URL, or an
    object; by default the file `<folder>/kreplog.schemas`. subject: by default `<topic>-key` or `<topic>-value`.
    Raises UsageError where fastavro is not installed, or does not take the schema.
    """

    def __init__(self, schema: AvroSchema | None, registry: RegistryLike = None, *, subject: str | None = None) -> None:
        self._registry = registry
        self._subject = subject
        self._schema = None if schema is None else Schema("AVRO", _normalized(schema))
        self._parsed = None if self._schema is None else _parsed(self._schema.text, {})

    def for_topic(self, path: str, field: str) -> ObjectCodec:
        fastavro = _fastavro()
        schema = self._schema
        subject = subject_of(path, field, self._registry, self._subject)
        readers = _readers(subject.registry, self._parsed)

        def encode(item: Any) -> bytes:
            if schema is None:
                raise TypeError("the codec has no schema of its own to append by")
            buffer = io.BytesIO()
            fastavro.schemaless_writer(buffer, self._parsed, {"item": item}, strict_allow_default=True)
            return wire_format.with_id(subject.register(schema).id, buffer.getvalue())

        def decode(data: bytes) -> Any:
            schema_id, payload = wire_format.id_and_payload(data)
            return readers(schema_id)(payload)

        return ObjectCodec("Avro", encode, decode)


def _readers(registry: Registry, reader_schema: Any) -> Callable[[int], Callable[[bytes], Any]]:
    """What reads a record, by the id of the schema that it was written with; to `reader_schema`, if that is given."""
    fastavro = _fastavro()

    @lru_cache(CACHED_SCHEMAS)
    def reader_of(schema_id: int) -> Callable[[bytes], Any]:
        schema = registry.schema(schema_id)
        if schema is None or schema.kind != "AVRO":
            raise ValueError(f"{registry} has no Avro schema of id {schema_id}")
        try:
            named: dict[str, Any] = {}
            _parse_references(registry, schema, named)
            writer_schema = _parsed(schema.text, named)
        except UsageError as error:
            raise SchemaRegistryError(f"{registry}: schema {schema_id} cannot be used: {error}") from error

        def read(payload: bytes) -> Any:
            stream = io.BytesIO(payload)
            item = fastavro.schemaless_reader(stream, writer_schema, reader_schema)["item"]
            if rest := stream.read():
                raise ValueError(f"{len(rest)} bytes follow what schema {schema_id} describes")
            return item

        return read

    return reader_of


def _parse_references(registry: Registry, schema: Schema, named: dict[str, Any]) -> None:
    for reference in schema.references:
        found = registry.version(reference.subject, reference.version)
        if found is None:
            raise UsageError(f"there is no version {reference.version} of {reference.subject}")
        _parse_references(registry, found, named)
        _parsed(found.text, named)


def _normalized(schema: AvroSchema) -> str:
    """The same text for the same schema, as far as that is one of JSON."""
    try:
        if isinstance(schema, str) and schema.lstrip()[:1] in ('"', "{", "["):
            schema = json.loads(schema)
        return json.dumps(_without_hints(schema), sort_keys=True)
    except (ValueError, TypeError) as error:
        raise UsageError(f"the Avro schema is no JSON: {error}") from error


def _without_hints(schema: Any) -> Any:
    """What fastavro notes in a schema that it has parsed is no part of it; `{"type": "string"}` is "string"."""
    if isinstance(schema, Mapping):
        found = {key: _without_hints(value) for key, value in schema.items() if not key.startswith("__")}
        return found["type"] if found.keys() == {"type"} else found
    return list(map(_without_hints, schema)) if isinstance(schema, Sequence) and not isinstance(schema, str) else schema


def _parsed(text: str, named: dict[str, Any]) -> Any:
    """Of a record with one field, which has the same bytes, since fastavro finds named types from a record alone.
    named: those that the schema may use; the ones that it defines are added. Raises UsageError."""
    try:
        schema = {"type": "record", "name": "kreplog_item", "fields": [{"name": "item", "type": json.loads(text)}]}
        return _fastavro().parse_schema(schema, named_schemas=named)
    except Exception as error:  # fastavro raises what it meets
        raise UsageError(f"fastavro does not take the Avro schema: {error}") from error


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise UsageError("Avro needs its package: pip install 'kreplog[schemas]'") from error
    return fastavro
