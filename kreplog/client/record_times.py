"""Timestamps of records, by their offsets: a lag in time is the age of the first record that is lacking.

Kafka's protocol looks offsets up by timestamp (ListOffsets) and not the other way: the record's batch is fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kreplog._native.batch import decode, validate
from kreplog.client.admin_client import AdminClient
from kreplog.client.broker_client import BrokerClient
from kreplog.client.replica_states import FETCH_VERSION
from kreplog.core.messages import CONSUMER, FetchPartition, FetchRequest
from kreplog.errors import CorruptBatchError, ErrorCode, StorageError, UsageError
from kreplog.types import TopicPartition
from kreplog.wire import fetch
from kreplog.wire.versions import ApiKey


class RecordAt(NamedTuple):
    """The first record of a partition at or above an offset."""

    partition: TopicPartition
    offset: int


def record_timestamps(admin: AdminClient, wanted: Mapping[int, Iterable[RecordAt]]) -> dict[RecordAt, int]:
    """Timestamps in ms since 1970, without those of records that are not committed, not readable, or have none.

    wanted: by the id of the partition's leader. One request for each, of the batch alone that the record is in."""

    async def timestamps(broker: int, client: BrokerClient) -> dict[RecordAt, int]:
        found = {}
        for record in wanted[broker]:
            header = client.header(ApiKey.FETCH, FETCH_VERSION)
            requested = (FetchPartition(record.partition, "", -1, record.offset, max_bytes=1),)
            frame = await client.send(fetch.encode_request(FetchRequest(CONSUMER, -1, 0, 0, 1, requested), header))
            (fetched,) = fetch.decode_response(frame, header).partitions
            if fetched.error is ErrorCode.NONE and (timestamp := _timestamp(fetched.records, record.offset)) >= 0:
                found[record] = timestamp
        return found

    return {record: time for found in admin.request_each(wanted, timestamps).values() for record, time in found.items()}


def _timestamp(data: bytes | memoryview, offset: int) -> int:
    """The timestamp of the first record at or above `offset` in a batch, -1 where there is none or it is damaged."""
    try:
        batch = validate(data)
        if batch.base_offset >= offset or batch.is_log_append_time:
            return batch.max_timestamp if batch.is_log_append_time else batch.base_timestamp
        records = decode(memoryview(data)[: batch.size])
    except (CorruptBatchError, StorageError, UsageError):  # damaged, or its codec is not installed
        return -1
    return next((record.timestamp_ms for record in records if record.offset >= offset), batch.max_timestamp)
