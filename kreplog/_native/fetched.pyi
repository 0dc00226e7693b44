from collections.abc import Sequence
from typing import final

from typing_extensions import Buffer

from kreplog._native.arrow import ArrowBuilder

@final
class FetchedBatches:
    @property
    def next_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def last_epoch(self) -> int: ...
    @property
    def exhausted(self) -> bool: ...
    def __init__(
        self, records: Buffer, start: int, stop: int = ..., aborted: Sequence[tuple[int, int]] = ()
    ) -> None: ...
    def add_to(self, builder: ArrowBuilder, max_bytes: int) -> None: ...
