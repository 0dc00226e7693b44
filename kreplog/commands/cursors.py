"""`kreplog cursor`: the cursors of a topic in a folder, their committed offsets and lag.

Only arguments and output are here; kreplog.Topic does the work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import kreplog
from kreplog.commands.options import App, AsJson, print_json
from kreplog.errors import UsageError

app = App()

TopicPath = Annotated[Path, typer.Argument(help="The topic, <folder>/<topic>, without a partition's number.")]
CursorName = Annotated[str, typer.Argument(metavar="CURSOR", help="Name of the cursor.")]


@app.command("list")
def list_cursors(path: TopicPath, as_json: AsJson = False) -> None:
    """List cursors, work queues and the consumer groups of a broker: committed offset, high watermark and lag of each
    partition. Records that a work queue has acknowledged beyond the committed offset are not part of its lag."""
    with kreplog.Topic.open(path, read_only=True) as topic:
        offsets, lags = topic.offsets(), topic.lags()
        rows = [
            (name, number, committed, offsets[number].stop, lags.get(name, {}).get(number, 0))
            for name, committed_offsets in topic.committed_offsets().items()
            for number, committed in committed_offsets.items()
            if number in offsets
        ]
    columns = ("cursor", "partition", "committed", "high_watermark", "lag")
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
        return
    table = Table(*(column.replace("_", " ") for column in columns), box=None)
    for row in rows:
        table.add_row(*map(str, row))
    Console(soft_wrap=True).print(table)


@app.command()
def reset(
    path: TopicPath,
    cursor: CursorName,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the log start of every partition.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the high watermark of every partition.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", min=0, help="To an offset of one partition.")] = None,
    partition: Annotated[int | None, typer.Option("--partition", min=0, help="The partition of --to-offset.")] = None,
    as_json: AsJson = False,
) -> None:
    """Reset the committed offsets of a cursor, and print them. No process may have the cursor open."""
    if to_earliest + to_latest + (to_offset is not None) != 1 or (to_offset is None) != (partition is None):
        raise UsageError("give --to-earliest, --to-latest, or --to-offset with --partition")
    with kreplog.Topic.open(path, read_only=True) as topic, topic.cursor(cursor) as opened:
        if to_earliest:
            opened.seek_to_beginning()
        elif to_latest:
            opened.seek_to_end()
        elif partition is not None and to_offset is not None:
            opened.seek(partition, to_offset)
        opened.commit(durable=True)
        committed = opened.committed
    if as_json:
        print_json({str(number): offset for number, offset in sorted(committed.items())})
        return
    for number, offset in sorted(committed.items()):
        print(f"{topic.name}-{number} {offset}")
