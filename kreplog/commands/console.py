"""`kreplog console`: a page in the browser that shows a cluster, or a directory of logs, as it changes; and replays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.cluster.state_change_log import StateChangeLogs
from kreplog.commands.connecting import bootstrap_servers
from kreplog.commands.options import App, Bootstrap, CommandConfig, OptionalDir
from kreplog.errors import UsageError

if TYPE_CHECKING:
    from kreplog.console.cluster_source import ClusterSource
    from kreplog.console.live import Source
    from kreplog.console.replays import Replays

DEFAULT_PORT = 8092
MIN_TOKEN_CHARS = 32

console_app = App()


@console_app.command()
def console(
    directory: Annotated[
        Path | None,
        typer.Argument(help="Logs without a cluster: a partition's directory, a topic, or a folder of topics."),
    ] = None,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", min=0, help="A seed of the simulator to step through, in place of a cluster."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0: any free one.")
    ] = DEFAULT_PORT,
    allow_writes: Annotated[
        bool,
        typer.Option("--allow-writes", help="The page may change topics, partitions and groups, and produce."),
    ] = False,
    origin: Annotated[
        str, typer.Option("--origin", help="Scheme and host of a proxy in front, as in https://kafka.example.com.")
    ] = "",
    bearer_token_file: Annotated[
        Path | None,
        typer.Option("--bearer-token-file", help="File with the token that the proxy sends: Authorization: Bearer."),
    ] = None,
) -> None:
    """Show a cluster in the browser, as it changes, and replays of failures, step by step. Only this host can connect,
    with the address that is printed."""
    try:
        from kreplog.console import web_server
        from kreplog.console.access import LOGIN, ConsoleAccess
    except ModuleNotFoundError as error:
        raise UsageError(
            f"kreplog console needs {error.name}, which is not installed: pip install 'kreplog[console]'"
        ) from error
    bearer = "" if bearer_token_file is None else _bearer_token(bearer_token_file)
    source, replays = _sources(directory, cluster, bootstrap, command_config, seed)
    with web_server.listen(port) as listening:
        actual = listening.getsockname()[1]
        announced: list[str] = []

        def announce(token: str) -> None:
            address = f"http://127.0.0.1:{actual}{LOGIN}?token={token}"
            print(f"for another browser: {address}" if announced else f"open {address}", flush=True)
            announced.append(token)

        async def run() -> None:
            access = ConsoleAccess(actual, announce, origin, bearer)
            app = web_server.application(source, access, replays, allow_writes=allow_writes)
            await web_server.serve(listening, app, access)

        asyncio.run(run())


def _sources(
    directory: Path | None, cluster: Path | None, bootstrap: str | None, command_config: Path | None, seed: int | None
) -> tuple[Source, Replays]:
    """The directory or nothing but a seed where they are given, or else the cluster; and the replays beside it. A wrong
    address, or a cluster that is not running, is an error here, and later one on the page."""
    from kreplog.console.replays import Replays

    if sum(given is not None for given in (directory, bootstrap, seed)) > 1:
        raise UsageError("DIRECTORY, --bootstrap and --seed exclude each other: give one of them")
    if seed is not None:
        from kreplog.console.replay_source import ReplaySource

        return ReplaySource(), Replays(seed)
    if directory is not None:
        from kreplog.console.directory_source import DirectorySource

        if (directory / "cluster.json").exists():
            raise UsageError(f"{directory} is the directory of a cluster: kreplog console --cluster {directory}")
        return DirectorySource(directory), Replays()
    connected: Callable[[], ClusterSource] = partial(cluster_source, cluster, bootstrap, command_config)
    return connected(), Replays(None, log_folders(cluster, bootstrap), connected)


def log_folders(cluster: Path | None, bootstrap: str | None) -> Mapping[int, Path]:
    """Where the log files of the cluster's brokers are, by id; empty where only their addresses are given."""
    if bootstrap is not None:
        return {}
    local = LocalCluster(cluster or "")
    return {broker: local.home(broker) / "logs" for broker in local.brokers}


def cluster_source(cluster: Path | None, bootstrap: str | None, command_config: Path | None) -> ClusterSource:
    """The cluster of a command's options. Raises UnreachableError where it does not run now, UsageError."""
    from kreplog.console.cluster_source import ClusterSource

    connect = partial(bootstrap_servers, cluster, bootstrap, command_config)
    connect()
    config = [] if command_config is None else ["--command-config", str(command_config)]
    if bootstrap is not None:
        return ClusterSource(connect, ["--bootstrap", bootstrap, *config])
    local = LocalCluster(cluster or "")
    words = ["--cluster", str(local.directory), *config]
    logs = StateChangeLogs(log_folders(cluster, bootstrap))
    return ClusterSource(connect, words, _metrics(local), local.controller_epoch, logs.read)


def _metrics(cluster: LocalCluster) -> dict[int, str]:
    """Where brokers of a cluster on this host serve metrics."""
    found = {}
    for broker in cluster.brokers:
        with suppress(UsageError):  # settings that cannot be read
            listener = cluster.settings(broker).metrics_listener
            if listener is not None and listener.port:
                found[broker] = str(listener)
    return found


def _bearer_token(path: Path) -> str:
    """Raises UsageError for a file that has none, or one that can be guessed, OSError."""
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"{path}: the token is {MIN_TOKEN_CHARS} or more printable characters, as `openssl rand -hex 32` prints",
            path=str(path),
        )
    return token
