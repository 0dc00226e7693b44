from collections.abc import Callable

from kreplog._native.log import SegmentedLog
from kreplog.types import CompactionBacklog, CompactionReport

def backlog(log: SegmentedLog, now_ms: int) -> CompactionBacklog: ...
def copy_checkpoint(source: SegmentedLog, copy: SegmentedLog) -> None: ...
def compact(
    log: SegmentedLog,
    now_ms: int | None,
    force: bool,
    max_bytes_per_second: int | None,
    drop_keyless: bool,
    between: Callable[[], object] | None = None,
) -> CompactionReport | None: ...
