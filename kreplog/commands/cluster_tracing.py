"""`kreplog trace`: a running cluster for some seconds, as a page to step through."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.commands.console import cluster_source
from kreplog.commands.options import App, Bootstrap, CommandConfig, OptionalDir
from kreplog.errors import KreplogError, UsageError
from kreplog.replay import broker_logs, cluster_trace
from kreplog.replay.cluster_trace import ClusterMoment, ClusterTrace, TracedPartition, TracedReplica
from kreplog.replay.page import render
from kreplog.types import TopicPartition, check_topic, counted

if TYPE_CHECKING:
    from kreplog.console.cluster_source import ClusterSource
    from kreplog.console.snapshot import ClusterSnapshot

LOOK_S = 0.2
MAX_SECONDS = 600
MAX_PARTITIONS = 50

trace_app = App()


@trace_app.command()
def trace(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics whose partitions are traced.")],
    html: Annotated[Path, typer.Option("--html", help="File of the page, which any browser opens.")],
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, max=MAX_SECONDS, help="How long; Ctrl-C ends it earlier.")
    ] = 30.0,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Trace a running cluster: leaders, ISRs, offsets of replicas, and with --cluster what the brokers log meanwhile.

    The page is the one of `kreplog cluster replay`."""
    if not html.parent.is_dir():
        raise UsageError(f"--html {html}: there is no directory {html.parent}", path=str(html))
    try:
        source = cluster_source(cluster, bootstrap, command_config)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"kreplog trace needs {error.name}, which is not installed: pip install 'kreplog[console]'"
        ) from error
    began = datetime.now(UTC)
    recording = asyncio.run(_traced(source, [check_topic(topic) for topic in topics], seconds)).recording()
    if bootstrap is None:
        local = LocalCluster(cluster or "")
        folders = {broker: local.home(broker) / "logs" for broker in local.brokers}
        try:
            logs = broker_logs.record(folders, began, datetime.now(UTC) + timedelta(seconds=1))
        except UsageError as error:  # they logged nothing meanwhile, or no JSON
            recording.notes.append(f"Without what the brokers logged: {error}")
        else:
            cluster_trace.merge(recording, logs)
    recording.limit()
    html.write_text(render(recording), encoding="utf-8")
    print(f"{html}: {counted(len(recording.events), 'event')}. {recording.about}")


async def _traced(source: ClusterSource, topics: list[str], seconds: float) -> ClusterTrace:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
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


def _partitions(snapshot: ClusterSnapshot, topics: list[str]) -> list[str]:
    """Raises UsageError for a topic that does not exist, or too many partitions."""
    if missing := [topic for topic in topics if topic not in snapshot.topics]:
        raise UsageError(f"there is no topic {missing[0]!r} that can be traced: `kreplog topic list` lists them")
    names = [str(TopicPartition(topic, number)) for topic in topics for number in snapshot.topics[topic].partitions]
    if len(names) > MAX_PARTITIONS:
        raise UsageError(
            f"{len(names):,} partitions are more than a page shows: choose topics of {MAX_PARTITIONS} at most"
        )
    return names


async def _moment(source: ClusterSource, snapshot: ClusterSnapshot, topics: list[str]) -> ClusterMoment:
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
