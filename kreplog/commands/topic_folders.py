"""`kreplog topic list` and `describe` with --folder: topics in a folder, without brokers or the extra `cluster`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

import kreplog
from kreplog.commands.options import App, AsJson, print_json
from kreplog.types import counted, topic_id_text

app = App("List and describe the topics of a folder; for those of a cluster: pip install 'kreplog[cluster]'.")

FOLDER = typer.Option("--folder", "-f", help="Folder with topics, as kreplog.Topic or a broker has it.")
TopicName = Annotated[str, typer.Argument(help="Name of the topic.")]

_COLUMNS = ("partition", "log_start_offset", "high_watermark", "log_end_offset", "bytes")


@app.command("list")
def list_in_folder(folder: Annotated[Path, FOLDER], as_json: AsJson = False) -> None:
    """List the topics of a folder."""
    print_names(kreplog.Topic.names(folder), as_json)


def print_names(names: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"topics": names})
    else:
        for name in names:
            print(name)


@app.command("describe")
def describe_in_folder(name: TopicName, folder: Annotated[Path, FOLDER], as_json: AsJson = False) -> None:
    """Show a topic's id, and the offsets and size of each partition in the folder; takes no lock, changes nothing."""
    with kreplog.Topic.open(folder / name, read_only=True) as topic:
        topic_id = topic.topic_id and topic_id_text(topic.topic_id)
        logs = {number: topic.log(number) for number in topic.offsets()}
        rows = [
            (number, log.log_start_offset, log.high_watermark, log.log_end_offset, log.size)
            for number, log in logs.items()
        ]
    if as_json:
        partitions = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
        print_json({"name": topic.name, "topic_id": topic_id, "partitions": partitions})
        return
    print(f"{topic.name} ({topic_id}): {counted(len(rows), 'partition')}")
    table = Table(*(column.replace("_", " ") for column in _COLUMNS), box=None)
    for row in rows:
        table.add_row(str(row[0]), *(f"{number:,}" for number in row[1:]))
    Console(soft_wrap=True).print(table)
