from typing import Any, TypeAlias

Extent: TypeAlias = tuple[int, int, int, int]

NULL_HEADER: str

class PartitionedWriter:
    @property
    def path(self) -> str: ...
    @property
    def extents(self) -> list[Extent]: ...
    def __init__(
        self, path: str, *, batch_bytes: int = 65536, compression: str = "none", max_message_bytes: int = 1048588
    ) -> None: ...
    def add_topic(self, partitions: int) -> int: ...
    def write(
        self,
        values: Any,
        keys: Any,
        headers: tuple[Any, Any, Any] | None,
        partitions: Any,
        topic_indexes: Any,
        topics: list[tuple[str, int, int]],
        turn: int,
    ) -> None: ...
    def finish(self) -> list[Extent]: ...
