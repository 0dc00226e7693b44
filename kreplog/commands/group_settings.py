"""`kreplog group describe-configs` and `alter-configs`: the dynamic configs of consumer groups (KIP-848)."""

from __future__ import annotations

from typing import Annotated

import typer

from kreplog.client.altered_configs import alter_configs, own_configs
from kreplog.commands.connecting import admin_client
from kreplog.commands.options import AsJson, Bootstrap, CommandConfig, OptionalDir, config_changes, print_json
from kreplog.errors import UsageError
from kreplog.types import ConfigResource, printable

GroupId = Annotated[str, typer.Argument(help="Id of the group.")]


def describe(
    group: GroupId,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show the configs that a group has in place of its brokers' settings."""
    with admin_client(cluster, bootstrap, command_config) as admin:
        configs = own_configs(admin, ConfigResource.GROUP, group)
    if as_json:
        print_json({"group": group, "configs": configs})
        return
    for name, value in configs.items():
        print(f"{name} = {value}")


def alter(
    group: GroupId,
    config: Annotated[
        list[str] | None, typer.Option("--config", help="Config of the group as NAME=VALUE, by Kafka's name.")
    ] = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", help="Config to delete, by its name.")
    ] = None,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Set or delete configs of a group, also of one that has no members yet. If any change is refused, none is applied.

    Members of the consumer protocol (KIP-848) have them from their next heartbeat on."""
    changes = config_changes(config, delete_config)
    if not changes:
        raise UsageError("nothing to alter: give --config or --delete-config")
    with admin_client(cluster, bootstrap, command_config) as admin:
        alter_configs(admin, ConfigResource.GROUP, group, changes)
    if as_json:
        print_json({"group": group, "configs": changes})
        return
    results = [f"{name} deleted" if value is None else f"{name} = {value}" for name, value in changes.items()]
    print(f"{printable(group)}: {', '.join(results)}")
