"""`kreplog cluster add-brokers`: adds brokers to a cluster on this host, with the fewest moves that restore balance.

kreplog.client.rebalance_plan makes the plan. Run again, the command continues: broker directories are created once, and
ongoing reassignments are not requested again.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Annotated, Any

import typer

from kreplog.client.admin_client import AdminClient
from kreplog.client.rebalance_plan import plan_rebalance
from kreplog.cluster.expansion import extend, new_broker_settings, rack_in
from kreplog.cluster.local_cluster import ClusterError, LocalCluster
from kreplog.commands.connecting import admin_client
from kreplog.commands.options import AsJson, ClusterDir, counted, ids, print_json
from kreplog.commands.partitions import carry_out
from kreplog.errors import UsageError

METADATA_TIMEOUT_S = 10.0
POLL_S = 0.05


def add_brokers(
    brokers: Annotated[str, typer.Argument(help="Ids of the new brokers, comma-separated.")],
    directory: ClusterDir,
    execute: Annotated[bool, typer.Option("--execute", help="Start the brokers and move the replicas.")] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65000,
            help="Port of the first new broker; 0: any free ports (default: the next ports).",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the new brokers, in TOML: '\"name\" = value'.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the moves, and show progress.")] = True,
    as_json: AsJson = False,
) -> None:
    """Add brokers, and move replicas to them. Without --execute only show which replicas would move, and their bytes.

    New brokers get the settings that all others share. After Ctrl-C run it again to continue.
    """
    cluster, new = LocalCluster(directory), ids(brokers)
    if len(set(new)) < len(new) or min(new) < 0:
        raise UsageError(f"brokers {new}: give each id once, none negative")
    missing = [broker for broker in new if broker not in cluster.brokers]
    lines = new_broker_settings(cluster, missing, settings or ())
    racks = {broker: cluster.settings(broker).rack for broker in cluster.brokers}
    racks |= dict.fromkeys(missing, rack_in(lines) if missing else None)
    with admin_client(directory, None) as admin:
        changed, plan = plan_rebalance(admin, racks)
        if not as_json:
            _show(plan)
        if not execute:
            if as_json:
                print_json({**plan, "executed": False})
            elif changed or missing:
                print("nothing changed: use --execute to start the new brokers and move the replicas")
            return
        live = {status.id for status in cluster.status() if status.alive} & set(admin.live)
        if down := set(cluster.brokers) - live - set(new):
            raise ClusterError(f"brokers {sorted(down)} are not running: start them before replicas move")
        if missing:
            cluster = extend(cluster, missing, port, lines)
        cluster.start(new)
        _await_metadata(admin, new)
        carry_out(admin, changed, wait=wait, as_json=as_json, extra={**plan, "executed": True})
    if not as_json and changed:
        print("`kreplog partition elect-preferred` makes the new brokers leaders now instead of within minutes")


def _show(plan: dict[str, Any]) -> None:
    for move in plan["moves"]:
        size = "size unknown: it has no leader" if move["bytes"] is None else counted(move["bytes"], "byte")
        print(f"{move['topic']}-{move['partition']}  broker {move['from']} -> {move['to']}  {size}")
    for broker in plan["brokers"]:
        (before, after), (led, leads) = broker["replicas"], broker["preferred_leaders"]
        print(f"broker {broker['id']}  replicas {before} -> {after}  preferred leaders {led} -> {leads}")
    reordered = len(plan["partitions"]) - len({(move["topic"], move["partition"]) for move in plan["moves"]})
    summary = f"{counted(len(plan['moves']), 'replica')} to move, {counted(plan['bytes'], 'byte')}"
    if reordered > 0:
        summary += f"; {counted(reordered, 'partition')} with reordered replicas only"
    if plan["moving_already"]:
        summary += f"; {counted(plan['moving_already'], 'partition')} moving already"
    print(summary)


def _await_metadata(admin: AdminClient, new: Collection[int]) -> None:
    """Wait until the broker that responds has metadata of the new brokers. Raises ClusterError."""
    deadline = time.monotonic() + METADATA_TIMEOUT_S
    while not set(new) <= set(admin.live):
        if time.monotonic() > deadline:
            unknown = sorted(set(new) - set(admin.live))
            raise ClusterError(f"the cluster's metadata does not contain brokers {unknown} yet: run the command again")
        admin.metadata()
        time.sleep(POLL_S)  # the protocol has no notification of new brokers
