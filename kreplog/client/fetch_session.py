"""FetchSession: a client's side of an incremental fetch session with one broker (KIP-227).

    session_id, session_epoch of a request
    0, 0       full: every partition is listed, and the broker may begin a session
    id, n      incremental: only partitions that changed are listed, and those that left are forgotten

A broker that begins no session answers with id 0: every request is then full. One that lost the session refuses the
request, and the next is full. Values alone, no I/O; one request may be in flight.
"""

from __future__ import annotations

from collections.abc import Mapping

from kreplog.core.messages import CONSUMER, READ_UNCOMMITTED, FetchPartition, FetchRequest, FetchResponse
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

_LAST_EPOCH = 2**31 - 1
_LOST = {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}


class FetchSession:
    """A client's side of a fetch session with one broker. isolation_level, rack: of every request."""

    def __init__(self, isolation_level: int = READ_UNCOMMITTED, rack: str = "") -> None:
        self._isolation_level = isolation_level
        self._rack = rack
        self._id = 0
        self._epoch = 0
        self._held: dict[TopicPartition, FetchPartition] = {}  # as the broker has them once the request has arrived
        self._ids: dict[str, str] = {}
        self._topics: dict[str, str] = {}

    def next_request(
        self, wanted: Mapping[TopicPartition, FetchPartition], max_wait_ms: int, min_bytes: int, max_bytes: int
    ) -> FetchRequest:
        """The request after which the broker fetches `wanted` and nothing else."""
        if self._epoch == 0:
            listed = tuple(wanted.values())
            forgotten: tuple[TopicPartition, ...] = ()
        else:
            listed = tuple(partition for at, partition in wanted.items() if self._held.get(at) != partition)
            forgotten = tuple(at for at in self._held if at not in wanted)
        self._ids = {at.topic: partition.topic_id for at, partition in (*self._held.items(), *wanted.items())}
        self._topics = {partition.topic_id: at.topic for at, partition in wanted.items()}
        self._held = dict(wanted)
        return FetchRequest(
            CONSUMER,
            -1,
            max_wait_ms,
            min_bytes,
            max_bytes,
            listed,
            forgotten,
            self._id,
            self._epoch,
            self._isolation_level,
            self._rack,
        )

    def partitions(self) -> dict[TopicPartition, FetchPartition]:
        """The partitions that the broker fetches after the last request, as that or an earlier one listed them."""
        return self._held

    def topic_id_of(self, topic: str) -> str:
        """The id of a topic in the last request, which may be one that it forgets."""
        return self._ids[topic]

    def topic_of(self, topic_id: str) -> str | None:
        """The topic of the last request with this id."""
        return self._topics.get(topic_id)

    def on_response(self, response: FetchResponse) -> bool:
        """Whether its partitions are of use; if not, the broker refused the whole request, and the next is full."""
        if response.error is not ErrorCode.NONE:
            self.reset()
            return False
        if response.session_id == 0 or (self._epoch and response.session_id != self._id):
            self.reset()
        else:
            self._id = response.session_id
            self._epoch = self._epoch + 1 if self._epoch < _LAST_EPOCH else 1
        return True

    def reset(self) -> None:
        """The broker holds no session, as on a new connection."""
        self._id = self._epoch = 0
        self._held = {}


def is_lost(response: FetchResponse) -> bool:
    """Whether the request was refused only because the broker does not have the session any more."""
    return response.error in _LOST
