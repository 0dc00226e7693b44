"""Leader selectors: the next leader and ISR of a partition in four situations, and after an unclean broker restart.

| selector            | used when                           | elects, of the live replicas               | else      |
|---------------------|-------------------------------------|--------------------------------------------|-----------|
| offline             | the leader has failed               | ISR, then eligible, then (if allowed) any  | NO_LEADER |
| reassigned          | the target replicas have caught up  | the leader if it stays, else target in ISR | no change |
| preferred           | the preferred leader is to lead     | the first assigned replica, if in the ISR  | no change |
| controlled_shutdown | a broker is shutting down           | ISR without the brokers shutting down      | no change |

Each goes through the assigned replicas in their order, preferred first, and depends on its arguments only: the same
facts give the same leader on any controller. Each returns the state to write, or None when there is nothing to write:
leader_epoch is one higher, controller_epoch is the caller's, and partition_epoch stays the version to compare with.

`live`: brokers that are registered and not stopping (F15), whose replica of this partition is not offline.
`min_isr`: min.insync.replicas of the topic, for KIP-966's eligible replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kreplog.core.elr import elr_after, shrink
from kreplog.types import NO_LEADER, LeaderAndIsr


@dataclass(frozen=True, slots=True)
class Election:
    """The state to write. unclean: committed records may be lost; such an election is logged and counted (F19)."""

    state: LeaderAndIsr
    unclean: bool = False


def offline(
    current: LeaderAndIsr,
    assigned: Sequence[int],
    live: Collection[int],
    unclean_allowed: bool,
    controller_epoch: int,
    min_isr: int,
) -> Election | None:
    """Elect in place of a failed leader.

    The first assigned replica that is live and
    - in the ISR: the ISR keeps its live members;
    - else eligible, so it still holds all committed records: it alone is the ISR (KIP-966);
    - else, with unclean_allowed, any: it alone is the ISR, none is eligible, and the election is unclean (KIP-106).
    Without such a replica the partition has NO_LEADER, and keeps ISR and eligible, the brokers whose return restores
    it: when A fails and then B, the ISR is B under any controller. None: it has NO_LEADER already.
    Source: the v3 design's on_broker_change, its last resort off by default.
    """
    leader = _first(assigned, live, current.isr)
    if leader is not None:
        isr = tuple(broker for broker in current.isr if broker in live)
        return Election(_elected(current, leader, isr, controller_epoch, min_isr))
    # An ISR that became large enough when min.insync.replicas was lowered may have committed without the eligible ones.
    leader = _first(assigned, live, current.elr) if len(current.isr) < min_isr else None
    if leader is not None:
        return Election(_elected(current, leader, (leader,), controller_epoch, min_isr))
    leader = _first(assigned, live, assigned) if unclean_allowed else None
    if leader is not None:
        state = _next(current, controller_epoch, leader=leader, isr=(leader,), elr=())
        return Election(state, unclean=True)
    if current.leader == NO_LEADER:
        return None
    return Election(_next(current, controller_epoch, leader=NO_LEADER, isr=current.isr, elr=current.elr))


def reassigned(
    current: LeaderAndIsr,
    target: Sequence[int],
    live: Collection[int],
    controller_epoch: int,
    min_isr: int,
) -> LeaderAndIsr | None:
    """Complete a reassignment to `target`: the leader stays if it is live and in the target, else the first in the ISR
    leads.

    Replicas outside the target leave the ISR and the eligible replicas in the same write, so that no later election
    can choose a replica that is about to be deleted. The caller waits while that leaves fewer than
    min.insync.replicas. None: no live replica of the target is in the ISR. Source: the v3 design, section F.
    """
    order = (current.leader, *target) if current.leader in target else target
    leader = _first(order, live, current.isr)
    if leader is None:
        return None
    isr = tuple(broker for broker in current.isr if broker in target)
    elr = elr_after(current.isr, current.elr, isr, min_isr)
    elr = tuple(broker for broker in elr if broker in target)
    return _next(current, controller_epoch, leader=leader, isr=isr, elr=elr)


def preferred(
    current: LeaderAndIsr, assigned: Sequence[int], live: Collection[int], controller_epoch: int
) -> LeaderAndIsr | None:
    """Elect the first assigned replica; ISR and eligible stay.

    None: it leads already, is not live, or is not in the ISR. Source: the v2 design's checkLoadBalancing.
    """
    leader = _first(assigned[:1], live, current.isr)
    if leader is None or leader == current.leader:
        return None
    return _next(current, controller_epoch, leader=leader, isr=current.isr, elr=current.elr)


def controlled_shutdown(
    current: LeaderAndIsr,
    assigned: Sequence[int],
    live: Collection[int],
    stopping: Collection[int],
    controller_epoch: int,
    min_isr: int,
) -> LeaderAndIsr | None:
    """Move leadership and ISR membership away from brokers that are shutting down; any other leader keeps leading.

    `stopping` may still be among `live`. A broker that leaves an ISR thereby smaller than min_isr stays eligible.
    None: no other member of the ISR can lead, so the state stays until the broker exits; or no broker of the ISR is
    shutting down. Source: F15; Kafka's ControlledShutdownLeaderSelector.
    """
    if current.leader not in stopping and not any(broker in stopping for broker in current.isr):
        return None
    staying = [broker for broker in current.isr if broker not in stopping]
    leader = _first((current.leader, *assigned), live, staying)
    if leader is None:
        return None
    isr, elr = shrink(current, stopping, min_isr)
    return _next(current, controller_epoch, leader=leader, isr=isr, elr=elr)


def drop_unclean(current: LeaderAndIsr, broker_id: int, controller_epoch: int) -> LeaderAndIsr | None:
    """The state after `broker_id` returned from a crash that may have lost unflushed records (F17, KIP-966).

    It is removed from the ISR and the eligible replicas. If it was the leader, the result is NO_LEADER, and `offline`
    elects next. None: it was in neither; or it is the only replica in both, so that no replica is known to hold more.
    """
    isr = tuple(broker for broker in current.isr if broker != broker_id)
    elr = tuple(broker for broker in current.elr if broker != broker_id)
    if not (isr or elr) or (isr, elr) == (current.isr, current.elr):
        return None
    leader = NO_LEADER if current.leader == broker_id else current.leader
    return _next(current, controller_epoch, leader=leader, isr=isr, elr=elr)


def _first(order: Iterable[int], live: Collection[int], among: Collection[int]) -> int | None:
    return next((broker for broker in order if broker in live and broker in among), None)


def _elected(
    current: LeaderAndIsr, leader: int, isr: tuple[int, ...], controller_epoch: int, min_isr: int
) -> LeaderAndIsr:
    elr = elr_after(current.isr, current.elr, isr, min_isr)
    return _next(current, controller_epoch, leader=leader, isr=isr, elr=elr)


def _next(
    current: LeaderAndIsr, controller_epoch: int, *, leader: int, isr: tuple[int, ...], elr: tuple[int, ...]
) -> LeaderAndIsr:
    return current._replace(
        leader=leader, leader_epoch=current.leader_epoch + 1, isr=isr, elr=elr, controller_epoch=controller_epoch
    )
