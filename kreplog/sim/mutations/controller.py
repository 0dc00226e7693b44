"""Mutations of controllers: fencing, elections, deletion, and the requests that brokers accept of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kreplog.core import elr, nodes
from kreplog.core.controller import (
    admin_operations,
    admin_requests,
    automatic_creation,
    controller,
    election_policies,
    fencing,
    leader_and_isr_writer,
    leader_elections,
    leader_selectors,
    new_partitions,
    reassignment,
)
from kreplog.core.controller.automatic_creation import AutomaticCreation
from kreplog.core.controller.broker_changes import BrokerChanges
from kreplog.core.controller.context import ControllerContext, PartitionAndReplica
from kreplog.core.controller.deletion import Deletion
from kreplog.core.controller.election_policies import ElectionPolicy
from kreplog.core.controller.leader_elections import ELECTIONS, LeaderElections
from kreplog.core.controller.leader_selectors import Election
from kreplog.core.controller.topic_changes import TopicChanges
from kreplog.core.controller.transitions import ReplicaStatus
from kreplog.core.effects import Multi, Steps
from kreplog.core.replication import isr
from kreplog.core.replication.control_fencing import ControlFencing
from kreplog.core.replication.leader import LeaderRole
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.partition import Partition
from kreplog.errors import ErrorCode, NodeExistsError
from kreplog.sim.mutations.mutation import MutationGroup, Patch
from kreplog.types import LeaderAndIsr, StoreOperation, TopicPartition

MUTATIONS = MutationGroup()


@MUTATIONS.add("old-controller-epoch-accepted")
def _old_controller_epoch_accepted() -> list[Patch]:
    """A broker applies requests of a deposed controller (F26)."""
    return [
        (ControlFencing, "_is_stale_controller", lambda self, controller_epoch: False),
        (MetadataCache, "is_stale", lambda self, controller_epoch: False),
        (Partition, "_is_stale", lambda self, leader_epoch: False),
    ]


@MUTATIONS.add("strays-deleted")
def _strays_deleted() -> list[Patch]:
    """A broker deletes replicas that an INIT does not name: a controller with an empty context empties the cluster."""
    return [(ReplicaManager, "_set_aside", ReplicaManager._delete)]


@MUTATIONS.add("denies-before-metadata")
def _denies_before_metadata() -> list[Patch]:
    """A broker without metadata responds that partitions do not exist, and clients give up."""
    return [(MetadataCache, "from_controller", property(lambda self: True))]


@MUTATIONS.add("old-registration-accepted")
def _old_registration_accepted() -> list[Patch]:
    """A broker applies control requests for an earlier registration of it (F16, F26, KIP-380)."""
    return [
        (ControlFencing, "_is_stale_registration", lambda self, broker_epoch: False),
        (ControlFencing, "_knows_registration", lambda self, broker_epoch: True),
    ]


@MUTATIONS.add("controller-writes-unfenced")
def _controller_writes_unfenced() -> list[Patch]:
    """A controller writes without the check of the controller epoch and of versions (F27)."""
    return [(fencing, "fence", lambda context: ()), (leader_and_isr_writer, "expected_version", lambda state: -1)]


@MUTATIONS.add("unclean-election-by-default")
def _unclean_election_by_default() -> list[Patch]:
    """Any live replica may be elected when no other can, without unclean.leader.election.enable (F19)."""
    return [(ControllerContext, "unclean_allowed", lambda self, partition: True)]


@MUTATIONS.add("unclean-election-of-all")
def _unclean_election_of_all() -> list[Patch]:
    """A request for the unclean election of some partitions elects in all that have no leader."""
    right = LeaderElections._elect

    def elect(self: LeaderElections, partitions: Iterable[TopicPartition], policy: ElectionPolicy) -> Steps[None]:
        is_unclean = policy is election_policies.elect_unclean
        return right(self, self._context.active_partitions() if is_unclean else partitions, policy)

    return [(LeaderElections, "_elect", elect)]


@MUTATIONS.add("unclean-election-requests-ignored")
def _unclean_election_requests_ignored() -> list[Patch]:
    """The controller carries out requests for preferred elections alone."""
    preferred = {path: ELECTIONS[path] for path in (nodes.PREFERRED_ELECTION,)}
    return [(controller, "ELECTIONS", preferred)]


@MUTATIONS.add("unclean-election-of-none")
def _unclean_election_of_none() -> list[Patch]:
    """An unclean election on request elects only where the topic allows unclean elections anyway."""
    right = election_policies.elect_unclean

    def elect(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Election | None:
        return right(context, partition, current) if context.unclean_allowed(partition) else None

    return [(leader_elections, "ELECTIONS", {**ELECTIONS, nodes.UNCLEAN_ELECTION: elect})]


@MUTATIONS.add("old-unclean-election-carried-out")
def _old_unclean_election_carried_out() -> list[Patch]:
    """A controller carries out an unclean election that was requested of an earlier one."""

    def on_failover(self: LeaderElections) -> Steps[None]:
        for path in ELECTIONS:
            yield from self.on_request(path)

    return [(LeaderElections, "on_failover", on_failover)]


@MUTATIONS.add("elr-forgotten")
def _elr_forgotten() -> list[Patch]:
    """No eligible leader replicas: the last member of the ISR is trusted after a power failure (KIP-966, F17)."""
    return [
        (elr, "elr_after", lambda old_isr, old_elr, new_isr, min_isr: ()),
        (leader_selectors, "elr_after", lambda old_isr, old_elr, new_isr, min_isr: ()),
        (leader_selectors, "drop_unclean", lambda current, broker_id, controller_epoch: None),
        (isr, "has_min_isr", lambda members, min_insync_replicas, assigned_replicas: True),
    ]


@MUTATIONS.add("deletion-forgets-offline-replica")
def _deletion_forgets() -> list[Patch]:
    """A topic's nodes are deleted although a broker that is down still has a replica of it."""
    done = (ReplicaStatus.DELETION_SUCCESSFUL, ReplicaStatus.DELETION_INELIGIBLE)

    def is_deleted(self: Deletion, replica: PartitionAndReplica) -> bool:
        return self._context.replica_status(replica) in done

    return [(Deletion, "is_deleted", is_deleted)]


