"""Members of a group whose coordinator assigns the partitions, as clients of workload.py, and their observer.

A member joins, sends heartbeats, and owns what the responses assign to it: it gives up first what it has to revoke, at
once or a little later, and says so. It owns nothing after its session, which lasts from the last heartbeat that it sent
and that was answered. It reads the committed offsets of partitions that it gets, and commits later ones. Sometimes it
sleeps through its session, reads other topics, leaves, restarts as a static member, joins again after a heartbeat that
was not answered, or commits an offset in an earlier epoch. When all faults are over, the observer waits until each
partition of the topics that are read has an owner; then all read the offsets once more, and end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import count
from typing import Any

from kreplog.core.consumer_group_messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from kreplog.core.group_messages import OFFSETS_TOPIC
from kreplog.core.groups.assignments import to_assignment, to_partitions
from kreplog.core.messages import PartitionState
from kreplog.errors import ErrorCode
from kreplog.sim.clients.member_offsets import MemberOffsets, Steps, call_coordinator, home_of
from kreplog.sim.clients.workload import Client, ClientContext, ClientMetadata, Sleep, Switch
from kreplog.sim.history import EpochCommitted, MemberFenced, PartitionsOwned
from kreplog.types import NO_LEADER, TopicPartition

GROUP = "consumers"

SESSION_MS = 1200
HEARTBEAT_MS = 200
REBALANCE_MS = 4000

_TWIN = "twin"

_FENCED = frozenset(
    {ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
    | {ErrorCode.UNRELEASED_INSTANCE_ID, ErrorCode.GROUP_ID_NOT_FOUND}
)

Partition = tuple[str, int]
"""A topic's id and a partition's number."""


class GroupConsumer:
    """A member of the group. topics: names that it may read. calm: it does not leave, and reads the same topics.
    owned: what it owns until its session ends."""

    def __init__(
        self, context: ClientContext, partitions: int, topics: Sequence[str], settled: Switch, *, calm: bool
    ) -> None:
        self._topics = topics
        self._subscribed: frozenset[str] = frozenset()
        self.owned: frozenset[Partition] = frozenset()
        self._name = context.name
        self._home = home_of(GROUP, partitions)
        self._history = context.history
        self._random = context.random
        self._joins = copy(context.random)  # runs in which nobody joins again are as they would be without this
        self._switch = context.switch
        self._settled = settled
        self._metadata = ClientMetadata(context, internal=True)
        self._offsets = MemberOffsets(context, self._metadata, GROUP, partitions)
        # Of two processes with the same instance id, either may be the member.
        self._instance = context.random.choice((None, None, None, context.name, _TWIN))
        self._calm = calm
        self._chooses_id = context.random.random() < 0.7
        self._numbers = count(1)
        self._member_id = ""
        self._epoch = JOIN_EPOCH
        self._until_ms = 0
        self._states_all = True
        # After a lost response it reports what it owns, but sends no full request, nor one now and then.
        self._is_terse = context.name.endswith("2")
        self._missed_response = False
        self._earlier: tuple[int, str] | None = None

    def run(self) -> Client:
        """Until the observer has seen that the group is settled."""
        self._begin()
        self._subscribe()
        while not self._settled.off:
            changed = yield from self._heartbeat()
            if not self._switch.off:
                yield from self._misbehave()
            if not changed:
                yield Sleep(self._random.randint(HEARTBEAT_MS // 4, HEARTBEAT_MS))
        yield from self._offsets.fetch_all()

    def _begin(self) -> None:
        """Be another member, or the same again, that has nothing."""
        if self._random.random() < 0.7 or not self._member_id:
            self._member_id = f"{self._name}-{next(self._numbers)}" if self._chooses_id else ""
        self._epoch, self.owned, self._until_ms, self._states_all = JOIN_EPOCH, frozenset(), 0, True

    def _subscribe(self) -> None:
        names = self._random.sample(list(self._topics), self._random.randint(1, len(self._topics)))
        self._subscribed, self._states_all = frozenset(names), True

    @property
    def subscribed(self) -> frozenset[str]:
        """The topics that it reads, none while it is no member."""
        return self._subscribed if self._epoch > JOIN_EPOCH else frozenset()

    @property
    def _now_ms(self) -> int:
        return self._history.now_ms()

    # Heartbeats

    def _heartbeat(self) -> Steps:
        """Send one. Returns whether there is something to acknowledge, with the next."""
        if self._epoch > JOIN_EPOCH and self._now_ms >= self._until_ms:
            self._begin()
        sent_ms, states_all = self._now_ms, self._states_all or (self._random.random() < 0.1 and not self._is_terse)
        subscribed = tuple(sorted(self._subscribed)) if states_all else None
        request = ConsumerGroupHeartbeatRequest(
            GROUP,
            self._member_id,
            self._epoch,
            self._instance,
            rebalance_timeout_ms=REBALANCE_MS if states_all else -1,
            subscribed_topics=subscribed,
            server_assignor=self._random.choice(("uniform", "range", None)) if states_all else None,
            owned=to_assignment(self.owned) if states_all or self._missed_response else None,
            needs_member_id=not self._chooses_id,
            client_id=self._name,
        )
        self._states_all = False
        broker, response = yield from self._call(request)
        if response is None or response.error is not ErrorCode.NONE:
            self._states_all = states_all or not self._is_terse
            self._missed_response = True
            if response is not None and response.error in _FENCED:
                self._fenced(broker, response.error)
            elif self._joins.random() < 0.05:
                self._join_again()
            return False
        self._missed_response = False
        if self._epoch == JOIN_EPOCH:
            self._member_id = response.member_id or ""
        elif self._epoch != response.member_epoch:
            self._earlier = self._epoch, self._member_id
        self._epoch = response.member_epoch
        self._until_ms = sent_ms + SESSION_MS
        return (yield from self._take(broker, response))

    def _take(self, broker: int, response: ConsumerGroupHeartbeatResponse) -> Steps:
        if self._now_ms >= self._until_ms:
            self._begin()
            return False
        self._own(broker, self.owned)
        if response.assignment is None:
            return False
        assigned = to_partitions(response.assignment)
        if self.owned - assigned and self._random.random() < 0.5:
            yield Sleep(self._random.randint(1, 2 * HEARTBEAT_MS))  # its listener takes a while
            if self._now_ms >= self._until_ms:
                self._begin()
                return False
        changed = assigned != self.owned
        if changed:
            self._states_all = True
            yield from self._take_over(broker, assigned)
        return changed

    def _take_over(self, broker: int, owned: frozenset[Partition]) -> Steps:
        """Own these, and go on where their former owners had committed."""
        added = owned - self.owned
        self._own(broker, owned)
        for number in self._numbers_of(added):
            yield from self._offsets.fetch(number, *self._identity())

    def _numbers_of(self, partitions: frozenset[Partition]) -> list[int]:
        """Numbers of those that are of the topic whose offsets the members commit."""
        known = self._metadata.partitions
        return [
            number
            for number in self._offsets.numbers
            if (partition := TopicPartition(OFFSETS_TOPIC, number)) in known
            and (known[partition].topic_id, number) in partitions
        ]

    def _identity(self) -> tuple[str | None, int]:
        """The member id and epoch with which it reads offsets."""
        return self._member_id, self._epoch

    def owned_among(self, known: Mapping[TopicPartition, PartitionState]) -> frozenset[Partition]:
        """The partitions that it owns where these exist."""
        return self.owned

    def _own(self, broker: int, owned: frozenset[Partition]) -> None:
        self.owned = owned
        self._history.add(
            PartitionsOwned(
                self._now_ms,
                self._home,
                "",
                self._name,
                self._member_id,
                self._epoch,
                broker,
                tuple(f"{topic}-{number}" for topic, number in sorted(owned)),
                self._until_ms,
            )
        )

    def _fenced(self, broker: int, error: ErrorCode) -> None:
        event = MemberFenced(self._now_ms, self._home, "", self._name, self._member_id, self._epoch, broker, error.name)
        self._history.add(event)
        self._begin()

    def _join_again(self) -> None:
        """Give up all, and join as the member that it is, which its group has still or not."""
        self._own(NO_LEADER, frozenset())
        self._epoch, self._states_all = JOIN_EPOCH, True

    def _call(self, request: Any, more_ms: int = 0) -> Steps:
        return (yield from call_coordinator(self._metadata, GROUP, request, more_ms))

    # Else

    def _misbehave(self) -> Steps:
        fate = self._random.random()
        if fate < 0.02:  # a pause of the process
            yield Sleep(self._random.randint(SESSION_MS // 2, 2 * SESSION_MS))
        elif fate < 0.06 and not self._calm:
            yield from self._leave()
        elif fate < 0.1 and not self._calm:
            self._subscribe()
        elif fate < 0.3:
            yield from self._commit(self._epoch, self._member_id)
        elif fate < 0.36 and self._earlier is not None:
            yield from self._commit(*self._earlier)

    def _leave(self) -> Steps:
        """For good, or to return as a static member."""
        returns = self._instance is not None and self._random.random() < 0.7
        epoch = STATIC_LEAVE_EPOCH if returns else LEAVE_EPOCH
        member_id, self.owned = self._member_id, frozenset()
        self._own(NO_LEADER, self.owned)
        if self._epoch > JOIN_EPOCH:
            _, response = yield from self._call(ConsumerGroupHeartbeatRequest(GROUP, member_id, epoch, self._instance))
            if response is None:  # the request may arrive late, and must not meet a member that has returned
                self._member_id = ""
        self._begin()

    def _commit(self, epoch: int, member_id: str) -> Steps:
        """Read a committed offset, and commit the next: in the member's epoch, of a partition that it owns if there is
        one; or in an earlier epoch, which is refused if the partition is another's since."""
        if epoch <= JOIN_EPOCH:
            return
        latest = self._epoch if member_id == self._member_id else -1
        owned = self._numbers_of(self.owned) if epoch == latest else ()
        number = self._random.choice(owned or list(self._offsets.numbers))
        found = yield from self._offsets.fetch(number, *(self._identity() if epoch == latest else ()))
        if found is None:
            return
        sent_ms = self._now_ms
        error = yield from self._offsets.commit(epoch, member_id, None, number, found + 1)
        if error is not None:
            known = self._metadata.partitions.get(TopicPartition(OFFSETS_TOPIC, number))
            committed = "" if known is None else f"{known.topic_id}-{number}"
            self._history.add(
                EpochCommitted(
                    *(self._now_ms, self._home, "", self._name, member_id, epoch, latest, error.name),
                    committed,
                    sent_ms,
                )
            )


def observer(context: ClientContext, members: Sequence[GroupConsumer], settled: Switch) -> Client:
    """Turn `settled` off once the faults are over and the members own each partition of the topics that they read."""
    metadata = ClientMetadata(context, internal=True)
    while not settled.off:
        yield Sleep(HEARTBEAT_MS)
        if context.switch.off:
            yield from metadata.refresh()
            read = frozenset(topic for member in members for topic in member.subscribed)
            wanted = {
                (state.topic_id, partition.partition)
                for partition, state in metadata.partitions.items()
                if partition.topic in read
            }
            owned = {each for member in members for each in member.owned_among(metadata.partitions)}
            settled.off = bool(read) and wanted == owned
