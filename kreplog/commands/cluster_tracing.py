"""`kreplog trace`: a running cluster for some seconds, as a page to step through."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kreplog.commands.console import cluster_source, log_folders
from kreplog.commands.options import App, Bootstrap, CommandConfig, OptionalDir
from kreplog.console import tracing
from kreplog.errors import UsageError
from kreplog.replay.page import render
from kreplog.replay.recording import Recording
from kreplog.types import check_topic, counted

if TYPE_CHECKING:
    from kreplog.console.cluster_source import ClusterSource

trace_app = App()


@trace_app.command()
def trace(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="Topics whose partitions are traced.")],
    html: Annotated[Path, typer.Option("--html", help="File of the page, which any browser opens.")],
    seconds: Annotated[
        float, typer.Option("--seconds", min=1, max=tracing.MAX_SECONDS, help="How long; Ctrl-C ends it earlier.")
    ] = 30.0,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Trace a running cluster: leaders, ISRs, offsets of replicas, and with --cluster what the brokers log meanwhile.

    The page is the one of `kreplog cluster replay`."""
    if not html.parent.is_dir():
        raise UsageError(f"--html {html}: there is no directory {html.parent}", path=str(html))
    try:
        source = cluster_source(cluster, bootstrap, command_config)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"kreplog trace needs {error.name}, which is not installed: pip install 'kreplog[console]'"
        ) from error
    names = [check_topic(topic) for topic in topics]
    recording = asyncio.run(_traced(source, names, seconds, log_folders(cluster, bootstrap)))
    html.write_text(render(recording), encoding="utf-8")
    print(f"{html}: {counted(len(recording.events), 'event')}. {recording.about}")


async def _traced(
    source: ClusterSource, topics: list[str], seconds: float, log_folders: Mapping[int, Path]
) -> Recording:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    return await tracing.trace(source, topics, seconds, stop, log_folders)
