"""The figures of brokers: read from real metrics, from what is none, and from a broker that is gone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kreplog.cluster.files import free_ports
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.commands.console import _metrics
from kreplog.console import broker_metrics
from kreplog.console.broker_metrics import FIGURES, BrokerMetrics, figures, with_rates
from tests.server.brokers import serving, until_controlled


@contextmanager
def answering(*bodies: bytes) -> Iterator[str]:
    """host:port of a server whose responses are these, one after the other, and the last again and again."""
    left = list(bodies)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(left.pop(0) if len(left) > 1 else left[0])

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_broker_has_all_figures(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving(tmp_path, 1, metrics_listener="127.0.0.1:0") as (broker,):
            await until_controlled(broker)
            assert broker.metrics is not None
            metrics = BrokerMetrics({1: str(broker.metrics.address)})
            found = (await metrics.read())["brokers"][1]
            requests = {name for name in FIGURES.values() if name.endswith(("_sum", "_count"))}
            assert set(FIGURES.values()) - requests <= set(found)  # nothing is requested yet
            assert found["cpu_s"] > 0 and found["bytes_in"] == 0

    asyncio.run(run())


def test_figures_of_requests() -> None:
    text = (
        'kafka_network_requestmetrics_totaltime_seconds_sum{request="Produce"} 1.5\n'
        'kafka_network_requestmetrics_totaltime_seconds_count{request="Produce"} 3\n'
        'kafka_network_requestmetrics_totaltime_seconds_count{request="Metadata"} 9\n'
        "kafka_server_brokertopicmetrics_bytesin_total 7\n"
        'kafka_server_brokertopicmetrics_bytesin_total{topic="t"} 8\n'
        "process_cpu_seconds_total none\n"
        "# HELP process_cpu_seconds_total CPU 1\n\n"
    )
    assert figures(text) == {"produce_sum": 1.5, "produce_count": 3.0, "bytes_in": 7.0}


def test_rates_of_counters_that_grow_and_of_those_that_were_reset() -> None:
    before = {"bytes_in": 100.0, "bytes_out": 50.0, "cpu_s": 1.0, "produce_sum": 1.0, "produce_count": 10.0}
    now = {"bytes_in": 300.0, "bytes_out": 10.0, "cpu_s": 2.0, "produce_sum": 1.5, "produce_count": 15.0}
    assert with_rates(now, before, 2.0) == {
        **now,
        "bytes_in_per_s": 100.0,
        "cpu_share": 0.5,
        "produce_mean_s": 0.1,
        "fetch_mean_s": 0.0,
        "replicate_mean_s": 0.0,
    }
    assert with_rates(now, {}, 2.0) == now


def test_rates_are_of_two_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_metrics, "MIN_AGE_S", 0.0)
    monkeypatch.setattr(broker_metrics, "SHARE", 1e9)

    async def run(address: str) -> None:
        metrics = BrokerMetrics({0: address})
        assert "cpu_share" not in (await metrics.read())["brokers"][0]
        assert (await metrics.read())["brokers"][0]["cpu_share"] > 0
        monkeypatch.setattr(broker_metrics, "MAX_INTERVAL_S", 0.0)
        assert "cpu_share" not in (await metrics.read())["brokers"][0]  # nobody looked for long

    with answering(*(b"process_cpu_seconds_total %d\n" % second for second in (1, 2, 3))) as address:
        asyncio.run(run(address))


def test_a_broker_that_is_gone_and_one_that_floods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_metrics, "MAX_BYTES", 1000)
    (closed,) = free_ports(1)

    async def run(flooding: str, sound: str) -> None:
        metrics = BrokerMetrics({0: f"127.0.0.1:{closed}", 1: flooding, 2: sound})
        found = (await metrics.read())["brokers"]
        assert str(closed) in found[0]["error"] and "more than 1,000 bytes" in found[1]["error"]
        assert found[2] == {"cpu_s": 1.0}
        assert (await metrics.read())["brokers"] is found  # pages share it for a while

    with answering(b"x" * 5000) as flooding, answering(b"process_cpu_seconds_total 1\n", b"") as sound:
        asyncio.run(run(flooding, sound))


def test_where_a_clusters_brokers_serve_metrics(tmp_path: Path) -> None:
    cluster = LocalCluster.create(tmp_path / "c", [0, 1, 2], 0)
    for broker, line in ((0, '"metrics.listener" = "127.0.0.1:9404"'), (2, '"no.such.setting" = 1')):
        path = cluster.home(broker) / "broker.toml"
        path.write_text(f"{path.read_text()}\n{line}\n")
    assert _metrics(cluster) == {0: "127.0.0.1:9404"}
