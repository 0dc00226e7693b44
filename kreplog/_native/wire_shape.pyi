from typing import Any, Final

from typing_extensions import Buffer

FIXED: Final = 0
TEXT: Final = 1
BYTES: Final = 2
RUN: Final = 3
ARRAY: Final = 4
STRUCT: Final = 5
TAGLESS: Final[str]

def check_shape(data: Buffer, start: int, shape: tuple[Any, ...], flexible: bool, budget: int, whole: bool) -> int: ...
