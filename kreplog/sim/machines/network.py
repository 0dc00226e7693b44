"""Network: connections between named hosts with requests one way and replies the other, which may be slow or cut.

A connection belongs to (source, destination, channel). In each direction its messages stay in order; messages of
different connections overtake each other freely. A sender learns what TCP would report: the reply, or that the
connection is closed (the other side has failed, or a time-out has closed it), never why, nor whether the request was
served. A message that meets a cut waits, as a retransmission would: it arrives late if the cut heals before the
connection is closed, and otherwise never.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Any, Protocol

from kreplog.sim.machines.scheduler import MS, Scheduler, Timer

Handler = Callable[[int, Any, str], None]
"""Takes (reply_to, request, channel) on the host that serves it."""

CLIENTS = "client"
"""The channel of those that are no brokers."""

OnReply = Callable[[Any], None]
"""Takes the response, or None when the connection is closed."""


HOLD_TIMEOUT_US = 800 * MS
"""Time-out of an attempt to open a held connection."""


class _Call:
    __slots__ = ("connection", "on_reply", "timer")

    def __init__(self, connection: VirtualConnection, on_reply: OnReply, timer: Timer | None) -> None:
        self.connection = connection
        self.on_reply = on_reply
        self.timer = timer


class VirtualConnection:
    """A connection from `source` to `destination`. calls: without a reply so far, oldest first."""

    __slots__ = (
        "backward_us",
        "calls",
        "channel",
        "destination",
        "forward_us",
        "incarnation",
        "open",
        "served",
        "source",
        "stuck",
    )

    def __init__(self, source: str, destination: str, channel: str) -> None:
        self.source = source
        self.destination = destination
        self.channel = channel
        self.open = True  # for the sender
        self.served = True  # for the receiver
        self.incarnation = 0
        self.forward_us = 0
        self.backward_us = 0
        self.calls: dict[int, _Call] = {}
        self.stuck: dict[bool, list[tuple[int, Any]]] = {}

    def __str__(self) -> str:
        return f"{self.source}->{self.destination}/{self.channel}"


class Fate(Enum):
    """The outcome of a held connection. SILENT: no answer within the time-out. RESET: the other end has closed it."""

    CONNECTED = "connected"
    REFUSED = "refused"
    SILENT = "silent"
    RESET = "reset"


class HeldConnection:
    """A connection without messages from `source` to `destination`, until it is closed. on_fate: called with its fate;
    a second time after CONNECTED, when it is reset."""

    __slots__ = ("accepted", "arrival_us", "destination", "on_fate", "open", "source")

    def __init__(self, source: str, destination: str, on_fate: Callable[[Fate], None]) -> None:
        self.source = source
        self.destination = destination
        self.on_fate = on_fate
        self.open = True
        self.accepted = False
        self.arrival_us = 0


class MessageObserver(Protocol):
    """Observes each message on its way. number: of the call, of which the response has the same. answers: whether it is
    the response."""

    def sent(self, number: int, answers: bool, source: str, destination: str, message: Any) -> None: ...

    def arrived(self, number: int, answers: bool) -> None:
        """It has reached a process that is up; others get lost."""


class Network:
    """All hosts and the links between them.

    jitter: probability that a message is late, and the maximum delay (us). slow: by (source, destination), microseconds
    added to each message; starved: by destination, minimum and maximum of them for each on a "control" channel. Cuts
    are
    counted: a link that was cut twice must be healed twice. So are refusals: links on which a host resets connections
    and refuses new ones although its process is alive. observer: may be set.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.jitter = (0.02, 20 * MS)
        self.slow: dict[tuple[str, str], int] = {}
        self.starved: dict[str, tuple[int, int]] = {}
        self.messages = 0
        self.observer: MessageObserver | None = None
        self._scheduler = scheduler
        self._random = scheduler.random
        self._handlers: dict[str, Handler] = {}
        self._incarnations: dict[str, int] = {}
        self._connections: dict[tuple[str, str, str], VirtualConnection] = {}
        self._calls: dict[int, _Call] = {}
        self._last_call = 0
        self._cuts: dict[tuple[str, str], int] = {}
        self._refusals: dict[tuple[str, str], int] = {}
        self._held: dict[HeldConnection, None] = {}
        self._held_random = Random(scheduler.fingerprint)  # separate, so that a seed takes the same course without them

    # Hosts

    def attach(self, host: str, handler: Handler) -> None:
        """`host` is up: requests to it go to `handler`."""
        self._handlers[host] = handler
        self._incarnations[host] = self._incarnations.get(host, 0) + 1

    def detach(self, host: str) -> None:
        """The process on `host` has ended. Its callers see that, each after a delay; its own calls are dropped."""
        self._handlers.pop(host, None)
        for connection in list(self._connections.values()):
            if connection.source == host:
                self._forget(connection)
            elif connection.destination == host:
                self._reset(connection)
        for held in list(self._held):
            if held.source == host:
                self.hang_up(held)
            elif held.destination == host and held.accepted:
                self._report_fate(held, Fate.RESET)

    # Calls

    def call(
        self, source: str, destination: str, channel: str, request: Any, on_reply: OnReply, timeout_us: int
    ) -> None:
        """Send `request`; `on_reply` is called once, with the response or None. A time-out closes the connection."""
        connection = self._connect(source, destination, channel)
        self._last_call += 1
        number = self._last_call
        timer = self._scheduler.after(timeout_us, self.close, connection)
        call = _Call(connection, on_reply, timer)
        self._calls[number] = call
        connection.calls[number] = call
        self._forward(connection, number, request)

    def send(self, source: str, destination: str, channel: str, request: Any) -> None:
        """Send `request`, which has no reply."""
        connection = self._connect(source, destination, channel)
        self._last_call += 1
        self._forward(connection, self._last_call, request)

    def reply(self, reply_to: int, response: Any) -> None:
        """Reply to a request; does nothing if its connection is closed."""
        call = self._calls.get(reply_to)
        if call is None or not call.connection.served:
            return
        connection = call.connection
        arrival = max(connection.backward_us, self._scheduler.now_us + self._delay(False, connection))
        connection.backward_us = arrival
        if self.observer is not None:
            self.observer.sent(reply_to, True, connection.destination, connection.source, response)
        self._scheduler.at(arrival, self._arrive_backward, connection, reply_to, response)

    def refuse_reply(self, reply_to: int) -> None:
        """The receiver of a request closes its connection; does nothing if it is closed."""
        call = self._calls.get(reply_to)
        if call is not None:
            self._reset(call.connection)

    def dial(self, source: str, destination: str, on_fate: Callable[[Fate], None]) -> HeldConnection:
        """Open a connection that carries no messages."""
        held = HeldConnection(source, destination, on_fate)
        self._held[held] = None
        self._scheduler.after(self._held_delay(), self._arrive_held, held)
        return held

    def hang_up(self, held: HeldConnection) -> None:
        """Close it from the source's end."""
        held.open = False
        self._held.pop(held, None)

    def pending(self, reply_to: int) -> bool:
        """Whether a caller still waits for the reply."""
        return reply_to in self._calls

    # Faults

    def cut(self, source: str, destination: str) -> None:
        """Messages from `source` to `destination` do not arrive any more."""
        self._cuts[source, destination] = self._cuts.get((source, destination), 0) + 1

    def heal(self, source: str, destination: str) -> None:
        """Undo one cut; messages that waited at it continue, if their connection is still open."""
        remaining = self._cuts.pop((source, destination), 0) - 1
        if remaining > 0:
            self._cuts[source, destination] = remaining
            return
        for connection in list(self._connections.values()):
            if (connection.source, connection.destination) == (source, destination):
                self._resend(connection, True)
            if (connection.source, connection.destination) == (destination, source):
                self._resend(connection, False)

    def is_cut(self, source: str, destination: str) -> bool:
        return (source, destination) in self._cuts

    def refuse(self, source: str, destination: str) -> None:
        """Connections from `source` to `destination` are reset, and new ones refused, until `accept`."""
        self._refusals[source, destination] = self._refusals.get((source, destination), 0) + 1
        for connection in list(self._connections.values()):
            if (connection.source, connection.destination) == (source, destination):
                self._reset(connection)
        for held in list(self._held):
            if (held.source, held.destination) == (source, destination) and held.accepted:
                self._report_fate(held, Fate.RESET)

    def accept(self, source: str, destination: str) -> None:
        """Undo one refusal."""
        left = self._refusals.pop((source, destination), 0) - 1
        if left > 0:
            self._refusals[source, destination] = left

    def heal_all(self) -> None:
        """Every cut, refusal and slowness ends."""
        self._refusals.clear()
        for source, destination in list(self._cuts):
            while (source, destination) in self._cuts:
                self.heal(source, destination)
        self.slow.clear()

    def connections(self) -> list[VirtualConnection]:
        """The open connections, in the order in which they were made."""
        return list(self._connections.values())

    def close(self, connection: VirtualConnection) -> None:
        """Close a connection: the sender sees it now, the receiver serves the messages that still arrive, if any."""
        if not connection.open:
            return
        connection.open = False
        if self._random.random() < 0.5:
            connection.served = False  # what is under way forwards is lost as well
        connection.stuck.clear()
        self._connections.pop((connection.source, connection.destination, connection.channel), None)
        calls, connection.calls = connection.calls, {}
        for number, call in calls.items():
            del self._calls[number]
            if call.timer is not None:
                call.timer.cancel()
            call.on_reply(None)

    # Private

    def _connect(self, source: str, destination: str, channel: str) -> VirtualConnection:
        key = (source, destination, channel)
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = VirtualConnection(source, destination, channel)
        return connection

    def _delay(self, forward: bool, connection: VirtualConnection) -> int:
        random = self._random.random
        delay = 200 + int(800 * random())
        likely, longest = self.jitter
        if likely and random() < likely:
            delay += int(longest * random())
        if self.slow:
            link = (connection.source, connection.destination)
            delay += self.slow.get(link if forward else link[::-1], 0)
        if forward and self.starved and connection.channel == "control":
            shortest, longest = self.starved.get(connection.destination, (0, 0))
            delay += shortest + int(random() * (longest - shortest))
        return delay

    def _forward(self, connection: VirtualConnection, number: int, request: Any) -> None:
        self.messages += 1
        arrival = max(connection.forward_us, self._scheduler.now_us + self._delay(True, connection))
        connection.forward_us = arrival
        if self.observer is not None:
            self.observer.sent(number, False, connection.source, connection.destination, request)
        self._scheduler.at(arrival, self._arrive_forward, connection, number, request)

    def _arrive_forward(self, connection: VirtualConnection, number: int, request: Any) -> None:
        if not connection.served:
            return
        source, destination = connection.source, connection.destination
        if True in connection.stuck or (source, destination) in self._cuts:
            if connection.open:
                connection.stuck.setdefault(True, []).append((number, request))
            return
        handler = self._handlers.get(destination)
        incarnation = self._incarnations.get(destination, 0)
        if connection.incarnation == 0:
            connection.incarnation = incarnation
        if handler is None or connection.incarnation != incarnation or (source, destination) in self._refusals:
            self._reset(connection)
            return
        if self.observer is not None:
            self.observer.arrived(number, False)
        handler(number, request, connection.channel)

    def _arrive_backward(self, connection: VirtualConnection, number: int, response: Any) -> None:
        if not connection.open:
            return
        if False in connection.stuck or (connection.destination, connection.source) in self._cuts:
            connection.stuck.setdefault(False, []).append((number, response))
            return
        call = connection.calls.pop(number, None)
        if call is None:
            return
        del self._calls[number]
        if call.timer is not None:
            call.timer.cancel()
        if self.observer is not None:
            self.observer.arrived(number, True)
        call.on_reply(response)

    def _resend(self, connection: VirtualConnection, forward: bool) -> None:
        waiting = connection.stuck.pop(forward, [])
        if not waiting:
            return
        arrival = self._scheduler.now_us + self._delay(forward, connection)
        for number, message in waiting:
            action = self._arrive_forward if forward else self._arrive_backward
            self._scheduler.at(arrival, action, connection, number, message)
        if forward:
            connection.forward_us = max(connection.forward_us, arrival)
        else:
            connection.backward_us = max(connection.backward_us, arrival)

    def _reset(self, connection: VirtualConnection) -> None:
        """The receiver has ended: the sender sees that after the replies under way, unless a cut is between them."""
        connection.served = False
        if not connection.open or (connection.destination, connection.source) in self._cuts:
            return  # only a time-out can end it
        arrival = max(connection.backward_us, self._scheduler.now_us + self._delay(False, connection))
        connection.backward_us = arrival
        self._scheduler.at(arrival, self.close, connection)

    def _forget(self, connection: VirtualConnection) -> None:
        """The sender has ended: no callback is called; messages that it has sent may still arrive."""
        connection.open = False
        connection.served = connection.served and self._random.random() < 0.5
        connection.stuck.clear()
        self._connections.pop((connection.source, connection.destination, connection.channel), None)
        for number, call in connection.calls.items():
            del self._calls[number]
            if call.timer is not None:
                call.timer.cancel()
        connection.calls = {}

    # Held connections

    def _held_delay(self) -> int:
        return 200 + int(800 * self._held_random.random())

    def _arrive_held(self, held: HeldConnection) -> None:
        """The connection attempt arrives at its destination, or is lost on the way."""
        link = held.source, held.destination
        if link in self._cuts:
            self._report_fate(held, Fate.SILENT)
        elif held.destination not in self._handlers or link in self._refusals:
            self._report_fate(held, Fate.REFUSED)
        else:
            held.accepted = True
            self._report_fate(held, Fate.CONNECTED)

    def _report_fate(self, held: HeldConnection, fate: Fate) -> None:
        """Report the fate, except across a cut: an attempt ends by its time-out there, an open connection seems
        alive."""
        if (held.destination, held.source) in self._cuts:
            if fate is Fate.RESET:
                return
            fate = Fate.SILENT
        delay_us = HOLD_TIMEOUT_US if fate is Fate.SILENT else self._held_delay()
        held.arrival_us = max(held.arrival_us, self._scheduler.now_us + delay_us)
        self._scheduler.at(held.arrival_us, self._deliver_fate, held, fate)

    def _deliver_fate(self, held: HeldConnection, fate: Fate) -> None:
        if held.open:
            if fate is not Fate.CONNECTED:
                self.hang_up(held)
            held.on_fate(fate)
