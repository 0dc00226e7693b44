"""StoreLink: a broker's connection to the coordination store, one session after the other.

Calls block, so they run in threads; results, watches and the end of a session arrive on the event loop. After a session
has ended, another is begun after a random pause.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from kreplog.coord.base import CoordinationStore, Session, Watch
from kreplog.coord.embedded import EmbeddedStore
from kreplog.coord.zookeeper import ZooKeeperStore
from kreplog.coord.zookeeper_security import NO_SECURITY, ZooKeeperSecurity
from kreplog.core.broker.store_submissions import StoreSubmissions, Submission
from kreplog.errors import ConnectionLossError, CoordinationError, NoNodeError, SessionExpiredError, UsageError
from kreplog.types import Node, StoreOperation, WatchEvent

_log = logging.getLogger("kreplog.server")

RECONNECT_S = 0.3

SESSION_WAIT_S = 10.0
"""How long a client's request waits for the next session; while the store is up it follows much sooner."""

T = TypeVar("T")
OnWatch = Callable[[WatchEvent], None]
Done = Callable[[Sequence[Any] | None, CoordinationError | None], None]


def make_store(coordination: str, zookeeper: ZooKeeperSecurity = NO_SECURITY) -> CoordinationStore:
    """The store that a broker's `coordination` setting names; zookeeper: for one of that kind. Raises UsageError."""
    kind, _, where = coordination.partition(":")
    return EmbeddedStore(where) if kind == "embedded" else ZooKeeperStore(where, security=zookeeper)


class StoreLink:
    """A broker's connection to the coordination store. on_session: called with the id of every new session. on_lost:
    called when one has ended; both on the event loop. on_end: the done callback of the tasks that carry out what is
    submitted; one that fails would carry out no more.

    All methods but `abandon` are for the event loop alone.
    """

    def __init__(
        self,
        store: CoordinationStore,
        timeout_ms: int,
        on_session: Callable[[int], None],
        on_lost: Callable[[], None],
        on_end: Callable[[asyncio.Task[None]], None],
    ) -> None:
        self._store = store
        self._timeout_ms = timeout_ms
        self._on_session = on_session
        self._on_lost = on_lost
        self._on_end = on_end
        self._session: Session | None = None
        self._watches: dict[OnWatch, Watch] = {}
        self._lost = asyncio.Event()
        self._connected = asyncio.Event()
        self._closing = False
        self._submissions: StoreSubmissions[Session | None, Done] = StoreSubmissions()
        self._submitting: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._in_order = ThreadPoolExecutor(1, "kreplog-store-writes")
        self._pool = ThreadPoolExecutor(4, "kreplog-store")

    @property
    def connected(self) -> bool:
        return self._session is not None

    async def run(self) -> None:
        """Keep a session until cancelled."""
        refused = ""
        while True:
            self._lost.clear()
            connect = partial(self._store.connect, self._timeout_ms, self._ended)
            try:
                session = await self._loop.run_in_executor(self._pool, connect)
            except CoordinationError as error:
                if str(error) != refused:  # a wrong password is refused several times a second
                    _log.warning("no session with the coordination store: %s", error)
                refused = str(error)
            else:
                refused = ""
                self._session, self._watches = session, {}
                self._connected.set()
                self._on_session(session.id)
                self.check()
                await self._lost.wait()
            await asyncio.sleep(RECONNECT_S * random.random())  # random, so that not all brokers connect at once

    def _ended(self) -> None:
        """Called on a thread of the session, perhaps before connect() has returned it."""
        self._loop.call_soon_threadsafe(self.check)

    def check(self) -> None:
        """Report the end of the session now, if it has ended: after a pause of the process other brokers may lead its
        partitions, and the session's thread may report that too late."""
        session = self._session
        if session is not None and session.expired:
            self._session, self._watches = None, {}
            self._connected.clear()
            self._lost.set()
            if not self._closing:
                self._on_lost()

    def abandon(self) -> None:
        """End the session, from any thread, for an event loop that hangs; on_lost is called once that runs again."""
        session = self._session
        if session is not None:
            session.close()
            self._loop.call_soon_threadsafe(self.check)

    # Calls

    async def call(self, function: Callable[[Session], T]) -> T:
        """Call `function` with the session, in a thread. Raises what it raises, and SessionExpiredError."""
        return await self._run(self._pool, function, self._session)

    def submit_multi(self, operations: Sequence[StoreOperation], done: Done) -> None:
        """As `multi`, in the order of submission; `done` is called with the results or the error.
        core.broker.store_submissions decides what shares a transaction."""
        self._submit(Submission(self._session, tuple(operations), (), done))

    def submit_read(self, paths: Sequence[str], done: Done) -> None:
        """As `get_nodes`, in the order of submission."""
        self._submit(Submission(self._session, (), tuple(paths), done))

    def _submit(self, submission: Submission[Session | None, Done]) -> None:
        if self._submissions.submit(submission):
            self._submitting = self._loop.create_task(self._run_submissions(), name="kreplog-store-writes")
            self._submitting.add_done_callback(self._on_end)

    async def _run_submissions(self) -> None:
        while batch := self._submissions.next():
            results, refused = None, None
            try:
                results = await self._run(self._in_order, partial(_carry_out, batch), batch[0].session)
            except CoordinationError as error:
                refused = error
            except UsageError as error:  # of one operation: nothing was applied, as after a refusal by the store
                _log.error("the coordination store cannot take %s: %s", _paths(batch), error)
                refused = CoordinationError(str(error), index=0)
            for submission, own, failure in self._submissions.finished(results, refused):
                submission.reply_to(own, failure)

    async def _run(self, pool: ThreadPoolExecutor, function: Callable[[Session], T], session: Session | None) -> T:
        if session is None:
            raise SessionExpiredError("there is no session with the coordination store")
        try:
            return await self._loop.run_in_executor(pool, function, session)
        except SessionExpiredError:
            if self._session is session:
                self.check()
            raise
        except RuntimeError as error:  # the pool has been shut down
            raise ConnectionLossError(f"the broker is stopping: {error}") from error

    async def multi(self, operations: Sequence[StoreOperation]) -> tuple[Any, ...]:
        """Results as of Session.multi."""
        return tuple(await self.call(lambda session: session.multi(operations)))

    async def get_nodes(self, paths: Sequence[str], on_watch: OnWatch | None = None) -> list[Node | None]:
        """The nodes at `paths`, None for those that do not exist; on_watch: set on each of them in either case."""
        watch = self._watch(on_watch)
        return await self.call(lambda session: _get_nodes(session, paths, watch))

    async def get_children(self, path: str, on_watch: OnWatch | None = None) -> list[str] | None:
        """Sorted names; None if there is no such node, and on_watch then waits for it."""
        watch = self._watch(on_watch)
        return await self.call(lambda session: children_of(session, path, watch))

    def _watch(self, on_watch: OnWatch | None) -> Watch | None:
        """The callback for the session's thread; the same for each `on_watch`, so that the store keeps one."""
        if on_watch is None:
            return None
        watch = self._watches.get(on_watch)
        if watch is None:
            session = self._session

            def fired(event: WatchEvent) -> None:
                self._loop.call_soon_threadsafe(self._fired, session, on_watch, event)

            watch = self._watches[on_watch] = fired
        return watch

    def _fired(self, session: Session | None, on_watch: OnWatch, event: WatchEvent) -> None:
        if session is self._session:
            on_watch(event)

    async def until_connected(self) -> None:
        """Wait for a session."""
        await self._connected.wait()

    async def close(self) -> None:
        """End the session."""
        self._closing = True
        session, self._session = self._session, None
        self._connected.clear()
        if session is not None:
            await self._loop.run_in_executor(self._pool, session.close)
        await self._loop.run_in_executor(None, self._store.close)
        self._in_order.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(wait=False, cancel_futures=True)


