"""Where the coordinator of a group or transactional id is, and the internal topics that coordinators keep logs in.

A key belongs to one partition of its internal topic, whose leader is the key's coordinator. A broker creates the topic
when a coordinator is first looked for. While it cannot be created, or its partition has no leader, clients get a
retriable error, and repeat the request until there is a coordinator. Source: Kafka, KafkaApis and
AutoTopicCreationManager.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import NamedTuple

from kreplog.config import GroupConfig, TransactionConfig
from kreplog.core.group_messages import OFFSETS_TOPIC, partition_of_group
from kreplog.core.transaction_messages import TRANSACTIONS_TOPIC, AddOffsetsToTxnRequest
from kreplog.errors import CoordinationError, ErrorCode, KreplogError
from kreplog.types import NO_LEADER

GROUP = 0
TRANSACTION = 1
"""Types of keys in FindCoordinator."""

RETRY_MS = 250
"""How long clients get the outcome of a creation that failed, since they repeat their requests."""


class InternalTopic(NamedTuple):
    """An internal topic as a broker creates it. replication_factor_setting: the setting that gives its replication
    factor."""

    name: str
    partitions: int
    replication_factor: int
    replication_factor_setting: str
    settings: Mapping[str, str]


def internal_topics(groups: GroupConfig, transactions: TransactionConfig) -> dict[int, InternalTopic]:
    """The topic of each type of coordinators."""
    return {
        GROUP: InternalTopic(
            OFFSETS_TOPIC,
            groups.offsets_topic_num_partitions,
            groups.offsets_topic_replication_factor,
            "offsets.topic.replication.factor",
            {
                "segment.bytes": str(groups.offsets_topic_segment_bytes),
                "cleanup.policy": "compact",
                "compression.type": "producer",
            },
        ),
        TRANSACTION: InternalTopic(
            TRANSACTIONS_TOPIC,
            transactions.transaction_state_log_num_partitions,
            transactions.transaction_state_log_replication_factor,
            "transaction.state.log.replication.factor",
            {
                "segment.bytes": str(transactions.transaction_state_log_segment_bytes),
                "min.insync.replicas": str(transactions.transaction_state_log_min_isr),
                "cleanup.policy": "compact",
                "compression.type": "uncompressed",
                "unclean.leader.election.enable": "false",  # whatever the default is: it would lose outcomes
            },
        ),
    }


class CoordinatorFound(NamedTuple):
    """The coordinator of a key. broker: its id, NO_LEADER if there is none, for the reason in `error_message`."""

    broker: int
    error: ErrorCode = ErrorCode.NONE
    error_message: str = ""


def key_type_refusal(key_type: int) -> CoordinatorFound | None:
    """The response to FindCoordinator for a type of keys that no coordinator has; None for the others. The simulator
    does not run this rule, nor the next: its clients request coordinators alone, and know their internal topics."""
    if key_type in (GROUP, TRANSACTION):
        return None
    text = "coordinators are those of groups and transactions"
    return CoordinatorFound(NO_LEADER, ErrorCode.UNSUPPORTED_VERSION, text)


def needs_offsets_topic(request: object) -> bool:
    """Whether a request, other than FindCoordinator, has OFFSETS_TOPIC created if it does not exist: one of a
    transaction that is to commit offsets, whose client sends it again."""
    return isinstance(request, AddOffsetsToTxnRequest)


def find_coordinator(topic: str, key: str, leaders: Mapping[int, int], live: Container[int]) -> CoordinatorFound:
    """The coordinator of a key. leaders: of the internal topic's partitions, by number. live: ids of brokers."""
    if not leaders:
        return CoordinatorFound(NO_LEADER, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic} is being created")
    number = partition_of_group(key, len(leaders))
    leader = leaders.get(number, NO_LEADER)
    if leader not in live:
        return CoordinatorFound(NO_LEADER, ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{topic}-{number} has no leader")
    return CoordinatorFound(leader)


class InternalTopicCreation:
    """The creation of an internal topic by one broker: the outcome of a failed attempt counts for RETRY_MS, so that a
    flood of requests does not become one of attempts. The simulator does not run it: the internal
    topics come with a seed."""

    def __init__(self, topic: InternalTopic) -> None:
        self.topic = topic
        self._failure = ""
        self._failed_ms = 0

    def failure(self, now_ms: int) -> str | None:
        """Why the topic cannot be created, as a recent attempt has found; None: to be tried."""
        return self._failure if self._failure and now_ms < self._failed_ms + RETRY_MS else None

    def failed(self, error: KreplogError, now_ms: int) -> str:
        """An attempt has failed. Returns the text for clients."""
        topic = self.topic
        of_store = isinstance(error, CoordinationError)
        setting = "" if of_store else f" with {topic.replication_factor_setting} = {topic.replication_factor}"
        self._failure = f"{topic.name} cannot be created{setting}: {error}"
        self._failed_ms = now_ms
        return self._failure
