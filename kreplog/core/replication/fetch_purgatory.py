"""FetchPurgatory: the serving side of Fetch: replies when min_bytes can be read, something changed, or time is over."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kreplog.core.effects import Reply, StateChange, Steps
from kreplog.core.memory import MemoryAccount
from kreplog.core.messages import (
    CONSUMER,
    DEBUGGING,
    READ_COMMITTED,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from kreplog.core.replication.delayed import DelayedFetch, ParkedFetches
from kreplog.core.replication.deletions import Deletions
from kreplog.core.replication.local_replica import UNREADABLE
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.replication_quota import ReplicationQuota
from kreplog.core.replication.role import ANY_ROLE, LEADER_ALONE, LEADER_OR_FOLLOWER, Role
from kreplog.core.replication.sessions import ACCOUNT as SESSIONS
from kreplog.core.replication.sessions import FetchSessions, is_refusal
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

ACCOUNT = "parked_fetches"
_FETCH_BYTES = 2000
_PARTITION_BYTES = 500

MAX_WAIT_MS = 60_000
"""Maximum of max_wait_ms: a fetch waits even after its client has disconnected."""

MAX_RETRIES_PER_STEP = 200
"""Delayed fetches that one step of the core tries again; each takes some tens of microseconds."""

EXPECTED_FOR_MS = 2000
"""How long a new leader expects its followers' first fetches."""

EXPECTED_WITHIN_MS = 10
"""How long, at most, it delays their other fetches meanwhile."""


