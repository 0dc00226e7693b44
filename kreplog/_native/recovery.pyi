from collections.abc import Callable

from kreplog._native.log import SegmentedLog

STATE_NAME: str

def recover(log: SegmentedLog, progress: Callable[[int, int], None] | None = None) -> None: ...
def attach(log: SegmentedLog) -> None: ...
