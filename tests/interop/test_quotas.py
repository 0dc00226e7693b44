"""Client quotas with a real Kafka: its tools set and show them at a broker of kreplog as at its own, its clients are
throttled there, and both refuse the same requests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.client.admin_client import AdminClient
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core.quotas.quota_requests import ANY, EXACT, OF_DEFAULT
from kreplog.wire.versions import ApiKey
from tests.integration.clusters import admin_of, end
from tests.interop.jvm import CONFIGS, CONSUMER_PERF, HOST, PRODUCER_PERF, Broker, Kafka
from tests.server.network.quota_clients import alteration

pytestmark = pytest.mark.interop

RATE = 100_000
RECORDS = 1500
"""Of 1,000 bytes: half as much again as the quota of ten windows."""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[str]:
    """Address of a broker of kreplog, without quotas."""
    cluster = LocalCluster.create(tmp_path / "c", [0], 0)
    cluster.start()
    try:
        yield cluster.bootstrap()
    finally:
        end(cluster)


@pytest.fixture(scope="module")
def theirs(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a broker of Kafka."""
    broker = Broker(kafka, tmp_path_factory.mktemp("kafka"), "")
    broker.start()
    try:
        yield f"{HOST}:{broker.port}"
    finally:
        broker.stop()


def test_kafka_configs_sets_and_shows_quotas_as_at_kafka(kafka: Kafka, own: str, theirs: str) -> None:
    user, client, ip = (("--entity-type", kind) for kind in ("users", "clients", "ips"))
    alice, app = ("--entity-name", "alice"), ("--entity-name", "app")
    default = ("--entity-default",)
    steps: list[tuple[str, ...]] = [
        ("--alter", "--add-config", "producer_byte_rate=1024,consumer_byte_rate=2048", *client, *app),
        ("--alter", "--add-config", "request_percentage=12.5", *client, *default),
        ("--alter", "--add-config", "controller_mutation_rate=3", *user, *alice),
        ("--alter", "--add-config", "producer_byte_rate=5000", *user, *default, *client, *app),
        ("--alter", "--add-config", "producer_byte_rate=7000", *user, *alice, *client, *default),
        ("--alter", "--add-config", "producer_byte_rate=8000", *user, *default),
        ("--describe", *client),
        ("--describe", *client, *app),
        ("--describe", *client, *default),
        ("--describe", *user),
        ("--describe", *user, *alice),
        ("--describe", *user, *default),
        ("--describe", *user, *client),
        ("--describe", *user, *alice, *client),
        ("--alter", "--add-config", "connection_creation_rate=50", *ip, "--entity-name", "192.0.2.1"),
        ("--alter", "--add-config", "connection_creation_rate=1000", *ip, *default),
        ("--describe", *ip),
        ("--describe", *ip, "--entity-name", "192.0.2.1"),
        ("--describe", *ip, *default),
        ("--alter", "--delete-config", "connection_creation_rate", *ip, *default),
        ("--describe", *ip),
        ("--alter", "--delete-config", "producer_byte_rate", *client, *app),
        ("--alter", "--delete-config", "producer_byte_rate", *user, *default, *client, *app),
        ("--describe", *client),
        ("--describe", *user, *client),
    ]

    def shown(bootstrap: str, step: tuple[str, ...]) -> list[str]:
        return sorted(kafka.run(CONFIGS, "--bootstrap-server", bootstrap, *step).splitlines())

    for step in steps:
        assert shown(own, step) == shown(theirs, step), step
    assert any("request_percentage=12.5" in line for line in shown(own, ("--describe", *client)))
    shown(
        own, ("--alter", "--delete-config", "request_percentage", *client, *default)
    )  # for the clients of other tests


def test_both_refuse_the_same_requests(own: str, theirs: str) -> None:
    quota = {"producer_byte_rate": 1024.0}
    alterations: list[dict[str, Any]] = [
        alteration({"user": "refused"}, **quota),
        alteration({"user": "refused"}, producer_byte_rate=None, consumer_byte_rate=None),
        alteration({}, **quota),
        alteration({"group": "a"}, **quota),
        alteration({"user": ""}, **quota),
        alteration({"ip": "127.0.0.1", "user": "a"}, **quota),
        alteration({"user": "a"}, unknown=1.0),
        alteration({"user": "a"}, producer_byte_rate=1.5),
        alteration({"client-id": "a"}, connection_creation_rate=1.0),
        alteration({"ip": "127.0.0.1"}, **quota),
        alteration({"ip": "127.0.0.1"}, connection_creation_rate=1.5),
        alteration({"ip": "no address"}, connection_creation_rate=5.0),
    ]
    filters: list[list[tuple[str, int, str | None]]] = [
        [],
        [("", ANY, None)],
        [("group", ANY, None)],
        [("user", EXACT, None)],
        [("user", ANY, "a")],
        [("user", OF_DEFAULT, "a")],
        [("user", ANY, None), ("user", ANY, None)],
        [("user", 3, None)],
        [("ip", ANY, None), ("user", ANY, None)],
        [("ip", EXACT, "192.0.2.77")],
        [("user", EXACT, "nobody"), ("client-id", OF_DEFAULT, None)],
    ]

    def answers(bootstrap: str) -> list[tuple[int, bool]]:
        host, port = bootstrap.split(",")[0].rsplit(":", 1)
        with asyncio.Runner() as runner:
            admin = AdminClient(runner, [f"{host}:{port}"])
            found = []
            for entry in alterations:
                for validate_only in (True, False):
                    response = admin.request(
                        ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[entry], validate_only=validate_only
                    )
                    (result,) = response.entries
                    found.append((result.error_code, result.error_message is None))
            for components in filters:
                given = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
                response = admin.request(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, components=given, strict=True)
                found.append((response.error_code, response.entries is None))
        return found

    assert answers(own) == answers(theirs)


def test_kafkas_clients_are_throttled_and_lose_nothing(kafka: Kafka, own: str, tmp_path: Path) -> None:
    with admin_of(own) as admin:
        admin.create_topics({"events": {"num_partitions": 1, "replication_factor": 1}}, wait_for_metadata=True)
    quotas = f"producer_byte_rate={RATE},consumer_byte_rate={RATE}"
    of_client = ("--entity-type", "clients", "--entity-name", "perf")
    kafka.run(CONFIGS, "--bootstrap-server", own, "--alter", "--add-config", quotas, *of_client)
    config = tmp_path / "client.properties"
    config.write_text(f"bootstrap.servers={own}\nclient.id=perf\n")
    produced = kafka.run(
        *(PRODUCER_PERF, "--topic", "events", "--num-records", str(RECORDS), "--record-size", "1000"),
        *("--throughput", "-1", "--producer.config", config, "--print-metrics"),
    )
    assert f"{RECORDS} records sent" in produced
    assert throttle_time_ms("produce-throttle-time-max", produced) > 0
    consumed = kafka.run(
        *(CONSUMER_PERF, "--bootstrap-server", own, "--topic", "events", "--messages", str(RECORDS)),
        *("--consumer.config", config, "--print-metrics", "--timeout", "60000"),
    )
    assert f", {RECORDS}, " in consumed
    assert throttle_time_ms("fetch-throttle-time-max", consumed) > 0


def throttle_time_ms(name: str, metrics: str) -> float:
    """A metric of what Kafka's tool has printed."""
    (value,) = re.findall(rf"{name}:\{{[^}}]*\}}\s*:\s*([\d.]+)", metrics)
    return float(value)
