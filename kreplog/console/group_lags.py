"""GroupLags: the facts of all groups, read one after the other within a share of a processor."""

from __future__ import annotations

import threading
import time
from math import inf
from typing import Any

from kreplog.client.group_admin import GroupOverview, list_groups
from kreplog.client.group_facts import read_group
from kreplog.console.client_threads import ThreadClients
from kreplog.console.group_lag_times import add_lag_times
from kreplog.console.lag_times import LagTimes
from kreplog.console.parameters import Parameters
from kreplog.errors import KreplogError

MIN_AGE_S = 1.0
"""Those who look at the same time share the result."""

READ_S = 2.0
"""How long a call reads; of many groups, the others have their turn in the next one."""

SHARE = 0.005
UNREAD_SHARE = 0.25
"""The most of a processor that reading takes, the least time between two calls aside; and where groups have not been
read yet."""

REQUEST_S = 10.0


class GroupLags:
    """Used by several threads. times: the lags in time of groups."""

    def __init__(self, times: LagTimes) -> None:
        self._times = times
        self._reading = threading.Lock()
        self._next_read = 0.0
        self._overviews: list[GroupOverview] = []
        self._facts: dict[str, dict[str, Any]] = {}

    def facts(self, clients: ThreadClients, parameters: Parameters) -> dict[str, Any]:
        """{"groups": facts of each group by its name, as read_group has them with lags in time; "error" is why one
        cannot be described now, and the others are those of before, {} of one that has not been read yet}.

        parameters: "all": read all of them now. Raises as list_groups."""
        if "all" in parameters:
            self._next_read = 0.0
        self._read(clients, inf if "all" in parameters else READ_S)
        return {"groups": {each.group: self._facts.get(each.group, {}) for each in self._overviews}}

    def summary(self, clients: ThreadClients, parameters: Parameters) -> dict[str, Any]:
        """{"groups": [{"group", "state", "type", "protocol_type", "members", "lag", "lag_unknown", "lag_ms", "error"}],
        "unread": number of groups that have not been read yet}, by name.

        members: how many; None where it is not known. lag: the sum of those that are known, None where none is.
        lag_unknown: number of partitions whose lag is not. lag_ms: the longest. error: why they are not known.
        parameters: "topic": only groups that have offsets in it or members that read it, and what they have there.
        Raises as list_groups."""
        self._read(clients, READ_S)
        topic = parameters.get("topic")
        rows = []
        unread = 0
        for overview in self._overviews:
            facts = self._facts.get(overview.group)
            unread += facts is None
            row = _row(overview, facts or {}, topic)
            if topic is None or row["partitions"]:
                rows.append(row)
        return {"groups": rows, "unread": unread}

    def _read(self, clients: ThreadClients, read_s: float) -> None:
        """Nothing where another thread reads, or the last time is not long ago."""
        if time.monotonic() < self._next_read or not self._reading.acquire(blocking=False):
            return
        began, cpu = time.monotonic(), time.thread_time()
        try:
            overviews = list_groups(clients.connections, began + REQUEST_S)
            before = self._facts
            # Those never read first, then those read longest ago: a group that is read moves to the end.
            names = sorted((each.group for each in overviews), key=_Order(before))
            facts = {name: before[name] for name in names if name in before}
            found: dict[str, dict[str, Any]] = {}
            for name in names:
                try:
                    read = read_group(clients.connections, name, lambda: time.monotonic() + REQUEST_S)
                    found[name] = read or {"error": f"group {name!r} has no members or offsets now"}
                except KreplogError as error:  # one that may not be described, or whose coordinator is away
                    found[name] = {**before.get(name, {}), "error": str(error)}
                if time.monotonic() - began > read_s:
                    break
            add_lag_times(clients, found, self._times)
            for name, each in found.items():
                facts.pop(name, None)
                facts[name] = each
            self._overviews, self._facts = overviews, facts
        finally:
            share = SHARE if len(self._facts) == len(self._overviews) else UNREAD_SHARE
            self._next_read = time.monotonic() + max(MIN_AGE_S, (time.thread_time() - cpu) / share)
            self._reading.release()


class _Order:
    """A key that sorts names in the order of a dict, others first."""

    def __init__(self, known: dict[str, Any]) -> None:
        self._positions = {name: position for position, name in enumerate(known)}

    def __call__(self, name: str) -> int:
        return self._positions.get(name, -1)


def _row(overview: GroupOverview, facts: dict[str, Any], topic: str | None) -> dict[str, Any]:
    offsets = [each for each in facts.get("offsets", ()) if topic in (None, each["topic"])]
    members = facts.get("members")
    if members is not None and topic is not None:
        readers = {each["member_id"] for each in offsets}
        members = [each for each in members if each["member_id"] in readers]
    lags = [each["lag"] for each in offsets if each["lag"] is not None]
    times = [each["lag_ms"] for each in offsets if each["lag_ms"] is not None]
    return {
        **overview._asdict(),
        "members": None if members is None else len(members),
        "partitions": len(offsets),
        "lag": sum(lags) if lags or not offsets else None,
        "lag_unknown": len(offsets) - len(lags),
        "lag_ms": max(times, default=None),
        "error": facts.get("error", ""),
    }
