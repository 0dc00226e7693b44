"""ReplicaFetcher: fetches many partitions from one leader broker, with one request in flight at a time.

    outcome of take_fetched  state of the partition  the next request
    PROGRESS                 FETCHING                lists its new position, behind the others
    IDLE                     FETCHING                leaves it to the leader's session: no cost until something changes
    TRUNCATED                TRUNCATING              lists its new position
    AWAIT_FLUSH              AWAITING_FLUSH          omits it until resume()
    BACK_OFF                 DELAYED                 omits it for replica_fetch_backoff_ms
    LEADER_NOT_READY         DELAYED                 omits it for NOT_READY_MS, doubled each time, up to
                                                     NOT_READY_MAX_MS: the leader has not applied LeaderAndIsr yet
    REMOVE                   (removed)

    cause                    state of the partition  the next request
    the quota is exceeded    DELAYED                 omits it until the rate is not above the quota, for
                                                     replica_fetch_backoff_ms at most: it is throttled (KIP-73)
    add()                    TRUNCATING              lists it; responses to earlier requests are dropped
                             or AWAITING_FLUSH       omits it while its log has to be fsynced
    resume()                 FETCHING                lists its new position
    the delay is over        as after add()
    remove()                 (removed)               a response in flight is dropped

TRUNCATING is reconciling: no response has confirmed yet that the logs agree. The same request does both, since a leader
that sees them diverge sends no records (KIP-595), so nothing is fetched before the logs agree (F3, F5).

Pipelined fetch: while a follower appends, its leader can read the next records. So where pipelined_fetch_position knows
where a response will leave its partition, the next request is sent first, from there, and the response is applied after
it. The outcome counts as in the tables; where it left the partition elsewhere, the request after that corrects it.

The partition appends, truncates and decides whether a response is too late (F7), by the request that is given here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, KeysView, Mapping
from dataclasses import dataclass
from enum import Enum
from heapq import heappop, heappush
from typing import Protocol

from kreplog.config import ReplicationConfig, TopicConfig
from kreplog.core.effects import Send, StateChange, Steps
from kreplog.core.events import FetchReplied
from kreplog.core.messages import FetchedPartition, FetchPartition, FetchRequest, FetchResponse
from kreplog.core.replication import sessions
from kreplog.core.replication.replication_quota import ReplicationQuota
from kreplog.errors import ErrorCode, InvariantError, KreplogError
from kreplog.types import TopicPartition

NOT_READY_MS = 20
NOT_READY_MAX_MS = 160
"""The controller sends LeaderAndIsr to leader and followers at about the same time, so the first delay is short:
produces wait for it too. With thousands of partitions, fetches without pause would keep the leader from applying the
rest."""


class FetchState(Enum):
    """State of one partition; see the module."""

    TRUNCATING = "truncating"
    FETCHING = "fetching"
    AWAITING_FLUSH = "awaiting flush"
    DELAYED = "delayed"


class FetchOutcome(Enum):
    """The outcome of a response that a partition applied; the first table says what follows."""

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
    """Where a partition's next fetch starts. last_fetched_epoch: of the record before fetch_offset, NO_EPOCH for
    none."""

    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int


class FollowerPartition(Protocol):
    """A following partition as its fetcher uses it; see FollowerRole."""

    @property
    def topic_partition(self) -> TopicPartition: ...

    @property
    def topic_id(self) -> str: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def awaits_flush(self) -> bool:
        """Not to be fetched before resume(): the offset would promise records that are not on disk."""

    @property
    def config(self) -> TopicConfig: ...

    @property
    def isr(self) -> Collection[int]:
        """As of the last LeaderAndIsr."""

    def fetch_position(self) -> FetchPosition:
        """Where its next fetch starts."""

    def pipelined_fetch_position(self, request: FetchPartition, data: FetchedPartition) -> Steps[FetchPosition | None]:
        """Where its next fetch starts once it has appended `data`, the response to `request`; None if that is unknown,
        or if it must not be fetched before the append."""

    def take_fetched(self, request: FetchPartition, data: FetchedPartition, now_ms: int) -> Steps[FetchOutcome]:
        """Apply the response to `request`: append, truncate, advance the high watermark; drop it if the partition has
        moved on since, in epoch or offset (F7)."""


class _Entry:
    """A partition that a fetcher fetches. listed: in a request since it was added or its delay ended, so that responses
    are meant for it. not_ready_ms: its next delay if its leader is not ready. leaders_watermark: the leader's high
    watermark in its last response, None before the first."""

    __slots__ = ("due_ms", "leaders_watermark", "listed", "not_ready_ms", "partition", "state")

    def __init__(self, partition: FollowerPartition, now_ms: int) -> None:
        self.partition = partition
        self.state = FetchState.TRUNCATING
        self.listed = False
        self.not_ready_ms = NOT_READY_MS
        self.due_ms = now_ms
        self.leaders_watermark: int | None = None

    def is_in_sync(self, broker_id: int) -> bool:
        """Whether it holds all that is committed, so that it is in the ISR, or may join it."""
        if self.leaders_watermark is None:
            return broker_id in self.partition.isr
        return self.partition.fetch_position().fetch_offset >= self.leaders_watermark

    @property
    def is_active(self) -> bool:
        return self.state in (FetchState.TRUNCATING, FetchState.FETCHING)


Pipelined = Mapping[TopicPartition, FetchPosition]
"""The partitions that are fetched ahead of an append, and from where."""


class ReplicaFetcher:
    """The fetches of `broker_id` from `leader`.

    correlations: unique within the broker's process; one iterator for all its fetchers. quota: of what they all fetch.
    index: which of num_replica_fetchers this is, for the state-change log.
    """

    def __init__(
        self,
        broker_id: int,
        leader: int,
        config: ReplicationConfig,
        correlations: Iterator[int],
        quota: ReplicationQuota,
        index: int = 0,
    ) -> None:
        self.leader = leader
        self.index = index
        self._broker_id = broker_id
        self._config = config
        self._correlations = correlations
        self._quota = quota
        self._entries: dict[TopicPartition, _Entry] = {}
        self._active: dict[TopicPartition, _Entry] = {}  # those to fetch, least recently served first
        self._changed: dict[TopicPartition, None] = {}  # active ones that may differ from the leader's session
        self._awaiting: dict[TopicPartition, None] = {}
        self._delayed: list[tuple[int, int, TopicPartition, _Entry]] = []  # heap by due time; may have obsolete items
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
        """The correlation of the request in flight."""
        return self._in_flight

    def state(self, topic_partition: TopicPartition) -> FetchState | None:
        """None if it is not fetched here."""
        entry = self._entries.get(topic_partition)
        return None if entry is None else entry.state

    def add(self, partition: FollowerPartition, now_ms: int) -> None:
        """Start to fetch it. To be called for every new leader epoch: it reconciles again, with the same leader too
        (F5)."""
        topic_partition = partition.topic_partition
        self.remove(topic_partition)
        entry = self._entries[topic_partition] = _Entry(partition, now_ms)
        self._begin(topic_partition, entry)

    def remove(self, topic_partition: TopicPartition) -> None:
        """Stop fetching it, if it is fetched."""
        if self._entries.pop(topic_partition, None) is not None:
            self._deactivate(topic_partition)

    def resume(self, topic_partition: TopicPartition) -> None:
        """Its flush is done; no effect unless it waits for one."""
        entry = self._entries.get(topic_partition)
        if entry is not None and entry.state is FetchState.AWAITING_FLUSH:
            entry.state = FetchState.FETCHING
            self._activate(topic_partition, entry)

    def moved(self, topic_partition: TopicPartition) -> None:
        """Its log start has moved by retention: the next request reports it to the leader."""
        if topic_partition in self._active:
            self._changed[topic_partition] = None

    def poll(self, now_ms: int, broker_epoch: int) -> Steps[None]:
        """Send the next request if none is in flight and there is anything to fetch.

        It lists only the partitions that changed since the last one, unless a session has to be begun. To be called
        after add, remove and resume, and when next_wakeup is due. broker_epoch: of this broker's registration
        (KIP-903).
        """
        yield from self._send({}, now_ms, broker_epoch)

    def _send(self, pipelined: Pipelined, now_ms: int, broker_epoch: int) -> Steps[None]:
        self._end_delays(now_ms)
        if self._in_flight is not None or not self._active or now_ms < self._waits_until():
            return
        self._delay_throttled(pipelined, now_ms)
        if not self._active:
            return
        request = self._next_request(pipelined, broker_epoch)
        self._in_flight = next(self._correlations)
        yield Send(self.leader, self._in_flight, request, catches_up=bool(pipelined))

    def on_fetched(self, event: FetchReplied, now_ms: int, broker_epoch: int) -> Steps[None]:
        """Give each partition its response and send the next request. Drops responses to any but the request in
        flight."""
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
        """When poll is next due, not before `now_ms`; None if only an event can make it so."""
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

    # Which partitions to list

    def _begin(self, topic_partition: TopicPartition, entry: _Entry) -> None:
        """List it from the next request on, or from the end of its flush."""
        if entry.partition.awaits_flush:
            entry.state = FetchState.AWAITING_FLUSH
            self._awaiting[topic_partition] = None
        else:
            entry.state = FetchState.TRUNCATING
            self._activate(topic_partition, entry)

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
        """Whether this item of the heap is not obsolete."""
        return (
            self._entries.get(topic_partition) is entry and entry.state is FetchState.DELAYED and entry.due_ms == due_ms
        )

    def _end_delays(self, now_ms: int) -> None:
        while self._delayed and self._delayed[0][0] <= now_ms:
            item = heappop(self._delayed)
            if self._is_delayed(*item):
                _, _, topic_partition, entry = item
                entry.listed = False  # the response with the error may have had changes for it
                self._begin(topic_partition, entry)

    def _delay_throttled(self, pipelined: Pipelined, now_ms: int) -> None:
        """Leave out what is throttled. As Kafka does, look again after replica_fetch_backoff_ms, since the quota or the
        list may have changed."""
        throttle_ms = min(self._quota.throttle_ms(now_ms), self._config.replica_fetch_backoff_ms)
        if not throttle_ms:
            return
        for topic_partition, entry in list(self._active.items()):
            if topic_partition not in pipelined and self._is_throttled(entry, now_ms):
                entry.state = FetchState.DELAYED
                self._deactivate(topic_partition)
                self._delay(topic_partition, entry, now_ms + throttle_ms)

    def _is_throttled(self, entry: _Entry, now_ms: int) -> bool:
        return self._quota.throttles(entry.partition, entry.is_in_sync(self._broker_id), now_ms)

    def _pause(self, now_ms: int) -> None:
        self._paused_until_ms = now_ms + self._config.replica_fetch_backoff_ms

    def _waits_until(self) -> int:
        """The earliest time of the next request.

        While flushes run and nothing else has changed, it is held back for as long as a leader might hold it: the end
        of the flushes should reach the leader at once, and not after its response to a request that waits for records.
        """
        if self._awaiting and not self._changed:
            return max(self._paused_until_ms, self._hold_until_ms)
        return self._paused_until_ms

    # The leader's session (KIP-227)

    def _next_request(self, pipelined: Pipelined, broker_epoch: int) -> FetchRequest:
        if self._session_epoch == sessions.INITIAL_EPOCH:
            held, self._held = self._held, {}
            self._forgotten.clear()
            # Unchanged ones are listed as before: thousands are listed again and again while a leader is dead.
            listed = [
                held[at] if at in held and at not in self._changed else self._request_of(entry, pipelined.get(at))
                for at, entry in self._active.items()
            ]
        else:
            listed = self._changed_partitions(pipelined)
        forgotten = tuple(self._forgotten)
        for topic_partition in forgotten:
            del self._held[topic_partition]
        for requested in listed:
            self._held[requested.partition] = requested
            self._active[requested.partition].listed = True
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

    def _changed_partitions(self, pipelined: Pipelined) -> list[FetchPartition]:
        """The partitions that the leader's session lacks, has with other fields, or has to repeat."""
        listed = []
        for topic_partition in self._changed:
            entry = self._active[topic_partition]
            requested = self._request_of(entry, pipelined.get(topic_partition))
            if not entry.listed or requested != self._held.get(topic_partition):
                listed.append(requested)
        return listed

    def _request_of(self, entry: _Entry, position: FetchPosition | None = None) -> FetchPartition:
        """A partition as a request lists it. position: None for its current one."""
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
        """Begin a new session with the next request, which ends the old one."""
        self._session_epoch = sessions.INITIAL_EPOCH

    def _forget_session(self) -> None:
        self._session_id = sessions.NO_SESSION
        self._session_epoch = sessions.INITIAL_EPOCH

    def _refused(self, error: ErrorCode, now_ms: int) -> Steps[None]:
        """The whole request was refused. A new session replaces one that the leader lost at once; other errors back
        off."""
        began = self._session_epoch == sessions.INITIAL_EPOCH
        lost = error in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        self._forget_session()
        if began or not lost:
            self._pause(now_ms)
        yield StateChange("info", f"fetcher {self.index} from broker {self.leader}: refused with {error.name}")

    # Responses

    def _is_awaited(self, event: FetchReplied) -> bool:
        """Whether it responds to the request in flight (F7)."""
        return event.leader == self.leader and event.correlation == self._in_flight

    def _listed(self, topic_partition: TopicPartition) -> tuple[_Entry, FetchPartition] | None:
        """The partition and how the request listed it; None if it has been removed, or added again, since (F7)."""
        entry = self._entries.get(topic_partition)
        requested = self._held.get(topic_partition)
        if entry is None or requested is None or not entry.listed or not entry.is_active:
            return None
        return entry, requested

    def _take_all(self, response: FetchResponse, now_ms: int, broker_epoch: int) -> Steps[None]:
        """Give each partition its response; those that are pipelined take theirs after the next request."""
        responses = {data.partition: data for data in response.partitions}  # a faulty leader may name one twice
        self._record(responses, now_ms)
        exceeded = self._quota.throttle_ms(now_ms) > 0
        pipelined: dict[TopicPartition, FetchPosition] = {}
        deferred = []
        for topic_partition, data in responses.items():
            found = self._listed(topic_partition)
            if found is None:
                continue
            entry, requested = found
            position = None
            throttled = exceeded and self._is_throttled(entry, now_ms)
            if len(data.records) and not sessions.is_refusal(data) and not throttled:
                position = yield from entry.partition.pipelined_fetch_position(requested, data)
            if position is None:
                yield from self._take(data, entry, requested, now_ms)
            else:
                pipelined[topic_partition] = position
                deferred.append((data, entry, requested))
        for topic_partition in pipelined:
            self._served(topic_partition)
        if pipelined:
            yield from self._send(pipelined, now_ms, broker_epoch)
        for data, entry, requested in deferred:
            yield from self._take(data, entry, requested, now_ms)

    def _record(self, responses: Mapping[TopicPartition, FetchedPartition], now_ms: int) -> None:
        """Count the bytes of replicas that are listed as throttled, and note which are in sync."""
        for topic_partition, data in responses.items():
            entry = self._entries.get(topic_partition)
            if entry is None:
                continue
            if not sessions.is_refusal(data):
                entry.leaders_watermark = data.high_watermark
            if len(data.records) and self._quota.is_listed(entry.partition):
                self._quota.record(len(data.records), now_ms)

    def _served(self, topic_partition: TopicPartition) -> None:
        """List it in the next request, behind the others."""
        self._active[topic_partition] = self._active.pop(topic_partition)
        self._changed[topic_partition] = None

    def _take(self, data: FetchedPartition, entry: _Entry, requested: FetchPartition, now_ms: int) -> Steps[None]:
        try:
            outcome = yield from entry.partition.take_fetched(requested, data, now_ms)
        except InvariantError:
            raise
        except KreplogError as error:  # the others go on (F10)
            yield StateChange("error", f"{data.partition} from broker {self.leader}: {error}")
            outcome = FetchOutcome.BACK_OFF
        if self._entries.get(data.partition) is entry:  # else it was removed meanwhile
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
        elif self._request_of(entry) != self._held.get(topic_partition):
            self._served(topic_partition)

    def _delay_ms(self, entry: _Entry, outcome: FetchOutcome) -> int:
        backoff_ms = self._config.replica_fetch_backoff_ms
        if outcome is not FetchOutcome.LEADER_NOT_READY:
            return backoff_ms
        delay_ms = min(entry.not_ready_ms, backoff_ms)
        entry.not_ready_ms = min(2 * delay_ms, NOT_READY_MAX_MS)
        return delay_ms

    def _delay(self, topic_partition: TopicPartition, entry: _Entry, due_ms: int) -> None:
        entry.due_ms = due_ms
        self._delays += 1
        heappush(self._delayed, (entry.due_ms, self._delays, topic_partition, entry))
