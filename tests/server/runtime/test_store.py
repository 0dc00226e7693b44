"""StoreLink on the embedded store: sessions one after the other, watches and answers on the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from kreplog.core.broker.store_submissions import MAX_SHARED_OPERATIONS
from kreplog.core.effects import StateChange, Steps
from kreplog.errors import BadVersionError, CoordinationError, SessionExpiredError, UsageError
from kreplog.server.runtime import store
from kreplog.server.runtime.store import AnySession, StoreLink, make_store
from kreplog.server.runtime.store_steps import carry_out
from kreplog.types import Create, SetData, StoreOperation, WatchEvent
from tests.server.loop import run

LEVELS: tuple[Literal["info", "warning", "error"], ...] = ("info", "warning", "error")


def link_to(
    directory: Path,
    on_session: Callable[[int], None] = lambda _: None,
    on_lost: Callable[[], None] = lambda: None,
    on_end: Callable[[asyncio.Task[None]], None] = lambda _: None,
) -> StoreLink:
    return StoreLink(make_store(f"embedded:{directory}"), 5000, on_session, on_lost, on_end)


def test_a_session_ends_and_another_begins(tmp_path: Path) -> None:
    async def work() -> None:
        sessions: list[int] = []
        lost: list[bool] = []
        link = link_to(tmp_path, sessions.append, lambda: lost.append(link.connected))
        with pytest.raises(SessionExpiredError):
            await link.multi(())
        running = asyncio.create_task(link.run())
        while len(sessions) < 1:
            await asyncio.sleep(0.001)

        seen: list[WatchEvent] = []
        loop_thread = threading.get_ident()

        def on_watch(event: WatchEvent) -> None:
            assert threading.get_ident() == loop_thread
            seen.append(event)

        assert await link.get_children("/a", on_watch) is None
        assert await link.get_nodes(("/a", "/b"), on_watch) == [None, None]
        await link.multi((Create("/a", b"1"), Create("/b")))
        while len(seen) < 2:
            await asyncio.sleep(0.001)
        assert {(event.path, event.kind) for event in seen} == {("/a", "created"), ("/b", "created")}
        (node, missing) = await link.get_nodes(("/a", "/none"))
        assert node is not None and node.data == b"1" and missing is None
        with pytest.raises(BadVersionError):
            await link.multi((SetData("/a", b"2", 7),))

        replies: list[Any] = []
        for number in range(10):
            data = b"%d" % number
            link.submit_multi((SetData("/a", data),), lambda done, error: replies.append((done, error)))
        link.submit_read(("/a", "/none"), lambda found, error: replies.append(found))
        while len(replies) < 11:
            await asyncio.sleep(0.001)
        assert [done[0].version for done, _ in replies[:10]] == list(range(1, 11))
        assert [node and node.data for node in replies[10]] == [b"9", None]

        await link.get_nodes(("/a",), on_watch)
        await link.call(lambda session: session.close())
        with pytest.raises(SessionExpiredError):
            await link.get_nodes(("/a",))
        while len(sessions) < 2:
            await asyncio.sleep(0.001)
        assert lost == [False]
        assert sessions[0] != sessions[1]
        seen.clear()
        later: list[WatchEvent] = []
        await link.get_nodes(("/a",), later.append)
        await link.call(lambda session: session.set_data("/a", b"new"))
        while not later:
            await asyncio.sleep(0.001)
        assert seen == [], "a watch of a session that has ended is never called"
        running.cancel()
        await link.close()
        assert lost == [False]

    run(work)


def test_requests_of_clients_wait_for_the_next_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call in a session that has ended was not applied; it fails if no new session follows within the wait."""

    async def work() -> None:
        link = link_to(tmp_path)
        patient = AnySession(link)
        requested = asyncio.create_task(patient.multi((Create("/a"),)))
        await asyncio.sleep(0)
        assert not requested.done()
        running = asyncio.create_task(link.run())
        assert await requested == ("/a",)
        for _ in range(3):
            link.abandon()
            (node,) = await patient.get_nodes(("/a",))
            assert node is not None
        with pytest.raises(BadVersionError):
            await patient.multi((SetData("/a", b"", 7),))
        running.cancel()
        link.abandon()
        link.check()
        monkeypatch.setattr(store, "SESSION_WAIT_S", 0.01)
        with pytest.raises(SessionExpiredError):
            await patient.multi((Create("/b"),))
        await link.close()

    run(work)


