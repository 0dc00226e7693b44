"""`kreplog cluster add-brokers`: adds brokers to a cluster on this host, with the fewest moves that restore balance.

`kreplog.cluster.rebalance_plan` makes the plan. Run again, the command continues: broker directories are created once,
and ongoing reassignments are not requested again.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Annotated

import typer

from kreplog.client.admin_client import AdminClient
from kreplog.cluster.expansion import extend, new_broker_settings, rack_in
from kreplog.cluster.local_cluster import ClusterError, LocalCluster
from kreplog.cluster.rebalance_plan import plan_rebalance
from kreplog.commands.connecting import admin_client
from kreplog.commands.options import AsJson, ClusterDir, Racks, ids, print_json, racks_in
from kreplog.commands.partitions import Throttle, carry_out
from kreplog.commands.rebalancing import Wait, show_plan
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
    racks: Racks = None,
    wait: Wait = True,
    throttle: Throttle = None,
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
    new_racks = racks_in(racks, missing)
    all_racks = {broker: cluster.settings(broker).rack for broker in cluster.brokers}
    all_racks |= {broker: new_racks.get(broker, rack_in(lines)) for broker in missing}
    with admin_client(directory, None) as admin:
        changed, plan = plan_rebalance(admin, all_racks)
        if not as_json:
            show_plan(plan)
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
            cluster = extend(cluster, missing, port, lines, new_racks)
        cluster.start(new)
        _await_metadata(admin, new)
        carry_out(admin, changed, wait=wait, as_json=as_json, throttle=throttle, extra={**plan, "executed": True})
    if not as_json and changed:
        print("`kreplog partition elect-preferred` makes the new brokers leaders now instead of within minutes")


def _await_metadata(admin: AdminClient, new: Collection[int]) -> None:
    """Wait until the broker that responds has metadata of the new brokers. Raises ClusterError."""
    deadline = time.monotonic() + METADATA_TIMEOUT_S
    while not set(new) <= set(admin.live):
        if time.monotonic() > deadline:
            unknown = sorted(set(new) - set(admin.live))
            raise ClusterError(f"the cluster's metadata does not contain brokers {unknown} yet: run the command again")
        admin.metadata()
        time.sleep(POLL_S)  # the protocol has no notification of new brokers
