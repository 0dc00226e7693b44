from typing_extensions import Buffer

from kreplog._native.log import SegmentedLog
from kreplog.types import AppendInfo

def append_batches(
    log: SegmentedLog, buffer: Buffer, leader_epoch: int | None = None, strict: bool = False
) -> AppendInfo: ...
def append_as_follower(log: SegmentedLog, buffer: Buffer) -> AppendInfo: ...
