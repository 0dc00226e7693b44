"""`kreplog transaction`: list, describe and abort transactions, over the Kafka protocol."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated

import typer

from kreplog.client.transaction_admin import (
    TransactionDescription,
    abort_transaction,
    describe_transaction,
    list_transactions,
)
from kreplog.commands.connecting import cluster_connections, coordinator_deadline
from kreplog.commands.options import App, AsJson, Bootstrap, CommandConfig, OptionalDir, print_json
from kreplog.commands.records import time_text
from kreplog.errors import UsageError
from kreplog.types import printable

transaction_app = App("List, describe and abort transactions.")

TransactionalId = Annotated[str, typer.Argument(help="Transactional id of the producer.")]


@transaction_app.command("list")
def list_all(
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """List the transactional ids with their states."""
    with cluster_connections(cluster, bootstrap, command_config) as connections:
        found = list_transactions(connections, coordinator_deadline())
    if as_json:
        print_json({"transactions": [each._asdict() for each in found]})
        return
    for each in found:
        print(f"{printable(each.transactional_id)}  {each.state}  producer {each.producer_id}")
    if not found:
        print("there is no transactional id")


@transaction_app.command()
def describe(
    transactional_id: TransactionalId,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show the state of a transactional id, its producer, and the partitions of its open transaction."""
    with cluster_connections(cluster, bootstrap, command_config) as connections:
        found = describe_transaction(connections, transactional_id, coordinator_deadline())
    if found is None:
        raise _no_such_id(transactional_id)
    if as_json:
        print_json(asdict(found) | {"partitions": sorted(map(str, found.partitions))})
    else:
        print("\n".join(description(found, int(time.time() * 1000))))


def description(found: TransactionDescription, wall_ms: int) -> list[str]:
    """The lines of a description in words. wall_ms: the time now, since 1970."""
    lines = [
        f"{printable(found.transactional_id)}: {found.state}, time-out {found.timeout_ms} ms",
        f"producer {found.producer_id}, epoch {found.producer_epoch}",
    ]
    if found.start_ms >= 0:
        age = timedelta(seconds=max(0, wall_ms - found.start_ms) // 1000)
        names = ", ".join(sorted(map(str, found.partitions))) or "no partitions"
        lines.append(f"open since {time_text(found.start_ms)}, for {age}: {names}")
    return lines


@transaction_app.command()
def abort(
    transactional_id: TransactionalId,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Abort the open transaction of a transactional id; its producer is fenced and has to begin again."""
    with cluster_connections(cluster, bootstrap, command_config) as connections:
        found = describe_transaction(connections, transactional_id, coordinator_deadline())
        if found is None:
            raise _no_such_id(transactional_id)
        if found.state != "Ongoing":
            raise UsageError(f"transactional id {transactional_id} is {found.state}: it has no open transaction")
        abort_transaction(connections, transactional_id, coordinator_deadline())
    if as_json:
        names = sorted(map(str, found.partitions))
        print_json(
            {
                "transactional_id": transactional_id,
                "producer_id": found.producer_id,
                "producer_epoch": found.producer_epoch,
                "partitions": names,
                "aborted": True,
            }
        )
        return
    print(f"{printable(transactional_id)}: aborted, and producer {found.producer_id} is fenced")


def _no_such_id(transactional_id: str) -> UsageError:
    return UsageError(
        f"transactional id {transactional_id} does not exist: kreplog transaction list shows those that do"
    )
