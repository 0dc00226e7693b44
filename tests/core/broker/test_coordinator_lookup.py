"""Where a coordinator is, and the internal topics that brokers create for coordinators."""

from __future__ import annotations

from kreplog.config import GroupConfig, TransactionConfig
from kreplog.core.broker.coordinator_lookup import (
    GROUP,
    RETRY_MS,
    TRANSACTION,
    InternalTopicCreation,
    find_coordinator,
    internal_topics,
    key_type_refusal,
    needs_offsets_topic,
)
from kreplog.core.group_messages import OFFSETS_TOPIC, partition_of_group
from kreplog.core.transaction_messages import TRANSACTIONS_TOPIC, AddOffsetsToTxnRequest, EndTxnRequest
from kreplog.errors import ConnectionLossError, ErrorCode, InvalidReplicationFactorError
from kreplog.types import NO_LEADER

TOPICS = internal_topics(
    GroupConfig(
        offsets_topic_num_partitions=7, offsets_topic_replication_factor=2, offsets_topic_segment_bytes=1 << 20
    ),
    TransactionConfig(
        transaction_state_log_num_partitions=5,
        transaction_state_log_replication_factor=4,
        transaction_state_log_segment_bytes=1 << 21,
        transaction_state_log_min_isr=3,
    ),
)


def test_internal_topics_are_compacted_and_sized_by_their_settings() -> None:
    offsets, transactions = TOPICS[GROUP], TOPICS[TRANSACTION]
    assert (offsets.name, offsets.partitions, offsets.replication_factor) == (OFFSETS_TOPIC, 7, 2)
    assert offsets.settings == {
        "segment.bytes": "1048576",
        "cleanup.policy": "compact",
        "compression.type": "producer",
    }
    assert (transactions.name, transactions.partitions, transactions.replication_factor) == (TRANSACTIONS_TOPIC, 5, 4)
    assert transactions.settings == {
        "segment.bytes": "2097152",
        "min.insync.replicas": "3",
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "unclean.leader.election.enable": "false",
    }


def test_the_coordinator_leads_the_partition_of_the_key() -> None:
    leaders = {0: 10, 1: 11, 2: 12}
    for key in ("group", "another", "a third"):
        found = find_coordinator(OFFSETS_TOPIC, key, leaders, {10, 11, 12})
        assert found == (leaders[partition_of_group(key, 3)], ErrorCode.NONE, "")


def test_a_key_has_no_coordinator_without_a_live_leader() -> None:
    assert find_coordinator(OFFSETS_TOPIC, "k", {}, {1}) == (
        NO_LEADER,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        f"{OFFSETS_TOPIC} is being created",
    )
    for leader, live in ((NO_LEADER, {1}), (2, {1})):
        assert find_coordinator(OFFSETS_TOPIC, "k", {0: leader}, live) == (
            NO_LEADER,
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            f"{OFFSETS_TOPIC}-0 has no leader",
        )


def test_a_failed_creation_is_repeated_after_a_while() -> None:
    creation = InternalTopicCreation(TOPICS[TRANSACTION])
    assert creation.failure(0) is None
    text = creation.failed(InvalidReplicationFactorError("too few brokers"), 1000)
    assert (
        text
        == f"{TRANSACTIONS_TOPIC} cannot be created with transaction.state.log.replication.factor = 4: too few brokers"
    )
    assert creation.failure(999 + RETRY_MS) == text
    assert creation.failure(1000 + RETRY_MS) is None
    text = creation.failed(ConnectionLossError("no store responds"), 1000)
    assert text == f"{TRANSACTIONS_TOPIC} cannot be created: no store responds"


def test_only_groups_and_transactions_have_coordinators() -> None:
    assert [key_type_refusal(key_type) for key_type in (GROUP, TRANSACTION)] == [None, None]
    for key_type in (-1, 2):
        refusal = key_type_refusal(key_type)
        assert refusal is not None and (refusal.broker, refusal.error) == (NO_LEADER, ErrorCode.UNSUPPORTED_VERSION)


def test_a_transaction_that_is_to_commit_offsets_needs_their_topic() -> None:
    assert needs_offsets_topic(AddOffsetsToTxnRequest("t", 1, 0, "g"))
    assert not needs_offsets_topic(EndTxnRequest("t", 1, 0, True))
