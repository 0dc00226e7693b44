"""Health of a cluster: offline log directories and degraded partitions, by its brokers' answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kreplog.client.admin_client import AdminClient
from kreplog.client.broker_client import BrokerClient
from kreplog.commands.options import counted
from kreplog.errors import ErrorCode
from kreplog.types import NO_LEADER
from kreplog.wire.versions import ApiKey

LOG_DIRS_VERSION = 1

EXAMPLES = 3
"""Partitions that a line names at most."""


def offline_directories(brokers: AdminClient, ids: Iterable[int]) -> dict[int, list[str]]:
    """Offline log directories by broker id, from DescribeLogDirs; brokers that do not answer are left out."""

    async def describe(_: int, line: BrokerClient) -> list[str]:
        response = await line.request(ApiKey.DESCRIBE_LOG_DIRS, LOG_DIRS_VERSION, topics=[])
        return [result.log_dir for result in response.results if result.error_code == ErrorCode.KAFKA_STORAGE_ERROR]

    return brokers.ask_each(ids, describe)


def degraded_partitions(topics: Iterable[Any]) -> list[str]:
    """A line for each kind of degraded partitions, with examples; [] for none. topics: of a Metadata response."""
    leaderless, under_replicated = [], []
    for topic in topics:
        for partition in topic.partitions:
            name = f"{topic.name}-{partition.partition_index}"
            if partition.leader_id == NO_LEADER:
                leaderless.append(name)
            elif not set(partition.replica_nodes) <= set(partition.isr_nodes):
                under_replicated.append(name)
    kinds = ((leaderless, "without a leader"), (under_replicated, "under-replicated"))
    return [_line(names, kind) for names, kind in kinds if names]


def _line(names: list[str], kind: str) -> str:
    examples = ", ".join(sorted(names)[:EXAMPLES]) + (", ..." if len(names) > EXAMPLES else "")
    return f"{counted(len(names), 'partition')} {'is' if len(names) == 1 else 'are'} {kind}: {examples}"
