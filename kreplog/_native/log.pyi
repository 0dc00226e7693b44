from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from typing_extensions import Buffer

from kreplog._native.writable import WritableLog

class SegmentedLog(WritableLog):
    def append(
        self,
        value: Buffer | None,
        key: Buffer | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None] = (),
    ) -> int: ...
    def append_many(
        self, values: Sequence[Buffer | None] | Any, keys: Any = None, timestamps_ms: Any = None
    ) -> range: ...
    def assign_leader_epoch(self, epoch: int) -> None: ...
    def roll(self) -> None: ...
    def close(self) -> None: ...
    def advance_high_watermark(self, offset: int) -> int: ...
