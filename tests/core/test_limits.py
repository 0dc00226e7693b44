"""Bounds: partitions of a cluster and of a broker, and the memory that is held for clients."""

from __future__ import annotations

import pytest

from kreplog.core.controller.limits import PartitionCounts
from kreplog.core.memory import MemoryAccount
from kreplog.core.messages import CONSUMER, FetchPartition, FetchRequest
from kreplog.core.replication.sessions import ACCOUNT, PARTITION_BYTES, SESSION_BYTES, FetchContext, FetchSessions
from kreplog.errors import ErrorCode, InvalidPartitionsError
from kreplog.types import TopicPartition


def test_partitions_of_a_cluster_and_of_a_broker_are_bounded() -> None:
    counts = PartitionCounts([(1, 2), (2, 1)], 5, 4)
    counts.add([(1, 2)])
    with pytest.raises(InvalidPartitionsError, match=r"max\.partitions"):
        counts.add([(3,)] * 3)
    counts.add([(3,)])
    with pytest.raises(InvalidPartitionsError, match=r"broker 1 .*max\.broker\.partitions"):
        PartitionCounts([(1, 2)] * 4, 100, 4).add([(1,)])
    counts.add([(3,)])


def request(replica_id: int, count: int, session: int = 0, epoch: int = 0) -> FetchRequest:
    partitions = tuple(FetchPartition(TopicPartition("t", one), "", -1, 0) for one in range(count))
    return FetchRequest(replica_id, -1, 0, 0, 1 << 20, partitions, (), session, epoch)


def test_sessions_are_charged_and_refused() -> None:
    """A consumer gets none where there is no memory, one that grows too far ends, and a follower's takes its place."""
    memory = MemoryAccount(2 * (SESSION_BYTES + 10 * PARTITION_BYTES))
    sessions = FetchSessions(100, iter(range(1, 100)), memory)
    first = sessions.begin(request(CONSUMER, 5), 0)
    assert isinstance(first, FetchContext) and first.session_id
    refused = sessions.begin(request(CONSUMER, 8), 0)
    assert isinstance(refused, FetchContext) and not refused.session_id
    assert memory.held[ACCOUNT] == SESSION_BYTES + 5 * PARTITION_BYTES
    grown = sessions.begin(request(CONSUMER, 11, first.session_id, 1), 0)
    assert grown is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert memory.held[ACCOUNT] == 0
    assert isinstance(sessions.begin(request(CONSUMER, 5), 0), FetchContext)
    follower = sessions.begin(request(2, 20), 0)
    assert isinstance(follower, FetchContext) and follower.session_id
    assert len(sessions) == 1 and memory.held[ACCOUNT] == SESSION_BYTES + 20 * PARTITION_BYTES


def test_what_is_remembered_takes_half_of_the_account() -> None:
    memory = MemoryAccount(1000)
    assert memory.remember("sessions", 500) and not memory.remember("parked", 1)
    assert memory.remember("parked", 1, force=True)
    memory.forget("parked", 1)
    assert not memory.exceeded
    memory.held["connections"] += 501
    assert memory.exceeded
