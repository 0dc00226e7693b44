"""A source that shows a failover in every view: for checks of accessibility, and for the pictures in the docs."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kreplog.console.snapshot import BrokerRow, ClusterSnapshot, PartitionRow, TopicSnapshot
from tests.console.served import FakeSource

NOW_MS = 1_772_366_587_000
"""2026-03-01, 12:03:07 UTC."""

_BEHIND = 1
"""The broker that is out of sync."""

_ORDERS = {
    0: PartitionRow(0, 4, (0, 1, 2), (0, 2)),
    1: PartitionRow(2, 5, (1, 2, 0), (2, 0)),
    2: PartitionRow(2, 4, (2, 0, 1), (2, 0)),
    3: PartitionRow(0, 4, (0, 2, 1), (0, 2)),
}


def _bytes(text: str) -> dict[str, Any]:
    return {"size": len(text.encode()), "base64": base64.b64encode(text.encode()).decode()}


class ExampleSource(FakeSource):
    """Broker 1 has left the ISRs since the first look; a group is behind where it led."""

    views = ("cluster", "records", "groups", "settings", "replays")  # type: ignore[assignment]  # more of them than FakeSource has

    def __init__(self) -> None:
        super().__init__()
        self.now = ClusterSnapshot(
            "Yz5kWm3fR1uVt0aXo2LQhA",
            2,
            {broker: BrokerRow("127.0.0.1", 9092 + broker, f"rack-{broker}") for broker in range(3)},
            {
                "__consumer_offsets": TopicSnapshot(True, {0: PartitionRow(0, 3, (0, 1, 2), (0, 2, 1))}),
                "clicks": TopicSnapshot(False, {0: PartitionRow(2, 3, (2, 0), (2, 0))}),
                "orders": TopicSnapshot(False, _ORDERS),
            },
            ("4 partitions are under-replicated: orders-0, orders-1, orders-2, orders-3",),
            controller_epoch=7,
        )
        self.answers = {
            "groups": {
                "groups": [self._overview("billing", "Stable"), self._overview("reports", "Empty")],
                "unread": 0,
            },
            "group": self._group(),
            "records": self._records(),
            "state-changes": self._state_changes(),
            "sizes": {"sizes": {number: {0: 412_000, 1: 371_000, 2: 412_000} for number in _ORDERS}},
            "topic-settings": {
                "settings": [
                    {"name": "retention.ms", "value": "604800000", "source": "default"},
                    {"name": "min.insync.replicas", "value": "2", "source": "topic"},
                ]
            },
            "users": {"users": [{"user": "billing", "mechanisms": {"SCRAM-SHA-512": 8192}}]},
            "acls": {
                "acls": [
                    {
                        "resource": "TOPIC LITERAL orders",
                        "principal": "User:billing",
                        "host": "*",
                        "operation": "READ",
                        "permission": "ALLOW",
                    }
                ]
            },
        }
        self._reads = 0
        self._looked = False

    async def snapshot(self) -> ClusterSnapshot:
        now = await super().snapshot()
        if self._looked:
            return now
        self._looked = True
        in_sync = {number: row._replace(isr=row.replicas) for number, row in _ORDERS.items()}
        return replace(now, topics={**now.topics, "orders": TopicSnapshot(False, in_sync)}, degraded=())

    async def replicas(self, topic: str, rows: Mapping[int, PartitionRow]) -> dict[int, list[dict[str, Any]]]:
        return {
            number: [self._replica(topic, broker, number, row) for broker in row.replicas]
            for number, row in rows.items()
        }

    def _replica(self, topic: str, broker: int, number: int, row: PartitionRow) -> dict[str, Any]:
        end = 20_000 + 700 * number
        lag = 2_400 - 300 * number if topic == "orders" and broker == _BEHIND else 0
        in_sync = "leader" if broker == row.leader else "in sync"
        return {
            "broker": broker,
            "state": "lagging" if lag else in_sync,
            "log_start_offset": 5_000,
            "high_watermark": end - max(lag, 120),
            "log_end_offset": end - lag,
            "lag": lag,
            "lag_ms": 20 * lag,
        }

    async def read(self, name: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        if name == "metrics":
            self._reads += 1
            return {"time_ms": NOW_MS + 2000 * self._reads, "brokers": self._figures(self._reads)}
        if name == "broker-settings":
            return {**self.answers["topic-settings"], "offline": []}
        return await super().read(name, parameters)

    @staticmethod
    def _figures(reads: int) -> dict[int, dict[str, float]]:
        """They go up and down from read to read."""
        return {
            broker: {
                "bytes_in_per_s": 2_000_000 - 500_000 * broker + 90_000 * (reads * (broker + 3) % 5),
                "bytes_out_per_s": 3_100_000 - 800_000 * broker + 110_000 * (reads * (broker + 2) % 7),
                "produce_mean_s": 0.0021 + 0.0004 * broker + 0.0001 * (reads * (broker + 1) % 6),
                "replicate_mean_s": 0.0013 + 0.0002 * broker + 0.0001 * (reads * (broker + 4) % 5),
                "longest_pause_s": 0.018 + 0.004 * broker,
                "cpu_share": 0.21 - 0.04 * broker + 0.01 * (reads * (broker + 2) % 4),
            }
            for broker in range(3)
        }

    @staticmethod
    def _overview(group: str, state: str) -> dict[str, Any]:
        lags = {"partitions": 4, "lag": 1_842, "lag_unknown": 1, "lag_ms": 94_000, "error": ""}
        members = 2 if state == "Stable" else 0
        names = {"group": group, "state": state, "type": "classic", "protocol_type": "consumer"}
        return {**names, "members": members, **lags}

    @staticmethod
    def _group() -> dict[str, Any]:
        lags = [1_830, 12, 0, None]
        members = [f"billing-{number}-5f0c" for number in range(2)]
        return {
            "group": "billing",
            "state": "Stable",
            "type": "classic",
            "epoch": None,
            "assignment_epoch": None,
            "protocol_type": "consumer",
            "protocol": "range",
            "coordinator": "127.0.0.1:9092",
            "lag": None,
            "known_lag": 1_842,
            "lag_unknown": 1,
            "lag_ms": 94_000,
            "members": [
                {
                    "member_id": member,
                    "instance_id": None,
                    "client_id": "billing",
                    "host": "/127.0.0.1",
                    "partitions": [f"orders-{2 * number}", f"orders-{2 * number + 1}"],
                }
                for number, member in enumerate(members)
            ],
            "offsets": [
                {
                    "topic": "orders",
                    "partition": number,
                    "member_id": members[number // 2],
                    "lag": lag,
                    "offset": 20_000 + 700 * number - (lag or 0),
                    "log_end_offset": None if lag is None else 20_000 + 700 * number,
                    "lag_ms": None if lag is None else 94_000 if lag > 100 else 6 * lag,
                }
                for number, lag in enumerate(lags)
            ],
            "history": {
                "times_ms": [NOW_MS + 2000 * index for index in range(60)],
                "lags": {
                    "all": [20 + max(0, index - 20) * 47 for index in range(60)],
                    "orders-0": [8 + max(0, index - 20) * 46 for index in range(60)],
                    "orders-1": [12 + index % 3 for index in range(60)],
                },
            },
        }

    @staticmethod
    def _records() -> dict[str, Any]:
        records = [
            {
                "offset": 20_000 + number,
                "timestamp_ms": NOW_MS + 40 * number,
                "key": _bytes(f"customer-{number % 3}"),
                "value": _bytes(f'{{"order": {number}, "total": {19 + number}.50}}'),
                "headers": [["trace", _bytes(f"{number:08x}")]] if number % 2 else [],
                "more_headers": 0,
                "marker": None,
                "batch": 20_000,
            }
            for number in range(6)
        ]
        batch = {
            "base_offset": 20_000,
            "last_offset": 20_005,
            "records": 6,
            "bytes": 402,
            "leader_epoch": 5,
            "compression": "lz4",
            "producer_id": 4001,
            "producer_epoch": 0,
            "base_sequence": 112,
            "transactional": False,
            "control": False,
            "timestamp_type": "CreateTime",
        }
        ends = {"log_start_offset": 5_000, "high_watermark": 20_006, "start": 20_000, "next_offset": 20_006}
        return {**ends, "full": False, "batches": [batch], "records": records}

    @staticmethod
    def _state_changes() -> dict[str, Any]:
        elected = {"leader": 2, "leader_epoch": 5, "isr": [2, 0], "controller": 2, "controller_epoch": 7}
        lines = [
            {"broker": 0, "level": "info", "message": "LeaderAndIsr applied", "partition": "orders-1", **elected},
            {"broker": 2, "level": "info", "message": "LeaderAndIsr sent", "partition": "orders-1", "to": 0, **elected},
            {"broker": 2, "level": "warning", "message": "broker 1 has failed: its session ended"},
            {"broker": 2, "level": "info", "message": "broker 2 is the controller of epoch 7"},
        ]
        return {
            "lines": [{"time_ms": NOW_MS - 9 * index, **line} for index, line in enumerate(lines)],
            "next": "",
            "searched_ms": None,
            "notes": [],
        }
