"""Log starts that move: DeleteRecords and retention on leaders, how followers apply them, and when requests complete.

Source: KIP-107; F39.
"""

from __future__ import annotations

from typing import Any

import pytest

from kreplog.config import TopicConfig
from kreplog.core.effects import (
    ConfigureLog,
    DeleteRecordsBefore,
    EnforceRetention,
    Reply,
    Send,
    TruncateFullyAndStartAt,
)
from kreplog.core.events import FetchReplied, RetentionDue, Tick
from kreplog.core.messages import (
    CONSUMER,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    UP_TO_HIGH_WATERMARK,
    DeletedRecords,
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    StopReplica,
    StopReplicaRequest,
)
from kreplog.errors import ErrorCode, LogFailedError
from kreplog.types import EpochEndOffset, TopicPartition
from tests.core.replication.test_following import Brokers
from tests.core.shell import TP, Shell, batch, only

ONE_RECORD = 69
"""Bytes of a batch of one record: with segments of as many, each has one of its own."""
LONG_MS = 10**9
"""Longer than Brokers.response waits."""


def running(*ids: int) -> Brokers:
    """The first broker leads; a, b, c and d are committed, and all replicas have that high watermark."""
    brokers = Brokers(*ids)
    brokers.leader_and_isr(ids[0], 1, ids)
    brokers.write(ids[0], "a", "b", "c", "d")
    brokers.catch_up(*ids[1:], rounds=3)
    return brokers


def delete(shell: Shell, offset: int, timeout_ms: int = LONG_MS, where: TopicPartition = TP) -> list[Any]:
    """The immediate responses."""
    requested = DeleteRecordsRequest(timeout_ms, (DeleteRecordsPartition(where, offset),))
    return answers(shell.request(requested, "deleter"))


def answers(effects: list[Any]) -> list[DeletedRecords]:
    found: list[DeletedRecords] = []
    for effect in effects:
        if isinstance(effect, Reply) and isinstance(effect.response, DeleteRecordsResponse):
            found += effect.response.partitions
    return found


def deletion_responses(brokers: Brokers, leader: int) -> list[DeletedRecords]:
    return answers(brokers[leader].effects)


def test_it_is_answered_once_every_replica_has_deleted() -> None:
    brokers = running(1, 2, 3)
    assert delete(brokers[1], 2) == []
    assert brokers[1].content() == ["c", "d"]
    for _ in range(2):  # b2 gets it, and then reports it
        brokers.fetch(2)
    assert brokers[2].content() == ["c", "d"] and deletion_responses(brokers, 1) == []
    for _ in range(2):
        brokers.fetch(3)
    assert deletion_responses(brokers, 1) == [DeletedRecords(TP, ErrorCode.NONE, 2)]
    assert brokers.content() == {1: ["c", "d"], 2: ["c", "d"], 3: ["c", "d"]}


def test_a_fetch_that_waits_is_answered_at_once_when_somebody_waits_for_its_replica_to_delete() -> None:
    brokers = running(1, 2)
    shell = brokers[1]
    send = only(brokers[2].effects[-1:], Send)
    assert shell.request(send.request, "fetch") == []  # nothing to read: it waits
    effects = shell.request(DeleteRecordsRequest(LONG_MS, (DeleteRecordsPartition(TP, 3),)))
    response = only([reply for reply in effects if isinstance(reply, Reply)], Reply).response
    assert isinstance(response, FetchResponse) and response.partitions[0].log_start_offset == 3
    brokers[2].step(FetchReplied(1, send.correlation, response))
    assert brokers[2].content() == ["d"]


def test_f39_all_that_is_committed_can_be_deleted_and_no_more() -> None:
    brokers = running(1, 2)
    brokers.write(1, "e")
    assert delete(brokers[1], 5)[0].error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete(brokers[1], -2)[0].error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert "high watermark 4" in delete(brokers[1], 5)[0].message
    assert brokers[1].content() == ["a", "b", "c", "d", "e"]
    assert not any(
        isinstance(effect, DeleteRecordsBefore) for effect in brokers[1].effects
    )  # the log would refuse it, too
    assert delete(brokers[1], UP_TO_HIGH_WATERMARK) == []
    assert brokers[1].content() == ["e"]
    assert delete(brokers[1], 1) == []  # below the log start: waits for the replicas alone
    brokers.catch_up(2)
    assert [deleted.low_watermark for deleted in deletion_responses(brokers, 1)][-2:] == [4, 4]


