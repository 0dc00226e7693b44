"""The membership of a process in a group whose offsets it commits with transactions, without I/O (KIP-447).

The process sends heartbeats between its transactions, and joins again when it has to. It is to own nothing, so that an
assignment has no partitions: what matters is its generation, and the one before, in which another thread of the process
may still act. Of a group whose coordinator assigns (KIP-848), the epoch of the member is its generation.
"""

from __future__ import annotations

from typing import Any

from kreplog.core.consumer_group_messages import JOIN_EPOCH, ConsumerGroupHeartbeatRequest
from kreplog.core.group_messages import (
    NO_GENERATION,
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from kreplog.errors import ErrorCode
from kreplog.sim.clients.group_client import REBALANCE_MS, SESSION_MS
from kreplog.sim.clients.member_offsets import Steps, call_coordinator
from kreplog.sim.clients.workload import ClientContext, ClientMetadata, Sleep

_REJOIN = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID},
)
_FENCED = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND})

UNCREATED_TOPIC = "uncreated"


class GroupMembership:
    """A member, or a process that is about to be one. member_id: "" for none yet. generation: the last that it has
    joined. assigned: the last whose assignment it has, and former: that before, both as the same member; NO_GENERATION
    for none."""

    def __init__(self, context: ClientContext, metadata: ClientMetadata, group_id: str) -> None:
        self._group_id = group_id
        self._name = context.name
        self._settings = context.settings
        self._switch = context.switch
        self._metadata = metadata
        self._forget()

    def _forget(self) -> None:
        self.member_id = ""
        self.generation = self.assigned = self.former = NO_GENERATION

    def renew(self) -> Steps:
        """Whether the coordinator has confirmed the generation, or given another; not if the run ends before."""
        while not self._switch.off:
            error: ErrorCode | None = ErrorCode.ILLEGAL_GENERATION
            if self.generation != NO_GENERATION:
                response = yield from self._call(HeartbeatRequest(self._group_id, self.generation, self.member_id))
                error = None if response is None else response.error
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                self._forget()
            if error is ErrorCode.NONE:
                return True
            if error in _REJOIN and (yield from self.join()) and (yield from self.synchronize()):
                return True
            yield Sleep(self._settings.backoff_ms)
        return False

    def join(self) -> Steps:
        """Whether the member is in a generation, which begins if it leads the group, and waits for assignments."""
        request = JoinGroupRequest(
            self._group_id,
            self.member_id,
            None,
            self._name,
            "",
            SESSION_MS,
            REBALANCE_MS,
            "simulated",
            (("copy", b""),),
            requires_member_id=True,
        )
        response = yield from self._call(request, REBALANCE_MS)
        if response is None:
            return False
        if response.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = response.member_id
        elif response.error is ErrorCode.UNKNOWN_MEMBER_ID:
            self._forget()
        if response.error is not ErrorCode.NONE:
            return False
        self.generation = response.generation_id
        return True

    def synchronize(self) -> Steps:
        """Whether the generation has its assignment."""
        request = SyncGroupRequest(self._group_id, self.generation, self.member_id)
        response = yield from self._call(request, REBALANCE_MS)
        if response is None or response.error is not ErrorCode.NONE:
            return False
        self._follow()
        return True

    def _follow(self) -> None:
        """The generation has its assignment."""
        if self.generation != self.assigned:
            self.former, self.assigned = self.assigned, self.generation

    def _call(self, request: Any, more_ms: int = 0) -> Steps:
        """The coordinator's response, None for none."""
        _, response = yield from call_coordinator(self._metadata, self._group_id, request, more_ms)
        return response


class EpochMembership(GroupMembership):
    """A member of a group whose coordinator assigns. It reads a topic that does not exist."""

    def renew(self) -> Steps:
        while not self._switch.off:
            if (yield from self.join()) and (yield from self.synchronize()):
                return True
            yield Sleep(self._settings.backoff_ms)
        return False

    def join(self) -> Steps:
        """Whether a heartbeat was answered with the member's epoch, which may be another one than before."""
        joins = self.generation == NO_GENERATION
        request = ConsumerGroupHeartbeatRequest(
            self._group_id,
            self.member_id,
            JOIN_EPOCH if joins else self.generation,
            rebalance_timeout_ms=REBALANCE_MS if joins else -1,
            subscribed_topics=(UNCREATED_TOPIC,) if joins else None,
            owned=() if joins else None,
            needs_member_id=True,
            client_id=self._name,
        )
        response = yield from self._call(request)
        if response is None:
            return False
        if response.error is not ErrorCode.NONE:
            if response.error in _FENCED:
                self._forget()
            return False
        self.member_id, self.generation = response.member_id, response.member_epoch
        return True

    def synchronize(self) -> Steps:
        """Nothing more than the heartbeat had."""
        yield from ()
        self._follow()
        return True
