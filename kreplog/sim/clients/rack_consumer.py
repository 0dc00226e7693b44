"""A consumer of the simulator that names its rack, and reads from the follower to which leaders send it (KIP-392).

It goes back to the leader after a while, after an error or silence of the follower, and where that has nothing new at
the end of the run: the leader alone says whether all records are read, and once it has, the consumer stays there. The
error OFFSET_OUT_OF_RANGE of a follower does not move its position, as in Kafka's consumer.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Any

from kreplog.core.messages import PartitionState
from kreplog.errors import ErrorCode
from kreplog.sim.clients.workload import (
    Client,
    ClientContext,
    ClientEffect,
    ClientMetadata,
    PartitionReader,
    consumer,
)
from kreplog.sim.history import Misdirected
from kreplog.sim.machines.records import RecordCodec
from kreplog.types import TopicPartition

STAYS_MS = (100, 1000, 5000)
"""For how long the consumer reads from a follower before it fetches from the leader again."""


def rack_consumer(context: ClientContext, rack: str) -> Client:
    """Read all partitions in turn, as consumer."""
    yield from consumer(context, partial(_RackReader, rack))


class _RackReader(PartitionReader):
    def __init__(
        self, rack: str, metadata: ClientMetadata, codec: RecordCodec, partition: TopicPartition, topic_id: str
    ) -> None:
        super().__init__(metadata, codec, partition, topic_id)
        self._rack = rack
        self._follower: int | None = None
        self._sent_in_epoch = -1
        self._stays_until_ms = 0

    def _fetch(self, partition_state: PartitionState, hurried: bool) -> Generator[ClientEffect, Any, bool]:
        if self._follower is None or self._view.now_ms() >= self._stays_until_ms:
            return (yield from self._fetch_from_leader(partition_state, hurried))
        yield from self._fetch_from_follower(self._follower, partition_state, hurried)
        return False

    def _fetch_from_leader(self, partition_state: PartitionState, hurried: bool) -> Generator[ClientEffect, Any, bool]:
        leader = partition_state.state.leader
        self._follower = None
        found = yield from self._fetch_from(leader, partition_state, hurried, self._rack)
        if found is None:
            return False
        is_sent = found.error is ErrorCode.NONE and found.preferred_read_replica >= 0
        if is_sent and not (hurried and self.position >= found.high_watermark >= 0):
            self._follower, self._sent_in_epoch = found.preferred_read_replica, found.leader_epoch
            self._stays_until_ms = self._view.now_ms() + self._view.random.choice(STAYS_MS)
        return self.fetched(found, leader)

    def _fetch_from_follower(
        self, follower: int, partition_state: PartitionState, hurried: bool
    ) -> Generator[ClientEffect, Any, None]:
        position = self.position
        found = yield from self._fetch_from(follower, partition_state, hurried, self._rack)
        if found is not None and found.error is ErrorCode.NONE:
            self.fetched(found, follower, "replica")
            if not hurried or self.position > position:
                return
        self._follower = None
        if found is not None and found.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            epoch = partition_state.state.leader_epoch
            if found.leader_epoch == self._sent_in_epoch == epoch:
                history, name = self._view.history, self._view.name
                refused = Misdirected(history.now_ms(), self._partition, self.topic_id, name, follower, epoch, position)
                history.add(refused)
