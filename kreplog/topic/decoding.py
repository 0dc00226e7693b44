"""Records of a topic with their keys and values decoded; and what becomes of one that cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from kreplog.codecs import ObjectCodec
from kreplog.errors import ArgumentTypeError, KreplogError, RecordDecodeError, UsageError
from kreplog.topic.merge import TopicRecord
from kreplog.types import TopicPartition

OnError: TypeAlias = str | Callable[[RecordDecodeError], object]
"""What to do with a record that does not decode: "raise", "skip", or a function that is given the error."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """The codecs of a topic, None for bytes."""

    topic: str
    key_codec: ObjectCodec | None
    value_codec: ObjectCodec | None

    def decoded(self, records: Iterator[TopicRecord], on_error: OnError) -> Iterator[TopicRecord]:
        """The records, decoded. Raises UsageError, ArgumentTypeError; while iterating RecordDecodeError."""
        check_on_error(on_error)
        if self.key_codec is None and self.value_codec is None:
            return records
        return self._decoded(records, on_error)

    def _decoded(self, records: Iterator[TopicRecord], on_error: OnError) -> Iterator[TopicRecord]:
        for record in records:
            try:
                key = self.field(record, "key")
                value = self.field(record, "value")
            except RecordDecodeError as error:
                if on_error == "raise":
                    raise
                if callable(on_error):
                    on_error(error)
                continue
            yield record._replace(key=key, value=value)

    def field(self, record: TopicRecord, field: str) -> object:
        """The key or value of a record, decoded. Raises RecordDecodeError; what else has failed, such as a
        SchemaRegistryError, as it is: the record is not skipped for it."""
        codec, data = (self.key_codec, record.key) if field == "key" else (self.value_codec, record.value)
        if codec is None or data is None:
            return data
        try:
            return codec.decode(data)
        except KreplogError:
            raise
        except Exception as error:
            at = TopicPartition(self.topic, record.partition)
            raise RecordDecodeError(
                f"{at}: the {field} of the record at offset {record.offset}, of {len(data)} bytes, is not "
                f"{codec.name}: {error}; on_error='skip' or a function reads on past it",
                partition=str(at),
                offset=record.offset,
                field=field,
                record=record,
            ) from error


def check_on_error(on_error: OnError) -> None:
    """Raises UsageError, ArgumentTypeError unless on_error is 'raise', 'skip' or callable."""
    if isinstance(on_error, str):
        if on_error not in ("raise", "skip"):
            raise UsageError(f"on_error is 'raise', 'skip' or a function, not {on_error!r}")
    elif not callable(on_error):
        raise ArgumentTypeError(f"on_error is 'raise', 'skip' or a function, not {on_error!r}")
