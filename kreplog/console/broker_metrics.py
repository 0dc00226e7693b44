"""BrokerMetrics: the figures that the page draws, from brokers that serve metrics (kreplog's metrics.listener)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import aiohttp

MAX_BYTES = 64 << 20
"""Of one response: 10,000 partitions take a tenth of that."""

TIMEOUT_S = 2.0
MIN_AGE_S = 1.0
"""Pages that look at the same time share what was read."""

SHARE = 0.05
"""The most of the time that reading may take: brokers with many partitions have many metrics."""

_TRAFFIC, _REQUESTS, _LOOP = (
    "kafka_server_brokertopicmetrics",
    "kafka_network_requestmetrics",
    "kafka_server_eventloop",
)
FIGURES = {
    f"{_TRAFFIC}_bytesin_total": "bytes_in",
    f"{_TRAFFIC}_bytesout_total": "bytes_out",
    f"{_TRAFFIC}_messagesin_total": "records_in",
    f"{_LOOP}_longestpause_seconds": "longest_pause_s",
    f"{_LOOP}_longpauses_total": "long_pauses",
    "process_cpu_seconds_total": "cpu_s",
    "process_resident_memory_bytes": "resident_bytes",
} | {
    f'{_REQUESTS}_totaltime_seconds_{part}{{request="{api}"}}': f"{name}_{part}"
    for api, name in (("Produce", "produce"), ("FetchConsumer", "fetch"), ("FetchFollower", "replicate"))
    for part in ("sum", "count")
}
"""Names of figures by the samples that they are read from."""


MAX_INTERVAL_S = 30.0
"""Rates are of the time between two reads, unless that is longer: nobody looked meanwhile."""

_PER_SECOND = {"bytes_in": "bytes_in_per_s", "bytes_out": "bytes_out_per_s", "cpu_s": "cpu_share"}
_MEANS = ("produce", "fetch", "replicate")


def with_rates(now: Mapping[str, float], before: Mapping[str, float], seconds: float) -> dict[str, float]:
    """The figures of a broker, with what they have grown by: bytes a second, the share of a processor, and the mean
    time in seconds of the requests in between, 0.0 for none. Without those of counters that were reset."""
    found = dict(now)
    for name, rate in _PER_SECOND.items():
        if name in now and name in before and now[name] >= before[name]:
            found[rate] = (now[name] - before[name]) / seconds
    for name in _MEANS:
        total, count = (now.get(f"{name}_{part}", 0.0) - before.get(f"{name}_{part}", 0.0) for part in ("sum", "count"))
        if before and total >= 0 and count >= 0:
            found[f"{name}_mean_s"] = total / count if count else 0.0
    return found


def figures(text: str) -> dict[str, float]:
    """The FIGURES in a text of Prometheus; a sample that is no number is left out."""
    found = {}
    for line in text.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample in FIGURES:
            try:
                found[FIGURES[sample]] = float(value)
            except ValueError:
                continue
    return found


class BrokerMetrics:
    """The figures of brokers. addresses: host:port of the metrics by broker id."""

    def __init__(self, addresses: Mapping[int, str]) -> None:
        self._addresses = addresses
        self._next_read = 0.0
        self._began = 0.0
        self._read: dict[int, dict[str, Any]] = {}
        self._found: dict[str, Any] = {}
        self._reading = asyncio.Lock()

    async def read(self) -> dict[str, Any]:
        """{"time_ms", "brokers": {id: figures as with_rates}}, where a broker that does not respond has {"error":
        reason}."""
        async with self._reading:
            began = time.monotonic()
            if began >= self._next_read:
                async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(TIMEOUT_S)) as session:
                    found = await asyncio.gather(*(_read(session, address) for address in self._addresses.values()))
                read = dict(zip(self._addresses, found, strict=True))
                seconds = began - self._began
                past = self._read if seconds <= MAX_INTERVAL_S else {}
                brokers = {
                    broker: now if "error" in now else with_rates(now, _figures_of(past.get(broker)), seconds)
                    for broker, now in read.items()
                }
                self._began, self._read = began, read
                self._found = {"time_ms": time.time_ns() // 1_000_000, "brokers": brokers}
                now = time.monotonic()
                self._next_read = now + max(MIN_AGE_S, (now - began) / SHARE)
            return self._found


def _figures_of(read: dict[str, Any] | None) -> dict[str, Any]:
    return {} if read is None or "error" in read else read


async def _read(session: aiohttp.ClientSession, address: str) -> dict[str, Any]:
    try:
        async with session.get(f"http://{address}/metrics", allow_redirects=False) as response:
            data = bytearray()
            async for chunk in response.content.iter_chunked(1 << 16):
                data += chunk
                if len(data) > MAX_BYTES:
                    return {"error": f"{address} sends more than {MAX_BYTES:,} bytes of metrics"}
            return figures(data.decode(errors="replace"))
    except (OSError, TimeoutError, aiohttp.ClientError) as error:
        return {"error": f"{address}: {str(error) or 'no response in time'}"}
