"""OffsetCommit for the bulk client: positions under the name of a consumer group without members.

For positions that are held elsewhere and only shown to the tools that report the lag of groups. The commit is that of a
simple consumer, generation -1 without a member id; the coordinator refuses it while the group has members.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kreplog.client.bulk_errors import OffsetCommitError
from kreplog.client.cluster_connections import ClusterConnections
from kreplog.client.coordinator_requests import call_coordinator, refused_offsets
from kreplog.types import NO_EPOCH, TopicPartition
from kreplog.wire.versions import ApiKey


def commit_offsets(
    cluster: ClusterConnections,
    group: str,
    positions: Mapping[TopicPartition, int],
    leader_epochs: Mapping[TopicPartition, int],
    deadline: float,
) -> None:
    """Raises OffsetCommitError, BrokersUnreachableError, UnsupportedBrokerError where brokers have no groups."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for at, offset in sorted(positions.items()):
        topics.setdefault(at.topic, []).append(
            {
                "partition_index": at.partition,
                "committed_offset": offset,
                "committed_leader_epoch": leader_epochs.get(at, NO_EPOCH),
                "committed_metadata": "",
            }
        )
    call_coordinator(
        cluster,
        group,
        ApiKey.OFFSET_COMMIT,
        deadline,
        refused_offsets,
        failure=OffsetCommitError,
        group_id=group,
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        retention_time_ms=-1,
        topics=[{"name": topic, "partitions": partitions} for topic, partitions in topics.items()],
    )
