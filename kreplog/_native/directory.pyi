import os

from kreplog._native.log import SegmentedLog
from kreplog.config import LogConfig

OWNER_LOCK: str

def prepare(
    log: SegmentedLog, path: str | os.PathLike[str], config: LogConfig, read_only: bool, managed: bool
) -> None: ...
def configure(log: SegmentedLog, config: LogConfig) -> None: ...
def is_brokers_directory(directory: str) -> bool: ...
