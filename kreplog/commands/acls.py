"""`kreplog acl`: list, add and remove ACLs, with the options of kafka-acls.

Over the Kafka protocol, or with --offline in the coordination store of a cluster on this host: so the first ACLs are
made, before any client may send a request for them. Kafka's flag --cluster is --on-cluster here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

import typer

from kreplog.client import acl_admin
from kreplog.cluster import store_requests
from kreplog.commands.connecting import admin_client, offline_cluster
from kreplog.commands.options import App, AsJson, Bootstrap, CommandConfig, Offline, OptionalDir, print_json
from kreplog.core.security.acls import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_binding,
)
from kreplog.core.security.authorizer import canonical_host
from kreplog.core.security.principal import USER, Principal
from kreplog.errors import UsageError
from kreplog.types import counted, printable

acl_app = App("List, add and remove ACLs: who may do what.")


class Pattern(StrEnum):
    """Kafka's names; any and match select ACLs."""

    LITERAL = "literal"
    PREFIXED = "prefixed"
    ANY = "any"
    MATCH = "match"


Topics = Annotated[list[str] | None, typer.Option("--topic", help="Topic; * for every one. Repeatable.")]
Groups = Annotated[list[str] | None, typer.Option("--group", help="Consumer group; * for every one. Repeatable.")]
Ids = Annotated[
    list[str] | None, typer.Option("--transactional-id", help="Transactional id; * for every one. Repeatable.")
]
OnCluster = Annotated[bool, typer.Option("--on-cluster", help="The cluster itself; kafka-acls calls it --cluster.")]
Allowed = Annotated[
    list[str] | None, typer.Option("--allow-principal", help="Principal to allow, as in User:alice. Repeatable.")
]
Denied = Annotated[
    list[str] | None, typer.Option("--deny-principal", help="Principal to deny, as in User:alice. Repeatable.")
]
AllowHosts = Annotated[
    list[str] | None, typer.Option("--allow-host", help="IP address of allowed principals; any if none is given.")
]
DenyHosts = Annotated[
    list[str] | None, typer.Option("--deny-host", help="IP address of denied principals; any if none is given.")
]
Operations = Annotated[
    list[str] | None, typer.Option("--operation", help="Operation, such as Read or All, the default. Repeatable.")
]
PatternOption = Annotated[
    Pattern,
    typer.Option("--resource-pattern-type", help="literal, or prefixed: names that begin so. any, match: to select."),
]
Producer = Annotated[bool, typer.Option("--producer", help="What a producer needs on --topic and --transactional-id.")]
Idempotent = Annotated[bool, typer.Option("--idempotent", help="With --producer: also IdempotentWrite on the cluster.")]
Consumer = Annotated[bool, typer.Option("--consumer", help="What a consumer needs on --topic and --group.")]

_Resource = tuple[ResourceType, str]


