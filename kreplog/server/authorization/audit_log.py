"""AuditLog: decisions of the authorizer, in the format of kafka.authorizer.logger.

    Principal = User:bob is Denied operation = READ from host = 10.0.0.7 on resource = Topic:LITERAL:orders for request
    = Fetch with resourceRefCount = 2 based on rule DefaultDeny

Denials are on the logger `kreplog.authorizer`; what administrative requests were allowed, with what they change, on
`kreplog.administration`, so that no flood of denials rotates it away. Clients repeat refused requests as fast as they
can: a denial that has been logged is not logged again for a while, and of a principal at a host no more than so many
lines are in a second; both are counted. Changes of ACLs and users are logged whole, whatever their number.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice

from kreplog.core.security.acls import ResourceType
from kreplog.core.security.authorizer import Access
from kreplog.server.authorization.checks import Decided

_denials = logging.getLogger("kreplog.authorizer")
_acts = logging.getLogger("kreplog.administration")

LINES_PER_SECOND = 100
"""Maximum of lines about denials of a principal at a host, and again as many about what it was allowed."""

ALL_LINES_PER_SECOND = 1000
"""Maximum of lines about denials of all together."""

REPEATED_MS = 60_000
"""A denial that has been logged is not logged again for this long."""

MAX_REMEMBERED = 10_000
"""Denials that are remembered as logged."""

MAX_SHOWN_CHARS = 300
"""Longer names of resources are cut: they come from clients."""

MAX_CHANGED = 20
"""Resources that a line about an administrative request names."""

_TYPE_NAMES = {
    ResourceType.TOPIC: "Topic",
    ResourceType.GROUP: "Group",
    ResourceType.CLUSTER: "Cluster",
    ResourceType.TRANSACTIONAL_ID: "TransactionalId",
    ResourceType.DELEGATION_TOKEN: "DelegationToken",
    ResourceType.USER: "User",
}


class AuditLog:
    """The audit log of one broker. now_ms: returns the time. denied: decisions of that kind since the start."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.denied = 0
        self._now_ms = now_ms
        self._second = -1
        self._lines: Counter[tuple[bool, str, str]] = Counter()
        self._denials = 0
        self._omitted = 0
        self._repeated: dict[tuple[object, ...], int] = {}

    def record(self, access: Access, request: str, decisions: list[Decided]) -> None:
        """Log the decisions on one request. request: Kafka's name of its API."""
        now_ms = self._now_ms()
        for found in decisions:
            if found.decision.allowed:
                if self._has_room(access, True, now_ms):
                    _acts.info("%s", _line(access, request, found))
                continue
            self.denied += 1
            resource = found.resource_type, found.name[:MAX_SHOWN_CHARS]
            key = access.principal, access.host, request, found.operation, *resource
            if not self._is_repeated(key, now_ms) and self._has_room(access, False, now_ms):
                self._remember(key, now_ms)
                _denials.info("%s", _line(access, request, found))

    def record_act(self, access: Access, request: str, changed: Iterable[object], *, whole: bool = False) -> None:
        """Log an administrative request that is allowed, at least in part. changed: what that part changes. whole: it
        changes who may do what, and nothing of it may be left out."""
        if whole:
            texts = [_line_of(str(each)) for each in changed]
            for start in range(0, len(texts), MAX_CHANGED):
                _log_act(access, request, texts[start : start + MAX_CHANGED])
        elif self._has_room(access, True, self._now_ms()):
            names = list(map(str, islice(changed, MAX_CHANGED + 1)))
            _log_act(access, request, [*map(_printable, names[:MAX_CHANGED]), *(["..."] * (len(names) > MAX_CHANGED))])

    def _is_repeated(self, key: tuple[object, ...], now_ms: int) -> bool:
        logged_ms = self._repeated.get(key)
        return logged_ms is not None and now_ms - logged_ms < REPEATED_MS

    def _remember(self, key: tuple[object, ...], now_ms: int) -> None:
        """A denial is logged now."""
        if len(self._repeated) >= MAX_REMEMBERED:
            self._repeated = {}
        self._repeated[key] = now_ms

    def _has_room(self, access: Access, allowed: bool, now_ms: int) -> bool:
        second = now_ms // 1000
        if second != self._second:
            if self._omitted:
                text = "%d decisions were not logged: more than %d in a second of one principal at a host, or %d of all"
                _denials.warning(text, self._omitted, LINES_PER_SECOND, ALL_LINES_PER_SECOND)
            self._second, self._denials, self._omitted = second, 0, 0
            self._lines.clear()
        key = allowed, access.principal, access.host
        if self._lines[key] >= LINES_PER_SECOND or (not allowed and self._denials >= ALL_LINES_PER_SECOND):
            self._omitted += 1
            return False
        self._lines[key] += 1
        self._denials += not allowed
        return True


def _log_act(access: Access, request: str, changed: list[str]) -> None:
    text, principal = "Principal = %s from host = %s requests %s: %s", _printable(access.principal)
    _acts.info(text, principal, access.host, request, ", ".join(changed))


def _printable(text: str) -> str:
    """A text of a client, in one line of a bounded length."""
    return _line_of(text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}...")


def _line_of(text: str) -> str:
    """A text of a client, in one line."""
    return text if text.isprintable() else ascii(text)


def _line(access: Access, request: str, found: Decided) -> str:
    return (
        f"Principal = {_printable(access.principal)} is {'Allowed' if found.decision.allowed else 'Denied'} "
        f"operation = {found.operation.name} from host = {access.host} "
        f"on resource = {_TYPE_NAMES[found.resource_type]}:LITERAL:{_printable(found.name)} for request = {request} "
        f"with resourceRefCount = {found.named} based on rule {_printable(found.decision.rule)}"
    )
