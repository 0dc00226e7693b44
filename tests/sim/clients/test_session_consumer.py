"""The consumer with sessions against scripted brokers: what it lists and forgets, and what it notices."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from kreplog.core.messages import FetchedPartition, FetchResponse, ListedOffset, ListOffsetsResponse, PartitionState
from kreplog.core.replication.sessions import FINAL_EPOCH
from kreplog.errors import ErrorCode
from kreplog.sim.clients.session_consumer import FetchByIds, session_consumer
from kreplog.sim.clients.workload import Call, ClientContext, Metadata, Settings, Sleep, Switch
from kreplog.sim.history import History, UnrequestedPartition
from kreplog.sim.machines.records import ModelCodec
from kreplog.types import LeaderAndIsr, TopicPartition

LEADER, SESSION = 1, 7
TOPICS = {"a": "id-a", "b": "id-b"}


class Always(Random):
    """Each choice is the first, and each draw is `drawn`."""

    drawn = 0.9

    def random(self) -> float:
        return self.drawn

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def randint(self, a: int, b: int) -> int:
        return a

    def sample(self, population: Any, k: int, **_: Any) -> Any:
        return list(population)[:k]


class Bench:
    """The consumer, and a broker that leads partition 0 of each of `topics`. They have no records."""

    def __init__(self) -> None:
        self.topics = dict(TOPICS)
        self.switch = Switch()
        self.random = Always()
        self.history = History(lambda: 0)
        context = ClientContext("consumer", Settings(), self.history, ModelCodec(), self.random, [LEADER], self.switch)
        self.client = session_consumer(context)
        self.effect: Any = next(self.client)

    def answer(self, answer: Any) -> None:
        self.effect = self.client.send(answer)

    def next_fetch(self) -> FetchByIds:
        """Answer all else until the client fetches."""
        while True:
            match self.effect:
                case Metadata():
                    states = {
                        TopicPartition(name, 0): PartitionState(
                            TopicPartition(name, 0), topic_id, LeaderAndIsr(LEADER, 0, (LEADER,)), (LEADER,)
                        )
                        for name, topic_id in self.topics.items()
                    }
                    self.answer(({}, states))
                case Sleep():
                    self.answer(None)
                case Call(requests=(FetchByIds() as fetch,)):
                    return fetch
                case Call(requests=(listing,)):
                    place = listing.partitions[0].partition
                    self.answer([ListOffsetsResponse((ListedOffset(place, ErrorCode.NONE, 0, 0),))])

    def respond(self, *ids: str, session_id: int = SESSION, error: ErrorCode = ErrorCode.NONE) -> None:
        found = (
            FetchedPartition(TopicPartition("", 0), ErrorCode.NONE, 0, 0, topic_id=topic_id, leader_epoch=0)
            for topic_id in ids
        )
        self.answer([FetchResponse(error, session_id, tuple(found))])

    @property
    def noticed(self) -> list[str]:
        return [event.topic_id for event in self.history.events if isinstance(event, UnrequestedPartition)]


def session_of(fetch: FetchByIds) -> tuple[int, int]:
    return fetch.request.session_id, fetch.request.session_epoch


def listed(fetch: FetchByIds) -> list[str]:
    return [entry.topic_id for entry in fetch.request.partitions]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    fetch = bench.next_fetch()
    assert (session_of(fetch), listed(fetch), fetch.forgotten) == ((0, 0), ["id-a", "id-b"], ())
    yield bench
    bench.client.close()


def test_what_has_not_changed_is_not_listed_again_and_a_deleted_topic_is_forgotten(bench: Bench) -> None:
    bench.respond("id-a", "id-b")
    fetch = bench.next_fetch()
    assert (session_of(fetch), listed(fetch), fetch.forgotten) == ((SESSION, 1), [], ())
    del bench.topics["b"]
    bench.random.drawn = 0.15  # metadata are requested, and the session goes on
    bench.respond()
    fetch = bench.next_fetch()
    assert (session_of(fetch), listed(fetch), fetch.forgotten) == ((SESSION, 2), [], (("id-b", 0),))
    bench.respond("id-b")
    bench.next_fetch()
    assert bench.noticed == ["id-b"]


def test_a_session_begins_again_after_an_error_or_without_a_response(bench: Bench) -> None:
    bench.respond("id-a", "id-b")
    bench.next_fetch()
    bench.answer([None])
    fetch = bench.next_fetch()
    assert (session_of(fetch), listed(fetch)) == ((SESSION, 0), ["id-a", "id-b"])
    bench.respond(error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    fetch = bench.next_fetch()
    assert (session_of(fetch), listed(fetch)) == ((0, 0), ["id-a", "id-b"])


def test_without_a_session_a_partition_is_listed_twice_and_expected_once(bench: Bench) -> None:
    bench.random.drawn = 0.05
    bench.respond("id-a", "id-b")
    fetch = bench.next_fetch()
    assert (session_of(fetch), sorted(listed(fetch))) == ((SESSION, FINAL_EPOCH), ["id-a", "id-a", "id-b"])
    bench.respond("id-a", "id-b", "id-a", session_id=0)
    assert session_of(bench.next_fetch())[0] == 0
    assert bench.noticed == ["id-a"]


def test_it_ends_when_all_is_read(bench: Bench) -> None:
    bench.switch.off = True
    for _ in range(2):
        bench.respond("id-a", session_id=0)
        bench.next_fetch()  # id-b has had no response yet
    with pytest.raises(StopIteration):
        bench.respond("id-b", "id-a")
