"""ClusterSource: a running cluster, of kreplog or Apache Kafka, as the console shows it; over Kafka's protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kreplog.client.broker_client import BrokerClient
from kreplog.client.degraded_partitions import degraded_partitions
from kreplog.client.record_times import RecordAt
from kreplog.client.replica_rows import replica_rows
from kreplog.client.replica_states import replica_states
from kreplog.console.acts import perform
from kreplog.console.broker_metrics import BrokerMetrics
from kreplog.console.client_threads import ClientThreads, Connect, ThreadClients
from kreplog.console.cluster_requests import READS, group, record_field, sizes
from kreplog.console.group_lags import GroupLags
from kreplog.console.lag_history import LagHistory
from kreplog.console.lag_times import Lacking, LagTimes
from kreplog.console.parameters import Parameters
from kreplog.console.snapshot import BrokerRow, ClusterSnapshot, PartitionRow, TopicSnapshot
from kreplog.console.topic_rates import TopicRates
from kreplog.errors import CoordinationError, ErrorCode, UsageError
from kreplog.types import TopicPartition
from kreplog.wire import generic
from kreplog.wire.versions import ApiKey

REQUEST_THREADS = 4
SHARE, MAX_AGE_S = 0.01, 5.0
"""The most of a broker's processor that reading the metadata takes, as long as they are not older than this."""

MAX_LOG_ENDS = 50_000
"""Replicas whose last log end offsets are remembered, for when their broker does not respond."""

PROBE_WAIT_S = 0.2
"""How long a snapshot waits for brokers to respond: one that hangs does not hold up what others report."""


