"""Traces of a running cluster: what it looks like, moment by moment, with what its brokers log meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kreplog.console.snapshot import ClusterSnapshot
from kreplog.errors import KreplogError, UsageError
from kreplog.replay import broker_logs, cluster_trace
from kreplog.replay.cluster_trace import ClusterMoment, ClusterTrace, TracedPartition, TracedReplica
from kreplog.replay.recording import Recording
from kreplog.types import TopicPartition

if TYPE_CHECKING:
    from kreplog.console.live import Source

LOOK_S = 0.2
MAX_SECONDS = 600
MAX_PARTITIONS = 50


async def trace(
    source: Source, topics: Sequence[str], seconds: float, stop: asyncio.Event, log_folders: Mapping[int, Path]
) -> Recording:
    """The recording of these topics for some seconds, or until `stop`; `source` is closed at the end.

    log_folders: where the brokers' log files are, by id; empty where they are on other hosts. Raises UsageError for a
    topic that does not exist, or too many partitions; UnreachableError; OSError."""
    began = datetime.now(UTC)
    recording = (await _traced(source, topics, seconds, stop)).recording()
    if log_folders:
        await asyncio.to_thread(_add_logs, recording, log_folders, began)
    recording.limit()
    return recording


def _add_logs(recording: Recording, log_folders: Mapping[int, Path], began: datetime) -> None:
    try:
        logs = broker_logs.record(log_folders, began, datetime.now(UTC) + timedelta(seconds=1))
    except UsageError as error:  # they logged nothing meanwhile, or no JSON
        recording.notes.append(f"Without what the brokers logged: {error}")
    else:
        cluster_trace.merge(recording, logs)


async def _traced(source: Source, topics: Sequence[str], seconds: float, stop: asyncio.Event) -> ClusterTrace:
    try:
        snapshot = await source.snapshot()
        found = ClusterTrace(_partitions(snapshot, topics))
        until = time.monotonic() + seconds
        while not stop.is_set() and time.monotonic() < until and not found.full:
            try:
                found.add(await _moment(source, await source.snapshot(), topics))
            except (KreplogError, OSError):  # none responds: a trace is for that moment, too
                found.add(
                    ClusterMoment(time.time_ns() // 1_000_000, dict.fromkeys(snapshot.brokers, False), -1, {}, {})
                )
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), LOOK_S)  # brokers report to nobody what changes
        return found
    finally:
        await source.close()


def _partitions(snapshot: ClusterSnapshot, topics: Sequence[str]) -> list[str]:
    """Raises UsageError for a topic that does not exist, or too many partitions."""
    if missing := [topic for topic in topics if topic not in snapshot.topics]:
        raise UsageError(f"there is no topic {missing[0]!r} that can be traced: `kreplog topic list` lists them")
    names = [str(TopicPartition(topic, number)) for topic in topics for number in snapshot.topics[topic].partitions]
    if len(names) > MAX_PARTITIONS:
        raise UsageError(
            f"{len(names):,} partitions are more than a page shows: choose topics of {MAX_PARTITIONS} at most"
        )
    return names


async def _moment(source: Source, snapshot: ClusterSnapshot, topics: Sequence[str]) -> ClusterMoment:
    partitions: dict[str, TracedPartition] = {}
    replicas: dict[tuple[int, str], TracedReplica] = {}
    for topic in topics:
        if topic not in snapshot.topics:  # deleted meanwhile
            continue
        rows = snapshot.topics[topic].partitions
        found: Mapping[int, list[dict[str, Any]]] = await source.replicas(topic, rows)
        for number, row in rows.items():
            name = str(TopicPartition(topic, number))
            partitions[name] = TracedPartition(row.leader, row.leader_epoch, row.isr)
            for each in found[number]:
                if each["log_end_offset"] is not None:
                    role = "leader" if each["broker"] == row.leader else "follower"
                    offsets = each["log_start_offset"], each["log_end_offset"], each["high_watermark"]
                    replicas[each["broker"], name] = TracedReplica(role, row.leader_epoch, *offsets)
    brokers = {broker: broker not in snapshot.silent for broker in snapshot.brokers} | dict.fromkeys(
        snapshot.absent, False
    )
    return ClusterMoment(time.time_ns() // 1_000_000, brokers, snapshot.controller, partitions, replicas)
