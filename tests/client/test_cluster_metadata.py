"""ClusterMetadata: what a later response changes, and what an outdated one must not."""

from __future__ import annotations

import pytest

from kreplog.client.cluster_metadata import ClusterMetadata
from kreplog.errors import ErrorCode, PeerProtocolError
from kreplog.types import NO_LEADER, TopicPartition
from kreplog.wire import generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey

AT = TopicPartition("t", 0)
FIRST_ID, SECOND_ID = "AAAAAAAAAAAAAAAAAAAAAQ", "BBBBBBBBBBBBBBBBBBBBBQ"
HEADER = RequestHeader(ApiKey.METADATA, 12, 1, "test")


def after(
    known: ClusterMetadata,
    leader: int = 0,
    epoch: int = 1,
    topic_id: str = FIRST_ID,
    *,
    error: ErrorCode = ErrorCode.NONE,
    partitions: int = 1,
    brokers: int = 2,
    name: str = "t",
) -> ClusterMetadata:
    """`known` with such a response, which went over the wire."""
    listed = [
        {"partition_index": number, "leader_id": leader, "leader_epoch": epoch, "replica_nodes": [0], "isr_nodes": [0]}
        for number in range(partitions)
    ]
    frame = b"".join(
        bytes(part)
        for part in generic.encode_response(
            HEADER,
            brokers=[{"node_id": number, "host": "h", "port": 9092 + number} for number in range(brokers)],
            topics=[{"name": name, "topic_id": topic_id, "error_code": int(error), "partitions": listed}],
        )
    )
    return known.updated(generic.decode_response(frame[4:], HEADER))


def test_a_newer_leader_epoch_replaces_and_an_older_one_does_not() -> None:
    known = after(ClusterMetadata(), leader=0, epoch=5)
    assert after(known, leader=1, epoch=6).leader_of(AT) == 1
    assert after(known, leader=1, epoch=4).leader_of(AT) == 0
    assert after(known, leader=1, epoch=4).partitions[AT].leader_epoch == 5


def test_a_leader_that_is_lost_comes_back_with_no_older_epoch() -> None:
    known = after(ClusterMetadata(), leader=0, epoch=5).without_leader(AT)
    assert known.leader_of(AT) == NO_LEADER
    assert after(known, leader=1, epoch=4).leader_of(AT) == NO_LEADER
    assert after(known, leader=0, epoch=5).leader_of(AT) == 0


def test_a_topic_made_again_begins_with_epochs_of_its_own() -> None:
    known = after(ClusterMetadata(), leader=0, epoch=5, partitions=3)
    again = after(known, leader=1, epoch=0, topic_id=SECOND_ID)
    assert (again.leader_of(AT), again.topic_id_of("t")) == (1, SECOND_ID)
    assert set(again.partitions) == {AT}


def test_a_leader_without_an_address_is_none() -> None:
    assert after(ClusterMetadata(), leader=7).leader_of(AT) == NO_LEADER


def test_a_topic_that_is_gone_has_no_partitions_and_one_with_another_error_keeps_them() -> None:
    known = after(ClusterMetadata())
    gone = after(known, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, partitions=0)
    assert (dict(gone.partitions), gone.topic_errors) == ({}, {"t": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    assert AT in after(known, error=ErrorCode.LEADER_NOT_AVAILABLE, partitions=0).partitions
    assert after(gone).topic_errors == {}


@pytest.mark.parametrize("name", ["", "..", "a/b", "x" * 300])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(PeerProtocolError, match="metadata of"):
        after(ClusterMetadata(), name=name)
