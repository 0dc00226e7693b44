"""Quotas at one broker: what they cost a client that is within its quota, and what a quiet client has of a noisy one.

    python -m benchmarks.bench_quotas [--repetitions N] [--quick] [--directory DIR]

In each repetition, in turns: the rate of small Produce and Fetch requests, one after the other on one connection,
without any quota, with quotas that are for others, and with own ones that are never reached; and the latencies of a
quiet client that sends small Produce requests with pauses, alone, beside a noisy client in a process of its own that
sends large ones on several connections as fast as it is answered, and beside the same client with a quota. Figures are
medians of the repetitions; a ratio is of figures of the same repetition.
"""

from __future__ import annotations

import itertools
import multiprocessing
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Annotated, Any

import typer

from benchmarks import report
from kreplog._native.batch import build
from kreplog.cluster import store_requests
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core.messages import CONSUMER, FetchPartition, FetchRequest, ProducePartition, ProduceRequest
from kreplog.core.quotas.entities import OF_CLIENTS, QuotaEntity
from kreplog.core.quotas.quota_requests import QuotaAlteration
from kreplog.types import NO_EPOCH, TopicPartition, counted
from kreplog.wire import fetch, generic, produce
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey

TP = TopicPartition("events", 0)
NOISY, QUIET = "noisy", "quiet"
RECORD_BYTES = 100
NOISY_CONNECTIONS = 8
NOISY_BYTES = 500_000
NOISY_QUOTA = 10_000_000
PAUSE_S = 0.002
BOUNDED = (
    "log.retention.bytes = 100_000_000",
    "log.segment.bytes = 50_000_000",
    "log.retention.check.interval.ms = 1000",
)
"""Settings: a noisy client without a quota would fill the disk."""

APPLIED_S = 0.5
"""After a change of quotas, which every broker applies as soon as its watch fires."""

Address = tuple[str, int]


