from collections.abc import Iterable
from typing import Final, Self

from typing_extensions import Buffer

from kreplog._native.arrow_export import ArrowColumns

COLUMNS: Final[tuple[str, ...]]

class ArrowBuilder:
    def __new__(cls, columns: Iterable[str], timestamp_unit: str = "ms") -> Self: ...
    @property
    def rows(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def add_batches(self, buffer: Buffer, start: int = 0, stop: int = ...) -> None: ...
    def finish(self) -> ArrowColumns: ...
