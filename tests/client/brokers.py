"""Topics of a cluster, and batches appended to them as they are, for tests of the bulk client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from kreplog._native.batch import build
from kreplog.client import Consumer, FetchedArrow
from kreplog.client.broker_client import BrokerClient
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core.messages import ProducePartition, ProduceRequest
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire import produce
from kreplog.wire.versions import ApiKey
from tests.integration import clusters

TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Topic:
    cluster: LocalCluster
    name: str
    partitions: tuple[TopicPartition, ...]

    def consumer(self, **settings: Any) -> Consumer:
        return Consumer(self.cluster.bootstrap(), **{"max_wait_ms": 50, **settings})

    def append(self, values: Sequence[bytes | None], partition: int = 0, **fields: Any) -> int:
        """One batch, acknowledged by all in-sync replicas; return its first offset."""
        at = self.partitions[partition]
        with self.consumer() as consumer:
            leader = consumer.partitions(self.name)[at].leader
            address = consumer._cluster.address_of(leader)
        return asyncio.run(_append(address, at, build(values, **fields)))


async def _append(address: tuple[str, int], at: TopicPartition, batch: bytes) -> int:
    client = BrokerClient(address, TIMEOUT_S)
    try:
        header = client.header(ApiKey.PRODUCE, 9)
        request = ProduceRequest(-1, int(TIMEOUT_S * 1000), (ProducePartition(at, batch),))
        (produced,) = produce.decode_response(
            await client.send(produce.encode_request(request, header)), header
        ).partitions
        assert produced.error is ErrorCode.NONE, produced
        return produced.base_offset
    finally:
        client.close()


def make_topic(cluster: LocalCluster, name: str, partitions: int, replicas: int = 3, **configs: str) -> Topic:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    with clusters.admin_of(cluster.bootstrap()) as admin:
        admin.create_topics(
            {name: {"num_partitions": partitions, "replication_factor": replicas, "configs": settings}},
            wait_for_metadata=True,
        )
    clusters.wait_for_topic(cluster, name, partitions)
    return Topic(cluster, name, tuple(TopicPartition(name, number) for number in range(partitions)))


def table(pieces: Sequence[FetchedArrow]) -> pa.Table:
    return pa.Table.from_batches([piece.to_arrow() for piece in pieces])


def read_all(consumer: Consumer, rows: int) -> list[FetchedArrow]:
    """Until so many rows have come of what is assigned."""
    pieces: list[FetchedArrow] = []
    while sum(map(len, pieces)) < rows:
        piece = consumer.fetch_arrow(TIMEOUT_S)
        assert piece is not None, f"{sum(map(len, pieces))} rows of {rows} in {TIMEOUT_S} s"
        pieces.append(piece)
    return pieces
