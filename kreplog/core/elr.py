"""Eligible leader replicas (ELR): which replicas may be elected although they have left the ISR (KIP-966).

The high watermark does not advance while the ISR is smaller than min.insync.replicas. So a replica that leaves such an
ISR, or whose leaving makes it that small, holds all that is committed until the ISR is large enough again: it is
eligible. Partition leaders and the controller both change ISRs, and both go by this rule. ISRs and ELRs are sorted.
"""

from __future__ import annotations

from collections.abc import Collection

from kreplog.types import LeaderAndIsr


def elr_after(
    old_isr: Collection[int], old_elr: Collection[int], new_isr: Collection[int], min_isr: int
) -> tuple[int, ...]:
    """The eligible leader replicas once `new_isr` replaces `old_isr`: sorted, disjoint from `new_isr`.

    min_isr: min.insync.replicas of the topic, 1 or more. With that many members the ISR can commit again without the
    others, so no other replica stays eligible. Source: KIP-966.
    """
    if len(new_isr) >= min_isr:
        return ()
    return tuple(sorted({*old_isr, *old_elr}.difference(new_isr)))


def shrink(current: LeaderAndIsr, removed: Collection[int], min_isr: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The (isr, elr) of `current` once the brokers in `removed` have left its ISR.

    An ISR is never emptied: if all its members are to leave, both stay as they are, since only the members are known to
    hold all that is committed. The leader is the caller's concern. Source: KIP-966.
    """
    isr = tuple(broker for broker in current.isr if broker not in removed)
    if not isr or isr == current.isr:
        return current.isr, current.elr
    return isr, elr_after(current.isr, current.elr, isr, min_isr)
