"""A follower's fetching: one request in flight to one source broker, many partitions a request.

    what take_fetched said   the partition is then   and
    PROGRESS                 FETCHING                asked for from its new position, behind the others
    IDLE                     FETCHING                left to the leader's session: it costs nothing until it has news
    TRUNCATED                TRUNCATING              asked for from its new position
    AWAIT_FLUSH              AWAITING_FLUSH          left out until resume()
    BACK_OFF                 DELAYED                 left out for replica_fetch_backoff_ms
    LEADER_NOT_READY         DELAYED                 left out for NOT_READY_MS, and twice as long the next time, up to
                                                     NOT_READY_MOST_MS: it has not heard yet that it leads
    REMOVE                   (not here any more)

    what happened            the partition is then   and
    add()                    TRUNCATING              asked for; an answer to what was asked before is dropped
                             or AWAITING_FLUSH       when what it holds is yet to be fsynced
    resume()                 FETCHING                asked for from its new position
    the delay is over        TRUNCATING              asked for
    remove()                 (not here any more)     an answer that is under way is dropped

TRUNCATING is reconciling: no answer has said yet that the logs agree. The same request does both, since a leader
that sees them diverge sends no records (KIP-595), so nothing is fetched before the logs agree (F3, F5).

Pipelined fetch: while a follower appends, its leader can read the next records. So where pipelined_fetch_position knows
where a response will leave its partition, the next request is sent first, from there, and the response is applied after
it. The outcome counts as in the tables; where it left the partition elsewhere, the request after that corrects it.

Appending, truncating and whether an answer is too late (F7) are the partition's part; this one says what was asked.
"""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import Protocol

from kreplog.config import ReplicationConfig
from kreplog.core.effects import Send, StateChange, Steps
from kreplog.core.events import Fetched
from kreplog.core.messages import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from kreplog.core.replication import sessions
from kreplog.errors import ErrorCode, InvariantError, KreplogError
from kreplog.types import TopicPartition

NOT_READY_MS = 20
NOT_READY_MOST_MS = 160
"""The controller tells leader and followers at about the same time; whoever waits for the record waits for this too.
Where it tells them of thousands, those who ask all the time keep the leader from hearing of the rest."""


class FetchState(Enum):
    """Of one partition; see the module."""

    TRUNCATING = "truncating"
    FETCHING = "fetching"
    AWAITING_FLUSH = "awaiting flush"
    DELAYED = "delayed"


class FetchOutcome(Enum):
    """What a partition made of an answer; the table above says what follows."""

    PROGRESS = "progress"
    IDLE = "idle"
    TRUNCATED = "truncated"
    AWAIT_FLUSH = "await flush"
    BACK_OFF = "back off"
    LEADER_NOT_READY = "leader not ready"
    REMOVE = "remove"


AFTER = {
    FetchOutcome.PROGRESS: FetchState.FETCHING,
    FetchOutcome.IDLE: FetchState.FETCHING,
    FetchOutcome.TRUNCATED: FetchState.TRUNCATING,
    FetchOutcome.AWAIT_FLUSH: FetchState.AWAITING_FLUSH,
    FetchOutcome.BACK_OFF: FetchState.DELAYED,
    FetchOutcome.LEADER_NOT_READY: FetchState.DELAYED,
    FetchOutcome.REMOVE: None,
}
"""The first table; None: removed."""


@dataclass(frozen=True, slots=True)
class FetchPosition:
    """From where a partition fetches. last_fetched_epoch: of the record before fetch_offset, NO_EPOCH for none."""

    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


