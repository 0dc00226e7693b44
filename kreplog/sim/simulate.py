"""Runs of seeds: one from start to end, or many on several processes.

A seed is a phase of faults, then a phase without, in which the cluster must come to rest, then the final checks. The
same seed and options replay exactly.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from kreplog.core.replication.sequence_grace import SEQUENCE_GAP_GRACE_MS
from kreplog.errors import UsageError
from kreplog.sim import faults, mutations
from kreplog.sim.cluster import Cluster
from kreplog.sim.history import Violation
from kreplog.sim.machines.disk import Disks
from kreplog.sim.machines.scheduler import MS
from kreplog.sim.trace import TraceLine

REST_LIMIT_MS = 100_000 + SEQUENCE_GAP_GRACE_MS
"""Time that the cluster may take to come to rest after the last fault."""

THROTTLED_REST_LIMIT_MS = 300_000 + SEQUENCE_GAP_GRACE_MS
"""As REST_LIMIT_MS, where replication is throttled: one leader may have to send all partitions to two followers each,
and a reassignment that they complete begins another leader epoch."""

REST_CHECK_MS = 200
CALM_MS = 1000
"""Time that clients continue after the last fault."""

CHUNK = 4


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run. brokers: minimum and maximum at the start. faults: kinds to draw from. only: numbers of the
    plan's
    actions to inject; None for all. log: "model", "native" or "both-by-seed". mutation: its name, None for none."""

    brokers: tuple[int, int] = (3, 5)
    faults: tuple[str, ...] = tuple(faults.KINDS)
    log: str = "both-by-seed"
    mutation: str | None = None
    only: tuple[int, ...] | None = None

    def command(self, seed: int) -> str:
        """The command that replays this seed."""
        default = Options()
        words = ["kreplog simulate --seeds", str(seed)]
        if self.brokers != default.brokers:
            words.append(f"--brokers {self.brokers[0]}..{self.brokers[1]}")
        if self.faults != default.faults:
            words.append(f"--faults {','.join(self.faults) or 'none'}")
        if self.log != default.log:
            words.append(f"--log {self.log}")
        if self.mutation is not None:
            words.append(f"--mutate {self.mutation}")
        if self.only is not None:
            words.append(f"--only {','.join(map(str, self.only)) or 'none'}")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a seed. fingerprint: of the course the seed took; digest: of its whole trace, where there is one
    ("")."""

    seed: int
    violations: tuple[Violation, ...]
    stats: dict[str, int]
    fingerprint: int
    virtual_ms: int
    digest: str = ""
    lines: tuple[TraceLine, ...] = field(default=(), repr=False)


def plan_of(seed: int, options: Options) -> faults.SimulationPlan:
    """The plan of a seed. Raises UsageError for faults that it does not have."""
    plan = faults.draw(seed, options.brokers, options.faults, options.log)
    if options.only is None:
        return plan
    count = len(plan.actions)
    unknown = [number for number in options.only if not 0 <= number < count]
    if unknown:
        numbers = f"its faults are 0 to {count - 1}" if count else "it has no faults"
        raise UsageError(f"--only {','.join(map(str, unknown))}: not in seed {seed}: {numbers}")
    return replace(plan, actions=tuple(plan.actions[number] for number in sorted(set(options.only))))


def run_seed(
    seed: int, options: Options, traced: bool = False, watchers: Iterable[Callable[[Cluster], object]] = ()
) -> Result:
    """Run one seed. watchers: called with its cluster before it starts; they may set its listeners and observers, which
    change nothing of the run. Raises UsageError as plan_of does."""
    plan = plan_of(seed, options)
    mutated = nullcontext() if options.mutation is None else mutations.applied(options.mutation)
    with mutated, Disks("native" if plan.native else "model", segment_bytes=1500) as disks:
        cluster = Cluster(plan, disks, traced)
        for watch in watchers:
            watch(cluster)
        cluster.start()
        violations = _run(cluster)
    trace = cluster.trace
    return Result(
        seed,
        tuple(violations),
        dict(cluster.stats()),
        cluster.scheduler.fingerprint,
        cluster.scheduler.now_ms,
        trace.digest() if traced else "",
        tuple(trace.lines),
    )


def _run(cluster: Cluster) -> list[Violation]:
    scheduler = cluster.scheduler
    _run_until(cluster, cluster.plan.duration_ms * MS)
    cluster.injector.heal()
    limit_ms = (
        THROTTLED_REST_LIMIT_MS
        if cluster.plan.config.leader_replication_throttled_rate == faults.THROTTLED_RATE
        else REST_LIMIT_MS
    )
    limit_us = scheduler.now_us + limit_ms * MS
    _run_until(cluster, scheduler.now_us + CALM_MS * MS)
    cluster.stop_clients()
    unrest = cluster.unrest()
    while scheduler.now_us < limit_us and not cluster.broken:
        _run_until(cluster, scheduler.now_us + REST_CHECK_MS * MS)
        unrest = cluster.unrest()
        if unrest is None and cluster.clients_done():
            cluster.checkers.transactions.judge()
            break
    violations = [*cluster.failures, *cluster.verdict(at_rest=unrest is None and not cluster.broken)]
    if unrest is not None and not violations:
        reason, partitions = unrest
        text = f"{limit_ms // 1000} s after the last fault {reason}"
        violations.append(Violation("not at rest", text, partitions))
    elif not cluster.clients_done() and not violations:
        waiting = [name for name, client in cluster.clients.items() if not client.done]
        violations.append(Violation("clients wait", f"{', '.join(waiting)} could not finish in a cluster at rest"))
    return violations


def _run_until(cluster: Cluster, end_us: int) -> None:
    """Run until `end_us`, or until a guarantee is violated, after which the rest of the run is irrelevant."""
    scheduler = cluster.scheduler
    while scheduler.now_us < end_us and not cluster.broken:
        scheduler.run_until(min(end_us, scheduler.now_us + REST_CHECK_MS * MS))


def run_seeds(seeds: Sequence[int], options: Options, jobs: int) -> Iterator[Result]:
    """The results of `seeds`, in their order."""
    if jobs <= 1:
        for seed in seeds:
            yield run_seed(seed, options)
        return
    chunks = [(tuple(seeds[at : at + CHUNK]), options) for at in range(0, len(seeds), CHUNK)]
    context = multiprocessing.get_context("spawn")
    # Ctrl-C reaches the workers too, which the parent ends.
    with context.Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        for results in pool.imap(_run_chunk, chunks):
            yield from results


def _run_chunk(chunk: tuple[tuple[int, ...], Options]) -> list[Result]:
    seeds, options = chunk
    return [run_seed(seed, options) for seed in seeds]


def shrink(failed: Result, options: Options, runs: int) -> tuple[Options, Result]:
    """Find fewer faults that still violate the same guarantee of the same partition.

    Drops halves, then smaller pieces, for at most `runs` runs. The returned options name the remaining
    faults; the result is that of a run with them, with whatever else it breaks.
    """
    guarantees = {violation.guarantee for violation in failed.violations}
    count = len(plan_of(failed.seed, options).actions)
    remaining = list(range(count)) if options.only is None else sorted(set(options.only))
    best = failed
    size = max(len(remaining) // 2, 1)
    while remaining and runs > 0:
        at, dropped = 0, False
        while at < len(remaining) and runs > 0:
            candidate = remaining[:at] + remaining[at + size :]
            runs -= 1
            result = run_seed(failed.seed, replace(options, only=tuple(candidate)))
            if any(violation.guarantee in guarantees for violation in result.violations):
                remaining, best, dropped = candidate, result, True
            else:
                at += size
        if size == 1 and not dropped:
            break
        size = max(size // 2, 1)
    return replace(options, only=tuple(remaining)), best


def total(results: Sequence[Result]) -> Counter[str]:
    """The sum of all stats."""
    totals: Counter[str] = Counter()
    for result in results:
        totals.update(result.stats)
    return totals