def test_only_a_leader_deletes() -> None:
    brokers = running(1, 2)
    assert delete(brokers[2], 1)[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    (answer,) = delete(brokers[1], 1, where=TopicPartition("nowhere", 0))
    assert answer.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_deletion_times_out() -> None:
    brokers = running(1, 2)
    shell = brokers[1]
    assert delete(shell, 2, timeout_ms=50) == []
    shell.now_ms += 50
    assert answers(shell.step(Tick()))[0].error is ErrorCode.REQUEST_TIMED_OUT
    brokers.catch_up(2)
    assert len(deletion_responses(brokers, 1)) == 1 and brokers[2].content() == ["c", "d"]


def test_a_dead_replica_is_not_waited_for() -> None:
    brokers = running(1, 2, 3)
    delete(brokers[1], 2)
    brokers.catch_up(2, rounds=2)
    assert deletion_responses(brokers, 1) == []
    brokers[1].update_metadata(1, 2)
    assert deletion_responses(brokers, 1) == [DeletedRecords(TP, ErrorCode.NONE, 2)]


def test_a_replica_that_has_not_fetched_yet_is_waited_for() -> None:
    brokers = running(1, 2)
    brokers.leader_and_isr(1, 2, (1, 2))
    assert brokers[1].partition.low_watermark() == -1
    assert delete(brokers[1], 2) == []


def test_a_former_leader_fails_waiting_deletions() -> None:
    brokers = running(1, 2)
    delete(brokers[1], 2)
    brokers.leader_and_isr(2, 2, (1, 2))
    assert [deleted.error for deleted in deletion_responses(brokers, 1)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_deleted_replica_fails_waiting_deletions() -> None:
    brokers = running(1, 2)
    delete(brokers[1], 2)
    brokers[1].request(StopReplicaRequest(9, 1, 1, (StopReplica(TP, "id", -1, True),), 5))
    assert deletion_responses(brokers, 1)[0].error in (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )


def test_a_failed_log_fails_waiting_deletions() -> None:
    brokers = running(1, 2)
    brokers[1].fails[DeleteRecordsBefore] = LogFailedError("no")
    assert delete(brokers[1], 2)[0].error is ErrorCode.KAFKA_STORAGE_ERROR


def consumed(shell: Shell, offset: int) -> FetchedPartition:
    requested = FetchPartition(TP, "id", -1, offset)
    (found,) = shell.response_to(FetchRequest(CONSUMER, -1, 0, 0, 1 << 20, (requested,))).partitions
    assert isinstance(found, FetchedPartition)
    return found


def test_a_consumer_below_the_log_start_is_out_of_range() -> None:
    brokers = running(1, 2)
    requested = FetchPartition(TP, "id", -1, 4)
    brokers[1].request(FetchRequest(CONSUMER, -1, 1000, 1, 1 << 20, (requested,)), "waits")
    delete(brokers[1], 2)
    below, at = consumed(brokers[1], 1), consumed(brokers[1], 2)
    assert (below.error, below.log_start_offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)
    assert at.error is ErrorCode.NONE and len(at.records)


def test_f9_f39_a_follower_behind_the_log_start_begins_there() -> None:
    """F9: with its watermark."""
    brokers = running(1, 2, 3)
    brokers.write(1, "e", "f")
    brokers.leader_and_isr(1, 2, (1, 2))
    brokers.catch_up(2)
    delete(brokers[1], 6)
    brokers.catch_up(2, 3)
    for broker in (1, 2, 3):
        log = brokers[broker].partition.log
        assert (log.log_start, log.leo, brokers[broker].partition.high_watermark) == (6, 6, 6)


def test_records_that_diverge_below_the_leaders_log_start_are_truncated() -> None:
    """b1 wrote x and y in epoch 1 alone; the others went on at 4 in epoch 2 and have deleted up to 5: of what b1 holds
    below, the leader cannot confirm it any more, so it must not become committed, not even for a moment."""
    brokers = running(1, 2)
    brokers.write(1, "x", "y", "z")
    brokers.leader_and_isr(2, 2, (2,), to=(2,))
    brokers.write(2, "e", "f", "g")
    delete(brokers[2], 5)
    brokers.leader_and_isr(2, 2, (2,), to=(1,))
    shell = brokers[1]
    brokers.fetch(1)
    assert only(shell.effects, TruncateFullyAndStartAt).offset == 5
    assert (shell.partition.log.log_start, shell.partition.high_watermark) == (5, 5)
    brokers.catch_up(1)
    assert brokers[1].content() == brokers[2].content()
    assert brokers[1].partition.log.log_start == 5


@pytest.mark.parametrize("leo", [5, 6])
def test_a_log_that_ends_at_the_leaders_start_in_a_forgotten_epoch_starts_over(leo: int) -> None:
    brokers = running(1, 2)
    brokers.write(1, *"xyz"[: leo - 4])
    brokers.leader_and_isr(2, 2, (2,), to=(2,))
    brokers[2].log._segment_bytes = ONE_RECORD
    brokers.write(2, "e", "f", "g")
    delete(brokers[2], leo)
    brokers.leader_and_isr(2, 2, (2,), to=(1,))
    answer = brokers.fetch(1)
    assert answer is not None and answer.diverging == EpochEndOffset(1, leo)
    assert brokers[1].partition.log.log_start == leo
    brokers.catch_up(1)
    assert brokers[1].content() == brokers[2].content() == list("efg")[leo - 4 :]


def test_retention_is_each_replicas_own_and_followers_report_it() -> None:
    brokers = running(1, 2)
    for broker in (1, 2):  # each record a segment of its own
        brokers[broker].log._segment_bytes = ONE_RECORD
    brokers.write(1, "e", "f", "g")
    brokers.catch_up(2)
    done = brokers[2].step(RetentionDue(TP))
    assert only(done, EnforceRetention).partition == TP
    start = brokers[2].partition.log.log_start
    assert start == 6 and brokers[1].partition.log.log_start == 0
    brokers.fetch(2)
    brokers.fetch(2)
    assert brokers[1].partition.replicas[2].log_start == 6
    assert brokers[2].partition.log.log_start == 6  # the leader's, which is lower, takes nothing back
    assert delete(brokers[1], 3)[0].low_watermark == 3


def test_f39_retention_of_the_leader_is_followed() -> None:
    brokers = running(1, 2)
    brokers[1].log._segment_bytes = ONE_RECORD
    brokers.write(1, "e", "f", "g")
    brokers.catch_up(2)
    brokers[1].step(RetentionDue(TP))
    assert brokers[1].partition.log.log_start == 6
    assert consumed(brokers[1], 0).error is ErrorCode.OFFSET_OUT_OF_RANGE
    brokers.write(1, "h")
    brokers.catch_up(2)
    assert brokers[2].content() == ["g", "h"]


def test_retention_that_fails_takes_the_replica_offline() -> None:
    brokers = running(1, 2)
    brokers[1].fails[EnforceRetention] = LogFailedError("no")
    brokers[1].step(RetentionDue(TP))
    assert brokers[1].partition.refusal(-1) is ErrorCode.KAFKA_STORAGE_ERROR
    assert brokers[1].step(RetentionDue(TP)) == []


def test_new_settings_reach_the_log() -> None:
    brokers = running(1, 2)
    config = TopicConfig(min_insync_replicas=2)
    brokers[1].effects.clear()
    brokers.leader_and_isr(1, 1, (1, 2), config=config)
    assert only(brokers[1].effects, ConfigureLog) == ConfigureLog(TP, config)
    brokers[1].effects.clear()
    brokers.leader_and_isr(1, 1, (1, 2), config=config)
    assert not any(isinstance(effect, ConfigureLog) for effect in brokers[1].effects)


def test_an_offset_by_timestamp_comes_with_the_records_timestamp() -> None:
    brokers = running(1, 2)
    requested = [ListOffsetsPartition(TP, -1, timestamp) for timestamp in (0, 1, EARLIEST_LOCAL)]
    found = [brokers[1].response_to(ListOffsetsRequest((requested,))).partitions[0] for requested in requested]
    assert [(listed_offset.offset, listed_offset.timestamp) for listed_offset in found] == [(0, 0), (-1, -1), (0, -1)]
    repeated = brokers[1].response_to(ListOffsetsRequest(tuple(requested))).partitions
    assert [listed_offset.error for listed_offset in repeated] == [ErrorCode.INVALID_REQUEST] * 3
    assert MAX_TIMESTAMP == -3 and batch("x")
    for timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        listed = brokers[1].response_to(ListOffsetsRequest((ListOffsetsPartition(TP, -1, timestamp),))).partitions[0]
        assert (listed.error, listed.offset, listed.timestamp, listed.leader_epoch) == (ErrorCode.NONE, -1, -1, -1)
