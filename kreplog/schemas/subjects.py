"""Subject: under which name, and in which registry, the schemas of a topic's keys or values are."""

from __future__ import annotations

import os
from typing import TypeAlias

from kreplog.errors import ArgumentTypeError, SchemaRegistryError
from kreplog.schemas.http_registry import HttpRegistry
from kreplog.schemas.registry import Registry, Schema, SchemaVersion
from kreplog.schemas.schema_file import SchemaFile

RegistryLike: TypeAlias = str | Registry | None
"""A registry, its URL, or None for the file of the topic's folder."""

SCHEMA_FILE = "kreplog.schemas"


class Subject:
    """A subject of a registry. Thread-safe."""

    def __init__(self, registry: Registry, name: str) -> None:
        self.registry = registry
        self.name = name
        self._is_known = False

    def register(self, schema: Schema, name: str | None = None) -> SchemaVersion:
        """Register a schema. name: of another subject. Raises SchemaRegistryError, StorageError."""
        return self.registry.register(name or self.name, schema)

    def find(self, schema: Schema, name: str | None = None) -> SchemaVersion | None:
        return self.registry.find(name or self.name, schema)

    def schema(self, schema_id: int, kind: str) -> Schema:
        """The schema of a record. kind: "Avro" or "Protobuf". Raises SchemaRegistryError, StorageError; ValueError
        where the registry does not have it and has the subject: it is the right one, and the record is at fault."""
        found = self.registry.schema(schema_id)
        if found is not None and found.kind == kind.upper():
            return found
        fault = f"{self.registry} has no {kind} schema of id {schema_id}"
        self._is_known = self._is_known or self.registry.has_subject(self.name)
        if self._is_known:
            raise ValueError(fault)
        raise SchemaRegistryError(
            f"{fault}, nor the subject {self.name}: give the registry with which the record was written, or, where it "
            "is this one, a subject of it: subject=NAME"
        )


def subject_of(path: str, field: str, registry: RegistryLike, name: str | None) -> Subject:
    """The subject of the topic at `<folder>/<topic>`, by Confluent's TopicNameStrategy. Raises ArgumentTypeError,
    UsageError."""
    folder, topic = os.path.split(path)
    if registry is None:
        registry = SchemaFile(os.path.join(folder, SCHEMA_FILE))
    elif isinstance(registry, str):
        registry = HttpRegistry(registry)
    elif not isinstance(registry, Registry):
        raise ArgumentTypeError(f"registry is a URL or a Registry, not {type(registry).__name__}")
    return Subject(registry, name or f"{topic}-{field}")
