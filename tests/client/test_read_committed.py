"""read_committed: batches of aborted transactions are left out, those of all others are not (KIP-98)."""

from __future__ import annotations

import random
import struct
from typing import Any

import pyarrow as pa
import pytest

from kreplog._native.arrow import ArrowBuilder
from kreplog._native.batch import build
from kreplog._native.crc32c import crc32c
from kreplog._native.fetched import FetchedBatches
from kreplog.client import Consumer
from kreplog.core.messages import READ_COMMITTED, FetchedPartition, FetchResponse
from kreplog.errors import CorruptBatchError, ErrorCode, UsageError
from kreplog.wire import fetch, generic
from kreplog.wire.frames import RequestHeader, decode_request_header
from kreplog.wire.versions import ApiKey
from tests.client.brokers import table
from tests.client.fake_broker import PARTITION, TOPIC, TOPIC_ID, FakeBroker

TRANSACTIONAL, CONTROL = 16, 32


def with_attributes(batch: bytes, attributes: int) -> bytes:
    (found,) = struct.unpack_from(">h", batch, 21)
    rest = struct.pack(">h", found | attributes) + batch[23:]
    return batch[:17] + struct.pack(">I", crc32c(rest)) + rest


def data(offset: int, producer: int, count: int = 1, **fields: Any) -> bytes:
    values = [b"%d" % (offset + number) for number in range(count)]
    batch = build(values, base_offset=offset, producer_id=producer, producer_epoch=0, base_sequence=0, **fields)
    return with_attributes(batch, TRANSACTIONAL)


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    batch = build(
        [b"\0" * 6], [struct.pack(">hh", 0, commit)], base_offset=offset, producer_id=producer, producer_epoch=0
    )
    return with_attributes(batch, TRANSACTIONAL | CONTROL)


def offsets_of(batches: FetchedBatches, max_bytes: int = 1 << 20) -> list[int]:
    builder = ArrowBuilder(["offset"])
    found: list[int] = []
    while not batches.exhausted:
        batches.add_to(builder, max_bytes)
        found += pa.record_batch(builder.finish())["offset"].to_pylist()
    return found


@pytest.mark.parametrize("seed", range(40))
def test_rows_are_those_of_transactions_that_were_not_aborted(seed: int) -> None:
    """Against a plain walk over the same log, from every batch as the start of the fetch."""
    chance = random.Random(seed)
    log: list[tuple[int, bytes, int, int]] = []  # offset, batch, producer, records; 0 records: a marker
    began: dict[int, int] = {}
    aborted: list[tuple[int, int, int]] = []  # producer, first offset, offset of the marker
    lost: set[int] = set()
    offset = 0
    while len(log) < 40 or began:
        producer = chance.choice([7, 8, 9])
        if began and chance.random() < (0.3 if len(log) < 40 else 1):
            producer = chance.choice(sorted(began))
            commit = chance.random() < 0.5
            log.append((offset, marker(offset, producer, commit=commit), producer, 0))
            first = began.pop(producer)
            if not commit:
                aborted.append((producer, first, offset))
                lost |= {
                    at + number
                    for at, _, writer, count in log
                    if writer == producer and at >= first
                    for number in range(count)
                }
            offset += 1
            continue
        count = chance.randint(1, 3)
        compression = chance.choice(["none", "gzip"])
        if chance.random() < 0.2:  # idempotent, and in no transaction
            batch = build([b"x"] * count, base_offset=offset, producer_id=5, producer_epoch=0, base_sequence=0)
            log.append((offset, batch, 5, count))
        else:
            began.setdefault(producer, offset)
            log.append((offset, data(offset, producer, count, compression=compression), producer, count))
        offset += count
    rows = [at + number for at, _, _, count in log for number in range(count)]
    for start, _, _, _ in log:
        records = b"".join(batch for at, batch, _, _ in log if at >= start)
        listed = [(producer, first) for producer, first, end in aborted if end >= start]
        chance.shuffle(listed)
        batches = FetchedBatches(records, start, 2**62, tuple(listed))
        max_bytes = chance.choice([1, 100, 1 << 20])
        assert offsets_of(batches, max_bytes) == [row for row in rows if row >= start and row not in lost]
        assert batches.next_offset == offset


def test_a_batch_that_would_be_left_out_is_checked_all_the_same() -> None:
    aborted = data(3, 7)
    damaged = aborted[:-2] + bytes([aborted[-2] ^ 1]) + aborted[-1:]
    batches = FetchedBatches(build([b"a", b"b", b"c"]) + damaged, 0, 2**62, ((7, 3),))
    builder = ArrowBuilder(["offset"])
    batches.add_to(builder, 1 << 20)
    assert builder.rows == 3 and not batches.exhausted
    builder.finish()
    with pytest.raises(CorruptBatchError) as raised:
        batches.add_to(builder, 1 << 20)
    assert raised.value.offset == 3


def test_a_consumer_requests_it_and_leaves_out_what_is_aborted() -> None:
    records = data(0, 7, 2) + data(2, 8, 2) + marker(4, 7, commit=False) + marker(5, 8, commit=True)

    def answer(header: RequestHeader, frame: bytes) -> list[Any]:
        (request, _) = fetch.decode_request(frame, decode_request_header(frame), lambda _: TOPIC)
        if request.partitions and request.partitions[0].fetch_offset == 0:
            part = FetchedPartition(PARTITION, ErrorCode.NONE, 6, 0, records=records, aborted=((7, 0),))
            return fetch.encode_response(FetchResponse(ErrorCode.NONE, 0, (part,)), header, lambda _: TOPIC_ID)
        return fetch.encode_response(FetchResponse(ErrorCode.NONE), header, lambda _: TOPIC_ID)

    def listed(header: RequestHeader, frame: bytes) -> list[Any]:
        request = generic.decode_request(frame, decode_request_header(frame))
        end = 4 if request.isolation_level == READ_COMMITTED else 6
        partition = {"partition_index": 0, "offset": end, "timestamp": -1, "leader_epoch": 3}
        return list(generic.encode_response(header, topics=[{"name": TOPIC, "partitions": [partition]}]))

    with FakeBroker({ApiKey.FETCH: answer, ApiKey.LIST_OFFSETS: listed}) as broker:
        with Consumer(broker.bootstrap, ["offset"], isolation_level="read_committed", rack="here") as consumer:
            assert table(list(consumer.read_arrow({PARTITION: (0, 6)})))["offset"].to_pylist() == [2, 3]
            assert consumer.end_offsets([PARTITION]) == {PARTITION: 4}
        assert {(request.isolation_level, request.rack) for request in broker.fetches()} == {(READ_COMMITTED, "here")}
    with pytest.raises(UsageError, match="read_uncommitted and read_committed are possible"):
        Consumer("127.0.0.1:1", isolation_level="serializable")
