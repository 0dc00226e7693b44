"""Metrics of a broker for Prometheus, under Kafka's names (lower case, as its JMX exporter writes them).

Only the counters of counters.py are kept; all else is read from the cores and the logs during a scrape, a few hundred
partitions at a time, so that it never blocks the event loop. The text format is written here, since the samples of the
client library cost twenty times as much, which matters with 10,000 partitions.

    kafka_server_replicamanager_*            this broker's replicas       kafka_controller_*      the cluster's, on
    kafka_server_brokertopicmetrics_*        its traffic                                          the controller alone
    kafka_network_requestmetrics_*           its requests, by API         kafka_log_log_*, kafka_cluster_partition_*,
    kafka_coordinator_group_*, kafka_server_group_coordinator_metrics_*   the groups that it coordinates
    kafka_server_produce_*, _fetch_*, _request_*, _controllermutation_*   the use of client quotas
    kafka_server_sessionexpirelistener_*     its session with the store   kafka_server_fetcherlagmetrics_*  by partition
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from collections.abc import Iterable
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from kreplog.core.broker.broker import BrokerCores
from kreplog.core.controller.controller import Controller
from kreplog.core.memory import MemoryAccount
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.role import Role
from kreplog.server.clock import monotonic_ms
from kreplog.server.handlers.api import Api
from kreplog.server.monitoring.counters import BOUNDS_S, EventCounters, Requests, Traffic
from kreplog.server.monitoring.group_metrics import group_metrics
from kreplog.server.monitoring.health import is_under_replicated, isr_margin
from kreplog.server.monitoring.quota_metrics import quota_metrics, replication_metrics
from kreplog.server.network.serving import Server
from kreplog.server.runtime.pauses import pauses_of
from kreplog.server.runtime.store import StoreLink
from kreplog.server.settings import BrokerSettings
from kreplog.server.storage.hosted_replicas import HostedReplicas
from kreplog.server.storage.log_cleaner import LogCleaner
from kreplog.server.storage.log_manager import LogManager
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MAX_PARTITIONS = 250
"""Partitions that are read in one iteration of the event loop."""

_NAMES = {
    ApiKey.API_VERSIONS: "ApiVersions",
    ApiKey.UPDATE_FEATURES: "UpdateFeatures",
    ApiKey.LEADER_AND_ISR: "LeaderAndIsr",
    ApiKey.INIT_PRODUCER_ID: "InitProducerId",
}


class MetricsSource(Protocol):
    """The parts of a broker that its metrics are read from."""

    settings: BrokerSettings
    manager: ReplicaManager
    controller: Controller
    cores: BrokerCores
    api: Api
    store: StoreLink
    hosted: HostedReplicas
    logs: LogManager
    server: Server
    traffic: Traffic
    event_counters: EventCounters
    memory: MemoryAccount
    started_at: float


async def render(broker: MetricsSource) -> bytes:
    """All metrics, in the text format of Prometheus."""
    lines: list[str] = []
    _add_process(lines, broker)
    broker.traffic.forget_others({partition.topic for partition in broker.manager.partitions})
    _add_traffic(lines, broker.traffic)
    _add_requests(lines, broker.server.requests)
    _add_cleaner(lines, broker.logs.cleaner)
    _add_controller(lines, broker)
    await _add_replicas(lines, broker)
    for name, kind, help, samples in (
        *await group_metrics(broker.cores.groups),
        *quota_metrics(broker.server.client_quotas, monotonic_ms()),
        *replication_metrics(broker.manager.leader_quota, broker.manager.follower_quota, monotonic_ms()),
    ):
        _add(lines, name, kind, help, samples)
    lines.append("")
    return "\n".join(lines).encode()


def _add(lines: list[str], name: str, kind: str, help: str, samples: Iterable[str | float]) -> None:
    """Append a metric in Prometheus' text format. samples: numbers, or labels and a number as text."""
    lines.append(f"# HELP {name} {help}")
    lines.append(f"# TYPE {name} {kind}")
    lines.extend(name + sample if isinstance(sample, str) else f"{name} {sample}" for sample in samples)


def _gauge(lines: list[str], name: str, help: str, *samples: str | float) -> None:
    _add(lines, name, "gauge", help, samples)


def _counter(lines: list[str], name: str, help: str, *samples: str | float) -> None:
    _add(lines, name, "counter", help, samples)


# The process


