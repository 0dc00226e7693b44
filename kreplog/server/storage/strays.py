"""Strays: replicas of one broker that a controller no longer assigned to it, renamed in their log directory.

Stray replicas are kept for log.stray.retention.ms, so that a wrong controller loses no data: a stray that is assigned
again is restored. To restore one by hand, stop the broker and rename `<topic>-<partition>.<hex>-stray` to
`<topic>-<partition>`. Source: Kafka's stray replicas (KAFKA-16234).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kreplog.core.broker.stray_retention import is_expired
from kreplog.errors import StorageError
from kreplog.server.clock import wall_clock_ms
from kreplog.server.storage.directories import DataDirectory, Stray
from kreplog.types import TopicPartition

_log = logging.getLogger("kreplog.server")

Found = tuple[DataDirectory, Stray]


class Strays:
    """The strays of all log directories. retention_ms: -1 for ever. run: runs a callable with its arguments in a
    thread."""

    def __init__(self, retention_ms: int, run: Callable[..., Any]) -> None:
        self._retention_ms = retention_ms
        self._run = run
        self._strays: list[Found] = []

    def __len__(self) -> int:
        return len(self._strays)

    def keys(self) -> list[tuple[str, int]]:
        """(topic id, partition number) of each stray."""
        return [(stray.topic_id, stray.partition) for _, stray in self._strays]

    def load(self, directory: DataDirectory) -> None:
        """Add the strays that are found in a log directory at the start."""
        self._strays += [(directory, stray) for stray in directory.strays()]

    def add(self, directory: DataDirectory, path: Path, topic_id: str, partition: TopicPartition) -> None:
        """Add a replica that has just been renamed to `path`."""
        self._strays.append((directory, Stray(path, topic_id, partition.partition, wall_clock_ms())))

    def find(self, partition: TopicPartition, topic_id: str) -> list[Found]:
        """Strays of a partition, oldest first. They are found by topic id, since the name of a stray's directory may
        hold a shortened topic name."""
        key = topic_id, partition.partition
        return sorted(
            (found for found in self._strays if (found[1].topic_id, found[1].partition) == key),
            key=lambda found: found[1].since_ms,
        )

    def restore(self, found: Found, partition: TopicPartition) -> Path:
        """Rename a stray back to its replica's directory, which is returned. Raises StorageError."""
        directory, stray = found
        folder = directory.restore(stray, partition)
        self._strays.remove(found)
        return folder

    def delete(self, found: Found) -> None:
        """Rename a stray for deletion, and delete its files in a thread. Raises StorageError: it stays a stray."""
        directory, stray = found
        renamed = directory.mark_stray_deleted(stray)
        self._strays.remove(found)
        self._run(directory.remove, renamed)

    def remove_expired(self) -> None:
        """Delete the strays that are older than the retention time."""
        for found in list(self._strays):
            directory, stray = found
            if not directory.failed and is_expired(stray.since_ms, wall_clock_ms(), self._retention_ms):
                try:
                    self.delete(found)
                    _log.warning("%s: deleted, a stray for log.stray.retention.ms (%d)", stray.path, self._retention_ms)
                except StorageError as error:
                    _log.error("%s", error)
