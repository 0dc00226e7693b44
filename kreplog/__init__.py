"""Kafka's replicated log as a Python package: `Log` is one partition directory, `Topic` the partitions of a topic in a
folder, `errors` holds what can go wrong."""

from kreplog import errors
from kreplog.config import LogConfig
from kreplog.log import Appender, Fetched, Follow, Log, NumpyColumns, OffsetRange, Record, SegmentInfo
from kreplog.topic import (
    Cursor,
    DeliveredRecord,
    GroupCursor,
    MaintenanceConfig,
    MaintenanceError,
    PartitionOffset,
    Table,
    TableEntry,
    Topic,
    TopicFollow,
    TopicRecord,
    WorkQueue,
)
from kreplog.types import AppendInfo, Cut, Damage, EpochEndOffset, FileRegion, TopicPartition, VerifyReport

__version__ = "0.1.0"

__all__ = [
    "AppendInfo",
    "Appender",
    "Cursor",
    "Cut",
    "Damage",
    "DeliveredRecord",
    "EpochEndOffset",
    "Fetched",
    "FileRegion",
    "Follow",
    "GroupCursor",
    "Log",
    "LogConfig",
    "MaintenanceConfig",
    "MaintenanceError",
    "NumpyColumns",
    "OffsetRange",
    "PartitionOffset",
    "Record",
    "SegmentInfo",
    "Table",
    "TableEntry",
    "Topic",
    "TopicFollow",
    "TopicPartition",
    "TopicRecord",
    "VerifyReport",
    "WorkQueue",
    "__version__",
    "errors",
]
