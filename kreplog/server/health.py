"""Health: whether a broker is ready for clients, and what makes it degraded, in words."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from kreplog.core.registration import Registration
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.partition import Partition, Role
from kreplog.server.partitions import ReplicaLogs
from kreplog.server.settings import BrokerSettings
from kreplog.server.store import StoreLink


class Examined(Protocol):
    """The broker, as far as its health depends on it."""

    settings: BrokerSettings
    manager: ReplicaManager
    registration: Registration
    store: StoreLink
    logs: ReplicaLogs


def readiness(broker: Examined) -> tuple[bool, str]:
    """Whether clients are to be sent to it, and a line that begins with "ready", "degraded" or "not ready".

    Degraded is a broker that serves, with less than it should: a load balancer keeps it, an operator looks at it.
    """
    if broker.registration.registered is None:
        why = "it is not registered" if broker.store.connected else "it has no session with the coordination store"
        return False, f"not ready: {why}"
    found = degradations(broker)
    return True, f"degraded: {'; '.join(found)}" if found else "ready"


def degradations(broker: Examined) -> list[str]:
    """What is wrong with its log directories and replicas, and with the partitions that it leads; [] for nothing."""
    usable = {one.path for one in broker.logs.directories if not one.failed}
    wanted = (Path(path).absolute() for path in broker.settings.log_dirs)
    found = [f"log directory {path} is offline" for path in wanted if path not in usable]
    partitions = broker.manager.partitions.values()
    offline = sum(one.role is Role.OFFLINE for one in partitions)
    led = [one for one in partitions if one.role is Role.LEADER]
    counts = (
        (offline, "replicas are offline"),
        (sum(map(is_under_replicated, led)), "partitions led here are under-replicated"),
        (sum(spare_replicas(one) < 0 for one in led), "partitions led here have less than min.insync.replicas in sync"),
    )
    return found + [f"{count} {what}" for count, what in counts if count]


def is_under_replicated(partition: Partition) -> bool:
    return any(one not in partition.isr for one in partition.reassigned_replicas)


def spare_replicas(partition: Partition) -> int:
    """In sync beyond what acks=all takes; below 0 where it is refused."""
    return len(partition.isr) - partition.config.min_isr(len(partition.assigned_replicas))
