from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from kreplog._native.view import LogView

_T = TypeVar("_T")

class SegmentInfo(NamedTuple):
    base_offset: int
    next_offset: int
    size: int
    path: str
    max_timestamp: int

class OffsetRange(NamedTuple):
    start: int
    stop: int
    bytes: int
    compressed: bool

def steadily(log: LogView, look: Callable[..., _T], *arguments: Any) -> _T: ...
def size(log: LogView) -> int: ...
def segments(log: LogView) -> tuple[SegmentInfo, ...]: ...
def record_for_timestamp(log: LogView, timestamp_ms: int) -> tuple[int, int] | None: ...
def offset_ranges(log: LogView, start: int, stop: int, max_bytes: int) -> list[OffsetRange]: ...
