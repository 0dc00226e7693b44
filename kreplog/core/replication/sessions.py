"""A leader's side of incremental fetch sessions (KIP-227): what it remembers of each fetcher's partitions.

    session_id, session_epoch   the request is
    0, -1                       sessionless: everything is listed, nothing is remembered
    0, 0                        full, and begins a session; with an id it ends that session first
    id, n                       incremental: lists what changed since n - 1
    id, -1                      full, and ends the session

In a session a partition is looked at only when its fetcher listed it or it was marked since: when it has news. It stays
so ("dirty") until a look at it finds nothing to tell. So a round costs what has changed, never what is held.
Reading the partitions, and parking a request that has nothing to tell yet, is the manager's work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from kreplog.core.memory import MemoryAccount
from kreplog.core.messages import CONSUMER, FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
LAST_EPOCH = 2**31 - 1

ACCOUNT = "fetch_sessions"
SESSION_BYTES = 1000
PARTITION_BYTES = 500
"""What a session, and each partition in it, is charged; about what they take."""

EVICTION_MS = 120_000
"""A consumer takes another one's place only when that has not fetched for so long, or they would all chase each other
out. Kafka's min.incremental.fetch.session.eviction.ms."""


def next_epoch(session_epoch: int) -> int:
    """The session epoch of the next request: past the last it goes on at 1, since 0 begins a session."""
    return 1 if session_epoch >= LAST_EPOCH else session_epoch + 1


class _Held:
    """A partition in a session: as its fetcher last listed it, and what it was last told (-1: nothing)."""

    __slots__ = ("asked", "high_watermark", "log_start_offset")

    def __init__(self, asked: FetchPartition) -> None:
        self.asked = asked
        self.high_watermark = -1
        self.log_start_offset = -1

    def ask(self, asked: FetchPartition) -> None:
        """Listed again. One that has not moved on wants to be told all anew: its fetcher has begun anew with it."""
        old, self.asked = self.asked, asked
        if not _moved_on(old, asked):
            self.forget_told()

    def told(self, data: FetchedPartition) -> None:
        self.high_watermark = data.high_watermark
        self.log_start_offset = data.log_start_offset

    def forget_told(self) -> None:
        self.high_watermark = self.log_start_offset = -1


def _moved_on(old: FetchPartition, new: FetchPartition) -> bool:
    return (
        new.fetch_offset > old.fetch_offset
        and new.current_leader_epoch == old.current_leader_epoch
        and new.topic_id == old.topic_id
    )


class _Session:
    """dirty: the partitions to look at, those that waited longest first, each with the mark that made it so."""

    __slots__ = ("dirty", "epoch", "held", "id", "marks", "replica_id", "used_ms")

    def __init__(self, session_id: int, replica_id: int, now_ms: int) -> None:
        self.id = session_id
        self.replica_id = replica_id
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.held: dict[TopicPartition, _Held] = {}
        self.dirty: dict[TopicPartition, int] = {}
        self.marks = 0
        self.used_ms = now_ms

    def mark(self, partition: TopicPartition) -> None:
        self.marks += 1
        self.dirty[partition] = self.marks

    def clean(self, partition: TopicPartition, seen: int) -> None:
        """Nothing more to tell of it, as of mark `seen`; one made since then stands."""
        if self.dirty.get(partition, seen + 1) <= seen:
            del self.dirty[partition]


