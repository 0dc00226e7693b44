"""LagHistory: the lags of groups over time, in a bounded number of samples, however long one looks."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_GROUPS = 20
"""Groups that have a history; the one looked at longest ago is dropped for another."""

MAX_SAMPLES = 600
MAX_VALUES = 200_000
"""Lags of one group, each of 8 bytes: of those with more partitions there are fewer samples."""

MIN_INTERVAL_MS = 1000
SHOWN = 5
"""Partitions in a response: those with most lag now."""

_UNKNOWN = -1


@dataclass(slots=True)
class _SampledGroup:
    """Samples of a group. interval_ms: the least time between two. Each has the lags of the first partitions of
    `numbers`, which are numbered as they came."""

    interval_ms: int = MIN_INTERVAL_MS
    numbers: dict[str, int] = field(default_factory=dict)
    times_ms: list[int] = field(default_factory=list)
    lags: list[array[int]] = field(default_factory=list)


class LagHistory:
    """Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[str, _SampledGroup] = {}

    def add(self, group: str, now_ms: int, offsets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Add a sample, unless the last one is as new; return the history as JSON.

        offsets: as of group_facts. The history is {"times_ms": [...], "lags": {"all": [...], "t-0": [...]}}: lists of
        one length. A lag is None where it was not known, in "all" where none was."""
        lags = {f"{each['topic']}-{each['partition']}": each["lag"] for each in offsets}
        with self._lock:
            history = self._groups.pop(group, None) or _SampledGroup()
            self._groups[group] = history
            while len(self._groups) > MAX_GROUPS:
                del self._groups[next(iter(self._groups))]
            if not history.times_ms or now_ms - history.times_ms[-1] >= history.interval_ms:
                _append(history, now_ms, lags)
            largest = sorted((name for name in lags if lags[name]), key=lambda name: (-lags[name], name))[:SHOWN]
            return {
                "times_ms": list(history.times_ms),
                "lags": {
                    "all": [_sum(sample) for sample in history.lags],
                    **{name: list(_of(history, name)) for name in largest},
                },
            }


def _append(history: _SampledGroup, now_ms: int, lags: Mapping[str, int | None]) -> None:
    for name in lags:
        history.numbers.setdefault(name, len(history.numbers))
    sample = array("q", [_UNKNOWN]) * len(history.numbers)
    for name, lag in lags.items():
        sample[history.numbers[name]] = _UNKNOWN if lag is None else lag
    history.times_ms.append(now_ms)
    history.lags.append(sample)
    if len(history.lags) > max(2, min(MAX_SAMPLES, MAX_VALUES // max(1, len(sample)))):
        # Every second one goes, and from now on half as many come: the whole time stays in view.
        del history.times_ms[1::2], history.lags[1::2]
        history.interval_ms *= 2


def _of(history: _SampledGroup, name: str) -> Iterable[int | None]:
    number = history.numbers.get(name, len(history.numbers))
    for sample in history.lags:
        lag = sample[number] if number < len(sample) else _UNKNOWN
        yield None if lag == _UNKNOWN else lag


def _sum(sample: array[int]) -> int | None:
    known = [lag for lag in sample if lag != _UNKNOWN]
    return sum(known) if known else None
