from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from kreplog._native.log import SegmentedLog

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

def steadily(log: SegmentedLog, look: Callable[..., _T], *arguments: Any) -> _T: ...
def size(log: SegmentedLog) -> int: ...
def segments(log: SegmentedLog) -> tuple[SegmentInfo, ...]: ...
def offset_for_timestamp(log: SegmentedLog, timestamp_ms: int) -> int | None: ...
def offset_ranges(log: SegmentedLog, start: int, stop: int, max_bytes: int) -> list[OffsetRange]: ...