@MUTATIONS.add("gap-in-partition-numbers")
def _gap_in_partition_numbers() -> list[Patch]:
    """Partitions are added while the last ones before them are being removed."""
    return [
        (admin_requests, "_add", lambda name, operations: admin_requests._in_directory(operations)),
        (Deletion, "_is_followed", lambda self, partition: False),
        (TopicChanges, "_loses_partitions", lambda self, name: False),
    ]


@MUTATIONS.add("election-keeps-leader-epoch")
def _election_keeps_leader_epoch() -> list[Patch]:
    """A new leader is elected under the leader epoch of the old one, which may still be alive."""
    right = leader_selectors._next

    def keep_epoch(current: LeaderAndIsr, controller_epoch: int, **changes: Any) -> LeaderAndIsr:
        return right(current, controller_epoch, **changes)._replace(leader_epoch=current.leader_epoch)

    return [(leader_selectors, "_next", keep_epoch)]


@MUTATIONS.add("log-dir-event-unfenced")
def _log_dir_event_unfenced() -> list[Patch]:
    """A log dir event is written without the check of the broker epoch."""
    right = ReplicaManager._log_dir_event

    def unfenced(self: ReplicaManager, data: bytes) -> tuple[StoreOperation, ...]:
        return right(self, data)[1:]

    return [(ReplicaManager, "_log_dir_event", unfenced)]


@MUTATIONS.add("future-controller-epoch-accepted")
def _future_controller_epoch_accepted() -> list[Patch]:
    """A broker accepts an unknown later controller epoch without reading it in the store."""
    right = ControlFencing.is_unverified

    def follow(self: ControlFencing, controller_epoch: int) -> bool:
        if right(self, controller_epoch):
            self._follow_controller(controller_epoch)
        return False

    return [(ControlFencing, "is_unverified", follow)]


@MUTATIONS.add("future-broker-epoch-accepted")
def _future_broker_epoch_accepted() -> list[Patch]:
    """A leader accepts a follower's fetch with an unknown later broker epoch."""
    return [(LeaderRole, "_is_future_registration", lambda self, replica, broker_epoch: False)]


