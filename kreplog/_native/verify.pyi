from collections.abc import Callable

from kreplog._native.log import SegmentedLog
from kreplog.types import VerifyReport

def verify(
    log: SegmentedLog, start: int | None, stop: int | None, progress: Callable[[int, int], None] | None
) -> VerifyReport: ...
