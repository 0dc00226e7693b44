"""The output of `kreplog simulate`: progress, totals, and the explanation of a failing seed."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kreplog.errors import UsageError
from kreplog.sim import faults, mutations, simulate
from kreplog.sim.cluster import Cluster
from kreplog.sim.history import Violation
from kreplog.sim.simulate import Options, Result
from kreplog.sim.trace import explanation
from kreplog.types import counted

TRACE_LINES = 60
SHRINK_RUNS = 60


def seeds_of(text: str) -> range:
    """`first:stop`, or one seed. Raises UsageError."""
    first, colon, stop = text.partition(":")
    try:
        seeds = range(int(first or 0), int(stop)) if colon else range(int(text), int(text) + 1)
    except ValueError as error:
        raise UsageError(f"--seeds {text}: give one seed, or two numbers as in 0:1000") from error
    if not seeds or seeds.start < 0:
        raise UsageError(f"--seeds {text}: the range is empty")
    return seeds


def options_of(brokers: str, kinds: str, log: str, mutation: str | None, only: str | None) -> Options:
    """Parse the options of the command line. Raises UsageError."""
    low, dots, high = brokers.partition("..")
    try:
        counts = (int(low), int(high if dots else low))
    except ValueError as error:
        raise UsageError(f"--brokers {brokers}: give a number, or two as in 3..5") from error
    if not 1 <= counts[0] <= counts[1] <= 9:
        raise UsageError(f"--brokers {brokers}: 1 to 9 brokers can be simulated")
    chosen = {"all": tuple(faults.KINDS), "none": ()}.get(kinds, tuple(kinds.split(",")))
    unknown = [kind for kind in chosen if kind not in faults.KINDS]
    if unknown:
        raise UsageError(f"--faults {kinds}: unknown are {', '.join(unknown)}; choose from {', '.join(faults.KINDS)}")
    if log not in ("model", "native", "both-by-seed"):
        raise UsageError(f"--log {log}: choose model, native or both-by-seed")
    if mutation is not None and mutation not in mutations.names():
        raise UsageError(f"--mutate {mutation}: unknown; --list-mutations prints all names")
    numbers = None
    if only is not None:
        try:
            numbers = () if only == "none" else tuple(int(number) for number in only.split(","))
        except ValueError as error:
            raise UsageError(f"--only {only}: give numbers of faults, as in 3,7, or none") from error
        if any(number < 0 for number in numbers):
            raise UsageError(f"--only {only}: faults are numbered from 0 on")
    return Options(counts, chosen, log, mutation, numbers)


class SeedFile(Protocol):
    """A file about one run of a seed. option: of the command line that names the path."""

    option: str
    path: Path

    def watch(self, cluster: Cluster) -> None:
        """Called before the run begins."""

    def write(self, result: Result, options: Options) -> None:
        """Called after the run, which was traced."""


def run(
    seeds: Sequence[int], options: Options, jobs: int, files: Sequence[SeedFile], as_json: bool, keep_going: bool
) -> bool:
    """Run the seeds and print the results; return whether all passed. keep_going: do not stop at the first failure.
    files: written about the first failing seed, or else about the last.

    The first failing seed is shrunk by runs with fewer faults, unless its faults were chosen. Raises UsageError, before
    any seed is run; KeyboardInterrupt, once the results until then are printed.
    """
    if options.only is not None:
        for seed in seeds:
            simulate.plan_of(seed, options)
    for file in files:
        _check_writable(file.option, file.path)
    started = time.perf_counter()
    results: list[Result] = []
    failed: list[Result] = []
    interrupted = False
    try:
        with _progress() as bar:
            task = bar.add_task("seeds", total=len(seeds))
            for result in simulate.run_seeds(seeds, options, jobs):
                results.append(result)
                bar.advance(task)
                if result.violations:
                    failed.append(result)
                    if not keep_going:
                        break
    except KeyboardInterrupt:
        if not results:
            raise
        interrupted = True
        print(f"interrupted after {counted(len(results), 'seed')} of {len(seeds):,}", file=sys.stderr)
    seconds = time.perf_counter() - started
    shrunk = None
    if failed and options.only is not None:
        shrunk = options, failed[0]
    elif failed:
        if not as_json:
            print(f"seed {failed[0].seed} violates a guarantee; searching for a minimal set of faults")
        shrunk = simulate.shrink(failed[0], options, SHRINK_RUNS)
    facts = _facts(results, failed, options, shrunk, seconds)
    if files or (shrunk is not None and not as_json):
        smaller, shown = shrunk or (options, results[-1])
        traced = simulate.run_seed(shown.seed, smaller, True, [file.watch for file in files])
        for file in files:
            file.write(traced, smaller)
        if shrunk is not None and not as_json:
            explain(traced, smaller, options)
    if as_json:
        print(json.dumps(facts))
    else:
        for result in failed[1:]:
            print(f"seed {result.seed}: {result.violations[0].kind}: {result.violations[0].text}")
            print(f"  replay: {options.command(result.seed)}")
        _print_totals(facts)
    if interrupted:
        raise KeyboardInterrupt
    return not failed


class TraceFile:
    """The trace of a run, as JSON."""

    option = "--trace"

    def __init__(self, path: Path) -> None:
        self.path = path

    def watch(self, cluster: Cluster) -> None:
        pass

    def write(self, result: Result, options: Options) -> None:
        content = {
            "seed": result.seed,
            "replay": options.command(result.seed),
            "only": None if options.only is None else list(options.only),
            "violations": [_violation(violation) for violation in result.violations],
            "stats": result.stats,
            "digest": result.digest,
            "trace": [line.as_json() for line in result.lines],
        }
        self.path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def explain(traced: Result, smaller: Options, options: Options) -> None:
    """Print the seed, its violations, the lines that led to them, and the command that replays it.

    smaller: the options of `traced`, shrunk from `options`, with which the seed failed.
    """
    print(f"seed {traced.seed} violates a guarantee:")
    for violation in traced.violations:
        print(f"  {violation.kind}: {violation.text}")
    partitions = {partition for violation in traced.violations for partition in violation.partitions}
    lines = explanation(traced.lines, partitions)
    left_out = max(len(lines) - TRACE_LINES, 0)
    names = ", ".join(str(partition) for partition in sorted(partitions)) or "all partitions"
    print(f"trace of {names}" + (f" ({counted(left_out, 'line')} before left out)" if left_out else "") + ":")
    for line in lines[left_out:]:
        print(f"  {_short(str(line))}")
    print(f"replay: {smaller.command(traced.seed)}")
    if smaller != options:
        print(f"with all its faults: {options.command(traced.seed)}")


def _short(text: str, most: int = 300) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _facts(
    results: list[Result],
    failed: list[Result],
    options: Options,
    shrunk: tuple[Options, Result] | None,
    seconds: float,
) -> dict[str, Any]:
    """The report as JSON has it.

    shrunk: the first failing seed with fewer faults; the others are reported as they were run."""
    reported = [(result, options) for result in failed]
    if shrunk is not None:
        reported[0] = shrunk[1], shrunk[0]
    return {
        "seeds": len(results),
        "seconds": round(seconds, 3),
        "seeds_per_second": round(len(results) / seconds, 2) if seconds else 0.0,
        "virtual_seconds": sum(result.virtual_ms for result in results) // 1000,
        "totals": dict(sorted(simulate.total(results).items())),
        "violations": [
            {
                "seed": result.seed,
                **_violation(violation),
                "only": None if ran_with.only is None else list(ran_with.only),
                "replay": ran_with.command(result.seed),
            }
            for result, ran_with in reported
            for violation in result.violations
        ],
    }


def _violation(violation: Violation) -> dict[str, Any]:
    return {
        "kind": violation.kind,
        "text": violation.text,
        "partitions": [str(partition) for partition in violation.partitions],
    }


def _print_totals(facts: dict[str, Any]) -> None:
    totals = ", ".join(f"{name}: {count:,}" for name, count in facts["totals"].items())
    failed = len({violation["seed"] for violation in facts["violations"]})
    print(
        f"{counted(facts['seeds'], 'seed')} in {facts['seconds']:.1f} s ({facts['seeds_per_second']:.1f} seeds/s), "
        f"{facts['virtual_seconds']:,} s of virtual time; {totals}"
    )
    print(f"{counted(failed, 'seed')} violated a guarantee" if failed else "no guarantee was violated")


def _check_writable(option: str, path: Path) -> None:
    """Raise UsageError if the file cannot be written, before the run instead of after it."""
    if path.is_dir():
        raise UsageError(f"{option} {path}: it is a directory; name a file", path=str(path))
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: there is no directory {path.parent}", path=str(path))
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(f"{option} {path}: it cannot be written", path=str(path))


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
