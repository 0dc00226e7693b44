"""ACLs over the Kafka protocol: DescribeAcls, CreateAcls, DeleteAcls (KIP-140, KIP-290)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kreplog.client.admin_client import AdminClient
from kreplog.client.bootstrap import raise_for_error
from kreplog.core.security.acls import (
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    member,
)
from kreplog.errors import PeerProtocolError, UsageError
from kreplog.wire.versions import ApiKey

_VERSION = 3


def describe_acls(admin: AdminClient, selected: AclFilter) -> list[AclBinding]:
    """The ACLs that a filter matches. Raises TopicRequestError, UnreachableError, PeerProtocolError."""
    response = admin.request(ApiKey.DESCRIBE_ACLS, _VERSION, **_filter_fields(selected))
    raise_for_error("the", "ACLs", response)
    return [_binding(resource, acl, resource.pattern_type) for resource in response.resources for acl in resource.acls]


def create_acls(admin: AdminClient, acls: Sequence[AclBinding]) -> None:
    """Create ACLs. Raises TopicRequestError for the first that is refused, others may have been created;
    UnreachableError."""
    creations = [
        {
            "resource_type": int(acl.resource_type),
            "resource_pattern_type": int(acl.pattern_type),
            "resource_name": acl.name,
            "principal": acl.principal,
            "host": acl.host,
            "operation": int(acl.operation),
            "permission_type": int(acl.permission),
        }
        for acl in acls
    ]
    response = admin.request(ApiKey.CREATE_ACLS, _VERSION, creations=creations)
    for acl, result in zip(acls, response.results, strict=True):
        raise_for_error("the ACL for", acl.name, result)


def delete_acls(admin: AdminClient, filters: Sequence[AclFilter]) -> list[AclBinding]:
    """Delete the ACLs that one of the filters matches, and return them. Raises TopicRequestError, UnreachableError,
    PeerProtocolError."""
    response = admin.request(ApiKey.DELETE_ACLS, _VERSION, filters=[_filter_fields(each) for each in filters])
    deleted = []
    for result in response.filter_results:
        raise_for_error("the", "ACLs", result)
        for acl in result.matching_acls:
            raise_for_error("the ACL for", acl.resource_name, acl)
            deleted.append(_binding(acl, acl, acl.pattern_type))
    return list(dict.fromkeys(deleted))


def _filter_fields(selected: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": int(selected.resource_type),
        "resource_name_filter": selected.name,
        "pattern_type_filter": int(selected.pattern_type),
        "principal_filter": selected.principal,
        "host_filter": selected.host,
        "operation": int(selected.operation),
        "permission_type": int(selected.permission),
    }


def _binding(resource: Any, entry: Any, pattern_type: int) -> AclBinding:
    try:
        return AclBinding(
            member(ResourceType, resource.resource_type),
            member(PatternType, pattern_type),
            resource.resource_name,
            entry.principal,
            entry.host,
            member(Operation, entry.operation),
            member(Permission, entry.permission_type),
        )
    except UsageError as error:
        raise PeerProtocolError(f"an ACL of a newer version: {error}") from error
