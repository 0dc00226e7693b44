"""DescribeProducers: the idempotent producers of partitions, as the logs of this broker have them (KIP-664).

Clients send it to the leader, or to a replica of their choice, whatever its role. With it, and the transactions that
coordinators list, an administrator finds a transaction that no coordinator will end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.role import ANY_ROLE
from kreplog.errors import ErrorCode, LogClosedError, LogFailedError
from kreplog.managed_log import ManagedLog
from kreplog.server.handlers.admin import Fields, partitions_by_topic
from kreplog.server.handlers.metadata import Description
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.types import NO_EPOCH, TopicPartition


class ProducerHandlers:
    """Reads the logs of this broker."""

    def __init__(self, manager: ReplicaManager, hosted: HostedReplicas) -> None:
        self._manager = manager
        self._hosted = hosted

    def describe(self, request: Any) -> Description:
        topics = partitions_by_topic((topic.name, topic.partition_indexes) for topic in request.topics)
        found = {
            name: {number: self._log_of(TopicPartition(name, number)) for number in numbers}
            for name, numbers in topics.items()
        }
        logs = [log for partitions in found.values() for log in partitions.values() if isinstance(log, ManagedLog)]
        return sum(log.producer_count for log in logs), lambda: {
            "topics": [{"name": name, "partitions": _described(partitions)} for name, partitions in found.items()]
        }

    def _log_of(self, name: TopicPartition) -> ManagedLog | ErrorCode:
        """The log of a replica, or why this broker does not answer for it."""
        partition, replica = self._manager.partitions.get(name), self._hosted.get(name)
        if partition is None:
            return self._manager.metadata.replica_error(name)
        if (error := partition.refusal(NO_EPOCH, roles=ANY_ROLE)) is not ErrorCode.NONE:
            return error
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if replica is None else replica.log


def _described(partitions: Mapping[int, ManagedLog | ErrorCode]) -> list[Fields]:
    responses = []
    for number, log in partitions.items():
        response: Fields = {"partition_index": number, "error_code": 0, "error_message": None, "active_producers": []}
        try:
            if isinstance(log, ErrorCode):
                response["error_code"] = int(log)
            else:
                response["active_producers"] = log.active_producers()
        except LogClosedError:  # since the request came: the partition was deleted, or moves
            response["error_code"] = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        except LogFailedError as error:
            response |= {"error_code": int(error.kafka_code), "error_message": str(error)}
        responses.append(response)
    return responses
