"""Bounds: partitions of a cluster and of a broker, and the memory that is held for clients."""

from __future__ import annotations

import sys

import pytest

from kreplog.config import ReplicationConfig
from kreplog.core.controller.partition_limits import EXPECTED_FOR_MS, PartitionLimits
from kreplog.core.effects import Reply
from kreplog.core.events import Tick
from kreplog.core.memory import MemoryAccount
from kreplog.core.messages import (
    CONSUMER,
    UP_TO_HIGH_WATERMARK,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderAndIsrRequest,
    PartitionState,
    ProducePartition,
    ProduceRequest,
)
from kreplog.core.replication import fetch_purgatory
from kreplog.core.replication.deletions import MAX_DELETION_MS
from kreplog.core.replication.fetch_purgatory import MAX_WAIT_MS, each_partition_once
from kreplog.core.replication.sessions import ACCOUNT, PARTITION_BYTES, SESSION_BYTES, FetchContext, FetchSessions
from kreplog.errors import ErrorCode, InvalidPartitionsError
from kreplog.types import LeaderAndIsr, TopicPartition
from tests.core.shell import TP, Shell, batch, values


def test_partitions_of_a_cluster_and_of_a_broker_are_bounded() -> None:
    limits = PartitionLimits(5, 4)
    limits.recount({"a": [(1, 2), (2, 1)]}, 0)
    number = limits.add("b", 0, [(1, 2)], 0)
    with pytest.raises(InvalidPartitionsError, match=r"max\.partitions"):
        limits.add("c", 0, [(3,)] * 3, 0)
    limits.add("c", 0, [(3,)], 0)
    limits.recount({"a": [(1, 2)] * 4}, 0)
    limits.withdraw(number)
    with pytest.raises(InvalidPartitionsError, match=r"max\.partitions"):
        limits.add("d", 0, [(1,)], 0)
    limits = PartitionLimits(100, 4)
    limits.recount({"a": [(1, 2)] * 4}, 0)
    with pytest.raises(InvalidPartitionsError, match=r"broker 1 .*max\.broker\.partitions"):
        limits.add("b", 0, [(1,)], 0)
    limits.add("b", 0, [(3,)], 0)


def test_what_a_broker_looks_at_in_each_idle_round_is_small_after_many_partitions() -> None:
    """A dict keeps the places of what was in it, and whoever goes through it goes through these."""
    shell = Shell()
    shell.update_metadata(1, 2, 3)
    partitions = [TopicPartition("t", number) for number in range(1000)]
    states = tuple(
        PartitionState(each, "id", LeaderAndIsr(1, 1, (1, 2, 3)), (1, 2, 3), is_new=True) for each in partitions
    )
    shell.response_to(LeaderAndIsrRequest(9, 1, shell.epoch, states, True))
    assert len(shell.manager._unsettled) == 1000
    fetches = tuple(FetchPartition(each, "id", 1, 0) for each in partitions)
    for follower in (2, 3):
        shell.response_to(FetchRequest(follower, 1, 0, 1, 1 << 20, fetches))
    shell.now_ms += 1000
    shell.step(Tick())
    assert sys.getsizeof(shell.manager._unsettled) == sys.getsizeof({})


def test_a_created_partition_is_counted_once_also_before_the_metadata_has_it() -> None:
    limits = PartitionLimits(4, 100)
    limits.recount({"a": [(1,)]}, 0)
    limits.add("a", 1, [(1,)], 0)
    limits.add("b", 0, [(1,)] * 2, 0)
    for existing in ({"a": [(1,)]}, {"a": [(1,)] * 2}, {"a": [(1,)] * 2, "b": [(1,)] * 2}):
        limits.recount(existing, 1)
        with pytest.raises(InvalidPartitionsError, match="and the 4 existing ones"):
            limits.add("c", 0, [(1,)], 1)
    limits.recount({}, 1)
    limits.add("c", 0, [(1,)] * 4, 1)
    limits.recount({}, EXPECTED_FOR_MS + 1)
    limits.add("d", 0, [(1,)] * 4, EXPECTED_FOR_MS + 1)


