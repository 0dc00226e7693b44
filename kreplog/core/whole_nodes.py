"""Whole nodes: all entries of one kind in one node of the coordination store, such as the ACLs of a cluster.

So a request applies as a whole, and brokers watch one node. It is written on condition that no other write came in
between; else the request is repeated on what that has written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from kreplog.core.effects import GetNodes, Multi, Pause, Steps
from kreplog.errors import BadVersionError, CoordinationError, NodeExistsError, NoNodeError, UsageError
from kreplog.types import Create, Node, SetData

MAX_BYTES = 1_000_000
"""Maximum of what a node in any store may hold."""

ATTEMPTS = 20
RETRY_MS = 20
"""A request that others precede is repeated after a pause that grows by this with each attempt."""

T = TypeVar("T")


def retry_pause(attempt: int) -> Pause:
    """The pause after an attempt, from 0 on, that others have preceded."""
    return Pause(RETRY_MS * (attempt + 1))


def encode_whole(content: Any, subject: str, advice: str) -> bytes:
    """The content of a node. advice: for whom it is too large, which raises UsageError."""
    data = json.dumps(content, separators=(",", ":")).encode()
    if len(data) > MAX_BYTES:
        raise UsageError(
            f"the {subject} of the cluster would take {len(data)} bytes in the coordination store, where {MAX_BYTES} "
            f"are allowed: {advice}"
        )
    return data


def alter_whole(
    path: str,
    subject: str,
    decode: Callable[[Node | None], T],
    encode: Callable[[T], bytes],
    alter: Callable[[T], T],
) -> Steps[None]:
    """Write what `alter` makes of the entries in a node; it may be called again. decode: their value, also of no node.
    Raises what these raise, CoordinationError."""
    for attempt in range(ATTEMPTS):
        (node,) = yield GetNodes((path,))
        before = decode(node)
        after = alter(before)
        if after == before:
            return
        data = encode(after)
        try:
            yield Multi((Create(path, data) if node is None else SetData(path, data, node.stat.version),))
            return
        except (NodeExistsError, NoNodeError, BadVersionError):
            yield retry_pause(attempt)
    raise CoordinationError(f"too many concurrent changes of the {subject}: try again", path=path)
