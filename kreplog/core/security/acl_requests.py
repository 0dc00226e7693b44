"""The ACLs in the coordination store: the content of their node, and the steps of requests that change them.

One node holds all ACLs, of some 20,000 of names like topic-1234; see core.whole_nodes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from kreplog.core import nodes
from kreplog.core.effects import GetNodes, Steps
from kreplog.core.security.acls import (
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    check_binding,
)
from kreplog.core.security.authorizer import acls_by_resource
from kreplog.core.whole_nodes import alter_whole, encode_whole
from kreplog.errors import CoordinationError
from kreplog.types import Node


def encode(acls: Sequence[AclBinding]) -> bytes:
    """The content of the node: by type, pattern and name of the resource (principal, host, operation, permission) of
    each ACL. Raises UsageError if it is larger than a node may be."""
    content: dict[str, dict[str, dict[str, list[list[str]]]]] = {}
    for (kind, pattern, name), of in acls_by_resource(acls).items():
        entries = [[acl.principal, acl.host, acl.operation.name, acl.permission.name] for acl in of]
        content.setdefault(kind.name, {}).setdefault(pattern.name, {})[name] = entries
    return encode_whole(content, "ACLs", "use prefixed patterns, and remove ACLs that are not needed")


def decode(node: Node | None) -> list[AclBinding]:
    """The ACLs in the node, none if there is no node. Raises CoordinationError for content that is not theirs: nobody
    may pass for a damaged ACL that denies."""
    if node is None:
        return []
    try:
        return [
            check_binding(
                AclBinding(
                    ResourceType[kind],
                    PatternType[pattern],
                    name,
                    str(principal),
                    str(host),
                    Operation[operation],
                    Permission[permission],
                )
            )
            for kind, patterns in json.loads(node.data).items()
            for pattern, names in patterns.items()
            for name, entries in names.items()
            for principal, host, operation, permission in entries
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CoordinationError(
            f"the node {nodes.ACLS} has no ACLs that this version can read ({error}): restore it, for without "
            "the node nothing is denied any more; brokers keep to the ACLs that they have read before",
            path=nodes.ACLS,
        ) from error


def read_acls() -> Steps[list[AclBinding]]:
    """All ACLs. Raises CoordinationError."""
    (node,) = yield GetNodes((nodes.ACLS,))
    return decode(node)


def create_acls(acls: Sequence[AclBinding]) -> Steps[None]:
    """Add ACLs; those that exist already stay. Raises UsageError (one is invalid, or there are too many; nothing was
    changed), CoordinationError."""
    added = [check_binding(acl) for acl in acls]
    yield from alter_whole(nodes.ACLS, "ACLs", decode, encode, lambda before: list(dict.fromkeys((*before, *added))))


def delete_acls(filters: Sequence[AclFilter]) -> Steps[list[list[AclBinding]]]:
    """Delete the ACLs that one of the filters matches; returns those of each filter. Raises CoordinationError."""
    found: list[list[AclBinding]] = []

    def without(before: list[AclBinding]) -> list[AclBinding]:
        by_name: dict[str, list[AclBinding]] = {}
        for acl in before:
            by_name.setdefault(acl.name, []).append(acl)

        def candidates(wanted: AclFilter) -> Sequence[AclBinding]:
            matches_others = wanted.name is None or wanted.pattern_type is PatternType.MATCH
            return before if matches_others else by_name.get(wanted.name or "", ())

        found[:] = [sorted(filter(each.matches, candidates(each))) for each in filters]
        deleted = {acl for of in found for acl in of}
        return [acl for acl in before if acl not in deleted]

    yield from alter_whole(nodes.ACLS, "ACLs", decode, encode, without)
    return found
