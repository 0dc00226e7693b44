"""Partition logs for whoever looks once at thousands of them: small ones are not opened for their offsets."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence

from kreplog._native.lookup import OffsetRange
from kreplog._native.published import PublishedOffsets, published_offsets
from kreplog.closing import Closing
from kreplog.file_systems import network_mount_of
from kreplog.log import Log
from kreplog.types import TopicPartition

__all__ = ["SmallLog", "open_to_plan"]


def open_to_plan(path: str, partition: TopicPartition, small_bytes: int) -> SmallLog | Log:
    """The log of `partition` in the directory `path`, to be read: a SmallLog if all of its records are committed and in
    one segment of at most `small_bytes`, else open. Raises and warns as Log.open(path, read_only=True)."""
    offsets = published_offsets(path, partition, small_bytes)
    if offsets is None or (os.major(offsets.device) == 0 and network_mount_of(path) is not None):
        return Log.open(path, read_only=True)
    return SmallLog(path, offsets)


class SmallLog(Closing):
    """The offsets of a log as its writer had published them at one moment, where those of a Log move on.

    Whatever else is wanted of the log opens it, until `close`. The ids remain those of the moment: a partition that is
    deleted and created again meanwhile shows by them.
    """

    __slots__ = ("_log", "_offsets", "_path")

    def __init__(self, path: str, offsets: PublishedOffsets) -> None:
        self._path = path
        self._offsets = offsets
        self._log: Log | None = None

    def close(self) -> None:
        if self._log is not None:
            self._log.close()

    @property
    def log_start_offset(self) -> int:
        return self._offsets.log_start_offset

    @property
    def high_watermark(self) -> int:
        return self._offsets.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self._offsets.last_stable_offset

    @property
    def topic_id(self) -> uuid.UUID | None:
        return self._offsets.topic_id

    @property
    def incarnation_id(self) -> str | None:
        return self._offsets.incarnation_id

    @property
    def leader_epochs(self) -> Sequence[tuple[int, int]]:
        return self._opened().leader_epochs

    def offset_for_timestamp(self, timestamp_ms: int) -> int | None:
        """As Log.offset_for_timestamp."""
        return self._opened().offset_for_timestamp(timestamp_ms)

    def offset_ranges(self, start: int, stop: int, max_bytes: int) -> Sequence[OffsetRange]:
        """As Log.offset_ranges."""
        offsets = self._offsets
        if offsets.log_start_offset == start < stop == offsets.high_watermark and offsets.size <= max_bytes:
            return [OffsetRange(start, stop, offsets.size, offsets.compressed)]
        return self._opened().offset_ranges(start, stop, max_bytes)

    def _opened(self) -> Log:
        if self._log is None:
            self._log = Log.open(self._path, read_only=True)
        return self._log
