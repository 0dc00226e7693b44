"""Kafka clients on PyPI that are written in Rust and speak Arrow, where they are installed: the extra `bench-arrow`.

kafkarrow and its forerunner kafkars read, arrow-kafka-pyo3 writes. The latter encodes rows as Avro and registers their
schema first; the registry here is a stand-in on loopback, which is reached once for each topic.
"""

from __future__ import annotations

import importlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

READERS = ("kafkarrow", "kafkars")
WRITER = "arrow_kafka_pyo3"
POLL_MS = 100
EMPTY_POLLS = 600
BATCH_ROWS = 100_000
"""Far above the readers' default, with which they wait longer for each poll."""
FLUSH_MS = 60_000


def find(name: str) -> Any:
    """The module; raises ImportError with the reason where it cannot be used."""
    return importlib.import_module(name)


def read(module: Any, bootstrap: str, topic: str, count: int) -> int:
    """Rows of the topic from its beginning, in batches as the client makes them."""
    topics = [module.SourceTopic.from_earliest(topic)]
    manager = module.ConsumerManager({"bootstrap.servers": bootstrap}, topics, BATCH_ROWS)
    rows = empty = 0
    while rows < count and empty < EMPTY_POLLS:
        batch = manager.poll(POLL_MS)
        rows += batch.num_rows
        empty = 0 if batch.num_rows else empty + 1
    return rows


def write(module: Any, bootstrap: str, registry: str, topic: str, table: pa.Table) -> int:
    """Rows acknowledged by all in-sync replicas, as an idempotent producer writes them."""
    settings = {"enable_idempotence": True, "acks": "all", "max_in_flight": 5}
    sink = module.ArrowKafkaSink(kafka_servers=bootstrap, schema_registry_url=registry, **settings)
    rows: int = sink.consume_arrow(table, topic)
    sink.flush(FLUSH_MS)
    sink.close()
    return rows


class _Registry(BaseHTTPRequestHandler):
    """Takes every schema, as number 1."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.dumps({"id": 1}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: requests are no part of the report."""


@contextmanager
def schema_registry() -> Iterator[str]:
    """Its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Registry)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
