"""SessionChecks: fetch sessions whose partitions the fetcher may still read.

A request in a session lists only what changes in it. So the partitions that it holds are checked once for each version
of the ACLs, and whenever another principal uses it. A session that holds a topic which may not be read is refused: its
fetcher begins a new one, of which the topic is no part, and gets the error of it. Source: KIP-227.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter

from kreplog.core.messages import FetchPartition, FetchRequest, FetchResponse
from kreplog.core.replication.sessions import FINAL_EPOCH, INITIAL_EPOCH
from kreplog.core.security.acls import Operation
from kreplog.core.security.authorizer import Subject
from kreplog.errors import ErrorCode
from kreplog.server.authorization.checks import AuthorizationCheck, Authorized, refused

MAX_CHECKED = 4096
"""Sessions that are remembered as checked, before those that have ended are forgotten; twice those that have not, if
these are more."""

_topic_of = attrgetter("partition.topic")


class SessionChecks:
    """The checks of one broker. partitions_of: returns the partitions that a session holds, None if there is none of
    that id."""

    def __init__(self, partitions_of: Callable[[int], Sequence[FetchPartition] | None]) -> None:
        self._partitions_of = partitions_of
        self._checked: dict[int, Subject] = {}
        self._forget_at = MAX_CHECKED

    def authorize(self, check: AuthorizationCheck, request: FetchRequest) -> Authorized | None:
        """The refusal of a request in a session that is unknown or may not go on; None for others."""
        if request.session_epoch <= INITIAL_EPOCH:
            return None
        held = self._checked.get(request.session_id)
        if held == check.access.subject:
            return None
        refusal = FetchResponse(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        partitions = self._partitions_of(request.session_id)
        if partitions is None:
            return refused(refusal)  # and nothing is noted: ids are in sequence, and the next one will be another's
        if not check.split(partitions, _topic_of, Operation.READ)[1]:
            self._note(request.session_id, check.access.subject)
            return None
        self._checked.pop(request.session_id, None)
        if held is None or held[1:] != check.access.subject[1:]:
            return refused(refusal)  # it may be another client's
        ends = replace(request, session_epoch=FINAL_EPOCH, partitions=(), forgotten=(), max_wait_ms=0)
        return Authorized(ends, lambda _: refusal)

    def answered(self, check: AuthorizationCheck, request: FetchRequest, response: FetchResponse) -> None:
        """A request has had its response, which may have begun a session: all that it lists was checked."""
        if request.session_epoch == INITIAL_EPOCH and response.session_id:
            self._note(response.session_id, check.access.subject)

    def _note(self, session_id: int, subject: Subject) -> None:
        if len(self._checked) >= self._forget_at:
            self._checked = {key: of for key, of in self._checked.items() if self._partitions_of(key) is not None}
            self._forget_at = max(MAX_CHECKED, 2 * len(self._checked))
        self._checked[session_id] = subject