class FollowerPartition(Protocol):
    """A partition that follows, as its fetcher needs it."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def topic_id(self) -> str: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def awaits_flush(self) -> bool:
        """It must not be asked for before resume(): the offset would promise what is not on disk."""

    def fetch_position(self) -> FetchPosition:
        """From where it would be asked for now."""

    def pipelined_fetch_position(self, request: FetchPartition, data: FetchedPartition) -> Steps[FetchPosition | None]:
        """From where it will be asked for once it has taken the records that answer `request`; None where that cannot
        be told, or where it must not be asked for before."""

    def take_fetched(self, request: FetchPartition, data: FetchedPartition, now_ms: int) -> Steps[FetchOutcome]:
        """Use an answer to `request`: append, truncate, move the high watermark; drop it when the partition is not
        any more where `request` says, in epoch or offset (F7)."""


class _Entry:
    """listed: in a request since it was added, or was delayed, so that answers are meant for it. not_ready_ms: how long
    it is left out when its leader is not ready."""

    __slots__ = ("due_ms", "listed", "not_ready_ms", "partition", "state")

    def __init__(self, partition: FollowerPartition, now_ms: int) -> None:
        self.partition = partition
        self.state = FetchState.TRUNCATING
        self.listed = False
        self.not_ready_ms = NOT_READY_MS
        self.due_ms = now_ms

    @property
    def is_active(self) -> bool:
        return self.state in (FetchState.TRUNCATING, FetchState.FETCHING)


Ahead = Mapping[TopicPartition, FetchPosition]
"""The partitions that are asked for ahead of an append, and from where."""


class Fetcher:
    """One pipeline of fetches by `broker_id` from `leader`.

    correlations: unique within the broker's process; one iterator for all its fetchers. index: which of
    num_replica_fetchers this is, for the state-change log.
    """

    def __init__(
        self, broker_id: int, leader: int, config: ReplicationConfig, correlations: Iterator[int], index: int = 0
    ) -> None:
        self.leader = leader
        self.index = index
        self._broker_id = broker_id
        self._config = config
        self._correlations = correlations
        self._entries: dict[TopicPartition, _Entry] = {}
        self._active: dict[TopicPartition, _Entry] = {}  # those to fetch, least recently served first
        self._changed: dict[TopicPartition, None] = {}  # active ones that the leader's session may hold otherwise
        self._awaiting: dict[TopicPartition, None] = {}
        self._delayed: list[tuple[int, int, TopicPartition, _Entry]] = []  # heap by due time; entries may be gone
        self._delays = 0
        self._held: dict[TopicPartition, FetchPartition] = {}  # what the leader's session holds, as last sent
        self._forgotten: dict[TopicPartition, None] = {}  # held ones that must leave the session
        self._session_id = sessions.NO_SESSION
        self._session_epoch = sessions.INITIAL_EPOCH
        self._in_flight: int | None = None
        self._paused_until_ms = 0
        self._hold_until_ms = 0

    @property
    def partitions(self) -> KeysView[TopicPartition]:
        return self._entries.keys()

    @property
    def in_flight(self) -> int | None:
        """The correlation of the request that is under way."""
        return self._in_flight

    def state(self, topic_partition: TopicPartition) -> FetchState | None:
        """None for one that is not fetched here."""
        entry = self._entries.get(topic_partition)
        return None if entry is None else entry.state

    def add(self, partition: FollowerPartition, now_ms: int) -> None:
        """Fetch it from now on. Again for every new leader epoch: it reconciles anew, with the same leader too (F5)."""
        topic_partition = partition.topic_partition
        self.remove(topic_partition)
        entry = self._entries[topic_partition] = _Entry(partition, now_ms)
        if partition.awaits_flush:
            entry.state = FetchState.AWAITING_FLUSH
            self._awaiting[topic_partition] = None
        else:
            self._activate(topic_partition, entry)

    def remove(self, topic_partition: TopicPartition) -> None:
        """Fetch it no more; does nothing when it is not fetched."""
        if self._entries.pop(topic_partition, None) is not None:
            self._deactivate(topic_partition)

    def resume(self, topic_partition: TopicPartition) -> None:
        """Its flush is done; does nothing unless it waits for one."""
        entry = self._entries.get(topic_partition)
        if entry is not None and entry.state is FetchState.AWAITING_FLUSH:
            entry.state = FetchState.FETCHING
            self._activate(topic_partition, entry)

    def moved(self, topic_partition: TopicPartition) -> None:
        """Its log start moved without the leader's doing, who is to hear of it; does nothing when it is not fetched."""
        if topic_partition in self._active:
            self._changed[topic_partition] = None

    def poll(self, now_ms: int, broker_epoch: int) -> Steps[None]:
        """Send the next request if none is under way and there is anything to fetch.

        It looks at what changed since the last one alone, and lists no more unless a session has to be begun. To be
        called after add, remove and resume, and when next_wakeup is due. broker_epoch: of this broker's registration
        (KIP-903).
        """
        yield from self._send({}, now_ms, broker_epoch)

    def _send(self, ahead: Ahead, now_ms: int, broker_epoch: int) -> Steps[None]:
        self._end_delays(now_ms)
        if self._in_flight is not None or not self._active or now_ms < self._waits_until():
            return
        request = self._next_request(ahead, broker_epoch)
        self._in_flight = next(self._correlations)
        yield Send(self.leader, self._in_flight, request)

    def on_fetched(self, event: Fetched, now_ms: int, broker_epoch: int) -> Steps[None]:
        """Hand each partition its answer and ask for more. An answer to any but the request under way is dropped."""
        if not self._is_awaited(event):
            return
        self._in_flight = None
        if event.response is None:
            self._lose_session()
            self._pause(now_ms)
        elif event.response.error != ErrorCode.NONE:
            yield from self._refused(event.response.error, now_ms)
        else:
            self._keep_session(event.response)
            yield from self._take_all(event.response, now_ms, broker_epoch)
            self._hold_until_ms = now_ms + self._config.replica_fetch_wait_max_ms
        yield from self.poll(now_ms, broker_epoch)

    def next_wakeup(self, now_ms: int) -> int | None:
        """When poll has something to do, not before `now_ms`; None when only an event can bring that about."""
        if self._in_flight is not None:
            return None
        due = []
        if self._active:
            due.append(self._waits_until())
        while self._delayed and not self._is_delayed(*self._delayed[0]):
            heappop(self._delayed)
        if self._delayed:
            due.append(max(self._delayed[0][0], self._paused_until_ms))
        return max(now_ms, min(due)) if due else None

    # Which partitions to ask for

    def _activate(self, topic_partition: TopicPartition, entry: _Entry) -> None:
        self._awaiting.pop(topic_partition, None)
        self._forgotten.pop(topic_partition, None)
        self._active[topic_partition] = entry
        self._changed[topic_partition] = None

    def _deactivate(self, topic_partition: TopicPartition) -> None:
        self._awaiting.pop(topic_partition, None)
        self._active.pop(topic_partition, None)
        self._changed.pop(topic_partition, None)
        if topic_partition in self._held:
            self._forgotten[topic_partition] = None

    def _is_delayed(self, due_ms: int, _: int, topic_partition: TopicPartition, entry: _Entry) -> bool:
        """Whether this item of the heap still counts."""
        return (
            self._entries.get(topic_partition) is entry and entry.state is FetchState.DELAYED and entry.due_ms == due_ms
        )

    def _end_delays(self, now_ms: int) -> None:
        while self._delayed and self._delayed[0][0] <= now_ms:
            item = heappop(self._delayed)
            if self._is_delayed(*item):
                _, _, topic_partition, entry = item
                entry.state = FetchState.TRUNCATING
                entry.listed = False  # what it was told may have been lost with the error
                self._activate(topic_partition, entry)

    def _pause(self, now_ms: int) -> None:
        self._paused_until_ms = now_ms + self._config.replica_fetch_backoff_ms

    def _waits_until(self) -> int:
        """When the next request may go, at the earliest.

        While flushes run and there is nothing else to tell, it is held back, for as long as a leader might hold it:
        the leader should hear of their end at once, and not when it answers a request that waits for records.
        """
        if self._awaiting and not self._changed:
            return max(self._paused_until_ms, self._hold_until_ms)
        return self._paused_until_ms

    # The leader's session (KIP-227)

    def _next_request(self, ahead: Ahead, broker_epoch: int) -> FetchRequest:
        if self._session_epoch == sessions.INITIAL_EPOCH:
            held, self._held = self._held, {}
            self._forgotten.clear()
            # What has not changed is asked for as before: a dead leader's thousands are listed again and again.
            listed = [
                held[at] if at in held and at not in self._changed else self._ask(entry, ahead.get(at))
                for at, entry in self._active.items()
            ]
        else:
            listed = self._news(ahead)
        forgotten = tuple(self._forgotten)
        for topic_partition in forgotten:
            del self._held[topic_partition]
        for asked in listed:
            self._held[asked.partition] = asked
            self._active[asked.partition].listed = True
        self._changed.clear()
        self._forgotten.clear()
        config = self._config
        return FetchRequest(
            self._broker_id,
            broker_epoch,
            0 if self._awaiting else config.replica_fetch_wait_max_ms,
            config.replica_fetch_min_bytes,
            config.replica_fetch_response_max_bytes,
            tuple(listed),
            forgotten,
            self._session_id,
            self._session_epoch,
        )

    def _news(self, ahead: Ahead) -> list[FetchPartition]:
        """What the leader's session holds otherwise, or not at all, or should tell anew."""
        listed = []
        for topic_partition in self._changed:
            entry = self._active[topic_partition]
            asked = self._ask(entry, ahead.get(topic_partition))
            if not entry.listed or asked != self._held.get(topic_partition):
                listed.append(asked)
        return listed

    def _ask(self, entry: _Entry, position: FetchPosition | None = None) -> FetchPartition:
        """position: None for where it is."""
        partition = entry.partition
        position = position or partition.fetch_position()
        return FetchPartition(
            partition.topic_partition,
            partition.topic_id,
            partition.leader_epoch,
            position.fetch_offset,
            position.last_fetched_epoch,
            position.log_start_offset,
            self._config.replica_fetch_max_bytes,
        )

    def _keep_session(self, response: FetchResponse) -> None:
        begun = self._session_epoch == sessions.INITIAL_EPOCH
        if response.session_id == sessions.NO_SESSION or not (begun or response.session_id == self._session_id):
            self._forget_session()
        else:
            self._session_id = response.session_id
            self._session_epoch = sessions.next_epoch(self._session_epoch)

    def _lose_session(self) -> None:
        """Begin anew, and end the old session with that."""
        self._session_epoch = sessions.INITIAL_EPOCH

    def _forget_session(self) -> None:
        self._session_id = sessions.NO_SESSION
        self._session_epoch = sessions.INITIAL_EPOCH

    def _refused(self, error: ErrorCode, now_ms: int) -> Steps[None]:
        """The whole request was refused. A session that the leader lost is begun anew at once; all else has to wait."""
        began = self._session_epoch == sessions.INITIAL_EPOCH
        lost = error in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        self._forget_session()
        if began or not lost:
            self._pause(now_ms)
        yield StateChange("info", f"fetcher {self.index} from broker {self.leader}: refused with {error.name}")

    # Answers

    def _is_awaited(self, event: Fetched) -> bool:
        """Whether it answers the request under way (F7)."""
        return event.leader == self.leader and event.correlation == self._in_flight

    def _asked(self, topic_partition: TopicPartition) -> tuple[_Entry, FetchPartition] | None:
        """The partition and what was asked for it; None when it has been removed, or re-added, since (F7)."""
        entry = self._entries.get(topic_partition)
        asked = self._held.get(topic_partition)
        if entry is None or asked is None or not entry.listed or not entry.is_active:
            return None
        return entry, asked

    def _take_all(self, response: FetchResponse, now_ms: int, broker_epoch: int) -> Steps[None]:
        """Hand each partition its answer; those that are asked for ahead take theirs after the next request."""
        answers = {data.partition: data for data in response.partitions}  # a leader names none twice, but who knows
        ahead: dict[TopicPartition, FetchPosition] = {}
        last = []
        for topic_partition, data in answers.items():
            found = self._asked(topic_partition)
            if found is None:
                continue
            entry, asked = found
            position = None
            if len(data.records) and not sessions.is_refusal(data):
                position = yield from entry.partition.pipelined_fetch_position(asked, data)
            if position is None:
                yield from self._take(data, entry, asked, now_ms)
            else:
                ahead[topic_partition] = position
                last.append((data, entry, asked))
        for topic_partition in ahead:
            self._served(topic_partition)
        if ahead:
            yield from self._send(ahead, now_ms, broker_epoch)
        for data, entry, asked in last:
            yield from self._take(data, entry, asked, now_ms)

    def _served(self, topic_partition: TopicPartition) -> None:
        """It is to be asked for again, behind the others."""
        self._active[topic_partition] = self._active.pop(topic_partition)
        self._changed[topic_partition] = None

    def _take(self, data: FetchedPartition, entry: _Entry, asked: FetchPartition, now_ms: int) -> Steps[None]:
        try:
            outcome = yield from entry.partition.take_fetched(asked, data, now_ms)
        except InvariantError:
            raise
        except KreplogError as error:  # the others go on (F10)
            yield StateChange("error", f"{data.partition} from broker {self.leader}: {error}")
            outcome = FetchOutcome.BACK_OFF
        if self._entries.get(data.partition) is entry:  # else taking it led to its removal
            self._act(data.partition, entry, outcome, now_ms)

    def _act(self, topic_partition: TopicPartition, entry: _Entry, outcome: FetchOutcome, now_ms: int) -> None:
        state = AFTER[outcome]
        if state is None:
            self.remove(topic_partition)
            return
        entry.state = state
        if not entry.is_active:
            self._deactivate(topic_partition)
            if state is FetchState.AWAITING_FLUSH:
                self._awaiting[topic_partition] = None
            else:
                self._delay(topic_partition, entry, now_ms + self._delay_ms(entry, outcome))
        elif self._ask(entry) != self._held.get(topic_partition):
            self._served(topic_partition)

    def _delay_ms(self, entry: _Entry, outcome: FetchOutcome) -> int:
        backoff_ms = self._config.replica_fetch_backoff_ms
        if outcome is not FetchOutcome.LEADER_NOT_READY:
            return backoff_ms
        delay_ms = min(entry.not_ready_ms, backoff_ms)
        entry.not_ready_ms = min(2 * delay_ms, NOT_READY_MOST_MS)
        return delay_ms

    def _delay(self, topic_partition: TopicPartition, entry: _Entry, due_ms: int) -> None:
        entry.due_ms = due_ms
        self._delays += 1
        heappush(self._delayed, (entry.due_ms, self._delays, topic_partition, entry))
