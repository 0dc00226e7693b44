"""Who leads a partition next: the four leader selectors, and what an unclean return costs a replica.

| selector            | asked when                          | takes, of the live                         | else      |
|---------------------|-------------------------------------|--------------------------------------------|-----------|
| offline             | the leader is gone                  | ISR, then eligible, then (if allowed) any  | NO_LEADER |
| reassigned          | the target replicas have caught up  | the leader if it stays, else target in ISR | no change |
| preferred           | leadership is to go back home       | the first assigned replica, if in the ISR  | no change |
| controlled_shutdown | a broker has announced that it goes | ISR without those that go                  | no change |

Each looks at the assigned replicas in their order, preferred first, and at nothing but its arguments: the same facts
give the same leader, whoever the controller is. Each returns what to write, or None when there is nothing to write:
leader_epoch is one higher, controller_epoch is the caller's, and partition_epoch stays the version to compare with.

`live`: brokers that are registered and not stopping (F15), whose replica of this partition is not offline.
`min_isr`: min.insync.replicas of the topic, for KIP-966's eligible replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from kreplog.core.eligible import eligible_after, shrink
from kreplog.types import NO_LEADER, LeaderAndIsr


@dataclass(frozen=True, slots=True)
class Election:
    """What to write, and whether committed records may be lost by it; log and count an unclean one (F19)."""

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
    """Elect in place of a leader that is gone.

    The first assigned replica that is live and
    - in the ISR: the ISR keeps its live members;
    - else eligible, so it still holds all that is committed: it alone is the ISR (KIP-966);
    - else, with unclean_allowed, any: it alone is the ISR, none is eligible, and the election is unclean (KIP-106).
    With no such replica the partition has NO_LEADER, and ISR and eligible stay, for they say whose return is waited
    for: when A dies and then B, the ISR is B whoever the controller was. None: it has NO_LEADER already.
    Source: the v3 design's on_broker_change, its last resort off by default.
    """
    leader = _first(assigned, live, current.isr)
    if leader is not None:
        isr = tuple(broker for broker in current.isr if broker in live)
        return Election(_elected(current, leader, isr, controller_epoch, min_isr))
    # An ISR that became large enough when min.insync.replicas was lowered may have committed without the eligible ones.
    leader = _first(assigned, live, current.eligible) if len(current.isr) < min_isr else None
    if leader is not None:
        return Election(_elected(current, leader, (leader,), controller_epoch, min_isr))
    leader = _first(assigned, live, assigned) if unclean_allowed else None
    if leader is not None:
        state = _next(current, controller_epoch, leader=leader, isr=(leader,), eligible=())
        return Election(state, unclean=True)
    if current.leader == NO_LEADER:
        return None
    return Election(_next(current, controller_epoch, leader=NO_LEADER, isr=current.isr, eligible=current.eligible))


def reassigned(
    current: LeaderAndIsr,
    target: Sequence[int],
    live: Collection[int],
    controller_epoch: int,
    min_isr: int,
) -> LeaderAndIsr | None:
    """Hand the partition over to its `target` replicas: the leader if it stays and lives, else the first in the ISR.

    Whoever is not in the target leaves the ISR and the eligible replicas in the same write, so that no later election
    can choose a replica that is about to be deleted. Where that leaves too few for min.insync.replicas the caller
    waits. None: no live replica of the target is in the ISR. Source: the v3 design, section F.
    """
    order = (current.leader, *target) if current.leader in target else target
    leader = _first(order, live, current.isr)
    if leader is None:
        return None
    isr = tuple(broker for broker in current.isr if broker in target)
    eligible = eligible_after(current.isr, current.eligible, isr, min_isr)
    eligible = tuple(broker for broker in eligible if broker in target)
    return _next(current, controller_epoch, leader=leader, isr=isr, eligible=eligible)


def preferred(
    current: LeaderAndIsr, assigned: Sequence[int], live: Collection[int], controller_epoch: int
) -> LeaderAndIsr | None:
    """Give leadership to the first assigned replica; ISR and eligible stay.

    None: it leads already, is not live, or is not in the ISR. Source: the v2 design's checkLoadBalancing.
    """
    leader = _first(assigned[:1], live, current.isr)
    if leader is None or leader == current.leader:
        return None
    return _next(current, controller_epoch, leader=leader, isr=current.isr, eligible=current.eligible)


def controlled_shutdown(
    current: LeaderAndIsr,
    assigned: Sequence[int],
    live: Collection[int],
    stopping: Collection[int],
    controller_epoch: int,
    min_isr: int,
) -> LeaderAndIsr | None:
    """Take brokers that stop out of leadership and out of the ISR; a leader that stays goes on leading.

    `stopping` may still be among `live`. A broker that leaves an ISR thereby smaller than min_isr stays eligible.
    None: no other member of the ISR can lead, so the partition stays until the broker is really gone; or the partition
    has nothing to do with those that stop. Source: F15; Kafka's ControlledShutdownLeaderSelector.
    """
    if current.leader not in stopping and not any(broker in stopping for broker in current.isr):
        return None
    staying = [broker for broker in current.isr if broker not in stopping]
    leader = _first((current.leader, *assigned), live, staying)
    if leader is None:
        return None
    isr, eligible = shrink(current, stopping, min_isr)
    return _next(current, controller_epoch, leader=leader, isr=isr, eligible=eligible)


def drop_unclean(current: LeaderAndIsr, broker_id: int, controller_epoch: int) -> LeaderAndIsr | None:
    """What is left once `broker_id` came back from a crash that may have cost it unflushed records (F17, KIP-966).

    It is neither in the ISR nor eligible any more, and no longer leads: then NO_LEADER, and `offline` is asked next.
    None: it was neither; or it is the only replica left in both, so that nobody is known to hold more than it does.
    """
    isr = tuple(broker for broker in current.isr if broker != broker_id)
    eligible = tuple(broker for broker in current.eligible if broker != broker_id)
    if not (isr or eligible) or (isr, eligible) == (current.isr, current.eligible):
        return None
    leader = NO_LEADER if current.leader == broker_id else current.leader
    return _next(current, controller_epoch, leader=leader, isr=isr, eligible=eligible)


def _first(order: Iterable[int], live: Collection[int], among: Collection[int]) -> int | None:
    return next((broker for broker in order if broker in live and broker in among), None)


def _elected(
    current: LeaderAndIsr, leader: int, isr: tuple[int, ...], controller_epoch: int, min_isr: int
) -> LeaderAndIsr:
    eligible = eligible_after(current.isr, current.eligible, isr, min_isr)
    return _next(current, controller_epoch, leader=leader, isr=isr, eligible=eligible)


def _next(
    current: LeaderAndIsr, controller_epoch: int, *, leader: int, isr: tuple[int, ...], eligible: tuple[int, ...]
) -> LeaderAndIsr:
    return LeaderAndIsr(leader, current.leader_epoch + 1, isr, eligible, controller_epoch, current.partition_epoch)
