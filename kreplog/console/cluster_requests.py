"""What a page requests of a cluster: records, groups, settings, users, ACLs. Each returns JSON, by blocking clients.

A function raises UsageError for parameters that it cannot use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from kreplog.client import described_configs
from kreplog.client.acl_admin import describe_acls
from kreplog.client.group_facts import read_group
from kreplog.client.log_dirs import offline_directories, replica_sizes
from kreplog.client.offset_lookup import list_offsets
from kreplog.client.partition_batches import fetch_batches, leader_of
from kreplog.client.user_admin import users
from kreplog.console.client_threads import ThreadClients
from kreplog.console.group_lag_times import add_lag_times
from kreplog.console.lag_history import LagHistory
from kreplog.console.lag_times import LagTimes
from kreplog.console.parameters import Parameters, number_in, partition_in, topic_in
from kreplog.console.record_pages import FETCH_BYTES, field_of, read_page
from kreplog.console.snapshot import TopicSnapshot
from kreplog.core.messages import EARLIEST, LATEST
from kreplog.core.security.acls import AclFilter
from kreplog.errors import UsageError
from kreplog.types import TopicPartition

MAX_SIZES = 200
"""Partitions whose sizes a request may have."""

REQUEST_S = 10.0
"""How long a coordinator or leader may be looked for."""


def deadline() -> float:
    return time.monotonic() + REQUEST_S


# Records


def records(clients: ThreadClients, parameters: Parameters) -> dict[str, Any]:
    """As read_page."""
    at = partition_in(parameters)
    leader = leader_of(clients.admin, at)

    def offset_at(timestamp: int) -> int | None:
        found = list_offsets(clients.connections, [at], timestamp, deadline())[at]
        return None if found is None else found.offset

    def fetch(offset: int) -> memoryview:
        return memoryview(fetch_batches(clients.admin, leader, at, offset, FETCH_BYTES).records)

    return read_page(parameters, offset_at(EARLIEST) or 0, offset_at(LATEST) or 0, offset_at, fetch)


def record_field(clients: ThreadClients, parameters: Parameters) -> bytes | None:
    """The whole `field`, "key" or "value", of the record at `offset`."""
    at, offset = partition_in(parameters), number_in(parameters, "offset")
    fetched = fetch_batches(clients.admin, leader_of(clients.admin, at), at, offset, 1)
    return field_of(memoryview(fetched.records), offset, parameters.get("field", "value"))


# Groups


def group(clients: ThreadClients, parameters: Parameters, times: LagTimes, history: LagHistory) -> dict[str, Any]:
    """As read_group, with lags in time; and where `history` is requested, the last lags."""
    name = parameters.get("group", "")
    facts = read_group(clients.connections, name, deadline)
    if facts is None:
        raise UsageError(f"there is no group {name!r} with members or offsets now")
    add_lag_times(clients, {name: facts}, times)
    if "history" in parameters:
        facts["history"] = history.add(name, time.time_ns() // 1_000_000, facts["offsets"])
    return facts


# Settings, users, ACLs


def topic_settings(clients: ThreadClients, parameters: Parameters) -> dict[str, Any]:
    """All settings of a topic, with where each is from."""
    topic = topic_in(parameters)
    return {"settings": described_configs.topic_settings(clients.admin, topic)}


def sizes(clients: ThreadClients, parameters: Parameters, topics: Mapping[str, TopicSnapshot]) -> dict[str, Any]:
    """Bytes of the replicas of `partitions` of a topic, "0,1,2", by partition and broker. topics: as they were last
    seen, since the metadata of a topic with thousands of partitions take a broker some time."""
    topic = topic_in(parameters)
    numbers = parameters.get("partitions", "").split(",")[:MAX_SIZES]
    wanted = {number_in({"partition": text}, "partition") for text in numbers}
    by_broker: dict[int, list[TopicPartition]] = {}
    rows = topics[topic].partitions if topic in topics else {}
    for number in wanted & rows.keys():
        for broker in rows[number].replicas:
            by_broker.setdefault(broker, []).append(TopicPartition(topic, number))
    clients.admin.metadata(())
    found: dict[int, dict[int, int]] = {}
    for broker, replicas in replica_sizes(clients.admin, by_broker).items():
        for at, size in replicas.items():
            found.setdefault(at.partition, {})[broker] = size
    return {"sizes": found}


def broker_settings(clients: ThreadClients, parameters: Parameters) -> dict[str, Any]:
    """All settings of a broker that it reports, and its offline log directories."""
    broker = number_in(parameters, "broker")
    clients.admin.metadata(())
    settings = described_configs.broker_settings(clients.admin, broker)
    return {"settings": settings, "offline": offline_directories(clients.admin, [broker]).get(broker, [])}


def acls(clients: ThreadClients, _: Parameters) -> dict[str, Any]:
    found = [
        {
            "resource": f"{acl.resource_type.name} {acl.pattern_type.name} {acl.name}",
            "principal": acl.principal,
            "host": acl.host,
            "operation": acl.operation.name,
            "permission": acl.permission.name,
        }
        for acl in describe_acls(clients.admin, AclFilter())
    ]
    return {"acls": found}


def known_users(clients: ThreadClients, _: Parameters) -> dict[str, Any]:
    found = sorted(users(clients.admin).items())
    return {"users": [{"user": user, "mechanisms": mechanisms} for user, mechanisms in found]}


READS: dict[str, Callable[[ThreadClients, Parameters], dict[str, Any]]] = {
    "records": records,
    "topic-settings": topic_settings,
    "broker-settings": broker_settings,
    "acls": acls,
    "users": known_users,
}
"""By the name in /api/<name>."""
