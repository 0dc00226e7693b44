"""A shell for tests of groups with members of both protocols. Those of the classic protocol rejoin as clients do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kreplog.core.group_messages import (
    CommitPartition,
    HeartbeatRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    MemberIdentity,
    OffsetCommitRequest,
    SyncGroupRequest,
    partition_of_group,
)
from kreplog.core.groups.subscription import read_assignment, write_assignment
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

from .consumers import CONFIG, Consumer
from .group_shell import GROUP, PARTITIONS, TOPIC, GroupShell

AT = partition_of_group(GROUP, PARTITIONS)
QUICK = replace(CONFIG, group_initial_rebalance_delay_ms=0)


def metadata(topics: Iterable[str], owned: Iterable[TopicPartition] = (), version: int = 3) -> bytes:
    """A subscription of the consumer protocol."""
    names = [len(name).to_bytes(2, "big") + name.encode() for name in topics]
    parts = [version.to_bytes(2, "big"), len(names).to_bytes(4, "big"), *names, b"\xff\xff\xff\xff"]
    if version >= 1:
        parts.append(write_assignment(owned, 0)[2:-4])
    if version >= 2:
        parts.append(b"\xff\xff\xff\xff")
    if version >= 3:
        parts.append(b"\xff\xff")
    return b"".join(parts)


class Classic:
    """A member of the classic protocol, which leads if it is to. eager: it gives up all before it joins. error: of the
    last response, None while its JoinGroup or SyncGroup has none."""

    def __init__(self, shell: GroupShell, name: str, *, eager: bool = False, **fields: Any) -> None:
        self.shell, self.name, self.eager, self.fields = shell, name, eager, fields
        self.member_id, self.generation = "", -1
        self.owned: frozenset[TopicPartition] = frozenset()
        self.joined: JoinGroupResponse | None = None
        self.error: ErrorCode | None = None

    def join(self) -> None:
        if self.eager:
            self.owned = frozenset()
        octets = metadata(self.fields.get("topics", ("topic",)), self.owned, 1 if self.eager else 3)
        others = {name: value for name, value in self.fields.items() if name != "topics"}
        self.take_joined(self.shell.join(self.name, self.member_id, **{"protocols": (("range", octets),), **others}))

    def take_joined(self, response: JoinGroupResponse | None = None) -> None:
        response = response or self.shell.replies.get(f"join {self.name}")
        self.joined = response
        if response is not None:
            self.error = response.error
            self.member_id = response.member_id or self.member_id
            if response.error is ErrorCode.NONE:
                self.generation = response.generation_id

    def sync(self, *assigned: tuple[str, bytes]) -> None:
        request = SyncGroupRequest(
            GROUP, self.generation, self.member_id, self.fields.get("instance_id"), "consumer", "range", assigned
        )
        self.take_synced(self.shell.put(f"sync {self.name}", request))

    def take_synced(self, response: Any = None) -> None:
        response = response or self.shell.replies[f"sync {self.name}"]
        self.error = response.error
        if response.error is ErrorCode.NONE:
            self.owned = read_assignment(response.assignment) or frozenset()

    def heartbeat(self) -> ErrorCode:
        request = HeartbeatRequest(GROUP, self.generation, self.member_id, self.fields.get("instance_id"))
        self.error = self.shell.put(f"beat {self.name}", request).error
        return self.error

    def follow(self) -> None:
        """A heartbeat, and a rejoin if the response says so."""
        if self.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS:
            self.join()
            if self.error is ErrorCode.NONE:
                self.sync()

    def commit(self, offset: int, generation: int | None = None) -> ErrorCode:
        generation = self.generation if generation is None else generation
        commits = (CommitPartition(TOPIC, offset),)
        request = OffsetCommitRequest(GROUP, generation, self.member_id, self.fields.get("instance_id"), commits)
        ((_, error),) = self.shell.put(f"commit {offset}", request).partitions
        return ErrorCode(error)

    def leave(self) -> ErrorCode:
        response = self.shell.put("leave", LeaveGroupRequest(GROUP, (MemberIdentity(self.member_id),)))
        ((_, error),) = response.members
        return ErrorCode(error)

    @property
    def numbers(self) -> list[int]:
        return sorted(partition.partition for partition in self.owned)


def formed(shell: GroupShell, *members: Classic) -> None:
    """Have these members form a generation, which share four partitions of "topic" in turn."""
    for member in members:
        member.join()
    shell.pass_time(shell.config.group_initial_rebalance_delay_ms)
    given: dict[str, list[TopicPartition]] = {}
    for member in members:
        member.take_joined()
        given[member.member_id] = []
    for number in range(4):
        given[members[number % len(members)].member_id].append(TopicPartition("topic", number))
    assigned = [(name, write_assignment(partitions, 1)) for name, partitions in given.items()]
    for member in members[1:]:
        request = SyncGroupRequest(GROUP, member.generation, member.member_id, member.fields.get("instance_id"))
        shell.put(f"sync {member.name}", request)
    members[0].sync(*assigned)
    for member in members[1:]:
        member.take_synced()


def settled(*members: Classic | Consumer, rounds: int = 8) -> None:
    for _ in range(rounds):
        for member in members:
            if isinstance(member, Classic):
                member.follow()
            else:
                member.acknowledge()


def all_numbers(*members: Classic | Consumer) -> list[int]:
    return sorted(number for member in members for number in member.numbers)


def kind(shell: GroupShell) -> str:
    (group,) = shell.put("list", ListGroupsRequest()).groups
    return str(group.type)