class FetchContext:
    """One fetch request while it is being answered, or parked: evaluate() as often as there may be news, then finish().

    request: as it was received; its limits (max_wait_ms, min_bytes, max_bytes) hold for the answer.
    """

    def __init__(self, request: FetchRequest, session: _Session | None) -> None:
        self.request = request
        self._session = session
        self._seen = 0

    @property
    def session_id(self) -> int:
        return NO_SESSION if self._session is None else self._session.id

    def evaluate(self) -> Sequence[FetchPartition]:
        """What must be looked at now, in this order: all that is listed without a session, else what is dirty.

        In a session those come first that found no room in earlier answers.
        """
        session = self._session
        if session is None:
            return self.request.partitions
        self._seen = session.marks
        return [session.held[partition].asked for partition in session.dirty]

    def finish(self, results: Iterable[FetchedPartition]) -> FetchResponse:
        """The answer: all of `results` without a session, else those that the fetcher must be told of.

        results: of the last evaluate(), in its order. Those behind where the request's max_bytes ran out count as not
        looked at, so they are the first for the next answer; they may be left out as well. What came with records or an
        error stays dirty, at the end of the order, until its fetcher lists it from elsewhere or a look finds no more.
        Any other is not looked at again until it is marked.
        """
        session = self._session
        if session is None:
            return FetchResponse(ErrorCode.NONE, NO_SESSION, tuple(results))
        told = []
        room = self.request.max_bytes
        for data in results:
            held = session.held.get(data.partition)
            if held is None:
                continue
            room -= len(data.records)
            if has_news(held.high_watermark, held.log_start_offset, data):
                told.append(data)
            if is_refusal(data):
                held.forget_told()
            else:
                held.told(data)
            if is_refusal(data) or len(data.records):
                session.dirty[data.partition] = session.dirty.pop(data.partition, session.marks)
            elif room > 0:
                session.clean(data.partition, self._seen)
        return FetchResponse(ErrorCode.NONE, session.id, tuple(told))


def has_news(high_watermark: int, log_start_offset: int, data: FetchedPartition) -> bool:
    """Whether a fetcher that was last told these offsets must be told of `data` (KIP-227)."""
    return (
        is_refusal(data)
        or len(data.records) > 0
        or data.high_watermark != high_watermark
        or data.log_start_offset != log_start_offset
    )


def is_refusal(data: FetchedPartition) -> bool:
    """Whether the leader gave no records because of an error, or because the logs diverge."""
    return data.error != ErrorCode.NONE or data.diverging is not None


