"""Metrics: what a scrape says is what has happened, in a form that Prometheus's own parser takes; hostile askers."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")
pytest.importorskip("prometheus_client.parser", reason="needs prometheus-client, the extra `dev`")

import kreplog
from kreplog._native.batch import build
from kreplog.core.effects import Send
from kreplog.errors import ErrorCode, UsageError
from kreplog.server.broker import Broker
from kreplog.server.monitoring.counters import Requests
from kreplog.server.monitoring.exporter import MAX_CONNECTIONS
from kreplog.server.monitoring.health import readiness
from kreplog.server.monitoring.metrics import request_name
from kreplog.server.settings import load
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey
from tests.server.brokers import eventually, serving
from tests.server.test_broker import TP, Client

CONTROLLER = "kafka_controller_kafkacontroller"
STATS = "kafka_controller_controllerstats"

ANYWHERE = "127.0.0.1:0"

Metrics = dict[tuple[str, ...], float]
"""By name and the values of the labels."""


async def http(broker: Broker, request: bytes) -> bytes:
    """The whole answer; empty where there is none."""
    address = broker.metrics.address
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(request)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def scrape(broker: Broker) -> Metrics:
    head, _, body = (await http(broker, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    from prometheus_client import parser

    found: Metrics = {}
    for family in parser.text_string_to_metric_families(body.decode()):
        assert family.documentation
        assert family.type in ("gauge", "counter", "histogram"), family
        for sample in family.samples:
            found[sample.name, *sample.labels.values()] = sample.value
    return found


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with kreplog.Log.open(tmp_path_factory.mktemp("source") / "source-0") as log:
        log.append_many([b"one", b"two", b"three"])
        return bytes(log.fetch(0).data)


def test_metrics_of_a_broker(tmp_path: Path, batch: bytes) -> None:
    async def main() -> None:
        async with serving(tmp_path, 1, metrics_listener=ANYWHERE) as (broker,):
            client = Client(broker)
            assert await client.create("topic") == 0
            for _ in range(2):
                await client.produce(batch)
            await client.produce(batch, at=TopicPartition("none", 0))
            (fetched,) = (await client.fetch()).partitions
            assert len(fetched.records) == 2 * len(batch)
            result = await scrape(broker)
            await client.call(ApiKey.DELETE_TOPICS, 4, topic_names=["topic"], timeout_ms=10_000)
            async with asyncio.timeout(30):
                while broker.manager.partitions:
                    await asyncio.sleep(0.01)  # the replica goes after the client was answered
            later = await scrape(broker)
            client.peer.close()
        traffic = "kafka_server_brokertopicmetrics"
        for name in ("bytesin", "bytesout", "messagesin"):
            assert result[f"{traffic}_{name}_total", "topic"] == result[f"{traffic}_{name}_total",]
            assert later[f"{traffic}_{name}_total",] == result[f"{traffic}_{name}_total",]
        assert result[f"{traffic}_totalproducerequests_total", "topic"] == 2
        assert {tuple(labels) for name, *labels in result if name.startswith(traffic)} == {(), ("topic",)}
        assert {tuple(labels) for name, *labels in later if name.startswith(traffic)} == {()}
        assert result[f"{traffic}_bytesin_total",] == result[f"{traffic}_bytesout_total",] == 2 * len(batch)
        assert result[f"{traffic}_messagesin_total",] == 6
        assert result[f"{traffic}_totalproducerequests_total",] == 3
        assert result[f"{traffic}_failedproducerequests_total",] == 1
        assert result[f"{traffic}_replicationbytesin_total",] == result[f"{traffic}_failedfetchrequests_total",] == 0
        assert result["kafka_network_requestmetrics_requests_total", "Produce"] == 3
        assert result["kafka_network_requestmetrics_totaltime_seconds_count", "FetchConsumer"] == 1
        assert result["kafka_network_requestmetrics_totaltime_seconds_bucket", "Produce", "+Inf"] == 3
        assert result["kafka_network_requestmetrics_totaltime_seconds_sum", "CreateTopics"] > 0
        assert result["kafka_log_log_logendoffset", "topic", "0"] == 6
        assert result["kafka_log_log_size", "topic", "0"] == 2 * len(batch)
        assert result["kafka_cluster_partition_highwatermark", "topic", "0"] == 6
        for name in (
            "replicamanager_partitioncount",
            "replicamanager_leadercount",
            "sessionexpirelistener_sessionstate",
        ):
            assert result[f"kafka_server_{name}",] == 1
        assert result["kafka_server_replicamanager_underreplicatedpartitions",] == 0
        assert result["kafka_server_leaderreplication_byte_rate",] == 0
        assert result["kafka_server_followerreplication_byte_rate",] == 0
        assert result["kafka_controller_kafkacontroller_activecontrollercount",] == 1
        assert result["kafka_controller_kafkacontroller_offlinepartitionscount",] == 0
        assert result["kafka_server_socketservermetrics_connection_count",] >= 1
        assert result["kafka_log_logmanager_offlinelogdirectorycount",] == 0
        assert 10 << 20 < result["process_resident_memory_bytes",] < 4 << 30

    asyncio.run(main())


def test_metrics_of_the_cleaner(tmp_path: Path) -> None:
    """Under the names of Kafka's LogCleaner and LogCleanerManager."""
    settings = {"cleanup.policy": "compact", "segment.bytes": "1000", "min.cleanable.dirty.ratio": "0.01"}
    topic = {"name": TP.topic, "num_partitions": 1, "replication_factor": 1, "assignments": []}
    configs = [{"name": name, "value": value} for name, value in settings.items()]
    cleaner, manager = "kafka_log_logcleaner", "kafka_log_logcleanermanager"

    async def main() -> None:
        buffer = {"log_cleaner_backoff_ms": 10, "log_cleaner_dedupe_buffer_size": 2400}
        async with serving(tmp_path, 1, metrics_listener=ANYWHERE, **buffer) as (broker,):
            client = Client(broker)
            before = await scrape(broker)
            assert before[f"{cleaner}_max_buffer_utilization_percent",] == 0
            topics = [topic | {"configs": configs}]
            await client.call(ApiKey.CREATE_TOPICS, 5, topics=topics, timeout_ms=10_000, validate_only=False)
            records = build([b"v" * 100] * 5, keys=[b"%d" % number for number in range(5)])
            for _ in range(20):
                await client.produce(records)

            async def is_compacted() -> bool:
                found = await scrape(broker)
                after.update(found)
                return found[f"{cleaner}_max_buffer_utilization_percent",] > 0

            after: Metrics = {}
            await eventually(is_compacted)
            assert after[f"{cleaner}_max_buffer_utilization_percent",] == 5  # 5 keys of 24 bytes in 2,400
            assert after[f"{cleaner}_max_clean_time_secs",] >= 0
            assert 0 < after[f"{cleaner}_cleaner_recopy_percent",] <= 100
            assert after[f"{cleaner}_max_compaction_delay_secs",] == 0
            assert after[f"{manager}_uncleanable_partitions_count",] == after[f"{manager}_uncleanable_bytes",] == 0
            assert 0 <= after[f"{manager}_max_dirty_percent",] <= 100
            assert after[f"{manager}_time_since_last_run_ms",] >= 0
            client.peer.close()

    asyncio.run(main())


