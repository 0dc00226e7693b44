"""`kreplog cluster add-brokers`: new brokers on this host, and the fewest replicas moved to them that restore balance.

The plan is kreplog.client.rebalance_plan's. Run again, the command continues: broker directories are made once, and
replicas that move already are not requested again.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Annotated, Any

import typer

from kreplog.client.admin_client import AdminClient
from kreplog.client.rebalance_plan import plan_rebalance
from kreplog.cluster.files import HOST, check_settings, free_ports, make_key, write_broker, write_cluster
from kreplog.cluster.local_cluster import ClusterError, LocalCluster
from kreplog.commands.connecting import admin_client_of
from kreplog.commands.options import AsJson, ClusterDir, counted, ids, print_json
from kreplog.commands.partitions import carry_out
from kreplog.errors import UsageError
from kreplog.server.settings import parse

KNOWN_WITHIN_S = 10.0
POLL_S = 0.05

_EACH_ITS_OWN = {"broker.id", "listeners", "inter.broker.listener", "log.dirs", "broker.rack"}


def add_brokers(
    brokers: Annotated[str, typer.Argument(help="Ids of the new ones, with commas between.")],
    directory: ClusterDir,
    execute: Annotated[bool, typer.Option("--execute", help="Start them and move the replicas.")] = False,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65000, help="Of the first; 0: any that are free (default: the next ones)."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A setting of the new ones: '\"name\" = value', as in TOML.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Show progress until it is done.")] = True,
    as_json: AsJson = False,
) -> None:
    """Show which replicas would move to new brokers, from where, and how many bytes; --execute does it.

    Without --execute nothing is started, written or changed. Run it again after Ctrl-C: it goes on. The new brokers get
    the settings that all others have alike.
    """
    cluster, new = LocalCluster(directory), ids(brokers)
    if len(set(new)) < len(new) or min(new) < 0:
        raise UsageError(f"brokers {new}: give each id once, none below 0")
    missing = [one for one in new if one not in cluster.brokers]
    lines = [*_common(cluster, settings or ()), *(settings or ())]
    if missing:
        check_settings(cluster.directory, missing[0], lines)
    racks = {broker: cluster.settings(broker).rack for broker in cluster.brokers}
    racks |= dict.fromkeys(missing, parse("\n".join(lines)).get("broker.rack") if missing else None)
    with admin_client_of(directory, None) as asked:
        changed, facts = plan_rebalance(asked, racks)
        if not as_json:
            _show(facts)
        if not execute:
            if as_json:
                print_json({**facts, "executed": False})
            elif changed or missing:
                print("nothing has been changed: --execute starts the new brokers and moves the replicas")
            return
        live = {one.id for one in cluster.status() if one.alive} & set(asked.known)
        if down := set(cluster.brokers) - live - set(new):
            raise ClusterError(
                f"brokers {sorted(down)} do not run, and nothing can be planned for them: start them first"
            )
        if missing:
            cluster = extend(cluster, missing, port, lines)
        cluster.start(new)
        _until_known(asked, new)
        carry_out(asked, changed, wait=wait, as_json=as_json, facts={**facts, "executed": True})
    if not as_json and changed:
        print("`kreplog partition elect-preferred` gives the new brokers their leaders now, and not minutes later")


def extend(cluster: LocalCluster, new: Sequence[int], first_port: int | None, settings: Sequence[str]) -> LocalCluster:
    """The cluster with homes for `new` brokers too; starts nothing. settings: "name = value" lines of TOML for them.

    first_port: 0 for any that are free; None for those after the highest, where they are. A crash on the way leaves the
    cluster as it was.
    """
    for broker, port in zip(new, _ports(cluster, len(new), first_port), strict=True):
        write_broker(cluster.directory, broker, port, settings)
    make_key(cluster.directory)
    write_cluster(cluster.directory, [*cluster.brokers, *new])
    return LocalCluster(cluster.directory)


def _ports(cluster: LocalCluster, count: int, first: int | None) -> Sequence[int]:
    if first:
        return range(first, first + count)
    highest = max(int(one.rpartition(":")[2]) for one in cluster.bootstrap().split(","))
    following = range(highest + 1, highest + 1 + count)
    return following if first is None and all(map(_is_free, following)) else free_ports(count)


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except (OSError, OverflowError):
        return False
    return True


def _common(cluster: LocalCluster, given: Iterable[str]) -> list[str]:
    """What all brokers' settings have alike, as lines of TOML, but for what is `given`."""
    found: list[dict[str, Any]] = []
    for broker in cluster.brokers:
        path = cluster.home(broker) / "broker.toml"
        try:
            found.append(parse(path.read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise UsageError(f"the settings {path} cannot be read: {error}", path=str(path)) from error
    others = {name for text in given for name in _names(text)}
    return [
        f"{json.dumps(name)} = {json.dumps(value)}"
        for name, value in found[0].items()
        if name not in _EACH_ITS_OWN | others and all(one.get(name) == value for one in found)
    ]


def _names(text: str) -> Collection[str]:
    try:
        return parse(text).keys()
    except ValueError:
        return ()


def _show(facts: dict[str, Any]) -> None:
    for move in facts["moves"]:
        size = "size unknown: it has no leader" if move["bytes"] is None else counted(move["bytes"], "byte")
        print(f"{move['topic']}-{move['partition']}  broker {move['from']} -> {move['to']}  {size}")
    for one in facts["brokers"]:
        (before, after), (led, leads) = one["replicas"], one["preferred_leaders"]
        print(f"broker {one['id']}  replicas {before} -> {after}  preferred leaders {led} -> {leads}")
    reordered = len(facts["partitions"]) - len({(move["topic"], move["partition"]) for move in facts["moves"]})
    told = f"{counted(len(facts['moves']), 'replica')} to move, {counted(facts['bytes'], 'byte')}"
    if reordered > 0:
        told += f"; {counted(reordered, 'partition')} with another order of replicas only"
    if facts["moving_already"]:
        told += f"; {counted(facts['moving_already'], 'partition')} moving already"
    print(told)


def _until_known(asked: AdminClient, new: Collection[int]) -> None:
    """Until the broker that is asked knows of them. Raises ClusterError."""
    deadline = time.monotonic() + KNOWN_WITHIN_S
    while not set(new) <= set(asked.known):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the cluster does not know brokers {sorted(set(new) - set(asked.known))} yet: run it again"
            )
        asked.metadata()
        time.sleep(POLL_S)  # nobody tells
