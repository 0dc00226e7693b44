"""`kreplog cluster rebalance` and `kreplog cluster drain`: a plan of replica moves, and with --execute the moves.

kreplog.cluster.rebalance_plan makes the plan. Run again, a command continues: ongoing reassignments are not requested
again.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kreplog.client.admin_client import AdminClient
from kreplog.cluster.local_cluster import ClusterError, LocalCluster
from kreplog.cluster.rebalance_plan import plan_rebalance, racks_of_live_brokers
from kreplog.commands.connecting import admin_client
from kreplog.commands.options import AsJson, Bootstrap, CommandConfig, OptionalClusterDir, ids, print_json
from kreplog.commands.partitions import Throttle, carry_out
from kreplog.errors import UsageError
from kreplog.types import counted

Execute = Annotated[bool, typer.Option("--execute", help="Move the replicas.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for the moves, and show progress.")]


def rebalance(
    directory: OptionalClusterDir = None,
    execute: Execute = False,
    wait: Wait = True,
    throttle: Throttle = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Move replicas until all running brokers have equally many, in as many racks as there are. Without --execute only
    show which replicas would move, and their bytes.

    After Ctrl-C run it again to continue.
    """
    with admin_client(directory, bootstrap, command_config) as admin:
        _move(admin, racks_of_live_brokers(admin), [], execute=execute, wait=wait, throttle=throttle, as_json=as_json)


def drain(
    brokers: Annotated[str, typer.Argument(help="Ids of the brokers, comma-separated; they need not run.")],
    directory: OptionalClusterDir = None,
    execute: Execute = False,
    wait: Wait = True,
    throttle: Throttle = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Move all replicas of these brokers to the other running ones, so that they can be stopped for good. Without
    --execute only show which replicas would move, and their bytes.

    After Ctrl-C run it again to continue.
    """
    leaving = ids(brokers)
    known = [] if directory is None or bootstrap is not None else LocalCluster(directory).brokers
    with admin_client(directory, bootstrap, command_config) as admin:
        racks = racks_of_live_brokers(admin)
        if not set(racks).difference(leaving):
            raise UsageError(f"no broker but {sorted(set(leaving))} is running: there is none to move replicas to")
        _check_known(admin, set(leaving).difference(racks, known))
        racks = {**dict.fromkeys(leaving), **racks}
        _move(admin, racks, leaving, execute=execute, wait=wait, throttle=throttle, as_json=as_json)
    if execute and wait and not as_json:
        print(f"brokers {leaving} have no replica now: stop them before new topics, or a rebalance, give them some")


def _check_known(admin: AdminClient, others: set[int]) -> None:
    """Raise UsageError unless all `others`, which neither run nor are in the cluster's directory, have replicas."""
    topics = admin.metadata().topics if others else ()
    holders = {broker for topic in topics for found in topic.partitions for broker in found.replica_nodes}
    if unknown := sorted(others - holders):
        raise UsageError(f"there are no brokers {unknown}: check their ids")


def _move(
    admin: AdminClient,
    racks: dict[int, str | None],
    leaving: list[int],
    *,
    execute: bool,
    wait: bool,
    throttle: int | None,
    as_json: bool,
) -> None:
    changed, plan = plan_rebalance(admin, racks, leaving)
    if not as_json:
        show_plan(plan)
    if not execute:
        if as_json:
            print_json({**plan, "executed": False})
        elif changed:
            print("nothing changed: use --execute to move the replicas")
        return
    if leaderless := [f"{move['topic']}-{move['partition']}" for move in plan["moves"] if move["bytes"] is None]:
        raise ClusterError(
            f"{', '.join(leaderless[:5])}: {counted(len(leaderless), 'partition')} to move without a leader to copy "
            "from: start the brokers that have their replicas first"
        )
    carry_out(admin, changed, wait=wait, as_json=as_json, throttle=throttle, extra={**plan, "executed": True})


def show_plan(plan: dict[str, Any]) -> None:
    """Print a plan of plan_rebalance."""
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
