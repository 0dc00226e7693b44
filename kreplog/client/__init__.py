"""Clients of a running cluster: the bulk client, `Consumer`, and what the command and those who start brokers need."""

from kreplog.client.bulk_errors import (
    BrokersUnreachableError,
    FetchTimeoutError,
    LogTruncatedError,
    PartitionUnavailableError,
    ProduceError,
    TopicRecreatedError,
    UnknownTopicError,
    UnsupportedBrokerError,
)
from kreplog.client.cluster_metadata import PartitionMetadata
from kreplog.client.consumer import Consumer, FetchedArrow
from kreplog.client.offset_lookup import OffsetAndTimestamp

__all__ = [
    "BrokersUnreachableError",
    "Consumer",
    "FetchTimeoutError",
    "FetchedArrow",
    "LogTruncatedError",
    "OffsetAndTimestamp",
    "PartitionMetadata",
    "PartitionUnavailableError",
    "ProduceError",
    "TopicRecreatedError",
    "UnknownTopicError",
    "UnsupportedBrokerError",
]