class AnySession:
    """The store for requests of clients, which may use any session: a call that fails with the end of a session was not
    applied, so it is repeated in the next, for at most SESSION_WAIT_S."""

    def __init__(self, link: StoreLink) -> None:
        self._link = link

    async def multi(self, operations: Sequence[StoreOperation]) -> tuple[Any, ...]:
        """As StoreLink.multi."""
        return await self._retry(lambda: self._link.multi(operations))

    async def get_nodes(self, paths: Sequence[str]) -> list[Node | None]:
        """As StoreLink.get_nodes."""
        return await self._retry(lambda: self._link.get_nodes(paths))

    async def get_children(self, path: str) -> list[str] | None:
        """As StoreLink.get_children."""
        return await self._retry(lambda: self._link.get_children(path))

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SESSION_WAIT_S
        while True:
            try:
                return await call()
            except SessionExpiredError as error:
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._link.until_connected()
                except TimeoutError:
                    raise error from None


def _paths(batch: Sequence[Submission[Session | None, Done]]) -> str:
    return ", ".join(
        path
        for submission in batch
        for path in (*(operation.path for operation in submission.operations), *submission.paths)
    )


def _carry_out(batch: Sequence[Submission[Session | None, Done]], session: Session) -> Sequence[Any]:
    operations = [operation for submission in batch for operation in submission.operations]
    return session.multi(operations) if operations else session.get_many(batch[0].paths)


def _get_nodes(session: Session, paths: Sequence[str], watch: Watch | None) -> list[Node | None]:
    if watch is not None:
        for path in paths:
            session.exists(path, watch)  # before the read, so that no later change is missed
    return session.get_many(paths)


def children_of(session: Session, path: str, watch: Watch | None = None) -> list[str] | None:
    """Sorted names; None if there is no such node, and watch then waits for it."""
    while True:
        try:
            return session.children(path, watch)
        except NoNodeError:
            if watch is None or session.exists(path, watch) is None:
                return None
