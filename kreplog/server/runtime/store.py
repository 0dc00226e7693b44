"""StoreLink: a broker's way to the coordination store, one session after the other.

Calls block, so they run in threads; whatever comes back, answers, watches and the end of a session, comes back on the
event loop. A session that has ended is told once, and then another is begun, after a pause that differs from broker to
broker.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from kreplog.coord.base import CoordinationStore, Session, Watch
from kreplog.coord.embedded import EmbeddedStore
from kreplog.coord.zookeeper import ZooKeeperStore
from kreplog.core import nodes
from kreplog.errors import ConnectionLossError, CoordinationError, NoNodeError, SessionExpiredError
from kreplog.types import Node, StoreOperation, WatchEvent

_log = logging.getLogger("kreplog.server")

RECONNECT_S = 0.3

PATIENCE_S = 10.0
"""How long what a client asked for waits for a session: one follows the other much sooner, where the store is there."""

SHARED_OPERATIONS = 500
"""The most operations of submitted multis that share a transaction."""

T = TypeVar("T")
OnWatch = Callable[[WatchEvent], None]
Done = Callable[[Sequence[Any] | None, CoordinationError | None], None]


@dataclass(frozen=True, slots=True)
class _Submission:
    """What is to be written, or else read, in the session that there was when it was asked for."""

    session: Session | None
    operations: tuple[StoreOperation, ...]
    paths: tuple[str, ...]
    done: Done

    def carry_out(self, session: Session) -> Sequence[Any]:
        return session.multi(self.operations) if self.operations else session.get_many(self.paths)


def registered_brokers(session: Session) -> tuple[int | None, set[int]]:
    """(id of the controller, ids of all registered brokers), as the store has them."""
    try:
        ids = {int(child) for child in session.children(nodes.BROKER_IDS)}
    except NoNodeError:
        return None, set()
    (node,) = session.get_many((nodes.CONTROLLER,))
    return None if node is None else nodes.decode_controller(node), ids


def make_store(coordination: str) -> CoordinationStore:
    """The store that a broker's `coordination` setting names. Raises UsageError."""
    kind, _, where = coordination.partition(":")
    return EmbeddedStore(where) if kind == "embedded" else ZooKeeperStore(where)


