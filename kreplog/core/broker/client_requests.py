"""Rules for requests of clients that hold before a core gets them, whatever listener they come by.

A Produce that no client may send is refused as a whole: before its batches are inspected, and before it is passed on in
parts. What depends on a partition is for the replication core to refuse.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

from kreplog.core.messages import (
    CONSUMER,
    FetchRequest,
    ProduceRequest,
    ProduceResponse,
    TransactionalProduce,
    refusal_of_produce,
)
from kreplog.core.replication.partition import Partition
from kreplog.core.transaction_messages import INTERNAL_TOPICS
from kreplog.errors import ErrorCode, RecordTooLargeError
from kreplog.types import TopicPartition

TRANSACTION_ACKS = frozenset({-1})
"""acks of a transaction's produce: a commit covers records that every in-sync replica has. Source: KIP-98."""

MAX_RATIO = 256
"""Maximum of a partition's decompressed bytes by its compressed ones, above ALWAYS_ALLOWED."""

ALWAYS_ALLOWED = 8 << 20
"""Decompressed bytes of one partition that are allowed at any ratio."""

MAX_REQUEST_BYTES = 64 << 20
"""Decompressed bytes of one request that are allowed whatever its size."""

MAX_REQUEST_RATIO = 16
"""Maximum of a request's decompressed bytes by its size, above MAX_REQUEST_BYTES."""

_topic_of = attrgetter("partition.topic")


def refused_produce(request: ProduceRequest) -> ProduceResponse | None:
    """The response to a client's Produce that no core may get: one to a topic that coordinators alone write to, or of a
    transaction without acks=all. None for all others. Source: Kafka, ReplicaManager.appendRecords."""
    if not INTERNAL_TOPICS.isdisjoint(map(_topic_of, request.partitions)):
        text = "it is an internal topic, which coordinators write"
        return refusal_of_produce(request, ErrorCode.INVALID_TOPIC_EXCEPTION, text)
    if isinstance(request, TransactionalProduce) and request.acks not in TRANSACTION_ACKS:
        return refusal_of_produce(request, ErrorCode.INVALID_REQUIRED_ACKS, "a transaction needs acks=all")
    return None


def check_decompressed_size(
    partition: TopicPartition, compressed: int, inflated: int, accepted: int, request_bytes: int
) -> None:
    """Check the size that a partition's batches in a Produce would have decompressed, before anything is decompressed.

    compressed, inflated: bytes of its compressed batches, and their upper bound decompressed. accepted: decompressed
    bytes of the request's other batches that have passed this check. request_bytes: size of the request. Raises
    RecordTooLargeError. The simulator runs none of these rules: its batches are not compressed.
    """
    limit = max_inflated_bytes(request_bytes)
    if exceeds_decompression_ratio(compressed, inflated) or accepted + inflated > limit:
        raise RecordTooLargeError(
            f"{partition}: {compressed} bytes of compressed batches expand to up to {inflated}, more than {MAX_RATIO} "
            f"times their size or, with others of the request, than {limit}: send smaller batches",
            partition=str(partition),
        )


def exceeds_decompression_ratio(compressed: int, inflated: int) -> bool:
    """Whether the batches of a partition are too large decompressed for their compressed size. Both in bytes."""
    return inflated > max(ALWAYS_ALLOWED, MAX_RATIO * compressed)


def max_inflated_bytes(request_bytes: int) -> int:
    """Maximum of bytes, all together, of the decompressed batches of a Produce of that size."""
    return max(MAX_REQUEST_BYTES, MAX_REQUEST_RATIO * request_bytes)


def is_forged(request: FetchRequest, internal: bool) -> bool:
    """Whether a client fetches as if it were a follower, whose offsets advance the high watermark. internal: the
    request came by the listener that only brokers use."""
    return request.replica_id > CONSUMER and not internal


def topic_names(topics: Iterable[tuple[str, str]], replicas: Mapping[TopicPartition, Partition]) -> dict[str, str]:
    """Names by topic id, for fetches that have ids in place of names (KIP-516). topics: (topic id, name) of those in
    the metadata. replicas: those open here, since followers fetch a new topic before the metadata have it."""
    return {**dict(topics), **{replica.topic_id: partition.topic for partition, replica in replicas.items()}}
