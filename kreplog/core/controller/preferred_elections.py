"""Preferred leader elections: on request, and where too many of a broker's partitions are led by others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kreplog.core import nodes
from kreplog.core.controller import election_policies
from kreplog.core.controller.reassignment import is_under_way
from kreplog.core.controller.state_machines import StateMachines
from kreplog.core.controller.topic_changes import TopicChanges
from kreplog.core.controller.transitions import PartitionStatus
from kreplog.core.effects import GetNodes, Nodes, StateChange, Steps
from kreplog.errors import CoordinationError, ErrorCode
from kreplog.types import TopicPartition


class Leadership(NamedTuple):
    """The leader of a partition, NO_LEADER for none, and its preferred leader: ids of brokers."""

    leader: int
    preferred: int

    @property
    def is_preferred(self) -> bool:
        return self.leader == self.preferred


PREFERRED = 0
"""The type of elections that clients may request: unclean ones are a setting of the topic."""


def election_refusal(election_type: int) -> ErrorCode:
    """The error code of a whole ElectLeaders request, NONE if it is carried out. The simulator runs neither this rule
    nor the next three: its operators write the request into the store and get no response."""
    return ErrorCode.NONE if election_type == PREFERRED else ErrorCode.INVALID_REQUEST


def to_elect(before: Mapping[TopicPartition, Leadership | None]) -> list[TopicPartition]:
    """The partitions of a request that need an election. before: their leadership, None for one that does not exist."""
    return [partition for partition, found in before.items() if found is not None and not found.is_preferred]


def is_reported(error: ErrorCode, of_all: bool) -> bool:
    """Whether a response has a partition with this error code. of_all: the request was for all partitions, of which
    those that needed no election are not of interest."""
    return not (of_all and error is ErrorCode.ELECTION_NOT_NEEDED)


def election_error(before: Leadership | None, after: Leadership | None) -> ErrorCode:
    """The error code of a preferred leader election, of the leadership before and after it; None: there is no such
    partition. Source: Kafka, ElectLeaders (KIP-460)."""
    if before is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if before.is_preferred:
        return ErrorCode.ELECTION_NOT_NEEDED
    elected = after is not None and after.is_preferred
    return ErrorCode.NONE if elected else ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


class PreferredElections:
    """Elects preferred leaders: on request, and where too many of a broker's partitions are led by others."""

    def __init__(self, machines: StateMachines, topics: TopicChanges) -> None:
        self._machines = machines
        self._context = machines.context
        self._topics = topics

    def on_request(self) -> Steps[None]:
        """/admin/preferred_replica_election names partitions, or none for all."""
        found: Nodes = yield GetNodes((nodes.PREFERRED_ELECTION,), watch=True)
        if found[0] is None:
            return
        try:
            requested = nodes.decode_partitions(nodes.PREFERRED_ELECTION, found[0])
        except CoordinationError as error:
            yield StateChange("error", str(error))
        else:
            yield from self._elect(requested or self._context.active_partitions())
        yield from self._topics.delete_requests([nodes.PREFERRED_ELECTION])

    def on_imbalance(self, percentage: int) -> Steps[None]:
        """Elect where more than `percentage` of the partitions that prefer a broker are led by others."""
        preferring: dict[int, list[TopicPartition]] = {}
        for partition in self._context.active_partitions():
            if not is_under_way(self._context.assignment(partition)):
                preferring.setdefault(self._context.replicas(partition)[0], []).append(partition)
        for broker, partitions in sorted(preferring.items()):
            elsewhere = [partition for partition in partitions if self._context.states[partition].leader != broker]
            if len(elsewhere) * 100 > percentage * len(partitions):
                yield from self._elect(elsewhere)

    def _elect(self, partitions: Iterable[TopicPartition]) -> Steps[None]:
        online = [
            partition
            for partition in partitions
            if self._context.has_leader(partition)
            and self._context.has_partition(partition)
            and not self._context.is_pending_deletion(partition)
        ]
        yield from self._machines.partitions.handle_state_changes(
            online, PartitionStatus.ONLINE, election_policies.elect_preferred
        )
        yield from self._machines.batch.send()
