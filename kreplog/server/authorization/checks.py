"""AuthorizationCheck: the authorization of one request; and Authorized: the part of a request that is carried out.

Rules, without I/O, make the one of the other. The table of all rules is in authorization_table.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from kreplog.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from kreplog.core.security.authorizer import Access, Decision
from kreplog.errors import ErrorCode

T = TypeVar("T")
Fields = dict[str, Any]

MESSAGES: Mapping[ErrorCode, str] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Topic authorization failed.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
}
"""What a refused client reads: nothing about the resource."""

FAILURES: Mapping[ResourceType, ErrorCode] = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""The error for a resource on which an operation is denied."""


class KnownTopics(Protocol):
    """The topics that rules look up, by this broker's metadata."""

    @property
    def all(self) -> Mapping[str, Any]:
        """Every topic by name, sorted."""

    def name_of(self, topic_id: str) -> str | None: ...


class Authorized(NamedTuple):
    """The outcome of a rule. request: what is left of the request, None if nothing is to be carried out. finish: makes
    the whole response from the one to `request`, or from None; None if it is the whole already. Responses are messages
    of the cores, or fields for kreplog.wire.generic."""

    request: Any
    finish: Callable[[Any], Any] | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all of the request is carried out."""
        return self.finish is None

    def finished(self, response: Any) -> Any:
        """The whole response. response: to `request`, or None."""
        return response if self.finish is None else self.finish(response)


class Decided(NamedTuple):
    """A decision for the audit log: a denied operation, or an allowed one of an administrative request. named: how
    often the request names the resource."""

    operation: Operation
    resource_type: ResourceType
    name: str
    decision: Decision
    named: int


class AuthorizationCheck:
    """The authorization of one request of one client. access: the client's. version: of the request. topics: the
    cluster's. creates_topics: auto.create.topics.enable. decisions: those that are to be logged."""

    __slots__ = ("_logs_allowed", "access", "creates_topics", "decisions", "topics", "version")

    def __init__(
        self, access: Access, version: int, topics: KnownTopics, *, creates_topics: bool, logs_allowed: bool = False
    ) -> None:
        self.access = access
        self.version = version
        self.topics = topics
        self.creates_topics = creates_topics
        self.decisions: list[Decided] = []
        self._logs_allowed = logs_allowed

    def allows(
        self, operation: Operation, kind: ResourceType, name: str, named: int = 1, *, logs_denied: bool = True
    ) -> bool:
        """Whether the client may do it. logs_denied: the request fails for it, rather than that it shows less."""
        decision = self.access.decide(operation, kind, name)
        if self._logs_allowed if decision.allowed else logs_denied:
            self.decisions.append(Decided(operation, kind, name, decision, named))
        return decision.allowed

    def allows_cluster(self, operation: Operation, *, logs_denied: bool = True) -> bool:
        return self.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME, logs_denied=logs_denied)

    def split(
        self,
        entries: Iterable[T],
        name_of: Callable[[T], str],
        operation: Operation,
        kind: ResourceType = ResourceType.TOPIC,
        *,
        logs_denied: bool = True,
    ) -> tuple[list[T], list[T]]:
        """The entries whose resource allows the operation, and the others, both in order."""
        entries = list(entries)
        denied = {
            name
            for name, named in Counter(map(name_of, entries)).items()
            if not self.allows(operation, kind, name, named, logs_denied=logs_denied)
        }
        if not denied:
            return entries, []
        return (
            [entry for entry in entries if name_of(entry) not in denied],
            [entry for entry in entries if name_of(entry) in denied],
        )

    def visible(self, name: str, kind: ResourceType = ResourceType.TOPIC) -> bool:
        """Whether a response may show the resource; not logged, since nothing fails."""
        return self.allows(Operation.DESCRIBE, kind, name, logs_denied=False)


Rule = Callable[[AuthorizationCheck, Any], Authorized]
"""Authorizes the request of one API."""


def passes(check: AuthorizationCheck, request: Any) -> Authorized:
    """The rule of an API that needs nothing."""
    return Authorized(request)


def refused(response: Any) -> Authorized:
    """Nothing is carried out; `response` is the whole response."""
    return Authorized(None, lambda _: response)


def message_fields(error: ErrorCode) -> Fields:
    """The fields of an error with its message, as most responses have them."""
    return {"error_code": int(error), "error_message": MESSAGES[error]}


def on_cluster(operation: Operation, refusal: Callable[[Any, ErrorCode], Any]) -> Rule:
    """The rule of an API that needs an operation on the cluster. refusal: makes the response to a refused request."""

    def rule(check: AuthorizationCheck, request: Any) -> Authorized:
        if check.allows_cluster(operation):
            return Authorized(request)
        return refused(refusal(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED))

    return rule


def is_transactional_allowed(check: AuthorizationCheck, transactional_id: str) -> bool:
    return check.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
