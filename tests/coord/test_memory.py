"""What only the memory store has: time as an argument, and a dump of the whole tree."""

from __future__ import annotations

import pytest

from kreplog.coord.memory import MemoryStore
from kreplog.errors import SessionExpiredError
from kreplog.types import Create, SetData, WatchEvent


def test_a_session_that_is_not_heard_of_ends() -> None:
    store, calls, events = MemoryStore(), list[str](), list[WatchEvent]()
    first = store.connect(100, lambda: calls.append("first"), now_ms=1000)
    second = store.connect(50, lambda: calls.append("second"), now_ms=1000)
    first.create("/1", ephemeral=True)
    second.create("/2", ephemeral=True)
    first.exists("/2", events.append)
    store.advance(1050)
    assert (first.expired, second.expired) == (False, False)
    first.heartbeat(1060)
    store.advance(1051)
    assert (first.expired, second.expired) == (False, True)
    assert events == [WatchEvent("/2", "deleted")]
    with pytest.raises(SessionExpiredError):
        second.heartbeat(1052)
    with pytest.raises(SessionExpiredError):
        second.create("/2", ephemeral=True)
    store.advance(1160)
    assert not first.expired
    store.advance(1161)
    assert calls == ["second", "first"]
    assert list(store.dump()) == ["/"]
    store.advance(9999)
    assert calls == ["second", "first"]


def test_a_session_is_ended_by_force() -> None:
    store, calls = MemoryStore(), list[str]()
    session = store.connect(100, lambda: calls.append("expired"))
    session.create("/e", ephemeral=True)
    store.expire(session.id)
    store.expire(session.id)
    store.expire(77)
    assert (session.expired, calls, store.peek("/e")) == (True, ["expired"], None)


def test_a_watch_is_called_after_the_operation_and_never_inside_another() -> None:
    store, order = MemoryStore(), list[str]()
    session = store.connect(100)
    session.create("/a")
    session.create("/b")

    def on_a(event: WatchEvent) -> None:
        order.append("a begins")
        session.set_data("/b", b"")
        order.append("a ends")

    session.get("/a", on_a)
    session.get("/b", lambda _: order.append("b"))
    session.exists("/c", lambda _: order.append("c"))
    session.multi([SetData("/a", b""), Create("/c")])
    assert order == ["a begins", "a ends", "c", "b"]


def test_an_exception_of_a_watch_is_raised_and_the_next_is_called_later() -> None:
    store, events = MemoryStore(), list[WatchEvent]()
    session, other = store.connect(100), store.connect(100)
    session.create("/a")
    session.get("/a", lambda event: events[7])  # type: ignore[arg-type]
    other.get("/a", events.append)
    with pytest.raises(IndexError):
        session.set_data("/a", b"done all the same")
    assert session.get("/a").data == b"done all the same"
    assert events == []
    store.deliver()
    assert events == [WatchEvent("/a", "changed")]


def test_the_tree_can_be_looked_at_cheaply() -> None:
    store = MemoryStore()
    session = store.connect(100)
    before = store.transaction
    session.multi([Create("/a", b"x"), Create("/a/b", ephemeral=True)])
    assert store.transaction == before + 1
    assert store.dump() == {path: session.get(path) for path in ("/", "/a", "/a/b")}
    assert store.peek("/a") is store.dump()["/a"]
    assert store.transaction == before + 1
