"""ControlChannel: the controller's queue of requests to one registration of a broker, sent strictly in order.

One request is in flight to a broker at a time, and is sent again, after RETRY_BACKOFF_MS, until the broker responds.
The requests queued meanwhile are coalesced into as few as have the same effect. A channel belongs to one registration
of its broker and ends with it, with whatever is still queued (F30). Source: Kafka's ControllerChannelManager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from kreplog.core.effects import SendControl
from kreplog.core.events import ControlReplied
from kreplog.core.messages import ControlRequest, ControlResponse, LeaderAndIsrRequest, UpdateMetadataRequest
from kreplog.errors import ErrorCode

RETRY_BACKOFF_MS = 300
"""Delay before a request without response is sent again: the broker may be starting, and must not be flooded."""

MAX_COALESCED_PARTITIONS = 1000
"""Maximum of partitions in a coalesced request."""


class ControlChannel:
    """The queue to one registration of a broker. retry_ms: the request in flight is not sent again before."""

    def __init__(self, broker: int, broker_epoch: int) -> None:
        self.broker = broker
        self.broker_epoch = broker_epoch
        self._waiting: deque[ControlRequest] = deque()
        self._in_flight: ControlRequest | None = None
        self.retry_ms = -1

    @property
    def idle(self) -> bool:
        """Whether the broker has responded to all requests."""
        return self._in_flight is None and not self._waiting

    def put(self, request: ControlRequest) -> None:
        """Queue a request behind all others."""
        self._waiting.append(request)

    def next_request(self, now_ms: int) -> ControlRequest | None:
        """The request to send now: the one in flight, else the next. None if there is none (`idle`), and before
        `retry_ms`."""
        if now_ms < self.retry_ms:
            return None
        if self._in_flight is None and self._waiting:
            self._in_flight = coalesce(self._waiting)
        return self._in_flight

    def replied(self, response: ControlResponse | None, now_ms: int) -> ControlReplied | None:
        """Handle the response to the request in flight; None: the connection was lost or the request timed out.

        Returns the event for the controller, or None if the request is to be sent again at `retry_ms`, as after
        BROKER_NOT_AVAILABLE: the broker has not learned yet that it is registered.
        """
        request = self._in_flight
        if request is None or response is None or response.error is ErrorCode.BROKER_NOT_AVAILABLE:
            self.retry_ms = now_ms + RETRY_BACKOFF_MS
            return None
        self._in_flight = None
        return ControlReplied(self.broker, self.broker_epoch, request, response)


class ControlChannels:
    """The channels of the controller in this process."""

    def __init__(self) -> None:
        self._channels: dict[int, ControlChannel] = {}

    def put(self, effect: SendControl) -> ControlChannel:
        """Queue a request. Returns its channel, which replaces one for another registration of that broker."""
        channel = self._channels.get(effect.broker)
        if channel is None or channel.broker_epoch != effect.broker_epoch:
            channel = self._channels[effect.broker] = ControlChannel(effect.broker, effect.broker_epoch)
        channel.put(effect.request)
        return channel

    def is_open(self, channel: ControlChannel) -> bool:
        """Whether its registration has not ended."""
        return self._channels.get(channel.broker) is channel

    def next_request(self, channel: ControlChannel, now_ms: int) -> ControlRequest | None:
        """As ControlChannel.next_request; None once the channel has ended: what it had queued is not sent (F30)."""
        return channel.next_request(now_ms) if self.is_open(channel) else None

    def replied(self, channel: ControlChannel, response: ControlResponse | None, now_ms: int) -> ControlReplied | None:
        """As ControlChannel.replied; None once the channel has ended: a response of an ended registration says nothing
        of the present one, and its request is not sent again (F30)."""
        return channel.replied(response, now_ms) if self.is_open(channel) else None

    @property
    def open(self) -> tuple[ControlChannel, ...]:
        return tuple(self._channels.values())

    @property
    def idle(self) -> bool:
        """Whether the brokers have responded to all requests, those whose registration has ended apart: a
        DrainControlChannels is over then, whether by a response or because a channel has ended."""
        return all(channel.idle for channel in self._channels.values())

    def retain(self, live: Mapping[int, int]) -> list[int]:
        """Drop the channels of registrations that are not among `live` (broker id: broker epoch); return whose."""
        ended = [broker for broker, channel in self._channels.items() if live.get(broker) != channel.broker_epoch]
        for broker in ended:
            del self._channels[broker]
        return ended


def coalesce(waiting: deque[ControlRequest]) -> ControlRequest:
    """Remove the first request from the queue, merged with as many of the next ones as possible."""
    request = waiting.popleft()
    while waiting and (both := joined(request, waiting[0])) is not None:
        request = both
        waiting.popleft()
    return request


def joined(first: ControlRequest, second: ControlRequest) -> ControlRequest | None:
    """One request with the effect of `first` and then `second`; None if there is none."""
    size = len(first.partitions) + len(second.partitions)
    if size > MAX_COALESCED_PARTITIONS or first.controller_epoch != second.controller_epoch:
        return None
    match first, second:
        case LeaderAndIsrRequest(is_init=False), LeaderAndIsrRequest(is_init=False):
            return replace(second, partitions=first.partitions + second.partitions)
        case UpdateMetadataRequest(), UpdateMetadataRequest(deleted=()):
            return replace(second, partitions=first.partitions + second.partitions, deleted=first.deleted)
    return None
