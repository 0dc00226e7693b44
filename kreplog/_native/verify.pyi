from collections.abc import Callable

from kreplog._native.view import LogView
from kreplog.types import VerifyReport

def verify(
    log: LogView, start: int | None, stop: int | None, progress: Callable[[int, int], None] | None
) -> VerifyReport: ...