def _add_process(lines: list[str], broker: MetricsSource) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    server, connected = broker.server, broker.store.connected
    resident, mapped = resident_bytes()
    _gauge(lines, "process_resident_memory_bytes", "Resident memory in bytes.", resident)
    _gauge(lines, "process_resident_file_memory_bytes", "Of that, pages of mapped files, which are page cache.", mapped)
    _counter(lines, "process_cpu_seconds_total", "CPU time in seconds.", round(used.ru_utime + used.ru_stime, 3))
    _gauge(lines, "process_start_time_seconds", "Start of the process since the epoch.", broker.started_at)
    _gauge(lines, "process_open_fds", "Open file descriptors.", open_files())
    _gauge(
        lines,
        "process_max_fds",
        "Maximum number of open file descriptors.",
        resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )
    name = "kafka_server_socketservermetrics"
    _gauge(lines, f"{name}_connection_count", "Connections of clients and brokers.", server.connections)
    denied, text = broker.api.guard.audit.denied, "Operations on resources that ACLs have denied to clients."
    _counter(lines, "kafka_server_authorizer_denied_total", text, denied)
    _counter(lines, f"{name}_connections_displaced_total", "Connections closed for max.connections.", server.refused)
    failed = server.failed_logins.total
    _counter(lines, f"{name}_failed_authentication_total", "Connections closed for want of authentication.", failed)
    _gauge(
        lines,
        f"{name}_memory_held_bytes",
        "Bytes of incomplete requests and unread responses; queued.max.request.bytes is the limit.",
        server.memory.held,
    )
    name = "kafka_server_memory"
    held = [f'{{holder="{holder}"}} {size}' for holder, size in sorted(broker.memory.held.items())]
    _gauge(
        lines, f"{name}_held_bytes", "Bytes held for clients, by holder; queued.max.request.bytes is the limit.", *held
    )
    pauses = pauses_of(asyncio.get_running_loop())
    name = "kafka_server_eventloop"
    _gauge(lines, f"{name}_longestpause_seconds", "Longest event loop iteration since the start.", pauses.longest_s)
    _counter(lines, f"{name}_longpauses_total", "Event loop iterations longer than 0.1 s.", pauses.long)
    name = "kafka_server_sessionexpirelistener"
    _gauge(lines, f"{name}_sessionstate", "1 with a session with the coordination store, 0 without.", int(connected))
    _counter(
        lines, f"{name}_expires_total", "Sessions with the coordination store lost.", broker.event_counters.expired
    )
    _gauge(
        lines,
        "kafka_log_logmanager_offlinelogdirectorycount",
        "Log directories that have failed.",
        len(broker.settings.log_dirs) - sum(not directory.failed for directory in broker.hosted.directories),
    )
    help = "Replicas that are no longer assigned to this broker, until log.stray.retention.ms."
    _gauge(lines, "kafka_log_logmanager_strayreplicacount", help, len(broker.hosted.strays))


def resident_bytes() -> tuple[int, int]:
    """Resident bytes of this process, and those of mapped files; without /proc the peak, and 0."""
    try:
        resident, mapped = Path("/proc/self/statm").read_text().split()[1:3]
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024, 0
    return int(resident) * resource.getpagesize(), int(mapped) * resource.getpagesize()


def open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return len(os.listdir("/dev/fd"))


# Traffic and requests


_TRAFFIC = (
    ("bytesin", "Bytes of batches that producers sent.", attrgetter("bytes_in")),
    ("bytesout", "Bytes of batches that consumers fetched.", attrgetter("bytes_out")),
    ("replicationbytesin", "Bytes of batches fetched from leaders.", attrgetter("bytes_in_replicas")),
    ("replicationbytesout", "Bytes of batches that followers fetched.", attrgetter("bytes_out_replicas")),
    ("messagesin", "Records that producers sent.", attrgetter("messages_in")),
    ("totalproducerequests", "Partitions produced to, by request.", attrgetter("produces")),
    ("failedproducerequests", "Of those, refused or failed.", attrgetter("failed_produces")),
    ("totalfetchrequests", "Partitions of fetch responses.", attrgetter("fetches")),
    ("failedfetchrequests", "Of those, refused or failed.", attrgetter("failed_fetches")),
)


def _add_traffic(lines: list[str], traffic: Traffic) -> None:
    """Totals without a label, deleted topics included, and counts of each topic with the label `topic`."""
    named = [(f'{{topic="{topic}"}}', counts) for topic, counts in sorted(traffic.topics.items())]
    for name, help, value in _TRAFFIC:
        by_topic = [f"{labels} {value(counts)}" for labels, counts in named]
        _counter(lines, f"kafka_server_brokertopicmetrics_{name}_total", help, value(traffic.total), *by_topic)


