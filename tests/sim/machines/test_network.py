"""Connections in virtual time: order, loss, cuts, and what the sender learns of them."""

from __future__ import annotations

from typing import Any

import pytest

from kreplog.sim.machines.network import Fate, Network
from kreplog.sim.machines.scheduler import MS, Scheduler

SECOND = 1000 * MS


class Bench:
    """A server "b" that answers each request with itself; a client "a"; what each has seen."""

    def __init__(self, seed: int = 1, answers: bool = True) -> None:
        self.scheduler = Scheduler(seed)
        self.network = Network(self.scheduler)
        self.served: list[Any] = []
        self.channels: list[str] = []
        self.answers: list[Any] = []
        self.waiting: list[int] = []

        def serve(reply_to: int, request: Any, channel: str) -> None:
            self.served.append(request)
            self.channels.append(channel)
            if answers:
                self.network.reply(reply_to, request)
            else:
                self.waiting.append(reply_to)

        self.serve = serve
        self.network.attach("b", serve)
        self.network.attach("a", lambda reply_to, request, channel: None)

    def call(self, request: Any, channel: str = "one", timeout_us: int = SECOND) -> None:
        self.network.call("a", "b", channel, request, lambda answer: self.answers.append((request, answer)), timeout_us)

    def run(self, us: int = 5 * SECOND) -> None:
        self.scheduler.run_until(self.scheduler.now_us + us)


@pytest.mark.parametrize("seed", range(20))
def test_a_connection_keeps_the_order_and_connections_overtake_each_other(seed: int) -> None:
    bench = Bench(seed)
    bench.network.jitter = (0.5, 50 * MS)
    for number in range(20):
        bench.call(number, "one" if number % 2 else "two")
    bench.run()
    assert bench.channels == ["one" if number % 2 else "two" for number in bench.served]
    assert [number for number in bench.served if number % 2] == list(range(1, 20, 2))
    assert [number for number in bench.served if not number % 2] == list(range(0, 20, 2))
    assert bench.served != sorted(bench.served)
    assert sorted(bench.answers) == [(number, number) for number in range(20)]


def test_a_dead_host_is_learned_as_a_closed_connection() -> None:
    bench = Bench()
    bench.network.detach("b")
    bench.call("x", timeout_us=100 * SECOND)
    bench.run()
    assert (bench.served, bench.answers) == ([], [("x", None)])


def test_the_caller_of_a_host_that_fails_sees_it() -> None:
    bench = Bench(answers=False)
    bench.call("x", timeout_us=100 * SECOND)
    bench.run(100 * MS)
    bench.network.detach("b")
    bench.run()
    assert (bench.served, bench.answers) == (["x"], [("x", None)])


def test_a_reply_to_a_former_life_of_the_connection_is_dropped() -> None:
    bench = Bench(answers=False)
    bench.call("x")
    bench.run(100 * MS)
    bench.network.detach("b")
    bench.network.attach("b", bench.serve)
    bench.run()
    bench.network.reply(bench.waiting[0], "late")
    bench.run()
    assert bench.answers == [("x", None)]


