"""AutomaticCreation: which topics a broker creates since clients request their metadata (auto.create.topics.enable).

A name that is not known is queued, and the topic is unknown to the client, which tries again, until it exists. What
clients may cause is bounded: MAX_QUEUED names wait; after an attempt the next one for that topic is RETRY_MS later, and
if it was refused, its clients get that error meanwhile. Topics that brokers keep for themselves, and illegal names, are
never created, and none before there are metadata, which may have the topic (the simulator has its brokers try that, and
fail: attempts after failures are seldom there otherwise). Source: Kafka's AutoTopicCreationManager.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from kreplog.core.transaction_messages import INTERNAL_TOPICS
from kreplog.errors import ErrorCode, InvalidTopicError
from kreplog.types import check_topic

MAX_QUEUED = 1000
"""Maximum of names that wait for their creation, and of outcomes that are remembered."""

MAX_BATCH = 100
"""Maximum of topics that are created before their outcomes are known."""

RETRY_MS = 1000
"""Minimum between two attempts to create a topic: its clients repeat their requests several times a second, also while
the metadata of a created one are on their way."""

INTERNAL = INTERNAL_TOPICS | {"__share_group_state", "__cluster_metadata"}
"""Topics that coordinators create, with settings of their own."""


_REPEATED = frozenset((ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT))
"""Outcomes of an attempt after which the topic is still unknown to clients, which repeat their requests."""


class AutomaticCreation:
    """The names that one broker is to create, in the order of their first requests.

    enabled: auto.create.topics.enable.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._queued: dict[str, None] = {}
        self._outcomes: dict[str, tuple[ErrorCode, int]] = {}  # of attempts, and until when clients get them

    def requested(
        self,
        name: str,
        unknown: ErrorCode,
        has_metadata: bool,
        allowed: bool,
        now_ms: int,
        admit: Callable[[], bool] = lambda: True,
    ) -> ErrorCode:
        """A client has requested the metadata of a topic that this broker does not know. Returns the error that it
        gets.

        unknown: the error without automatic creation. has_metadata: whether the broker has metadata yet. allowed:
        whether the client lets the topic be created. admit: charges a topic that is not queued yet to the client's
        quota; False: it must not be created.
        """
        try:
            check_topic(name)
        except InvalidTopicError:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        if not (self.enabled and allowed and has_metadata) or name in INTERNAL:
            return unknown
        error, until_ms = self._outcomes.get(name, (ErrorCode.NONE, now_ms))
        if now_ms < until_ms:
            return unknown if error in _REPEATED else error
        if name not in self._queued and len(self._queued) < MAX_QUEUED and admit():
            self._queued[name] = None
        return unknown

    def next_names(self) -> list[str]:
        """The topics to create next, at most MAX_BATCH; they stay queued until `finished`."""
        return list(islice(self._queued, MAX_BATCH))

    def finished(self, name: str, error: ErrorCode, now_ms: int) -> None:
        """An attempt to create a topic has ended. error: NONE, or that of CreateTopics: TOPIC_ALREADY_EXISTS if another
        broker was first."""
        self._queued.pop(name, None)
        self._outcomes.pop(name, None)
        while len(self._outcomes) >= MAX_QUEUED:
            del self._outcomes[next(iter(self._outcomes))]
        self._outcomes[name] = error, now_ms + RETRY_MS
