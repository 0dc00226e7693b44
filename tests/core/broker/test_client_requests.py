"""Requests of clients before a core gets them: which are refused as a whole, and the topics that ids name."""

from __future__ import annotations

import pytest

from kreplog.core.broker.client_requests import (
    check_decompressed_size,
    exceeds_decompression_ratio,
    is_forged,
    max_inflated_bytes,
    refused_produce,
    topic_names,
)
from kreplog.core.group_messages import OFFSETS_TOPIC
from kreplog.core.messages import (
    CONSUMER,
    DEBUGGING,
    FetchRequest,
    ProducePartition,
    ProduceRequest,
    TransactionalProduce,
)
from kreplog.core.transaction_messages import TRANSACTIONS_TOPIC
from kreplog.errors import ErrorCode, RecordTooLargeError
from kreplog.types import TopicPartition
from tests.core.shell import TP, Shell

PLACE = ProducePartition(TP, b"")


@pytest.mark.parametrize("topic", [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
@pytest.mark.parametrize("transactional", [False, True])
def test_a_produce_to_an_internal_topic_is_refused_as_a_whole(topic: str, transactional: bool) -> None:
    fields = -1, 1000, (PLACE, ProducePartition(TopicPartition(topic, 3), b""))
    refused = refused_produce(TransactionalProduce(*fields, "id") if transactional else ProduceRequest(*fields))
    assert refused is not None
    assert [(each.partition, each.error) for each in refused.partitions] == [
        (TP, ErrorCode.INVALID_TOPIC_EXCEPTION),
        (TopicPartition(topic, 3), ErrorCode.INVALID_TOPIC_EXCEPTION),
    ]
    assert all("internal topic" in each.message and each.base_offset == -1 for each in refused.partitions)


@pytest.mark.parametrize(("acks", "refuses"), [(-1, False), (0, True), (1, True), (7, True)])
def test_a_transaction_needs_acks_all(acks: int, refuses: bool) -> None:
    """Its commit covers what every in-sync replica has. A producer without transactions may choose."""
    refused = refused_produce(TransactionalProduce(acks, 1000, (PLACE,), "id"))
    assert (refused is not None) == refuses
    if refused is not None:
        (partition,) = refused.partitions
        assert (partition.partition, partition.error) == (TP, ErrorCode.INVALID_REQUIRED_ACKS)
        assert "acks=all" in partition.message
    assert refused_produce(ProduceRequest(acks, 1000, (PLACE,))) is None


@pytest.mark.parametrize(
    ("replica_id", "internal", "forged"),
    [(CONSUMER, False, False), (DEBUGGING, False, False), (0, False, True), (2, False, True), (2, True, False)],
)
def test_a_client_cannot_fetch_as_a_follower(replica_id: int, internal: bool, forged: bool) -> None:
    assert is_forged(FetchRequest(replica_id, 1, 0, 0, 1, ()), internal) == forged


def test_a_topic_is_named_by_the_metadata_or_by_a_replica_here() -> None:
    shell = Shell()
    shell.leader_and_isr(1, 1, topic_id="of-the-replica")
    names = topic_names([("of-the-metadata", "other"), ("former", "topic")], shell.manager.partitions)
    assert names == {"of-the-metadata": "other", "former": "topic", "of-the-replica": "topic"}


def test_batches_that_expand_to_more_than_256_times_their_size_and_8_mib_are_refused() -> None:
    mib = 1 << 20
    assert [exceeds_decompression_ratio(1, size) for size in (8 * mib, 8 * mib + 1)] == [False, True]
    assert [exceeds_decompression_ratio(mib, size) for size in (256 * mib, 256 * mib + 1)] == [False, True]


def test_a_request_may_expand_to_64_mib_or_to_16_times_its_size() -> None:
    mib = 1 << 20
    assert [max_inflated_bytes(size) for size in (1, 4 * mib, 5 * mib)] == [64 * mib, 64 * mib, 80 * mib]


def test_batches_are_too_large_by_their_ratio_or_with_others_of_the_request() -> None:
    mib = 1 << 20
    check_decompressed_size(TP, mib, 4 * mib, 60 * mib, 1)
    check_decompressed_size(TP, mib, 4 * mib, 76 * mib, 5 * mib)
    for compressed, inflated, accepted in ((1, 8 * mib + 1, 0), (mib, 4 * mib, 60 * mib + 1)):
        with pytest.raises(RecordTooLargeError, match="send smaller batches") as caught:
            check_decompressed_size(TP, compressed, inflated, accepted, 1)
        assert caught.value.partition == str(TP)
