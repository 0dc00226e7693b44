"""Events: everything that a step of a core can be given. Times are monotonic milliseconds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from kreplog.core.messages import (
    ControlledShutdownResponse,
    ControlRequest,
    ControlResponse,
    FetchResponse,
    Request,
)
from kreplog.errors import CoordinationError
from kreplog.types import BrokerRegistration, TopicPartition, WatchEvent


@dataclass(frozen=True, slots=True)
class Received:
    """A request came in; the answer goes to `reply_to`, which means something to the shell alone."""

    reply_to: Hashable
    request: Request


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a Send of a FetchRequest; response is None when the connection or its time ran out."""

    leader: int
    correlation: int
    response: FetchResponse | None


@dataclass(frozen=True, slots=True)
class Flushed:
    """A Flush is done: everything below `recovery_point` has been fsynced."""

    partition: TopicPartition
    recovery_point: int


@dataclass(frozen=True, slots=True)
class OffsetFound:
    """The result of an OffsetForTimestamp: an offset and its record's timestamp in ms, both -1 where there is none."""

    tag: tuple[int, int]
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class LogFailed:
    """A log failed outside a step (a flush, a deletion); it takes no more writes."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class RetentionDue:
    """It is time to look whether a replica holds more, or older, than its topic's settings want kept."""

    partition: TopicPartition


@dataclass(frozen=True, slots=True)
class StoreReplied:
    """The outcome of a SubmitMulti (results as of a multi) or SubmitRead (a Node, or None where there is none)."""

    tag: Hashable
    results: tuple[Any, ...] = ()
    error: CoordinationError | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """This broker is registered in the store (anew) under `broker_epoch`; session_id owns its ephemeral nodes.

    is_first: no broker of this id ever was before, so no replica of it can have been lost.
    """

    broker_epoch: int
    session_id: int

    @property
    def is_first(self) -> bool:
        return self.broker_epoch == 1


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The session with the store has ended, or must be taken for ended: lead nothing until registered again."""


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """A session with the store has begun; `session_id` will own this broker's ephemeral nodes."""

    session_id: int


@dataclass(frozen=True, slots=True)
class Stopping:
    """This broker is about to stop: it says so in its registration, so that nobody takes it into an ISR (F15)."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; what is due is done."""


@dataclass(frozen=True, slots=True)
class WatchFired:
    event: WatchEvent


@dataclass(frozen=True, slots=True)
class ControlReplied:
    """A broker answered the controller; a failed send is repeated by the shell, never reported."""

    broker: int
    broker_epoch: int
    request: ControlRequest
    response: ControlResponse


@dataclass(frozen=True, slots=True)
class ControlledShutdownReplied:
    """The response to a SendShutdown; None when the connection or its time ran out."""

    attempt: int
    response: ControlledShutdownResponse | None


@dataclass(frozen=True, slots=True)
class PeersChanged:
    """The registered brokers, by id, as the controller's last UpdateMetadata names them."""

    brokers: Mapping[int, BrokerRegistration]


@dataclass(frozen=True, slots=True)
class PeerConnected:
    """The connection that a ConnectPeer wanted is there."""

    broker: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class PeerDisconnected:
    """That connection was closed by its other end."""

    broker: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class PeerUnreachable:
    """There is no such connection. refused: the host answered that nobody listens there (ECONNREFUSED); otherwise
    nothing is known."""

    broker: int
    broker_epoch: int
    refused: bool


Event = (
    Received
    | Fetched
    | Flushed
    | LogFailed
    | OffsetFound
    | RetentionDue
    | StoreReplied
    | Registered
    | SessionLost
    | SessionStarted
    | Stopping
    | Tick
    | WatchFired
    | ControlReplied
    | ControlledShutdownReplied
    | PeersChanged
    | PeerConnected
    | PeerDisconnected
    | PeerUnreachable
)
