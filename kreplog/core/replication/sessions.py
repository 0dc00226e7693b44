"""Incremental fetch sessions on the leader's side (KIP-227): what it remembers of each fetcher's partitions.

    session_id, session_epoch   the request is
    0, -1                       sessionless: everything is listed, nothing is remembered
    0, 0                        full, and begins a session; with an id it ends that session first
    id, n                       incremental: lists what changed since n - 1
    id, -1                      full, and ends the session

In a session a partition is read only if it is dirty: its fetcher has listed it, or it was marked as changed since. It
stays dirty until a read finds nothing new. So a request costs what has changed, however much the session holds. Reading
the partitions and delaying a request is FetchPurgatory's part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
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
"""Bytes charged for a session, and for each partition in it: their approximate memory."""

EVICTION_MS = 120_000
"""A session is evicted for another only if unused for this long, so that fetchers do not evict each other in a loop;
except a consumer's for a follower's, at any time. Kafka's min.incremental.fetch.session.eviction.ms."""


def next_epoch(session_epoch: int) -> int:
    """The session epoch of the next request; the last is followed by 1, since 0 begins a session."""
    return 1 if session_epoch >= LAST_EPOCH else session_epoch + 1


def without_unknown_topics(request: FetchRequest, listed: bool) -> tuple[FetchRequest, ErrorCode]:
    """The part that is served of a request that names topics by ids unknown here, which `request` lacks; and the error
    of the whole response, NONE if it is the response to that part. listed: it fetches some of them; else it only
    forgets them.

    No session can hold an unknown topic: a full fetch is served without one, and at once, since its response has errors
    for those topics. An incremental fetch has only part of its session, which may hold a deleted topic under a name
    that this broker no longer knows, and would return it in every response: the session ends, and the client has to
    begin a new one.
    """
    if request.session_epoch > INITIAL_EPOCH:
        ends = replace(request, session_epoch=FINAL_EPOCH, partitions=(), forgotten=(), max_wait_ms=0)
        return ends, ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    served = replace(request, session_epoch=FINAL_EPOCH, max_wait_ms=0) if listed else request
    return served, ErrorCode.NONE


class _CachedPartition:
    """A partition in a session: as its fetcher last listed it, and the offsets last sent (-1: none)."""

    __slots__ = ("high_watermark", "log_start_offset", "request")

    def __init__(self, request: FetchPartition) -> None:
        self.request = request
        self.high_watermark = -1
        self.log_start_offset = -1

    def update_request(self, request: FetchPartition) -> None:
        """Its fetcher lists it again. If it has not moved on, the fetcher has started over: send everything again."""
        previous, self.request = self.request, request
        if not _moved_on(previous, request):
            self.forget_sent()

    def sent(self, data: FetchedPartition) -> None:
        self.high_watermark = data.high_watermark
        self.log_start_offset = data.log_start_offset

    def forget_sent(self) -> None:
        self.high_watermark = self.log_start_offset = -1


def _moved_on(old: FetchPartition, new: FetchPartition) -> bool:
    return (
        new.fetch_offset > old.fetch_offset
        and new.current_leader_epoch == old.current_leader_epoch
        and new.topic_id == old.topic_id
    )


class _Session:
    """A fetch session as its leader keeps it. dirty: the partitions to read, those that waited longest first, each with
    the mark that made it dirty."""

    __slots__ = ("dirty", "epoch", "held", "id", "marks", "replica_id", "used_ms")

    def __init__(self, session_id: int, replica_id: int, now_ms: int) -> None:
        self.id = session_id
        self.replica_id = replica_id
        self.epoch = next_epoch(INITIAL_EPOCH)
        self.held: dict[TopicPartition, _CachedPartition] = {}
        self.dirty: dict[TopicPartition, int] = {}
        self.marks = 0
        self.used_ms = now_ms

    def mark(self, partition: TopicPartition) -> None:
        self.marks += 1
        self.dirty[partition] = self.marks

    def clean(self, partition: TopicPartition, seen: int) -> None:
        """Nothing new in it as of mark `seen`; a later mark stands."""
        if self.dirty.get(partition, seen + 1) <= seen:
            del self.dirty[partition]
            if not self.dirty:
                self.dirty.clear()  # else the places of all that were in it are gone through each time


