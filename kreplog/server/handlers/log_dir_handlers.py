"""LogDirHandlers: AlterReplicaLogDirs, which moves replicas between the log directories of this broker (KIP-113)."""

from __future__ import annotations

from typing import Any

from kreplog.server.dynamic_settings import DynamicSettings
from kreplog.server.handlers.admin import Fields
from kreplog.server.network.slices import in_slices
from kreplog.server.storage.replica_moves import ReplicaMoves
from kreplog.types import TopicPartition


class LogDirHandlers:
    """Handlers of requests that move replicas between log directories."""

    def __init__(self, moves: ReplicaMoves, settings: DynamicSettings) -> None:
        self._moves = moves
        self._settings = settings

    async def alter(self, request: Any) -> Fields:
        """Begin, cancel or redirect the move of each partition; the response does not wait for its end."""
        configured = self._settings.static.log_dirs
        requested = (
            (TopicPartition(topic.name, number), directory.path)
            for directory in request.dirs
            for topic in directory.topics
            for number in topic.partitions
        )
        results: dict[str, list[Fields]] = {}
        async for partition, path in in_slices(requested):
            error = await self._moves.alter(partition, path, configured)
            fields = {"partition_index": partition.partition, "error_code": error}
            results.setdefault(partition.topic, []).append(fields)
        return {"results": [{"topic_name": name, "partitions": partitions} for name, partitions in results.items()]}
