"""What several processes see of one store: contention, death, hanging, watches, and the store's own restart."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kreplog.coord.base import Session
from kreplog.coord.zookeeper import ZooKeeperStore
from kreplog.errors import ConnectionLossError, CoordinationError, SessionExpiredError, UsageError
from kreplog.types import Create, SetData, WatchEvent
from tests.coord.conftest import Stores
from tests.coord.puppet import Refused, open_store
from tests.coord.servers import MISSING, Proxy, ZooKeeperServer, until


def test_of_many_writers_of_one_version_exactly_one_wins(shared: Stores) -> None:
    session = shared.connect()
    session.create("/a")
    puppets = [shared.puppet() for _ in range(4)]
    for version in range(15):
        for puppet in puppets:
            puppet.send("once", "/a", version)
        assert [puppet.answer() for puppet in puppets].count(True) == 1
    assert session.get("/a").stat.version == 15


def test_contended_writes_lose_none_and_apply_none_twice(shared: Stores) -> None:
    session, writers, times = shared.connect(), 4, 25
    session.create("/a", b"0")
    puppets = [shared.puppet() for _ in range(writers)]
    for puppet in puppets:
        puppet.send("add", "/a", times)
    refused = sum(puppet.answer() for puppet in puppets)
    node = session.get("/a")
    assert (int(node.data), node.stat.version) == (writers * times, writers * times)
    print(f"{shared.kind}: {writers * times} conditional writes by {writers} processes, {refused} refused meanwhile")


def test_ephemeral_nodes_vanish_when_their_process_is_killed(shared: Stores) -> None:
    """ZooKeeper notices it by the session's time-out; the embedded store long before that, by the kernel's word."""
    session, took = shared.connect(), []
    for _ in range(10 if shared.kind == "embedded" else 2):
        puppet = shared.puppet(600_000 if shared.kind == "embedded" else 1000)
        puppet("create", "/e", b"", ephemeral=True)
        gone = threading.Event()
        assert session.exists("/e", lambda _, gone=gone: gone.set()) is not None  # type: ignore[misc]
        puppet.process.kill()
        took.append(until(gone.is_set, "the ephemeral node's end") * 1000)
        assert session.exists("/e") is None
    print(f"{shared.kind}: from SIGKILL to the watch, ms: {', '.join(f'{ms:.1f}' for ms in sorted(took))}")


def test_a_process_that_hangs_is_ended_and_stays_refused(shared: Stores) -> None:
    session, puppet = shared.connect(), shared.puppet(1000)
    session.create("/epoch", b"1")
    session.create("/state", b"")
    puppet("create", "/e", b"", ephemeral=True)
    assert puppet("fenced", "/epoch", 0, "/state")
    assert puppet("expired") == (False, 0)
    puppet.stop(signal.SIGSTOP)
    puppet.send("set_data", "/state", b"late")
    took = until(lambda: session.exists("/e") is None, "the hanging session's end")
    print(f"{shared.kind}: a session of 1000 ms was ended {took * 1000:.0f} ms after its process stopped")
    state = session.set_data("/state", b"mine")
    puppet.stop(signal.SIGCONT)
    with pytest.raises(Refused, match=r"SessionExpired|ConnectionLoss"):
        puppet.answer()
    for method, arguments in [
        ("set_data", ("/state", b"later")),
        ("get", ("/state",)),
        ("create", ("/e", b"")),
        ("fenced", ("/epoch", 0, "/state")),
    ]:
        with pytest.raises(Refused, match="SessionExpired"):
            puppet(method, *arguments)
    until(lambda: puppet("expired") == (True, 1), "on_expired, once")
    assert session.get("/state").stat == state, "nothing that the ended session tried was applied"
    assert session.exists("/e") is None


def test_no_write_is_lost_between_a_read_and_its_watch(shared: Stores) -> None:
    """Another process writes as fast as it can: each wait for a watch ends, until the last value is seen."""
    session, last, reads = shared.connect(), 1500, 0
    session.create("/a", b"0")
    puppet = shared.puppet()
    puppet.send("count", "/a", last)
    seen = -1
    while seen < last:
        fired = threading.Event()
        value = int(session.get("/a", lambda _, fired=fired: fired.set()).data)  # type: ignore[misc]
        assert value > seen, "a watch is called for a later write than the one that was read"
        seen, reads = value, reads + 1
        assert value == last or fired.wait(30), f"lost: read {value}, and the watch was never called"
    puppet.answer()
    print(f"{shared.kind}: {reads} reads with a watch during {last} writes")


def test_no_child_is_lost_between_a_read_and_its_watch(shared: Stores) -> None:
    session, last = shared.connect(), 500
    session.create("/n")
    puppet = shared.puppet()
    puppet.send("grow", "/n", last)
    seen = -1
    while seen < last:
        fired = threading.Event()
        children = session.children("/n", lambda _, fired=fired: fired.set())  # type: ignore[misc]
        assert len(children) > seen
        seen = len(children)
        assert seen == last or fired.wait(30), f"lost: read {seen} children, and the watch was never called"
    puppet.answer()


def test_every_watch_is_called_once_in_order_while_another_process_writes(shared: Stores) -> None:
    session, events = shared.connect(), list[WatchEvent]()
    session.create("/n")
    paths = [f"/n/n-{number:010d}" for number in range(300)]
    for path in paths:
        session.exists(path, events.append)
    shared.puppet()("grow", "/n", len(paths))
    until(lambda: len(events) >= len(paths), "all events")
    assert events == [WatchEvent(path, "created") for path in paths]


def test_no_reader_sees_half_a_multi(shared: Stores) -> None:
    """Also when the writer is killed in the middle of one."""
    session = shared.connect()
    paths = [f"/n{number}" for number in range(20)]
    session.multi([Create(path, b"0") for path in paths])
    for _ in range(4):
        puppet = shared.puppet(1000)
        puppet("together", paths)
        before = session.get("/n0").data
        until(lambda before=before: session.get("/n0").data != before, "writes")  # type: ignore[misc]
        puppet.process.kill()
        puppet.process.wait()
        until(lambda: len(_moment(session, paths)) == 1, "one value in all nodes")
        assert len({node.stat.version for node in session.get_many(paths) if node is not None}) == 1


def _moment(session: Session, paths: list[str]) -> set[bytes | None]:
    return {None if node is None else node.data for node in session.get_many(paths)}


def test_the_embedded_store_outlives_all_its_processes(tmp_path: Path) -> None:
    shared = Stores("embedded", f"embedded:{tmp_path / 'coordination'}", open_store(f"embedded:{tmp_path}"))
    shared.store = open_store(shared.address)
    puppets = [shared.puppet() for _ in range(3)]
    puppets[0]("create", "/n", b"kept")
    for number, puppet in enumerate(puppets):
        puppet("create", f"/n/e{number}", b"", ephemeral=True)
        puppet("set_data", "/n", b"kept %d" % number, number)
    for puppet in puppets:
        puppet.process.kill()
        puppet.process.wait()
    session = shared.connect()
    assert session.id > max(puppet.id for puppet in puppets)
    node = session.get("/n")
    assert (node.data, node.stat.version) == (b"kept 2", 3)
    assert session.children("/n") == [], "the dead are ended before the first one who comes sees anything"
    assert len(list((tmp_path / "coordination" / "sessions").iterdir())) == 3
    assert session.create("/n/s-", sequential=True) == "/n/s-0000000003"
    shared.close()
    assert list((tmp_path / "coordination" / "sessions").iterdir()) == []


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    if MISSING:
        pytest.skip(MISSING)
    server = ZooKeeperServer(tmp_path)
    yield server
    server.kill()


def test_zookeeper_killed_and_started_again(own_server: ZooKeeperServer) -> None:
    """Data, sessions, ephemeral nodes and watches outlive the server, if it is back before the sessions time out."""
    ended: list[str] = []
    store, events = ZooKeeperStore(own_server.hosts + "/kreplog"), list[WatchEvent]()
    session, other = store.connect(20_000, lambda: ended.append("expired")), store.connect(20_000)
    session.create("/n", b"kept")
    session.create("/n/e", b"", ephemeral=True)
    session.set_data("/n", b"written", 0)
    other.get("/n", events.append)
    other.children("/n", events.append)
    other.exists("/none", events.append)
    own_server.kill()
    own_server.start()

    def write_again() -> bool:
        try:
            session.multi([SetData("/n", b"after", 1), Create("/none")])
        except ConnectionLossError:
            return session.get("/n").stat.version == 2
        return True

    until(write_again, "a write after the restart")
    assert session.get("/n").data == b"after"
    assert other.get("/n/e").stat.ephemeral_owner == session.id
    expected = [WatchEvent("/n", "changed"), WatchEvent("/none", "created")]
    until(lambda: sorted(events, key=lambda event: event.path) == expected, "the watches of before the restart")
    session.delete("/n/e")
    until(lambda: events[2:] == [WatchEvent("/n", "children")], "the watch that had not fired yet")
    assert not ended
    store.close()


@pytest.fixture
def proxy(zookeeper: ZooKeeperServer) -> Iterator[Proxy]:
    opened = Proxy(zookeeper.port)
    yield opened
    opened.close()


@pytest.mark.parametrize("cut", ["refused", "black hole"])
def test_a_session_cut_off_from_zookeeper_fences_itself(cut: str, proxy: Proxy, zookeeper: ZooKeeperServer) -> None:
    """On its own clock, while the cut lasts; and for ever, when it is over."""
    ended: list[str] = []
    far, near = ZooKeeperStore(f"{proxy.hosts}/{cut[:5]}"), ZooKeeperStore(f"{zookeeper.hosts}/{cut[:5]}")
    session, other = far.connect(2000, lambda: ended.append("expired")), near.connect(10_000)
    session.create("/e", b"", ephemeral=True)
    session.create("/a")
    if cut == "refused":
        proxy.cut()
    else:
        proxy.hold()
    took = until(lambda: session.expired, "the session's own end", 10)
    print(f"{cut}: expired {took * 1000:.0f} ms after the cut, of a timeout of {session.timeout_ms} ms")
    with pytest.raises(SessionExpiredError):
        session.set_data("/a", b"x")
    until(lambda: ended == ["expired"], "on_expired")
    until(lambda: other.exists("/e") is None, "the server's own word")
    proxy.heal()
    with pytest.raises(SessionExpiredError):
        session.set_data("/a", b"x")
    again = far.connect(2000)
    assert again.get("/a").stat.version == 0, "nothing was written meanwhile"
    assert again.id != session.id
    assert session.expired
    assert ended == ["expired"]
    far.close()
    near.close()


def test_kazoo_begins_no_new_session_in_place_of_an_ended_one(zookeeper: ZooKeeperServer) -> None:
    """kazoo would, once it sees that the old session is lost, and send its queued requests in the new session."""
    store = ZooKeeperStore(zookeeper.hosts)
    session = store.connect(10_000)
    handler = session._client.handler
    handler.create_connection(("127.0.0.1", zookeeper.port), timeout=10).close()
    store.close()
    with pytest.raises(ConnectionRefusedError, match="ended"):
        handler.create_connection(("127.0.0.1", zookeeper.port), timeout=10)


def test_watches_outlive_a_broken_connection_to_zookeeper(proxy: Proxy, zookeeper: ZooKeeperServer) -> None:
    far, near = ZooKeeperStore(proxy.hosts + "/watches"), ZooKeeperStore(zookeeper.hosts + "/watches")
    session, other, events = far.connect(15_000), near.connect(15_000), list[WatchEvent]()
    other.multi([Create("/n"), Create("/n/a"), Create("/n/b"), Create("/quiet")])
    session.get("/n/a", events.append)
    session.get("/n/b", events.append)
    session.children("/n/b", events.append)
    session.children("/n", events.append)
    session.exists("/n/c", events.append)
    session.exists("/quiet", events.append)
    session.children("/quiet", events.append)
    proxy.cut()
    other.set_data("/n/a", b"x")
    other.delete("/n/b")
    other.create("/n/c")
    proxy.heal()
    expected = {("/n/a", "changed"), ("/n/b", "deleted"), ("/n", "children"), ("/n/c", "created")}
    until(lambda: {(event.path, event.kind) for event in events} == expected, "what happened meanwhile")
    other.set_data("/quiet", b"x")
    other.create("/quiet/child")
    until(lambda: len(events) == 6, "the watches that had not fired")
    assert [(event.path, event.kind) for event in events[4:]] == [("/quiet", "changed"), ("/quiet", "children")]
    other.multi([SetData(path, b"again") for path in ("/n/a", "/n/c", "/n", "/quiet")])
    session.exists("/last", events.append)
    other.create("/last")
    until(lambda: events[-1] == WatchEvent("/last", "created"), "the last event")
    assert len(events) == 7, "none was called twice"
    far.close()
    near.close()


def test_a_server_that_takes_a_connection_and_never_answers_does_not_cost_the_session(proxy: Proxy) -> None:
    """As one that is just starting does: kazoo alone would wait for its answer until the session has ended."""
    store = ZooKeeperStore(proxy.hosts)
    session = store.connect(8000)
    proxy.drop(ignored=2)
    until(lambda: not session._connected.is_set(), "the cut")
    assert session.exists("/") is not None
    store.close()


def test_a_write_under_way_when_the_connection_breaks_is_of_unknown_outcome(
    proxy: Proxy, zookeeper: ZooKeeperServer
) -> None:
    store = ZooKeeperStore(proxy.hosts + "/unknown")
    session, raised = store.connect(15_000), list[BaseException]()
    session.create("/a")
    proxy.hold()

    def write() -> None:
        try:
            session.set_data("/a", b"x", 0)
        except CoordinationError as error:
            raised.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    threading.Timer(0.3, proxy.cut).start()
    writer.join(30)
    proxy.heal()
    assert [type(error) for error in raised] == [ConnectionLossError]
    assert "read it before a retry" in str(raised[0])
    assert session.get("/a").stat.version in (0, 1)
    assert not session.expired
    store.close()


def test_zookeeper_refuses_a_multi_larger_than_a_packet(zookeeper: ZooKeeperServer) -> None:
    store = ZooKeeperStore(zookeeper.hosts + "/large")
    session = store.connect(10_000)
    session.create("/n")
    with pytest.raises(UsageError, match="jute"):
        session.multi([Create(f"/n/{number}", bytes(1000)) for number in range(1000)])
    assert session.children("/n") == []
    fitting = [Create(f"/n/{number}", bytes(1000)) for number in range(960)]
    assert len(session.multi(fitting)) == 960
    store.close()


def test_a_missing_zookeeper_server_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConnectionLossError, match="no ZooKeeper server"):
        ZooKeeperStore("127.0.0.1:1", connect_timeout_ms=300).connect(1000)
    for hosts in ("", "/kreplog", "host:1/a//b", "host:1/.."):
        with pytest.raises(UsageError):
            ZooKeeperStore(hosts)


def test_the_agreed_timeout_is_known(zookeeper: ZooKeeperServer) -> None:
    store = ZooKeeperStore(zookeeper.hosts)
    assert [store.connect(requested).timeout_ms for requested in (10, 1500, 10_000_000)] == [1000, 1500, 20_000]
    store.close()
