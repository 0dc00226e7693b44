"""Schemas of keys and values: Avro and Protobuf, in the wire format of Confluent's serializers.

A record names its schema by a number. The schemas are in a registry, which is given by its URL, or in a file of the
topic's folder. Needs the extra `schemas`.
"""

from kreplog.schemas.avro import Avro
from kreplog.schemas.http_registry import HttpRegistry
from kreplog.schemas.protobuf import Protobuf
from kreplog.schemas.registry import Reference, Registry, Schema, SchemaVersion
from kreplog.schemas.schema_file import SchemaFile

__all__ = ["Avro", "HttpRegistry", "Protobuf", "Reference", "Registry", "Schema", "SchemaFile", "SchemaVersion"]
