"""Authorizer: whether a principal may do an operation on a resource, by Kafka's StandardAuthorizer.

    the principal is one of super.users                  allowed
    an ACL for the resource denies the operation         denied
    an ACL for the resource allows it                    allowed
    no ACL is for the resource, of any principal         allow.everyone.if.no.acl.found
    otherwise                                            denied

ACLs are for a resource by its name, by a prefix of its name, or by the literal name `*`. To allow Read, Write, Delete
or Alter allows Describe, to allow AlterConfigs allows DescribeConfigs; to deny them denies nothing else. Names are
compared as they are, with the case of letters. Source: Kafka, StandardAuthorizerData; KIP-11, KIP-290, KIP-679.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from kreplog.core.security.acls import (
    EVERY_USER,
    SUPPORTED_OPERATIONS,
    WILDCARD,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from kreplog.core.security.principal import Principal
from kreplog.errors import InvariantError

MAX_DECISIONS = 50_000
"""Decisions that are remembered for all principals together; names come from clients."""

MAX_REMEMBERED_CHARS = 249
"""Decisions on longer names, which no topic has, are not remembered."""

MAX_SUBJECTS = 10_000
"""Pairs of principal and host whose decisions are remembered."""

_IMPLIED = {
    Operation.DESCRIBE: frozenset(
        {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""By operation: the operations that are it or imply it where they are allowed."""

_ANY_NAME = "hardcode"
"""A name without ACLs, as Kafka's Authorizer.authorizeByResourceType has it: allowed to super users, and by
allow.everyone.if.no.acl.found."""


class Decision(NamedTuple):
    """A decision. basis: the ACL that decides, or the name of the rule."""

    allowed: bool
    basis: AclBinding | str

    @property
    def rule(self) -> str:
        """The reason as Kafka's audit log has it."""
        acl = self.basis
        if isinstance(acl, str):
            return acl
        return (
            f"MatchingAcl(acl=StandardAcl(resourceType={acl.resource_type.name}, resourceName={acl.name}, "
            f"patternType={acl.pattern_type.name}, principal={acl.principal}, host={acl.host}, "
            f"operation={acl.operation.name}, permissionType={acl.permission.name}))"
        )


_SUPER_USER = Decision(True, "SuperUser")
_DEFAULT_ALLOW = Decision(True, "DefaultAllow")
_DEFAULT_DENY = Decision(False, "DefaultDeny")

Subject = tuple[int, str, str]
"""The version of the ACLs, principal and host of an Access: those with the same have the same rights."""


class _AclEntry(NamedTuple):
    """An ACL of a resource and principal that are known. acl: the whole, for the audit log."""

    host: str
    operation: Operation
    allows: bool
    acl: AclBinding

    def decides(self, operation: Operation, host: str) -> bool:
        if self.host not in (WILDCARD, host):
            return False
        if self.operation in (Operation.ALL, operation):
            return True
        return self.allows and self.operation in _IMPLIED.get(operation, ())


_Entries = dict[str, list[_AclEntry]]
"""The entries of a pattern by principal."""