def request_name(api_key: int, follower: bool) -> str:
    """The name of a request in Kafka's metrics."""
    if api_key == ApiKey.FETCH:
        return "FetchFollower" if follower else "FetchConsumer"
    try:
        return _NAMES.get(ApiKey(api_key)) or ApiKey(api_key).name.title().replace("_", "")
    except ValueError:
        return f"Api{api_key}"


def _add_requests(lines: list[str], requests: Requests) -> None:
    counts, samples = [], []
    for (api_key, follower), times in sorted(requests.times.items()):
        name = request_name(api_key, follower)
        up_to = list(accumulate(times.buckets))
        counts.append(f'{{request="{name}"}} {up_to[-1]}')
        for bound, count in zip((*BOUNDS_S, "+Inf"), up_to, strict=True):
            samples.append(f'_bucket{{request="{name}",le="{bound}"}} {count}')
        samples.append(f'_sum{{request="{name}"}} {times.total_s:.6f}')
        samples.append(f'_count{{request="{name}"}} {up_to[-1]}')
    name = "kafka_network_requestmetrics"
    _add(lines, f"{name}_requests_total", "counter", "Requests answered.", counts)
    help = "Seconds from the arrival of a request to its response."
    _add(lines, f"{name}_totaltime_seconds", "histogram", help, samples)


def _add_cleaner(lines: list[str], cleaner: LogCleaner) -> None:
    name, found = "kafka_log_logcleanermanager", cleaner.statistics
    help = "Replicas that could not be compacted, and are set aside until the broker restarts."
    _gauge(lines, f"{name}_uncleanable_partitions_count", help, len(cleaner.queue.uncleanable))
    _gauge(lines, f"{name}_uncleanable_bytes", "Bytes of these replicas.", cleaner.uncleanable_bytes())
    _gauge(lines, f"{name}_max_dirty_percent", "Dirty share of the dirtiest log.", found.max_dirty_percent)
    since_ms = int(1000 * (time.monotonic() - found.last_run_s))
    _gauge(lines, f"{name}_time_since_last_run_ms", "Time since a cleaner thread looked for dirty logs.", since_ms)
    name = "kafka_log_logcleaner"
    help = "By how much the oldest dirty records are past max.compaction.lag.ms."
    _gauge(lines, f"{name}_max_compaction_delay_secs", help, found.max_delay_s)
    _gauge(lines, f"{name}_max_clean_time_secs", "Duration of the last compaction.", round(found.clean_time_s, 3))
    help = "Bytes that the last compaction left, of those that it read."
    _gauge(lines, f"{name}_cleaner_recopy_percent", help, found.recopy_percent)
    help = "Share of log.cleaner.dedupe.buffer.size, for one thread, that the keys of the last compaction took."
    _gauge(lines, f"{name}_max_buffer_utilization_percent", help, found.buffer_percent)


# The cluster


def _add_controller(lines: list[str], broker: MetricsSource) -> None:
    """Figures of the cluster are 0 on all brokers but the controller, so that sums over brokers are right."""
    controller = broker.controller
    context, active = controller.context, controller.active
    name = "kafka_controller_kafkacontroller"
    figures: tuple[tuple[str, str, int], ...] = (
        ("activecontrollercount", "1 on the controller; 1 over all brokers.", int(active)),
        ("offlinepartitionscount", "Partitions without a leader.", _leaderless(controller)),
        ("globalpartitioncount", "Partitions of the cluster.", len(context.states) if active else 0),
        ("globaltopiccount", "Topics of the cluster.", len(context.topics) if active else 0),
        ("activebrokercount", "Brokers that are registered.", len(context.brokers) if active else 0),
    )
    for suffix, help, value in figures:
        _gauge(lines, f"{name}_{suffix}", help, value)
    name = "kafka_controller_controllerstats"
    counters = broker.event_counters
    _counter(lines, f"{name}_leaderelections_total", "Leaders elected since it became controller.", context.elections)
    _counter(
        lines,
        f"{name}_uncleanleaderelections_total",
        "Of those, from outside the in-sync replicas: committed records may be lost.",
        counters.unclean_elections,
    )


def _leaderless(controller: Controller) -> int:
    context = controller.context
    return (
        sum(not context.is_pending_deletion(partition) for partition in context.leaderless) if controller.active else 0
    )


