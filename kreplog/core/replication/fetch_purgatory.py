"""The leader's side of Fetch: what consumers and followers ask for, answered when there is enough of it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from kreplog.core.effects import Reply, StateChange, Steps
from kreplog.core.memory import MemoryAccount
from kreplog.core.messages import (
    CONSUMER,
    DEBUGGING,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
)
from kreplog.core.replication.delayed import DelayedFetch, ParkedFetches
from kreplog.core.replication.deletions import Deletions
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.sessions import ACCOUNT as SESSIONS
from kreplog.core.replication.sessions import FetchSessions
from kreplog.errors import ErrorCode, StorageError
from kreplog.types import TopicPartition

ACCOUNT = "parked_fetches"
_FETCH_BYTES = 2000
_PARTITION_BYTES = 500

LOOKS_AT_ONCE = 200
"""Fetches that look again in one step of the core; each takes some tens of microseconds."""

EXPECTED_FOR_MS = 2000
"""For so long a new leader expects its followers' first fetches."""

EXPECTED_WITHIN_MS = 10
"""So long, at most, it keeps other fetches of theirs waiting meanwhile."""


class FetchPurgatory:
    """The Fetch requests of one broker. partitions: the open replicas, which the manager adds and removes. deletions:
    what followers are waited for with. slots: how many incremental fetch sessions there may be. memory: what sessions
    and fetches that wait are charged to; a consumer's that finds no room there is answered at once with what there is.
    """

    def __init__(
        self,
        partitions: Mapping[TopicPartition, Partition],
        metadata: MetadataCache,
        deletions: Deletions,
        slots: int,
        session_ids: Iterator[int],
        memory: MemoryAccount,
    ) -> None:
        self._partitions = partitions
        self._metadata = metadata
        self._deletions = deletions
        self._sessions = FetchSessions(slots, session_ids, memory)
        self._memory = memory
        self._woken: dict[DelayedFetch, None] = {}
        self._looks = 0
        self._parked = ParkedFetches()
        self._expected: dict[int, dict[TopicPartition, int]] = {}

    def begin(self, reply_to: Hashable, request: FetchRequest, now_ms: int) -> Steps[DelayedFetch | None]:
        """Answered at once, or it waits until its deadline: then it is returned."""
        context = self._sessions.begin(request, now_ms)
        if isinstance(context, ErrorCode):
            yield Reply(reply_to, FetchResponse(context))
            return None
        fetch = DelayedFetch(reply_to, now_ms + request.max_wait_ms, request, context)
        for asked in context.evaluate():
            refused = yield from self._check(asked, request, now_ms)
            if refused is not None:
                fetch.refused[asked.partition] = refused
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

    def charges(self) -> Iterator[tuple[str, int, int]]:
        """(account, replica id, bytes) of all that is remembered for fetchers, as they are charged."""
        for replica_id, size in self._sessions.charges():
            yield SESSIONS, replica_id, size
        for fetch in self._parked:
            yield ACCOUNT, fetch.request.replica_id, _size_of(fetch)

    def __contains__(self, fetch: DelayedFetch) -> bool:
        """Whether it waits."""
        return fetch in self._parked

    def begin_step(self) -> None:
        """Of each step of the core: only so many fetches look again in it."""
        self._looks = LOOKS_AT_ONCE

    @property
    def has_woken(self) -> bool:
        """Whether some are still to look again, in the steps that follow."""
        return bool(self._woken)

    def look_again(self, now_ms: int) -> Steps[None]:
        """Those that earlier steps had no time for."""
        while self._woken and self._looks > 0:
            fetch = next(iter(self._woken))
            del self._woken[fetch]
            if fetch in self._parked:
                yield from self._look(fetch, now_ms)

    def _look(self, fetch: DelayedFetch, now_ms: int) -> Steps[None]:
        self._looks -= 1
        if (yield from self._try(fetch, now_ms)):
            self._unpark(fetch)

    def _unpark(self, fetch: DelayedFetch) -> None:
        self._parked.remove(fetch)
        self._woken.pop(fetch, None)
        self._memory.release(ACCOUNT, _size_of(fetch))

    def expire(self, fetch: DelayedFetch, now_ms: int) -> Steps[None]:
        """Its time is over: answered with what there is."""
        if fetch in self._parked:
            self._unpark(fetch)
            yield from self._try(fetch, now_ms)

    def wake(self, topic_partition: TopicPartition, now_ms: int) -> Steps[None]:
        """Fetches that wait and can read this partition look again: followers' at once, of consumers' so many in a step
        and the others in those that follow."""
        waiting = self._parked.waiting_for(topic_partition, self._sessions.mark(topic_partition))
        for fetch in waiting:
            if self._looks > 0 or fetch.request.replica_id > CONSUMER:
                yield from self._look(fetch, now_ms)
            else:
                self._woken[fetch] = None

    def expect_followers(self, partition: Partition, now_ms: int) -> Steps[None]:
        """Followers in sync hear at about this time that they fetch the partition from here; a fetch of theirs that
        waits here for something else must not hold that up."""
        for follower in partition.isr:
            if follower != partition.broker_id:
                self._expected.setdefault(follower, {})[partition.topic_partition] = now_ms + EXPECTED_FOR_MS
        for fetch in self._parked.of(partition.isr):
            self._unpark(fetch)
            fetch.deadline_ms = now_ms
            yield from self._try(fetch, now_ms)

    def _is_expected(self, follower: int, now_ms: int) -> bool:
        """Whether the follower has still to ask for a partition that this broker began to lead."""
        expected = self._expected.get(follower)
        while expected:
            topic_partition, until_ms = next(iter(expected.items()))
            if now_ms < until_ms:
                return True
            del expected[topic_partition]
        return False

    def _check(self, asked: FetchPartition, request: FetchRequest, now_ms: int) -> Steps[FetchedPartition | None]:
        partition = self._partitions.get(asked.partition)
        if partition is None:
            return FetchedPartition(asked.partition, self._metadata.replica_error(asked.partition))
        if request.replica_id in (CONSUMER, DEBUGGING):
            return partition.check_readable(asked, request.replica_id == DEBUGGING)
        self._expected.get(request.replica_id, {}).pop(asked.partition, None)
        answer = yield from partition.record_fetch(asked, request.replica_id, request.broker_epoch, now_ms)
        yield from self._deletions.settle(asked.partition)
        return answer

    def _try(self, fetch: DelayedFetch, now_ms: int) -> Steps[bool]:
        """Answer if there is enough to read, something to tell, or no time left; whether it was answered."""
        consumer, debugging = (fetch.request.replica_id == kind for kind in (CONSUMER, DEBUGGING))
        asked = fetch.context.evaluate()
        waits = now_ms < fetch.deadline_ms
        if waits and not fetch.refused and not any(self._has_news(one, consumer) for one in asked):
            return False
        room, found, results = fetch.request.max_bytes, 0, []
        for one in asked:
            answer = fetch.refused.get(one.partition)
            if answer is None:
                answer = yield from self._read(one, consumer, room, debugging)
            results.append(answer)
            size = len(answer.records)
            room, found = room - size, found + size
            waits = waits and answer.error is ErrorCode.NONE and answer.diverging is None
            waits = waits and (consumer or not self._deletions.awaits(one))
        if waits and found < fetch.request.min_bytes:
            return False
        yield Reply(fetch.reply_to, fetch.context.finish(results))
        return True

    def _has_news(self, one: FetchPartition, consumer: bool) -> bool:
        partition = self._partitions.get(one.partition)
        return (
            partition is None
            or partition.refusal(one.current_leader_epoch, one.topic_id) is not ErrorCode.NONE
            or one.fetch_offset < partition.limit(consumer)
            or one.fetch_offset < partition.log.log_start
            or (not consumer and self._deletions.awaits(one))
        )

    def _read(self, one: FetchPartition, consumer: bool, room: int, debugging: bool) -> Steps[FetchedPartition]:
        """Checked again, since the partition may have changed while the fetch waited."""
        partition = self._partitions.get(one.partition)
        if partition is None:
            return FetchedPartition(one.partition, self._metadata.replica_error(one.partition))
        refused = partition.check_readable(one, debugging)
        if refused is not None:
            return refused
        try:
            return (yield from partition.read(one, consumer, room))
        except StorageError as error:
            yield StateChange("error", f"{one.partition}: cannot be read at {one.fetch_offset}: {error}")
            return FetchedPartition(one.partition, ErrorCode.KAFKA_STORAGE_ERROR)


def _size_of(fetch: DelayedFetch) -> int:
    """About what it takes while it waits."""
    return _FETCH_BYTES + _PARTITION_BYTES * len(fetch.request.partitions)
