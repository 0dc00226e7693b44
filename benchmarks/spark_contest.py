"""Contestants that take turns at the same work, and what each turn costs: wall time, and CPU seconds of all processes
that had a part in it, the brokers included."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

WARM_UPS = 2
"""Turns that do not count: Java compiles meanwhile."""


@dataclass(frozen=True, slots=True)
class Cost:
    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Contestant:
    """A program that takes its turn. prepare: returns the work, which alone is measured. verify: what the work has
    done, where it returns nothing.

    roots: the processes that take part, each with all its children."""

    name: str
    roots: Sequence[int]
    prepare: Callable[[], Callable[[], object]]
    verify: Callable[[], object] | None = None


def in_turns(
    contestants: Sequence[Contestant], expected: object, repetitions: int, others: Collection[int] = ()
) -> dict[str, list[Cost]]:
    """The costs of each in every repetition, in an order that rotates; each answer is checked.

    others: processes that count for the contestants alone whose root they are."""
    costs: dict[str, list[Cost]] = {contestant.name: [] for contestant in contestants}
    for repetition in range(-WARM_UPS if repetitions > 1 else 0, repetitions):
        first = repetition % len(contestants)
        for contestant in [*contestants[first:], *contestants[:first]]:
            work = contestant.prepare()
            before, start = cpu_ticks(contestant.roots, others), perf_counter()
            answer = work()
            wall_s = perf_counter() - start
            cost = Cost(wall_s, cpu_seconds(before, cpu_ticks(contestant.roots, others)))
            if contestant.verify is not None:
                answer = contestant.verify()
            if answer != expected:
                raise AssertionError(f"{contestant.name}: {answer}, which should be {expected}")
            if repetition >= 0:
                costs[contestant.name].append(cost)
    return costs


Ticks = dict[int, tuple[int, int]]
"""By process its own user and system time, and that of its children that have ended."""


def cpu_ticks(roots: Collection[int], others: Collection[int] = ()) -> Ticks:
    """CPU ticks of the processes `roots` and their descendants, without `others` and theirs."""
    children: dict[int, list[int]] = {}
    ticks: Ticks = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        user, system, ended_user, ended_system = map(int, fields[11:15])
        ticks[int(entry.name)] = user + system, ended_user + ended_system
    below, waiting = {}, list(roots)
    while waiting:
        pid = waiting.pop()
        if pid in ticks:
            below[pid] = ticks[pid]
        waiting += [child for child in children.get(pid, []) if child not in others]
    return below


def cpu_seconds(before: Ticks, after: Ticks) -> float:
    """Time between the two.

    A process that ended passes its time on to the one that waited for it: what it had used before is taken off again.
    Nobody may have waited for it; then its last turn is lost."""
    nothing = 0, 0
    own = sum(ticks - before.get(pid, nothing)[0] for pid, (ticks, _) in after.items())
    passed_on = sum(ended - before.get(pid, nothing)[1] for pid, (_, ended) in after.items())
    known = sum(sum(ticks) for pid, ticks in before.items() if pid not in after)
    return (own + max(0, passed_on - known)) / os.sysconf("SC_CLK_TCK")


_RATES = ("rows/s", "CPU us/row")
HEADINGS = ("work", "kreplog", *_RATES, "other", *_RATES, "CPU ratio", "wall ratio", "goal")


@dataclass(frozen=True)
class Comparison:
    """One row of a table: kreplog against another, at the same work in the same repetitions.

    must, aim: of the ratio of CPU seconds or wall times, whichever `by` names; more than 1 means that kreplog needs
    less."""

    work: str
    records: int
    ours: str
    theirs: str
    costs: dict[str, list[Cost]]
    must: float | None = None
    aim: float | None = None
    by: str = "CPU"

    @property
    def cpu_ratios(self) -> list[float]:
        return [other.cpu_s / mine.cpu_s for mine, other in self._pairs]

    @property
    def wall_ratios(self) -> list[float]:
        return [other.wall_s / mine.wall_s for mine, other in self._pairs]

    @property
    def _pairs(self) -> list[tuple[Cost, Cost]]:
        return list(zip(self.costs[self.ours], self.costs[self.theirs], strict=True))

    @property
    def verdict(self) -> str:
        if self.must is None:
            return ""
        ratio = statistics.median(self.cpu_ratios if self.by == "CPU" else self.wall_ratios)
        reached = "aim" if self.aim is not None and ratio >= self.aim else "must" if ratio >= self.must else "short"
        aim = "" if self.aim is None else f", aim {self.aim:.2f}"
        return f"{self.by} >= {self.must:.2f}{aim}: {reached}"

    def cells(self) -> list[str]:
        """As HEADINGS has them."""
        sides = [cell for name in (self.ours, self.theirs) for cell in (name, *self._rates(name))]
        return [self.work, *sides, spread(self.cpu_ratios), spread(self.wall_ratios), self.verdict]

    def _rates(self, name: str) -> list[str]:
        wall = statistics.median(cost.wall_s for cost in self.costs[name])
        cpu = statistics.median(cost.cpu_s for cost in self.costs[name])
        return [f"{self.records / wall / 1e6:.2f} M", f"{cpu / self.records * 1e6:.3f}"]


def spread(values: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"