class StoreLink:
    """on_session is given every new session's id, on_lost is called when one has ended; both on the event loop.

    Its methods are for the event loop alone, but for `abandon`.
    """

    def __init__(
        self,
        store: CoordinationStore,
        timeout_ms: int,
        on_session: Callable[[int], None],
        on_lost: Callable[[], None],
    ) -> None:
        self._store = store
        self._timeout_ms = timeout_ms
        self._on_session = on_session
        self._on_lost = on_lost
        self._session: Session | None = None
        self._watches: dict[OnWatch, Watch] = {}
        self._lost = asyncio.Event()
        self._there = asyncio.Event()
        self._closing = False
        self._submitted: deque[_Submission] = deque()
        self._submitting: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._in_order = ThreadPoolExecutor(1, "kreplog-store-writes")
        self._pool = ThreadPoolExecutor(4, "kreplog-store")

    @property
    def connected(self) -> bool:
        return self._session is not None

    async def run(self) -> None:
        """Keep a session until cancelled."""
        while True:
            self._lost.clear()
            connect = partial(self._store.connect, self._timeout_ms, self._ended)
            try:
                session = await self._loop.run_in_executor(self._pool, connect)
            except CoordinationError as error:
                _log.warning("no session with the coordination store: %s", error)
            else:
                self._session, self._watches = session, {}
                self._there.set()
                self._on_session(session.id)
                self.check()
                await self._lost.wait()
            await asyncio.sleep(RECONNECT_S * random.random())  # not all brokers at once, and not in a tight loop

    def _ended(self) -> None:
        """Called on a thread of the session, perhaps before connect() has returned it."""
        self._loop.call_soon_threadsafe(self.check)

    def check(self) -> None:
        """Tell of the end of the session now, if it has ended: a process that has not run for a while may be about to
        serve what others serve since, and its session's thread comes too late to keep it from that."""
        session = self._session
        if session is not None and session.expired:
            self._session, self._watches = None, {}
            self._there.clear()
            self._lost.set()
            if not self._closing:
                self._on_lost()

    def abandon(self) -> None:
        """End the session, from any thread: for a broker that can do so no more. It is told when it can be again."""
        session = self._session
        if session is not None:
            session.close()
            self._loop.call_soon_threadsafe(self.check)

    # Calls

    async def call(self, function: Callable[[Session], T]) -> T:
        """`function` of the session, in a thread. Raises what it raises; SessionExpiredError where there is none."""
        return await self._run(self._pool, function, self._session)

    def submit_multi(self, operations: Sequence[StoreOperation], done: Done) -> None:
        """As `multi`, one after the other in the order given; `done` is told the results or the error.

        Those that wait for others share a transaction, so that thousands of changes take few. Where one of them is
        refused none is applied, and then each is tried on its own: no one fails for another.
        """
        self._submit(_Submission(self._session, tuple(operations), (), done))

    def submit_read(self, paths: Sequence[str], done: Done) -> None:
        """As `get_nodes`, in order with what else was submitted."""
        self._submit(_Submission(self._session, (), tuple(paths), done))

    def _submit(self, submission: _Submission) -> None:
        self._submitted.append(submission)
        if self._submitting is None:
            self._submitting = self._loop.create_task(self._work_off())

    async def _work_off(self) -> None:
        while self._submitted:
            some = self._next_submissions()
            if len(some) == 1 or not await self._together(some):
                for one in some:
                    await self._alone(one)
        self._submitting = None

    def _next_submissions(self) -> list[_Submission]:
        """The first, and those after it that may share its transaction."""
        waiting = self._submitted
        some = [waiting.popleft()]
        room = SHARED_OPERATIONS - len(some[0].operations)
        while waiting and some[0].operations and waiting[0].operations and waiting[0].session is some[0].session:
            room -= len(waiting[0].operations)
            if room < 0:
                break
            some.append(waiting.popleft())
        return some

    async def _together(self, some: Sequence[_Submission]) -> bool:
        """All in one multi; False where one of its operations was refused, and nothing was applied."""
        operations = [operation for one in some for operation in one.operations]
        try:
            results = await self._run(self._in_order, lambda session: session.multi(operations), some[0].session)
        except CoordinationError as error:
            if error.index is not None:
                return False
            for one in some:
                one.done(None, error)
        else:
            start = 0
            for one in some:
                end = start + len(one.operations)
                one.done(results[start:end], None)
                start = end
        return True

    async def _alone(self, one: _Submission) -> None:
        try:
            results = await self._run(self._in_order, one.carry_out, one.session)
        except CoordinationError as error:
            one.done(None, error)
        else:
            one.done(results, None)

    async def _run(self, pool: ThreadPoolExecutor, function: Callable[[Session], T], session: Session | None) -> T:
        if session is None:
            raise SessionExpiredError("there is no session with the coordination store at the moment")
        try:
            return await self._loop.run_in_executor(pool, function, session)
        except SessionExpiredError:
            if self._session is session:
                self.check()
            raise
        except RuntimeError as error:  # the pool was shut down under it
            raise ConnectionLossError(f"the broker is stopping: {error}") from error

    async def multi(self, operations: Sequence[StoreOperation]) -> tuple[Any, ...]:
        """Results as of Session.multi."""
        return tuple(await self.call(lambda session: session.multi(operations)))

    async def get_nodes(self, paths: Sequence[str], on_watch: OnWatch | None = None) -> list[Node | None]:
        """The nodes at `paths`, None where there is none; on_watch: left on each of them, existing or not."""
        watch = self._watch(on_watch)
        return await self.call(lambda session: _get_nodes(session, paths, watch))

    async def get_children(self, path: str, on_watch: OnWatch | None = None) -> list[str] | None:
        """Sorted names; None where there is no such node, and then on_watch waits for it."""
        watch = self._watch(on_watch)
        return await self.call(lambda session: _get_children(session, path, watch))

    def _watch(self, on_watch: OnWatch | None) -> Watch | None:
        """What is called on a thread of the session; the same for each `on_watch`, so that it counts once."""
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
        """Return when there is a session."""
        await self._there.wait()

    async def close(self) -> None:
        """End the session, and wait for the threads."""
        self._closing = True
        session, self._session = self._session, None
        self._there.clear()
        if session is not None:
            await self._loop.run_in_executor(self._pool, session.close)
        await self._loop.run_in_executor(None, self._store.close)
        self._in_order.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(wait=False, cancel_futures=True)


class AnySession:
    """The store for what clients ask for, to whom sessions mean nothing: in one that has ended nothing was done, so the
    next one is waited for and asked, for PATIENCE_S at most."""

    def __init__(self, link: StoreLink) -> None:
        self._link = link

    async def multi(self, operations: Sequence[StoreOperation]) -> tuple[Any, ...]:
        """As StoreLink.multi."""
        return await self._ask(lambda: self._link.multi(operations))

    async def get_nodes(self, paths: Sequence[str]) -> list[Node | None]:
        """As StoreLink.get_nodes."""
        return await self._ask(lambda: self._link.get_nodes(paths))

    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + PATIENCE_S
        while True:
            try:
                return await ask()
            except SessionExpiredError as error:
                try:
                    async with asyncio.timeout_at(patient_until):
                        await self._link.until_connected()
                except TimeoutError:
                    raise error from None


def _get_nodes(session: Session, paths: Sequence[str], watch: Watch | None) -> list[Node | None]:
    if watch is not None:
        for path in paths:
            session.exists(path, watch)  # before the nodes are read, so that nothing after the reading is missed
    return session.get_many(paths)


def _get_children(session: Session, path: str, watch: Watch | None) -> list[str] | None:
    while True:
        try:
            return session.children(path, watch)
        except NoNodeError:
            if watch is None or session.exists(path, watch) is None:
                return None
