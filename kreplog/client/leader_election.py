"""Leader elections on request, preferred or unclean: ElectLeaders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import ADMIN_TIMEOUT_MS, TopicRequestError, raise_for_error
from kreplog.client.reassignment import by_topic
from kreplog.errors import ErrorCode
from kreplog.types import ElectionType, TopicPartition
from kreplog.wire.versions import ApiKey


@dataclass(slots=True)
class ElectionResult:
    """The outcome of leader elections. elected: partitions that have a new leader. failed: why others have none; the
    rest needed no election."""

    elected: list[TopicPartition] = field(default_factory=list)
    failed: dict[TopicPartition, str] = field(default_factory=dict)


def elect_leaders(admin: AdminClient, kind: ElectionType, partitions: Iterable[TopicPartition]) -> ElectionResult:
    """Elect a leader of each partition. Raises UnreachableError, TopicRequestError."""
    response = admin.request(
        ApiKey.ELECT_LEADERS,
        1,
        election_type=kind,
        topic_partitions=[
            {"topic": topic, "partitions": [partition.partition for partition in group]}
            for topic, group in by_topic(partitions)
        ],
        timeout_ms=ADMIN_TIMEOUT_MS // 3,
    )
    raise_for_error("election of", "leaders", response)
    found = ElectionResult()
    for topic in response.replica_election_results:
        for result in topic.partition_result:
            partition = TopicPartition(topic.topic, result.partition_id)
            try:
                if result.error_code != ErrorCode.ELECTION_NOT_NEEDED:
                    raise_for_error("partition", str(partition), result)
                    found.elected.append(partition)
            except TopicRequestError as error:
                found.failed[partition] = str(error)
    return found
