"""ReplicaFetcherManager: another num.replica.fetchers while partitions are fetched."""

from __future__ import annotations

import pytest

from kreplog.config import ReplicationConfig
from kreplog.core.effects import Send
from kreplog.core.events import FetchReplied
from kreplog.core.messages import (
    BrokerConfigs,
    FetchedPartition,
    FetchResponse,
    LeaderAndIsrRequest,
    PartitionState,
    UpdateMetadataRequest,
)
from kreplog.core.replication.fetcher_manager import fetcher_index
from kreplog.errors import ErrorCode
from kreplog.types import LeaderAndIsr, TopicPartition
from tests.core.shell import Shell, batch, values

PLACES = [TopicPartition("a", number) for number in range(6)]
LEADER = 2


def following(fetchers: int) -> Shell:
    shell = Shell(config=ReplicationConfig(num_replica_fetchers=fetchers))
    shell.update_metadata(1, LEADER)
    states = [PartitionState(place, "id", LeaderAndIsr(LEADER, 1, (1, 2)), (1, 2), is_new=True) for place in PLACES]
    shell.response_to(LeaderAndIsrRequest(9, 1, shell.epoch, tuple(states)))
    return shell


def resize(shell: Shell, fetchers: int | None, sequence: int) -> None:
    default = () if fetchers is None else (("num.replica.fetchers", str(fetchers)),)
    configs = BrokerConfigs((), default)
    shell.request(UpdateMetadataRequest(9, 1, shell.epoch, (), sequence=sequence, configs=configs))


def sent(shell: Shell, start: int = 0) -> list[Send]:
    return [effect for effect in shell.effects[start:] if isinstance(effect, Send)]


def listed(send: Send) -> set[TopicPartition]:
    return {requested.partition for requested in send.request.partitions}


def respond(shell: Shell, send: Send) -> None:
    """As the leader, each of whose logs has the one record "v"."""
    answers = tuple(
        FetchedPartition(
            requested.partition, ErrorCode.NONE, 0, 0, records=batch("v") if requested.fetch_offset == 0 else batch()
        )
        for requested in send.request.partitions
        if requested.fetch_offset == 0
    )
    shell.step(FetchReplied(LEADER, send.correlation, FetchResponse(ErrorCode.NONE, 0, answers)))


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3), (3, 2)])
def test_each_record_is_appended_once_while_partitions_move_between_fetchers(before: int, after: int) -> None:
    shell = following(before)
    former = sent(shell)
    assert len(former) == before
    start = len(shell.effects)
    resize(shell, after, sequence=1)
    for send in former:  # what is in flight for a partition that has moved is dropped
        respond(shell, send)
    moved = [place for place in PLACES if fetcher_index(place, before) != fetcher_index(place, after)]
    assert moved and all(shell.logs[place].leo == (place not in moved) for place in PLACES)
    for send in sent(shell, start):
        assert len({fetcher_index(place, after) for place in listed(send)}) == 1
    answered: set[int] = set()
    for _ in range(4):
        for send in sent(shell, start):
            if send.correlation not in answered:
                answered.add(send.correlation)
                respond(shell, send)
    for place in PLACES:
        log = shell.logs[place]
        assert values(log.read(0, log.leo, 1 << 20)) == ["v"]


def test_a_number_that_is_deleted_is_the_static_one_again() -> None:
    shell = following(2)
    resize(shell, 3, sequence=1)
    start = len(shell.effects)
    resize(shell, None, sequence=2)
    answered: set[int] = set()
    for _ in range(4):
        for send in sent(shell):
            if send.correlation not in answered:
                answered.add(send.correlation)
                respond(shell, send)
    again = [listed(send) for send in sent(shell, start) if send.request.partitions]
    assert again and all(len({fetcher_index(place, 2) for place in places}) == 1 for places in again)
    for place in PLACES:
        log = shell.logs[place]
        assert values(log.read(0, log.leo, 1 << 20)) == ["v"]


def test_fetchers_send_in_the_order_of_their_leaders() -> None:
    """Whatever the order in which they began: a seed of the simulator gives one run."""
    shell = Shell(config=ReplicationConfig())
    shell.update_metadata(1, 2, 3, 4)
    states = [
        PartitionState(place, "id", LeaderAndIsr(leader, 1, (1, leader)), (1, leader), is_new=True)
        for place, leader in zip(PLACES, (4, 2, 3), strict=False)
    ]
    shell.response_to(LeaderAndIsrRequest(9, 1, shell.epoch, tuple(states)))
    assert [send.leader for send in sent(shell)] == [2, 3, 4]