class FetchContext:
    """One fetch request while it is processed or delayed: evaluate() whenever something may have changed, then
    finish().

    request: as it was received; its limits (max_wait_ms, min_bytes, max_bytes) hold for the response.
    """

    def __init__(self, request: FetchRequest, session: _Session | None) -> None:
        self.request = request
        self._session = session
        self._seen = 0

    @property
    def session_id(self) -> int:
        return NO_SESSION if self._session is None else self._session.id

    def listed(self, partition: TopicPartition) -> FetchPartition | None:
        """A partition as it was listed last; None if it is not."""
        if self._session is None:
            return next((listed for listed in self.request.partitions if listed.partition == partition), None)
        held = self._session.held.get(partition)
        return None if held is None else held.request

    def evaluate(self) -> Sequence[FetchPartition]:
        """The partitions to read now, in this order: those listed if there is no session, else the dirty ones.

        In a session those come first that earlier responses had no room for.
        """
        session = self._session
        if session is None:
            return self.request.partitions
        self._seen = session.marks
        return [session.held[partition].request for partition in session.dirty]

    def finish(self, results: Iterable[FetchedPartition], throttled: Collection[TopicPartition] = ()) -> FetchResponse:
        """The response: all of `results` if there is no session, else those with changes for the fetcher.

        throttled: the partitions that were not read, though they have records, and stay dirty.
        results: of the last evaluate(), in its order. Those behind the point where the request's max_bytes ran out
        count as unread, so they are the first in the next response; they may also be omitted. Partitions with records
        or an error stay dirty, at the end of the order, until a read finds nothing new; all others are clean until
        marked.
        """
        session = self._session
        if session is None:
            return FetchResponse(ErrorCode.NONE, NO_SESSION, tuple(results))
        changed = []
        room = self.request.max_bytes
        for data in results:
            held = session.held.get(data.partition)
            if held is None:
                continue
            room -= len(data.records)
            if has_changed(held.high_watermark, held.log_start_offset, data):
                changed.append(data)
            if is_refusal(data):
                held.forget_sent()
            else:
                held.sent(data)
            if is_refusal(data) or len(data.records):
                session.dirty[data.partition] = session.dirty.pop(data.partition, session.marks)
            elif room > 0 and data.partition not in throttled:
                session.clean(data.partition, self._seen)
        return FetchResponse(ErrorCode.NONE, session.id, tuple(changed))


def has_changed(high_watermark: int, log_start_offset: int, data: FetchedPartition) -> bool:
    """Whether `data` has anything new for a fetcher to which these offsets were sent last (KIP-227)."""
    return (
        is_refusal(data)
        or len(data.records) > 0
        or data.high_watermark != high_watermark
        or data.log_start_offset != log_start_offset
    )


def is_refusal(data: FetchedPartition) -> bool:
    """Whether there are no records because of an error, because the logs diverge, or because the consumer is to fetch
    from another replica."""
    return data.error != ErrorCode.NONE or data.diverging is not None or data.preferred_read_replica >= 0


