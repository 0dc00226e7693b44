"""Runs workloads: contestants take turns in every repetition, and goals are judged by same-repetition ratios.

A workload is a function that prepares a Bench and returns its contestants; each contestant's `measure` does the work
once, verifies what was read or written, and returns one number. Machines drift and disks have slow minutes, so a rate
means little by itself: what counts is the median over repetitions of kreplog's number against another's in the same
repetition, always turned so that more than 1 means kreplog is better. Knows nothing of logs or tables.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Literal

from benchmarks.data import Pool

Role = Literal["kreplog", "ceiling", "peer", "reference"]
Verdict = Literal["stretch", "must", "short", ""]

CEILING = "ceiling"
BEST_PEER = "best peer"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A contestant of a comparison. `measure` runs the work once and returns its number, in the workload's unit."""

    name: str
    role: Role
    measure: Callable[[], float]


@dataclass(frozen=True, slots=True)
class Goal:
    """The number that kreplog must reach, and the one that it should: as a ratio to `against`, or as it is where that
    is None.

    against: a contestant's name, or BEST_PEER for the best one of each repetition.
    """

    against: str | None
    must: float | None = None
    stretch: float | None = None


@dataclass(frozen=True, slots=True)
class Scale:
    """The amount of work. `behind_gb` is what a log holds before its append rate is compared with an empty one's."""

    repetitions: int = 5
    small_records: int = 1_000_000
    large_records: int = 200_000
    distinct: int = 100_000
    visible_records: int = 200_000
    box_s: float = 1.0
    commits: int = 30
    commit_rounds: int = 9
    group_commits: int = 100
    seeks: int = 300
    codec_s: float = 0.05
    unclean_mb: int = 50
    unclean_large_mb: int = 1024
    segments: int = 1000
    memory_mb: int = 200
    behind_gb: float = 1.0


QUICK = Scale(
    repetitions=2,
    small_records=3000,
    large_records=2000,
    distinct=2000,
    visible_records=1000,
    box_s=0.2,
    commits=2,
    commit_rounds=2,
    group_commits=2,
    seeks=3,
    codec_s=0.001,
    unclean_mb=1,
    unclean_large_mb=2,
    segments=10,
    memory_mb=2,
    behind_gb=0.002,
)


@dataclass(slots=True)
class Bench:
    """The material of a workload: sizes, records of 100 B and of 1 KiB, an empty folder, and a place for digests.

    `directory` is made for each workload and removed after it. `digests` takes, by contestant, the digest of what was
    read back; `notes` what a reader of the table must know, such as who was left out.
    """

    scale: Scale
    seed: int
    parent: Path
    small: Pool = field(init=False, repr=False)
    large: Pool = field(init=False, repr=False)
    directory: Path = field(init=False, repr=False)
    digests: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.small = Pool(100, self.scale.distinct, self.seed)
        self.large = Pool(1024, max(1000, self.scale.distinct // 5000 * 1000), self.seed)

    @contextmanager
    def workspace(self) -> Iterator[None]:
        self.directory = Path(tempfile.mkdtemp(prefix="kreplog-bench-", dir=self.parent))
        self.digests, self.notes = {}, []
        try:
            yield
        finally:
            shutil.rmtree(self.directory)

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty folder inside the workspace, removed afterwards."""
        with tempfile.TemporaryDirectory(dir=self.directory) as name:
            yield Path(name)


Prepare = Callable[[Bench], Sequence[Contestant]]


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the table. `repetitions` (by scale) overrides the run's; less_is_better turns all its ratios round."""

    row: str
    title: str
    unit: str
    goals: tuple[Goal, ...]
    prepare: Prepare
    less_is_better: bool
    repetitions: Callable[[Scale], int]


WORKLOADS: list[Workload] = []


def workload(
    row: str,
    title: str,
    unit: str,
    *goals: Goal,
    less_is_better: bool = False,
    repetitions: Callable[[Scale], int] = lambda scale: scale.repetitions,
) -> Callable[[Prepare], Prepare]:
    """Register the decorated function as the workload of `row`."""

    def register(prepare: Prepare) -> Prepare:
        WORKLOADS.append(Workload(row, title, unit, goals, prepare, less_is_better, repetitions))
        return prepare

    return register


@dataclass(frozen=True, slots=True)
class Judgement:
    """A goal against what was measured: kreplog's ratio (or number) per repetition, and how far that reaches.

    `rival` names the best peer that won most often; for any other goal it is `goal.against`.
    """

    goal: Goal
    rival: str | None
    ratios: tuple[float, ...]
    verdict: Verdict

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)


@dataclass(slots=True)
class Outcome:
    """All of one workload: by contestant, a sample per repetition (in the unit), and a digest; or why it failed."""

    workload: Workload
    samples: dict[str, list[float]] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    judgements: list[Judgement] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failure: str = ""

    @property
    def kreplog(self) -> str:
        return next(name for name, role in self.roles.items() if role == "kreplog")


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection inside."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def timed(work: Callable[[], object]) -> float:
    """Seconds that one call of `work` takes."""
    with quiet():
        start = perf_counter()
        work()
        return perf_counter() - start


def run(workload: Workload, bench: Bench, step: Callable[[str], None]) -> Outcome:
    """Measure every contestant in every repetition, in an order that rotates; `step` gets the next one's name.

    A warm-up repetition, not counted, comes first where there is more than one. Raises whatever a contestant raises:
    none is dropped silently.
    """
    outcome = Outcome(workload)
    with bench.workspace():
        contestants = workload.prepare(bench)
        outcome.roles = {contestant.name: contestant.role for contestant in contestants}
        outcome.samples = {contestant.name: [] for contestant in contestants}
        repetitions = workload.repetitions(bench.scale)
        for repetition in range(-1 if repetitions > 1 else 0, repetitions):
            turn = repetition % len(contestants)
            for contestant in (*contestants[turn:], *contestants[:turn]):
                step(contestant.name)
                value = contestant.measure()
                if repetition >= 0:
                    outcome.samples[contestant.name].append(value)
        outcome.digests, outcome.notes = bench.digests, bench.notes
    outcome.judgements = [judge(outcome, goal) for goal in workload.goals]
    return outcome


def judge(outcome: Outcome, goal: Goal) -> Judgement:
    """Compare kreplog with `goal` in each repetition."""
    ours = outcome.samples[outcome.kreplog]
    less = outcome.workload.less_is_better
    if goal.against is None:
        return Judgement(goal, None, tuple(ours), _verdict(goal, statistics.median(ours), less))
    if goal.against == BEST_PEER:
        peers = {name: values for name, values in outcome.samples.items() if outcome.roles[name] == "peer"}
        best = min if less else max
        # `at=at` binds the loop variable; mypy cannot type a lambda with a default.
        winners = [best(peers, key=lambda name, at=at: peers[name][at]) for at in range(len(ours))]  # type: ignore[misc]
        theirs = [peers[name][at] for at, name in enumerate(winners)]
        rival = statistics.mode(winners)
    else:
        theirs, rival = outcome.samples[goal.against], goal.against
    ratios = tuple(their / our if less else our / their for our, their in zip(ours, theirs, strict=True))
    return Judgement(goal, rival, ratios, _verdict(goal, statistics.median(ratios), less=False))


def _verdict(goal: Goal, value: float, less: bool) -> Verdict:
    def reached(bound: float | None) -> bool:
        return bound is not None and (value <= bound if less else value >= bound)

    if goal.must is None and goal.stretch is None:
        return ""
    if reached(goal.stretch):
        return "stretch"
    return "must" if reached(goal.must) else "short"
