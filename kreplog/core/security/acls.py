"""ACLs: AclBinding, which allows or denies a principal an operation on resources, and AclFilter, which selects some.

Names and numbers are those of Kafka's protocol. Source: KIP-140, KIP-290 (prefixed patterns).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeVar

from kreplog.core.security.principal import Principal
from kreplog.errors import UsageError

WILDCARD = "*"
"""As the name of a literal pattern: every resource of the type. As a host: every host."""

EVERY_USER = "User:*"
"""The principal of ACLs for every user."""

CLUSTER_NAME = "kafka-cluster"
"""The name of the only resource of the type CLUSTER."""

MAX_NAME_CHARS = 10_000
"""Maximum length of the name, the principal and the host of a new ACL."""


class ResourceType(IntEnum):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """ANY and MATCH are for filters: MATCH selects the patterns that a resource of that name matches."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


SUPPORTED_OPERATIONS: dict[ResourceType, frozenset[Operation]] = {
    ResourceType.TOPIC: frozenset(
        {
            Operation.READ,
            Operation.WRITE,
            Operation.CREATE,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.ALTER,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.GROUP: frozenset(
        {
            Operation.READ,
            Operation.DESCRIBE,
            Operation.DELETE,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.CLUSTER: frozenset(
        {
            Operation.CREATE,
            Operation.CLUSTER_ACTION,
            Operation.DESCRIBE_CONFIGS,
            Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE,
            Operation.ALTER,
            Operation.DESCRIBE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT}),
    ResourceType.DELEGATION_TOKEN: frozenset({Operation.DESCRIBE}),
    ResourceType.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
}
"""The operations that exist on resources of each type. Source: Kafka, AclEntry.supportedOperations."""


class AclBinding(NamedTuple):
    """An ACL: `principal` from `host` is allowed or denied `operation` on the resources that the pattern matches.

    pattern_type: LITERAL for the resource `name`, or for every one if that is WILDCARD; PREFIXED for those whose names
    begin with it. principal: text `User:alice`, or EVERY_USER. host: an IP address, or WILDCARD.
    """

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission


class AclFilter(NamedTuple):
    """Selects AclBindings. None and ANY are for any value."""

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, acl: AclBinding) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
        )

    def _matches_pattern(self, acl: AclBinding) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return self.name == acl.name
        if acl.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name in (self.name, WILDCARD)


E = TypeVar("E", ResourceType, PatternType, Operation, Permission)


def member(kind: type[E], code: int) -> E:
    """The member of one of the enumerations above with this number. Raises UsageError."""
    try:
        return kind(code)
    except ValueError:
        known = ", ".join(f"{each.value} ({each.name})" for each in kind)
        raise UsageError(f"{code} is no {kind.__name__} of an ACL: {known}") from None


def check_binding(acl: AclBinding) -> AclBinding:
    """Return an ACL that may be created. Raises UsageError, where Kafka responds INVALID_REQUEST."""
    if acl.resource_type is ResourceType.ANY:
        raise UsageError("an ACL is for resources of one type: ANY is for filters")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise UsageError(f"the pattern of an ACL is LITERAL or PREFIXED: {acl.pattern_type.name} is for filters")
    if acl.operation is Operation.ANY or acl.permission is Permission.ANY:
        raise UsageError("an ACL allows or denies one operation, or ALL: ANY is for filters")
    if not acl.name:
        raise UsageError(f"the name of a resource must not be empty: for all of them write {WILDCARD}")
    if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        raise UsageError(f"{acl.name[:100]!r} is not the cluster: the only resource of that type is {CLUSTER_NAME}")
    if not acl.host:
        raise UsageError(f"the host of an ACL must not be empty: for all of them write {WILDCARD}")
    for text in (acl.name, acl.principal, acl.host):
        if len(text) > MAX_NAME_CHARS:
            raise UsageError(f"{text[:50]!r}... has {len(text)} characters: at most {MAX_NAME_CHARS} are allowed")
    Principal.parse(acl.principal)
    return acl


def super_users(text: str) -> tuple[str, ...]:
    """The principals of the setting super.users, separated by semicolons, since names of certificates have commas.
    Raises UsageError."""
    return tuple(str(Principal.parse(part.strip())) for part in text.split(";") if part.strip())
