"""Metrics of quotas by the use that they show, with Kafka's names."""

from __future__ import annotations

from kreplog.core.quota_windows import QuotaWindow
from kreplog.core.quotas.entities import DEFAULT, QuotaEntity, QuotaKey, QuotaLimits
from kreplog.core.quotas.quota_manager import ClientQuotaManager
from kreplog.core.replication.replication_quota import ReplicationQuota
from kreplog.core.throttled_replicas import FOLLOWER_THROTTLED_REPLICAS, LEADER_THROTTLED_REPLICAS
from kreplog.server.monitoring.quota_metrics import quota_metrics, replication_metrics

WINDOW = QuotaWindow()


def test_connections_have_the_address_and_clients_their_names() -> None:
    manager = ClientQuotaManager(WINDOW, WINDOW)
    alice, each = QuotaEntity("alice"), QuotaEntity(ip=DEFAULT)
    manager.replace(
        QuotaLimits({alice: {QuotaKey.PRODUCER_BYTE_RATE: 100}, each: {QuotaKey.CONNECTION_CREATION_RATE: 1}})
    )
    manager.record(QuotaKey.PRODUCER_BYTE_RATE, "alice", "app", 2000, 0)
    for _ in range(11):
        manager.record_connection("192.0.2.1", 0)
    found = {name: samples for name, _, _, samples in quota_metrics(manager, 0)}
    connections = "kafka_server_socketservermetrics"
    assert found[f"{connections}_connection_accept_rate"] == ('{ip="192.0.2.1"} 1',)
    assert found[f"{connections}_throttle_time"] == ('{ip="192.0.2.1"} 1000',)
    assert found["kafka_server_produce_byte_rate"] == ('{user="alice",client_id=""} 200',)


def test_replication_has_the_bytes_by_the_second_of_throttled_replicas() -> None:
    leader = ReplicationQuota(1, LEADER_THROTTLED_REPLICAS, 10, WINDOW)
    follower = ReplicationQuota(1, FOLLOWER_THROTTLED_REPLICAS, 10, WINDOW)
    leader.record(500, 0)
    found = {name: samples for name, _, _, samples in replication_metrics(leader, follower, 2000)}
    assert found == {
        "kafka_server_leaderreplication_byte_rate": (" 250",),
        "kafka_server_followerreplication_byte_rate": (" 0",),
    }
