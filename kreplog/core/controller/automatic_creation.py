"""AutomaticCreation: which topics a broker creates since clients request their metadata (auto.create.topics.enable).

A name that is not known is queued, and the client gets a retriable error until the topic has a leader. What clients may
cause is bounded: MAX_QUEUED names wait, and requests for others find the topic unknown; after an attempt the next one
for that topic is RETRY_MS later, and its clients get the outcome meanwhile. Topics that brokers keep for themselves,
and illegal names, are never created, and none before there are metadata, which may have the topic (the simulator has
its brokers try that, and fail: attempts after failures are seldom there otherwise). Source: Kafka's
AutoTopicCreationManager.
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


_FOR_CLIENTS = dict.fromkeys(
    (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT), ErrorCode.LEADER_NOT_AVAILABLE
)
"""The error for clients after an attempt with this outcome, where it is another one: they repeat their requests."""


class AutomaticCreation:
    """The names that one broker is to create, in the order of their first requests.

    enabled: auto.create.topics.enable.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled
        self._queued: dict[str, None] = {}
        self._outcomes: dict[str, tuple[ErrorCode, int]] = {}  # the error for clients, and until when they get it

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
            return error
        if name not in self._queued:
            if len(self._queued) >= MAX_QUEUED or not admit():
                return unknown
            self._queued[name] = None
        return ErrorCode.LEADER_NOT_AVAILABLE

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
        self._outcomes[name] = _FOR_CLIENTS.get(error, error), now_ms + RETRY_MS
