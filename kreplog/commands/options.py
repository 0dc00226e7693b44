"""Options and output that the commands share."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from kreplog.errors import UsageError


class _PlainFlags:
    """Hides the types of flags in help: typer 0.29 shows <bool> for flags and --help."""

    def get_params(self, context: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(context)  # type: ignore[misc]  # typer's, whom this is mixed into
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters


class _Command(_PlainFlags, TyperCommand):
    pass


class _Group(_PlainFlags, TyperGroup):
    pass


class App(typer.Typer):
    """A typer.Typer with the settings of all of kreplog's commands and command groups."""

    def __init__(self, help: str | None = None) -> None:
        super().__init__(
            help=help, cls=_Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
        )

    def command(self, *arguments: Any, **settings: Any) -> Callable[[Any], Any]:
        """As typer.Typer.command, without types of flags in help."""
        return super().command(*arguments, cls=_Command, **settings)


class IsolationLevel(StrEnum):
    """Kafka's names."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Isolation = Annotated[
    IsolationLevel,
    typer.Option(
        "--isolation-level",
        "--isolation",
        help="read_committed leaves out what transactions have aborted, and waits for those that are open.",
    ),
]
ClusterDir = Annotated[Path, typer.Argument(help="Directory of the cluster.", envvar="KREPLOG_CLUSTER")]
OptionalClusterDir = Annotated[
    Path | None, typer.Argument(help="Directory of the cluster.", envvar="KREPLOG_CLUSTER", show_default=False)
]
Config = Annotated[
    Path | None, typer.Option("--config", help="Settings of a broker, TOML by Kafka's names, in place of a directory.")
]
OptionalDir = Annotated[
    Path | None, typer.Option("--cluster", "-c", help="Directory of a cluster on this host.", envvar="KREPLOG_CLUSTER")
]
Bootstrap = Annotated[
    str | None, typer.Option("--bootstrap", "-b", help="Brokers to connect to, as in host1:9092,host2:9092.")
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Use the coordination store of the cluster in --cluster, not its brokers.")
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        help="Properties of the connection, such as security.protocol=SSL and ssl.truststore.location=PATH.",
    ),
]
Racks = Annotated[
    str | None,
    typer.Option("--racks", help="Racks of brokers, as in 0=a,1=b: replicas of a partition are spread over racks."),
]


def ids(text: str) -> list[int]:
    """Broker ids, comma-separated. Raises UsageError."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"brokers {text!r}: give comma-separated ids, as in 0,1,2") from None


def racks_in(text: str | None, brokers: Collection[int]) -> dict[int, str]:
    """Racks by broker id, of --racks. Raises UsageError, also for brokers other than `brokers`."""
    racks: dict[int, str] = {}
    for part in filter(None, (text or "").split(",")):
        broker, _, rack = part.partition("=")
        if not (broker.isdecimal() and rack) or int(broker) in racks:
            raise UsageError(f"--racks {text!r}: give each broker once, with its rack, as in 0=a,1=b")
        racks[int(broker)] = rack
    if unknown := sorted(racks.keys() - set(brokers)):
        raise UsageError(f"--racks {text!r}: brokers {unknown} are not among {sorted(brokers)}")
    return racks


def pair(option: str, text: str) -> tuple[str, str]:
    """Name and value of name=value, the argument of `option`. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"{option} {text!r}: give NAME=VALUE")
    return name, value


def config_changes(config: Sequence[str] | None, delete_config: Sequence[str] | None) -> dict[str, str | None]:
    """The changes of --config and --delete-config: values by name, None to delete. Raises UsageError."""
    given = [pair("--config", text) for text in config or ()] + [(text, None) for text in delete_config or ()]
    changes: dict[str, str | None] = dict(given)
    if len(changes) < len(given):
        raise UsageError("give each setting once, in --config or --delete-config")
    return changes


def print_json(facts: object) -> None:
    print(json.dumps(facts, ensure_ascii=False, separators=(",", ":")))


def milliseconds(option: str, text: str) -> int:
    """Milliseconds since 1970, of a number or of ISO 8601, which is in UTC by default. Raises UsageError."""
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text!r}: give a time as in 2025-01-31T12:00:00Z, or milliseconds since 1970"
        ) from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
