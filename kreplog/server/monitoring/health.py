"""Health of a broker: whether clients can use it, and what makes it degraded."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from kreplog.core.registration import Registration
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.role import Role
from kreplog.server.authorization.acl_cache import AclCache
from kreplog.server.runtime.store import StoreLink
from kreplog.server.settings import BrokerSettings
from kreplog.server.storage.hosted_replicas import HostedReplicas


class HealthSource(Protocol):
    """The parts of a broker that its health is read from."""

    settings: BrokerSettings
    manager: ReplicaManager
    registration: Registration
    store: StoreLink
    hosted: HostedReplicas
    acl_cache: AclCache | None


def readiness(broker: HealthSource) -> tuple[bool, str]:
    """Whether clients can use the broker, and a line that begins with "ready", "degraded" or "not ready".

    A degraded broker serves clients, with some of its replicas missing or behind: a load balancer keeps it.
    """
    if broker.registration.registered is None:
        reason = "it is not registered" if broker.store.connected else "it has no session with the coordination store"
        return False, f"not ready: {reason}"
    if broker.acl_cache is not None and not broker.acl_cache.is_ready:
        return False, "not ready: it has not read the ACLs, without which it refuses clients"
    found = degradations(broker)
    return True, f"degraded: {'; '.join(found)}" if found else "ready"


def degradations(broker: HealthSource) -> list[str]:
    """Problems of the broker's log directories and replicas, and of the partitions that it leads; [] for none."""
    online = {directory.path for directory in broker.hosted.directories if not directory.failed}
    configured = (Path(path).absolute() for path in broker.settings.log_dirs)
    found = [f"log directory {path} is offline" for path in configured if path not in online]
    partitions = broker.manager.partitions.values()
    offline = sum(partition.role is Role.OFFLINE for partition in partitions)
    led = [partition for partition in partitions if partition.role is Role.LEADER]
    counts = (
        (offline, "replicas are offline"),
        (sum(map(is_under_replicated, led)), "partitions led here are under-replicated"),
        (
            sum(isr_margin(partition) < 0 for partition in led),
            "partitions led here have less than min.insync.replicas in sync",
        ),
    )
    return found + [f"{count} {problem}" for count, problem in counts if count]


def is_under_replicated(partition: Partition) -> bool:
    """Whether an assigned replica is not in sync."""
    return any(replica not in partition.isr for replica in partition.reassigned_replicas)


def isr_margin(partition: Partition) -> int:
    """Size of the ISR minus min.insync.replicas; negative where acks=all is refused."""
    return len(partition.isr) - partition.config.min_isr(len(partition.assigned_replicas))
