"""What `kreplog simulate` prints: progress, totals, and of a failing seed the little that tells what went wrong."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kreplog.errors import UsageError
from kreplog.sim import faults, mutations, simulate
from kreplog.sim.simulate import Options, Result
from kreplog.sim.trace import explanation

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
        raise UsageError(f"--seeds {text}: there is no seed in it")
    return seeds


def options_of(brokers: str, kinds: str, log: str, mutation: str | None, only: str | None) -> Options:
    """The options as they are written on the command line. Raises UsageError."""
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
        raise UsageError(f"--faults {kinds}: not known are {', '.join(unknown)}; choose of {', '.join(faults.KINDS)}")
    if log not in ("model", "native", "both-by-seed"):
        raise UsageError(f"--log {log}: choose model, native or both-by-seed")
    if mutation is not None and mutation not in mutations.names():
        raise UsageError(f"--mutate {mutation}: not known; --list-mutations prints those that are")
    numbers = None
    if only is not None:
        try:
            numbers = () if only == "none" else tuple(int(number) for number in only.split(","))
        except ValueError as error:
            raise UsageError(f"--only {only}: give numbers of faults, as in 3,7, or none") from error
    return Options(counts, chosen, log, mutation, numbers)


def run(seeds: Sequence[int], options: Options, jobs: int, trace: Path | None, as_json: bool, keep_going: bool) -> bool:
    """Run the seeds and print what came of them; whether all went well. Stops at the first that fails, unless told."""
    started = time.perf_counter()
    results: list[Result] = []
    failed: list[Result] = []
    with _progress() as bar:
        task = bar.add_task("seeds", total=len(seeds))
        for result in simulate.run_seeds(seeds, options, jobs):
            results.append(result)
            bar.advance(task)
            if result.violations:
                failed.append(result)
                if not keep_going:
                    break
    seconds = time.perf_counter() - started
    facts = _facts(results, failed, options, seconds)
    if trace is not None:
        shown = failed[0] if failed else results[-1]
        _write_trace(trace, simulate.run_seed(shown.seed, options, traced=True), options)
    if as_json:
        print(json.dumps(facts))
    else:
        for result in failed[:1]:
            explain(result, options)
        for result in failed[1:]:
            print(f"seed {result.seed}: {result.violations[0].kind}: {result.violations[0].what}")
            print(f"  replay: {options.command(result.seed)}")
        _print_totals(facts)
    return not failed


def explain(failed: Result, options: Options) -> None:
    """The seed, its violations, how it came to them, and the command that shows it again."""
    print(f"seed {failed.seed} breaks a promise:")
    smaller, _ = simulate.shrink(failed, options, SHRINK_RUNS)
    result = simulate.run_seed(failed.seed, smaller, traced=True)
    for violation in result.violations:
        print(f"  {violation.kind}: {violation.what}")
    partitions = {partition for violation in result.violations for partition in violation.partitions}
    lines = explanation(result.lines, partitions)
    left_out = max(len(lines) - TRACE_LINES, 0)
    names = ", ".join(str(partition) for partition in sorted(partitions)) or "everything"
    print(f"what happened to {names}" + (f" ({left_out} lines before left out)" if left_out else "") + ":")
    for line in lines[left_out:]:
        print(f"  {_short(str(line))}")
    print(f"replay: {options.command(failed.seed)}")
    if smaller != options:
        print(f"with fewer faults: {smaller.command(failed.seed)}")


def _short(text: str, most: int = 300) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _facts(results: list[Result], failed: list[Result], options: Options, seconds: float) -> dict[str, Any]:
    return {
        "seeds": len(results),
        "seconds": round(seconds, 3),
        "seeds_per_second": round(len(results) / seconds, 2) if seconds else 0.0,
        "virtual_seconds": sum(result.virtual_ms for result in results) // 1000,
        "totals": dict(sorted(simulate.total(results).items())),
        "violations": [
            {
                "seed": result.seed,
                "kind": violation.kind,
                "what": violation.what,
                "partitions": [str(partition) for partition in violation.partitions],
                "replay": options.command(result.seed),
            }
            for result in failed
            for violation in result.violations
        ],
    }


def _print_totals(facts: dict[str, Any]) -> None:
    totals = ", ".join(f"{name}: {count:,}" for name, count in facts["totals"].items())
    failed = len({violation["seed"] for violation in facts["violations"]})
    print(
        f"{facts['seeds']:,} seeds in {facts['seconds']:.1f} s ({facts['seeds_per_second']:.1f} seeds/s), "
        f"{facts['virtual_seconds']:,} s of virtual time; {totals}"
    )
    print(f"{failed} seeds broke a promise" if failed else "no promise was broken")


def _write_trace(path: Path, result: Result, options: Options) -> None:
    content = {
        "seed": result.seed,
        "replay": options.command(result.seed),
        "violations": [
            {"kind": one.kind, "what": one.what, "partitions": [str(partition) for partition in one.partitions]}
            for one in result.violations
        ],
        "stats": result.stats,
        "digest": result.digest,
        "trace": [line.as_json() for line in result.lines],
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


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
