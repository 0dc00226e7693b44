"""Avro: a codec of records that have an Avro schema, by fastavro."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

from kreplog.codecs import ObjectCodec, TopicCodec
from kreplog.errors import UsageError
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
    object; by default the file `<folder>/<topic>.schemas`. subject: by default `<topic>-key` or `<topic>-value`.
    Raises UsageError where fastavro is not installed, or does not take the schema.
    """

    def __init__(self, schema: AvroSchema | None, registry: RegistryLike = None, *, subject: str | None = None) -> None:
        self._registry = registry
        self._subject = subject
        self._schema = None if schema is None else Schema("AVRO", _normalized(schema))
        self._parsed = None if self._schema is None else _parsed(json.loads(self._schema.text))

    def for_topic(self, path: str, field: str) -> ObjectCodec:
        fastavro = _fastavro()
        schema = self._schema
        subject = subject_of(path, field, self._registry, self._subject)
        readers = _readers(subject.registry, self._parsed)

        def encode(item: Any) -> bytes:
            if schema is None:
                raise TypeError("the codec has no schema of its own to append by")
            buffer = io.BytesIO()
            fastavro.schemaless_writer(buffer, self._parsed, item, strict_allow_default=True)
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
        named: dict[str, Any] = {}
        _parse_references(registry, schema, named)
        writer_schema = fastavro.parse_schema(json.loads(schema.text), named_schemas=named)

        def read(payload: bytes) -> Any:
            stream = io.BytesIO(payload)
            item = fastavro.schemaless_reader(stream, writer_schema, reader_schema)
            if rest := stream.read():
                raise ValueError(f"{len(rest)} bytes follow what schema {schema_id} describes")
            return item

        return read

    return reader_of


def _parse_references(registry: Registry, schema: Schema, named: dict[str, Any]) -> None:
    for reference in schema.references:
        found = registry.version(reference.subject, reference.version)
        if found is None:
            raise ValueError(f"{registry} has no version {reference.version} of {reference.subject}")
        _parse_references(registry, found, named)
        _fastavro().parse_schema(json.loads(found.text), named_schemas=named)


def _normalized(schema: AvroSchema) -> str:
    """The same text for the same schema, as far as that is one of JSON."""
    try:
        if isinstance(schema, str) and schema.lstrip()[:1] in ('"', "{", "["):
            schema = json.loads(schema)
        return json.dumps(schema, sort_keys=True)
    except (ValueError, TypeError) as error:
        raise UsageError(f"the Avro schema is no JSON: {error}") from error


def _parsed(schema: Any) -> Any:
    try:
        return _fastavro().parse_schema(schema)
    except Exception as error:  # fastavro raises what it meets
        raise UsageError(f"fastavro does not take the Avro schema: {error}") from error


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise UsageError("Avro needs its package: pip install 'kreplog[schemas]'") from error
    return fastavro
