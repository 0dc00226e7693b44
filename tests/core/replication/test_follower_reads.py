"""Fetches of consumers from the replica in their rack (KIP-392): where the leader sends them, and what a follower
serves. b1 leads, in rack a; b2 follows in rack b, b3 in rack c."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kreplog.config import LEADER_SELECTOR, RACK_AWARE_SELECTOR, ReplicationConfig
from kreplog.core.effects import Reply, Send
from kreplog.core.events import FetchReplied, SessionLost, Tick
from kreplog.core.messages import (
    CONSUMER,
    READ_COMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    UpdateMetadataRequest,
)
from kreplog.core.replication.isr import RemoteReplica
from kreplog.core.replication.local_replica import LocalReplica
from kreplog.core.replication.replica_selectors import ReplicaView, can_serve, rack_aware
from kreplog.errors import ErrorCode
from kreplog.types import NO_EPOCH, BrokerRegistration, Endpoint, EpochEndOffset, SecurityProtocol
from tests.core.replication.test_following import Brokers
from tests.core.shell import TP, Shell, values

RACKS = {1: "a", 2: "b", 3: "c"}
RACK_AWARE = ReplicationConfig(replica_selector_class=RACK_AWARE_SELECTOR, replica_lag_time_max_ms=1000)


def registered(**changes: Any) -> dict[int, BrokerRegistration]:
    return {id: BrokerRegistration(id, 1, rack=rack, **changes) for id, rack in RACKS.items()}


def inform(brokers: Brokers, registrations: Mapping[int, BrokerRegistration]) -> None:
    for shell in brokers.shells.values():
        shell.request(UpdateMetadataRequest(9, 1, shell.epoch, tuple(registrations.values())))


def cluster(config: ReplicationConfig = RACK_AWARE, isr: tuple[int, ...] = (1, 2, 3)) -> Brokers:
    """With three committed records, which both followers hold, and know to be committed."""
    brokers = Brokers(1, 2, 3, config=config)
    inform(brokers, registered())
    brokers.leader_and_isr(1, 1, isr)
    brokers.write(1, "a", "b", "c")
    for _ in range(3):
        for follower in (2, 3):
            brokers.fetch(follower)
    return brokers


def request(offset: int, rack: str = "b", epoch: int = 1, max_wait_ms: int = 0, **more: Any) -> FetchRequest:
    return FetchRequest(
        CONSUMER, -1, max_wait_ms, 1, 1 << 20, (FetchPartition(TP, "id", epoch, offset),), rack=rack, **more
    )


def fetched(brokers: Brokers, broker: int, offset: int, rack: str = "b", **more: Any) -> FetchedPartition:
    (partition,) = brokers[broker].response_to(request(offset, rack, **more)).partitions
    assert isinstance(partition, FetchedPartition)
    return partition


def awaited(shell: Shell) -> FetchedPartition:
    """The response to the delayed fetch."""
    (reply,) = [effect for effect in shell.effects if isinstance(effect, Reply) and effect.reply_to == "waits"]
    assert isinstance(reply.response, FetchResponse)
    return reply.response.partitions[0]


# Where the leader sends consumers


@pytest.mark.parametrize(
    ("rack", "followers", "chosen"),
    [
        ("b", [(2, "b", 5, 0), (3, "c", 9, 0)], 2),
        ("b", [(2, "b", 5, 0), (3, "b", 9, 70)], 3),
        ("b", [(2, "b", 5, 10), (3, "b", 5, 0)], 3),
        ("b", [(3, "b", 5, 0), (2, "b", 5, 0)], 3),
        ("a", [(2, "a", 9, 0)], 1),
        ("z", [(2, "b", 9, 0)], 1),
        ("b", [(2, None, 9, 0)], 1),
    ],
    ids=["in rack", "furthest", "least lag", "tie", "leader in rack", "no such rack", "no racks"],
)
def test_the_selector_prefers_as_kafkas_does(rack: str, followers: list[Any], chosen: int) -> None:
    assert rack_aware(rack, ReplicaView(1, "a", 9, 0), [ReplicaView(*each) for each in followers]) == chosen


@pytest.mark.parametrize(("offset", "does"), [(1, False), (2, True), (5, True), (6, False)])
def test_a_replica_holds_offsets_from_its_start_to_its_end(offset: int, does: bool) -> None:
    assert can_serve(RemoteReplica(2, leo=5, log_start=2), (1, 2), offset) is does


def test_a_replica_that_has_not_fetched_holds_nothing() -> None:
    assert not can_serve(RemoteReplica(2), (1, 2), 0)


def test_a_replica_out_of_sync_serves_nobody() -> None:
    assert not can_serve(RemoteReplica(2, leo=5, log_start=2), (1,), 3)


def test_the_leader_names_the_follower_in_the_rack_at_once_and_sends_no_records() -> None:
    brokers = cluster()
    response = fetched(brokers, 1, 0, max_wait_ms=500)
    assert (response.error, response.preferred_read_replica) == (ErrorCode.NONE, 2)
    assert (bytes(response.records or b""), response.high_watermark, response.log_start_offset) == (b"", 3, 0)
    assert fetched(brokers, 1, 0, "c").preferred_read_replica == 3


@pytest.mark.parametrize("rack", ["", "a", "z"])
def test_the_leader_serves_consumers_without_a_replica_in_their_rack(rack: str) -> None:
    response = fetched(cluster(), 1, 0, rack)
    assert (response.preferred_read_replica, values(response.records)) == (-1, ["a", "b", "c"])


def test_the_leader_selector_sends_nobody_elsewhere() -> None:
    brokers = cluster(replace(RACK_AWARE, replica_selector_class=LEADER_SELECTOR))
    assert values(fetched(brokers, 1, 0).records) == ["a", "b", "c"]
    assert fetched(brokers, 2, 0, epoch=-1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER  # it is there by old metadata


def test_a_follower_outside_the_isr_is_not_preferred() -> None:
    assert fetched(cluster(isr=(1, 3)), 1, 0).preferred_read_replica == -1


def test_a_follower_that_lacks_the_offset_is_not_preferred() -> None:
    brokers = cluster()
    brokers.write(1, "d")
    assert fetched(brokers, 1, 3).preferred_read_replica == 2
    assert fetched(brokers, 1, 4).preferred_read_replica == -1


@pytest.mark.parametrize(
    "change",
    [
        None,
        {"stopping": True},
        {"endpoints": (Endpoint("OTHER", "here", 1, SecurityProtocol.PLAINTEXT),)},
    ],
    ids=["gone", "stopping", "not at the listener"],
)
def test_a_follower_that_clients_may_not_reach_is_not_preferred(change: dict[str, Any] | None) -> None:
    brokers, registrations = cluster(), registered()
    if change is None:
        del registrations[2]
    else:
        registrations[2] = replace(registrations[2], **change)
    inform(brokers, registrations)
    assert values(fetched(brokers, 1, 0).records) == ["a", "b", "c"]


def test_the_leaders_range_and_epoch_are_checked_first() -> None:
    brokers = cluster()
    assert fetched(brokers, 1, 9).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetched(brokers, 1, 0, epoch=0).error is ErrorCode.FENCED_LEADER_EPOCH


def test_a_session_answers_with_the_preferred_replica_until_it_is_forgotten() -> None:
    leader = cluster()[1]
    first = leader.response_to(request(0, session_epoch=0))
    assert first.session_id and first.partitions[0].preferred_read_replica == 2
    again = leader.response_to(
        FetchRequest(CONSUMER, -1, 0, 1, 1 << 20, (), session_id=first.session_id, session_epoch=1, rack="b")
    )
    assert [partition.preferred_read_replica for partition in again.partitions] == [2]
    forgets = FetchRequest(CONSUMER, -1, 0, 1, 1 << 20, (), (TP,), first.session_id, 2, rack="b")
    assert leader.response_to(forgets).partitions == ()


# What a follower serves


def test_a_follower_serves_records_up_to_the_high_watermark_that_it_knows() -> None:
    brokers = cluster()
    brokers.write(1, "d")
    brokers.fetch(2)  # brings "d", which b3 lacks
    assert brokers[2].log.leo == 4
    response = fetched(brokers, 2, 0)
    assert (response.error, response.high_watermark, values(response.records)) == (ErrorCode.NONE, 3, ["a", "b", "c"])
    assert response.preferred_read_replica == -1


def test_between_the_high_watermark_and_its_end_a_follower_has_nothing_yet() -> None:
    brokers = cluster()
    brokers.write(1, "d")
    brokers.fetch(2)
    for offset in (3, 4):
        response = fetched(brokers, 2, offset)
        assert (response.error, len(response.records)) == (ErrorCode.NONE, 0)
    assert fetched(brokers, 2, 5).error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_delayed_fetch_at_a_follower_wakes_when_its_high_watermark_moves() -> None:
    brokers = cluster()
    follower = brokers[2]
    follower.request(request(3, max_wait_ms=500), "waits")
    brokers.write(1, "d")
    brokers.fetch(2)
    assert "waits" not in [effect.reply_to for effect in follower.effects if isinstance(effect, Reply)]
    brokers.fetch(3)
    brokers.fetch(3)
    brokers.fetch(2)
    assert values(awaited(follower).records) == ["d"]


def test_a_session_at_a_follower_gets_what_is_new() -> None:
    brokers = cluster()
    follower = brokers[2]
    first = follower.response_to(request(0, session_epoch=0))
    assert values(first.partitions[0].records) == ["a", "b", "c"]
    second = follower.response_to(request(3, session_id=first.session_id, session_epoch=1))
    assert second.partitions == ()
    waits = FetchRequest(CONSUMER, -1, 500, 1, 1 << 20, (), session_id=first.session_id, session_epoch=2, rack="b")
    follower.request(waits, "waits")
    brokers.write(1, "d")
    for broker in (2, 3, 3, 2):
        brokers.fetch(broker)
    assert values(awaited(follower).records) == ["d"]


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(0, ErrorCode.FENCED_LEADER_EPOCH), (1, ErrorCode.NONE), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_a_follower_checks_the_leader_epoch(epoch: int, error: ErrorCode) -> None:
    assert fetched(cluster(), 2, 0, epoch=epoch).error is error


def test_a_follower_refuses_consumers_without_a_rack() -> None:
    response = fetched(cluster(), 2, 0, "")
    assert (response.error, response.leader) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 1)


def test_a_replica_without_a_leader_or_registration_serves_nobody() -> None:
    brokers = cluster()
    brokers[3].leader_and_isr(-1, 2)
    assert fetched(brokers, 3, 0, epoch=2).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    brokers[2].step(SessionLost())
    assert fetched(brokers, 2, 0).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_new_leader_epoch_ends_a_delayed_fetch_of_the_old_one() -> None:
    brokers = cluster()
    follower = brokers[2]
    follower.request(request(3, max_wait_ms=500), "waits")
    follower.leader_and_isr(3, 2)
    assert awaited(follower).error is ErrorCode.FENCED_LEADER_EPOCH


@pytest.mark.parametrize(
    ("sent", "left"),
    [
        ({"diverging": EpochEndOffset(1, 2)}, (0, 2)),
        ({"error": ErrorCode.OFFSET_OUT_OF_RANGE, "log_start_offset": 1}, (1, 1)),
        ({"error": ErrorCode.OFFSET_OUT_OF_RANGE, "log_start_offset": 5}, (5, 5)),
    ],
    ids=["diverging", "past the leader's end", "below the leader's start"],
)
def test_a_truncation_ends_a_delayed_fetch_at_the_follower(sent: dict[str, Any], left: tuple[int, int]) -> None:
    """As after an unclean election, whose new leader lacks what was committed."""
    brokers = cluster()
    follower = brokers[2]
    follower.request(request(3, epoch=NO_EPOCH, max_wait_ms=500), "waits")
    send = [effect for effect in follower.effects if isinstance(effect, Send)][-1]
    data = replace(FetchedPartition(TP, ErrorCode.NONE, 2), **sent)
    response = replace(brokers.response(send), partitions=(data,))
    follower.step(FetchReplied(send.leader, send.correlation, response))
    assert (follower.partition.log.log_start, follower.partition.log.leo) == left
    assert awaited(follower).error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_read_committed_ends_at_the_followers_last_stable_offset() -> None:
    brokers = cluster()
    follower = brokers[2]
    follower.unstable = 2
    brokers.write(1, "d")
    for broker in (2, 3, 3, 2):
        brokers.fetch(broker)
    committed = fetched(brokers, 2, 0, isolation_level=READ_COMMITTED)
    assert (values(committed.records), committed.last_stable_offset) == (["a", "b"], 2)
    assert committed.aborted and committed.high_watermark == 4
    assert values(fetched(brokers, 2, 0).records) == ["a", "b", "c", "d"]


def test_a_follower_that_led_before_states_the_high_watermark_that_it_knows() -> None:
    """KIP-207 hides a new leader's, not a follower's."""
    brokers = cluster()
    brokers.leader_and_isr(2, 2, (1, 2, 3), to=[2])
    brokers.write(2, "d")
    brokers.leader_and_isr(1, 3, (1, 2, 3), to=[2])
    follower = brokers[2].partition
    follower.high_watermark = follower.epoch_start - 1
    assert fetched(brokers, 2, 0, epoch=3).high_watermark == follower.epoch_start - 1


def test_a_delayed_fetch_at_a_follower_ends_in_time() -> None:
    follower = cluster()[2]
    follower.request(request(3, max_wait_ms=500), "waits")
    follower.now_ms += 500
    follower.step(Tick())
    assert awaited(follower).error is ErrorCode.NONE


# Whatever happens


class Readers:
    """Random writes, fetches, changes of the leader and reads from any replica, while all three stay in the ISR: what a
    consumer reads is committed, so each log has it at that offset, then and at the end."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.brokers = cluster()
        self.leader = self.epoch = 1
        self.written = 0
        self.read: dict[int, str] = {}
        self.from_followers = 0

    def step(self) -> None:
        broker = self.random.choice((1, 2, 3))
        match self.random.choice(("write", "fetch", "fetch", "fetch", "read", "read", "elect")):
            case "write":
                self.written += 1
                self.brokers.write(self.leader, f"{self.epoch}.{self.written}")
            case "fetch" if broker != self.leader:
                self.brokers.fetch(broker)
            case "read":
                self.read_at(broker)
            case "elect" if self.random.random() < 0.3:
                self.leader, self.epoch = broker, self.epoch + 1
                others = [1, 2, 3]
                self.random.shuffle(others)
                self.brokers.leader_and_isr(self.leader, self.epoch, (1, 2, 3), to=others)

    def read_at(self, broker: int) -> None:
        offset = self.random.randint(0, self.brokers[broker].log.leo)
        response = fetched(self.brokers, broker, offset, RACKS[broker], epoch=-1)
        assert response.error is ErrorCode.NONE
        found = values(response.records)
        self.from_followers += len(found) if broker != self.leader else 0
        self.read |= enumerate(found, offset)
        self.check()

    def check(self) -> None:
        for offset, value in self.read.items():
            for shell in self.brokers.shells.values():
                assert values(shell.log.read(offset, shell.log.leo, 1 << 20))[:1] == [value]


def play(seeds: range) -> int:
    """How many records were read from followers."""
    total = 0
    for seed in seeds:
        readers = Readers(seed)
        for _ in range(150):
            readers.step()
        readers.check()
        total += readers.from_followers
    return total


def test_consumers_read_committed_records_alone_from_any_replica() -> None:
    assert play(range(40)) > 1000


def test_reads_up_to_a_followers_log_end_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalReplica, "limit", lambda self, consumer, stable=False: self.log.leo)
    with pytest.raises(AssertionError):
        play(range(40))
