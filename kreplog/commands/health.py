"""Health: what makes a cluster degraded, as its brokers say over the Kafka protocol."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kreplog.commands.asking import Brokers
from kreplog.errors import ErrorCode
from kreplog.server.peers import Line
from kreplog.types import NO_LEADER
from kreplog.wire.versions import ApiKey

LOG_DIRS_VERSION = 1
EXAMPLES = 3


def offline_directories(brokers: Brokers, ids: Iterable[int]) -> dict[int, list[str]]:
    """By broker the log directories that it says are offline; brokers that do not answer are left out."""

    async def question(_: int, line: Line) -> list[str]:
        answer = await line.ask(ApiKey.DESCRIBE_LOG_DIRS, LOG_DIRS_VERSION, topics=[])
        return [one.log_dir for one in answer.results if one.error_code == ErrorCode.KAFKA_STORAGE_ERROR]

    return brokers.ask_each(ids, question)


def degraded_partitions(topics: Iterable[Any]) -> list[str]:
    """What is wrong with the partitions of these topics of a Metadata answer: a line for each kind, with examples."""
    leaderless, under_replicated = [], []
    for topic in topics:
        for one in topic.partitions:
            name = f"{topic.name}-{one.partition_index}"
            if one.leader_id == NO_LEADER:
                leaderless.append(name)
            elif not set(one.replica_nodes) <= set(one.isr_nodes):
                under_replicated.append(name)
    kinds = ((leaderless, "without a leader"), (under_replicated, "under-replicated"))
    return [f"{_counted(names)} {what}: {_some(names)}" for names, what in kinds if names]


def _counted(names: list[str]) -> str:
    return "1 partition is" if len(names) == 1 else f"{len(names):,} partitions are"


def _some(names: list[str]) -> str:
    return ", ".join(sorted(names)[:EXAMPLES]) + (", ..." if len(names) > EXAMPLES else "")
