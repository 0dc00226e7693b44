"""The table of Kafka's APIs is complete: each is offered, or it is said why not."""

from __future__ import annotations

from kreplog.wire.kafka_apis import KAFKA_4, LATER_VERSIONS, NOT_OFFERED
from kreplog.wire.versions import TO_CLIENTS, ApiKey


def test_each_api_is_offered_or_has_a_reason() -> None:
    assert NOT_OFFERED.keys() == KAFKA_4.keys() - TO_CLIENTS.keys()
    assert TO_CLIENTS.keys() <= KAFKA_4.keys()


def test_names_are_kafkas() -> None:
    for key in TO_CLIENTS:
        assert KAFKA_4[key][0].lower() == ApiKey(key).name.replace("_", "").lower()


def test_each_version_that_kafka_offers_is_offered_or_has_a_reason() -> None:
    shorter = {key for key, (first, last) in TO_CLIENTS.items() if KAFKA_4[key][2] > last or KAFKA_4[key][1] < first}
    assert LATER_VERSIONS.keys() == shorter
    for key in shorter:
        assert KAFKA_4[key][1] >= TO_CLIENTS[key][0], "what is missing are later versions"
