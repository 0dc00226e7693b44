"""Clients of a running cluster: the bulk client, `Consumer` and `Producer`, and what the command line needs."""

from kreplog.client.bulk_errors import (
    BrokersUnreachableError,
    FetchTimeoutError,
    OffsetCommitError,
    PartitionUnavailableError,
    ProduceError,
    TopicAuthorizationError,
    TopicRecreatedError,
    UnknownTopicError,
    UnsupportedBrokerError,
)
from kreplog.client.cluster_metadata import PartitionMetadata
from kreplog.client.consumer import Consumer, FetchedArrow
from kreplog.client.offset_lookup import OffsetAndTimestamp
from kreplog.client.producer import AppendedRange, Producer
from kreplog.errors import LogTruncatedError

__all__ = [
    "AppendedRange",
    "BrokersUnreachableError",
    "Consumer",
    "FetchTimeoutError",
    "FetchedArrow",
    "LogTruncatedError",
    "OffsetAndTimestamp",
    "OffsetCommitError",
    "PartitionMetadata",
    "PartitionUnavailableError",
    "ProduceError",
    "Producer",
    "TopicAuthorizationError",
    "TopicRecreatedError",
    "UnknownTopicError",
    "UnsupportedBrokerError",
]
