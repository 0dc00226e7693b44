"""Clients of brokers with quotas, and the clock by which those count; the mutes themselves last by the event loop's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kafka.protocol.consumer import FetchResponse as TheirFetchResponse
from kafka.protocol.producer import ProduceResponse as TheirProduceResponse

from kreplog.core.messages import CONSUMER, FetchPartition, FetchRequest, ProducePartition, ProduceRequest
from kreplog.server.broker import Broker
from kreplog.server.monitoring import metrics
from kreplog.server.network import client_quotas
from kreplog.types import NO_EPOCH, TopicPartition
from kreplog.wire import fetch, produce
from kreplog.wire.versions import ApiKey
from tests.server.authorization import clients

TP = TopicPartition("topic", 0)


class Clock:
    """The time of quotas, which stands still unless a test moves it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 1_000_000
        for module in (client_quotas, metrics):
            monkeypatch.setattr(module, "monotonic_ms", lambda: self.now_ms)

    def after(self, broker: Broker, ms: int) -> None:
        """That time has passed, for mutes too, none of which has lasted longer."""
        self.now_ms += ms
        broker.server.unmute_all()


class Client(clients.Client):
    """A connection of one client id."""

    async def create(self, *names: str, version: int = 7, partitions: int = 1) -> Any:
        topics = [
            {"name": name, "num_partitions": partitions, "replication_factor": -1, "assignments": [], "configs": []}
            for name in names
        ]
        return await self.call(ApiKey.CREATE_TOPICS, version, topics=topics, timeout_ms=10_000, validate_only=False)

    async def produce(self, records: bytes, acks: int = 1) -> Any:
        header = self.header(ApiKey.PRODUCE, 9)
        request = produce.encode_request(ProduceRequest(acks, 10_000, (ProducePartition(TP, records),)), header)
        return TheirProduceResponse.decode(await self.frame(b"".join(map(bytes, request))), version=9, header=True)

    def produce_frame(self, records: bytes, acks: int) -> bytes:
        header = self.header(ApiKey.PRODUCE, 9)
        request = ProduceRequest(acks, 10_000, (ProducePartition(TP, records),))
        return b"".join(map(bytes, produce.encode_request(request, header)))

    async def fetch(self, offset: int = 0, listed: bool = True, session_id: int = 0, session_epoch: int = -1) -> Any:
        header = self.header(ApiKey.FETCH, 12)
        partitions = (FetchPartition(TP, "", NO_EPOCH, offset),) if listed else ()
        request = FetchRequest(
            CONSUMER, -1, 0, 0, 1 << 20, partitions, session_id=session_id, session_epoch=session_epoch
        )
        frame = b"".join(map(bytes, fetch.encode_request(request, header)))
        return TheirFetchResponse.decode(await self.frame(frame), version=12, header=True)


def alteration(entity: Mapping[str, str | None], **values: float | None) -> dict[str, Any]:
    """An entry of AlterClientQuotas; a quota without a value is removed."""
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in values.items()
        ],
    }


async def set_quotas(broker: Broker, entity: Mapping[str, str | None], **values: float | None) -> None:
    """By a client of no quota that a test sets."""
    client = Client(broker, "operator")
    entries = [alteration(entity, **values)]
    response = await client.call(ApiKey.ALTER_CLIENT_QUOTAS, entries=entries, validate_only=False)
    assert [entry.error_code for entry in response.entries] == [0], response
    client.close()


def records_of(response: Any) -> int:
    """Bytes of records in a fetch response."""
    return sum(len(partition.records or b"") for topic in response.responses for partition in topic.partitions)
