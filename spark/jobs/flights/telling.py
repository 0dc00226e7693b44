"""What the demo says while it runs, and at its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table


class Steps:
    """What was done and proved so far, with the time each step took."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.rows: list[tuple[str, str, float]] = []

    @contextmanager
    def step(self, title: str) -> Iterator[list[str]]:
        """Run one step; the sentences it puts into the list say what it proved."""
        self.console.rule(f"[bold]{title}", align="left")
        proved: list[str] = []
        started = time.perf_counter()
        yield proved
        self.rows.append((title, "\n".join(proved), time.perf_counter() - started))
        self.console.print(*proved, sep="\n", highlight=False, soft_wrap=True)

    def print(self) -> None:
        table = Table("step", "what was proved", title="Proved", title_justify="left", show_lines=True)
        table.add_column("seconds", justify="right")
        for title, proved, seconds in self.rows:
            table.add_row(title, proved, f"{seconds:.1f}")
        table.add_row("all", "", f"{sum(seconds for _, _, seconds in self.rows):.1f}")
        self.console.print(table)


def records_bar(console: Console) -> Progress:
    """So many records of so many, and as the field `rate` so many a second."""
    return Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:,.0f} records/s"),
        TimeElapsedColumn(),
        console=console,
    )
