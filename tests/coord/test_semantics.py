"""What one process sees of a store: nodes, versions, multis, watches and sessions, the same in all three."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from kreplog.coord.base import MAX_DATA_BYTES, MAX_PATH_CHARS, Session
from kreplog.errors import (
    BadVersionError,
    CoordinationError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    UsageError,
)
from kreplog.types import Check, Create, Delete, Node, SetData, StoreOperation, WatchEvent
from tests.coord.conftest import Stores
from tests.coord.servers import until


class Seen(list[WatchEvent]):
    """A watch, and the events that it was called with."""

    __hash__ = object.__hash__  # type: ignore[assignment]  # one watch is not another, whatever they saw

    def __call__(self, event: WatchEvent) -> None:
        self.append(event)

    def kinds(self) -> list[tuple[str, str]]:
        return [(event.path, event.kind) for event in self]


def settle(session: Session) -> None:
    """Return when every watch of `session` fired so far has been called: one more, fired now, has been."""
    last = threading.Event()
    marker = session.create("/settle-", sequential=True)
    session.get(marker, lambda _: last.set())
    session.delete(marker)
    assert last.wait(30), "a watch was lost"


def tree(session: Session, path: str = "/") -> dict[str, Node]:
    """All below `path`, and `path`."""
    found = {path: session.get(path)}
    for name in session.children(path):
        found |= tree(session, f"{path.rstrip('/')}/{name}")
    return found


def test_a_node_is_created_read_written_and_deleted(stores: Stores) -> None:
    session = stores.connect()
    assert session.create("/a", b"one") == "/a"
    node = session.get("/a")
    assert (node.data, node.stat.version, node.stat.ephemeral_owner, node.stat.children) == (b"one", 0, 0, 0)
    assert node.stat.created == node.stat.modified
    assert session.exists("/a") == node.stat
    written = session.set_data("/a", b"two", 0)
    assert written.version == 1
    assert written.created == node.stat.created < written.modified
    assert session.get("/a") == Node(b"two", written)
    session.create("/a/b")
    session.create("/a/a")
    assert session.children("/a") == ["a", "b"]
    assert session.exists("/a") == session.get("/a").stat
    assert session.get("/a").stat.children == 2
    assert session.get("/a").stat.modified == written.modified, "children do not modify their parent"
    session.delete("/a/b", 0)
    session.delete("/a/a")
    session.delete("/a", 1)
    assert session.exists("/a") is None
    assert "a" not in session.children("/")


def test_writes_are_conditional_on_the_version(stores: Stores) -> None:
    session = stores.connect()
    session.create("/a")
    for version in range(3):
        assert session.set_data("/a", b"%d" % version, version).version == version + 1
    before = session.get("/a")
    for wrong in (0, 2, 4, 2**31 - 1):
        with pytest.raises(BadVersionError) as refused:
            session.set_data("/a", b"wrong", wrong)
        assert (refused.value.path, refused.value.index) == ("/a", None)
        with pytest.raises(BadVersionError):
            session.delete("/a", wrong)
    assert session.get("/a") == before
    session.delete("/a")
    session.create("/a")
    assert session.get("/a").stat.version == 0, "a node created again begins at 0"


def test_each_refusal_has_its_error(stores: Stores) -> None:
    session = stores.connect()
    session.create("/a")
    session.create("/a/b")
    session.create("/e", ephemeral=True)
    missing: list[Callable[[], object]] = [
        lambda: session.get("/x"),
        lambda: session.children("/x"),
        lambda: session.set_data("/x", b""),
        lambda: session.delete("/x"),
        lambda: session.create("/x/y"),
        lambda: session.create("/x/y", sequential=True),
    ]
    for call in missing:
        with pytest.raises(NoNodeError, match="/x"):
            call()
    with pytest.raises(NodeExistsError, match="/a"):
        session.create("/a", b"again")
    with pytest.raises(NodeExistsError):
        session.create("/")
    with pytest.raises(NotEmptyError):
        session.delete("/a")
    with pytest.raises(BadVersionError):  # looked for before what is below
        session.delete("/a", 7)
    with pytest.raises(CoordinationError, match="ephemeral") as refused:
        session.create("/e/below")
    assert type(refused.value) is CoordinationError
    assert set(tree(session)) >= {"/a", "/a/b", "/e"}


def test_sequential_nodes_count_the_children_their_parent_was_given(stores: Stores) -> None:
    session = stores.connect()
    session.create("/q")
    assert session.create("/q/n-", sequential=True) == "/q/n-0000000000"
    session.create("/q/other")
    session.delete("/q/other")
    assert session.create("/q/n-", b"x", ephemeral=True, sequential=True) == "/q/n-0000000002"
    session.delete("/q/n-0000000002")
    assert session.create("/q/n-", sequential=True) == "/q/n-0000000003"
    made = session.multi([Create("/q/m-", sequential=True), Create("/q/m-", sequential=True)])
    assert made == ["/q/m-0000000004", "/q/m-0000000005"]
    with pytest.raises(NoNodeError):
        session.multi([Create("/q/m-", sequential=True), Delete("/q/none")])
    assert session.create("/q/m-", sequential=True) == "/q/m-0000000006", "a multi that failed used up no number"


def test_a_multi_is_applied_in_order_and_gives_a_result_for_each(stores: Stores) -> None:
    session = stores.connect()
    session.create("/a", b"old")
    results = session.multi(
        [
            Check("/a", 0),
            SetData("/a", b"new", 0),
            SetData("/a", b"newer", 1),
            Create("/a/b", b"child"),
            Create("/a/b/c", ephemeral=True),
            Delete("/a/b/c", 0),
            Check("/a/b"),
            Delete("/a/b"),
        ]
    )
    node = session.get("/a")
    assert (node.data, node.stat.version, node.stat.children) == (b"newer", 2, 0)
    assert results == [None, replace(node.stat, version=1), node.stat, "/a/b", "/a/b/c", None, None, None]
    assert session.multi([]) == []


FAILING: list[tuple[StoreOperation, type[CoordinationError]]] = [
    (SetData("/n/0", b"", 5), BadVersionError),
    (SetData("/none", b""), NoNodeError),
    (Create("/n/0"), NodeExistsError),
    (Create("/none/below"), NoNodeError),
    (Create("/e/below"), CoordinationError),
    (Delete("/n"), NotEmptyError),
    (Delete("/n/0", 5), BadVersionError),
    (Delete("/none"), NoNodeError),
    (Check("/n", 5), BadVersionError),
    (Check("/none", -1), NoNodeError),
]


@pytest.mark.parametrize(("failing", "error"), FAILING, ids=lambda case: getattr(case, "__name__", repr(case)))
def test_a_multi_is_all_or_nothing_at_every_index(
    failing: StoreOperation, error: type[CoordinationError], stores: Stores
) -> None:
    session, seen = stores.connect(), Seen()
    session.create("/n")
    session.create("/e", ephemeral=True)
    for number in range(4):
        session.create(f"/n/{number}")
    good: list[StoreOperation] = [
        SetData("/n/1", b"x", 0),
        Create("/n/new", ephemeral=True),
        Delete("/n/2"),
        Create("/n/s-", sequential=True),
        SetData("/n", b"y"),
        Check("/n/3", 0),
    ]
    before = tree(session, "/n")
    for path in before:
        session.get(path, seen)
    session.children("/n", seen)
    session.exists("/n/new", seen)
    for index in range(len(good) + 1):
        with pytest.raises(error) as refused:
            session.multi([*good[:index], failing, *good[index:]])
        assert type(refused.value) is error
        assert (refused.value.index, refused.value.path) == (index, failing.path)
        assert tree(session, "/n") == before
    settle(session)
    assert seen == []
    session.multi(good)
    settle(session)
    assert {event.path for event in seen} == {"/n/1", "/n/new", "/n/2", "/n"}


# What is done, and what the watches left by get /n/a, exists /n/a, children /n/a, exists /n/none and children /n see.
WATCHED: list[tuple[Sequence[StoreOperation], list[list[tuple[str, str]]]]] = [
    ([SetData("/n/a", b"x")], [[("/n/a", "changed")], [("/n/a", "changed")], [], [], []]),
    ([SetData("/n/a", b"")], [[("/n/a", "changed")], [("/n/a", "changed")], [], [], []]),
    (
        [Delete("/n/a")],
        [[("/n/a", "deleted")], [("/n/a", "deleted")], [("/n/a", "deleted")], [], [("/n", "children")]],
    ),
    ([Create("/n/a/b")], [[], [], [("/n/a", "children")], [], []]),
    ([Create("/n/a/b"), Delete("/n/a/b")], [[], [], [("/n/a", "children")], [], []]),
    ([Create("/n/none")], [[], [], [], [("/n/none", "created")], [("/n", "children")]]),
    ([SetData("/n", b"x")], [[], [], [], [], []]),
    ([Check("/n/a")], [[], [], [], [], []]),
    (
        [Delete("/n/a"), Create("/n/a")],
        [[("/n/a", "deleted")], [("/n/a", "deleted")], [("/n/a", "deleted")], [], [("/n", "children")]],
    ),
    ([Create("/n/a/b"), SetData("/n/a/b", b"x")], [[], [], [("/n/a", "children")], [], []]),
]


@pytest.mark.parametrize("together", [False, True], ids=["one by one", "in one multi"])
@pytest.mark.parametrize(("operations", "expected"), WATCHED, ids=lambda case: repr(case[0])[:60])
def test_events_of_watches(
    operations: Sequence[StoreOperation], expected: list[list[tuple[str, str]]], together: bool, stores: Stores
) -> None:
    session, writer = stores.connect(), stores.connect()
    writer.create("/n")
    writer.create("/n/a")
    seen = [Seen() for _ in range(5)]
    session.get("/n/a", seen[0].append)
    session.exists("/n/a", seen[1].append)
    session.children("/n/a", seen[2].append)
    session.exists("/n/none", seen[3].append)
    session.children("/n", seen[4].append)
    for batch in [operations] if together else [[operation] for operation in operations]:
        writer.multi(batch)
    until(
        lambda: [client.kinds() for client in seen] == expected,
        f"{[client.kinds() for client in seen]} == {expected}",
        10,
    )
    writer.multi([SetData("/n", b"again"), Create("/n/a-", sequential=True)])
    if writer.exists("/n/a") is not None:
        writer.set_data("/n/a", b"again")
    settle(session)
    for kinds, first in zip(seen[:2], expected[:2], strict=True):
        assert len(kinds) == 1 or not first, "a watch is called once"


def test_a_watch_is_called_once_and_not_for_earlier_changes(stores: Stores) -> None:
    session, seen = stores.connect(), Seen()
    session.create("/a")
    for number in range(20):
        session.set_data("/a", b"%d" % number)
        assert session.get("/a", seen.append).data == b"%d" % number
        settle(session)
        assert len(seen) == number, "the write before the read is not for this watch"
        session.set_data("/a", b"next")
        session.set_data("/a", b"next but one")
        settle(session)
        assert len(seen) == number + 1


def test_the_same_watch_left_twice_counts_once(stores: Stores) -> None:
    session, seen = stores.connect(), Seen()
    session.create("/a")
    for _ in range(3):
        session.get("/a", seen.append)
        session.exists("/a", seen.append)
        session.children("/a", seen.append)
    session.delete("/a")
    settle(session)
    assert seen.kinds() == [("/a", "deleted")]


def test_a_read_that_fails_leaves_no_watch(stores: Stores) -> None:
    session, seen, other = stores.connect(), Seen(), Seen()
    with pytest.raises(NoNodeError):
        session.get("/a", seen.append)
    with pytest.raises(NoNodeError):
        session.children("/a", seen.append)
    session.exists("/a", other.append)
    session.create("/a")
    settle(session)
    assert (seen, other.kinds()) == ([], [("/a", "created")])
    session.create("/a/b")
    session.delete("/a/b")
    session.delete("/a")
    settle(session)
    assert seen == []
    session.create("/a")
    session.get("/a", seen.append)
    session.set_data("/a", b"x")
    settle(session)
    assert seen.kinds() == [("/a", "changed")]


def test_events_come_in_the_order_in_which_they_happened(stores: Stores) -> None:
    session, writer, seen = stores.connect(), stores.connect(), Seen()
    writer.create("/n")
    paths = [f"/n/{number}" for number in range(30)]
    for path in paths:
        session.exists(path, seen)
    for path in paths[:10]:
        writer.create(path)
    writer.multi([Create(path) for path in paths[10:20]])
    for path in paths[20:]:
        writer.create(path)
    until(lambda: len(seen) == len(paths), "all events", 10)
    assert [event.path for event in seen] == paths


def test_a_watch_may_call_the_session(stores: Stores) -> None:
    """And leave itself again: this one follows a node to its fifth version, writing each time."""
    session, versions, done = stores.connect(), [], threading.Event()
    session.create("/a")
    session.create("/log")

    def follow(event: WatchEvent) -> None:
        node = session.get("/a", follow)
        versions.append(node.stat.version)
        session.create("/log/v-", sequential=True)
        if node.stat.version < 5:
            session.set_data("/a", b"", node.stat.version)
        else:
            done.set()

    session.get("/a", follow)
    session.set_data("/a", b"")
    assert done.wait(30)
    assert versions == [1, 2, 3, 4, 5]
    assert len(session.children("/log")) == 5


def test_ephemeral_nodes_go_with_their_session(stores: Stores) -> None:
    calls: list[str] = []
    session, other, seen = stores.connect(on_expired=lambda: calls.append("expired")), stores.connect(), Seen()
    assert session.id != other.id
    assert 0 not in (session.id, other.id)
    session.create("/n")
    session.create("/n/e", b"mine", ephemeral=True)
    session.multi([Create("/n/f-", ephemeral=True, sequential=True)])
    other.create("/n/other", ephemeral=True)
    assert other.get("/n/e").stat.ephemeral_owner == session.id
    assert other.get("/n").stat.children == 3
    other.get("/n/e", seen)
    session.close()
    until(lambda: other.children("/n") == ["other"], "the ephemeral nodes' end", 10)
    settle(other)
    assert seen.kinds() == [("/n/e", "deleted")]
    assert session.expired
    assert not other.expired
    assert calls == [], "on_expired is not called after close()"
    session.close()


def test_an_ended_session_refuses_everything(stores: Stores) -> None:
    session, other, seen = stores.connect(), stores.connect(), Seen()
    session.create("/a")
    session.get("/a", seen)
    session.close()
    calls: list[Callable[[], object]] = [
        lambda: session.create("/b"),
        lambda: session.get("/a"),
        lambda: session.exists("/a"),
        lambda: session.exists("/a", seen),
        lambda: session.children("/a"),
        lambda: session.set_data("/a", b""),
        lambda: session.delete("/a"),
        lambda: session.multi([SetData("/a", b"")]),
        lambda: session.multi([]),
        lambda: session.get_many(["/a"]),
    ]
    for call in calls:
        with pytest.raises(SessionExpiredError):
            call()
    assert other.get("/a").stat.version == 0
    other.set_data("/a", b"x")
    settle(other)
    assert seen == [], "watches end with their session"


def test_a_closed_store_has_no_sessions(stores: Stores) -> None:
    sessions = [stores.connect() for _ in range(3)]
    sessions[0].create("/e", ephemeral=True)
    stores.store.close()
    assert all(session.expired for session in sessions)
    assert stores.connect().exists("/e") is None


def test_get_many(stores: Stores) -> None:
    session = stores.connect()
    session.create("/n")
    paths = [f"/n/{number}" for number in range(1200)]
    session.multi([Create(path, path.encode()) for path in paths])
    found = session.get_many([*paths, "/none", "/n/7", "/n"])
    assert [node.data for node in found if node is not None][:1200] == [path.encode() for path in paths]
    assert found[1200] is None
    assert found[1201] == session.get("/n/7")
    assert found[1202] is not None
    assert found[1202].stat.children == 1200
    assert session.get_many([]) == []


HOSTILE = [
    *("", "a", "a/b", "//", "/a/", "/a//b", "/.", "/..", "/a/..", "/a/../b", "/./a"),
    *("/a\0b", "/\n", "/a\x1f", "/\x7f", "/\x9f", "/\ud800", "/\uf8ff", "/\uffff", "/\U0001f600"),
    "/" + "a" * MAX_PATH_CHARS,
]


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: ascii(path)[:20])
def test_hostile_paths_are_refused(path: str, stores: Stores) -> None:
    session = stores.connect()
    before = tree(session)
    calls: list[Callable[[], object]] = [
        lambda: session.create(path),
        lambda: session.create(path, sequential=True),
        lambda: session.get(path),
        lambda: session.exists(path),
        lambda: session.children(path),
        lambda: session.set_data(path, b""),
        lambda: session.delete(path),
        lambda: session.multi([Create("/fine"), Check(path)]),
        lambda: session.get_many(["/", path]),
    ]
    for call in calls:
        with pytest.raises(UsageError):
            call()
    assert tree(session) == before


@pytest.mark.parametrize(
    "name", ["...", "..a", "a.", "%2e", "~", "a b", "'; DROP TABLE nodes", "ü", "名", "-", "*", "\\"]
)
def test_strange_names_are_names(name: str, stores: Stores) -> None:
    session = stores.connect()
    session.create("/n")
    assert session.create(f"/n/{name}", b"x") == f"/n/{name}"
    assert session.children("/n") == [name]
    assert session.get(f"/n/{name}").data == b"x"
    assert session.create(f"/n/{name}", sequential=True) == f"/n/{name}0000000001"


def test_bad_arguments_are_refused(stores: Stores) -> None:
    session = stores.connect()
    session.create("/a")
    calls: list[Callable[[], object]] = [
        lambda: session.create("/b", "text"),  # type: ignore[arg-type]
        lambda: session.create("/b", b"x" * (MAX_DATA_BYTES + 1)),
        lambda: session.set_data("/a", b"x" * (MAX_DATA_BYTES + 1)),
        lambda: session.set_data("/a", b"", -2),
        lambda: session.set_data("/a", b"", 2**31),
        lambda: session.set_data("/a", b"", 0.0),  # type: ignore[arg-type]
        lambda: session.delete("/"),
        lambda: session.multi([Delete("/")]),
        lambda: session.multi([Create("/b"), ("/a", b"")]),  # type: ignore[list-item]
        lambda: session.get(None),  # type: ignore[arg-type]
        lambda: stores.store.connect(0),
        lambda: stores.store.connect(-5),
    ]
    for call in calls:
        with pytest.raises(UsageError):
            call()
    assert session.exists("/b") is None
    assert session.set_data("/a", b"x" * MAX_DATA_BYTES).version == 1
    assert len(session.get("/a").data) == MAX_DATA_BYTES
