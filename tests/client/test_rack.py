"""Fetching from the replica in the consumer's rack that the leader names, and from the leader again (KIP-392)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from kreplog._native.batch import build
from kreplog.client import Consumer
from kreplog.client.bulk_errors import PartitionUnavailableError
from kreplog.core.messages import FetchedPartition, FetchResponse
from kreplog.errors import ErrorCode
from kreplog.wire import fetch, generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey
from tests.client.brokers import table
from tests.client.fake_broker import PARTITION, TOPIC, TOPIC_ID, Answer, FakeBroker, fetched, hang_up, log_of

LEADER, FOLLOWER = 0, 1
RECORDS = {0: [build([b"a", b"b"], leader_epoch=3)], 2: [build([b"c"], base_offset=2, leader_epoch=3)]}


def prefers(header: RequestHeader, frame: bytes) -> list[Any]:
    """No records, but the follower to fetch them from."""
    part = FetchedPartition(PARTITION, ErrorCode.NONE, 3, 0, preferred_read_replica=FOLLOWER)
    return fetch.encode_response(FetchResponse(ErrorCode.NONE, 0, (part,)), header, lambda _: TOPIC_ID)


@contextmanager
def brokers(
    leader: Answer | list[Answer], follower: Answer | list[Answer], *, known: bool = True
) -> Iterator[tuple[FakeBroker, FakeBroker]]:
    """known: the metadata have the follower's broker."""
    ports: dict[int, int] = {}

    def metadata(header: RequestHeader, frame: bytes) -> list[Any]:
        partition = {
            "partition_index": 0,
            "leader_id": LEADER,
            "leader_epoch": 3,
            "replica_nodes": [LEADER, FOLLOWER],
            "isr_nodes": [LEADER, FOLLOWER],
        }
        return list(
            generic.encode_response(
                header,
                brokers=[{"node_id": id, "host": "127.0.0.1", "port": port} for id, port in ports.items()],
                topics=[{"name": TOPIC, "topic_id": TOPIC_ID, "partitions": [partition]}],
            )
        )

    def answers(answer: Answer | list[Answer]) -> Mapping[ApiKey, Answer | list[Answer]]:
        return {ApiKey.METADATA: metadata, ApiKey.FETCH: answer}

    with FakeBroker(answers(leader)) as first, FakeBroker(answers(follower)) as second:
        ports.update({LEADER: first.port, **({FOLLOWER: second.port} if known else {})})
        yield first, second


def rows(broker: FakeBroker) -> list[bytes]:
    with Consumer(broker.bootstrap, rack="here", max_wait_ms=10, request_timeout_s=5.0) as consumer:
        values: list[bytes] = table(list(consumer.read_arrow({PARTITION: (0, 3)})))["value"].to_pylist()
        return values


def test_records_come_from_the_replica_that_the_leader_prefers() -> None:
    with brokers([prefers], [log_of(RECORDS)]) as (leader, follower):
        assert rows(leader) == [b"a", b"b", b"c"]
        assert {request.rack for request in leader.fetches()} == {"here"}
        assert len(leader.fetches()) == 1 and len(follower.fetches()) >= 2


@pytest.mark.parametrize(
    "refusal",
    [
        fetched(error=ErrorCode.OFFSET_OUT_OF_RANGE),
        fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        fetched(error=ErrorCode.FENCED_LEADER_EPOCH),
        hang_up,
    ],
    ids=["out of range", "no follower", "fenced", "hangs up"],
)
def test_the_leader_serves_what_the_replica_does_not(refusal: Answer) -> None:
    with brokers([prefers, log_of(RECORDS)], [refusal]) as (leader, follower):
        assert rows(leader) == [b"a", b"b", b"c"]
        assert len(follower.fetches()) == 1


@pytest.mark.parametrize(
    ("follower", "known"), [(hang_up, True), (log_of(RECORDS), False)], ids=["hangs up", "unknown"]
)
def test_a_replica_that_cannot_be_reached_is_an_error_in_the_end(follower: Answer, known: bool) -> None:
    """The leader names it again and again; it is not queried faster than others that fail, either."""
    with brokers([prefers] * 10_000, [follower] * 10_000, known=known) as (leader, _):
        with (
            Consumer(
                leader.bootstrap, rack="here", max_wait_ms=10, request_timeout_s=5.0, retry_timeout_s=1.0
            ) as consumer,
            pytest.raises(PartitionUnavailableError),
        ):
            list(consumer.read_arrow({PARTITION: (0, 3)}))
        assert len(leader.fetches()) < 50
