"""A shell for tests of groups whose coordinator assigns the partitions: members that reconcile as clients do."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from kreplog.config import GroupConfig
from kreplog.core.consumer_group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedConsumerGroup,
)
from kreplog.core.groups.assignments import to_assignment, to_partitions
from kreplog.errors import ErrorCode

from .group_shell import GROUP, GroupShell

CONFIG = GroupConfig()
SESSION_MS = CONFIG.group_consumer_session_timeout_ms
REBALANCE_MS = 60_000

NEEDS_RE2 = pytest.mark.skipif(find_spec("re2") is None, reason="needs google-re2, the extra `cluster`")


class Consumer:
    """A member. epoch, owned: by the last response. error: of that. Topics are numbers of partitions of "topic" alone,
    unless a test has others."""

    def __init__(self, shell: GroupShell, name: str, **fields: Any) -> None:
        self.shell = shell
        self.name = name
        self.fields = fields
        self.epoch = 0
        self.owned: frozenset[tuple[str, int]] = frozenset()
        self.error: ErrorCode | None = None
        self.message: str | None = None

    def send(self, **changed: Any) -> ConsumerGroupHeartbeatResponse | None:
        """A heartbeat that says nothing new, besides `changed`. None while there is no response."""
        values: dict[str, Any] = {"group_id": GROUP, "member_id": self.name, "member_epoch": self.epoch} | changed
        response = self.shell.put(f"heartbeat {self.name}", ConsumerGroupHeartbeatRequest(**values))
        return None if response is None else self.take(response)

    def take(self, response: Any) -> ConsumerGroupHeartbeatResponse:
        assert isinstance(response, ConsumerGroupHeartbeatResponse)
        self.error, self.message = response.error, response.error_message
        if response.error is ErrorCode.NONE:
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.owned = to_partitions(response.assignment)
        return response

    def join(self, *topics: str, **fields: Any) -> ConsumerGroupHeartbeatResponse | None:
        self.epoch, self.owned = 0, frozenset()
        first = {"rebalance_timeout_ms": REBALANCE_MS, "subscribed_topics": topics or ("topic",), "owned": ()}
        return self.send(**(first | self.fields | fields))

    def acknowledge(self) -> ConsumerGroupHeartbeatResponse | None:
        """A heartbeat that says what it owns."""
        return self.send(owned=to_assignment(self.owned))

    def leave(self, epoch: int = -1) -> ConsumerGroupHeartbeatResponse | None:
        response = self.send(member_epoch=epoch, **self.fields)
        self.owned = frozenset()
        return response

    @property
    def numbers(self) -> list[int]:
        return sorted(number for _, number in self.owned)


def settle(*members: Consumer, rounds: int = 6) -> None:
    """Heartbeats of all in turn, until nothing can change any more."""
    for _ in range(rounds):
        for member in members:
            member.acknowledge()


def described(shell: GroupShell) -> DescribedConsumerGroup:
    (group,) = shell.put("describe", ConsumerGroupDescribeRequest((GROUP,))).groups
    assert isinstance(group, DescribedConsumerGroup)
    return group


def consumer_shell(config: GroupConfig = CONFIG, partitions: int = 4) -> GroupShell:
    shell = GroupShell(config)
    shell.cluster.create("topic", partitions)
    shell.lead()
    return shell