class Connection:
    """A connection that sends one request after the other."""

    def __init__(self, address: Address, client_id: str) -> None:
        self._sock = socket.create_connection(address)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client_id = client_id
        self._ids = itertools.count(1)

    def call(self, frame: bytes) -> bytes:
        self._sock.sendall(frame)
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            data = self._sock.recv(size - len(found))
            if not data:
                raise ConnectionError("the broker has closed the connection")
            found += data
        return bytes(found)

    def header(self, key: ApiKey, version: int) -> RequestHeader:
        return RequestHeader(key, version, next(self._ids), self._client_id)

    def produce(self, records: bytes) -> None:
        header = self.header(ApiKey.PRODUCE, 9)
        request = ProduceRequest(1, 30_000, (ProducePartition(TP, records),))
        response = produce.decode_response(self.call(_joined(produce.encode_request(request, header))), header)
        (partition,) = response.partitions
        if partition.error:
            raise RuntimeError(f"produce failed: {partition.error.name}")

    def fetch(self) -> None:
        header = self.header(ApiKey.FETCH, 12)
        request = FetchRequest(CONSUMER, -1, 0, 0, 2000, (FetchPartition(TP, "", NO_EPOCH, 0, max_bytes=2000),))
        response = fetch.decode_response(self.call(_joined(fetch.encode_request(request, header))), header)
        (partition,) = response.partitions
        if partition.error or not len(partition.records):
            raise RuntimeError(f"fetch failed: {partition.error.name}")

    def create_topic(self) -> None:
        header = self.header(ApiKey.CREATE_TOPICS, 5)
        topic = {"name": TP.topic, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        frame = generic.encode_request(header, topics=[topic], timeout_ms=30_000, validate_only=False)
        response = generic.decode_response(self.call(_joined(frame)), header)
        if response.topics[0].error_code:
            raise RuntimeError(response.topics[0].error_message)

    def close(self) -> None:
        self._sock.close()


def _joined(buffers: Sequence[Any]) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


def rate(address: Address, requests: int) -> tuple[float, float]:
    """Produce and Fetch requests in a second."""
    connection, records = Connection(address, QUIET), build([b"x" * RECORD_BYTES])
    rates = []
    calls: tuple[Callable[[], None], ...] = (lambda: connection.produce(records), connection.fetch)
    for call in calls:
        began = time.perf_counter()
        for _ in range(requests):
            call()
        rates.append(requests / (time.perf_counter() - began))
    connection.close()
    return rates[0], rates[1]


def latency_ms(address: Address, requests: int) -> float:
    """The 99th percentile of the quiet client's."""
    connection, records = Connection(address, QUIET), build([b"x" * RECORD_BYTES])
    latencies = []
    for _ in range(requests):
        began = time.perf_counter()
        connection.produce(records)
        latencies.append(time.perf_counter() - began)
        time.sleep(PAUSE_S)  # the load of a quiet client: some 400 requests a second, far below what a broker serves
    connection.close()
    return statistics.quantiles(latencies, n=100)[98] * 1000


def make_noise(address: Address) -> None:
    """The noisy client's process, until it is killed."""
    records = build([b"x" * 10_000] * (NOISY_BYTES // 10_000))

    def send() -> None:
        connection = Connection(address, NOISY)
        while True:
            connection.produce(records)

    threads = [Thread(target=send, daemon=True) for _ in range(NOISY_CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def noise(address: Address, settle_s: float) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=make_noise, args=(address,))
    process.start()
    time.sleep(settle_s)  # until the quota of all windows (11 s) is used up; no answer says so where there is no quota
    try:
        yield
    finally:
        process.kill()
        process.join()


def main(
    repetitions: Annotated[int, typer.Option(min=1, help="Repetitions, of which the median counts.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny: shows that it works, not how fast it is.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Where the cluster is made.")] = None,
) -> None:
    requests, quiet_requests, settle_s = (50, 100, 0.5) if quick else (3000, 2000, 12.0)
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        cluster = LocalCluster.create(Path(folder) / "c", [0], 0, BOUNDED)
        cluster.start()
        try:
            host, _, port = cluster.bootstrap().rpartition(":")
            address = (host, int(port))
            connection = Connection(address, "creator")
            connection.create_topic()
            connection.close()
            print(
                f"sizes: {requests:,} requests of one record of {RECORD_BYTES} B each, and of the quiet client "
                f"{quiet_requests:,} with pauses of {PAUSE_S * 1000:g} ms; noisy ones of {NOISY_BYTES:,} B on "
                f"{NOISY_CONNECTIONS} connections, for {settle_s:g} s before, whose quota is {NOISY_QUOTA:,} B/s; "
                f"{counted(repetitions, 'repetition')}"
            )
            for name, fact in report.host(Path(folder)).items():
                print(f"{name}: {fact}")
            _measure(cluster, address, repetitions, requests, quiet_requests, settle_s)
        finally:
            cluster.stop()


def _measure(
    cluster: LocalCluster, address: Address, repetitions: int, requests: int, quiet_requests: int, settle_s: float
) -> None:
    def quota(client_id: str, **values: float | None) -> None:
        with cluster.store_session() as session:
            store_requests.alter_quotas(session, QuotaAlteration(QuotaEntity(None, client_id), values))
        time.sleep(APPLIED_S)  # no request shows that a broker has applied a quota before the quota is exceeded

    unreached: dict[str, float | None] = {key.value: 10.0**15 for key in OF_CLIENTS}
    limits: dict[str, tuple[str, dict[str, float | None]]] = {
        "none": ("", {}),
        "of others": ("other", unreached),
        "own": (QUIET, unreached),
    }
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in limits}
    names = list(limits)
    for repetition in range(repetitions):
        for name in names[repetition % 3 :] + names[: repetition % 3]:
            client_id, values = limits[name]
            if client_id:
                quota(client_id, **values)
            rates[name].append(rate(address, requests))
            if client_id:
                quota(client_id, **dict.fromkeys(values))
    for kind, index in (("produce", 0), ("fetch", 1)):
        for name in names:
            figures = [each[index] for each in rates[name]]
            ratios = [ours[index] / none[index] for ours, none in zip(rates[name], rates["none"], strict=True)]
            print(
                f"{kind}, quotas {name}: {statistics.median(figures):,.0f} requests/s, "
                f"{statistics.median(ratios):.3f} of those without ({min(ratios):.3f} to {max(ratios):.3f})"
            )
    beside: dict[str, Callable[[], float]] = {
        "alone": lambda: latency_ms(address, quiet_requests),
        "beside a noisy one": lambda: _beside(address, quiet_requests, settle_s),
        "beside one at its quota": lambda: _beside(address, quiet_requests, settle_s),
    }
    latencies: dict[str, list[float]] = {name: [] for name in beside}
    for _ in range(repetitions):
        for name, run in beside.items():
            limited = name.endswith("quota")
            if limited:
                quota(NOISY, producer_byte_rate=NOISY_QUOTA)
            latencies[name].append(run())
            if limited:
                quota(NOISY, producer_byte_rate=None)
    for name, found in latencies.items():
        ratios = [ours / alone for ours, alone in zip(found, latencies["alone"], strict=True)]
        print(
            f"p99 of a quiet client {name}: {statistics.median(found):.2f} ms, "
            f"{statistics.median(ratios):.2f} x alone ({min(ratios):.2f} to {max(ratios):.2f})"
        )


def _beside(address: Address, requests: int, settle_s: float) -> float:
    with noise(address, settle_s):
        return latency_ms(address, requests)


if __name__ == "__main__":
    typer.run(main)