class AclIndex:
    """An immutable set of ACLs that is searched by resource name: its cost is that of the patterns which match it."""

    def __init__(self, acls: Iterable[AclBinding]) -> None:
        self.acls = tuple(acls)
        self._literal: dict[tuple[ResourceType, str], _Entries] = {}
        self._prefixed: dict[tuple[ResourceType, str], _Entries] = {}
        self._of_principal: dict[tuple[ResourceType, str], list[_AclEntry]] = {}
        lengths: dict[ResourceType, set[int]] = {}
        for acl in self.acls:
            prefixed = acl.pattern_type is PatternType.PREFIXED
            entries = (self._prefixed if prefixed else self._literal).setdefault((acl.resource_type, acl.name), {})
            allows = acl.permission is Permission.ALLOW
            entry = _AclEntry(canonical_host(acl.host), acl.operation, allows, acl)
            entries.setdefault(acl.principal, []).append(entry)
            self._of_principal.setdefault((acl.resource_type, acl.principal), []).append(entry)
            if prefixed:
                lengths.setdefault(acl.resource_type, set()).add(len(acl.name))
        self._prefix_lengths = {kind: sorted(found) for kind, found in lengths.items()}

    def patterns(self, kind: ResourceType, name: str) -> Iterator[_Entries]:
        """The entries of every pattern that the resource matches."""
        literal = self._literal
        if (found := literal.get((kind, name))) is not None:
            yield found
        if name != WILDCARD and (found := literal.get((kind, WILDCARD))) is not None:
            yield found
        for length in self._prefix_lengths.get(kind, ()):
            if length > len(name):
                break
            if (found := self._prefixed.get((kind, name[:length]))) is not None:
                yield found

    def entries(self, kind: ResourceType, principals: Collection[str]) -> Iterator[_AclEntry]:
        """All entries of the principals for resources of a type."""
        for principal in principals:
            yield from self._of_principal.get((kind, principal), ())


_NO_ACLS = AclIndex(())

_Decisions = dict[tuple[Operation, ResourceType, str], Decision]


class DecisionMemory:
    """The decisions that are remembered for all principals; when there are too many, all are forgotten."""

    def __init__(self) -> None:
        self._of_all: list[_Decisions] = []
        self._count = 0

    def of_subject(self) -> _Decisions:
        """A new dictionary for the decisions of a principal at a host."""
        decisions: _Decisions = {}
        self._of_all.append(decisions)
        return decisions

    def make_room(self) -> None:
        """One decision is about to be added to one of the dictionaries."""
        if self._count >= MAX_DECISIONS:
            self._count = 0
            for decisions in self._of_all:
                decisions.clear()
        self._count += 1


