"""VirtualSubmissions: the queue of submissions on a process's link, its pauses and the end of its session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from kreplog.errors import BadVersionError, ConnectionLossError, SessionExpiredError
from kreplog.sim.brokers.broker import BrokerProcess
from kreplog.sim.brokers.virtual_submissions import VirtualSubmissions
from kreplog.sim.machines.network import Network
from kreplog.sim.machines.scheduler import MS, Scheduler
from kreplog.sim.machines.store import StoreServer, VirtualStoreLink
from kreplog.types import Create, SetData


class Process:
    """A process with a session, and what it was answered, by name."""

    def __init__(self) -> None:
        self.id = 1
        self.running = self.alive = True
        self.answers: list[tuple[str, Any]] = []
        self.violations: list[str] = []
        self.scheduler = Scheduler(1)
        network = Network(self.scheduler)
        self.server = StoreServer(self.scheduler, network)
        self.cluster = SimpleNamespace(
            scheduler=self.scheduler,
            checkers=SimpleNamespace(violate=lambda kind, text, model: self.violations.append(kind)),
        )
        self.link = VirtualStoreLink(
            self.server, network, self.scheduler, "b1", 10_000, 0, lambda session: None, lambda: self.link.connect()
        )
        self.link.connect()
        self.run()
        self.submissions = VirtualSubmissions(cast(BrokerProcess, self))

    def run(self, ms: int = 50) -> None:
        self.scheduler.run_until(self.scheduler.now_us + ms * MS)

    def create(self, name: str) -> None:
        def written() -> None:
            self.answers.append((name, "written"))

        self.submissions.multi((Create(f"/{name}"),), self.outcome(name), written)

    def outcome(self, name: str) -> Any:
        return lambda results, error: self.answers.append((name, type(error) if error else results))

    def transaction_of(self, name: str) -> int | None:
        node = self.server.store.peek(f"/{name}")
        return None if node is None else node.stat.created


@pytest.fixture
def process() -> Process:
    return Process()


def test_what_a_step_submits_shares_a_transaction_and_a_read_follows_it(process: Process) -> None:
    for name in "ab":
        process.create(name)
    process.submissions.get_nodes(("/a", "/none"), lambda nodes, error: process.answers.append(("read", nodes[1])))
    process.create("c")
    process.run()
    assert process.answers == [
        *(("a", "written"), ("b", "written"), ("a", ("/a",)), ("b", ("/b",))),
        *(("read", None), ("c", "written"), ("c", ("/c",))),
    ]
    assert process.transaction_of("a") == process.transaction_of("b") != process.transaction_of("c")


def test_a_refusal_concerns_one_submission_alone(process: Process) -> None:
    process.create("a")
    process.submissions.multi((SetData("/", b"", 7),), process.outcome("refused"))
    process.create("b")
    process.run()
    assert [answer for answer in process.answers if answer[1] != "written"] == [
        *(("a", ("/a",)), ("refused", BadVersionError), ("b", ("/b",))),
    ]
    assert process.violations == []


def test_a_paused_process_sends_nothing(process: Process) -> None:
    process.create("a")
    process.run(0)
    process.create("b")
    process.running = False
    process.run()
    assert process.answers == [("a", "written"), ("a", ("/a",))]
    process.running = True
    process.submissions.resume()
    process.submissions.resume()
    process.run()
    assert process.answers[2:] == [("b", "written"), ("b", ("/b",))]


def test_nothing_follows_the_end_of_the_process(process: Process) -> None:
    process.create("a")
    process.run(0)
    process.create("b")
    process.running = process.alive = False
    process.run()
    assert process.answers == [("a", "written")]
    assert process.transaction_of("b") is None


def test_what_waits_when_the_session_ends_is_not_run_in_the_next(process: Process) -> None:
    session = process.link.session
    assert session is not None
    process.create("a")
    process.run(0)
    process.create("b")
    process.server.expire(session.id)
    process.running = False
    process.run()
    assert process.link.session not in (None, session)
    process.running = True
    process.submissions.resume()
    process.run()
    assert process.answers == [("a", SessionExpiredError), ("b", SessionExpiredError)]
    process.create("c")
    process.run()
    assert process.answers[2:] == [("c", "written"), ("c", ("/c",))]


def test_a_lost_connection_leaves_open_what_was_in_flight_alone(process: Process) -> None:
    process.create("a")
    process.create("b")
    process.run(0)
    process.create("c")
    process.link.lose_connection()
    process.run(500)
    assert process.answers == [
        *(("a", ConnectionLossError), ("b", ConnectionLossError), ("c", "written"), ("c", ("/c",))),
    ]