def request(replica_id: int, count: int, session: int = 0, epoch: int = 0) -> FetchRequest:
    partitions = tuple(FetchPartition(TopicPartition("t", number), "", -1, 0) for number in range(count))
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


FETCH_BYTES = 2500
"""What a parked fetch of one partition is charged."""


def parked_fetches(shell: Shell) -> int:
    assert shell.memory is not None
    return shell.memory.held[fetch_purgatory.ACCOUNT]


def park(shell: Shell, reply_to: str, replica_id: int = CONSUMER) -> Reply | None:
    """Send a fetch at the end of the log, which may wait; the reply where it comes at once."""
    wanted = FetchRequest(replica_id, 1, 500, 1, 1 << 20, (FetchPartition(TP, "id", 1, 0),))
    replies = [effect for effect in shell.request(wanted, reply_to) if isinstance(effect, Reply)]
    return replies[0] if replies else None


def leader_with_room_for_two() -> Shell:
    shell = Shell(memory=MemoryAccount(2 * 2 * FETCH_BYTES))
    shell.update_metadata(1, 2)
    shell.leader_and_isr(1, 1, (1,), replicas=(1, 2))
    assert park(shell, "first") is None and park(shell, "second") is None
    assert parked_fetches(shell) == 2 * FETCH_BYTES
    return shell


def test_parked_fetches_are_charged_and_beyond_the_bound_answered_at_once() -> None:
    """With what there is: a consumer fetches again. A follower's waits all the same, since its leader owes it that."""
    shell = leader_with_room_for_two()
    reply = park(shell, "third")
    assert reply is not None
    response = reply.response
    assert isinstance(response, FetchResponse) and response.error is ErrorCode.NONE
    (partition,) = response.partitions
    assert (partition.error, len(partition.records)) == (ErrorCode.NONE, 0)
    assert parked_fetches(shell) == 2 * FETCH_BYTES
    assert park(shell, "follower", 2) is None
    assert parked_fetches(shell) == 3 * FETCH_BYTES


def test_parked_fetches_that_get_records_are_charged_no_more() -> None:
    shell = leader_with_room_for_two()
    effects = shell.request(ProduceRequest(1, 1000, (ProducePartition(TP, batch("a")),)), "producer")
    assert {effect.reply_to for effect in effects if isinstance(effect, Reply)} == {"first", "second", "producer"}
    assert parked_fetches(shell) == 0


def test_parked_fetches_that_time_out_are_charged_no_more() -> None:
    shell = leader_with_room_for_two()
    shell.now_ms = 500
    assert {effect.reply_to for effect in shell.step(Tick()) if isinstance(effect, Reply)} == {"first", "second"}
    assert parked_fetches(shell) == 0
    assert park(shell, "later") is None


def test_a_fetch_whose_session_makes_way_for_a_followers_gets_its_response_at_once() -> None:
    """Else it would wait for its whole time: what comes is marked in the sessions that there are."""
    shell = Shell(config=ReplicationConfig(max_incremental_fetch_session_cache_slots=1))
    shell.update_metadata(1, 2)
    shell.leader_and_isr(1, 1, (1,), replicas=(1, 2))
    partitions = (FetchPartition(TP, "id", 1, 0),)
    assert shell.request(FetchRequest(CONSUMER, -1, MAX_WAIT_MS, 1, 1 << 20, partitions, (), 0, 0), "consumer") == []
    effects = shell.request(FetchRequest(2, 1, 500, 1, 1 << 20, partitions, (), 0, 0), "follower")
    assert [effect.reply_to for effect in effects if isinstance(effect, Reply)] == ["consumer"]
    effects = shell.request(ProduceRequest(1, 1000, (ProducePartition(TP, batch("a")),)), "producer")
    assert {effect.reply_to for effect in effects if isinstance(effect, Reply)} == {"follower", "producer"}