class FetchPurgatory:
    """The Fetch requests of one broker.

    partitions: the open replicas, which the manager adds and removes. deletions: DeleteRecords that wait for followers'
    fetches. slots: maximum of incremental fetch sessions. memory: the account of sessions and delayed fetches; a
    consumer's fetch that exceeds it is not delayed.
    """

    def __init__(
        self,
        partitions: Mapping[TopicPartition, Partition],
        metadata: MetadataCache,
        deletions: Deletions,
        slots: int,
        session_ids: Iterator[int],
        memory: MemoryAccount,
        serves_racks: bool,
        quota: ReplicationQuota,
    ) -> None:
        """A purgatory without fetches.

        serves_racks: consumers that name a rack are served by followers, too, to which leaders send them. quota: of
        what followers fetch."""
        self._serves_racks = serves_racks
        self._quota = quota
        self._partitions = partitions
        self._metadata = metadata
        self._deletions = deletions
        self._sessions = FetchSessions(slots, session_ids, memory)
        self._memory = memory
        self._woken: dict[DelayedFetch, None] = {}
        self._retries_left = 0
        self._parked = ParkedFetches()
        self._expected: dict[int, dict[TopicPartition, int]] = {}

    def begin(self, reply_to: Hashable, request: FetchRequest, now_ms: int) -> Steps[DelayedFetch | None]:
        """Reply at once, or return the fetch, which is then delayed until its deadline."""
        if len(request.partitions) > 1:
            request = each_partition_once(request)
        context = self._sessions.begin(request, now_ms)
        yield from self._complete_closed(now_ms)
        if isinstance(context, ErrorCode):
            yield Reply(reply_to, FetchResponse(context))
            return None
        fetch = DelayedFetch(reply_to, now_ms + min(request.max_wait_ms, MAX_WAIT_MS), request, context)
        for requested in context.evaluate():
            refused = yield from self._check(requested, request, now_ms)
            if refused is not None:
                fetch.refused[requested.partition] = refused
        if (yield from self._try(fetch, now_ms)):
            return None
        if self._is_expected(request.replica_id, now_ms):
            fetch.deadline_ms = min(fetch.deadline_ms, now_ms + EXPECTED_WITHIN_MS)
        if not self._memory.reserve(ACCOUNT, _size_of(fetch), force=request.replica_id > CONSUMER):
            fetch.deadline_ms = now_ms
            yield from self._try(fetch, now_ms)
            return None
        self._parked.add(fetch)
        return fetch

    def _complete_closed(self, now_ms: int) -> Steps[None]:
        """Reply to the delayed fetches whose sessions have been closed: what comes would not be marked there."""
        for session_id in self._sessions.closed:
            fetch = self._parked.in_session(session_id)
            if fetch is not None:
                self._unpark(fetch)
                fetch.deadline_ms = now_ms
                yield from self._try(fetch, now_ms)
        self._sessions.closed.clear()

    def charges(self) -> Iterator[tuple[str, int, int]]:
        """(account, replica id, bytes) of all sessions and delayed fetches, as charged."""
        for replica_id, size in self._sessions.charges():
            yield SESSIONS, replica_id, size
        for fetch in self._parked:
            yield ACCOUNT, fetch.request.replica_id, _size_of(fetch)

    def waiting_for(self, partition: TopicPartition) -> Iterator[tuple[DelayedFetch, FetchPartition]]:
        """The delayed fetches that nothing has woken yet and that list the partition, each with how it does. Those are
        left out whose fetcher has sent another since in the same session."""
        for fetch in self._parked:
            session_id = fetch.context.session_id
            if fetch in self._woken or (session_id and self._parked.in_session(session_id) is not fetch):
                continue
            listed = fetch.context.listed(partition)
            if listed is not None:
                yield fetch, listed

    def sessions_of_followers(self) -> Iterator[tuple[int, int, int]]:
        """As FetchSessions.of_followers."""
        return self._sessions.of_followers()

    def session(self, session_id: int) -> Sequence[FetchPartition] | None:
        """The partitions of a fetch session, as last listed; None if there is no such session."""
        return self._sessions.partitions(session_id)

    def not_sent(self, request: FetchRequest, response: FetchResponse) -> int:
        """As FetchSessions.not_sent."""
        return self._sessions.not_sent(request, response)

    def __contains__(self, fetch: DelayedFetch) -> bool:
        """Whether it is delayed."""
        return fetch in self._parked

    def begin_step(self) -> None:
        """To be called at the beginning of each step: limits how many fetches it tries again."""
        self._retries_left = MAX_RETRIES_PER_STEP

    @property
    def has_woken(self) -> bool:
        """Whether fetches remain to be tried again in later steps."""
        return bool(self._woken)

    def retry_woken(self, now_ms: int) -> Steps[None]:
        """Try those again that earlier steps postponed."""
        while self._woken and self._retries_left > 0:
            fetch = next(iter(self._woken))
            del self._woken[fetch]
            if fetch in self._parked:
                yield from self._retry(fetch, now_ms)

    def _retry(self, fetch: DelayedFetch, now_ms: int) -> Steps[None]:
        self._retries_left -= 1
        if (yield from self._try(fetch, now_ms)):
            self._unpark(fetch)

    def _unpark(self, fetch: DelayedFetch) -> None:
        self._parked.remove(fetch)
        self._woken.pop(fetch, None)
        self._memory.release(ACCOUNT, _size_of(fetch))

    def expire(self, fetch: DelayedFetch, now_ms: int) -> Steps[None]:
        """The deadline of a fetch has passed: reply with what can be read."""
        if fetch in self._parked:
            self._unpark(fetch)
            yield from self._try(fetch, now_ms)

    def wake(self, topic_partition: TopicPartition, now_ms: int, *, followers: bool = True) -> Steps[None]:
        """Try the delayed fetches of this partition again: followers' at once, consumers' as far as the step's limit
        allows, the others in later steps. followers: whether theirs may be completed."""
        waiting = self._parked.waiting_for(topic_partition, self._sessions.mark(topic_partition))
        throttles = bool(waiting) and self._quota.throttle_ms(now_ms) > 0
        for fetch in waiting:
            is_follower = fetch.request.replica_id > CONSUMER
            if is_follower and not followers:
                continue
            if throttles and self._is_held_back(topic_partition, fetch, now_ms):
                continue
            if self._retries_left > 0 or is_follower:
                yield from self._retry(fetch, now_ms)
            else:
                self._woken[fetch] = None

    def expect_followers(self, partition: Partition, now_ms: int) -> Steps[None]:
        """In-sync followers start to fetch this partition at about this time; complete their delayed fetches of other
        partitions, which would hold that up."""
        for follower in partition.isr:
            if follower != partition.broker_id:
                self._expected.setdefault(follower, {})[partition.topic_partition] = now_ms + EXPECTED_FOR_MS
        for fetch in self._parked.of(partition.isr):
            self._unpark(fetch)
            fetch.deadline_ms = now_ms
            yield from self._try(fetch, now_ms)

    def _is_expected(self, follower: int, now_ms: int) -> bool:
        """Whether the follower has yet to fetch a partition that this broker began to lead."""
        expected = self._expected.get(follower)
        if expected and not any(now_ms < until_ms for until_ms in expected.values()):
            expected.clear()
        return bool(expected)

    def _check(self, requested: FetchPartition, request: FetchRequest, now_ms: int) -> Steps[FetchedPartition | None]:
        partition = self._partitions.get(requested.partition)
        if partition is None:
            return self._missing(requested)
        if request.replica_id in (CONSUMER, DEBUGGING):
            refused = partition.check_readable(requested, self._roles_for(request))
            return refused or partition.redirect(requested, request.rack, now_ms)
        self._expected.get(request.replica_id, {}).pop(requested.partition, None)
        response = yield from partition.record_fetch(requested, request.replica_id, request.broker_epoch, now_ms)
        yield from self._deletions.settle(requested.partition)
        return response

    def _try(self, fetch: DelayedFetch, now_ms: int) -> Steps[bool]:
        """Reply if min_bytes can be read, something else changed, or its deadline has passed; whether it did."""
        consumer = fetch.request.replica_id == CONSUMER
        roles = self._roles_for(fetch.request)
        stable = consumer and fetch.request.isolation_level == READ_COMMITTED
        partitions = fetch.context.evaluate()
        throttled = self._throttled(partitions, fetch.request.replica_id, now_ms)
        waits = now_ms < fetch.deadline_ms
        if waits and not fetch.refused:
            for requested in partitions:
                if self._has_changed(requested, consumer, roles, stable, throttled):
                    break
            else:
                return False
        room, found, results = fetch.request.max_bytes, 0, []
        for requested in partitions:
            response = fetch.refused.get(requested.partition)
            if response is None:
                allowed = 0 if requested.partition in throttled else room
                response = yield from self._read(requested, consumer, allowed, roles, stable)
            results.append(response)
            size = len(response.records)
            room, found = room - size, found + size
            waits = waits and not is_refusal(response)
            waits = waits and (consumer or not self._deletions.awaits(requested))
        if waits and found < fetch.request.min_bytes:
            return False
        if fetch.request.replica_id > CONSUMER:
            self._record(results, now_ms)
        yield Reply(fetch.reply_to, fetch.context.finish(results, throttled))
        return True

    def _throttled(
        self, partitions: Iterable[FetchPartition], replica_id: int, now_ms: int
    ) -> Collection[TopicPartition]:
        """The partitions of which a follower gets no records now (KIP-73)."""
        if replica_id <= CONSUMER or not self._quota.throttle_ms(now_ms):
            return ()
        found = ((requested.partition, self._partitions.get(requested.partition)) for requested in partitions)
        return {
            topic_partition
            for topic_partition, partition in found
            if partition is not None and self._quota.throttles(partition, replica_id in partition.isr, now_ms)
        }

    def _is_held_back(self, topic_partition: TopicPartition, fetch: DelayedFetch, now_ms: int) -> bool:
        """Whether a partition only has more records of which the follower gets none now: to try its fetch again, with
        all partitions that are throttled, would cost the more with each append."""
        requested = fetch.context.listed(topic_partition)
        throttled = () if requested is None else self._throttled([requested], fetch.request.replica_id, now_ms)
        if requested is None or not throttled:
            return False
        return not self._has_changed(requested, False, self._roles_for(fetch.request), False, throttled)

    def _record(self, results: Iterable[FetchedPartition], now_ms: int) -> None:
        """Count what a follower is sent of replicas that are listed as throttled, also of those in the ISR."""
        for response in results:
            size = len(response.records)
            if size and self._quota.is_listed(self._partitions[response.partition]):
                self._quota.record(size, now_ms)

    def _has_changed(
        self,
        requested: FetchPartition,
        consumer: bool,
        roles: Collection[Role],
        stable: bool,
        throttled: Collection[TopicPartition],
    ) -> bool:
        partition = self._partitions.get(requested.partition)
        return (
            partition is None
            or partition.refusal(requested.current_leader_epoch, requested.topic_id, roles) is not ErrorCode.NONE
            or (requested.fetch_offset < partition.limit(consumer, stable) and requested.partition not in throttled)
            or not partition.log.log_start <= requested.fetch_offset <= partition.log.leo
            or (not consumer and self._deletions.awaits(requested))
        )

    def _read(
        self, requested: FetchPartition, consumer: bool, room: int, roles: Collection[Role], stable: bool
    ) -> Steps[FetchedPartition]:
        """Checks again first, since the partition may have changed while the fetch was delayed."""
        partition = self._partitions.get(requested.partition)
        if partition is None:
            return self._missing(requested)
        refused = partition.check_readable(requested, roles)
        if refused is not None:
            return refused
        try:
            return (yield from partition.read(requested, consumer, room, stable))
        except UNREADABLE as error:
            yield StateChange("error", f"{requested.partition}: cannot be read at {requested.fetch_offset}: {error}")
            return FetchedPartition(requested.partition, ErrorCode.KAFKA_STORAGE_ERROR, topic_id=requested.topic_id)

    def _roles_for(self, request: FetchRequest) -> Collection[Role]:
        """The roles in which a replica serves a fetch. A consumer that names its rack may have been sent to a follower,
        where leaders do that; any other is there by old metadata, and finds the leader sooner if it is refused. Kafka's
        followers serve all consumers since version 11 of Fetch (KIP-392)."""
        if request.replica_id == DEBUGGING:
            return ANY_ROLE
        sent_here = self._serves_racks and request.replica_id == CONSUMER and request.rack
        return LEADER_OR_FOLLOWER if sent_here else LEADER_ALONE

    def _missing(self, requested: FetchPartition) -> FetchedPartition:
        """The response for a partition that this broker has no replica of."""
        error = self._metadata.replica_error(requested.partition, requested.topic_id)
        return FetchedPartition(requested.partition, error, topic_id=requested.topic_id)


def each_partition_once(request: FetchRequest) -> FetchRequest:
    """The request with the last entry alone of a partition that is listed repeatedly, as in Kafka."""
    listed = {partition.partition: partition for partition in request.partitions}
    return request if len(listed) == len(request.partitions) else replace(request, partitions=tuple(listed.values()))


def _size_of(fetch: DelayedFetch) -> int:
    """The approximate memory of a delayed fetch."""
    return _FETCH_BYTES + _PARTITION_BYTES * len(fetch.request.partitions)
