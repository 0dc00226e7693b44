"""The membership of a process in a classic group whose offsets it commits with transactions, without I/O (KIP-447).

The process sends heartbeats between its transactions, and joins again when it has to. It is to own nothing, so that an
assignment has no partitions: what matters is its generation, and the one before, in which another thread of the process
may still act.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from kreplog.core.group_messages import (
    NO_GENERATION,
    OFFSETS_TOPIC,
    HeartbeatRequest,
    JoinGroupRequest,
    SyncGroupRequest,
)
from kreplog.errors import ErrorCode
from kreplog.sim.clients.group_client import REBALANCE_MS, SESSION_MS
from kreplog.sim.clients.workload import Call, ClientContext, ClientEffect, ClientMetadata, Sleep
from kreplog.types import NO_LEADER

_REJOIN = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_MEMBER_ID},
)

Steps = Generator[ClientEffect, Any, Any]


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
        if self.generation != self.assigned:
            self.former, self.assigned = self.assigned, self.generation
        return True

    def _call(self, request: Any, more_ms: int = 0) -> Steps:
        """The coordinator's response, None for none."""
        coordinator = self._metadata.coordinator_of(OFFSETS_TOPIC, self._group_id)
        response = None
        if coordinator != NO_LEADER:
            (response,) = yield Call(coordinator, (request,), self._settings.request_ms + more_ms)
        if response is None or response.error is ErrorCode.NOT_COORDINATOR:
            yield from self._metadata.refresh()
        return response
