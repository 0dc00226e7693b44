"""`kreplog top`: a cluster in the terminal, as it changes."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kreplog.client.bootstrap import UnreachableError
from kreplog.commands.console import cluster_source
from kreplog.commands.options import App, Bootstrap, CommandConfig, OptionalDir
from kreplog.errors import UsageError

if TYPE_CHECKING:
    from kreplog.console.cluster_source import ClusterSource

RATE_INTERVAL_S = 1.0

top_app = App()


@top_app.command()
def top(
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame, as where the output is not a terminal.")
    ] = False,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
) -> None:
    """Show brokers, topics and groups in the terminal, as they change: problems first, then the busiest, then lag."""
    try:
        from kreplog.console.terminal import TerminalView
    except ModuleNotFoundError as error:
        raise UsageError(
            f"kreplog top needs {error.name}, which is not installed: pip install 'kreplog[console]'"
        ) from error
    source = cluster_source(cluster, bootstrap, command_config)
    console = Console(highlight=False, emoji=False, markup=False)
    once = once or not sys.stdout.isatty() or console.is_dumb_terminal

    async def run(source: ClusterSource) -> None:
        try:
            view = TerminalView(source, console)
            if not once:
                await view.run()
            elif error := await view.print_once(RATE_INTERVAL_S):
                raise UnreachableError(error)
        finally:
            await source.close()

    asyncio.run(run(source))
