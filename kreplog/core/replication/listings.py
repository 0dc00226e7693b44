"""OffsetListings: ListOffsets requests: earliest and latest offsets at once, offsets by timestamp after a log lookup.

A lookup by timestamp may decompress a batch, so it is an effect whose result arrives as an event; the response then
depends on the partition's state at that time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from kreplog.core.effects import OffsetForTimestamp, Reply, Steps
from kreplog.core.events import OffsetFound
from kreplog.core.messages import (
    DEBUGGING,
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    ListedOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from kreplog.core.replication.epochs import epoch_at
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.role import ANY_ROLE, LEADER_ALONE
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

_FIRST_VERSIONS = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The special timestamps, with the versions of ListOffsets that have them first (KIP-734, 405, 1005, 1023)."""


def _has_special(version: int, timestamp: int) -> bool:
    first = _FIRST_VERSIONS.get(timestamp)
    return first is not None and version >= first


def timestamp_to_find(requested: int, newest: Callable[[], int]) -> int | None:
    """The timestamp that a log is searched for, of one in ListOffsets; None: no record matches. newest: returns the
    largest timestamp of the log, -1 if it is empty, for MAX_TIMESTAMP. The simulator does not run this rule: its
    clients look for times."""
    timestamp = newest() if requested == MAX_TIMESTAMP else requested
    return None if timestamp < 0 else timestamp


@dataclass(slots=True, eq=False)
class _Listing:
    """A request with lookups in flight. responses: of each partition of the request, in its order. waiting: number of
    lookups without a result."""

    reply_to: Hashable
    request: ListOffsetsRequest
    responses: list[ListedOffset]
    waiting: int = 0


class OffsetListings:
    """The ListOffsets requests of one broker.

    partitions: the open replicas, which the manager adds and removes. metadata: of the cluster, for error codes.
    """

    def __init__(self, partitions: Mapping[TopicPartition, Partition], metadata: MetadataCache) -> None:
        self._partitions = partitions
        self._metadata = metadata
        self._waiting: dict[int, _Listing] = {}
        self._numbers = itertools.count(1)

    def begin(self, reply_to: Hashable, request: ListOffsetsRequest) -> Steps[None]:
        """Reply at once, or when all lookups are done. Duplicate partitions in a request get INVALID_REQUEST, and
        special timestamps that its version does not have UNSUPPORTED_VERSION, as in Kafka."""
        number = next(self._numbers)
        listing = _Listing(reply_to, request, [])
        named = Counter([queried.partition for queried in request.partitions])
        lookups = []
        for index, queried in enumerate(request.partitions):
            if named[queried.partition] > 1:
                response = ListedOffset(queried.partition, ErrorCode.INVALID_REQUEST)
            elif queried.timestamp < 0 and not _has_special(request.version, queried.timestamp):
                response = ListedOffset(queried.partition, ErrorCode.UNSUPPORTED_VERSION)
            else:
                response, by_time = self._respond(queried, request)
                if by_time:
                    lookups.append(OffsetForTimestamp((number, index), queried.partition, queried.timestamp))
            listing.responses.append(response)
        if lookups:
            listing.waiting = len(lookups)
            self._waiting[number] = listing
            yield from lookups
        else:
            yield Reply(reply_to, ListOffsetsResponse(tuple(listing.responses)))

    def found(self, event: OffsetFound) -> Steps[None]:
        """Record the result of a lookup; reply after the last one."""
        number, index = event.tag
        listing = self._waiting[number]
        queried = listing.request.partitions[index]
        response, by_time = self._respond(queried, listing.request)
        partition = self._partitions.get(queried.partition)
        if by_time and partition is not None:
            end = _end_of(partition, listing.request)
            if event.offset >= end:
                response = ListedOffset(queried.partition, ErrorCode.NONE)
            else:
                epoch = epoch_at(partition.log.epochs, event.offset)
                response = ListedOffset(queried.partition, ErrorCode.NONE, event.offset, epoch, event.timestamp)
        listing.responses[index] = response
        listing.waiting -= 1
        if not listing.waiting:
            del self._waiting[number]
            yield Reply(listing.reply_to, ListOffsetsResponse(tuple(listing.responses)))

    def _respond(self, queried: ListOffsetsPartition, request: ListOffsetsRequest) -> tuple[ListedOffset, bool]:
        """The response without a lookup, and whether a lookup by timestamp is needed instead."""
        debugging = request.replica_id == DEBUGGING
        partition = self._partitions.get(queried.partition)
        if partition is None:
            error = self._metadata.replica_error(queried.partition)
            return ListedOffset(queried.partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if debugging else error), False
        roles = ANY_ROLE if debugging else LEADER_ALONE
        if (error := partition.refusal(queried.current_leader_epoch, roles=roles)) is not ErrorCode.NONE:
            return ListedOffset(queried.partition, error), False
        if queried.timestamp in (EARLIEST, EARLIEST_LOCAL):
            start = partition.log.log_start
            epoch = epoch_at(partition.log.epochs, start)
            return ListedOffset(queried.partition, ErrorCode.NONE, start, epoch), False
        if queried.timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            return ListedOffset(queried.partition, ErrorCode.NONE), False
        if queried.timestamp == LATEST and debugging:
            return _listed(partition, partition.log.leo), False
        if partition.visible_high_watermark() < 0:
            return ListedOffset(queried.partition, ErrorCode.OFFSET_NOT_AVAILABLE), False
        return _listed(partition, _end_of(partition, request)), queried.timestamp != LATEST


def _end_of(partition: Partition, request: ListOffsetsRequest) -> int:
    """The end of what the client may read."""
    return partition.limit(True, request.isolation_level == READ_COMMITTED)


def _listed(partition: Partition, offset: int) -> ListedOffset:
    return ListedOffset(partition.topic_partition, ErrorCode.NONE, offset, partition.leader_epoch)
