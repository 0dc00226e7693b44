"""The steps of the demo: what each has shown and how long it took, as it runs and as a table at the end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table


class Steps:
    """The steps so far: title, findings, seconds."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rows: list[tuple[str, str, float]] = []

    @contextmanager
    def step(self, title: str) -> Iterator[list[str]]:
        """Run one step; its block appends its findings to the list, as sentences."""
        self.console.rule(f"[bold]{title}", align="left")
        findings: list[str] = []
        started = time.perf_counter()
        yield findings
        self.rows.append((title, "\n".join(findings), time.perf_counter() - started))
        self.console.print(*findings, sep="\n", highlight=False, soft_wrap=True)

    def print(self) -> None:
        table = Table("step", "findings", title="In short", title_justify="left", show_lines=True)
        table.add_column("seconds", justify="right")
        for title, findings, seconds in self.rows:
            table.add_row(title, findings, f"{seconds:.1f}")
        table.add_row("all", "", f"{sum(seconds for _, _, seconds in self.rows):.1f}")
        self.console.print(table)
