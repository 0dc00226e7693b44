"""Metrics of quotas, under the names of Kafka's ClientQuotaManagers and ReplicationQuotaManagers."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest

from kreplog.core.quotas.entities import QuotaEntity, QuotaKey
from kreplog.core.quotas.quota_manager import ClientQuotaManager, SensorState
from kreplog.core.replication.replication_quota import ReplicationQuota
from kreplog.server.monitoring.group_metrics import Metric

MAX_CLIENTS = 100
"""Clients of each kind of quota that are shown, those that use most: names come from clients."""

_NAMES = {
    QuotaKey.PRODUCER_BYTE_RATE: ("produce", "byte_rate", "Bytes of Produce requests by the second."),
    QuotaKey.CONSUMER_BYTE_RATE: ("fetch", "byte_rate", "Bytes of records that consumers fetch by the second."),
    QuotaKey.REQUEST_PERCENTAGE: ("request", "request_time", "CPU time of requests, in percent of a processor."),
    QuotaKey.CONTROLLER_MUTATION_RATE: ("controllermutation", "tokens", "Partitions that may be created or deleted."),
    QuotaKey.CONNECTION_CREATION_RATE: (
        "socketservermetrics",
        "connection_accept_rate",
        "Connections that are accepted by the second of an IP address.",
    ),
}


def quota_metrics(manager: ClientQuotaManager, now_ms: int) -> Iterator[Metric]:
    states: dict[QuotaKey, list[SensorState]] = {key: [] for key in QuotaKey}
    for state in manager.states(now_ms):
        states[state.key].append(state)
    for key, (kind, unit, help) in _NAMES.items():
        shown = nlargest(MAX_CLIENTS, states[key], key=_use)
        rates = tuple(f"{_labels(state.entity)} {state.rate:.6g}" for state in shown)
        yield f"kafka_server_{kind}_{unit}", "gauge", f"{help} Clients with a quota that use most.", rates
        times = tuple(f"{_labels(state.entity)} {state.throttle_ms}" for state in shown)
        yield f"kafka_server_{kind}_throttle_time", "gauge", "Time in ms for which these are throttled.", times


def replication_metrics(leader: ReplicationQuota, follower: ReplicationQuota, now_ms: int) -> Iterator[Metric]:
    for name, quota, verb in (("leader", leader, "sent"), ("follower", follower, "fetched")):
        help = f"Bytes by the second {verb} as {name}, of replicas that topics list as throttled."
        yield f"kafka_server_{name}replication_byte_rate", "gauge", help, (f" {quota.rate(now_ms):.6g}",)


def _use(state: SensorState) -> tuple[int, float]:
    """Orders clients by what they use: those that are throttled last, by tokens those that have fewest."""
    uses_tokens = state.key is QuotaKey.CONTROLLER_MUTATION_RATE
    return state.throttle_ms, -state.rate if uses_tokens else state.rate


def _labels(entity: QuotaEntity) -> str:
    if entity.ip is not None:
        return f'{{ip="{_escaped(entity.ip)}"}}'
    return f'{{user="{_escaped(entity.user)}",client_id="{_escaped(entity.client_id)}"}}'


def _escaped(name: str | None) -> str:
    """A label's value, which is hostile."""
    return (name or "").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
