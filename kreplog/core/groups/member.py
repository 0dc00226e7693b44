"""Member: a member of a group, as its coordinator knows it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from kreplog.core.effects import Steps
from kreplog.core.group_messages import DescribedMember, JoinGroupRequest, StoredMember
from kreplog.core.memory import text_size
from kreplog.core.timers import Deadline

MEMBER_BYTES = 1200
"""Memory that a member takes besides its texts and bytes."""


def _never(now_ms: int) -> Steps[None]:
    return
    yield


@dataclass(slots=True, eq=False)
class Member:
    """A member of a group. instance_id: of a static member. protocols: (name, metadata), the preferred first.

    awaiting_join, awaiting_sync: the request that is answered when the generation begins, or when it has its
    assignment. is_new: it has never been in a generation. session: until when the coordinator must hear of it.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    awaiting_join: Hashable | None = None
    awaiting_sync: Hashable | None = None
    is_new: bool = False
    joined_ms: int = 0
    session: Deadline = field(default_factory=lambda: Deadline(_never))

    @classmethod
    def of(cls, member_id: str, request: JoinGroupRequest) -> Member:
        return cls(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
        )

    @classmethod
    def stored(cls, stored: StoredMember, protocol: str | None) -> Member:
        """A member from the record of its group's generation, which has metadata for the chosen protocol alone."""
        return cls(
            stored.member_id,
            stored.instance_id,
            stored.client_id,
            stored.client_host,
            stored.rebalance_timeout_ms,
            stored.session_timeout_ms,
            () if protocol is None else ((protocol, stored.subscription),),
            stored.assignment,
        )

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for a protocol, b"" if it does not support it."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def to_store(self, protocol: str | None, assignment: bytes) -> StoredMember:
        return StoredMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            assignment,
        )

    def described(self, protocol: str | None) -> DescribedMember:
        return DescribedMember(
            self.member_id,
            self.instance_id,
            self.client_id,
            self.client_host,
            self.metadata(protocol),
            self.assignment,
        )

    @property
    def size(self) -> int:
        """The memory that it takes, about."""
        texts = (self.member_id, self.instance_id or "", self.client_id, self.client_host)
        own = sum(map(text_size, texts)) + len(self.assignment)
        return MEMBER_BYTES + own + sum(100 + text_size(name) + len(metadata) for name, metadata in self.protocols)
