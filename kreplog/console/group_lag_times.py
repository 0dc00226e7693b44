"""Lags in time of groups, added to their facts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kreplog.client.record_times import RecordAt
from kreplog.console.client_threads import ThreadClients
from kreplog.console.lag_times import Lacking, LagTimes
from kreplog.types import TopicPartition


def add_lag_times(clients: ThreadClients, groups: Mapping[str, dict[str, Any]], times: LagTimes) -> None:
    """Add `lag_ms` to each partition, how old the next record is that the group has to read, None where that is not
    known, and to each group, that of the oldest.

    groups: facts by name, as read_group has them; those without "offsets" are left as they are."""
    rows = {
        (name, TopicPartition(row["topic"], row["partition"])): row
        for name, facts in groups.items()
        for row in facts.get("offsets", ())
    }
    leaders = clients.connections.metadata
    lags_ms = times.read(
        clients,
        [
            Lacking((name, at), leaders.leader_of(at), RecordAt(at, row["offset"]))
            for (name, at), row in sorted(rows.items(), key=lambda item: -(item[1]["lag"] or 0))
            if row["lag"] and row["offset"] is not None
        ],
    )
    for key, row in rows.items():
        row["lag_ms"] = 0 if row["lag"] == 0 else lags_ms.get(key)
    for facts in groups.values():
        if "offsets" in facts:
            known = (row["lag_ms"] for row in facts["offsets"] if row["lag_ms"] is not None)
            facts["lag_ms"] = max(known, default=None)
