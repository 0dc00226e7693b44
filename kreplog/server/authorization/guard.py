"""Guard: authorizes the requests of clients by ACLs, where Api dispatches them.

Without an authorizer, and for the cluster's own brokers, everything is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kreplog.core.messages import FetchRequest, FetchResponse
from kreplog.core.security.authorizer import Access, Authorizer, everything
from kreplog.errors import check
from kreplog.server.authorization.audit_log import AuditLog
from kreplog.server.authorization.authorization_table import ADMINISTRATIVE, OF_RIGHTS, RULES, has_operations
from kreplog.server.authorization.checks import AuthorizationCheck, Authorized, Decided, KnownTopics, passes
from kreplog.server.authorization.fetch_sessions import SessionChecks
from kreplog.server.authorization.partition_rules import without_unreadable
from kreplog.server.network.serving import RequestContext
from kreplog.wire.kafka_apis import KAFKA_4
from kreplog.wire.versions import TO_CLIENTS, ApiKey


class Guard:
    """The authorization of one broker's clients. authorizer: None if none is configured. creates_topics:
    auto.create.topics.enable. Raises InvariantError if an API that clients may send has no rule.
    """

    def __init__(
        self,
        authorizer: Authorizer | None,
        topics: KnownTopics,
        sessions: SessionChecks,
        now_ms: Callable[[], int],
        *,
        creates_topics: bool,
    ) -> None:
        unruled = [ApiKey(key).name for key in TO_CLIENTS.keys() - RULES.keys()]
        check(not unruled, f"these APIs of clients have no rule of authorization: {', '.join(unruled)}")
        self._authorizer = authorizer
        self._topics = topics
        self._sessions = sessions
        self._creates_topics = creates_topics
        self.audit = AuditLog(now_ms)

    def must_wait(self, context: RequestContext) -> bool:
        """Whether the request cannot be authorized yet: the ACLs have not been read."""
        authorizer = self._authorizer
        if authorizer is None or authorizer.is_ready or context.client.internal:
            return False
        return RULES[context.header.api_key] is not passes

    def check(self, context: RequestContext) -> AuthorizationCheck | None:
        """The check of a request; None if everything is allowed."""
        authorizer = self._authorizer
        if authorizer is None or context.client.internal:
            return None
        access = authorizer.access(context.principal, context.client.address)
        return self._check(context, access, logs_allowed=context.header.api_key in ADMINISTRATIVE)

    def _check(self, context: RequestContext, access: Access, *, logs_allowed: bool = False) -> AuthorizationCheck:
        return AuthorizationCheck(
            access,
            context.header.api_version,
            self._topics,
            creates_topics=self._creates_topics,
            logs_allowed=logs_allowed,
        )

    def authorize(self, context: RequestContext, request: Any) -> Authorized:
        """The part of a request that is carried out."""
        key = context.header.api_key
        rule = RULES.get(key, passes) if context.client.internal else RULES[key]
        if rule is passes:  # for which nobody waits for the ACLs
            return Authorized(request)
        check = self.check(context)
        if check is None:
            if not has_operations(key, request):
                return Authorized(request)
            check = self._check(context, everything(context.principal, context.client.address))
        authorized = rule(check, request)
        self.record(context, check)
        if key in ADMINISTRATIVE and authorized.request is not None:
            changed = ADMINISTRATIVE[key](authorized.request)
            self.audit.record_act(check.access, _name_of(key), changed, whole=key in OF_RIGHTS)
        return authorized

    def fetch(self, context: RequestContext, check: AuthorizationCheck, request: FetchRequest) -> Authorized:
        """As `authorize`, for a Fetch, whose session counts too."""
        authorized = self._sessions.authorize(check, request) or RULES[ApiKey.FETCH](check, request)
        self.record(context, check)
        return authorized

    def fetched(
        self, context: RequestContext, request: FetchRequest, check: AuthorizationCheck, response: FetchResponse
    ) -> FetchResponse:
        """The response to a Fetch, without topics that may not be read, such as those that have lost READ while it was
        delayed: all that it has is checked here, whatever session it is of."""
        self._sessions.answered(check, request, response)
        now = self.check(context)
        if now is None:
            return response
        left = without_unreadable(now, response)
        self.record(context, now)
        return left

    def record(self, context: RequestContext, check: AuthorizationCheck) -> None:
        """Log what the check has decided so far."""
        if check.decisions:
            decisions: list[Decided] = check.decisions
            check.decisions = []
            self.audit.record(check.access, _name_of(context.header.api_key), decisions)


def _name_of(key: int) -> str:
    return KAFKA_4[key][0] if key in KAFKA_4 else str(key)
