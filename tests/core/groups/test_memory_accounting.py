"""Random members and tools: what a group is charged is what it has, at any time, and nothing is left at the end."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from kreplog.config import GroupConfig
from kreplog.core.events import GroupRecordsAppended
from kreplog.core.group_messages import (
    CommitPartition,
    DeleteGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    SyncGroupRequest,
)
from kreplog.core.groups.group import GROUP_BYTES, PENDING_BYTES, Group, offset_size
from kreplog.core.groups.shard import ACCOUNT
from kreplog.core.memory import MemoryAccount
from kreplog.errors import ErrorCode
from tests.core.groups.group_shell import OTHER, PARTITIONS, SESSION_MS, TOPIC, GroupShell, subscription

STEPS = 300
GROUPS = ("a", "bb", "ccc")
LIMIT = 60_000
"""Of which groups may take a half: some requests find no room."""


def size_of(group: Group) -> int:
    members = sum(member.size for member in group.members.values())
    pending = sum(PENDING_BYTES + len(member_id) for member_id in group.pending)
    offsets = sum(offset_size(stored.value.metadata) for stored in group.offsets.values())
    return GROUP_BYTES + len(group.group_id) + members + pending + offsets


class Crowd:
    """Members of three groups, in whatever order."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.memory = MemoryAccount(LIMIT)
        self.shell = GroupShell(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=4), self.memory)
        self.shell.automatic = False
        self.shell.lead()
        self.requests = 0
        self.known: list[tuple[str, str, str | None, int]] = [("a", "nobody", None, 1)]

    def put(self, request: Any) -> None:
        self.requests += 1
        self.shell.put(self.requests, request)

    def step(self) -> None:
        random, shell = self.random, self.shell
        group, member_id, instance, generation = random.choice(self.known)
        match random.randrange(12):
            case 0 | 1 | 2:
                self.join(random.choice(GROUPS), "", random.choice((None, None, "i", "j")))
            case 3:
                self.join(group, member_id, instance)
            case 4:
                assigned = ((member_id, b"x" * random.choice((0, 100, 3000))),)
                self.put(SyncGroupRequest(group, generation, member_id, instance, assignments=assigned))
            case 5:
                self.put(HeartbeatRequest(group, generation, member_id, instance))
            case 6:
                self.put(LeaveGroupRequest(group, (MemberIdentity(member_id, instance),)))
            case 7 | 8:
                identity = (generation, member_id, instance) if random.random() < 0.5 else (-1, "", None)
                commits = tuple(
                    CommitPartition(partition, 1, metadata="\xe9" * random.choice((0, 10, 2000)))
                    for partition in random.choice(((TOPIC,), (OTHER,), (TOPIC, OTHER)))
                )
                self.put(OffsetCommitRequest(group, *identity, commits))
            case 9:
                self.end_appends()
            case 10:
                shell.pass_time(random.choice((1, SESSION_MS // 2, SESSION_MS)))
            case _:
                self.seldom(group)

    def join(self, group: str, member_id: str, instance: str | None) -> None:
        random = self.random
        metadata = subscription("topic", extra=b"x" * random.choice((0, 0, 500, 5000)))
        names = ("c" * random.choice((1, 300)), "/host", SESSION_MS, 2 * SESSION_MS, "consumer")
        named = random.random() < 0.5
        self.put(JoinGroupRequest(group, member_id, instance, *names, (("range", metadata),), requires_member_id=named))

    def end_appends(self) -> None:
        if self.random.random() < 0.7:
            self.shell.commit()
        else:
            self.shell.fail(ErrorCode.NOT_ENOUGH_REPLICAS)

    def seldom(self, group: str) -> None:
        match self.random.randrange(4):
            case 0:
                self.put(DeleteGroupsRequest((group,)))
            case 1:
                self.put(OffsetDeleteRequest(group, (TOPIC,)))
            case 2:
                self.shell.delete(OTHER)
                self.shell.cluster.create("topic", 2)
            case _:
                number = self.random.randrange(PARTITIONS)
                self.fail_of(number)
                self.shell.resign(number)
                self.shell.committed[number] = len(self.shell.logs[number])
                self.shell.lead(number)

    def fail_of(self, number: int) -> None:
        """A broker that resigns learns first that its appends have failed."""
        waiting = [entry for entry in self.shell.waiting if entry[0] == number]
        self.shell.waiting = [entry for entry in self.shell.waiting if entry[0] != number]
        for _, _, effect in waiting:
            self.shell.step(GroupRecordsAppended(effect.tag, ErrorCode.NOT_LEADER_OR_FOLLOWER))

    def learn(self) -> None:
        """Members go by the responses they have got."""
        for name, response in list(self.shell.replies.items()):
            if isinstance(response, JoinGroupResponse) and response.member_id:
                found = [
                    (group.group_id, response.member_id, member.instance_id, response.generation_id)
                    for shard in self.shell.core.shards.values()
                    for group in shard.groups.values()
                    if (member := group.members.get(response.member_id)) is not None
                ]
                pending = [
                    (group.group_id, response.member_id, None, -1)
                    for shard in self.shell.core.shards.values()
                    for group in shard.groups.values()
                    if response.member_id in group.pending
                ]
                self.known = (self.known + found + pending)[-12:]
            del self.shell.replies[name]

    def check(self) -> None:
        assert self.memory.held[ACCOUNT] == self.shell.core.charged
        for shard in self.shell.core.shards.values():
            for group in shard.groups.values():
                if not group.in_flight:
                    assert group.charged == size_of(group), group.group_id


@pytest.mark.parametrize("seed", range(40))
def test_what_is_charged_is_what_there_is(seed: int) -> None:
    crowd = Crowd(seed)
    for _ in range(STEPS):
        crowd.step()
        crowd.learn()
        crowd.check()
    shell = crowd.shell
    shell.commit()
    shell.automatic = True
    shell.pass_time(20 * SESSION_MS)
    crowd.put(DeleteGroupsRequest(GROUPS))
    crowd.check()
    assert (shell.group_ids(), crowd.memory.held[ACCOUNT]) == ([], 0)
