"""A client of the simulator that tries what only brokers may do: it fetches as if it were a follower that has records
above the high watermark, and writes commits of a group, which no member has tried, into the log of its coordinator.

If a leader believed it, records that no other replica has would be committed; if a coordinator read its commits, a
member would get them.
"""

from __future__ import annotations

from itertools import count

from kreplog.core.group_messages import OFFSETS_TOPIC, OffsetAndMetadata, OffsetRecord
from kreplog.core.messages import (
    LATEST,
    FetchPartition,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    PartitionState,
    ProducePartition,
    ProduceRequest,
)
from kreplog.errors import ErrorCode
from kreplog.sim.clients.group_client import GROUP
from kreplog.sim.clients.workload import Call, Client, ClientContext, ClientMetadata, Sleep
from kreplog.sim.machines.group_log_records import encode_group_record
from kreplog.types import NO_LEADER


def intruder(context: ClientContext) -> Client:
    """Send forged requests to the leaders of all partitions until the switch is off."""
    name, settings, history = context.name, context.settings, context.history
    metadata = ClientMetadata(context, internal=True)
    texts = count(1)
    while not context.switch.off:
        yield from metadata.refresh()
        for partition, state in sorted(metadata.partitions.items()):
            if state.state.leader == NO_LEADER:
                continue
            if partition.topic == OFFSETS_TOPIC:
                value = OffsetAndMetadata(0, metadata=f"{name}:{next(texts)}", commit_ms=history.now_ms())
                record = encode_group_record(OffsetRecord(GROUP, partition, value))
                batch = ProducePartition(partition, context.codec.encode(-1, -1, -1, [record], history.now_ms()))
                request = ProduceRequest(-1, settings.request_ms, (batch,))
                yield Call(state.state.leader, (request,), settings.request_ms)
            yield from _fetch_as_followers(metadata, state)
        yield Sleep(context.random.randint(1, settings.pause_ms))


def _fetch_as_followers(metadata: ClientMetadata, state: PartitionState) -> Client:
    """Fetch as each follower, at an offset that the log may have reached."""
    leader, settings = state.state.leader, metadata.settings
    epoch = state.state.leader_epoch
    ends = ListOffsetsRequest((ListOffsetsPartition(state.partition, epoch, LATEST),))
    (response,) = yield Call(leader, (ends,), settings.request_ms)
    if response is None or response.partitions[0].error is not ErrorCode.NONE:
        return
    offset = response.partitions[0].offset + metadata.random.randint(1, 3)
    wanted = FetchPartition(state.partition, state.topic_id, epoch, offset)
    forged = [
        FetchRequest(replica, metadata.registered[replica].epoch, 0, 0, 1 << 20, (wanted,))
        for replica in state.replicas
        if replica != leader and replica in metadata.registered
    ]
    if forged:
        yield Call(leader, tuple(forged), settings.request_ms)
