from typing_extensions import Buffer

from kreplog._native.log import SegmentedLog
from kreplog.types import AppendInfo

class InspectedBatches:
    @property
    def data(self) -> Buffer: ...
    @property
    def error(self) -> Exception | None: ...
    def __init__(self, data: Buffer, error: Exception | None = None) -> None: ...
    def __len__(self) -> int: ...

def inflated_sizes(data: Buffer) -> tuple[int, int]: ...
def append_batches(
    log: SegmentedLog,
    buffer: Buffer | InspectedBatches,
    leader_epoch: int | None = None,
    strict: bool = False,
    new_producers: bool = True,
    transactional: bool = False,
    sequenced: bool = True,
    verified_by: int = ...,
) -> AppendInfo: ...
def append_marker(
    log: SegmentedLog,
    producer_id: int,
    producer_epoch: int,
    committed: bool,
    coordinator_epoch: int,
    leader_epoch: int | None = None,
) -> AppendInfo: ...
def producer_count(log: SegmentedLog) -> int: ...
def expire_producers(log: SegmentedLog, now_ms: int) -> None: ...
def append_as_follower(log: SegmentedLog, buffer: Buffer) -> AppendInfo: ...
