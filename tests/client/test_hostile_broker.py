"""What a broker sends is not trusted, and what it does not send is not waited for without a bound."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kreplog._native.batch import build, validate
from kreplog._native.crc32c import crc32c
from kreplog.client import (
    BrokersUnreachableError,
    Consumer,
    LogTruncatedError,
    PartitionUnavailableError,
    ProduceError,
    Producer,
    TopicRecreatedError,
    UnsupportedBrokerError,
)
from kreplog.core.messages import ProducedPartition, ProduceResponse
from kreplog.errors import CorruptBatchError, ErrorCode, PeerProtocolError
from kreplog.types import EpochEndOffset, TopicPartition
from kreplog.wire import generic, produce
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey
from tests.client.brokers import read_all, table
from tests.client.fake_broker import (
    PARTITION,
    TOPIC,
    Answer,
    FakeBroker,
    changed,
    fetched,
    half,
    hang_up,
    log_of,
    metadata,
    produced,
    silence,
)

FIRST = build([b"a", b"b", b"c"], leader_epoch=3)
SECOND = build([b"d", b"e"], base_offset=3, leader_epoch=3)


def flipped(batch: bytes) -> bytes:
    return batch[:-2] + bytes([batch[-2] ^ 1]) + batch[-1:]


def consumer_of(broker: FakeBroker, **settings: Any) -> Consumer:
    consumer = Consumer(
        broker.bootstrap, **{"max_wait_ms": 10, "request_timeout_s": 0.3, "retry_timeout_s": 1.0, **settings}
    )
    consumer.assign({PARTITION: 0})
    return consumer


def values(answers: list[Answer], rows: int) -> list[bytes]:
    with FakeBroker({ApiKey.FETCH: answers}) as broker, consumer_of(broker) as consumer:
        found: list[bytes] = table(read_all(consumer, rows))["value"].to_pylist()
        return found


@pytest.mark.parametrize(
    "trouble",
    [
        half(fetched(FIRST)),
        hang_up,
        silence,
        fetched(whole=ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        fetched(whole=ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        fetched(error=ErrorCode.UNKNOWN_TOPIC_ID),
        fetched(error=ErrorCode.UNKNOWN_LEADER_EPOCH),
        fetched(error=ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
    ids=["half", "hang-up", "silence", "session", "epoch", "leader", "topic-id", "leader-epoch", "unknown"],
)
def test_trouble_that_passes_costs_no_row_and_doubles_none(trouble: Answer) -> None:
    assert values([trouble, fetched(FIRST), trouble, fetched(SECOND), fetched()], 5) == [b"a", b"b", b"c", b"d", b"e"]


def test_a_corrupt_batch_is_fetched_again_and_sound_ones_before_it_are_not() -> None:
    log = log_of({0: [flipped(FIRST), FIRST + flipped(SECOND)], 3: [flipped(SECOND), SECOND]})
    with FakeBroker({ApiKey.FETCH: log}) as broker, consumer_of(broker) as consumer:
        assert table(read_all(consumer, 3))["value"].to_pylist() == [b"a", b"b", b"c"]
        assert table(read_all(consumer, 2))["value"].to_pylist() == [b"d", b"e"]
        assert consumer.positions == {PARTITION: 5}


def test_a_batch_that_stays_corrupt_is_an_error_with_its_place() -> None:
    log = log_of({0: [FIRST], 3: [flipped(SECOND)]})
    with FakeBroker({ApiKey.FETCH: log}) as broker, consumer_of(broker) as consumer:
        read_all(consumer, 3)
        with pytest.raises(CorruptBatchError, match=r"fake-0: .*from offset 3 on") as raised:
            for _ in range(10):
                consumer.fetch_arrow(5)
    assert (raised.value.partition, raised.value.offset) == ("fake-0", 3)


def test_offsets_that_go_back_are_corrupt() -> None:
    log = log_of({0: [SECOND + FIRST], 5: [FIRST]})
    with FakeBroker({ApiKey.FETCH: log}) as broker, consumer_of(broker) as consumer:
        assert table(read_all(consumer, 2))["offset"].to_pylist() == [3, 4]
        with pytest.raises(CorruptBatchError):
            for _ in range(10):
                consumer.fetch_arrow(5)


def test_a_decompression_bomb_is_refused_at_its_bound() -> None:
    plain = build([b"x"], leader_epoch=3, compression="gzip")
    packed = zlib.compressobj(9, wbits=31)
    bomb = packed.compress(bytes(65 << 20)) + packed.flush()
    head = bytearray(plain[:61])
    struct.pack_into(">i", head, 8, 49 + len(bomb))
    struct.pack_into(">I", head, 17, crc32c(bytes(head[21:]) + bomb))
    with (
        FakeBroker({ApiKey.FETCH: fetched(bytes(head) + bomb)}) as broker,
        consumer_of(broker) as consumer,
        pytest.raises(CorruptBatchError, match="expands beyond the"),
    ):
        for _ in range(10):
            consumer.fetch_arrow(5)


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: struct.pack(">i", 2**31 - 1) + frame[4:],
        lambda frame: struct.pack(">i", -1) + frame[4:],
        lambda frame: struct.pack(">i", 0) + frame[4:],
        lambda frame: frame[:4] + struct.pack(">i", 77) + frame[8:],
        lambda frame: struct.pack(">i", len(frame) - 8) + frame[4:-4],
        lambda frame: struct.pack(">i", len(frame)) + frame[4:] + b"....",
        lambda frame: frame + frame,
    ],
    ids=["huge", "negative", "empty", "correlation", "short", "long", "twice"],
)
def test_frames_against_the_protocol_are_an_error_at_once(change: Callable[[bytes], bytes]) -> None:
    with (
        FakeBroker({ApiKey.FETCH: changed(fetched(FIRST), change)}) as broker,
        consumer_of(broker) as consumer,
        pytest.raises(PeerProtocolError),
    ):
        for _ in range(10):
            consumer.fetch_arrow(1)


@pytest.mark.parametrize("answer", [silence, hang_up, fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)])
def test_a_leader_that_never_serves_is_an_error_after_the_retry_timeout(answer: Answer) -> None:
    with (
        FakeBroker({ApiKey.FETCH: answer}) as broker,
        consumer_of(broker) as consumer,
        pytest.raises(PartitionUnavailableError, match=r"fake-0: no leader serves offset 0 for 1 s"),
    ):
        for _ in range(10):
            consumer.fetch_arrow(5)


@pytest.mark.parametrize("api", [ApiKey.API_VERSIONS, ApiKey.METADATA])
@pytest.mark.parametrize("answer", [silence, hang_up], ids=["silence", "hang-up"])
def test_a_cluster_that_does_not_answer_is_unreachable(api: ApiKey, answer: Answer) -> None:
    with FakeBroker({api: answer}) as broker, pytest.raises(BrokersUnreachableError, match=r"127\.0\.0\.1"):
        Consumer(broker.bootstrap, max_wait_ms=1, request_timeout_s=0.2, retry_timeout_s=0.5).topics()


@pytest.mark.parametrize("port", [0, -1, 70_000])
def test_metadata_with_an_impossible_port_are_refused(port: int) -> None:
    with FakeBroker({ApiKey.METADATA: metadata(port)}) as broker, pytest.raises(PeerProtocolError, match="metadata"):
        Consumer(broker.bootstrap).topics()


def test_a_topic_made_again_is_noticed_when_leaders_are_looked_for() -> None:
    with FakeBroker({}) as broker:
        broker._answers[ApiKey.METADATA] = [metadata(broker.port), metadata(broker.port, "BBBBBBBBBBBBBBBBBBBBBQ")]
        broker._answers[ApiKey.FETCH] = fetched(error=ErrorCode.UNKNOWN_TOPIC_ID)
        with consumer_of(broker) as consumer, pytest.raises(TopicRecreatedError, match="was deleted"):
            for _ in range(10):
                consumer.fetch_arrow(1)


def test_a_session_that_goes_on_with_another_topic_id_is_noticed() -> None:
    """No row of the new topic is taken for one of the old, and the client does not wait for the old one for ever."""
    other = "BBBBBBBBBBBBBBBBBBBBBQ"
    with FakeBroker({}) as broker:
        broker._answers[ApiKey.METADATA] = [metadata(broker.port), metadata(broker.port, other)]
        broker._answers[ApiKey.FETCH] = [
            fetched(FIRST, session_id=77),
            fetched(SECOND, session_id=77, topic_id=other),
        ]
        with consumer_of(broker) as consumer:
            read_all(consumer, 3)
            with pytest.raises(TopicRecreatedError, match="was deleted") as raised:
                for _ in range(10):
                    assert consumer.fetch_arrow(1) is None
    assert raised.value.new_topic_id == other


def test_a_log_that_parts_from_what_was_read_is_an_error_with_the_place() -> None:
    """KIP-320, KIP-595: the fetch says which epoch was read last, and the leader where that ends in its own log."""
    answers = [fetched(FIRST), fetched(diverging=EpochEndOffset(2, 1))]
    with FakeBroker({ApiKey.FETCH: answers}) as broker, consumer_of(broker) as consumer:
        read_all(consumer, 3)
        with pytest.raises(LogTruncatedError, match="at offset 1, after leader epoch 2") as raised:
            for _ in range(10):
                consumer.fetch_arrow(1)
        assert raised.value.offset == 1
        requests = broker.fetches()
    assert [request.partitions[0].last_fetched_epoch for request in requests][:2] == [-1, 3]
    assert [request.partitions[0].current_leader_epoch for request in requests][:2] == [3, 3]


def test_a_broker_without_our_versions_is_named() -> None:
    def old(header: RequestHeader, frame: bytes) -> list[Any]:
        return list(generic.api_versions(header, {ApiKey.API_VERSIONS: (0, 3), ApiKey.METADATA: (0, 0)}, [], 0))

    with FakeBroker({ApiKey.API_VERSIONS: old}) as broker, pytest.raises(UnsupportedBrokerError, match="METADATA"):
        Consumer(broker.bootstrap).topics()


# Producing


def append(answers: list[Answer], **settings: Any) -> tuple[list[tuple[int, int]], FakeBroker]:
    """(base sequence, producer id) of each batch as the broker received it, from one append of three batches."""
    data = pa.table({"value": [b"x" * 400] * 6})
    with FakeBroker({ApiKey.PRODUCE: answers}) as broker:
        settings = {"request_timeout_s": 0.3, "delivery_timeout_s": 2.0, "batch_bytes": 1000, **settings}
        with Producer(broker.bootstrap, **settings) as producer:
            producer.append_arrow(TOPIC, data)
        return sequences(broker), broker


def sequences(broker: FakeBroker) -> list[tuple[int, int]]:
    found = []
    for header, frame in broker.requests:
        if header.api_key == ApiKey.PRODUCE:
            request, _ = produce.decode_request(frame, header)
            (partition,) = request.partitions
            info = validate(partition.records, deep=True)
            found.append((info.base_sequence, info.producer_id))
    return found


@pytest.mark.parametrize(
    "trouble",
    [
        hang_up,
        half(produced()),
        produced(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        produced(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        produced(ErrorCode.REQUEST_TIMED_OUT),
        silence,
    ],
    ids=["hang-up", "half", "leader", "replicas", "timeout", "silence"],
)
def test_batches_are_sent_again_in_order_with_the_sequences_they_had(trouble: Answer) -> None:
    found, _ = append([trouble, produced()])
    assert {producer for _, producer in found} == {7}
    numbers = [sequence for sequence, _ in found]
    assert set(numbers) == {0, 2, 4}
    again = numbers.index(0, 1)  # the first batch was not acknowledged
    assert numbers[:again] == [0, 2, 4][:again] and numbers[again:] == sorted(numbers[again:])


def test_out_of_order_is_retried_behind_a_failure_and_an_error_without_one() -> None:
    out_of_order = produced(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    found, _ = append([produced(ErrorCode.NOT_LEADER_OR_FOLLOWER), out_of_order, out_of_order, produced()])
    assert [sequence for sequence, _ in found] == [0, 2, 4, 0, 2, 4]
    with pytest.raises(ProduceError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        append([out_of_order])


def test_a_batch_that_the_broker_had_before_is_written_once_at_an_unknown_offset() -> None:
    answers = {ApiKey.PRODUCE: produced(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)}
    with FakeBroker(answers) as broker, Producer(broker.bootstrap) as producer:
        (piece,) = producer.append_arrow(TOPIC, pa.table({"value": [b"x"]}))
    assert (piece.first_offset, piece.next_offset, piece.records) == (-1, -1, 1)


@pytest.mark.parametrize("answer", [silence, hang_up, produced(ErrorCode.NOT_ENOUGH_REPLICAS)])
def test_what_is_never_acknowledged_is_an_error_after_the_delivery_timeout(answer: Answer) -> None:
    with pytest.raises(ProduceError, match=r"fake-0: records are not acknowledged for 0\.8 s") as raised:
        append([answer], delivery_timeout_s=0.8)
    assert raised.value.partition == "fake-0"


def test_a_response_about_another_partition_is_an_error_at_once() -> None:
    def other(header: RequestHeader, frame: bytes) -> list[Any]:
        response = ProduceResponse((ProducedPartition(TopicPartition("other", 0), ErrorCode.NONE, 0),))
        return list(produce.encode_response(response, header))

    with pytest.raises(PeerProtocolError, match="other partitions"):
        append([other])
