"""Registry: what numbers the schemas of records, as Confluent's Schema Registry does.

A subject is a name under which the versions of a schema are registered, "orders-value" for the values of the topic
"orders". Its schemas have numbers, ids, that no two schemas of the registry share.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable


class Reference(NamedTuple):
    """A schema that another imports. name: by which it does."""

    name: str
    subject: str
    version: int


class Schema(NamedTuple):
    """A schema as it is registered. kind: "AVRO" or "PROTOBUF". text: JSON; of Protobuf a .proto file, or its
    FileDescriptorProto in base64."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()


class SchemaVersion(NamedTuple):
    """Where a schema is registered. id: of the schema in the registry. version: in the subject, from 1 on."""

    id: int
    version: int


@runtime_checkable
class Registry(Protocol):
    """Thread-safe; what it has said of an id holds for good. Each of these raises SchemaRegistryError, StorageError."""

    def register(self, subject: str, schema: Schema) -> SchemaVersion:
        """The schema's place in the subject, where it is registered now if it was not. Called for each record that is
        encoded: it remembers what it has said."""
        ...

    def find(self, subject: str, schema: Schema) -> SchemaVersion | None:
        """As `register`, without registering it: None where it is not. Called for each key that is looked up."""
        ...

    def schema(self, schema_id: int) -> Schema | None:
        """The schema with this id, None where there is none."""
        ...

    def version(self, subject: str, version: int) -> Schema | None:
        """A version of a subject, None where there is none."""
        ...

    def has_subject(self, subject: str) -> bool:
        """Whether a schema is registered in the subject."""
        ...
