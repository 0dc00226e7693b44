"""TLS beside plaintext at one broker: producing, consuming and connecting by confluent-kafka, in turns.

    python -m benchmarks.bench_tls [--repetitions N] [--quick] [--directory DIR]

The broker has a listener of each, its only partition is in the page cache. In each repetition either protocol produces
the same records with acks=all, and consumes them; both are checked by their digest. Rates are medians; a ratio is that
of TLS to plaintext in the same repetition. Certificates are of the curve P-256, the suite is what the two ends choose.
"""

from __future__ import annotations

import hashlib
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kreplog.cluster.files import free_ports
from kreplog.cluster.local_cluster import LocalCluster

RECORD_BYTES = 1000
WITHIN_S = 120.0

Settings = dict[str, str | int | float | bool]


def with_both_listeners(directory: Path) -> tuple[LocalCluster, dict[str, Settings]]:
    """A new cluster of one broker, and the settings of clients by protocol."""
    cluster = LocalCluster.create(directory, [0], 0, tls=True)
    path = cluster.home(0) / "broker.toml"
    (port,) = free_ports(1)
    secured = cluster.settings(0).listeners[0]
    text = path.read_text()
    path.write_text(text.replace(f'"{secured}"', f'"{secured}", "127.0.0.1:{port}"'))
    tls = directory / "tls"
    return cluster, {
        "PLAINTEXT": {"bootstrap.servers": f"127.0.0.1:{port}"},
        "SSL": {
            "bootstrap.servers": f"127.0.0.1:{secured.port}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(tls / "ca.pem"),
            "ssl.certificate.location": str(tls / "client.pem"),
            "ssl.key.location": str(tls / "client.pem"),
        },
    }


def produce(settings: Settings, topic: str, values: list[bytes]) -> float:
    """Records in a second."""
    producer = Producer({**settings, "acks": "all", "linger.ms": 5, "queue.buffering.max.messages": 1 << 20})
    producer.list_topics(topic, WITHIN_S)
    began = time.perf_counter()
    for value in values:
        producer.produce(topic, value)
    if producer.flush(WITHIN_S):
        raise TimeoutError("not all records are acknowledged")
    return len(values) / (time.perf_counter() - began)


def consume(settings: Settings, topic: str, values: list[bytes]) -> float:
    """Records in a second, each of them checked."""
    consumer = Consumer({**settings, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    digest, count = hashlib.sha256(), 0
    began = time.perf_counter()
    while count < len(values):
        for message in consumer.consume(len(values) - count, WITHIN_S):
            if message.error():
                raise RuntimeError(message.error())
            digest.update(message.value() or b"")
            count += 1
    took = time.perf_counter() - began
    consumer.close()
    if digest.digest() != hashlib.sha256(b"".join(values)).digest():
        raise ValueError(f"{topic}: other records than were produced")
    return count / took


def connect(settings: Settings, times: int) -> float:
    """Connections in a second, each with its metadata."""
    began = time.perf_counter()
    for _ in range(times):
        AdminClient(settings).list_topics(timeout=WITHIN_S)
    return times / (time.perf_counter() - began)


def main(
    repetitions: Annotated[int, typer.Option(min=1, help="Repetitions, of which the median counts.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny: shows that it works, not how fast it is.")] = False,
    directory: Annotated[Path | None, typer.Option(help="Where the cluster is made.")] = None,
) -> None:
    values = [number.to_bytes(8, "big") * (RECORD_BYTES // 8) for number in range(2000 if quick else 100_000)]
    connections = 5 if quick else 50
    rates: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        cluster, clients = with_both_listeners(Path(folder) / "c")
        cluster.start()
        try:
            for repetition in range(repetitions):
                order = list(clients)[:: -1 if repetition % 2 else 1]
                for name in order:
                    topic = f"{name.lower()}-{repetition}"
                    admin = AdminClient(clients[name])
                    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(WITHIN_S)
                    work: dict[str, Callable[[], float]] = {
                        "produce, records/s": partial(produce, clients[name], topic, values),
                        "consume, records/s": partial(consume, clients[name], topic, values),
                        "connect, connections/s": partial(connect, clients[name], connections),
                    }
                    for row, run in work.items():
                        rates.setdefault(row, {}).setdefault(name, []).append(run())
        finally:
            cluster.stop()
    print(f"{len(values)} records of {RECORD_BYTES} B, {repetitions} repetitions, {platform.processor() or 'cpu'}")
    for row, found in rates.items():
        ratios = [ours / plain for ours, plain in zip(found["SSL"], found["PLAINTEXT"], strict=True)]
        medians = {name: round(statistics.median(samples)) for name, samples in found.items()}
        facts = {"TLS to plaintext": round(statistics.median(ratios), 2), "from": round(min(ratios), 2)}
        print(f"{row}: {json.dumps({**medians, **facts, 'to': round(max(ratios), 2)})}")


if __name__ == "__main__":
    typer.run(main)
