"""Which replicas may still lead although they left the ISR (KIP-966).

A high watermark stands still while the ISR is smaller than min.insync.replicas. So a replica that leaves such an ISR,
or whose leaving makes it so small, holds all that is committed until the ISR is large enough again: it is eligible.
Partition leaders and the controller both change ISRs, and both go by this rule. ISRs and eligible sets are sorted.
"""

from __future__ import annotations

from collections.abc import Collection

from kreplog.types import LeaderAndIsr


def eligible_after(
    old_isr: Collection[int], old_eligible: Collection[int], new_isr: Collection[int], min_isr: int
) -> tuple[int, ...]:
    """The eligible replicas once `new_isr` takes the place of `old_isr`: sorted, disjoint from `new_isr`.

    min_isr: min.insync.replicas of the topic, 1 or more. With that many members the ISR can commit again without the
    others, so nobody else stays eligible. Source: KIP-966.
    """
    if len(new_isr) >= min_isr:
        return ()
    return tuple(sorted({*old_isr, *old_eligible}.difference(new_isr)))


def shrink(current: LeaderAndIsr, removed: Collection[int], min_isr: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The (isr, eligible) of `current` once the brokers in `removed` have left its ISR.

    An ISR is never emptied: if all its members are to leave, both stay as they are, since only the members know all
    that is committed. The leader is the caller's concern. Source: KIP-966.
    """
    isr = tuple(broker for broker in current.isr if broker not in removed)
    if not isr or isr == current.isr:
        return current.isr, current.eligible
    return isr, eligible_after(current.isr, current.eligible, isr, min_isr)
