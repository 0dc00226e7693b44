"""DirectorySource: the logs of topics in a directory, opened to be read while their writer goes on; changes nothing."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from kreplog.console.parameters import Parameters, number_in, partition_in
from kreplog.console.record_pages import FETCH_BYTES, field_of, read_page
from kreplog.console.snapshot import ClusterSnapshot, PartitionRow, TopicSnapshot
from kreplog.errors import KreplogError, UsageError
from kreplog.log import Log
from kreplog.types import NO_EPOCH, NO_LEADER, TopicPartition

MAX_OPEN = 256
"""Logs that are open at a time; the one used longest ago is closed for another."""

_ROW = PartitionRow(NO_LEADER, NO_EPOCH, (), ())

T = TypeVar("T")


class DirectorySource:
    """The topics in `path`: a partition's directory, <folder>/<topic>-<partition>; a topic, <folder>/<topic>; or a
    folder of them. Raises UsageError where there is none of these."""

    views = ("cluster", "records", "replays")

    def __init__(self, path: Path) -> None:
        self._folder, self._only = _folder_of(path)
        self._logs: OrderedDict[TopicPartition, Log] = OrderedDict()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="console-logs")  # of which alone the logs are used
        if not self._listed():
            raise UsageError(
                f"{path} has no logs: give a partition's directory, a topic's path, or a folder of topics",
                path=str(path),
            )

    def _listed(self) -> list[TopicPartition]:
        """Raises OSError."""
        found = []
        for entry in self._folder.iterdir():
            try:
                at = TopicPartition.parse(entry.name)
            except UsageError:
                continue
            if self._shows(at) and any(entry.glob("*.log")):
                found.append(at)
        return sorted(found)

    def _shows(self, at: TopicPartition) -> bool:
        return self._only is None or self._only in (at.topic, str(at))

    async def snapshot(self) -> ClusterSnapshot:
        """Brokers it has none. Raises OSError."""

        def read() -> ClusterSnapshot:
            numbers: dict[str, list[int]] = {}
            for at in self._listed():
                numbers.setdefault(at.topic, []).append(at.partition)
            topics = {name: TopicSnapshot(False, dict.fromkeys(found, _ROW)) for name, found in numbers.items()}
            return ClusterSnapshot(str(self._folder), topics=topics)

        return await self._run(read)

    async def replicas(self, topic: str, rows: Mapping[int, PartitionRow]) -> dict[int, list[dict[str, Any]]]:
        """One for each partition, with the offsets of its log, or the error."""

        def read() -> dict[int, list[dict[str, Any]]]:
            return {number: [self._state(TopicPartition(topic, number))] for number in rows}

        return await self._run(read)

    async def read(self, name: str, parameters: Parameters) -> dict[str, Any]:
        """Records, as read_page. Raises UsageError, StorageError."""
        if name != "records":
            raise UsageError(f"a directory has no {name!r} to show")

        def read() -> dict[str, Any]:
            log = self._log(partition_in(parameters))
            return read_page(
                parameters,
                log.log_start_offset,
                log.log_end_offset,
                log.offset_for_timestamp,
                lambda offset: memoryview(log.fetch(offset, FETCH_BYTES, "log_end").data),
            )

        return await self._run(read)

    async def record_field(self, parameters: Parameters) -> bytes | None:
        """The whole key or value of a record. Raises UsageError, StorageError."""

        def read() -> bytes | None:
            offset = number_in(parameters, "offset")
            data = self._log(partition_in(parameters)).fetch(offset, 1, "log_end").data
            return field_of(memoryview(data), offset, parameters.get("field", "value"))

        return await self._run(read)

    async def act(self, name: str, parameters: Parameters, confirmed: str | None) -> dict[str, Any]:
        """Raises UsageError: a directory is only read."""
        raise UsageError(f"a directory is only read here: {name!r} is for clusters")

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)
        while self._logs:
            self._logs.popitem()[1].close()

    async def _run(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    def _state(self, at: TopicPartition) -> dict[str, Any]:
        try:
            log = self._log(at)
            return {
                "broker": None,
                "state": "log",
                "log_start_offset": log.log_start_offset,
                "high_watermark": log.high_watermark,
                "log_end_offset": log.log_end_offset,
                "lag": None,
            }
        except (KreplogError, OSError) as error:
            if at in self._logs:
                self._logs.pop(at).close()  # its directory was deleted, perhaps created again
            return {"broker": None, "state": str(error)}

    def _log(self, at: TopicPartition) -> Log:
        path = self._folder / str(at)
        if not self._shows(at) or not path.is_dir():
            raise UsageError(f"there is no partition {at} in {self._folder}")
        log = self._logs.pop(at, None)
        if log is None:
            log = Log.open(path, read_only=True)
            while len(self._logs) >= MAX_OPEN:
                self._logs.popitem(last=False)[1].close()
        self._logs[at] = log
        return log


def _folder_of(path: Path) -> tuple[Path, str | None]:
    """The folder with the partitions' directories, and the topic or partition alone that is to be shown."""
    path = path.absolute()
    if not path.is_dir():
        if not path.parent.is_dir():
            raise UsageError(f"{path} does not exist", path=str(path))
        return path.parent, path.name
    if any(path.glob("*.log")):
        return path.parent, path.name
    return path, None
