"""`kreplog broker describe` and `alter`: the dynamic configs of brokers that run, over the Kafka protocol."""

from __future__ import annotations

from typing import Annotated

import typer

from kreplog.client.broker_configs import alter_broker_configs, broker_configs
from kreplog.commands.connecting import admin_client
from kreplog.commands.options import AsJson, Bootstrap, CommandConfig, OptionalDir, config_changes, print_json
from kreplog.errors import UsageError

BrokerId = Annotated[int | None, typer.Option("--id", min=0, help="Id of the broker.")]
ClusterWide = Annotated[bool, typer.Option("--default", help="The cluster-wide default, which all brokers have.")]


def describe(
    broker_id: BrokerId = None,
    cluster_wide: ClusterWide = False,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show the dynamic configs of a broker, or the cluster-wide default."""
    _require_one(broker_id, cluster_wide)
    with admin_client(cluster, bootstrap, command_config) as admin:
        configs = broker_configs(admin, broker_id)
    if as_json:
        print_json({"broker": broker_id, "configs": configs})
        return
    for name, value in configs.items():
        print(f"{name} = {value}")


def alter(
    broker_id: BrokerId = None,
    cluster_wide: ClusterWide = False,
    config: Annotated[
        list[str] | None, typer.Option("--config", help="Dynamic config as NAME=VALUE, by Kafka's name.")
    ] = None,
    delete_config: Annotated[
        list[str] | None, typer.Option("--delete-config", help="Dynamic config to delete, by its name.")
    ] = None,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Set or delete dynamic configs of a broker, or of all, while they run. If any change is refused, none is applied.

    Where one is deleted the cluster-wide default counts, or else broker.toml."""
    _require_one(broker_id, cluster_wide)
    changes = config_changes(config, delete_config)
    if not changes:
        raise UsageError("nothing to alter: give --config or --delete-config")
    with admin_client(cluster, bootstrap, command_config) as admin:
        alter_broker_configs(admin, broker_id, changes)
    if as_json:
        print_json({"broker": broker_id, "configs": changes})
        return
    subject = "all brokers" if broker_id is None else f"broker {broker_id}"
    results = [f"{name} deleted" if value is None else f"{name} = {value}" for name, value in changes.items()]
    print(f"{subject}: {', '.join(results)}")


def _require_one(broker_id: int | None, cluster_wide: bool) -> None:
    if (broker_id is None) != cluster_wide:
        raise UsageError("give either --id, for one broker, or --default, for all")
