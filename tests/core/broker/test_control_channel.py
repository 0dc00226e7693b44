"""The controller's control channels: one request in flight to each broker, in order; what has waited is coalesced."""

from __future__ import annotations

from collections.abc import Sequence

from kreplog.core.broker.control_channel import (
    MAX_COALESCED_PARTITIONS,
    RETRY_BACKOFF_MS,
    ControlChannel,
    ControlChannels,
)
from kreplog.core.effects import SendControl
from kreplog.core.events import ControlReplied
from kreplog.core.messages import (
    ControlRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionState,
    StopReplica,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from kreplog.errors import ErrorCode
from kreplog.types import BrokerRegistration, LeaderAndIsr, TopicPartition

BROKER, EPOCH = 1, 7
NOW_MS = 1000
DONE = LeaderAndIsrResponse(ErrorCode.NONE)


def states(*numbers: int, leader_epoch: int = 1) -> tuple[PartitionState, ...]:
    return tuple(
        PartitionState(TopicPartition("t", number), "id", LeaderAndIsr(1, leader_epoch, (1,)), (1,))
        for number in numbers
    )


def leaders(sequence: int, *numbers: int, is_init: bool = False, controller_epoch: int = 1) -> LeaderAndIsrRequest:
    return LeaderAndIsrRequest(BROKER, controller_epoch, EPOCH, states(*numbers), is_init, sequence)


def metadata(sequence: int, *numbers: int, deleted: int | None = None) -> UpdateMetadataRequest:
    gone = () if deleted is None else (TopicPartition("t", deleted),)
    return UpdateMetadataRequest(
        BROKER, 1, EPOCH, (BrokerRegistration(sequence, EPOCH),), states(*numbers), gone, sequence
    )


def sent(requests: Sequence[ControlRequest]) -> list[ControlRequest]:
    """What goes out of these, all queued while another request is in flight."""
    channel = ControlChannel(BROKER, EPOCH)
    first = StopReplicaRequest(BROKER, 1, EPOCH, (), 0)
    channel.put(first)
    assert channel.next_request(NOW_MS) is first
    for request in requests:
        channel.put(request)
        assert channel.next_request(NOW_MS) is first, "one request in flight at a time"
    found: list[ControlRequest] = []
    assert channel.replied(DONE, NOW_MS) == ControlReplied(BROKER, EPOCH, first, DONE)
    while (next_one := channel.next_request(NOW_MS)) is not None:
        found.append(next_one)
        assert channel.replied(DONE, NOW_MS) == ControlReplied(BROKER, EPOCH, next_one, DONE)
    assert channel.idle
    return found


def test_requests_that_waited_are_coalesced_in_order() -> None:
    later = LeaderAndIsrRequest(BROKER, 1, EPOCH, states(1, leader_epoch=2), False, 3)
    assert sent([leaders(1, 1, 2), leaders(2, 3), later]) == [
        LeaderAndIsrRequest(BROKER, 1, EPOCH, (*states(1, 2, 3), *states(1, leader_epoch=2)), False, 3)
    ]
    assert sent([metadata(1, 1, deleted=9), metadata(2, 2), metadata(3)]) == [
        UpdateMetadataRequest(
            BROKER, 1, EPOCH, (BrokerRegistration(3, EPOCH),), states(1, 2), (TopicPartition("t", 9),), 3
        )
    ]


def test_requests_that_cannot_be_coalesced_are_sent_one_after_the_other() -> None:
    stop = StopReplicaRequest(BROKER, 1, EPOCH, (StopReplica(TopicPartition("t", 1), "id", 1, True),), 3)
    unlike: list[list[ControlRequest]] = [
        [leaders(1, 1, is_init=True), leaders(2, 2)],
        [leaders(1, 1), leaders(2, 2, is_init=True)],
        [leaders(1, 1), metadata(2, 1), leaders(3, 2)],
        [leaders(1, 1), stop, leaders(4, 1)],
        [metadata(1, 1), metadata(2, deleted=1)],
        [leaders(1, 1), leaders(2, 2, controller_epoch=2)],
        [leaders(1, *range(MAX_COALESCED_PARTITIONS)), leaders(2, MAX_COALESCED_PARTITIONS)],
    ]
    for requests in unlike:
        assert sent(requests) == requests


def test_a_request_is_repeated_until_its_response() -> None:
    """Not at once: the broker may be starting. What comes meanwhile is not joined to it: the broker may have applied
    it, and only the response was lost."""
    channel = ControlChannel(BROKER, EPOCH)
    first, second = leaders(1, 1), leaders(2, 2)
    channel.put(first)
    now_ms = NOW_MS
    assert channel.next_request(now_ms) is first
    channel.put(second)
    for lost in (None, LeaderAndIsrResponse(ErrorCode.BROKER_NOT_AVAILABLE)):
        assert channel.replied(lost, now_ms) is None
        assert channel.next_request(now_ms) is None
        assert channel.next_request(now_ms + RETRY_BACKOFF_MS - 1) is None and not channel.idle
        now_ms += RETRY_BACKOFF_MS
        assert channel.next_request(now_ms) is first and not channel.idle
    refused = LeaderAndIsrResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
    assert channel.replied(refused, now_ms) == ControlReplied(BROKER, EPOCH, first, refused)
    assert channel.next_request(now_ms) is second


def test_a_channel_ends_with_its_registration() -> None:
    channels = ControlChannels()
    old = channels.put(SendControl(BROKER, EPOCH, leaders(1, 1)))
    other = channels.put(SendControl(BROKER + 1, EPOCH, leaders(1, 1)))
    assert channels.put(SendControl(BROKER, EPOCH, leaders(2, 1))) is old
    new = channels.put(SendControl(BROKER, EPOCH + 1, leaders(3, 1)))
    assert new is not old and not channels.is_open(old) and channels.is_open(new)
    assert new.next_request(NOW_MS) == leaders(3, 1), "what was meant for the old registration is dropped"
    assert channels.retain({BROKER: EPOCH + 1, BROKER + 1: EPOCH + 1}) == [BROKER + 1]
    assert channels.open == (new,) and not channels.is_open(other) and not channels.idle
    assert channels.retain({}) == [BROKER] and channels.idle


def test_an_ended_channel_sends_nothing_more_and_its_responses_do_not_count() -> None:
    channels = ControlChannels()
    old = channels.put(SendControl(BROKER, EPOCH, leaders(1, 1)))
    assert channels.next_request(old, NOW_MS) == leaders(1, 1)
    assert channels.replied(old, DONE, NOW_MS) == ControlReplied(BROKER, EPOCH, leaders(1, 1), DONE)
    channels.put(SendControl(BROKER, EPOCH, leaders(2, 1)))
    assert channels.next_request(old, NOW_MS) == leaders(2, 1)
    new = channels.put(SendControl(BROKER, EPOCH + 1, leaders(3, 1)))
    assert channels.next_request(old, NOW_MS) is None
    assert channels.replied(old, DONE, NOW_MS) is None
    assert channels.next_request(new, NOW_MS) == leaders(3, 1)