def test_a_follower_that_lags_and_catches_up(tmp_path: Path, batch: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with serving(tmp_path, 1, 2, metrics_listener=ANYWHERE, replica_lag_time_max_ms=300) as brokers:
            client = Client(brokers[0])
            await eventually(lambda: _knows(client, 2))
            controllers = [
                broker for broker in brokers if await _says(broker, f"{CONTROLLER}_activecontrollercount", 1)
            ]
            (controller,) = (follower,) = controllers
            (leader,) = (broker for broker in brokers if broker is not controller)
            assigned = [{"partition_index": 0, "broker_ids": [leader.id, follower.id]}]
            topic = {"name": "topic", "num_partitions": -1, "replication_factor": -1, "assignments": assigned}
            topics = [{**topic, "configs": []}]
            answer = await client.call(ApiKey.CREATE_TOPICS, 5, topics=topics, timeout_ms=10_000, validate_only=False)
            assert answer.topics[0].error_code == 0
            client.peer.close()
            client = Client(leader)
            (answer,) = (await client.produce(batch)).partitions
            assert answer.error is ErrorCode.NONE
            assert (await scrape(follower))["kafka_server_brokertopicmetrics_replicationbytesin_total",] == len(batch)
            assert (await scrape(leader))["kafka_server_brokertopicmetrics_replicationbytesout_total",] == len(batch)

            held: list[Send] = []
            with monkeypatch.context() as patch:
                patch.setattr(follower.senders.fetches, "send", held.append)
                await client.produce(batch, acks=1)
                await eventually(lambda: _says(leader, "kafka_server_replicamanager_isrshrinks_total", 1))
                result = await scrape(leader)
                assert result["kafka_server_replicamanager_underreplicatedpartitions",] == 1
                assert result["kafka_cluster_partition_underreplicated", "topic", "0"] == 1
                assert result["kafka_cluster_partition_insyncreplicascount", "topic", "0"] == 1
                assert result["kafka_server_replicafetchermanager_maxlag",] == 3
                assert result["kafka_server_fetcherlagmetrics_consumerlag", "topic", "0", str(follower.id)] == 3
            for effect in held:
                follower.senders.fetches.send(effect)
            await eventually(lambda: _says(leader, "kafka_server_replicamanager_isrexpands_total", 1))
            result = await scrape(leader)
            assert result["kafka_server_replicamanager_underreplicatedpartitions",] == 0
            assert result["kafka_server_replicafetchermanager_maxlag",] == 0
            client.peer.close()
            assert await _says(controller, f"{STATS}_leaderelections_total", 0)
            leader.stop()
            await eventually(lambda: _says(controller, f"{STATS}_leaderelections_total", 1))
            assert await _says(controller, f"{STATS}_uncleanleaderelections_total", 0)

    asyncio.run(main())


async def _says(broker: Broker, name: str, value: float) -> bool:
    return (await scrape(broker))[name,] == value


async def _knows(client: Client, brokers: int) -> bool:
    return len((await client.call(ApiKey.METADATA, 9, topics=None)).brokers) == brokers


def test_readiness(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, 1, metrics_listener=ANYWHERE) as (broker,):
            client = Client(broker)
            assert await client.create("topic") == 0
            client.peer.close()
            ready = await http(broker, b"GET /ready HTTP/1.1\r\n\r\n")
            assert ready.startswith(b"HTTP/1.1 200 ") and ready.endswith(b"\r\nready\n")
            partition, directory = broker.manager.partitions[TopicPartition("topic", 0)], broker.hosted.directories[0]
            partition.isr = ()
            few = "partitions led here have less than min.insync.replicas in sync"
            assert readiness(broker) == (True, f"degraded: 1 partitions led here are under-replicated; 1 {few}")
            partition.isr, directory.failed = (1,), True
            assert readiness(broker) == (True, f"degraded: log directory {directory.path} is offline")
            directory.failed, registered = False, broker.registration.registered
            broker.registration.registered = None
            unready = await http(broker, b"GET /ready HTTP/1.1\r\n\r\n")
            assert unready.startswith(b"HTTP/1.1 503 ") and unready.endswith(b"\r\nnot ready: it is not registered\n")
            broker.registration.registered = registered

    asyncio.run(main())


def test_unknown_paths_bad_requests_and_slow_clients(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, 1, metrics_listener=ANYWHERE) as (broker,):
            assert (await http(broker, b"GET / HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404")
            assert (await http(broker, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405")
            head = await http(broker, b"HEAD /metrics HTTP/1.1\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200") and head.endswith(b"\r\n\r\n")
            for hostile in (b"\x16\x03\x01\0\xf1\r\n\r\n", b"GET /metrics" + b"x" * 100_000):
                assert b"200 OK" not in await http(broker, hostile)
            address = broker.metrics.address
            slow = [await asyncio.open_connection(address.host, address.port) for _ in range(MAX_CONNECTIONS)]
            for _, writer in slow:
                writer.write(b"GET /met")
            for _ in range(MAX_CONNECTIONS):
                assert await _answers(broker), "a slow connection is closed for a new one"
            for reader, _ in slow:
                assert await reader.read() == b"", "no more than a handful at once"
            for _, writer in slow:
                writer.close()

    asyncio.run(main())


async def _answers(broker: Broker) -> bool:
    return b"200 OK" in await http(broker, b"GET /metrics HTTP/1.1\r\n\r\n")


def test_metrics_are_off_by_default(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, 1) as (broker,):
            assert not broker.metrics.address.host

    asyncio.run(main())


def test_an_address_in_use_is_reported_with_its_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {
            "broker.id": 1,
            "listeners": "127.0.0.1:0",
            "log.dirs": f"{tmp_path}/data",
            "coordination": f"embedded:{tmp_path}/store",
            "metrics.listener": f"127.0.0.1:{taken.getsockname()[1]}",
        }

        async def main() -> None:
            await Broker(load(names, None, {})).run()

        with pytest.raises(UsageError, match=r"another process listens there; .* setting metrics\.listener"):
            asyncio.run(main())


def test_every_request_has_a_name_and_every_time_a_class() -> None:
    names = [request_name(key, False) for key in ApiKey]
    assert len(set(names)) == len(names)
    assert {"Produce", "FetchConsumer", "LeaderAndIsr", "ApiVersions"} < set(names)
    requests = Requests()
    for began in (0.0, float("inf")):
        requests.answered(ApiKey.PRODUCE, False, began)
    assert requests.times[ApiKey.PRODUCE, False].buckets[0] == 1
    assert requests.times[ApiKey.PRODUCE, False].buckets[-1] == 1


def test_metrics_of_groups(tmp_path: Path) -> None:
    async def main() -> None:
        settings = {"offsets_topic_num_partitions": 3, "offsets_topic_replication_factor": 1}
        async with serving(tmp_path, 1, metrics_listener=ANYWHERE, **settings) as (broker,):
            client = Client(broker)
            assert await client.create("topic") == 0

            async def is_coordinated() -> bool:
                found = await client.call(ApiKey.FIND_COORDINATOR, 3, key="group", key_type=0)
                listed = await client.call(ApiKey.LIST_GROUPS, 3)
                return not found.error_code and not listed.error_code and len(broker.cores.groups.shards) == 3

            await eventually(is_coordinated)
            name = "kafka_coordinator_group_groupmetadatamanager"
            before = await scrape(broker)
            assert before[f"{name}_numgroups",] == before[f"{name}_numpartitionsloading",] == 0
            commit = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
            response = await client.call(
                ApiKey.OFFSET_COMMIT,
                2,
                group_id="group",
                generation_id_or_member_epoch=-1,
                member_id="",
                retention_time_ms=-1,
                topics=[{"name": "topic", "partitions": [commit]}],
            )
            assert response.topics[0].partitions[0].error_code == 0
            after = await scrape(broker)
            assert after[f"{name}_numgroups",] == after[f"{name}_numgroupsempty",] == after[f"{name}_numoffsets",] == 1
            assert after[f"{name}_numgroupsstable",] == 0
            counted = "kafka_server_group_coordinator_metrics"
            assert after[f"{counted}_offset_commit_count_total",] == 1
            await client.call(ApiKey.DELETE_GROUPS, 1, groups_names=["group"])
            later = await scrape(broker)
            assert later[f"{name}_numgroups",] == 0
            assert later[f"{counted}_offset_deletion_count_total",] == 1
            response = await client.call(
                ApiKey.CONSUMER_GROUP_HEARTBEAT,
                1,
                group_id="consumers",
                member_id="m",
                member_epoch=0,
                rebalance_timeout_ms=60_000,
                subscribed_topic_names=["topic"],
                topic_partitions=[],
            )
            assert response.error_code == 0
            last = await scrape(broker)
            assert last[f"{name}_numgroups",] == last[f"{counted}_group_count", "classic"] == 0
            assert last[f"{counted}_group_count", "consumer"] == 1
            assert last[f"{counted}_consumer_group_count", "stable"] == 1
            assert last[f"{counted}_consumer_group_count", "empty"] == 0
            assert last[f"{counted}_consumer_group_rebalance_count_total",] == 1
            client.peer.close()

    asyncio.run(main())
