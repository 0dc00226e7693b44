"""Subject: under which name, and in which registry, the schemas of a topic's keys or values are."""

from __future__ import annotations

import os
from typing import TypeAlias

from kreplog.errors import ArgumentTypeError
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
        self._registered: dict[tuple[str, Schema], SchemaVersion] = {}

    def register(self, schema: Schema, name: str | None = None) -> SchemaVersion:
        """Once in this process. name: of another subject. Raises SchemaRegistryError, StorageError."""
        at = (name or self.name, schema)
        if at not in self._registered:
            self._registered[at] = self.registry.register(*at)
        return self._registered[at]


def subject_of(path: str, field: str, registry: RegistryLike, name: str | None) -> Subject:
    """Of the topic at `<folder>/<topic>`, by Confluent's TopicNameStrategy. Raises ArgumentTypeError, UsageError."""
    folder, topic = os.path.split(path)
    if registry is None:
        registry = SchemaFile(os.path.join(folder, SCHEMA_FILE))
    elif isinstance(registry, str):
        registry = HttpRegistry(registry)
    elif not isinstance(registry, Registry):
        raise ArgumentTypeError(f"registry is a URL or a Registry, not {type(registry).__name__}")
    return Subject(registry, name or f"{topic}-{field}")
