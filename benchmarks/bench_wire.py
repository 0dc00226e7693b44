"""Produce and Fetch on the wire: kreplog's native codec against kafka-python's generated one.

    python -m benchmarks.bench_wire             a minute; --quick: says whether it works, not how fast it is

Both sides start from the same bytes, checked to decode to the same content, and write the same frames, compared byte
for byte. Decoding ends at kreplog's messages and at kafka-python's, without the request header; encoding begins at the
messages, which kafka-python has ready made: a server would first have to make them, at about the same cost again. The
frames kreplog writes are lists of buffers for sendmsg, as a server sends them.
"""

from __future__ import annotations

import hashlib
import os
import platform
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version as version_of
from time import perf_counter
from typing import Annotated, Any

import kafka.protocol.consumer as their_consumer
import kafka.protocol.producer as their_producer
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.harness import quiet
from kreplog.core.messages import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProduceRequest,
)
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire import fetch, produce
from kreplog.wire.frames import RequestHeader, decode_request_header
from kreplog.wire.versions import ApiKey

PRODUCE_VERSION = 9
FETCH_VERSION = 12
PARTITIONS_PER_TOPIC = 10


@dataclass(frozen=True)
class Row:
    """One thing both do. digest: of the bytes read or written."""

    name: str
    ours: Callable[[], object]
    theirs: Callable[[], object]
    digest: str


