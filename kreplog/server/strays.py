"""Strays: the replicas of one broker that no controller named any more, each renamed in its log directory.

They are kept for log.stray.retention.ms, so that a controller that was wrong costs no data: the core has one taken back
when it is named again. To put one back by hand, stop the broker and rename `<topic>-<partition>.<hex>-stray` to
`<topic>-<partition>`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kreplog.errors import StorageError
from kreplog.server.directories import DataDirectory, Stray
from kreplog.types import TopicPartition

_log = logging.getLogger("kreplog.server")

Found = tuple[DataDirectory, Stray]


class Strays:
    """retention_ms: -1 for ever. run: takes a call and its arguments, and runs it in a thread."""

    def __init__(self, retention_ms: int, run: Callable[..., Any]) -> None:
        self._retention_ms = retention_ms
        self._run = run
        self._strays: list[Found] = []

    def __len__(self) -> int:
        return len(self._strays)

    def keys(self) -> list[tuple[str, int]]:
        """Topic id and partition number of each."""
        return [(stray.topic_id, stray.partition) for _, stray in self._strays]

    def load(self, directory: DataDirectory) -> None:
        """Those that earlier lives left in a directory."""
        self._strays += [(directory, stray) for stray in directory.strays()]

    def add(self, directory: DataDirectory, path: Path, topic_id: str, partition: TopicPartition) -> None:
        """A replica has just been renamed to `path`."""
        self._strays.append((directory, Stray(path, topic_id, partition.partition, _now_ms())))

    def of(self, partition: TopicPartition, topic_id: str) -> list[Found]:
        """Those of a partition, oldest first; the id stands for the topic's name, which may be shortened in theirs."""
        key = topic_id, partition.partition
        return sorted(
            (one for one in self._strays if (one[1].topic_id, one[1].partition) == key), key=lambda one: one[1].since_ms
        )

    def restore(self, found: Found, partition: TopicPartition) -> Path:
        """Rename it back; the folder of the replica. Raises StorageError."""
        directory, stray = found
        folder = directory.restore(stray, partition)
        self._strays.remove(found)
        return folder

    def delete(self, found: Found) -> None:
        """Delete its files, in a thread. Raises StorageError."""
        directory, stray = found
        renamed = directory.mark_stray_deleted(stray)
        self._strays.remove(found)
        self._run(directory.remove, renamed)

    def remove_expired(self) -> None:
        """Delete those that have been strays for the retention time."""
        if self._retention_ms < 0:
            return
        for found in list(self._strays):
            directory, stray = found
            if not directory.failed and _now_ms() - stray.since_ms >= self._retention_ms:
                try:
                    self.delete(found)
                    _log.warning("%s has been a stray for log.stray.retention.ms: removed", stray.path)
                except StorageError as error:
                    _log.error("%s", error)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
