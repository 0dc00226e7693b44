"""What a request waits for that needs the metadata: a controller, the store, an election."""

from __future__ import annotations

from kreplog.core.broker.metadata_waits import (
    CHANGE_WAIT_MS,
    FRESH_MS,
    QUERY_WAIT_MS,
    MetadataNeed,
    MetadataWaits,
    ReadStored,
    Until,
    Waits,
)
from kreplog.core.broker.recently_failed import SUSPECTED_MS
from kreplog.core.messages import PartitionState, UpdateMetadataRequest
from kreplog.core.replication.metadata import MetadataCache
from kreplog.types import BrokerRegistration, LeaderAndIsr, TopicPartition

OWN, OTHER = 1, 2
BROKERS = tuple(BrokerRegistration(broker, 1, "host", 9092) for broker in (OWN, OTHER))
LED = PartitionState(TopicPartition("t", 0), "id", LeaderAndIsr(OTHER, 0, (OTHER,)), (OTHER,))
ALL = MetadataNeed(leaders=lambda: {OTHER}, lists_all=True)


class World:
    def __init__(self) -> None:
        self.metadata = MetadataCache()
        self.waits = MetadataWaits(OWN, self.metadata)
        self.now_ms = 100_000

    def update(self) -> None:
        self.metadata.apply(UpdateMetadataRequest(OWN, 1, 1, BROKERS, (LED,)))

    def next(self, waits: Waits, holds: bool | None = None) -> Until | ReadStored | bool:
        """The next wait, or whether the request is answered."""
        try:
            return waits.send(holds)
        except StopIteration as end:
            answered: bool = end.value
            return answered


def test_a_request_waits_for_a_controller_and_then_for_the_store() -> None:
    world = World()
    for need, wait_ms in ((ALL, QUERY_WAIT_MS), (MetadataNeed(), QUERY_WAIT_MS), (MetadataNeed(True), CHANGE_WAIT_MS)):
        assert not world.waits.is_ready(need, world.now_ms)
        waits = world.waits.begin(need)
        first = world.next(waits)
        assert isinstance(first, Until)
        assert (first.max_ms, first.condition(world.now_ms)) == (wait_ms, False)
        assert isinstance(world.next(waits, False), ReadStored)


def test_the_wait_for_a_controller_ends_with_its_metadata() -> None:
    world = World()
    waits = world.waits.begin(MetadataNeed())
    first = world.next(waits)
    world.update()
    assert isinstance(first, Until)
    assert first.condition(world.now_ms)
    assert world.next(waits, True) is True


def test_the_store_is_not_read_once_a_controller_has_sent_its_metadata() -> None:
    world = World()
    world.update()
    assert world.waits.is_ready(ALL, world.now_ms)
    waits = world.waits.begin(MetadataNeed())
    world.next(waits)
    assert world.next(waits, True) is True


def test_no_controller_is_waited_for_once_the_store_was_read() -> None:
    world = World()
    assert not world.waits.is_fresh(world.now_ms)
    world.waits.take(BROKERS, [LED], world.now_ms)
    first = world.next(world.waits.begin(ALL))
    assert isinstance(first, Until)
    assert first.max_ms == 0
    assert world.waits.is_fresh(world.now_ms + FRESH_MS - 1)
    assert not world.waits.is_fresh(world.now_ms + FRESH_MS)


def test_requests_share_a_read_of_the_store_and_its_failure() -> None:
    world, ended = World(), list[str]()
    assert world.waits.read_stored(lambda: ended.append("first"), world.now_ms)
    assert not world.waits.read_stored(lambda: ended.append("second"), world.now_ms)
    assert ended == []
    world.waits.read_ended()
    assert ended == ["first", "second"]
    assert world.waits.read_stored(lambda: ended.append("third"), world.now_ms), "the last one has failed"
    world.waits.take(BROKERS, [LED], world.now_ms)
    assert not world.waits.read_stored(lambda: ended.append("fourth"), world.now_ms), "one is under way"
    world.waits.read_ended()
    assert not world.waits.read_stored(lambda: ended.append("fifth"), world.now_ms), "it is fresh"
    assert ended == ["first", "second", "third", "fourth", "fifth"]


def test_a_broker_does_not_show_itself_as_a_leader_by_the_store() -> None:
    world = World()
    own = LED._replace(state=LED.state._replace(leader=OWN))
    world.waits.take(BROKERS, [own], world.now_ms)
    assert world.metadata.leader_of(LED.partition) == -1


def test_metadata_waits_for_the_election_of_a_suspected_leader() -> None:
    world = World()
    world.update()
    world.waits.recently_failed.connection_closed(OTHER, world.now_ms)
    others = MetadataNeed(leaders=lambda: {OWN}), MetadataNeed(), MetadataNeed(changes=True)
    assert not world.waits.is_ready(ALL, world.now_ms)
    assert all(world.waits.is_ready(need, world.now_ms) for need in others)
    waits = world.waits.begin(ALL)
    world.next(waits)
    election = world.next(waits, True)
    assert isinstance(election, Until)
    assert (election.max_ms, election.condition(world.now_ms)) == (SUSPECTED_MS, False)
    assert election.condition(world.now_ms + SUSPECTED_MS)
    assert world.next(waits, False) is True, "an old leader is better than no response"


def test_a_request_for_all_topics_is_refused_where_none_is_known_for_want_of_a_source() -> None:
    world = World()
    for need, answered in ((ALL, False), (MetadataNeed(leaders=set), True)):
        waits = world.waits.begin(need)
        world.next(waits)
        world.next(waits, False)
        world.next(waits)
        assert world.next(waits, True) is answered
    world.waits.take((), (), world.now_ms)
    waits = world.waits.begin(ALL)
    world.next(waits)
    world.next(waits, False)
    world.next(waits)
    assert world.next(waits, True) is True
