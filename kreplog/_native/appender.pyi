from collections.abc import Callable, Iterable, Mapping

from typing_extensions import Buffer

from kreplog._native.log import SegmentedLog
from kreplog._native.writable import Pending

class BufferedAppender(Pending):
    @property
    def log(self) -> SegmentedLog: ...
    @property
    def closed(self) -> bool: ...
    @property
    def next_offset(self) -> int: ...
    def __init__(
        self, log: SegmentedLog, batch_bytes: int, compression: str | None, wake: Callable[[], None]
    ) -> None: ...
    def append(
        self,
        value: Buffer | None,
        key: Buffer | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None] = (),
    ) -> int: ...
    def flush(self) -> None: ...
    def linger(self, linger_ns: int) -> None: ...
    def close(self) -> None: ...
