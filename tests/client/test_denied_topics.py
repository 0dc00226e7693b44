"""A topic that the client's principal may not use is an error at once: no retry changes what an ACL says.

The clients retry for an hour here, so that a test in which they do so hangs.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.client import Consumer, ProduceError, Producer, TopicAuthorizationError
from kreplog.errors import ErrorCode
from kreplog.wire import generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey
from tests.client.fake_broker import PARTITION, TOPIC, TOPIC_ID, Answer, FakeBroker, fetched, metadata, produced

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
HOUR_S = 3600.0


def denying(broker: list[FakeBroker]) -> Answer:
    """Metadata in which the topic is denied. broker: the one that answers."""

    def answer(header: RequestHeader, frame: bytes) -> list[Any]:
        return list(
            generic.encode_response(
                header,
                brokers=[{"node_id": 0, "host": "127.0.0.1", "port": broker[0].port}],
                topics=[{"name": TOPIC, "error_code": DENIED, "topic_id": TOPIC_ID, "partitions": []}],
            )
        )

    return answer


def listed(header: RequestHeader, frame: bytes) -> list[Any]:
    partition = {"partition_index": 0, "error_code": DENIED, "offset": -1, "timestamp": -1, "leader_epoch": -1}
    return list(generic.encode_response(header, topics=[{"name": TOPIC, "partitions": [partition]}]))


def refused(call: Any) -> None:
    with pytest.raises(TopicAuthorizationError, match=f"{TOPIC}-0: this client's principal may not do that") as error:
        call()
    assert error.value.partition == f"{TOPIC}-0"
    assert error.value.kafka_code is DENIED


def test_a_topic_that_may_not_be_described() -> None:
    made: list[FakeBroker] = []
    with FakeBroker({ApiKey.METADATA: denying(made)}) as broker:
        made.append(broker)
        with Consumer(broker.bootstrap, retry_timeout_s=HOUR_S) as consumer:
            refused(lambda: consumer.partitions(TOPIC))
            refused(lambda: consumer.end_offsets([PARTITION]))
            refused(lambda: consumer.assign({PARTITION: 0}))
        with Producer(broker.bootstrap, delivery_timeout_s=HOUR_S) as producer:
            refused(lambda: producer.append_arrow(TOPIC, pa.table({"value": [b"x"]})))


def test_a_topic_that_may_not_be_read() -> None:
    answers: dict[ApiKey, Any] = {ApiKey.FETCH: fetched(error=DENIED), ApiKey.LIST_OFFSETS: listed}
    with FakeBroker(answers) as broker, Consumer(broker.bootstrap, retry_timeout_s=HOUR_S) as consumer:
        refused(lambda: consumer.end_offsets([PARTITION]))
        consumer.assign({PARTITION: 0})
        refused(lambda: consumer.fetch_arrow())


def test_a_topic_that_is_denied_while_it_is_read() -> None:
    """Its leader moves, and the new metadata deny it."""
    made: list[FakeBroker] = []

    def moved(header: RequestHeader, frame: bytes) -> list[Any]:
        return metadata(made[0].port)(header, frame)

    answers: dict[ApiKey, Any] = {
        ApiKey.FETCH: fetched(error=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ApiKey.METADATA: [moved, denying(made)],
    }
    with FakeBroker(answers) as broker:
        made.append(broker)
        with Consumer(broker.bootstrap, retry_timeout_s=HOUR_S) as consumer:
            consumer.assign({PARTITION: 0})
            refused(lambda: consumer.fetch_arrow())


def test_a_topic_that_may_not_be_written() -> None:
    with (
        FakeBroker({ApiKey.PRODUCE: produced(DENIED)}) as broker,
        Producer(broker.bootstrap, delivery_timeout_s=HOUR_S) as producer,
        pytest.raises(ProduceError) as error,
    ):
        producer.append_arrow(TOPIC, pa.table({"value": [b"x"]}))
    assert error.value.code is DENIED