def rows(seed: int, scale: int) -> Iterator[Row]:
    """Rows of the benchmark. scale: 1 for real sizes; records and partitions are divided by it."""
    noise = random.Random(seed).randbytes
    for size in (64 << 10, 1 << 20):
        yield produce_decode(noise(size // scale))
    for count in (1, 100, 1000):
        yield fetch_decode(max(1, count // scale))
    yield fetch_encode(f"{1000 // scale} empty", [b""] * (1000 // scale))
    yield fetch_encode(f"{1000 // scale} x 1 KiB", [noise(1024) for _ in range(1000 // scale)])
    yield fetch_encode(f"1 x {(1 << 20) // scale >> 10} KiB", [noise((1 << 20) // scale)])


def produce_decode(records: bytes) -> Row:
    header = RequestHeader(ApiKey.PRODUCE, PRODUCE_VERSION, 1, "bench")
    request = ProduceRequest(-1, 30000, (ProducePartition(TopicPartition("topic-1", 3), records),))
    frame = _body(produce.encode_request(request, header))
    known = decode_request_header(frame)
    body = memoryview(frame)[known.body :]
    theirs = their_producer.ProduceRequest
    (topic,) = theirs.decode(body, version=PRODUCE_VERSION).topic_data
    if produce.decode_request(frame, known)[0] != request or topic.partition_data[0].records != records:
        raise AssertionError("the codecs read different records")
    return Row(
        f"Produce {PRODUCE_VERSION} request, {len(records) >> 10} KiB: decode",
        lambda: produce.decode_request(frame, known),
        lambda: theirs.decode(body, version=PRODUCE_VERSION),
        _digest(frame),
    )


def fetch_decode(count: int) -> Row:
    header = RequestHeader(ApiKey.FETCH, FETCH_VERSION, 1, "bench")
    partitions = tuple(
        FetchPartition(place, "", 7, 100_000 + n, 7, 0, 1 << 20) for n, place in enumerate(_places(count))
    )
    request = FetchRequest(1, -1, 500, 1, 10 << 20, partitions)
    frame = _body(fetch.encode_request(request, header))
    known = decode_request_header(frame)
    body = memoryview(frame)[known.body :]
    theirs = their_consumer.FetchRequest
    offsets = [
        partition.fetch_offset
        for topic in theirs.decode(body, version=FETCH_VERSION).topics
        for partition in topic.partitions
    ]
    if fetch.decode_request(frame, known)[0] != request or offsets != [
        partition.fetch_offset for partition in partitions
    ]:
        raise AssertionError("the codecs read different partitions")
    return Row(
        f"Fetch {FETCH_VERSION} request, partitions {count}: decode",
        lambda: fetch.decode_request(frame, known),
        lambda: theirs.decode(body, version=FETCH_VERSION),
        _digest(frame),
    )


def fetch_encode(name: str, records: list[bytes]) -> Row:
    header = RequestHeader(ApiKey.FETCH, FETCH_VERSION, 1, "bench")
    fetched = tuple(
        FetchedPartition(place, ErrorCode.NONE, 5000, 0, records=data)
        for place, data in zip(_places(len(records)), records, strict=True)
    )
    response = FetchResponse(ErrorCode.NONE, 7, fetched)
    theirs = _their_response(response)
    theirs.with_header(correlation_id=header.correlation_id)
    frame = b"".join(fetch.encode_response(response, header))
    if bytes(theirs.encode(header=True, framed=True)) != frame:
        raise AssertionError("the codecs write different frames")
    return Row(
        f"Fetch {FETCH_VERSION} response, partitions {name}: encode",
        lambda: fetch.encode_response(response, header),
        lambda: theirs.encode(header=True, framed=True),
        _digest(frame),
    )


def _their_response(response: FetchResponse) -> Any:
    theirs = their_consumer.FetchResponse
    topics: dict[str, list[FetchedPartition]] = {}
    for fetched in response.partitions:
        topics.setdefault(fetched.partition.topic, []).append(fetched)
    topic_class = theirs._struct.fields["responses"].data_class
    partition_class = topic_class._struct.fields["partitions"].data_class
    return theirs(
        version=FETCH_VERSION,
        session_id=response.session_id,
        responses=[
            topic_class(
                version=FETCH_VERSION,
                topic=topic,
                partitions=[
                    partition_class(
                        version=FETCH_VERSION,
                        partition_index=fetched.partition.partition,
                        high_watermark=fetched.high_watermark,
                        last_stable_offset=fetched.high_watermark,
                        log_start_offset=fetched.log_start_offset,
                        aborted_transactions=[],
                        records=fetched.records,
                    )
                    for fetched in group
                ],
            )
            for topic, group in topics.items()
        ],
    )


def _places(count: int) -> list[TopicPartition]:
    return [TopicPartition(f"topic-{n // PARTITIONS_PER_TOPIC}", n % PARTITIONS_PER_TOPIC) for n in range(count)]


def _body(frame: list[Any]) -> bytes:
    return b"".join(frame)[4:]


def _digest(frame: bytes) -> str:
    return hashlib.sha256(frame).hexdigest()[:8]


def measure(call: Callable[[], object], seconds: float) -> float:
    """Microseconds of one call, over as many as fill `seconds`."""
    calls, batch = 0, 1
    with quiet():
        start = perf_counter()
        while (passed := perf_counter() - start) < seconds or not calls:
            for _ in range(batch):
                call()
            calls += batch
            batch = min(2 * batch, 64)
    return passed / calls * 1e6


def compare(row: Row, repetitions: int, seconds: float) -> tuple[float, float, list[float]]:
    """Medians in microseconds, ours and theirs, and the ratio of each repetition; who begins takes turns."""
    ours: list[float] = []
    theirs: list[float] = []
    for repetition in range(repetitions):
        turns = [(row.ours, ours), (row.theirs, theirs)]
        for call, times in turns if repetition % 2 else reversed(turns):
            times.append(measure(call, seconds))
    return statistics.median(ours), statistics.median(theirs), [b / a for a, b in zip(ours, theirs, strict=True)]


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: tests that it works.")] = False,
    repetitions: Annotated[int, typer.Option(min=1, help="Of each row; medians are shown.")] = 7,
    seed: Annotated[int, typer.Option(help="Seed of the records.")] = 1,
) -> None:
    """kreplog's codec of Produce and Fetch against kafka-python's."""
    console = Console(width=120)
    title = f"microseconds; kafka-python {version_of('kafka-python')}; seed {seed}"
    table = Table("message", "kreplog", "kafka-python", "ratio (range)", "digest", title=title, box=box.SIMPLE_HEAVY)
    for row in rows(seed, 100 if quick else 1):
        ours, theirs, ratios = compare(row, 1 if quick else repetitions, 0.001 if quick else 0.3)
        ratio = f"{statistics.median(ratios):.1f} ({min(ratios):.1f}..{max(ratios):.1f})"
        table.add_row(row.name, f"{ours:.1f}", f"{theirs:.1f}", ratio, row.digest)
    console.print(table)
    python = f"{platform.python_implementation()} {platform.python_version()}"
    console.print(f"{python}, {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    typer.run(main)
