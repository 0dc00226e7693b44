"""StoreLink on the embedded store: sessions one after the other, watches and answers on the event loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from kreplog.errors import BadVersionError, NoNodeError, SessionExpiredError, UsageError
from kreplog.server.store import StoreLink, make_store
from kreplog.types import Create, SetData, WatchEvent


def test_a_session_ends_and_another_begins(tmp_path: Path) -> None:
    async def work() -> None:
        sessions: list[int] = []
        lost: list[bool] = []
        link = StoreLink(make_store(f"embedded:{tmp_path}"), 5000, sessions.append, lambda: lost.append(link.connected))
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
            link.submit(lambda s, d=data: s.set_data("/a", d), lambda done, error: replies.append((done, error)))  # type: ignore[misc]
        link.submit(lambda session: session.get("/none"), lambda done, error: replies.append(error))
        while len(replies) < 11:
            await asyncio.sleep(0.001)
        assert [done.version for done, _ in replies[:10]] == list(range(1, 11))
        assert isinstance(replies[10], NoNodeError)

        await link.get_nodes(("/a",), on_watch)
        await link.call(lambda session: session.close())
        with pytest.raises(SessionExpiredError):
            await link.get_nodes(("/a",))
        while len(sessions) < 2:
            await asyncio.sleep(0.001)
        assert lost == [False]
        assert sessions[0] != sessions[1]
        seen.clear()
        await link.call(lambda session: session.set_data("/a", b"new"))
        await asyncio.sleep(0.05)
        assert seen == [], "a watch of a session that has ended is never called"
        running.cancel()
        await link.close()
        assert lost == [False]

    async def bounded() -> None:
        async with asyncio.timeout(20):
            await work()

    asyncio.run(bounded())


def test_a_store_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        make_store("zookeeper:/root")