@acl_app.command("list")
def list_acls(
    topics: Topics = None,
    groups: Groups = None,
    ids: Ids = None,
    on_cluster: OnCluster = False,
    principals: Annotated[
        list[str] | None, typer.Option("--principal", help="Only ACLs of this principal. Repeatable.")
    ] = None,
    pattern: PatternOption = Pattern.LITERAL,
    offline: Offline = False,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """List ACLs, all of them or those of resources. With --resource-pattern-type match those that a resource of that
    name matches."""
    resources = _resources(topics, groups, ids, on_cluster=on_cluster)
    filters = [AclFilter(kind, _pattern_of(kind, pattern), name) for kind, name in resources]
    found = _Store(cluster, bootstrap, command_config, offline=offline).read(filters or [AclFilter()])
    wanted = {str(Principal.parse(text)) for text in principals or ()}
    _show([acl for acl in found if not wanted or acl.principal in wanted], as_json=as_json)


@acl_app.command("add")
def add(
    allowed: Allowed = None,
    denied: Denied = None,
    allow_hosts: AllowHosts = None,
    deny_hosts: DenyHosts = None,
    operations: Operations = None,
    topics: Topics = None,
    groups: Groups = None,
    ids: Ids = None,
    on_cluster: OnCluster = False,
    pattern: PatternOption = Pattern.LITERAL,
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    offline: Offline = False,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Add ACLs: principals are allowed or denied operations on resources. Those that exist already stay."""
    if pattern not in (Pattern.LITERAL, Pattern.PREFIXED):
        raise UsageError(f"--resource-pattern-type {pattern} selects ACLs: to add some, give literal or prefixed")
    if not allowed and not denied:
        raise UsageError("nobody to allow or deny: give --allow-principal or --deny-principal, as in User:alice")
    needed = _needed(operations, topics, groups, ids, on_cluster, producer, consumer, idempotent)
    subjects = [*_subjects(allowed, allow_hosts, Permission.ALLOW), *_subjects(denied, deny_hosts, Permission.DENY)]
    for principal, host, _ in subjects:
        _check_principal(principal)
        _check_host(host or WILDCARD)
    acls = [
        check_binding(
            AclBinding(kind, _pattern_of(kind, pattern), name, principal, host or WILDCARD, operation, permission)
        )
        for (kind, name), operation in needed
        for principal, host, permission in subjects
    ]
    _Store(cluster, bootstrap, command_config, offline=offline).create(acls)
    _show(acls, as_json=as_json)


@acl_app.command("remove")
def remove(
    allowed: Allowed = None,
    denied: Denied = None,
    allow_hosts: AllowHosts = None,
    deny_hosts: DenyHosts = None,
    operations: Operations = None,
    topics: Topics = None,
    groups: Groups = None,
    ids: Ids = None,
    on_cluster: OnCluster = False,
    pattern: PatternOption = Pattern.LITERAL,
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="With any or match: remove; without, show what would be removed.")
    ] = False,
    offline: Offline = False,
    cluster: OptionalDir = None,
    bootstrap: Bootstrap = None,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Remove ACLs of resources: those of the given principals, hosts and operations; without any of these all. With
    --resource-pattern-type any or match, which select ACLs of other names too, only show them unless --execute is
    given."""
    subjects: list[tuple[str | None, str | None, Permission]] = [
        *_subjects(allowed, allow_hosts, Permission.ALLOW),
        *_subjects(denied, deny_hosts, Permission.DENY),
    ]
    if operations or producer or consumer:
        needed = _needed(operations, topics, groups, ids, on_cluster, producer, consumer, idempotent)
    else:
        resources = _resources(topics, groups, ids, on_cluster=on_cluster)
        needed = [(resource, Operation.ANY) for resource in resources]
    if not needed:
        raise UsageError("nothing to remove: give --topic, --group, --transactional-id or --on-cluster")
    filters = [
        AclFilter(kind, _pattern_of(kind, pattern), name, principal, host, operation, permission)
        for (kind, name), operation in needed
        for principal, host, permission in subjects or [(None, None, Permission.ANY)]
    ]
    store = _Store(cluster, bootstrap, command_config, offline=offline)
    if execute or pattern in (Pattern.LITERAL, Pattern.PREFIXED):
        _show(store.delete(filters), as_json=as_json, verb="removed")
    else:
        _show(store.read(filters), as_json=as_json, verb="would be removed: use --execute to remove them")


# Arguments


def _resources(
    topics: Iterable[str] | None, groups: Iterable[str] | None, ids: Iterable[str] | None, *, on_cluster: bool
) -> list[_Resource]:
    of_cluster = [(ResourceType.CLUSTER, CLUSTER_NAME)] if on_cluster else []
    return [
        *((ResourceType.TOPIC, name) for name in topics or ()),
        *((ResourceType.GROUP, name) for name in groups or ()),
        *((ResourceType.TRANSACTIONAL_ID, name) for name in ids or ()),
        *of_cluster,
    ]


def _needed(
    operations: Sequence[str] | None,
    topics: Sequence[str] | None,
    groups: Sequence[str] | None,
    ids: Sequence[str] | None,
    on_cluster: bool,
    producer: bool,
    consumer: bool,
    idempotent: bool,
) -> list[tuple[_Resource, Operation]]:
    """Resources and operations on them. Source: kafka-acls."""
    if not producer and not consumer:
        if idempotent:
            raise UsageError("--idempotent goes with --producer")
        resources = _resources(topics, groups, ids, on_cluster=on_cluster)
        if not resources:
            raise UsageError("no resource given: give --topic, --group, --transactional-id or --on-cluster")
        return [
            (resource, operation)
            for resource in resources
            for operation in [_operation(text, resource[0]) for text in operations or ("All",)]
        ]
    if operations or on_cluster:
        raise UsageError("--producer and --consumer stand for operations: leave out --operation and --on-cluster")
    if not topics or (consumer and not groups):
        raise UsageError("--producer needs --topic, --consumer needs --topic and --group")
    if (groups and not consumer) or (ids and not producer):
        raise UsageError("--group goes with --consumer, --transactional-id with --producer")
    found: list[tuple[_Resource, Operation]] = []
    if producer:
        on_topic = (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE)
        found += [((ResourceType.TOPIC, name), operation) for name in topics for operation in on_topic]
        on_id = (Operation.WRITE, Operation.DESCRIBE)
        found += [((ResourceType.TRANSACTIONAL_ID, name), operation) for name in ids or () for operation in on_id]
        if idempotent:
            found.append(((ResourceType.CLUSTER, CLUSTER_NAME), Operation.IDEMPOTENT_WRITE))
    if consumer:
        read = (Operation.READ, Operation.DESCRIBE)
        found += [((ResourceType.TOPIC, name), operation) for name in topics for operation in read]
        found += [((ResourceType.GROUP, name), Operation.READ) for name in groups or ()]
    return list(dict.fromkeys(found))


def _operation(text: str, kind: ResourceType) -> Operation:
    """By Kafka's name, such as AlterConfigs, in any case of letters."""
    allowed = {_name(each).lower(): each for each in (Operation.ALL, *SUPPORTED_OPERATIONS[kind])}
    operation = allowed.get(text.replace("_", "").lower())
    if operation is None:
        names = ", ".join(sorted(_name(each) for each in allowed.values()))
        raise UsageError(f"--operation {text}: on a {_kind(kind)} the operations are {names}")
    return operation


def _subjects(
    principals: Iterable[str] | None, hosts: Sequence[str] | None, permission: Permission
) -> Iterator[tuple[str, str | None, Permission]]:
    """(principal, host, permission) of each; None for the host where none is given."""
    if hosts and not principals:
        option = permission.name.lower()
        raise UsageError(f"--{option}-host goes with --{option}-principal")
    for text in principals or ():
        for host in hosts or (None,):
            yield str(Principal.parse(text)), host, permission


def _check_principal(text: str) -> None:
    """Raises UsageError for a principal that no connection has."""
    principal = Principal.parse(text)
    if principal.kind != USER:
        raise UsageError(f"no connection is of {text}: write it as {USER}:{principal.name}")


def _check_host(text: str) -> None:
    """Raises UsageError for a host that no connection comes from, as a broker writes addresses."""
    try:
        if text != WILDCARD:
            ip_address(text)
    except ValueError:
        raise UsageError(f"host {text} is no IP address, and names match no connection: give its addresses") from None
    address = canonical_host(text)
    if address != text:
        raise UsageError(f"no connection is from {text}: write it as {address}")


def _pattern_of(kind: ResourceType, pattern: Pattern) -> PatternType:
    """The cluster has one name, which no prefix is of use for."""
    return PatternType.LITERAL if kind is ResourceType.CLUSTER else PatternType[pattern.name]


# Requests


class _Store:
    """The ACLs of a cluster, by its brokers or offline."""

    def __init__(
        self, cluster: Path | None, bootstrap: str | None, command_config: Path | None, *, offline: bool
    ) -> None:
        self._brokers = cluster, bootstrap, command_config
        self._local = offline_cluster(cluster, bootstrap, command_config, offline=offline)

    def read(self, filters: Sequence[AclFilter]) -> list[AclBinding]:
        if self._local is not None:
            with self._local.store_session() as session:
                found = store_requests.read_acls(session)
            return sorted(acl for acl in found if any(each.matches(acl) for each in filters))
        with admin_client(*self._brokers) as admin:
            return sorted({acl for each in filters for acl in acl_admin.describe_acls(admin, each)})

    def create(self, acls: Sequence[AclBinding]) -> None:
        if self._local is not None:
            with self._local.store_session() as session:
                store_requests.create_acls(session, acls)
            return
        with admin_client(*self._brokers) as admin:
            acl_admin.create_acls(admin, acls)

    def delete(self, filters: Sequence[AclFilter]) -> list[AclBinding]:
        if self._local is not None:
            with self._local.store_session() as session:
                deleted = store_requests.delete_acls(session, filters)
            return sorted({acl for of in deleted for acl in of})
        with admin_client(*self._brokers) as admin:
            return sorted(acl_admin.delete_acls(admin, filters))


# Output


def _show(acls: Sequence[AclBinding], *, as_json: bool, verb: str = "") -> None:
    if as_json:
        print_json({"acls": [_json(acl) for acl in acls]})
        return
    before = None
    for acl in acls:
        resource = acl.resource_type, acl.pattern_type, acl.name
        if resource != before:
            of_pattern = "" if acl.pattern_type is PatternType.LITERAL else f" ({acl.pattern_type.name.lower()})"
            print(f"{_kind(acl.resource_type)} {printable(acl.name)}{of_pattern}")
            before = resource
        host = "any host" if acl.host == WILDCARD else printable(acl.host)
        permission = acl.permission.name.lower()
        print(f"  {permission} {printable(acl.principal)} {_name(acl.operation)} from {host}")
    if verb:
        print(f"{counted(len(acls), 'ACL')} {verb}")
    elif not acls:
        print("no ACLs")


def _json(acl: AclBinding) -> dict[str, str]:
    return {
        "resource_type": acl.resource_type.name,
        "pattern_type": acl.pattern_type.name,
        "name": acl.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }


def _kind(kind: ResourceType) -> str:
    return kind.name.lower().replace("_", " ")


def _name(operation: Operation) -> str:
    """As kafka-acls has it: AlterConfigs."""
    return "".join(part.capitalize() for part in operation.name.split("_"))
