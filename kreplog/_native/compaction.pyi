from kreplog._native.log import SegmentedLog
from kreplog.types import CompactionReport

def compact(
    log: SegmentedLog, now_ms: int | None, force: bool, max_bytes_per_second: int | None
) -> CompactionReport | None: ...