class ClusterSource:
    """A running cluster. connect: as of ClientThreads. cluster_words: the options of a command that name the cluster.
    metrics: host:port where brokers serve metrics, by id. controller_epoch: reads it, as the coordination store has it;
    for clusters on this host, as is state_changes: reads the lines of state-change logs that a page requests."""

    views = ("cluster", "records", "groups", "settings", "replays")

    def __init__(
        self,
        connect: Connect,
        cluster_words: Sequence[str],
        metrics: Mapping[int, str] | None = None,
        controller_epoch: Callable[[], int] | None = None,
        state_changes: Callable[[Parameters], dict[str, Any]] | None = None,
    ) -> None:
        self._cluster_words = cluster_words
        self._metrics = BrokerMetrics(metrics or {})
        self._controller_epoch = controller_epoch
        self._state_changes = state_changes
        self._elected: tuple[int, int | None] = (-1, None)
        self._watcher = ClientThreads(connect, 1, "console-watch", persistent=True)
        self._prober = ClientThreads(connect, 1, "console-probe", persistent=True)
        self._probe: asyncio.Task[frozenset[int]] | None = None
        self._silent: frozenset[int] = frozenset()
        self._metadata = ClusterSnapshot()
        self._next_read = 0.0
        self._offsets = ClientThreads(connect, 1, "console-offsets", persistent=True)
        self._rates = TopicRates()
        self._log_ends: dict[tuple[TopicPartition, int], int] = {}
        self._replica_times, self._group_times, self._lag_history = LagTimes(), LagTimes(), LagHistory()
        self._group_lags = GroupLags(self._group_times)
        self._requests = ClientThreads(connect, REQUEST_THREADS, "console-request")

    async def snapshot(self) -> ClusterSnapshot:
        """The last metadata, at once read again where a broker fails or returns. Raises UnreachableError,
        TopicRequestError."""
        if await self._probe_brokers() or time.monotonic() >= self._next_read:
            self._metadata, cpu_s = await self._watcher.run(_snapshot)
            self._next_read = time.monotonic() + min(cpu_s / SHARE, MAX_AGE_S)
        snapshot = self._metadata
        epoch = await self._epoch_of(snapshot.controller)
        return replace(snapshot, silent=self._silent & snapshot.brokers.keys(), controller_epoch=epoch)

    async def _probe_brokers(self) -> bool:
        """Look which brokers respond; whether these are others than before, or none."""
        if self._probe is None:
            self._probe = asyncio.create_task(self._prober.run(_silent))
        await asyncio.wait({self._probe}, timeout=PROBE_WAIT_S)
        if not self._probe.done():
            return False
        probe, self._probe, before = self._probe, None, self._silent
        if probe.exception() is not None:
            return True
        self._silent = probe.result()
        return self._silent != before

    async def _epoch_of(self, controller: int) -> int | None:
        """Read once for each controller."""
        if self._controller_epoch is not None and controller != self._elected[0]:
            try:
                self._elected = controller, await asyncio.to_thread(self._controller_epoch)
            except (CoordinationError, OSError):
                return None
        return self._elected[1]

    async def replicas(self, topic: str, rows: Mapping[int, PartitionRow]) -> dict[int, list[dict[str, Any]]]:
        """The replicas of these partitions of a topic, as replica_rows, with `lag_ms` and `last_log_end_offset`, from
        which the lags of a broker count that does not respond: those that are known to be silent are not waited for.
        Raises UnreachableError."""
        silent = self._silent

        def read(clients: ThreadClients) -> dict[int, list[dict[str, Any]]]:
            by_broker: dict[int, list[TopicPartition]] = {}
            for number, row in rows.items():
                for broker in set(row.replicas) - silent:
                    by_broker.setdefault(broker, []).append(TopicPartition(topic, number))
            if not by_broker.keys() <= clients.admin.live.keys():
                clients.admin.metadata(())
            states = replica_states(clients.admin, by_broker)
            found = {
                number: replica_rows(TopicPartition(topic, number), row.leader, row.replicas, row.isr, states)
                for number, row in rows.items()
            }
            for number, replicas in found.items():
                self._add_lags_of_silent(TopicPartition(topic, number), rows[number].leader, replicas)
            self._add_lag_times(clients, topic, rows, found)
            return found

        return await self._offsets.run(read)

    def _add_lags_of_silent(self, at: TopicPartition, leader_id: int, replicas: Sequence[dict[str, Any]]) -> None:
        """Add `last_log_end_offset` to each replica, and where its broker does not respond the lag from there."""
        leader_end = next((each["log_end_offset"] for each in replicas if each["broker"] == leader_id), None)
        for replica in replicas:
            key, end = (at, replica["broker"]), replica["log_end_offset"]
            if end is None:
                end = self._log_ends.get(key)
                if end is not None and leader_end is not None and replica["state"] == "down":
                    replica["lag"] = max(0, leader_end - end)
            else:
                self._log_ends.pop(key, None)
                self._log_ends[key] = end
                if len(self._log_ends) > MAX_LOG_ENDS:
                    del self._log_ends[next(iter(self._log_ends))]
            replica["last_log_end_offset"] = end

    def _add_lag_times(
        self,
        clients: ThreadClients,
        topic: str,
        rows: Mapping[int, PartitionRow],
        found: Mapping[int, Sequence[dict[str, Any]]],
    ) -> None:
        """Add `lag_ms` to each replica, how old the first record is that it lacks, None where that is not known."""
        lacking = [
            Lacking(
                (TopicPartition(topic, number), replica["broker"]),
                rows[number].leader,
                RecordAt(TopicPartition(topic, number), replica["last_log_end_offset"]),
            )
            for number, replicas in found.items()
            for replica in replicas
            if replica["lag"] and replica["state"] in ("lagging", "down")
        ]
        lags_ms = self._replica_times.read(clients, lacking)
        for number, replicas in found.items():
            for replica in replicas:
                known = lags_ms.get((TopicPartition(topic, number), replica["broker"]))
                replica["lag_ms"] = 0 if replica["lag"] == 0 else known

    async def read(self, name: str, parameters: Parameters) -> dict[str, Any]:
        """The metrics, rates of topics, sizes, groups, or the result of READS[name]. Raises UsageError for another
        name, and as the function."""
        if name == "metrics":
            return await self._metrics.read()
        if name == "topic-rates":
            topics = self._metadata.topics
            return await self._offsets.run(lambda clients: self._rates.read(clients, topics))
        if name == "state-changes" and self._state_changes is not None:
            return await asyncio.to_thread(self._state_changes, parameters)
        if name == "sizes":
            topics = self._metadata.topics
            return await self._requests.run(lambda clients: sizes(clients, parameters, topics))
        if name == "group":
            return await self._requests.run(
                lambda clients: group(clients, parameters, self._group_times, self._lag_history)
            )
        if name == "groups":
            return await self._requests.run(lambda clients: self._group_lags.summary(clients, parameters))
        if name == "group-facts":
            return await self._requests.run(lambda clients: self._group_lags.facts(clients, parameters))
        function = READS.get(name)
        if function is None:
            raise UsageError(f"a cluster has no {name!r} to show")
        return await self._requests.run(lambda clients: function(clients, parameters))

    async def record_field(self, parameters: Parameters) -> bytes | None:
        """The whole key or value of a record. Raises as cluster_requests.record_field."""
        return await self._requests.run(lambda clients: record_field(clients, parameters))

    async def act(self, name: str, parameters: Parameters, confirmed: str | None) -> dict[str, Any]:
        """As acts.perform."""
        return await self._requests.run(
            lambda clients: perform(clients, name, parameters, confirmed, self._cluster_words)
        )

    async def close(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
        for threads in (self._watcher, self._prober, self._offsets, self._requests):
            await asyncio.to_thread(threads.close)


def _silent(clients: ThreadClients) -> frozenset[int]:
    """The brokers that the metadata name, and that do not respond here: they name one for a while after it failed."""

    async def request(_: int, client: BrokerClient) -> bool:
        await client.request(ApiKey.API_VERSIONS, 0)
        return True

    clients.admin.metadata(())
    return frozenset(clients.admin.live) - clients.admin.request_each(clients.admin.live, request).keys()


def _snapshot(clients: ThreadClients) -> tuple[ClusterSnapshot, float]:
    """And the seconds of this thread's CPU time that it took; a broker needs about as much."""
    began = time.thread_time()
    response = clients.admin.metadata()
    topics = {
        topic.name: TopicSnapshot(
            bool(topic.is_internal),
            {partition.partition_index: _row(partition) for partition in _sorted(topic.partitions)},
            generic.error_of(topic.error_code).name if topic.error_code != ErrorCode.NONE else "",
        )
        for topic in response.topics
    }
    snapshot = ClusterSnapshot(
        response.cluster_id or "",
        response.controller_id,
        {broker.node_id: BrokerRow(broker.host, broker.port, broker.rack) for broker in response.brokers},
        topics,
        tuple(degraded_partitions(response.topics)),
    )
    return snapshot, time.thread_time() - began


def _sorted(partitions: Sequence[Any]) -> list[Any]:
    return sorted(partitions, key=lambda partition: int(partition.partition_index))


def _row(partition: Any) -> PartitionRow:
    return PartitionRow(
        partition.leader_id, partition.leader_epoch, tuple(partition.replica_nodes), tuple(partition.isr_nodes)
    )
