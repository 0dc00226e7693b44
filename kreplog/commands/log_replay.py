"""`kreplog cluster replay`: what the brokers of a cluster have logged, as a page to step through."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.commands.options import ClusterDir
from kreplog.errors import UsageError
from kreplog.replay import broker_logs
from kreplog.replay.page import render
from kreplog.types import counted

FORMATS = ["%H:%M:%S", "%Y-%m-%dT%H:%M:%S"]


def replay(
    directory: ClusterDir,
    html: Annotated[Path, typer.Option("--html", help="File of the page, which any browser opens.")],
    since: Annotated[
        datetime | None,
        typer.Option(
            "--since", formats=FORMATS, help="Begin at this time, in UTC; without a date on the last line's day."
        ),
    ] = None,
    until: Annotated[
        datetime | None, typer.Option("--until", formats=FORMATS, help="End at this time, in UTC.")
    ] = None,
) -> None:
    """Write what the brokers have logged as a page: elections, ISR changes and controllers' requests, event by event.

    It reads the log files alone, of running brokers and of stopped ones."""
    if not html.parent.is_dir():
        raise UsageError(f"--html {html}: there is no directory {html.parent}", path=str(html))
    cluster = LocalCluster(directory)
    recording = broker_logs.record({broker: cluster.home(broker) / "logs" for broker in cluster.brokers}, since, until)
    recording.limit()
    html.write_text(render(recording), encoding="utf-8")
    print(f"{html}: {counted(len(recording.events), 'event')}. {recording.about}")
