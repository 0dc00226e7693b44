"""ReplicationQuota, and a leader that throttles followers (KIP-73)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kreplog.config import ReplicationConfig, TopicConfig
from kreplog.core.effects import Effect, Reply
from kreplog.core.events import Tick
from kreplog.core.messages import (
    CONSUMER,
    BrokerConfigs,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProduceRequest,
    UpdateMetadataRequest,
)
from kreplog.core.quota_windows import QuotaWindow
from kreplog.core.replication.replication_quota import ReplicationQuota
from kreplog.core.replication.sessions import FetchContext
from kreplog.core.throttled_replicas import (
    FOLLOWER_THROTTLED_REPLICAS,
    LEADER_THROTTLED_REPLICAS,
    check_replica_list,
    is_throttled,
)
from kreplog.errors import ErrorCode
from kreplog.types import BrokerRegistration
from tests.core.shell import TP, Shell, batch

LEADER, IN_SYNC, CATCHING_UP = 1, 2, 3
BROKERS = tuple(BrokerRegistration(broker, 1) for broker in (LEADER, IN_SYNC, CATCHING_UP))
LISTED = TopicConfig(unused=((LEADER_THROTTLED_REPLICAS, "0:1"),))


@pytest.mark.parametrize(
    ("text", "partitions"),
    [
        ("0:1,1:2,2:1", {0, 2}),
        ("*", {0, 1, 2}),
        ("", set()),
        ("none", set()),
        ("0:1,x", set()),
        (" 0:1 ,, 2:1,", {0, 2}),
        ("00:01", {0}),
        ("0:" + "1" * 5000, set()),
    ],
)
def test_a_list_names_replicas_of_partitions_on_brokers(text: str, partitions: set[int]) -> None:
    config = TopicConfig(unused=((LEADER_THROTTLED_REPLICAS, text), ("segment.jitter.ms", "5")))
    listed = {number for number in range(3) if is_throttled(config, LEADER_THROTTLED_REPLICAS, number, LEADER)}
    assert listed == partitions
    assert not is_throttled(config, FOLLOWER_THROTTLED_REPLICAS, 0, LEADER)


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "0:",
        ":1",
        "none",
        "*,0:1",
        "-1:1",
        "0:1;1:1",
        "all",
        "\u0660:1",
        "0:1," * 25_000 + "0:1",
        "0:" + "1" * 5000,
    ],
)
def test_what_is_no_list_of_replicas_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="PARTITION:BROKER"):
        check_replica_list(text)


def test_the_rate_of_a_burst_is_that_of_its_first_second_and_falls_with_time() -> None:
    quota = ReplicationQuota(LEADER, LEADER_THROTTLED_REPLICAS, 100, QuotaWindow())
    assert (quota.rate(0), quota.throttle_ms(0)) == (0, 0)
    quota.record(500, 0)
    assert (quota.rate(0), quota.throttle_ms(0)) == (500, 4000)
    assert quota.throttle_ms(4999) > 0 and quota.throttle_ms(5000) == 0
    quota.record(10_000, 5000)
    assert quota.throttle_ms(15_999) > 0 and quota.throttle_ms(16_000) == 0  # after all windows nothing counts
    quota.bytes_per_second = 0
    assert quota.throttle_ms(16_000) == 0
    quota.record(1, 16_000)
    assert quota.throttle_ms(16_000) > 0


class Cluster(Shell):
    """A leader whose follower IN_SYNC is in the ISR, and CATCHING_UP is not."""

    def __init__(self, rate: int, config: TopicConfig = LISTED) -> None:
        super().__init__(config=ReplicationConfig(leader_replication_throttled_rate=rate))
        self.update_metadata(LEADER, IN_SYNC, CATCHING_UP)
        self.leader_and_isr(LEADER, 1, isr=(LEADER, IN_SYNC), config=config)
        self.sessions: dict[int, tuple[int, int]] = {}

    def append(self, value: str) -> None:
        self.request(ProduceRequest(1, 0, (ProducePartition(TP, batch(value)),)))

    def fetch(self, follower: int, offset: int) -> FetchedPartition | None:
        """What the response has of the partition: at once, or after the longest wait."""
        session_id, epoch = self.sessions.get(follower, (0, 0))
        listed = FetchPartition(TP, "id", 1, offset, 1 if offset else -1, 0, 1 << 20)
        request = FetchRequest(follower, 1, 500, 1, 10 << 20, (listed,), (), session_id, epoch)
        return self.take(follower, self.request(request, follower))

    def take(self, follower: int, effects: list[Effect]) -> FetchedPartition | None:
        replies = [effect for effect in effects if isinstance(effect, Reply) and effect.reply_to == follower]
        if not replies:
            self.now_ms += 500
            return self.take(follower, self.step(Tick()))
        response = replies[0].response
        assert isinstance(response, FetchResponse)
        self.sessions[follower] = response.session_id, self.sessions.get(follower, (0, 0))[1] + 1
        return response.partitions[0] if response.partitions else None


def test_a_leader_sends_a_replica_that_catches_up_no_records_while_the_rate_is_above_the_quota() -> None:
    cluster = Cluster(rate=10)
    cluster.append("a" * 100)
    cluster.append("b" * 100)
    first = cluster.fetch(CATCHING_UP, 0)  # nothing was sent before
    assert first is not None and len(first.records) > 200
    cluster.append("c" * 100)
    began_ms = cluster.now_ms
    second = cluster.fetch(CATCHING_UP, 2)
    assert second is None or (second.error, len(second.records)) == (ErrorCode.NONE, 0)
    assert cluster.now_ms == began_ms + 500  # it waits as if there were no records
    assert cluster.manager.partitions[TP].replicas[CATCHING_UP].leo == 2  # and what it says counts
    cluster.now_ms += 60_000
    third = cluster.fetch(CATCHING_UP, 2)  # also where its session lists nothing new
    assert third is not None and len(third.records) > 100


def test_records_that_were_held_back_are_the_sessions_next_ones_without_being_listed_again() -> None:
    cluster = Cluster(rate=10)
    cluster.append("a" * 100)
    cluster.fetch(CATCHING_UP, 0)
    cluster.append("b" * 100)
    cluster.fetch(CATCHING_UP, 1)
    cluster.now_ms += 60_000
    session_id, epoch = cluster.sessions[CATCHING_UP]
    request = FetchRequest(CATCHING_UP, 1, 500, 1, 10 << 20, (), (), session_id, epoch)
    response = cluster.take(CATCHING_UP, cluster.request(request, CATCHING_UP))
    assert response is not None and len(response.records) > 100


def test_what_a_replica_in_the_isr_fetches_counts_and_is_not_held_back() -> None:
    cluster = Cluster(rate=10)
    for offset in range(3):
        cluster.append("a" * 100)
        response = cluster.fetch(IN_SYNC, offset)
        assert response is not None and len(response.records) > 100 and cluster.now_ms == 0
    assert cluster.manager.leader_quota.rate(0) > 300
    held_back = cluster.fetch(CATCHING_UP, 0)
    assert held_back is not None and len(held_back.records) == 0


@pytest.mark.parametrize("config", [TopicConfig(), TopicConfig(unused=((LEADER_THROTTLED_REPLICAS, "0:2,0:3,1:1"),))])
def test_replicas_that_the_leader_does_not_list_neither_count_nor_wait(config: TopicConfig) -> None:
    cluster = Cluster(rate=10, config=config)
    for offset in range(3):
        cluster.append("a" * 100)
        response = cluster.fetch(CATCHING_UP, offset)
        assert response is not None and len(response.records) > 100 and cluster.now_ms == 0
    assert cluster.manager.leader_quota.rate(0) == 0


def test_consumers_are_not_throttled_by_the_quota_of_replication() -> None:
    cluster = Cluster(rate=10)
    cluster.append("a" * 100)
    cluster.fetch(IN_SYNC, 0)
    cluster.fetch(IN_SYNC, 1)
    response = cluster.fetch(CONSUMER, 0)
    assert response is not None and len(response.records) > 100


def test_a_dynamic_rate_replaces_the_static_one_at_once() -> None:
    cluster = Cluster(rate=10)
    cluster.append("a" * 100)
    cluster.fetch(CATCHING_UP, 0)
    cluster.append("b" * 100)
    configs = BrokerConfigs((("leader.replication.throttled.rate", "1000000"),))
    cluster.request(UpdateMetadataRequest(9, 1, cluster.epoch, BROKERS, sequence=1, configs=configs))
    began_ms = cluster.now_ms
    response = cluster.fetch(CATCHING_UP, 1)
    assert response is not None and len(response.records) > 100 and cluster.now_ms == began_ms
    assert cluster.manager.follower_quota.bytes_per_second == 2**63 - 1
    cluster.request(UpdateMetadataRequest(9, 1, cluster.epoch, BROKERS, sequence=2))
    assert cluster.manager.leader_quota.bytes_per_second == 10


@pytest.mark.parametrize("in_session", [True, False])
def test_appends_do_not_try_a_fetch_again_that_gets_none_of_them(
    monkeypatch: pytest.MonkeyPatch, in_session: bool
) -> None:
    """Each would look at all partitions that are throttled; another leader is noticed at once all the same."""
    tries: list[FetchContext] = []
    evaluate = FetchContext.evaluate

    def counted(self: FetchContext) -> Sequence[FetchPartition]:
        tries.append(self)
        return evaluate(self)

    monkeypatch.setattr(FetchContext, "evaluate", counted)
    cluster = Cluster(rate=10)
    cluster.append("a" * 100)
    cluster.fetch(CATCHING_UP, 0)
    session_id, epoch = cluster.sessions[CATCHING_UP] if in_session else (0, -1)
    listed = FetchPartition(TP, "id", 1, 1, 1, 0, 1 << 20)
    request = FetchRequest(CATCHING_UP, 1, 500, 1, 10 << 20, (listed,), (), session_id, epoch)
    assert not [effect for effect in cluster.request(request, CATCHING_UP) if isinstance(effect, Reply)]
    tries.clear()
    for _ in range(10):
        cluster.append("b" * 100)
    assert not tries
    cluster.leader_and_isr(IN_SYNC, 2, isr=(LEADER, IN_SYNC), config=LISTED)
    replies = [each.response for each in cluster.effects if isinstance(each, Reply) and each.reply_to == CATCHING_UP]
    assert isinstance(replies[-1], FetchResponse) and len(replies) == 2
    assert replies[-1].partitions[0].error is ErrorCode.FENCED_LEADER_EPOCH