def test_a_store_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        make_store("zookeeper:/root")


def test_what_fails_while_submissions_are_carried_out_ends_the_broker(tmp_path: Path) -> None:
    """By the callback of the task: nothing that is submitted later would be carried out."""

    async def work() -> None:
        connected, failed = asyncio.Event(), asyncio.Event()

        def ended(task: asyncio.Task[None]) -> None:
            assert isinstance(task.exception(), ZeroDivisionError)
            failed.set()

        def fault(*_outcome: object) -> None:
            raise ZeroDivisionError

        link = link_to(tmp_path, lambda _: connected.set(), lambda: None, ended)
        running = asyncio.create_task(link.run())
        await connected.wait()
        link.submit_multi((Create("/fault"),), fault)
        await failed.wait()
        running.cancel()
        await link.close()

    run(work)


def test_waiting_submissions_share_a_transaction_but_no_failure(tmp_path: Path) -> None:
    """Thousands of concurrent ISR changes need few transactions; a refused one fails alone, in order."""

    async def work() -> None:
        link = link_to(tmp_path, lambda _: connected.set())
        connected = asyncio.Event()
        running = asyncio.create_task(link.run())
        await connected.wait()

        async def replies_to(*multis: tuple[StoreOperation, ...]) -> list[Any]:
            replies: list[Any] = []
            for multi in multis:
                link.submit_multi(multi, lambda done, error: replies.append(error or done))
            while len(replies) < len(multis):
                await asyncio.sleep(0.001)
            return replies

        async def made_by(path: str) -> int:
            (node,) = await link.get_nodes((path,))
            assert node is not None
            return node.stat.created

        await replies_to(*((Create(f"/{n}"), SetData(f"/{n}", b"x", 0)) for n in range(100)))
        assert len({await made_by(f"/{n}") for n in range(100)}) == 1
        stats = await replies_to((SetData("/1", b"y", 1),), (SetData("/2", b"y", 7), Create("/no")), (Create("/yes"),))
        assert stats[0][0].version == 2 and stats[2] == ["/yes"]
        assert isinstance(stats[1], BadVersionError) and stats[1].index == 0
        wrong, right = await replies_to((Create("no path"),), (Create("/right"),))
        assert isinstance(wrong, CoordinationError) and wrong.index == 0 and right == ["/right"]
        many = await replies_to(*((Create(f"/many{n}"),) for n in range(MAX_SHARED_OPERATIONS + 1)))
        assert [path for (path,) in many] == [f"/many{n}" for n in range(MAX_SHARED_OPERATIONS + 1)]
        assert (
            await made_by("/many0") == await made_by(f"/many{MAX_SHARED_OPERATIONS - 1}") != await made_by(many[-1][0])
        )
        await link.call(lambda session: session.close())
        assert [type(reply) for reply in await replies_to((Create("/late"),), (Create("/later"),))] == [
            SessionExpiredError
        ] * 2
        running.cancel()
        await link.close()

    run(work)


def test_a_line_of_a_core_has_its_level(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def steps() -> Steps[None]:
        for level in LEVELS:
            yield StateChange(level, f"a line of level {level}")

    async def work() -> None:
        await carry_out(steps(), link_to(tmp_path))

    caplog.set_level("INFO", "kreplog.server")
    run(work)
    found = {record.getMessage().rpartition(" ")[2]: record.levelname.lower() for record in caplog.records}
    assert found == {level: level for level in LEVELS}
