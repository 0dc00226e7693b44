"""The simulated coordination store, and its client in a broker process, with the faults of their connection.

The store itself is `kreplog.coord.memory.MemoryStore`, whose clock `StoreServer` advances. A `VirtualStoreLink` is the
client of one process: its session with heartbeats, requests and replies in order, watch events in order among the
replies. Requests and replies can be lost with the connection; then the operation may have been applied, and the caller
gets ConnectionLossError. A client fences a session that it cannot keep alive by its own clock, normally before the
store expires it; with `late_us` it does so later, so that its broker is a zombie for a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from kreplog.coord.memory import MemorySession, MemoryStore
from kreplog.errors import ConnectionLossError, CoordinationError, NoNodeError, SessionExpiredError
from kreplog.sim.machines.network import Network
from kreplog.sim.machines.scheduler import MS, Scheduler, Timer
from kreplog.types import Node, StoreOperation, WatchEvent

STORE = "store"
"""The store's host name in the network's cuts."""

EXPIRY_CHECK_MS = 50
RECONNECT_US = 60 * MS
RETRANSMIT_US = 20 * MS

Outcome = Callable[[Any, CoordinationError | None], None]
"""Takes (results, None) or (None, error)."""

Operation = Callable[[MemorySession], Any]


class _Pipe:
    """One direction of a connection: messages in order, each after a delay; blocked ones wait."""

    def __init__(self, scheduler: Scheduler, passable: Callable[[], bool]) -> None:
        self._scheduler = scheduler
        self._passable = passable
        self._last_us = 0
        self._held: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._generation = 0

    def send(self, action: Callable[..., None], *arguments: Any) -> None:
        self._last_us = max(self._last_us, self._scheduler.now_us + _delay(self._scheduler))
        self._scheduler.at(self._last_us, self._arrive, self._generation, action, arguments)

    def cut(self) -> None:
        """Messages under way never arrive."""
        self._generation += 1
        self._held.clear()
        self._last_us = 0

    def _arrive(self, generation: int, action: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if generation != self._generation:
            return
        if self._held or not self._passable():
            if not self._held:
                self._scheduler.after(RETRANSMIT_US, self._retry, generation)
            self._held.append((action, arguments))
            return
        action(*arguments)

    def _retry(self, generation: int) -> None:
        if generation != self._generation:
            return
        if not self._passable():
            self._scheduler.after(RETRANSMIT_US, self._retry, generation)
            return
        while self._held and generation == self._generation:
            action, arguments = self._held.popleft()
            action(*arguments)


def _delay(scheduler: Scheduler) -> int:
    return 300 + int(1700 * scheduler.random.random())


class StoreServer:
    """The server side: it can be unavailable, and expires sessions without heartbeats.

    An unavailable store replies to no request and expires no session; when it is back, every session timeout restarts.
    on_change: called when the tree has changed.
    """

    def __init__(self, scheduler: Scheduler, network: Network) -> None:
        self.store = MemoryStore()
        self.available = True
        self.links: dict[int, VirtualStoreLink] = {}
        self.on_change: Callable[[], None] = lambda: None
        self._seen = 0
        self._scheduler = scheduler
        self._network = network
        scheduler.after(EXPIRY_CHECK_MS * MS, self._check_sessions)

    def reachable(self, host: str, *, forwards: bool) -> bool:
        """Whether a message between `host` and the store gets through now."""
        link = (host, STORE) if forwards else (STORE, host)
        return self.available and not self._network.is_cut(*link)

    def interrupt(self) -> None:
        """The store stops answering."""
        self.available = False

    def resume(self) -> None:
        """The store answers again; session timeouts restart."""
        self.available = True
        for link in list(self.links.values()):
            link.touch()

    def expire(self, session_id: int) -> None:
        """Expire a session although its client is alive."""
        self.store.expire(session_id)
        self.changed()

    def changed(self) -> None:
        """To be called after every operation that may have changed the tree."""
        if self.store.transaction != self._seen:
            self._seen = self.store.transaction
            self.on_change()

    def _check_sessions(self) -> None:
        if self.available:
            self.store.advance(self._scheduler.now_ms)
            self.changed()
        self._scheduler.after(EXPIRY_CHECK_MS * MS, self._check_sessions)


class VirtualStoreLink:
    """One process's client of the store, for as long as the process lives; sessions come and go.

    on_connected(session_id): a new session exists. on_lost(): it has expired, or must be considered expired; call
    `connect` for another. paused: the process is stopped, heartbeats included.
    """

    def __init__(
        self,
        server: StoreServer,
        network: Network,
        scheduler: Scheduler,
        host: str,
        timeout_ms: int,
        late_us: int,
        on_connected: Callable[[int], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.session: MemorySession | None = None
        self.paused = False
        self._server = server
        self._network = network
        self._scheduler = scheduler
        self._random = scheduler.random
        self._host = host
        self._timeout_ms = timeout_ms
        self._late_us = late_us
        self._on_connected = on_connected
        self._on_lost = on_lost
        self._alive = True
        self._connection = 0  # number of the present connection; what belongs to an older one is dropped
        self._connected = False
        self._forward = _Pipe(scheduler, lambda: server.reachable(host, forwards=True))
        self._backward = _Pipe(scheduler, lambda: server.reachable(host, forwards=False))
        self._answered_us = 0
        self._waiting: dict[int, Outcome] = {}
        self._unsent: deque[tuple[int, Operation]] = deque()
        self._last = 0
        self._pushes: deque[tuple[Callable[[WatchEvent], None], WatchEvent]] = deque()
        self._watchers: dict[Callable[[WatchEvent], None], Callable[[WatchEvent], None]] = {}
        self._beat: Timer | None = None
        self._lose_next_reply = 0

    # For the shell

    def connect(self, delay_us: int = 0) -> None:
        """Request a new session, repeatedly until there is one."""
        if self._alive:
            self._scheduler.after(delay_us + _delay(self._scheduler), self._open_session)

    def close(self) -> None:
        """Close the session; the process is about to exit."""
        self._alive = False
        session = self.session
        if session is not None and self._server.reachable(self._host, forwards=True):
            self._scheduler.after(_delay(self._scheduler), self._end_session, session)

    def kill(self, notice_us: int | None) -> None:
        """The process has ended. notice_us: delay until the store ends the session, as by a closed lock; None: its
        timeout."""
        self._alive = False
        if self.session is not None and notice_us is not None:
            self._scheduler.after(notice_us, self._end_session, self.session)

    def multi(
        self, operations: Sequence[StoreOperation], outcome: Outcome, written: Callable[[], None] | None = None
    ) -> None:
        """Start a multi. written: called once the store has carried it out, whether the outcome arrives or not."""

        def write(session: MemorySession) -> tuple[Any, ...]:
            results = tuple(session.multi(operations))
            if written is not None:
                written()
            return results

        self._submit(write, outcome)

    def get_nodes(self, paths: Sequence[str], watcher: Callable[[WatchEvent], None] | None, outcome: Outcome) -> None:
        """Start reading nodes, each with a watch for `watcher`."""
        watch = None if watcher is None else self._watch(watcher)

        def read(session: MemorySession) -> list[Node | None]:
            if watch is None:
                return session.get_many(paths)
            found: list[Node | None] = []
            for path in paths:
                try:
                    found.append(session.get(path, watch))
                except NoNodeError:
                    session.exists(path, watch)
                    found.append(None)
            return found

        self._submit(read, outcome)

    def get_children(self, path: str, watcher: Callable[[WatchEvent], None] | None, outcome: Outcome) -> None:
        """Start listing a node's children."""
        watch = None if watcher is None else self._watch(watcher)

        def read(session: MemorySession) -> list[str] | None:
            try:
                return session.children(path, watch)
            except NoNodeError:
                session.exists(path, watch)
                return None

        self._submit(read, outcome)

    # Faults

    def lose_connection(self) -> None:
        """Lose the connection with all requests and replies under way."""
        if self._connected:
            self._disconnect()

    def lose_replies(self, count: int) -> None:
        """Lose the connection each time the next `count` replies to a request leave the store, once it is applied."""
        self._lose_next_reply = count

    def touch(self) -> None:
        """For the server: the session timeout restarts."""
        if self.session is not None and not self.session.expired:
            self.session.heartbeat(self._scheduler.now_ms)

    def resume(self) -> None:
        """The process continues after a pause: it checks its clock soon, but not before all other events."""
        self.paused = False
        self._scheduler.after(int(40 * MS * self._random.random()), self._heartbeat, self._connection, True)

    # Requests and replies

    def _submit(self, operation: Operation, outcome: Outcome) -> None:
        if self.session is None:
            error = SessionExpiredError("there is no session with the store")
            self._scheduler.after(100, self._give_up, outcome, error)
            return
        self._last += 1
        self._waiting[self._last] = outcome
        if self._connected:
            self._send(self._last, operation)
        else:
            self._unsent.append((self._last, operation))

    def _give_up(self, outcome: Outcome, error: CoordinationError) -> None:
        if self._alive:
            outcome(None, error)

    def _send(self, number: int, operation: Operation | None) -> None:
        """Send an operation to the store. None: a heartbeat."""
        self._forward.send(self._serve, self.session, number, operation, self._scheduler.now_us)

    def _serve(self, session: MemorySession, number: int, operation: Operation | None, sent_us: int) -> None:
        """At the store: carry out an operation."""
        results, error = None, None
        try:
            session.heartbeat(self._scheduler.now_ms)
            if operation is not None:
                results = operation(session)
                self._server.changed()
        except CoordinationError as refused:
            error = refused
        if operation is not None and self._lose_next_reply:
            self._lose_next_reply -= 1
            self._backward.send(self.lose_connection)
        else:
            self._backward.send(self._answer, number, results, error, sent_us)

    def _answer(self, number: int, results: Any, error: CoordinationError | None, sent_us: int) -> None:
        if not self._alive:
            return
        if isinstance(error, SessionExpiredError):
            self._fence()
            return
        self._answered_us = max(self._answered_us, sent_us)
        outcome = self._waiting.pop(number, None)
        if outcome is not None:
            outcome(results, error)

    # Watches

    def _watch(self, watcher: Callable[[WatchEvent], None]) -> Callable[[WatchEvent], None]:
        """The callable that stands for `watcher` in this session, always the same."""
        known = self._watchers.get(watcher)
        if known is None:
            session = self.session

            def fired(event: WatchEvent) -> None:
                if session is self.session and self._alive:
                    self._pushes.append((watcher, event))
                    if self._connected:
                        self._backward.send(self._push)

            known = self._watchers[watcher] = fired
        return known

    def _push(self) -> None:
        if self._pushes and self._alive:
            watcher, event = self._pushes.popleft()
            watcher(event)

    # The session

    def _open_session(self) -> None:
        """At the store: a request for a session arrives, or is lost without effect."""
        if not self._alive or self.session is not None:
            return
        if self.paused or not self._server.reachable(self._host, forwards=True):
            self.connect(RECONNECT_US)
            return
        session = self._server.store.connect(self._timeout_ms, None, self._scheduler.now_ms)
        self._scheduler.after(_delay(self._scheduler), self._opened, session, self._scheduler.now_us)

    def _opened(self, session: MemorySession, at_us: int) -> None:
        if not self._alive or self.session is not None:
            return
        if not self._server.reachable(self._host, forwards=False):
            self.connect(RECONNECT_US)
            return
        self.session = session
        self._server.links[session.id] = self
        self._watchers = {}
        self._pushes.clear()
        self._connection += 1
        self._connected = True
        self._answered_us = at_us - 2 * MS
        self._schedule_heartbeat()
        self._on_connected(session.id)

    def _schedule_heartbeat(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        self._beat = self._scheduler.after(self._timeout_ms * MS // 4, self._heartbeat, self._connection)

    def _heartbeat(self, connection: int, resumed: bool = False) -> None:
        """On the client's clock: fence the session if it may have expired, else send a heartbeat."""
        if not self._alive or self.paused or self.session is None:
            return
        if connection != self._connection and not resumed:
            return
        silent_us = self._scheduler.now_us - self._answered_us
        if silent_us >= self._timeout_ms * MS + self._late_us:
            self._fence()
            return
        if self._connected and silent_us >= self._timeout_ms * MS * 2 // 3:
            self._disconnect()
            return
        if self._connected:
            self._send(0, None)
        self._schedule_heartbeat()
        deadline = self._answered_us + self._timeout_ms * MS + self._late_us
        assert self._beat is not None
        if deadline < self._beat.at_us:
            self._beat.cancel()
            self._beat = self._scheduler.at(deadline, self._heartbeat, self._connection)

    def _disconnect(self) -> None:
        """All requests without a reply have failed with an unknown outcome; the session may still be kept."""
        self._connection += 1
        self._connected = False
        self._forward.cut()
        self._backward.cut()
        unsent = {number for number, _ in self._unsent}
        lost = {number: outcome for number, outcome in self._waiting.items() if number not in unsent}
        self._waiting = {number: outcome for number, outcome in self._waiting.items() if number in unsent}
        self._schedule_heartbeat()
        self._scheduler.after(RECONNECT_US, self._reconnect, self._connection)
        for outcome in lost.values():
            outcome(None, ConnectionLossError("the connection to the store was lost; the operation may be applied"))

    def _reconnect(self, connection: int) -> None:
        if not self._alive or connection != self._connection or self._connected or self.session is None:
            return
        both = self._server.reachable(self._host, forwards=True) and self._server.reachable(self._host, forwards=False)
        if self.paused or not both:
            self._scheduler.after(RECONNECT_US, self._reconnect, connection)
            return
        if self.session.expired:
            self._fence()
            return
        self._connection += 1
        self._connected = True
        now = self._scheduler.now_us
        self._answered_us = now
        self.session.heartbeat(self._scheduler.now_ms)
        self._schedule_heartbeat()
        for _ in self._pushes:
            self._backward.send(self._push)
        while self._unsent:
            self._send(*self._unsent.popleft())

    def _fence(self) -> None:
        """The session has expired, or the client must consider it expired."""
        session, self.session = self.session, None
        self._forward.cut()
        self._backward.cut()
        if session is not None:
            self._server.links.pop(session.id, None)
        self._connection += 1
        self._connected = False
        waiting, self._waiting = self._waiting, {}
        self._unsent.clear()
        self._pushes.clear()
        self._on_lost()
        for outcome in waiting.values():
            outcome(None, SessionExpiredError("the session with the store has ended"))

    def _end_session(self, session: MemorySession) -> None:
        self._server.links.pop(session.id, None)
        session.close()
        self._server.changed()
