"""Record batches of one partition, as its leader stores them, headers and damage included; and one batch appended."""

from __future__ import annotations

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import TopicRequestError, raise_for_error
from kreplog.client.broker_client import BrokerClient
from kreplog.client.replica_states import FETCH_VERSION
from kreplog.core.messages import (
    CONSUMER,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
)
from kreplog.errors import ErrorCode, UsageError
from kreplog.types import NO_LEADER, TopicPartition
from kreplog.wire import fetch, produce
from kreplog.wire.versions import ApiKey

PRODUCE_VERSION = 9
PRODUCE_TIMEOUT_MS = 1500
"""Below the time-out of the client."""


def leader_of(admin: AdminClient, at: TopicPartition) -> int:
    """The broker that leads a partition. Raises UsageError for one that does not exist, TopicRequestError for one
    without a leader, UnreachableError."""
    (topic,) = admin.metadata([at.topic]).topics
    raise_for_error("topic", at.topic, topic)
    for partition in topic.partitions:
        if partition.partition_index == at.partition:
            if partition.leader_id == NO_LEADER:
                raise TopicRequestError(f"{at} has no leader now: its records cannot be read until one is elected")
            return int(partition.leader_id)
    raise UsageError(f"there is no partition {at}: the topic has {len(topic.partitions)}, counted from 0")


def fetch_batches(admin: AdminClient, leader: int, at: TopicPartition, offset: int, max_bytes: int) -> FetchedPartition:
    """The committed batches from the one with `offset` on, `max_bytes` or one batch; none where `offset` is outside of
    the log. Raises TopicRequestError where `leader` does not serve them."""

    async def request(_: int, client: BrokerClient) -> FetchedPartition:
        header = client.header(ApiKey.FETCH, FETCH_VERSION)
        requested = (FetchPartition(at, "", -1, offset, max_bytes=max_bytes),)
        frame = await client.send(fetch.encode_request(FetchRequest(CONSUMER, -1, 0, 0, max_bytes, requested), header))
        (fetched,) = fetch.decode_response(frame, header).partitions
        return fetched

    fetched = admin.request_each([leader], request).get(leader)
    if fetched is None:
        raise TopicRequestError(
            f"{at}: its leader, broker {leader}, does not respond; another may be elected: try again"
        )
    if fetched.error not in (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE):
        raise TopicRequestError(
            f"{at}: broker {leader} does not serve its records ({fetched.error.name}): {_advice(fetched.error)}"
        )
    return fetched


def produce_batch(admin: AdminClient, leader: int, at: TopicPartition, batch: bytes) -> int:
    """Append one batch, acknowledged by all in-sync replicas; its first offset. Raises TopicRequestError."""

    async def request(_: int, client: BrokerClient) -> ProducedPartition:
        header = client.header(ApiKey.PRODUCE, PRODUCE_VERSION)
        produced = ProduceRequest(-1, PRODUCE_TIMEOUT_MS, (ProducePartition(at, batch),))
        frame = await client.send(produce.encode_request(produced, header))
        (result,) = produce.decode_response(frame, header).partitions
        return result

    produced = admin.request_each([leader], request).get(leader)
    if produced is None:
        raise TopicRequestError(
            f"{at}: its leader, broker {leader}, has not acknowledged the record in time: look whether it was appended"
        )
    if produced.error is not ErrorCode.NONE:
        raise TopicRequestError(
            f"{at}: broker {leader} refused the record ({produced.error.name}): {_advice(produced.error)}"
        )
    return produced.base_offset


def _advice(error: ErrorCode) -> str:
    denied = error is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return "no ACL allows it to this principal" if denied else "another may lead now: try again"
