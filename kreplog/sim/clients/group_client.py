"""Members of a group in the simulator, without I/O, as clients of workload.py.

A member finds the coordinator in the metadata, joins, and synchronizes; the leader deals the partitions out. Then it
sends heartbeats, and reads and commits offsets of its partitions. Sometimes a member sleeps through its session and
goes on as if nothing had been, leaves and joins again, restarts as a static member, or acts once more in an earlier
generation. At the end each becomes a member once more, reads all offsets, and leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kreplog.core.group_messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from kreplog.errors import ErrorCode
from kreplog.sim.clients.member_offsets import MemberOffsets, Steps, call_coordinator, home_of
from kreplog.sim.clients.workload import Client, ClientContext, ClientMetadata, Sleep
from kreplog.sim.history import GroupAssigned

GROUP = "group"

SESSION_MS = 1200
REBALANCE_MS = 1500

_REJOIN = frozenset({ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS})
_NEW_MEMBER = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})


def member(context: ClientContext, partitions: int) -> Client:
    """A member until the switch is off. Every second one is static. partitions: of the topic of the groups' offsets,
    which the members share out."""
    yield from _Member(context, partitions).run()


class _Member:
    def __init__(self, context: ClientContext, partitions: int) -> None:
        self._name = context.name
        self._home = home_of(GROUP, partitions)
        self._settings = context.settings
        self._history = context.history
        self._random = context.random
        self._switch = context.switch
        self._metadata = ClientMetadata(context, internal=True)
        self._offsets = MemberOffsets(context, self._metadata, GROUP, partitions)
        self._instance = context.name if context.random.random() < 0.4 else None
        self._member_id = ""
        self._former: tuple[int, str] | None = None
        self._joined: dict[str, int] = {}
        """Places in the history where the process first began to join, by member id."""

    def run(self) -> Steps:
        while not self._switch.off:
            assigned = yield from self._become_member()
            if assigned is not None:
                yield from self._work(*assigned)
        while (yield from self._become_member()) is None:
            pass  # a group without faults takes every member
        yield from self._offsets.fetch_all()
        yield from self._call(LeaveGroupRequest(GROUP, (MemberIdentity(self._member_id, self._instance),)))

    def _become_member(self) -> Steps:
        """(generation, numbers of its partitions); None, after a pause, if that fails."""
        joined = yield from self._join()
        if joined is not None:
            names = [each.member_id for each in joined.members]
            dealt: dict[str, list[int]] = {name: [] for name in names}
            for number in self._offsets.numbers if names else ():
                dealt[names[(number + joined.generation_id) % len(names)]].append(number)
            given = tuple((name, ",".join(map(str, numbers)).encode()) for name, numbers in dealt.items())
            numbers = yield from self._sync(joined.generation_id, self._member_id, given)
            if numbers is not None:
                return joined.generation_id, numbers
        yield Sleep(self._settings.backoff_ms)
        return None

    # Requests

    def _call(self, request: Any, more_ms: int = 0) -> Steps:
        """The coordinator's response, None for none."""
        _, response = yield from call_coordinator(self._metadata, GROUP, request, more_ms)
        return response

    def _join(self) -> Steps:
        """The response that begins a generation, None if there is none."""
        request = JoinGroupRequest(
            GROUP,
            self._member_id,
            self._instance,
            self._name,
            "",
            SESSION_MS,
            REBALANCE_MS,
            "simulated",
            (("deal", b""),),
            requires_member_id=True,
        )
        since = len(self._history.events)
        if self._member_id:
            self._joined.setdefault(self._member_id, since)
        response: JoinGroupResponse | None = yield from self._call(request, REBALANCE_MS)
        if response is None:
            return None
        if response.error is ErrorCode.NONE:
            self._joined.setdefault(response.member_id, since)
        if response.error is ErrorCode.MEMBER_ID_REQUIRED or response.error is ErrorCode.NONE:
            self._member_id = response.member_id
        elif response.error in _NEW_MEMBER:
            self._member_id = ""
        return response if response.error is ErrorCode.NONE else None

    def _sync(self, generation: int, member_id: str, assignments: tuple[tuple[str, bytes], ...]) -> Steps:
        """The numbers of the partitions that the member has, None if it gets no assignment."""
        request = SyncGroupRequest(GROUP, generation, member_id, self._instance, assignments=assignments)
        response = yield from self._call(request, REBALANCE_MS)
        if response is None or response.error is not ErrorCode.NONE:
            if response is not None and response.error in _NEW_MEMBER and member_id == self._member_id:
                self._member_id = ""
            return None
        numbers = tuple(map(int, response.assignment.decode().split(","))) if response.assignment else ()
        owner, at = self._instance or member_id, self._history.now_ms()
        since = self._joined[member_id]
        where = at, self._home, "", self._name, GROUP
        self._history.add(GroupAssigned(*where, since, generation, owner, member_id, numbers))
        return numbers

    def _work(self, generation: int, numbers: Sequence[int]) -> Steps:
        """Be a member until it has to rejoin."""
        random, identity = self._random, (generation, self._member_id)
        while not self._switch.off:
            yield Sleep(random.randint(1, self._settings.pause_ms))
            fate = random.random()
            if fate < 0.03:  # a pause of the process: its session ends, and it does not know
                yield Sleep(SESSION_MS + random.randint(0, REBALANCE_MS))
            elif fate < 0.06:
                yield from self._leave()
                break
            elif fate < 0.16 and self._former is not None:
                yield from self._haunt(*self._former)
            error = None
            if numbers and random.random() < 0.7:
                error = yield from self._commit(*identity, random.choice(list(numbers)))
            else:
                response = yield from self._call(HeartbeatRequest(GROUP, *identity, self._instance))
                error = None if response is None else response.error
            if error in _NEW_MEMBER:
                self._member_id = ""
            if error in _NEW_MEMBER or error in _REJOIN:
                break
        self._former = identity

    def _haunt(self, generation: int, member_id: str) -> Steps:
        """Another thread of the process, or a former one of a static member, still acts in an earlier generation."""
        if self._random.random() < 0.5:
            yield from self._sync(generation, member_id, ())
        else:
            yield from self._commit(generation, member_id, self._random.choice(list(self._offsets.numbers)))

    def _leave(self) -> Steps:
        """A static member restarts, of which the group learns when it joins; another leaves."""
        if self._instance is None:
            yield from self._call(LeaveGroupRequest(GROUP, (MemberIdentity(self._member_id),)))
        self._member_id = ""

    def _commit(self, generation: int, member_id: str, number: int) -> Steps:
        """Read the committed offset, and commit the next. Returns the error, None if there is no response."""
        found = yield from self._offsets.fetch(number)
        if found is None:
            return None
        return (yield from self._offsets.commit(generation, member_id, self._instance, number, found + 1))
