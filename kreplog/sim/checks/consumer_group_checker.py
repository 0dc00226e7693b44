"""The promises of groups whose coordinator assigns the partitions, checked from what their members believe:

two owners     two members own a partition at the same time, each within its session
epoch lost     a member is fenced, or unknown, within its session: its epoch, which was acknowledged, is forgotten
join refused   a member that joins is fenced by its epoch, which nothing but a join gets it out of
stale commit   a commit is acknowledged to a member in an epoch before its own, or that is a member no longer, of a
               partition that it owned in that epoch, and another after it, before the commit was sent

What a broker answers that no longer leads the group's partition does not lengthen a session: it cannot know that it has
been replaced, and learns that within the session time-out of brokers, which is shorter than that of members. Clocks
run at the same rate.

A deleted partition has no owner: a member of the classic protocol knows names alone, and takes the partition of a topic
that was created again for the former one until it reads the metadata.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from kreplog.core.consumer_group_messages import JOIN_EPOCH
from kreplog.errors import ErrorCode
from kreplog.sim.history import ConsumerGroupEvent, EpochCommitted, MemberFenced, PartitionsOwned
from kreplog.types import TopicPartition

_FORGOTTEN = {
    ErrorCode.FENCED_MEMBER_EPOCH.name,
    ErrorCode.UNKNOWN_MEMBER_ID.name,
    ErrorCode.GROUP_ID_NOT_FOUND.name,
}


class _Belief(NamedTuple):
    """A member's belief about what it owns, and until when. broker: the last coordinator that said so; earlier: others
    before it."""

    member_id: str
    owned: frozenset[str]
    until_ms: int
    broker: int
    earlier: frozenset[int] = frozenset()

    def may_have_expired_at(self, broker: int) -> bool:
        """Whether that coordinator was replaced by another, and may have missed the member until it knew: it counts
        what it appended meanwhile once it leads again, as in Kafka."""
        return broker != self.broker and broker in self.earlier


class ConsumerGroupChecker:
    """Observes the members of such a group in one run. violate: called with the kind of a violation, its text, and
    the event. leader_of: the leader of a partition in the store. is_deleted: whether the deletion of what a member owns
    was requested."""

    def __init__(
        self,
        violate: Callable[[str, str, ConsumerGroupEvent], None],
        leader_of: Callable[[TopicPartition], int],
        is_deleted: Callable[[str], bool],
    ) -> None:
        self._violate = violate
        self._leader_of = leader_of
        self._is_deleted = is_deleted
        self._beliefs: dict[str, _Belief] = {}
        # By partition: when each member was last known to own it in each of its epochs.
        self._owned_ms: defaultdict[str, dict[tuple[str, int], int]] = defaultdict(dict)
        self.counts = {"ownerships": 0}

    def observe(self, event: ConsumerGroupEvent) -> None:
        match event:
            case PartitionsOwned():
                self._owned(event)
            case MemberFenced():
                self._fenced(event)
            case EpochCommitted(error=ErrorCode.NONE.name) if event.epoch != event.latest:
                self._committed(event)
            case _:
                pass

    def _owned(self, event: PartitionsOwned) -> None:
        before = self._beliefs.get(event.client)
        same = before if before is not None and before.member_id == event.member_id else None
        until_ms = event.until_ms
        if event.broker != self._leader_of(event.partition):
            until_ms = 0 if same is None else same.until_ms
        earlier = frozenset[int]() if same is None else same.earlier | {same.broker}
        belief = _Belief(event.member_id, frozenset(event.owned), until_ms, event.broker, earlier)
        self._beliefs[event.client] = belief
        if event.at_ms < until_ms:
            for each in belief.owned:
                self._owned_ms[each][event.member_id, event.epoch] = event.at_ms
        if belief.owned and (before is None or before.owned != belief.owned):
            self.counts["ownerships"] += 1
        for client, other in self._beliefs.items():
            both = [each for each in sorted(other.owned & belief.owned) if not self._is_deleted(each)]
            if client != event.client and both and event.at_ms < min(other.until_ms, until_ms):
                text = f"{client} and {event.client} both own {', '.join(both)}"
                self._violate("two owners", text, event)

    def _committed(self, event: EpochCommitted) -> None:
        """An acknowledged commit is not of a partition that another knew to be its own before it was sent."""
        owned_ms = self._owned_ms[event.committed]
        own_ms = owned_ms.get((event.member_id, event.epoch))
        if own_ms is None or self._is_deleted(event.committed):
            return
        others = {name for (name, _), at_ms in owned_ms.items() if own_ms < at_ms < event.sent_ms} - {event.member_id}
        if others:
            text = f"{event.client} got a commit of {event.committed} acknowledged as {event.member_id} in epoch"
            self._violate("stale commit", f"{text} {event.epoch}, after {', '.join(sorted(others))} owned it", event)

    def _fenced(self, event: MemberFenced) -> None:
        belief = self._beliefs.pop(event.client, None)
        if event.epoch == JOIN_EPOCH and event.error == ErrorCode.FENCED_MEMBER_EPOCH.name:
            text = f"{event.client} joins as {event.member_id}, and is refused for its epoch"
            self._violate("join refused", text, event)
        if belief is None or belief.member_id != event.member_id or event.epoch <= 0:
            return
        leads = event.broker == self._leader_of(event.partition) and not belief.may_have_expired_at(event.broker)
        if leads and event.error in _FORGOTTEN and event.at_ms < belief.until_ms:
            text = f"{event.client} is refused as {event.member_id} in epoch {event.epoch}: {event.error}"
            self._violate("epoch lost", text, event)