def leader_alone() -> Shell:
    shell = Shell()
    shell.leader_and_isr(1, 1, (1,), replicas=(1,))
    return shell


def answered_at(shell: Shell, *instants_ms: int) -> list[int]:
    """The instants at which a Tick answers the client."""
    answered = []
    for instant in instants_ms:
        shell.now_ms = instant
        answered += [instant for effect in shell.step(Tick()) if isinstance(effect, Reply) and effect.reply_to == "me"]
    return answered


@pytest.mark.parametrize(("max_wait_ms", "waits_ms"), [(2**31 - 1, MAX_WAIT_MS), (MAX_WAIT_MS - 1, MAX_WAIT_MS - 1)])
def test_a_fetch_waits_for_a_minute_at_most(max_wait_ms: int, waits_ms: int) -> None:
    """It goes on waiting after its client has disconnected."""
    shell = leader_alone()
    wanted = FetchRequest(CONSUMER, -1, max_wait_ms, 1, 1 << 20, (FetchPartition(TP, "id", 1, 0),))
    assert shell.request(wanted, "me") == []
    assert answered_at(shell, waits_ms - 1, waits_ms, MAX_WAIT_MS) == [waits_ms]


@pytest.mark.parametrize(
    ("timeout_ms", "waits_ms"), [(2**31 - 1, MAX_DELETION_MS), (MAX_DELETION_MS - 1, MAX_DELETION_MS - 1)]
)
def test_a_delete_records_waits_for_an_hour_at_most(timeout_ms: int, waits_ms: int) -> None:
    shell = Shell()
    shell.update_metadata(1, 2)
    shell.leader_and_isr(1, 1, (1, 2), replicas=(1, 2))
    shell.request(ProduceRequest(1, 1000, (ProducePartition(TP, batch("a")),)))
    shell.request(FetchRequest(2, 1, 0, 0, 1 << 20, (FetchPartition(TP, "id", 1, 1),)))
    deletion = DeleteRecordsRequest(timeout_ms, (DeleteRecordsPartition(TP, UP_TO_HIGH_WATERMARK),))
    replies = [effect for effect in shell.request(deletion, "me") if isinstance(effect, Reply)]
    assert not [reply for reply in replies if isinstance(reply.response, DeleteRecordsResponse)]
    assert answered_at(shell, waits_ms - 1, waits_ms, MAX_DELETION_MS) == [waits_ms]


def test_a_partition_that_is_fetched_repeatedly_is_fetched_once_as_it_was_listed_last() -> None:
    """Else it would be read and sent repeatedly, and an error of the first would be that of the last."""
    shell = leader_alone()
    shell.request(ProduceRequest(1, 1000, (ProducePartition(TP, batch("a", "b")),)))
    listed = tuple(FetchPartition(TP, "id", 1, offset) for offset in (99, 0, 1))
    response = shell.response_to(FetchRequest(CONSUMER, -1, 0, 0, 1 << 20, listed))
    (partition,) = response.partitions
    assert (partition.error, len(values(partition.records))) == (ErrorCode.NONE, 2), "whole batches"
    elsewhere = FetchPartition(TopicPartition("t", 1), "", -1, 0)
    mixed = FetchRequest(CONSUMER, -1, 0, 0, 1, (listed[0], elsewhere, listed[2]))
    assert each_partition_once(mixed).partitions == (listed[2], elsewhere), "in the order of the request"


def test_reservations_take_half_of_the_account() -> None:
    memory = MemoryAccount(1000)
    assert memory.reserve("sessions", 500) and not memory.reserve("parked", 1)
    assert memory.reserve("parked", 1, force=True)
    memory.release("parked", 1)
    assert not memory.exceeded
    memory.held["connections"] += 501
    assert memory.exceeded