# The replicas


async def _add_replicas(lines: list[str], broker: MetricsSource) -> None:
    manager = broker.manager
    totals = _ReplicaTotals()
    partitions = list(manager.partitions.items())
    for index in range(0, len(partitions), MAX_PARTITIONS):
        for topic_partition, partition in partitions[index : index + MAX_PARTITIONS]:
            totals.add(topic_partition, partition, broker.hosted.size_of(topic_partition))
        await asyncio.sleep(0)
    name = "kafka_server_replicamanager"
    for suffix, help, value in (
        ("partitioncount", "Replicas on this broker.", len(partitions)),
        ("leadercount", "Partitions that it leads.", totals.leaders),
        ("offlinereplicacount", "Replicas on failed log directories.", totals.offline),
        ("underreplicatedpartitions", "Partitions it leads with replicas out of sync.", totals.under_replicated),
        ("underminisrpartitioncount", "Partitions it leads that take no acks=all.", totals.under_min_isr),
        ("atminisrpartitioncount", "Partitions it leads with no replica in sync to spare.", totals.at_min_isr),
    ):
        _gauge(lines, f"{name}_{suffix}", help, value)
    _gauge(
        lines, "kafka_server_replicafetchermanager_maxlag", "Offsets the furthest follower is behind.", totals.max_lag
    )
    counters = broker.event_counters
    _counter(lines, f"{name}_isrshrinks_total", "In-sync replicas taken out by leaders here.", counters.isr_shrinks)
    _counter(lines, f"{name}_isrexpands_total", "In-sync replicas taken in by leaders here.", counters.isr_expands)
    _counter(lines, f"{name}_failedisrupdates_total", "ISR changes that were refused.", counters.isr_failures)
    lag = "Offsets that a follower is behind, by its leader."
    for name, help, samples in (
        ("kafka_log_log_logendoffset", "Offset of the next record.", totals.ends),
        ("kafka_log_log_logstartoffset", "First offset of the log.", totals.starts),
        ("kafka_log_log_size", "Bytes of all segments.", totals.sizes),
        ("kafka_cluster_partition_highwatermark", "Records below it are committed.", totals.watermarks),
        ("kafka_cluster_partition_insyncreplicascount", "In-sync replicas, by the leader.", totals.in_sync),
        ("kafka_cluster_partition_underreplicated", "1 where replicas are out of sync.", totals.under_replicated_flags),
        ("kafka_server_fetcherlagmetrics_consumerlag", lag, totals.lags),
    ):
        _add(lines, name, "gauge", help, samples)
        await asyncio.sleep(0)


class _ReplicaTotals:
    """Totals and samples of all replicas, collected in one pass."""

    def __init__(self) -> None:
        self.leaders = self.offline = self.under_replicated = self.under_min_isr = self.at_min_isr = self.max_lag = 0
        self.ends: list[str] = []
        self.starts: list[str] = []
        self.sizes: list[str] = []
        self.watermarks: list[str] = []
        self.in_sync: list[str] = []
        self.under_replicated_flags: list[str] = []
        self.lags: list[str] = []

    def add(self, topic_partition: TopicPartition, partition: Partition, size: int) -> None:
        labels = f'topic="{topic_partition.topic}",partition="{topic_partition.partition}"'
        named, log = f"{{{labels}}} ", partition.log
        self.ends.append(f"{named}{log.leo}")
        self.starts.append(f"{named}{log.log_start}")
        self.sizes.append(f"{named}{size}")
        self.watermarks.append(f"{named}{partition.high_watermark}")
        if partition.role is Role.OFFLINE:
            self.offline += 1
        elif partition.role is Role.LEADER:
            self._add_leader(partition, labels, named)

    def _add_leader(self, partition: Partition, labels: str, named: str) -> None:
        in_sync, log_end = len(partition.isr), partition.log.leo
        missing, margin = is_under_replicated(partition), isr_margin(partition)
        self.leaders += 1
        self.under_replicated += missing
        self.under_min_isr += margin < 0
        self.at_min_isr += margin == 0
        self.in_sync.append(f"{named}{in_sync}")
        self.under_replicated_flags.append(f"{named}{int(missing)}")
        for replica in partition.replicas.values():
            lag = max(0, log_end - max(0, replica.leo))
            self.max_lag = max(self.max_lag, lag)
            self.lags.append(f'{{{labels},broker="{replica.broker_id}"}} {lag}')
