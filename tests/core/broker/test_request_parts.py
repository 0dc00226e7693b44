"""Large requests in parts: which are split and where, and the response of all parts."""

from __future__ import annotations

from kreplog.core.broker.request_parts import REPLICAS_PER_PART, PartResponses, split_control, split_entries
from kreplog.core.messages import (
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
    StopReplica,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from kreplog.errors import ErrorCode
from kreplog.types import LeaderAndIsr, TopicPartition

NONE, STALE = ErrorCode.NONE, ErrorCode.STALE_BROKER_EPOCH
PLACES = tuple(TopicPartition("t", number) for number in range(5))
STATES = tuple(PartitionState(place, "id", LeaderAndIsr(1, 0, (1,)), (1,)) for place in PLACES)
LEADER_AND_ISR = LeaderAndIsrRequest(2, 1, 7, STATES, sequence=9)


def sizes(parts: list[LeaderAndIsrRequest]) -> list[int]:
    return [len(part.partitions) for part in parts]


def test_a_part_creates_at_most_so_many_replicas() -> None:
    parts = split_control(LEADER_AND_ISR, (), 2)
    assert [part.partitions for part in parts] == [STATES[:2], STATES[2:4], STATES[4:]]
    assert {part.sequence for part in parts} == {9}, "else a part is a late copy of another"
    assert [len(part.partitions) for part in split_control(LEADER_AND_ISR, PLACES[1:4], 1)] == [4, 1]
    assert split_control(LEADER_AND_ISR, PLACES, 1) == [LEADER_AND_ISR]
    assert split_control(LEADER_AND_ISR, (), 5) == [LEADER_AND_ISR]
    assert len(PLACES) < REPLICAS_PER_PART and split_control(LEADER_AND_ISR, ()) == [LEADER_AND_ISR]


def test_an_init_is_not_split() -> None:
    """A replica that it does not name is a stray."""
    init = LeaderAndIsrRequest(2, 1, 7, STATES, is_init=True)
    assert split_control(init, (), 1) == [init]


def test_a_part_deletes_at_most_so_many_replicas() -> None:
    stops = tuple(StopReplica(place, "id", 0, place.partition != 1) for place in PLACES)
    request = StopReplicaRequest(2, 1, 7, stops, 9)
    parts = split_control(request, PLACES, 2)
    assert [part.partitions for part in parts] == [stops[:3], stops[3:]]
    assert {part.sequence for part in parts} == {9}


def test_metadata_comes_as_a_whole() -> None:
    request = UpdateMetadataRequest(2, 1, 7, (), STATES)
    assert split_control(request, (), 1) == [request]


def test_any_list_is_split_by_its_length() -> None:
    assert [part.partitions for part in split_entries(LEADER_AND_ISR, "partitions", 3)] == [STATES[:3], STATES[3:]]
    assert split_entries(LEADER_AND_ISR, "partitions", 5) == [LEADER_AND_ISR]
    assert split_entries(LEADER_AND_ISR, "", 1) == [LEADER_AND_ISR]


def test_the_response_has_the_entries_of_all_parts_in_the_order_of_the_request() -> None:
    entries = [((place, NONE),) for place in PLACES[:3]]
    responses = PartResponses(3, "partitions")
    assert responses.add(2, LeaderAndIsrResponse(NONE, entries[2])) is None
    assert responses.add(0, LeaderAndIsrResponse(NONE, entries[0])) is None
    assert responses.add(1, LeaderAndIsrResponse(NONE, entries[1])) == LeaderAndIsrResponse(NONE, sum(entries, ()))


def test_the_error_of_a_part_is_that_of_the_request() -> None:
    for failed in range(3):
        responses = PartResponses(3, "partitions")
        parts = [LeaderAndIsrResponse(STALE if part == failed else NONE) for part in range(3)]
        assert [responses.add(part, response) for part, response in enumerate(parts)] == [None, None, parts[failed]]