class Access:
    """The rights of a principal at a host, by one version of the ACLs. Decisions are remembered. is_super: it may do
    everything. memory: that of all principals; None for one of its own."""

    def __init__(
        self,
        index: AclIndex,
        principal: str,
        host: str,
        *,
        is_super: bool,
        allows_without_acl: bool,
        memory: DecisionMemory | None = None,
        version: int = 0,
    ) -> None:
        self.principal = principal
        self.host = host
        self.subject: Subject = version, principal, host
        self._index = index
        self._principals = (principal, EVERY_USER)
        self.is_super = is_super
        self._allows_without_acl = allows_without_acl
        self._memory = memory or DecisionMemory()
        self._decisions = self._memory.of_subject()
        self._on_any: dict[tuple[Operation, ResourceType], bool] = {}

    def decide(self, operation: Operation, kind: ResourceType, name: str) -> Decision:
        """The decision for one resource."""
        if self.is_super:
            return _SUPER_USER
        key = operation, kind, name
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._decide(operation, kind, name)
            if len(name) <= MAX_REMEMBERED_CHARS:
                self._memory.make_room()
                self._decisions[key] = decision
        return decision

    def allows(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        return self.decide(operation, kind, name).allowed

    def _decide(self, operation: Operation, kind: ResourceType, name: str) -> Decision:
        allowing, has_acls = None, False
        for by_principal in self._index.patterns(kind, name):
            has_acls = True
            for principal in self._principals:
                for entry in by_principal.get(principal, ()):
                    if not entry.decides(operation, self.host):
                        continue
                    if not entry.allows:
                        return Decision(False, entry.acl)
                    allowing = entry
        if allowing is not None:
            return Decision(True, allowing.acl)
        return _DEFAULT_ALLOW if not has_acls and self._allows_without_acl else _DEFAULT_DENY

    def allows_on_any(self, operation: Operation, kind: ResourceType) -> bool:
        """Whether the operation is allowed on some resource of the type. Source: KIP-679,
        Authorizer.authorizeByResourceType."""
        key = operation, kind
        if key not in self._on_any:
            self._on_any[key] = self._find_any(operation, kind)
        return self._on_any[key]

    def _find_any(self, operation: Operation, kind: ResourceType) -> bool:
        if self.allows(operation, kind, _ANY_NAME):
            return True
        allowed: dict[PatternType, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
        denied: dict[PatternType, set[str]] = {PatternType.LITERAL: set(), PatternType.PREFIXED: set()}
        for entry in self._index.entries(kind, self._principals):
            if entry.operation in (Operation.ALL, operation) and entry.host in (WILDCARD, self.host):
                acl = entry.acl
                (allowed if entry.allows else denied)[acl.pattern_type].add(acl.name)
        if WILDCARD in denied[PatternType.LITERAL]:
            return False
        if WILDCARD in allowed[PatternType.LITERAL]:
            return True
        lengths = sorted({len(prefix) for prefix in denied[PatternType.PREFIXED]})
        return any(
            not (pattern_type is PatternType.LITERAL and name in denied[PatternType.LITERAL])
            and not any(name[:length] in denied[PatternType.PREFIXED] for length in lengths if length <= len(name))
            for pattern_type, names in allowed.items()
            for name in names
        )

    def operations(self, kind: ResourceType, name: str) -> frozenset[Operation]:
        """The operations that are allowed on a resource, of those that exist on its type (KIP-430)."""
        return frozenset(each for each in SUPPORTED_OPERATIONS[kind] if self.allows(each, kind, name))


class Authorizer:
    """The authorizer of one broker. super_users: principals as texts. allows_without_acl:
    allow.everyone.if.no.acl.found."""

    def __init__(self, super_users: Collection[str] = (), *, allows_without_acl: bool = False) -> None:
        self._super_users = frozenset(super_users)
        self._allows_without_acl = allows_without_acl
        self._index: AclIndex | None = None
        self._version = 0
        self._forget()

    def _forget(self) -> None:
        self._memory = DecisionMemory()
        self._subjects: dict[tuple[Principal, str], Access] = {}

    @property
    def is_ready(self) -> bool:
        """Whether the ACLs have been read; before that nobody is authorized."""
        return self._index is not None

    @property
    def acls(self) -> tuple[AclBinding, ...]:
        return () if self._index is None else self._index.acls

    @property
    def denies_everything(self) -> bool:
        """Whether nobody may do anything: there are no super users, nor any ACLs where these are needed."""
        return not (self._super_users or self._allows_without_acl or self.acls)

    def replace(self, index: AclIndex) -> None:
        """Apply other ACLs, and forget all decisions."""
        self._index = index
        self._version += 1
        self._forget()

    def access(self, principal: Principal, host: str) -> Access:
        """The rights of a principal: the same object until the ACLs change. host: its address. `is_ready` holds."""
        key = principal, host
        access = self._subjects.get(key)
        if access is None:
            if self._index is None:
                raise InvariantError("the ACLs have not been read, and nobody can be authorized")
            if len(self._subjects) >= MAX_SUBJECTS:
                self._forget()
            text = str(principal)
            access = self._subjects[key] = Access(
                self._index,
                text,
                canonical_host(host),
                is_super=text in self._super_users,
                allows_without_acl=self._allows_without_acl,
                memory=self._memory,
                version=self._version,
            )
        return access


def everything(principal: Principal, host: str) -> Access:
    """The access of everybody where no authorizer is configured, and of the cluster's own brokers."""
    return Access(_NO_ACLS, str(principal), host, is_super=True, allows_without_acl=True)


def canonical_host(host: str) -> str:
    """An address in the one form in which addresses are compared; an IPv4 address that was mapped to IPv6 is itself.
    Other texts are as they are."""
    if host == WILDCARD:
        return host
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = getattr(address, "ipv4_mapped", None)
    return str(address if mapped is None else mapped)


def acls_by_resource(
    acls: Iterable[AclBinding],
) -> Mapping[tuple[ResourceType, PatternType, str], list[AclBinding]]:
    """ACLs by the pattern of their resources, in order."""
    found: dict[tuple[ResourceType, PatternType, str], list[AclBinding]] = {}
    for acl in acls:
        found.setdefault((acl.resource_type, acl.pattern_type, acl.name), []).append(acl)
    return found
