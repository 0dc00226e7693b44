"""The files of a sink's commit: the job that is committed and not yet complete, and the one that was completed last.

    <path>/.kreplog-writes/commit      the job, what it appends to each partition, and as which writer and sequence
                           completed   the name of the latest job that all partitions show

Both are replaced whole. Nothing here knows of Spark.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kreplog.bulk_append import atomic_write
from kreplog.errors import CorruptCheckpointError
from pyspark_kreplog.staging import Extent

COMMIT_NAME = "commit"
COMPLETED_NAME = "completed"


@dataclass(frozen=True, slots=True)
class PartitionAppend:
    """The rows that a job appends to one partition, and as which writer and sequence."""

    topic: str
    partition: int
    writer: str
    sequence: int
    extents: list[Extent]

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def records(self) -> int:
        return sum(extent.records for extent in self.extents)


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """A job at its commit. query_id, batch_id: of a stream, else None. max_message_bytes: that its batches need."""

    job: str
    query_id: str | None
    batch_id: int | None
    max_message_bytes: int
    appends: list[PartitionAppend]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> CommitRecord:
        appends = [
            PartitionAppend(**{**append, "extents": [Extent(**extent) for extent in append["extents"]]})
            for append in content["appends"]
        ]
        return cls(content["job"], content["query_id"], content["batch_id"], content["max_message_bytes"], appends)


def read_file(path: Path) -> bytes | None:
    """The content, None where there is no file."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def decode(path: Path, data: bytes) -> Any:
    """The document that `encode_to` wrote into `path`. Raises CorruptCheckpointError."""
    checksum, _, body = data.partition(b" ")
    if checksum != b"%08x" % zlib.crc32(body):
        raise CorruptCheckpointError(f"{path} is damaged: its checksum does not match", path=str(path))
    return json.loads(body)


def encode_to(path: Path, content: Any) -> None:
    """Replace the file, atomically and durably. Raises StorageError."""
    body = json.dumps(content, separators=(",", ":")).encode()
    atomic_write(str(path), b"%08x " % zlib.crc32(body) + body)