@MUTATIONS.add("topics-created-unasked")
def _topics_created_unasked() -> list[Patch]:
    """A broker creates a topic that its client does not let be created (KIP-204)."""
    right = AutomaticCreation.requested

    def requested(
        self: AutomaticCreation, name: str, unknown: ErrorCode, has_metadata: bool, allowed: bool, now_ms: int
    ) -> ErrorCode:
        return right(self, name, unknown, has_metadata, True, now_ms)

    return [(AutomaticCreation, "requested", requested)]


@MUTATIONS.add("internal-topics-created")
def _internal_topics_created() -> list[Patch]:
    """A client causes the creation of a topic that coordinators keep for themselves."""
    return [(automatic_creation, "INTERNAL", frozenset())]


@MUTATIONS.add("internal-topics-change-partitions")
def _internal_topics_change_partitions() -> list[Patch]:
    """An internal topic gets or loses partitions: its groups and transactional ids belong to others than those that
    have their state."""
    return [(new_partitions, "INTERNAL_TOPICS", frozenset())]


@MUTATIONS.add("illegal-topics-created")
def _illegal_topics_created() -> list[Patch]:
    """A broker tries to create a topic with an illegal name."""
    return [(automatic_creation, "check_topic", lambda name: None)]


@MUTATIONS.add("creation-repeated-at-once")
def _creation_repeated_at_once() -> list[Patch]:
    """A topic is created again for each request until its metadata have come."""
    return [(automatic_creation, "RETRY_MS", 0)]


@MUTATIONS.add("failed-creation-given-up")
def _failed_creation_given_up() -> list[Patch]:
    """After one attempt to create a topic there is no other, although that has failed."""
    return [(automatic_creation, "RETRY_MS", 2**62)]


@MUTATIONS.add("other-request-counts-as-written")
def _other_request_counts() -> list[Patch]:
    """A broker accepts a request for a partition, which it has not written since there is one for another partition of
    the topic."""

    def in_directory(operations: Callable[[bool], tuple[StoreOperation, ...]]) -> Steps[None]:
        try:
            yield Multi(operations(True))
        except NodeExistsError:
            return

    return [(admin_requests, "_in_directory", in_directory)]


@MUTATIONS.add("requests-by-partition-unseen")
def _requests_by_partition_unseen() -> list[Patch]:
    """New requests for partitions are taken for those that were deleted: none is noticed before a failover."""
    return [
        (
            controller,
            "_is_deleted_request",
            lambda watched: any(watched.path.startswith(under) for under in nodes.PARTITION_REQUESTS),
        )
    ]


@MUTATIONS.add("leaders-left-at-shutdown")
def _leaders_left_at_shutdown() -> list[Patch]:
    """The controller names no partition that a stopping broker still leads, of whatever number of replicas."""

    def nothing_remains(self: BrokerChanges, broker: int) -> Steps[list[TopicPartition]]:
        yield from right(self, broker)
        return []

    right = BrokerChanges.on_controlled_shutdown
    return [(BrokerChanges, "on_controlled_shutdown", nothing_remains)]


@MUTATIONS.add("missing-topics-deleted")
def _missing_topics_deleted() -> list[Patch]:
    """A broker accepts the deletion of a topic that does not exist: one that is created then is deleted."""
    right = admin_operations.delete_topic_operations
    return [(admin_requests, "delete_topic_operations", lambda name: right(name)[1:])]


@MUTATIONS.add("requests-outlive-their-topics")
def _requests_outlive_their_topics() -> list[Patch]:
    """A reassignment that was accepted just before its topic was gone is carried out on a later one of that name."""
    return [(ControllerContext, "check_request", lambda self, partition, request: None)]


@MUTATIONS.add("cancellation-keeps-new-replicas")
def _cancellation_keeps_new_replicas() -> list[Patch]:
    """A cancelled reassignment leaves the partition to the replicas that were joining, which lack records."""
    return [(reassignment, "without_joining", lambda assignment: assignment.target)]
