"""A process's link to the store: sessions, fencing, lost requests and replies, watches."""

from __future__ import annotations

from typing import Any

import pytest

from kreplog.errors import ConnectionLossError, NoNodeError, SessionExpiredError
from kreplog.sim.machines.network import Network
from kreplog.sim.machines.scheduler import MS, Scheduler
from kreplog.sim.machines.store import STORE, StoreServer, VirtualStoreLink
from kreplog.types import Create, SetData, WatchEvent

TIMEOUT_MS = 1000


class Bench:
    """A link of host "b1" and what it reported: sessions, outcomes, watches."""

    def __init__(self, seed: int = 1, late_ms: int = 0) -> None:
        self.scheduler = Scheduler(seed)
        self.network = Network(self.scheduler)
        self.server = StoreServer(self.scheduler, self.network)
        self.observed: list[Any] = []
        self.link = VirtualStoreLink(
            self.server,
            self.network,
            self.scheduler,
            "b1",
            TIMEOUT_MS,
            late_ms * MS,
            lambda session_id: self.observed.append("connected"),
            lambda: self.observed.append(("lost", self.scheduler.now_ms)),
        )
        self.link.connect()
        self.run(50)

    def run(self, ms: int) -> None:
        self.scheduler.run_until(self.scheduler.now_us + ms * MS)

    def outcome(self, results: Any, error: Any) -> None:
        self.observed.append(type(error) if error is not None else results)

    def watcher(self, event: WatchEvent) -> None:
        self.observed.append((event.path, event.kind))

    def create(self, path: str) -> None:
        self.link.multi([Create(path)], self.outcome)


def test_requests_are_answered_in_order() -> None:
    bench = Bench()
    bench.create("/a")
    bench.create("/b/c")
    bench.link.get_children("/", None, bench.outcome)
    bench.run(50)
    assert bench.observed == ["connected", ("/a",), NoNodeError, ["a"]]


def test_a_session_is_kept_up_for_as_long_as_it_is_wanted() -> None:
    bench = Bench()
    bench.run(20 * TIMEOUT_MS)
    assert bench.observed == ["connected"]


def test_a_link_that_is_cut_off_fences_itself_before_the_store_ends_its_session() -> None:
    bench = Bench()
    bench.link.multi([Create("/me", ephemeral=True)], bench.outcome)
    bench.run(200)
    bench.network.cut(STORE, "b1")
    bench.network.cut("b1", STORE)
    gone_ms = 0
    while not gone_ms:
        bench.run(10)
        if bench.server.store.peek("/me") is None:
            gone_ms = bench.scheduler.now_ms
    assert bench.observed[-1][0] == "lost"
    assert bench.observed[-1][1] <= gone_ms


def test_a_late_link_is_a_zombie_for_a_while() -> None:
    bench = Bench(late_ms=3000)
    bench.link.multi([Create("/me", ephemeral=True)], bench.outcome)
    bench.run(200)
    bench.network.cut(STORE, "b1")
    bench.network.cut("b1", STORE)
    bench.run(2 * TIMEOUT_MS)
    assert bench.server.store.peek("/me") is None
    assert bench.observed == ["connected", ("/me",)]
    bench.run(3000)
    assert bench.observed[-1][0] == "lost"


def test_a_session_that_the_store_ended_is_learned_with_the_next_word() -> None:
    bench = Bench()
    session = bench.link.session
    assert session is not None
    bench.server.expire(session.id)
    bench.create("/a")
    bench.run(100)
    assert bench.observed[1][0] == "lost"
    assert bench.observed[2] is SessionExpiredError
    assert bench.server.store.peek("/a") is None
    bench.create("/a")
    bench.run(10)
    assert bench.observed[3] is SessionExpiredError


def test_a_lost_reply_leaves_the_write_applied() -> None:
    bench = Bench()
    bench.link.lose_replies(1)
    bench.create("/a")
    bench.run(50)
    assert bench.observed == ["connected", ConnectionLossError]
    assert bench.server.store.peek("/a") is not None
    bench.run(500)
    bench.create("/b")
    bench.run(50)
    assert bench.observed[-1] == ("/b",)


def test_a_write_on_a_lost_connection_is_applied_before_the_link_is_back_or_never() -> None:
    applied = set()
    for seed in range(30):
        bench = Bench(seed)
        bench.create("/a")
        bench.scheduler.run_until(bench.scheduler.now_us + int(2 * MS * bench.scheduler.random.random()))
        bench.link.lose_connection()
        done = bench.server.store.peek("/a") is not None
        if bench.observed != ["connected", ("/a",)]:
            assert bench.observed == ["connected", ConnectionLossError]
        bench.run(1000)
        assert done == (bench.server.store.peek("/a") is not None)
        applied.add(done)
    assert applied == {False, True}


def test_an_unavailable_store_ends_no_session() -> None:
    bench = Bench()
    bench.server.interrupt()
    bench.run(TIMEOUT_MS // 2)
    bench.create("/a")
    bench.server.resume()
    bench.run(2 * TIMEOUT_MS)
    assert ("lost" in str(bench.observed)) is False
    assert bench.observed[-1] in (("/a",), ConnectionLossError)


@pytest.mark.parametrize("seed", range(10))
def test_watches_come_in_order_and_before_later_reads(seed: int) -> None:
    bench = Bench(seed)
    bench.create("/a")
    bench.link.get_nodes(["/a", "/b"], bench.watcher, bench.outcome)
    bench.link.get_nodes(["/a"], bench.watcher, lambda results, error: None)
    bench.run(50)
    del bench.observed[:]
    other = bench.server.store.connect(10**6)
    other.create("/b")
    other.multi([SetData("/a", b"x")])
    bench.link.get_nodes(["/a"], None, lambda results, error: bench.observed.append(results[0].data))
    bench.run(50)
    assert bench.observed == [("/b", "created"), ("/a", "changed"), b"x"]


def test_watches_that_fire_while_the_link_is_down_arrive_when_it_is_back() -> None:
    bench = Bench()
    bench.create("/a")
    bench.link.get_nodes(["/a"], bench.watcher, bench.outcome)
    bench.run(50)
    bench.link.lose_connection()
    bench.server.store.connect(10**6).set_data("/a", b"x")
    bench.run(500)
    assert bench.observed[-1] == ("/a", "changed")


def test_a_paused_process_loses_its_session_and_learns_it_when_it_goes_on() -> None:
    bench = Bench()
    bench.link.paused = True
    bench.run(3 * TIMEOUT_MS)
    assert bench.observed == ["connected"]
    bench.link.resume()
    bench.run(100)
    assert bench.observed[-1][0] == "lost"


def test_a_killed_process_is_noticed_at_once_or_by_its_timeout() -> None:
    for notice_us, gone in ((20 * MS, True), (None, False)):
        bench = Bench()
        bench.link.multi([Create("/me", ephemeral=True)], bench.outcome)
        bench.run(50)
        bench.link.kill(notice_us)
        bench.run(100)
        assert (bench.server.store.peek("/me") is None) is gone
        bench.run(2 * TIMEOUT_MS)
        assert bench.server.store.peek("/me") is None
