"""`kreplog cluster features`: the levels of features that brokers support and the cluster has finalized, as
kafka-features shows and raises them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from kreplog.client.bootstrap import UnreachableError
from kreplog.client.feature_admin import NOT_KNOWN, BrokerFeature, describe_features, update_feature
from kreplog.commands.connecting import admin_client
from kreplog.commands.options import App, AsJson, Bootstrap, CommandConfig, OptionalDir, pair, print_json
from kreplog.errors import UsageError
from kreplog.types import KREPLOG_VERSION

features_app = App("Show the features of brokers, and finalize kreplog.version once all brokers are upgraded.")


@features_app.command()
def describe(
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show the levels of each feature that each running broker supports, and the finalized one."""
    with admin_client(cluster, bootstrap, command_config) as admin:
        found = describe_features(admin)
    if as_json:
        brokers = {
            str(broker): {name: feature._asdict() for name, feature in features.items()}
            for broker, features in found.items()
        }
        print_json({"brokers": brokers})
        return
    table = Table("feature", "finalized", *(f"broker {broker}" for broker in found))
    for name in sorted({name for features in found.values() for name in features}):
        each = [features.get(name, NOT_KNOWN) for features in found.values()]
        table.add_row(name, str(max(feature.finalized for feature in each)), *map(_supported, each))
    Console().print(table)


@features_app.command()
def upgrade(
    feature: Annotated[
        str | None,
        typer.Option(
            "--feature",
            help=f"The level to finalize; by default the greatest of {KREPLOG_VERSION} that all running brokers "
            "support.",
            metavar="NAME=LEVEL",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check whether it can be, and change nothing.")] = False,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Finalize a level of a feature. Then brokers that do not support it cannot start, and there is no way back."""
    with admin_client(cluster, bootstrap, command_config) as admin:
        if feature is None:
            name, level = KREPLOG_VERSION, _greatest(describe_features(admin))
        else:
            name, text = pair("feature", feature)
            if not text.isdecimal():
                raise UsageError(f"{feature}: the level is no number")
            level = int(text)
        update_feature(admin, name, level, validate_only=dry_run)
    if as_json:
        print_json({"feature": name, "level": level, "finalized": not dry_run})
    else:
        print(f"{name} {'can be' if dry_run else 'is'} finalized at {level}")


def _supported(feature: BrokerFeature) -> str:
    return f"{feature.least} to {feature.greatest}" if feature.greatest else "-"


def _greatest(found: dict[int, dict[str, BrokerFeature]]) -> int:
    """The greatest level of KREPLOG_VERSION that all brokers support. Raises UsageError, UnreachableError."""
    greatest = {broker: features.get(KREPLOG_VERSION, NOT_KNOWN).greatest for broker, features in found.items()}
    lacking = [f"broker {broker}" for broker, level in greatest.items() if not level]
    if lacking:
        raise UsageError(f"{KREPLOG_VERSION} is unknown to {', '.join(lacking)}: upgrade them first")
    if not greatest:
        raise UnreachableError("no broker has described its features: try again")
    return min(greatest.values())