class FetchSessions:
    """All fetch sessions of one broker, at most `slots` of them.

    memory: the account they are charged to. If it is exhausted, a consumer's new session is not granted, and one that
    grows ends; a follower's evicts consumers' sessions.
    closed: ids of the sessions closed since it was last cleared, whose delayed requests nothing marks any more.
    ids: of new sessions, above 0; must not repeat those of an earlier process of this broker, or a fetcher might take
    a new session for its own: derive them from the broker epoch.
    """

    def __init__(self, slots: int, ids: Iterator[int], memory: MemoryAccount | None = None) -> None:
        self._slots = slots
        self._ids = ids
        self._memory = memory or MemoryAccount()
        self._followers: dict[int, _Session] = {}  # both: least recently used first
        self._consumers: dict[int, _Session] = {}
        self._holders: dict[TopicPartition, dict[int, _Session]] = {}
        self.closed: list[int] = []

    def __len__(self) -> int:
        return len(self._followers) + len(self._consumers)

    def charges(self) -> Iterator[tuple[int, int]]:
        """(replica id, bytes) of each session, as they are charged."""
        for session in chain(self._consumers.values(), self._followers.values()):
            yield session.replica_id, SESSION_BYTES + PARTITION_BYTES * len(session.held)

    def of_followers(self) -> Iterator[tuple[int, int, int]]:
        """(session id, replica id, time of its last request in ms) of each session of a follower."""
        return ((session.id, session.replica_id, session.used_ms) for session in self._followers.values())

    def begin(self, request: FetchRequest, now_ms: int) -> FetchContext | ErrorCode:
        """Begin, continue or end the session of a request. FETCH_SESSION_ID_NOT_FOUND and INVALID_FETCH_SESSION_EPOCH:
        the fetcher must begin a new one.

        Costs what the request lists. If a new session is not granted, the response has session id 0.
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
        """The partition has changed: its log end, high watermark, log start or role.

        Returns the ids of the sessions that hold it: their delayed requests should be tried again.
        """
        holders = self._holders.get(partition)
        if holders is None:
            return ()
        for session in holders.values():
            session.mark(partition)
        return tuple(holders)

    def not_sent(self, request: FetchRequest, response: FetchResponse) -> int:
        """The partitions of a response were not sent, as to a throttled consumer (KIP-219). Returns the session of the
        empty response: that of the request goes on, where they are new again; a session that it began ends."""
        session = self._consumers.get(response.session_id)
        if session is None:
            return NO_SESSION
        if request.session_epoch == INITIAL_EPOCH:
            self._close(session)
            return NO_SESSION
        for data in response.partitions:
            held = session.held.get(data.partition)
            if held is not None:
                held.forget_sent()
                session.mark(data.partition)
        return session.id

    def partitions(self, session_id: int) -> Sequence[FetchPartition] | None:
        """The partitions of a session, as last listed; None if there is no such session."""
        session = self._followers.get(session_id) or self._consumers.get(session_id)
        return None if session is None else [held.request for held in session.held.values()]

    def _find(self, request: FetchRequest) -> _Session | None:
        """The session that the request names, if it belongs to the sender."""
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
        return next(new for new in self._ids if new not in self._followers and new not in self._consumers)

    def _victim(self, replica_id: int, now_ms: int) -> _Session | None:
        """The session to evict: for a follower the least recently used of consumers; else one that was unused for
        EVICTION_MS, a consumer's if there is one (KIP-227: followers are privileged), or a follower's, which leaves
        such a session when it has fewer fetchers. None: the new one is not granted."""
        if replica_id > CONSUMER and self._consumers:
            return next(iter(self._consumers.values()))
        oldest = (next(iter(kind.values()), None) for kind in (self._consumers, self._followers))
        return next((found for found in oldest if found is not None and now_ms - found.used_ms >= EVICTION_MS), None)

    def _close(self, session: _Session) -> None:
        del self._of_kind(session.replica_id)[session.id]
        self.closed.append(session.id)
        self._memory.release(ACCOUNT, SESSION_BYTES)
        for partition in session.held:
            self._release(session, partition)

    def _charge(self, replica_id: int, size: int) -> bool:
        """False if a consumer's finds no room. Followers' sessions are bounded by the number of partitions."""
        while not self._memory.reserve(ACCOUNT, size):
            if replica_id <= CONSUMER:
                return False
            if not self._consumers:
                return self._memory.reserve(ACCOUNT, size, force=True)
            self._close(next(iter(self._consumers.values())))
        return True

    def _update(self, session: _Session, request: FetchRequest) -> bool:
        """False if the memory account is exhausted: the session has to end."""
        for partition in request.forgotten:
            if session.held.pop(partition, None) is not None:
                session.dirty.pop(partition, None)
                self._release(session, partition)
        for requested in request.partitions:
            held = session.held.get(requested.partition)
            if held is None:
                if not self._charge(session.replica_id, PARTITION_BYTES):
                    return False
                session.held[requested.partition] = _CachedPartition(requested)
                self._holders.setdefault(requested.partition, {})[session.id] = session
            else:
                held.update_request(requested)
            session.mark(requested.partition)
        return True

    def _release(self, session: _Session, partition: TopicPartition) -> None:
        self._memory.release(ACCOUNT, PARTITION_BYTES)
        holders = self._holders[partition]
        del holders[session.id]
        if not holders:
            del self._holders[partition]
