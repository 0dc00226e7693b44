"""OffsetCommit for the bulk client: positions under the name of a consumer group without members.

For positions that are held elsewhere and only shown to the tools that report the lag of groups. The commit is that of a
simple consumer, generation -1 without a member id; the coordinator refuses it while the group has members.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from kreplog.client.broker_client import Address
from kreplog.client.bulk_errors import OffsetCommitError
from kreplog.client.cluster_connections import RETRY_BACKOFF_S, ClusterConnections
from kreplog.errors import ErrorCode, PeerProtocolError
from kreplog.types import NO_EPOCH, TopicPartition
from kreplog.wire.versions import ApiKey

_GROUP = 0
_RETRIABLE = {
    *(14, 15, 16),  # COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
    *(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.REQUEST_TIMED_OUT),
}


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
    listed = [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()]
    cluster.refresh((), deadline)
    cluster.version_of_any(ApiKey.OFFSET_COMMIT, deadline)
    while True:
        failure = _try_commit(cluster, group, listed, deadline)
        if failure is None:
            return
        code, message = failure
        if code not in _RETRIABLE or time.monotonic() + RETRY_BACKOFF_S >= deadline:
            raise OffsetCommitError(f"group {group}: {message}", code=code)
        time.sleep(RETRY_BACKOFF_S)  # the coordinator may be moving, which clients are not notified of


def _try_commit(
    cluster: ClusterConnections, group: str, listed: list[dict[str, Any]], deadline: float
) -> tuple[int, str] | None:
    """None once it is committed, else the error code and what it means."""
    unreachable = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    try:
        found = cluster.call_any(ApiKey.FIND_COORDINATOR, deadline, key=group, key_type=_GROUP)
        if found.error_code:
            return found.error_code, f"the brokers name no coordinator (error {found.error_code})"
        response = cluster.call_at(
            _address(found),
            ApiKey.OFFSET_COMMIT,
            deadline,
            group_id=group,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            retention_time_ms=-1,
            topics=listed,
        )
    except OSError as error:
        return unreachable, f"the coordinator cannot be reached ({error})"
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code:
                at = TopicPartition(topic.name, partition.partition_index)
                code = partition.error_code
                return code, f"the coordinator refuses the offset of {at} (error {code})"
    return None


def _address(found: Any) -> Address:
    if not found.host or not 0 < found.port < 65536:
        raise PeerProtocolError(f"a coordinator at {found.host!r}:{found.port}")
    return found.host, found.port
