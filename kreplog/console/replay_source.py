"""ReplaySource: a console of replays alone, which looks at no cluster and at no directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kreplog.console.parameters import Parameters
from kreplog.console.snapshot import ClusterSnapshot, PartitionRow
from kreplog.errors import UsageError


class ReplaySource:
    """Has no topics, and refuses each request."""

    views = ("replays",)

    async def snapshot(self) -> ClusterSnapshot:
        return ClusterSnapshot()

    async def replicas(self, topic: str, rows: Mapping[int, PartitionRow]) -> dict[int, list[dict[str, Any]]]:
        return {}

    async def read(self, name: str, parameters: Parameters) -> dict[str, Any]:
        """Raises UsageError."""
        raise UsageError(f"this console has replays alone, and no {name!r}")

    async def record_field(self, parameters: Parameters) -> bytes | None:
        """Raises UsageError."""
        raise UsageError("this console has replays alone, and no records")

    async def act(self, name: str, parameters: Parameters, confirmed: str | None) -> dict[str, Any]:
        """Raises UsageError."""
        raise UsageError(f"this console has replays alone: {name!r} is for clusters")

    async def close(self) -> None:
        pass