class FetchSessions:
    """All fetch sessions of one broker, at most `slots` of them.

    memory: what they are charged to. Where it has no room a consumer's new session is not granted, and one that grows
    ends; a follower's takes the place of consumers'.
    ids: of new sessions, above 0; must not repeat those of an earlier process of this broker, or a fetcher might take
    the new one's session for its own: count up from something that the broker epoch is part of.
    """

    def __init__(self, slots: int, ids: Iterator[int], memory: MemoryAccount | None = None) -> None:
        self._slots = slots
        self._ids = ids
        self._memory = memory or MemoryAccount()
        self._followers: dict[int, _Session] = {}  # both: least recently used first
        self._consumers: dict[int, _Session] = {}
        self._holders: dict[TopicPartition, dict[int, _Session]] = {}

    def __len__(self) -> int:
        return len(self._followers) + len(self._consumers)

    def charges(self) -> Iterator[tuple[int, int]]:
        """(replica id, bytes) of each session, as they are charged."""
        for session in chain(self._consumers.values(), self._followers.values()):
            yield session.replica_id, SESSION_BYTES + PARTITION_BYTES * len(session.held)

    def begin(self, request: FetchRequest, now_ms: int) -> FetchContext | ErrorCode:
        """Take in a request. FETCH_SESSION_ID_NOT_FOUND, INVALID_FETCH_SESSION_EPOCH: the fetcher must begin anew.

        Costs what the request lists. A new session may not be granted: the answer then says session id 0.
        """
        session = self._find(request)
        if request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if session is not None:
                self._close(session)
            begins = request.session_epoch == INITIAL_EPOCH
            session = self._open(request.replica_id, now_ms) if begins else None
        elif session is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        elif request.session_epoch != session.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        else:
            session.epoch = next_epoch(session.epoch)
            self._use(session, now_ms)
        if session is not None and not self._update(session, request):
            self._close(session)
            if request.session_epoch != INITIAL_EPOCH:
                return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            session = None
        return FetchContext(request, session)

    def mark(self, partition: TopicPartition) -> Iterable[int]:
        """The partition has news: it grew, its high watermark or log start moved, or its role changed.

        Returns the ids of the sessions that hold it: a request of theirs that is parked should be tried again.
        """
        holders = self._holders.get(partition)
        if holders is None:
            return ()
        for session in holders.values():
            session.mark(partition)
        return tuple(holders)

    def partitions(self, session_id: int) -> Sequence[FetchPartition]:
        """What a session holds, as last listed; nothing when there is no such session."""
        session = self._followers.get(session_id) or self._consumers.get(session_id)
        return [] if session is None else [held.asked for held in session.held.values()]

    def _find(self, request: FetchRequest) -> _Session | None:
        """The session that the request names, if it is its sender's own."""
        session = self._of_kind(request.replica_id).get(request.session_id)
        return session if session is not None and session.replica_id == request.replica_id else None

    def _of_kind(self, replica_id: int) -> dict[int, _Session]:
        return self._consumers if replica_id <= CONSUMER else self._followers

    def _use(self, session: _Session, now_ms: int) -> None:
        kind = self._of_kind(session.replica_id)
        kind[session.id] = kind.pop(session.id)
        session.used_ms = now_ms

    def _open(self, replica_id: int, now_ms: int) -> _Session | None:
        if len(self) >= self._slots:
            victim = self._victim(replica_id, now_ms)
            if victim is None:
                return None
            self._close(victim)
        if not self._charge(replica_id, SESSION_BYTES):
            return None
        session = _Session(self._new_id(), replica_id, now_ms)
        self._of_kind(replica_id)[session.id] = session
        return session

    def _new_id(self) -> int:
        return next(each for each in self._ids if each not in self._followers and each not in self._consumers)

    def _victim(self, replica_id: int, now_ms: int) -> _Session | None:
        """Who makes room: for a follower the consumer, else the follower, that has not fetched for longest; for a
        consumer only another one that has been idle for EVICTION_MS (KIP-227: followers are privileged)."""
        if replica_id > CONSUMER:
            return next(chain(self._consumers.values(), self._followers.values()), None)
        oldest = next(iter(self._consumers.values()), None)
        return oldest if oldest is not None and now_ms - oldest.used_ms >= EVICTION_MS else None

    def _close(self, session: _Session) -> None:
        del self._of_kind(session.replica_id)[session.id]
        self._memory.release(ACCOUNT, SESSION_BYTES)
        for partition in session.held:
            self._let_go(session, partition)

    def _charge(self, replica_id: int, size: int) -> bool:
        """A consumer's may find no room. Followers' sessions are bounded by what their leader has partitions."""
        while not self._memory.reserve(ACCOUNT, size):
            if replica_id <= CONSUMER:
                return False
            if not self._consumers:
                return self._memory.reserve(ACCOUNT, size, force=True)
            self._close(next(iter(self._consumers.values())))
        return True

    def _update(self, session: _Session, request: FetchRequest) -> bool:
        """False where there is no memory for all of it: the session has to end."""
        for partition in request.forgotten:
            if session.held.pop(partition, None) is not None:
                session.dirty.pop(partition, None)
                self._let_go(session, partition)
        for asked in request.partitions:
            held = session.held.get(asked.partition)
            if held is None:
                if not self._charge(session.replica_id, PARTITION_BYTES):
                    return False
                session.held[asked.partition] = _Held(asked)
                self._holders.setdefault(asked.partition, {})[session.id] = session
            else:
                held.ask(asked)
            session.mark(asked.partition)
        return True

    def _let_go(self, session: _Session, partition: TopicPartition) -> None:
        self._memory.release(ACCOUNT, PARTITION_BYTES)
        holders = self._holders[partition]
        del holders[session.id]
        if not holders:
            del self._holders[partition]
