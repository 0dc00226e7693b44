"""The coordination store for the processes of one host: a SQLite database in a directory that they share.

A session is a row in that database and three files beside it (see `liveness`). A process that notices that the process
of another session has ended, or has not run for the session's timeout, ends it: it deletes its row and its ephemeral
nodes in one transaction. Every write checks the row of its own session in its transaction, so an ended session writes
nothing.

Each session has two threads. The keeper writes heartbeats, waits for its bell and for the end of other processes, reads
changes and finds the watches to call; the other thread calls them. Both sleep while there is nothing to do; the keeper
wakes four times per timeout, but at least once a second, for its heartbeat and to check those of others.

A process that is stopped (SIGSTOP) in the middle of a commit keeps SQLite's lock until it continues or ends: others
then get ConnectionLossError. The directory must be on a local file system. A session cannot be used in a forked child:
it refuses, and the end of its parent is still noticed.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from kreplog.boot import boot_id
from kreplog.coord import liveness
from kreplog.coord.base import (
    Result,
    StoreFailedError,
    Watch,
    check_operation,
    check_operations,
    check_path,
    check_timeout,
    name_of,
)
from kreplog.coord.database import Database, SessionRow, make_file, make_folder
from kreplog.coord.delivery import Deliveries, run_logged
from kreplog.coord.liveness import PeerSession, Pulse, monotonic_ms
from kreplog.coord.sessions import OpenSessions, SingleWrites
from kreplog.coord.tree import NodeRecord, no_node
from kreplog.coord.watches import Watches
from kreplog.errors import CoordinationError, SessionExpiredError, UsageError
from kreplog.types import Node, NodeStat, StoreOperation, WatchEvent

_log = logging.getLogger(__name__)

_LONGEST_SLEEP_MS = 1000
_RETRY_MS = 3
_COMPLAINTS_MS = 60_000
_PREFETCHED = 8
"""A multi of more operations reads its nodes beforehand, in batches."""


class EmbeddedStore:
    """A CoordinationStore in `directory`, which is created if missing, with access for its owner only.

    busy_timeout_ms: how long a call waits for other processes' writes before it raises ConnectionLossError.
    Thread-safe.
    """

    def __init__(self, directory: str | os.PathLike[str], *, busy_timeout_ms: int = 5000) -> None:
        self.directory = Path(directory)
        self._busy_ms = busy_timeout_ms
        self._sessions = OpenSessions[EmbeddedSession]()

    def connect(self, timeout_ms: int, on_expired: Callable[[], None] | None = None) -> EmbeddedSession:
        """As CoordinationStore.connect. Ends the sessions of processes that ended unnoticed.

        on_expired is called on the session's keeper thread. Raises StoreFailedError where the directory or the database
        cannot be opened.
        """
        check_timeout(timeout_ms)
        try:
            make_folder(self.directory)
            make_folder(self.directory / "sessions")
            make_file(self.directory / "coordination.db")
        except OSError as error:
            raise _unusable(self.directory, error) from error
        return self._sessions.add(EmbeddedSession(self.directory, timeout_ms, on_expired, self._busy_ms))

    def close(self) -> None:
        """Close all sessions of this object."""
        self._sessions.close()


class EmbeddedSession(SingleWrites):
    """A Session of an EmbeddedStore; made by its connect(). Thread-safe; get_many returns one snapshot."""

    def __init__(
        self, directory: Path, timeout_ms: int, on_expired: Callable[[], None] | None, busy_timeout_ms: int
    ) -> None:
        self.timeout_ms = timeout_ms
        self._files = directory / "sessions"
        self._on_expired = on_expired
        self._pid = os.getpid()
        self._boot = boot_id()
        self._token = secrets.token_hex(8)
        self._ended = False
        self._closed = False
        self._interval_ms = max(1, min(timeout_ms // 4, _LONGEST_SLEEP_MS))
        self._watches = Watches()
        self._peers: dict[int, PeerSession] = {}
        # A lock for each connection; the reader's also guards the watches and the last transaction applied to them.
        self._read_lock, self._write_lock = threading.Lock(), threading.Lock()
        path = directory / "coordination.db"
        self._reader, self._writer = Database(path, busy_timeout_ms), Database(path, busy_timeout_ms)
        self._own = Database(path, 0)  # the keeper's, which never waits for a lock
        try:
            self._register()
        except BaseException:
            self._close_databases()
            raise
        self._applied = self._reader.last_transaction()
        self._deliveries = Deliveries(f"kreplog-watches-{self.id}")
        self._keeper = threading.Thread(target=self._keep, name=f"kreplog-session-{self.id}", daemon=True)
        _unforkable.add(self)
        self._keeper.start()

    @property
    def expired(self) -> bool:
        """As Session.expired; also when this process has not run for the timeout, whether or not others noticed yet."""
        if not self._ended and (os.getpid() != self._pid or not self._alive_at(monotonic_ms())):
            self._ended = True  # forever, even if the keeper writes a heartbeat now
            self._wake()
        return self._ended

    def multi(self, operations: Sequence[StoreOperation]) -> list[Result]:
        """As Session.multi; one transaction, one sync."""
        check_operations(operations)
        return self._write(operations)

    def get(self, path: str, watch: Watch | None = None) -> Node:
        """As Session.get."""
        record = self._read(path, watch, missing=False)
        if record is None:
            raise no_node(path)
        return record.node

    def exists(self, path: str, watch: Watch | None = None) -> NodeStat | None:
        """As Session.exists."""
        record = self._read(path, watch, missing=True)
        return None if record is None else record.node.stat

    def children(self, path: str, watch: Watch | None = None) -> list[str]:
        """As Session.children."""
        check_path(path)
        with self._snapshot():
            if self._reader.load(path) is None:
                raise no_node(path)
            names = sorted(name_of(child) for child in self._reader.children(path))
            if watch is not None:
                self._catch_up(self._reader)
                self._watches.on_children(path, watch)
        return names

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        """As Session.get_many; one snapshot."""
        for path in paths:
            check_path(path)
        with self._snapshot():
            found = self._reader.load_many(paths)
        records = [found[path] for path in paths]
        return [None if record is None else record.node for record in records]

    def close(self) -> None:
        """As Session.close. If the database cannot be written, other processes end the session as one of a dead
        process."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        with self._write_lock:
            if not self._ended:
                with suppress(CoordinationError):
                    self._end_sessions(self._writer, [self.id])
                self._ended = True
        self._wake()
        if threading.current_thread() is not self._keeper:
            self._keeper.join()

    # Reading

    def _read(self, path: str, watch: Watch | None, *, missing: bool) -> NodeRecord | None:
        check_path(path)
        if watch is None:
            with self._running(self._read_lock):
                alive, record = self._reader.read(self.id, path)
                if not alive:
                    self._refuse()
            return record
        with self._snapshot():
            record = self._reader.load(path)
            if record is not None or missing:
                self._catch_up(self._reader)
                self._watches.on_data(path, watch, record is not None)
        return record

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        with self._running(self._read_lock), self._reader.reading():
            if not self._reader.has_session(self.id):
                self._refuse()
            yield

    # Writing

    def _write_single(self, operation: StoreOperation) -> Result:
        check_operation(operation)
        return self._write((operation,), single=True)[0]

    def _write(self, operations: Sequence[StoreOperation], *, single: bool = False) -> list[Result]:
        with self._running(self._write_lock), self._writer.writing():
            running = self._alive_at(monotonic_ms())
            if not running or not self._writer.has_session(self.id):
                self._refuse()
            found = self._writer.load_many(op.path for op in operations) if len(operations) > _PREFETCHED else {}
            transaction = self._writer.begin(
                self.id, lambda path: found[path] if path in found else self._writer.load(path)
            )
            results = [transaction.apply(operations[0])] if single else transaction.apply_all(operations)
            self._writer.put(transaction)
            sessions = self._writer.sessions()
        if not transaction.touches_nothing():
            self._ring(sessions)
        return results

    def _ring(self, sessions: dict[int, SessionRow]) -> None:
        for row in sessions.values():
            liveness.ring(self._files, row.token)

    # Liveness

    def _alive_at(self, now_ms: int) -> bool:
        return not self._ended and now_ms - self._beat_ms < self.timeout_ms

    @contextmanager
    def _running(self, lock: threading.Lock) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise UsageError("this session was made before the process forked: connect again in the child")
        with lock:
            if not self._alive_at(monotonic_ms()):
                self._refuse()
            yield

    def _refuse(self) -> None:
        self._ended = True
        self._wake()
        raise SessionExpiredError(
            f"session {self.id} has ended, its ephemeral nodes are deleted: connect again for a new session"
        )

    def _register(self) -> None:
        with self._writer.writing():
            now = monotonic_ms()  # after waiting for other writers, or the session would begin expired
            sessions = self._writer.sessions()
            dead = [row.id for row in sessions.values() if self._is_dead(row, now)]
            for id in dead:
                self._writer.end_session(id)
            try:
                for token in liveness.tokens(self._files) - {sessions[id].token for id in sessions.keys() - set(dead)}:
                    liveness.remove(self._files, token)
                self._pulse = Pulse(self._files, self._token, now)
            except OSError as error:
                raise _unusable(self._files, error) from error
            try:
                self._beat_ms = now
                self.id = self._writer.add_session(self._token, self.timeout_ms, self._boot)
                sessions = self._writer.sessions()
            except BaseException:
                self._pulse.close()
                raise
        self._ring(sessions)

    def _is_dead(self, row: SessionRow, now_ms: int) -> bool:
        with PeerSession(self._files, row.token) as peer:
            return row.boot != self._boot or peer.is_closed() or now_ms - peer.beat_ms() >= row.timeout_ms

    def _end_sessions(self, database: Database, ids: Sequence[int]) -> None:
        """End the sessions of `ids` that are dead, or its own. Never waits on the keeper's connection."""
        with database.writing():
            sessions = database.sessions()
            now = monotonic_ms()
            rows = [sessions[id] for id in ids if id in sessions]
            ended = [row for row in rows if row.id == self.id or self._is_dead(row, now)]
            for row in ended:
                database.end_session(row.id)
        for row in ended:
            liveness.remove(self._files, row.token)
        if ended:
            self._ring(sessions)

    # The keeper: a thread of its own

    def _keep(self) -> None:
        try:
            self._keep_alive()
        except Exception:
            _log.exception("coordination session %s cannot be kept alive", self.id)
        finally:
            self._finish()

    def _keep_alive(self) -> None:
        poller = select.poll()
        poller.register(self._pulse.bell, select.POLLIN)
        suspects: set[int] = set()
        looked_ms = complained_ms = 0
        while self._alive_at(now := monotonic_ms()):
            if now - self._beat_ms >= self._interval_ms // 2:
                self._pulse.beat(now)
                self._beat_ms = now
            wait_ms = self._interval_ms
            try:
                sessions = self._read_changes()
                if self.id not in sessions:
                    break
                suspects |= self._update_peers(sessions, poller)
                if now - looked_ms >= self._interval_ms // 2:
                    looked_ms = now
                    suspects |= {
                        id for id, peer in self._peers.items() if now - peer.beat_ms() >= sessions[id].timeout_ms
                    }
                if suspects:
                    self._end_sessions(self._own, sorted(suspects))
                    suspects = set()
                    continue
            except StoreFailedError as error:  # heartbeats continue: the store may be back before the session must end
                if now - complained_ms > _COMPLAINTS_MS:
                    complained_ms = now
                    _log.warning("coordination session %s: %s", self.id, error)
            except CoordinationError:  # another process is writing
                wait_ms = _RETRY_MS
            for fd, _ in poller.poll(wait_ms):
                if fd == self._pulse.bell:
                    self._pulse.quieten()
                else:
                    poller.unregister(fd)
                    suspects |= {id for id, peer in self._peers.items() if peer.alive == fd}

    def _read_changes(self) -> dict[int, SessionRow]:
        with self._read_lock, self._own.reading():
            self._catch_up(self._own)
            return self._own.sessions()

    def _update_peers(self, sessions: dict[int, SessionRow], poller: select.poll) -> set[int]:
        """Observe new sessions and drop those that have ended; return the new ones that are dead already."""
        for id in self._peers.keys() - sessions.keys():
            peer = self._peers.pop(id)
            with suppress(KeyError, ValueError):  # dead peers, and those without files, are not registered
                poller.unregister(peer.alive)
            peer.close()
        dead = set()
        for id in sessions.keys() - self._peers.keys() - {self.id}:
            peer = self._peers[id] = PeerSession(self._files, sessions[id].token)
            if peer.is_closed() or sessions[id].boot != self._boot:
                dead.add(id)
            else:
                poller.register(peer.alive, select.POLLIN)
        return dead

    def _catch_up(self, database: Database) -> None:
        """Queue the watches fired by transactions since the last call. Caller holds the read lock, inside reading()."""
        last = database.last_transaction()
        if self._watches:
            for id, events in database.changes(self._applied):
                if id != self._applied + 1:
                    break
                for event in events:
                    self._fire(event)
                self._applied = id
            if self._applied < last:
                self._compare(database)
        self._applied = last

    def _compare(self, database: Database) -> None:
        """Fire the watches whose nodes differ from when they were left, since the changes between were dropped."""
        found = database.load_many({*self._watches.data, *self._watches.children})
        events = []
        for path, watches in self._watches.data.items():
            record, existed = found[path], any(watches.values())
            if record is None and existed:
                events.append((0, WatchEvent(path, "deleted")))
            elif record is not None and record.modified > self._applied:
                events.append((record.modified, WatchEvent(path, "changed" if existed else "created")))
        for path in self._watches.children:
            record = found[path]
            if record is None:
                events.append((0, WatchEvent(path, "deleted")))
            elif record.children_modified > self._applied:
                events.append((record.children_modified, WatchEvent(path, "children")))
        for _, event in sorted(events, key=lambda item: item[0]):
            self._fire(event)

    def _fire(self, event: WatchEvent) -> None:
        for watch in self._watches.take(event):
            self._deliveries.put(partial(self._call, watch, event))

    def _call(self, watch: Watch, event: WatchEvent) -> None:
        if not self.expired:
            watch(event)

    def _wake(self) -> None:
        self._pulse.ring()

    def _finish(self) -> None:
        """The session has ended: release everything, so that other processes see it, and call on_expired."""
        self._ended = True
        with suppress(CoordinationError):
            self._end_sessions(self._own, [self.id])
        with self._read_lock:
            self._watches.clear()
        self._pulse.close()
        self._deliveries.stop()
        for peer in self._peers.values():
            peer.close()
        with self._read_lock, self._write_lock:
            self._close_databases()
        _unforkable.discard(self)
        if not self._closed and self._on_expired is not None:
            run_logged(self._on_expired)

    def _close_databases(self) -> None:
        for database in (self._reader, self._writer, self._own):
            database.close()

    def after_fork(self) -> None:
        """In the child of a fork: close the parent's files, so that the child does not hide the end of the parent."""
        self._pulse.close_files()
        _inherited.append(self)  # closing the parent's connections in the child could harm the parent's


_unforkable: weakref.WeakSet[EmbeddedSession] = weakref.WeakSet()
_inherited: list[EmbeddedSession] = []


def _after_fork_in_child() -> None:
    for session in list(_unforkable):
        session.after_fork()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _unusable(path: Path, error: OSError) -> StoreFailedError:
    return StoreFailedError(
        f"{path} cannot be used ({error}): it must be a writable directory on a local file system", path=str(path)
    )
