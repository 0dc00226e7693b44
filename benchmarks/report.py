"""What a run says: the machine, a table for the terminal, the same in Markdown, and all samples as JSON."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

import kreplog
from benchmarks import ceiling
from benchmarks.harness import BEST_PEER, Bench, Judgement, Outcome
from kreplog._native import crc32c

_VERDICTS = {"stretch": "stretch", "must": "yes", "short": "NO", "": ""}
_STYLES = {"stretch": "bold green", "must": "green", "short": "bold red", "": ""}
_COLUMNS = ("row", "workload", "kreplog", "against", "ratio (range)", "must", "stretch", "reached")
_PACKAGES = ("aiokafka", "lmdb", "lz4", "pyarrow", "rocksdict")


def host(folder: Path) -> dict[str, str]:
    """The machine and its Python. folder: where the files of a run are."""
    usage = os.statvfs(folder)
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores, {_memory_gib():.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, {_filesystem(folder)}, "
        f"{usage.f_bavail * usage.f_frsize / 2**30:.0f} GiB free",
        "load at the start": f"{os.getloadavg()[0]:.2f}",
        "python": f"{platform.python_implementation()} {platform.python_version()}, {platform.python_compiler()}",
    }


def machine(bench: Bench) -> dict[str, str]:
    """The facts about the machine that one must know to compare two runs."""
    return {
        **host(bench.parent),
        "crc32c": f"kreplog: {crc32c.implementation()}; ceiling: {ceiling.implementation()}",
        "packages": ", ".join([f"kreplog {kreplog.__version__}", *(f"{name} {_version(name)}" for name in _PACKAGES)]),
        "seed": f"{bench.seed}; {bench.scale.small_records:,} records of 100 B, {bench.scale.large_records:,} of 1 KiB",
    }


def show(console: Console, outcomes: Sequence[Outcome], facts: dict[str, str]) -> None:
    """Print the goals, then every contestant's numbers."""
    goals = Table(*_COLUMNS, title="kreplog against its ceiling and its peers", box=box.SIMPLE_HEAVY)
    for outcome in outcomes:
        for number, (row, style) in enumerate(_goal_rows(outcome)):
            goals.add_row(*(row if number == 0 else ("", "", "", *row[3:])), style=style)
    everyone = Table("row", "contestant", "median", "min", "max", "digest", title="everyone", box=box.SIMPLE_HEAVY)
    for outcome in outcomes:
        for row in _sample_rows(outcome):
            everyone.add_row(*row)
    console.print(goals, everyone)
    for name, fact in facts.items():
        console.print(f"[bold]{name}[/]: {fact}", highlight=False)
    for outcome in outcomes:
        for note in dict.fromkeys(outcome.notes):
            console.print(f"{outcome.workload.row}: {note}", style="yellow", highlight=False)


def markdown(outcomes: Sequence[Outcome], facts: dict[str, str], command: str) -> str:
    """The goals as a table for docs/benchmarks.md, with the machine and the command that made it."""
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|" + " --- |" * len(_COLUMNS)]
    for outcome in outcomes:
        for number, (row, _) in enumerate(_goal_rows(outcome)):
            lines.append("| " + " | ".join(row if number == 0 else ("", "", "", *row[3:])) + " |")
    lines += ["", f"Made by `{command}`.", "", *(f"- {name}: {fact}" for name, fact in facts.items()), ""]
    return "\n".join(lines)


def as_json(outcomes: Sequence[Outcome], facts: dict[str, str], bench: Bench) -> dict[str, Any]:
    """Every sample, digest and judgement."""
    return {
        "machine": facts,
        "scale": asdict(bench.scale),
        "seed": bench.seed,
        "rows": [
            {
                "row": outcome.workload.row,
                "title": outcome.workload.title,
                "unit": outcome.workload.unit,
                "less_is_better": outcome.workload.less_is_better,
                "failure": outcome.failure,
                "notes": outcome.notes,
                "samples": outcome.samples,
                "roles": outcome.roles,
                "digests": outcome.digests,
                "goals": [asdict(judgement) for judgement in outcome.judgements],
            }
            for outcome in outcomes
        ],
    }


def _goal_rows(outcome: Outcome) -> list[tuple[tuple[str, ...], str]]:
    """A table row and its style for each goal; one row that says why where the workload failed."""
    workload = outcome.workload
    if outcome.failure:
        return [((workload.row, workload.title, "failed", outcome.failure, "", "", "", "NO"), _STYLES["short"])]
    ours = f"{_number(statistics.median(outcome.samples[outcome.kreplog]))} {workload.unit}"
    return [
        (
            (
                workload.row,
                workload.title,
                ours,
                _rival(outcome, judgement),
                _ratio(judgement),
                _bound(outcome, judgement, judgement.goal.must),
                _bound(outcome, judgement, judgement.goal.stretch),
                _VERDICTS[judgement.verdict],
            ),
            _STYLES[judgement.verdict],
        )
        for judgement in outcome.judgements
    ]


def _rival(outcome: Outcome, judgement: Judgement) -> str:
    if judgement.rival is None:
        return "itself"
    theirs = _number(statistics.median(outcome.samples[judgement.rival]))
    if judgement.goal.against == BEST_PEER:
        return f"{BEST_PEER}, {judgement.rival}: {theirs}"
    return f"{judgement.rival}: {theirs}"


def _ratio(judgement: Judgement) -> str:
    low, high = min(judgement.ratios), max(judgement.ratios)
    if judgement.goal.against is None:
        return f"{_number(judgement.median)} ({_number(low)}..{_number(high)})"
    return f"{judgement.median:.2f} ({low:.2f}..{high:.2f})"


def _bound(outcome: Outcome, judgement: Judgement, bound: float | None) -> str:
    if bound is None:
        return ""
    if judgement.goal.against is None:
        return f"{'<=' if outcome.workload.less_is_better else '>='} {bound:g} {outcome.workload.unit}"
    return f">= {bound:.2f}"


def _sample_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    unit = outcome.workload.unit
    return [
        (
            outcome.workload.row if number == 0 else "",
            name,
            f"{_number(statistics.median(values))} {unit}",
            _number(min(values)),
            _number(max(values)),
            outcome.digests.get(name, ""),
        )
        for number, (name, values) in enumerate(outcome.samples.items())
        if values
    ]


def _number(value: float) -> str:
    """Three significant digits, with k and M for thousands and millions."""
    for factor, suffix in ((1e6, "M"), (1e4, "k")):
        if value >= factor:
            scaled = value / (1e6 if suffix == "M" else 1e3)
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{suffix}"
    return f"{value:.{2 if value < 10 else 1}f}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _filesystem(path: Path) -> str:
    """The file system that holds `path`, from the longest mount point above it."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown file system"
    above = [mount for mount in mounts if path.resolve().is_relative_to(mount[1])]
    return max(above, key=lambda mount: len(mount[1]))[2]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