def test_a_time_out_closes_the_connection_with_all_its_calls() -> None:
    bench = Bench(answers=False)
    bench.call("x", timeout_us=SECOND)
    bench.run(SECOND // 2)
    bench.call("y", timeout_us=SECOND)
    bench.run(SECOND // 2 + 1)
    assert bench.answers == [("x", None), ("y", None)]
    assert bench.network.connections() == []


def test_messages_at_a_cut_arrive_late_when_it_heals() -> None:
    bench = Bench()
    bench.network.cut("a", "b")
    for number in range(3):
        bench.call(number, timeout_us=100 * SECOND)
    bench.run()
    assert bench.served == []
    bench.network.heal("a", "b")
    bench.run()
    assert bench.served == [0, 1, 2]
    assert bench.answers == [(0, 0), (1, 1), (2, 2)]


def test_messages_at_a_cut_are_lost_with_their_connection() -> None:
    bench = Bench()
    bench.network.cut("a", "b")
    bench.call("x", timeout_us=SECOND)
    bench.run(2 * SECOND)
    bench.network.heal("a", "b")
    bench.run()
    assert (bench.served, bench.answers) == ([], [("x", None)])


def test_a_one_way_cut_lets_requests_through_and_no_replies() -> None:
    bench = Bench()
    bench.network.cut("b", "a")
    bench.call("x", timeout_us=SECOND)
    bench.run(2 * SECOND)
    assert (bench.served, bench.answers) == (["x"], [("x", None)])


def test_cuts_count() -> None:
    bench = Bench()
    bench.network.cut("a", "b")
    bench.network.cut("a", "b")
    bench.network.heal("a", "b")
    assert bench.network.is_cut("a", "b")
    bench.network.heal("a", "b")
    assert not bench.network.is_cut("a", "b")


def test_a_lost_connection_may_have_delivered_its_request() -> None:
    fates = set()
    for seed in range(30):
        bench = Bench(seed)
        bench.call("x")
        bench.network.close(bench.network.connections()[0])
        bench.run()
        assert bench.answers == [("x", None)]
        fates.add(tuple(bench.served))
    assert fates == {(), ("x",)}


def test_the_calls_of_a_dead_caller_are_forgotten() -> None:
    bench = Bench()
    bench.call("x")
    bench.network.detach("a")
    bench.run()
    assert bench.answers == []


def test_slow_links_and_starved_hosts_wait_longer() -> None:
    bench = Bench()
    bench.network.slow["a", "b"] = SECOND
    bench.call("x", timeout_us=100 * SECOND)
    bench.run(SECOND // 2)
    assert bench.served == []
    bench.run(SECOND)
    assert bench.served == ["x"]


class Held:
    """What a held connection from "a" to "b" has heard."""

    def __init__(self, bench: Bench) -> None:
        self.fates: list[Fate] = []
        self.connection = bench.network.dial("a", "b", self.fates.append)
        bench.run()


def test_a_held_connection_is_reset_by_death_and_a_new_one_refused() -> None:
    bench = Bench()
    held = Held(bench)
    assert held.fates == [Fate.CONNECTED]
    bench.network.detach("b")
    bench.run()
    assert held.fates == [Fate.CONNECTED, Fate.RESET]
    assert Held(bench).fates == [Fate.REFUSED]
    bench.network.attach("b", bench.serve)
    assert Held(bench).fates == [Fate.CONNECTED]


@pytest.mark.parametrize("link", [("a", "b"), ("b", "a")])
def test_across_a_cut_held_connections_hear_nothing(link: tuple[str, str]) -> None:
    bench = Bench()
    held = Held(bench)
    bench.network.cut(*link)
    assert Held(bench).fates == [Fate.SILENT]
    bench.network.detach("b")
    bench.run()
    expected = [Fate.CONNECTED] if link == ("b", "a") else [Fate.CONNECTED, Fate.RESET]
    assert held.fates == expected
    assert Held(bench).fates == [Fate.SILENT]


def test_a_refusal_looks_like_a_death_and_is_none() -> None:
    bench = Bench()
    held = Held(bench)
    bench.network.refuse("a", "b")
    bench.call("x", timeout_us=100 * SECOND)
    bench.run()
    assert held.fates == [Fate.CONNECTED, Fate.RESET]
    assert bench.answers == [("x", None)]
    assert Held(bench).fates == [Fate.REFUSED]
    bench.network.accept("a", "b")
    bench.call("y")
    bench.run()
    assert bench.answers[1:] == [("y", "y")]
    assert Held(bench).fates == [Fate.CONNECTED]


def test_a_closed_connection_reports_nothing_more() -> None:
    bench = Bench()
    held = Held(bench)
    bench.network.hang_up(held.connection)
    bench.network.detach("b")
    bench.run()
    assert held.fates == [Fate.CONNECTED]
