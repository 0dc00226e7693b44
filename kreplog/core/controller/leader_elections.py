"""Leader elections on request, preferred and unclean ones; and preferred ones where too many of a broker's partitions
are led by others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kreplog.core import nodes
from kreplog.core.controller import election_policies
from kreplog.core.controller.election_policies import ElectionPolicy
from kreplog.core.controller.reassignment import is_under_way
from kreplog.core.controller.state_machines import StateMachines
from kreplog.core.controller.topic_changes import TopicChanges
from kreplog.core.controller.transitions import PartitionStatus
from kreplog.core.effects import GetNodes, Nodes, StateChange, Steps
from kreplog.errors import CoordinationError, ErrorCode
from kreplog.types import NO_LEADER, Delete, ElectionType, TopicPartition


class LeaderAndPreferred(NamedTuple):
    """The leader of a partition, NO_LEADER for none, and its preferred leader: ids of brokers."""

    leader: int
    preferred: int

    def needs(self, kind: ElectionType) -> bool:
        """Whether an election of this kind has something to do."""
        return self.leader != self.preferred if kind is ElectionType.PREFERRED else self.leader == NO_LEADER


ELECTIONS: Mapping[str, ElectionPolicy] = {
    nodes.PREFERRED_ELECTION: election_policies.elect_preferred,
    nodes.UNCLEAN_ELECTION: election_policies.elect_unclean,
}
"""What the nodes of requests elect."""

_NOT_ELECTED = {
    ElectionType.PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    ElectionType.UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}


def requested_election(election_type: int) -> ElectionType | None:
    """The kind that an ElectLeaders request names; None: it is refused with INVALID_REQUEST. The simulator runs neither
    this rule nor the next three, nor LeaderAndPreferred: its operators name the partitions themselves, and get no
    response for each."""
    return ElectionType(election_type) if election_type in list(ElectionType) else None


def to_elect(kind: ElectionType, before: Mapping[TopicPartition, LeaderAndPreferred | None]) -> list[TopicPartition]:
    """The partitions of a request that need an election. before: their leadership, None for one that does not exist."""
    return [partition for partition, found in before.items() if found is not None and found.needs(kind)]


def is_reported(error: ErrorCode, of_all: bool) -> bool:
    """Whether a response has a partition with this error code. of_all: the request was for all partitions, of which
    those that needed no election are not of interest."""
    return not (of_all and error is ErrorCode.ELECTION_NOT_NEEDED)


def election_error(
    kind: ElectionType, before: LeaderAndPreferred | None, after: LeaderAndPreferred | None
) -> ErrorCode:
    """The error code of a leader election, of the leadership before and after it; None: there is no such partition.
    Source: Kafka, ElectLeaders (KIP-460)."""
    if before is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not before.needs(kind):
        return ErrorCode.ELECTION_NOT_NEEDED
    return ErrorCode.NONE if after is not None and not after.needs(kind) else _NOT_ELECTED[kind]


class LeaderElections:
    """Elects leaders on request, and preferred ones where too many of a broker's partitions are led by others."""

    def __init__(self, machines: StateMachines, topics: TopicChanges) -> None:
        self._machines = machines
        self._context = machines.context
        self._topics = topics

    def on_failover(self) -> Steps[None]:
        """Carry out a preferred election that the last controller has left, and drop an unclean one: meanwhile replicas
        in sync may be about to return, and the topic may be another."""
        yield from self.on_request(nodes.PREFERRED_ELECTION)
        dropped: Nodes = yield GetNodes((nodes.UNCLEAN_ELECTION,), watch=True)
        if dropped[0] is not None:
            yield StateChange("error", "an unclean election, requested before this controller was elected, is dropped")
            yield from self._topics.delete_requests([Delete(nodes.UNCLEAN_ELECTION)])

    def on_request(self, path: str) -> Steps[None]:
        """Elect leaders as a node of the store requests.

        path: a node of ELECTIONS, which names partitions; a preferred election with none is of all."""
        found: Nodes = yield GetNodes((path,), watch=True)
        if found[0] is None:
            return
        try:
            requested: Iterable[TopicPartition] = nodes.decode_partitions(path, found[0])
        except CoordinationError as error:
            yield StateChange("error", str(error))
        else:
            if not requested and path == nodes.PREFERRED_ELECTION:
                requested = self._context.active_partitions()
            yield from self._elect(requested, ELECTIONS[path])
        yield from self._topics.delete_requests([Delete(path)])

    def on_imbalance(self, percentage: int) -> Steps[None]:
        """Elect where more than `percentage` of the partitions that prefer a broker are led by others."""
        preferring: dict[int, list[TopicPartition]] = {}
        for partition in self._context.active_partitions():
            if not is_under_way(self._context.assignment(partition)):
                preferring.setdefault(self._context.replicas(partition)[0], []).append(partition)
        for broker, partitions in sorted(preferring.items()):
            elsewhere = [partition for partition in partitions if self._context.states[partition].leader != broker]
            if len(elsewhere) * 100 > percentage * len(partitions):
                yield from self._elect(elsewhere, election_policies.elect_preferred)

    def _elect(self, partitions: Iterable[TopicPartition], policy: ElectionPolicy) -> Steps[None]:
        context = self._context
        present = [
            partition
            for partition in partitions
            if partition in context.states
            and context.has_partition(partition)
            and not context.is_pending_deletion(partition)
        ]
        yield from self._machines.partitions.handle_state_changes(present, PartitionStatus.ONLINE, policy)
        yield from self._machines.batch.send()
