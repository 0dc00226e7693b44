"""Entry of `make bench`: run the workloads, print the table, save it as JSON and Markdown.

    python -m benchmarks.run                      every row
    python -m benchmarks.run --only W1,W2 --repetitions 9
    python -m benchmarks.run --quick              tiny; says whether it works, not how fast it is

Exits 1 when a workload failed (an exception or a wrong record). A goal not reached shows in the table alone.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import bench_append, bench_codec, bench_fetch, bench_recovery, bench_size, report
from benchmarks.harness import QUICK, WORKLOADS, Bench, Outcome, Scale, Workload, run

# Importing the modules registers their workloads, in the order of the table.
MODULES = (bench_append, bench_fetch, bench_codec, bench_recovery, bench_size)
RESULTS = Path(__file__).parent / "results"


def main(
    only: Annotated[str, typer.Option(help="Rows to run, as in W1,W2.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes: tests that it works.")] = False,
    repetitions: Annotated[int, typer.Option(min=0, help="Repetitions of each row; 0 keeps the default (5).")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the records and of the random offsets.")] = 1,
    behind: Annotated[float, typer.Option(min=0.0, help="GB that the log of row WG holds already.")] = 1.0,
    directory: Annotated[Path | None, typer.Option(help="Where scratch folders are made; on a real disk.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for results.json and results.md.")] = RESULTS,
) -> None:
    """kreplog against its ceiling and against what a Python user would pick instead."""
    console = Console(width=None if sys.stdout.isatty() else 170)
    chosen = _choose(only)
    scale = QUICK if quick else replace(Scale(), behind_gb=behind)
    if repetitions:
        scale = replace(scale, repetitions=repetitions, commit_rounds=max(repetitions, scale.commit_rounds))
    bench = Bench(scale, seed, _scratch(directory, scale))
    facts = report.machine(bench)
    console.print(f"seed {seed}, {len(chosen)} rows, scratch folders in {bench.parent}", highlight=False)
    outcomes = _run_all(console, chosen, bench)
    report.show(console, outcomes, facts)
    out.mkdir(parents=True, exist_ok=True)
    command = " ".join(["python -m benchmarks.run", *sys.argv[1:]])
    (out / "results.json").write_text(json.dumps(report.as_json(outcomes, facts, bench), indent=1) + "\n")
    (out / "results.md").write_text(report.markdown(outcomes, facts, command))
    console.print(f"saved {out / 'results.json'} and {out / 'results.md'}", highlight=False)
    if any(outcome.failure for outcome in outcomes):
        raise typer.Exit(1)


def _choose(only: str) -> list[Workload]:
    """Workloads by row, in the table's order. Exits with the known ones when a row does not exist."""
    wanted = {row.strip() for row in only.split(",") if row.strip()}
    unknown = wanted - {workload.row for workload in WORKLOADS}
    if unknown:
        known = ", ".join(workload.row for workload in WORKLOADS)
        raise typer.BadParameter(f"no row {', '.join(sorted(unknown))}; there are {known}")
    return [workload for workload in WORKLOADS if not wanted or workload.row in wanted]


def _scratch(directory: Path | None, scale: Scale) -> Path:
    """The parent of scratch folders. Exits when the disk cannot hold the largest workload twice over."""
    parent = directory or Path(tempfile.gettempdir())
    needed = 2 * (scale.behind_gb * 1e9 + scale.small_records * 1200 + scale.unclean_large_mb * 1e6)
    free = shutil.disk_usage(parent).free
    if free < needed:
        raise typer.BadParameter(
            f"{parent} has {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB may be needed: give another with --directory"
        )
    return parent


def _run_all(console: Console, workloads: list[Workload], bench: Bench) -> list[Outcome]:
    outcomes: list[Outcome] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(workloads))
        for workload in workloads:

            def step(name: str, workload: Workload = workload) -> None:
                progress.update(task, description=f"{workload.row} {workload.title}: {name}")

            step("preparing")
            start = perf_counter()
            outcomes.append(run_one(console, workload, bench, step))
            console.print(f"{workload.row:4} {workload.title}: {perf_counter() - start:.1f} s", highlight=False)
            progress.advance(task)
    return outcomes


def run_one(console: Console, workload: Workload, bench: Bench, step: Callable[[str], None]) -> Outcome:
    """The workload's outcome; an exception becomes its failure, printed at once, and the rows after it still run."""
    try:
        return run(workload, bench, step)
    except Exception as error:
        console.print_exception()
        return Outcome(workload, failure=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    typer.run(main)
