"""`kreplog quota`: list, set and remove quotas of users, client ids and IP addresses.

With --cluster they are written to the coordination store, also before any broker of the cluster runs, which --offline
says; with --bootstrap, or --command-config, over the Kafka protocol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from kreplog.client import quota_admin
from kreplog.cluster import store_requests
from kreplog.commands.connecting import admin_client, stored_cluster
from kreplog.commands.options import (
    App,
    AsJson,
    Bootstrap,
    CommandConfig,
    Offline,
    OptionalDir,
    pair,
    print_json,
)
from kreplog.core.quotas.entities import DEFAULT, QuotaEntity, QuotaKey, Quotas, plain_address
from kreplog.core.quotas.quota_requests import QuotaAlteration, check_alteration, entity_types
from kreplog.errors import UsageError
from kreplog.types import printable

quota_app = App("List, set and remove client quotas: how much of a broker clients and addresses may use.")

User = Annotated[str | None, typer.Option("--user", help="Name of a user.")]
UserDefaults = Annotated[bool, typer.Option("--user-defaults", help="All users without a quota of their own.")]
Client = Annotated[str | None, typer.Option("--client", help="Client id.")]
ClientDefaults = Annotated[
    bool, typer.Option("--client-defaults", help="All client ids without a quota of their own, each by itself.")
]
Ip = Annotated[str | None, typer.Option("--ip", help="IP address, whose quota is connection_creation_rate alone.")]
IpDefaults = Annotated[bool, typer.Option("--ip-defaults", help="All IP addresses without a quota, each by itself.")]
_KEYS = ", ".join(QuotaKey)


@quota_app.command("list")
def list_all(
    user: User = None,
    user_defaults: UserDefaults = False,
    client: Client = None,
    client_defaults: ClientDefaults = False,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    offline: Offline = False,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """List the quotas, all of them or those that are for a user, a client id, or a user with a client id."""
    wanted = _entity(user, user_defaults, client, client_defaults, ip, ip_defaults)
    local = stored_cluster(cluster, bootstrap, command_config, offline=offline)
    if local is not None:
        with local.store_session() as session:
            found = store_requests.quotas_in(session)
    else:
        with admin_client(cluster, bootstrap, command_config) as admin:
            found = quota_admin.describe_quotas(admin)
    shown: Quotas = {
        entity: values
        for entity, values in found.items()
        if all(part is None or part == own for part, own in zip(wanted, entity, strict=True))
    }
    if as_json:
        print_json({"quotas": [_facts(entity, shown[entity]) for entity in sorted(shown, key=str)]})
        return
    for entity in sorted(shown, key=str):
        values = ", ".join(f"{key}={value:.15g}" for key, value in sorted(shown[entity].items()))
        print(f"{printable(str(entity))}: {values}")
    if not shown:
        print("there is no quota")


@quota_app.command("set")
def set_quotas(
    quotas: Annotated[list[str], typer.Argument(help=f"Quotas, of the keys {_KEYS}.", metavar="KEY=VALUE...")],
    user: User = None,
    user_defaults: UserDefaults = False,
    client: Client = None,
    client_defaults: ClientDefaults = False,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    offline: Offline = False,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Set quotas of each broker: bytes produced and fetched by the second, CPU time of requests in percent of a
    processor, partitions created and deleted by the second; of IP addresses connections by the second. Those of the
    entity that are not named stay as they are."""
    operations = [(key, _number(key, value), False) for key, value in (pair("quota", text) for text in quotas)]
    alteration = _alteration(_entity(user, user_defaults, client, client_defaults, ip, ip_defaults), operations)
    _alter(alteration, cluster, bootstrap, command_config, offline=offline)
    if as_json:
        print_json(_facts(alteration.entity, {key: value for key, value, _ in operations}))
    else:
        print(f"{printable(str(alteration.entity))} has {', '.join(quotas)}")


@quota_app.command()
def remove(
    keys: Annotated[
        list[str] | None, typer.Argument(help=f"Keys of the quotas; all if none is given: {_KEYS}.", metavar="[KEY...]")
    ] = None,
    user: User = None,
    user_defaults: UserDefaults = False,
    client: Client = None,
    client_defaults: ClientDefaults = False,
    ip: Ip = None,
    ip_defaults: IpDefaults = False,
    offline: Offline = False,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Remove quotas of an entity; the next one that is for a client holds then."""
    entity = _entity(user, user_defaults, client, client_defaults, ip, ip_defaults)
    removed = keys or list(entity.keys)
    alteration = _alteration(entity, [(key, 0.0, True) for key in removed])
    _alter(alteration, cluster, bootstrap, command_config, offline=offline)
    if as_json:
        print_json({**dict(entity_types(alteration.entity)), "removed": removed})
    else:
        print(f"{printable(str(alteration.entity))} has no {', '.join(removed)}")


def _entity(
    user: str | None,
    user_defaults: bool,
    client: str | None,
    client_defaults: bool,
    ip: str | None,
    ip_defaults: bool,
) -> QuotaEntity:
    """The entity of the options; one of no names where none is given. Raises UsageError."""
    for name, given, defaults in (
        ("--user", user, user_defaults),
        ("--client", client, client_defaults),
        ("--ip", ip, ip_defaults),
    ):
        if given is not None and defaults:
            raise UsageError(f"{name} and {name}-defaults: give one of them")
        if given == "":
            raise UsageError(f"{name}: the name is empty; {name}-defaults is for all names")
    address = ip if ip is None else plain_address(ip)
    return QuotaEntity(
        DEFAULT if user_defaults else user, DEFAULT if client_defaults else client, DEFAULT if ip_defaults else address
    )


def _number(key: str, text: str) -> float:
    """The value of a quota. Raises UsageError."""
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{key}={text}: give a number") from None


def _alteration(entity: QuotaEntity, operations: Sequence[tuple[str, float, bool]]) -> QuotaAlteration:
    """The checked change of quotas. Raises UsageError."""
    if entity == QuotaEntity():
        raise UsageError("whose quotas? Give --user, --client or both, or --ip; or one of them with -defaults")
    return check_alteration(entity_types(entity), operations)


def _alter(
    alteration: QuotaAlteration,
    cluster: Path | None,
    bootstrap: str | None,
    command_config: Path | None,
    *,
    offline: bool,
) -> None:
    local = stored_cluster(cluster, bootstrap, command_config, offline=offline)
    if local is not None:
        with local.store_session() as session:
            store_requests.alter_quotas(session, alteration)
    else:
        with admin_client(cluster, bootstrap, command_config) as admin:
            quota_admin.alter_quotas(admin, alteration)


def _facts(entity: QuotaEntity, values: Mapping[str, float]) -> dict[str, object]:
    """Names by entity type as in requests, null for the default; and the quotas by key."""
    return {**dict(entity_types(entity)), "quotas": dict(sorted(values.items()))}
