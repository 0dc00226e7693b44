"""Kafka's replicated log as a Python package: `Log` is one partition directory, `errors` holds what can go wrong."""

from kreplog import errors
from kreplog.config import LogConfig
from kreplog.types import AppendInfo, Damage, EpochEndOffset, FileRegion, TopicPartition, VerifyReport

__version__ = "0.1.0"

__all__ = [
    "AppendInfo",
    "Damage",
    "EpochEndOffset",
    "FileRegion",
    "LogConfig",
    "TopicPartition",
    "VerifyReport",
    "__version__",
    "errors",
]
