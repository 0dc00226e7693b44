"""Reconciliation: the next step of a member from what it may own to its target assignment, as a pure function.

    STABLE                 the target has a new epoch                         -> below, by what it owns
    UNREVOKED_PARTITIONS   it has acknowledged that it owns none of those     -> below, by what it owns
    UNRELEASED_PARTITIONS  at each heartbeat                                  -> below, by what is free

    something to revoke                     UNREVOKED_PARTITIONS, in the epoch that it has
    else, something that others still own   UNRELEASED_PARTITIONS, in the epoch of the target, with what is free
    else                                    STABLE, in the epoch of the target

A partition is revoked by its former owner, and acknowledged, before it is assigned to the next. Only a member that has
to revoke acknowledges: one that has never heard of it owns the partition still. What a member keeps has its former
assignment epoch, what it gets that of the target. Source: KIP-848, KIP-1251.
"""

from __future__ import annotations

from collections.abc import Callable

from kreplog.core.consumer_group_messages import Assignment, CurrentAssignment, MemberState
from kreplog.core.groups.assignments import NOTHING, assigned_since, current_assignment, to_partitions
from kreplog.core.groups.assignors import Partition, Partitions


def reconcile(
    current: CurrentAssignment,
    target_epoch: int,
    target: Partitions,
    owned: Assignment | None,
    is_free: Callable[[Partition], bool],
) -> CurrentAssignment:
    """The partitions that a member may own from now on. owned: those that it says it owns, None if that has not
    changed. is_free: whether no other member owns a partition, or has yet to revoke it."""
    epoch = current.member_epoch
    match current.state:
        case MemberState.STABLE if epoch == target_epoch:
            return current
        case MemberState.UNREVOKED_PARTITIONS:
            if not has_revoked(current, owned):
                return current
            epoch = min(epoch + 1, target_epoch)
    return _next(current, epoch, target_epoch, target, is_free)


def has_revoked(current: CurrentAssignment, owned: Assignment | None) -> bool:
    """Whether the member owns nothing any more of what it has to revoke."""
    return owned is not None and to_partitions(owned).isdisjoint(to_partitions(current.pending_revocation))


def _next(
    current: CurrentAssignment,
    epoch: int,
    target_epoch: int,
    target: Partitions,
    is_free: Callable[[Partition], bool],
) -> CurrentAssignment:
    assigned = to_partitions(current.assigned)
    revoked, wanted = assigned - target, target - assigned
    if revoked:
        return _moved(current, epoch, MemberState.UNREVOKED_PARTITIONS, assigned & target, revoked, target_epoch)
    free = frozenset(filter(is_free, wanted))
    state = MemberState.STABLE if free == wanted else MemberState.UNRELEASED_PARTITIONS
    return _moved(current, target_epoch, state, assigned | free, NOTHING, target_epoch)


def _moved(
    current: CurrentAssignment,
    epoch: int,
    state: MemberState,
    assigned: Partitions,
    revoked: Partitions,
    target_epoch: int,
) -> CurrentAssignment:
    previous = current.previous_member_epoch if epoch == current.member_epoch else current.member_epoch
    return current_assignment((epoch, previous), state, assigned, revoked, assigned_since(current), target_epoch)
