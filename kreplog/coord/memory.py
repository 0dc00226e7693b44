"""The coordination store in one process's memory: the reference for the others, and the simulator's store.

Deterministic: no clock, thread, file or randomness. Time is passed to advance() and heartbeat(); watches are called by
the operation that fired them, after it is done, in order; the events of a watch that writes are called after earlier
ones. Owned by one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from kreplog.coord.base import (
    Result,
    Watch,
    check_operation,
    check_operations,
    check_path,
    check_timeout,
    name_of,
    parent_of,
)
from kreplog.coord.sessions import SingleWrites
from kreplog.coord.tree import NodeRecord, Transaction, no_node
from kreplog.coord.watches import Watches
from kreplog.errors import SessionExpiredError
from kreplog.types import Node, NodeStat, StoreOperation, WatchEvent


class MemoryStore:
    """A CoordinationStore whose sessions share this object.

    An exception of a watch or of on_expired is raised by the call that fired it, which is done by then; later events
    are
    called by the next operation, or by deliver().
    """

    def __init__(self) -> None:
        self._nodes: dict[str, NodeRecord] = {"/": NodeRecord(b"", 0, 0, 0)}
        self._children: dict[str, set[str]] = {"/": set()}
        self._ephemerals: dict[int, set[str]] = {}
        self._sessions: dict[int, MemorySession] = {}
        self._transaction = 0
        self._last_session = 0
        self._undelivered: deque[Callable[[], None]] = deque()
        self._delivering = False

    @property
    def transaction(self) -> int:
        """The number of the last transaction; while it is the same the tree is unchanged."""
        return self._transaction

    def connect(self, timeout_ms: int, on_expired: Callable[[], None] | None = None, now_ms: int = 0) -> MemorySession:
        """As CoordinationStore.connect; `now_ms` counts as the session's first heartbeat."""
        check_timeout(timeout_ms)
        self._last_session += 1
        session = MemorySession(self, self._last_session, timeout_ms, on_expired, now_ms)
        self._sessions[session.id] = session
        self._ephemerals[session.id] = set()
        return session

    def advance(self, now_ms: int) -> None:
        """Expire every session whose last heartbeat is more than its timeout before `now_ms`, in order of their ids."""
        late = [
            session.id for session in self._sessions.values() if now_ms - session.last_heartbeat_ms > session.timeout_ms
        ]
        for session_id in late:
            self._end(session_id, expired=True)
        self.deliver()

    def expire(self, session_id: int) -> None:
        """Expire a session as if its timeout had passed; does nothing if it has ended already."""
        self._end(session_id, expired=True)
        self.deliver()

    def dump(self) -> dict[str, Node]:
        """The whole tree by path, without a session or a watch; the root included."""
        return {path: record.node for path, record in self._nodes.items()}

    def peek(self, path: str) -> Node | None:
        """A node, without a session; None if it does not exist."""
        record = self._nodes.get(path)
        return None if record is None else record.node

    def close(self) -> None:
        """Close all sessions."""
        for session_id in list(self._sessions):
            self._end(session_id, expired=False)
        self.deliver()

    def deliver(self) -> None:
        """Call the watches fired so far; each operation does so itself at its end. Does nothing inside a watch."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._undelivered:
                self._undelivered.popleft()()
        finally:
            self._delivering = False

    def _begin(self, session_id: int) -> Transaction:
        return Transaction(self._transaction + 1, session_id, self._nodes.get)

    def _commit(self, transaction: Transaction) -> None:
        if transaction.touches_nothing():
            return
        nodes = self._nodes
        for path, new in transaction.changed.items():
            old = nodes.get(path)
            if old is not None and old.owner:
                self._ephemerals[old.owner].discard(path)
            if new is None:
                if old is not None:
                    del nodes[path], self._children[path]
                    siblings = self._children.get(parent_of(path))
                    if siblings is not None:  # else the parent was deleted in the same multi
                        siblings.discard(name_of(path))
                continue
            nodes[path] = new
            if new.owner:
                self._ephemerals[new.owner].add(path)
            if old is None:
                self._children[path] = set()
                self._children[parent_of(path)].add(name_of(path))
        self._transaction = transaction.id
        for event in transaction.events:
            for session in self._sessions.values():
                session.fire(event)

    def _end(self, session_id: int, *, expired: bool) -> None:
        session = self._sessions.pop(session_id, None)
        if session is None:
            return
        on_expired = session.end()
        if expired and on_expired is not None:
            self._undelivered.append(on_expired)
        transaction = self._begin(session_id)
        transaction.remove(sorted(self._ephemerals[session_id]))
        self._commit(transaction)
        del self._ephemerals[session_id]


class MemorySession(SingleWrites):
    """A Session of a MemoryStore; made by its connect()."""

    def __init__(
        self, store: MemoryStore, id: int, timeout_ms: int, on_expired: Callable[[], None] | None, now_ms: int
    ) -> None:
        self.id = id
        self.timeout_ms = timeout_ms
        self.last_heartbeat_ms = now_ms
        self.expired = False
        self._store = store
        self._on_expired = on_expired
        self._watches = Watches()

    def heartbeat(self, now_ms: int) -> None:
        """The session is alive at `now_ms`. Raises SessionExpiredError."""
        self._check_alive()
        self.last_heartbeat_ms = max(self.last_heartbeat_ms, now_ms)

    def multi(self, operations: Sequence[StoreOperation]) -> list[Result]:
        """As Session.multi."""
        check_operations(operations)
        self._check_alive()
        transaction = self._store._begin(self.id)
        results = transaction.apply_all(operations)
        self._store._commit(transaction)
        self._store.deliver()
        return results

    def get(self, path: str, watch: Watch | None = None) -> Node:
        """As Session.get."""
        record = self._read(path)
        if record is None:
            raise no_node(path)
        if watch is not None:
            self._watches.on_data(path, watch, True)
        return record.node

    def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        """As Session.exists."""
        record = self._read(path)
        if watch is not None:
            self._watches.on_data(path, watch, record is not None)
        return None if record is None else record.node.stat

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """As Session.children."""
        if self._read(path) is None:
            raise no_node(path)
        if watch is not None:
            self._watches.on_children(path, watch)
        return sorted(self._store._children[path])

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """As Session.get_many; one snapshot."""
        records = [self._read(path) for path in paths]
        return [None if record is None else record.node for record in records]

    def close(self) -> None:
        """As Session.close."""
        self._store._end(self.id, expired=False)
        self._store.deliver()

    def fire(self, event: WatchEvent) -> None:
        """For the store: queue the watches that `event` fires."""
        for watch in self._watches.take(event):
            self._store._undelivered.append(partial(self._call, watch, event))

    def end(self) -> Callable[[], None] | None:
        """For the store: end the session; return on_expired, to be called unless the session was closed."""
        self.expired = True
        self._watches.clear()
        return self._on_expired

    def _call(self, watch: Watch, event: WatchEvent) -> None:
        if not self.expired:
            watch(event)

    def _write_single(self, operation: StoreOperation) -> Result:
        check_operation(operation)
        self._check_alive()
        transaction = self._store._begin(self.id)
        result = transaction.apply(operation)
        self._store._commit(transaction)
        self._store.deliver()
        return result

    def _read(self, path: str) -> NodeRecord | None:
        check_path(path)
        self._check_alive()
        return self._store._nodes.get(path)

    def _check_alive(self) -> None:
        if self.expired:
            raise SessionExpiredError(
                f"session {self.id} has ended, its ephemeral nodes are deleted: connect again for a new session"
            )
