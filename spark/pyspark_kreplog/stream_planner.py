"""The rules of a streaming read: where each micro-batch ends, which tasks read it, and which records were lost.

A batch reads [start, end) of each partition, both as stream_offsets.py has them. The end is decided by `end_of_batch`;
Spark then writes it to the checkpoint, and `tasks` plans the batch from start and end alone, so that a batch that is
repeated after a crash reads the same rows. Nothing here knows of Spark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from kreplog.errors import KreplogError, OffsetOutOfRangeError
from kreplog.types import TopicPartition
from pyspark_kreplog.bounds import end_offset, require_every_partition, resolve
from pyspark_kreplog.data_loss import report_data_loss
from pyspark_kreplog.leader_epochs import end_of_shared_log, epoch_before
from pyspark_kreplog.log_directory import (
    PartitionSnapshot,
    await_end_offset,
    partition_path,
    require_same_incarnation,
    require_same_topic,
    select_subscribed,
    topic_id_of,
)
from pyspark_kreplog.network import ClusterReader
from pyspark_kreplog.open_logs import OpenLogs
from pyspark_kreplog.options import ReadOptions
from pyspark_kreplog.plan import PartitionRange, RangedLog, Task, cut
from pyspark_kreplog.rate_limits import end_within_bytes, limit_bytes, limit_records, waits_for_more
from pyspark_kreplog.stream_offsets import (
    INITIAL,
    RESERVED_KEY,
    Offsets,
    StreamOffset,
    behind_latest,
    offsets_to_json,
)
from pyspark_kreplog.whole_jobs import Ends, read_whole_jobs

_log = logging.getLogger("pyspark_kreplog")

States = Mapping[TopicPartition, PartitionSnapshot]


class StreamPlanner:
    """The state of one run of a query. Not thread-safe: Spark calls a source from one thread.

    now_s: a monotonic clock, for maxTriggerDelay.
    """

    def __init__(self, options: ReadOptions, now_s: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._logs = OpenLogs(options) if options.bootstrap is None else ClusterReader(options)
        self._now_s = now_s
        self._last_batch_s: float | None = None
        self._initial: StreamOffset | None = None
        self._frozen: States | None = None
        self._latest: Offsets = {}
        self._position: Offsets = {}
        self._reported: set[tuple[str, str]] = set()
        self._commits = options.group is not None

    def close(self) -> None:
        self._logs.close()

    def freeze(self) -> None:
        """Fix the end of the run at what is committed now: records and partitions that come later are not read."""
        self._frozen = self._states(())

    def initial_offset(self) -> dict[str, Any]:
        """The start of batch 0, which end_of_batch replaces by offsets.

        Not resolved here, since Spark requests it again when it repeats batch 0, and the options may fit no more.
        """
        return INITIAL.to_json()

    def end_of_batch(self, start_json: Mapping[str, Any], *, unlimited: bool) -> dict[str, Any]:
        """The end of the batch that starts at `start_json`; that itself when there is nothing to read yet.

        unlimited: ignore the options that limit a batch, as Trigger.Once does. Raises OffsetOutOfRangeError by the rule
        of failOnDataLoss, KreplogError when a topic was created again, UsageError when startingOffsets do not fit.
        """
        start = StreamOffset.from_json(start_json)
        states = self._states(start.offsets) if self._frozen is None else self._frozen
        is_first = start.initial
        if is_first:
            self._initial = self._initial or self._resolve_start(states)
            start = self._initial
        states = self._check(start, states)
        self._latest = {partition: state.end_offset for partition, state in states.items()}
        first = {
            partition: max(start.offsets.get(partition, 0), state.start_offset) for partition, state in states.items()
        }
        end = self._limit(first, self._latest, unlimited=unlimited)
        if end is None:  # too little for minOffsetsPerTrigger
            return start.to_json()
        self._position = end
        vanished = {partition: offset for partition, offset in start.offsets.items() if partition not in end}
        ids = {partition: state.topic_id for partition, state in states.items() if state.topic_id is not None}
        incarnations = {
            partition: state.incarnation_id for partition, state in states.items() if state.incarnation_id is not None
        }
        following = StreamOffset(
            vanished | end,
            {**start.topic_ids, **ids},
            {**start.incarnation_ids, **incarnations},
            _epochs(start, end, states),
            started_at=start.offsets if is_first else None,
        )
        if not is_first and replace(following, started_at=start.started_at) == start:
            return start.to_json()
        return following.to_json()

    def latest(self) -> dict[str, Any]:
        """The end of the log as end_of_batch last found it, and by topic how far the batch's end is behind it."""
        lag = behind_latest(self._position, self._latest)
        return offsets_to_json(self._latest) | {RESERVED_KEY: {"offsetsBehindLatest": lag}}

    def tasks(self, start_json: Mapping[str, Any], end_json: Mapping[str, Any], cores: int) -> list[Task]:
        """The tasks of the batch [start, end). Raises as end_of_batch does."""
        start, end = StreamOffset.from_json(start_json), StreamOffset.from_json(end_json)
        if start.initial and end.started_at is None:
            raise KreplogError(
                "the end of batch 0 in the checkpoint does not contain where that batch starts: use a new "
                "checkpointLocation"
            )
        offsets = end.started_at if start.initial and end.started_at is not None else start.offsets
        ranges = [
            self._range(partition, offsets.get(partition), stop, end)
            for partition, stop in end.offsets.items()
            if offsets.get(partition) != stop
        ]
        return cut([each for each in ranges if each is not None], self._options, cores)

    def commit(self, end_json: Mapping[str, Any]) -> None:
        """Show the position of the query to the brokers, as that of the group of the options.

        The checkpoint alone decides where the query goes on: what fails here is reported, and the query goes on."""
        group = self._options.group
        if not self._commits or group is None or not isinstance(self._logs, ClusterReader):
            return
        end = StreamOffset.from_json(end_json)
        positions = {partition: offset for partition, offset in end.offsets.items() if partition in self._latest}
        try:
            if positions and not self._logs.commit(group, positions, end.leader_epochs):
                self._commits = False
                _log.warning(
                    "kafka.group.id = %s: the brokers at %s have no consumer groups, so that no position is committed; "
                    "the checkpoint holds it",
                    group,
                    self._options.bootstrap,
                )
        except KreplogError as error:
            _log.warning("kafka.group.id = %s: the position of the query is not committed: %s", group, error)

    def _states(self, known: Collection[TopicPartition]) -> States:
        """The state of each subscribed partition now. A named topic that does not exist may still be created."""
        partitions, missing_topics = self._logs.find()
        known_topics = {partition.topic for partition in known}
        unknown = set(self._options.assigned or ()) - set(partitions) - set(known)
        missing = {f"topic {topic}" for topic in set(missing_topics) - known_topics}
        missing |= {f"partition {partition}" for partition in unknown if partition.topic not in missing_topics}
        for name in sorted(missing):
            if (name, "missing") not in self._reported:
                self._reported.add((name, "missing"))
                _log.warning("there is no %s in %s yet; it is read once it exists", name, self._options.location)
        if self._options.bootstrap is not None:
            return self._logs.states(partitions)
        return read_whole_jobs(self._options.path, partial(self._states_before, partitions))

    def _states_before(self, partitions: Collection[TopicPartition], ends: Ends) -> States:
        states = self._logs.states(partitions)
        for partition in states.keys() & ends.keys():
            state = states[partition]
            end = max(min(state.end_offset, ends[partition]), state.start_offset)
            states[partition] = replace(state, end_offset=end)
        return states

    def _resolve_start(self, states: States) -> StreamOffset:
        """The offsets for which the starting options stand, as of `states`."""
        require_every_partition(self._options.starting, states)
        offsets = {}
        for partition, state in states.items():
            with self._logs.use(partition) as log:
                if log is not None:
                    offsets[partition] = resolve(
                        log, partition, self._options, self._options.starting, state.start_offset, state.end_offset
                    )
        return StreamOffset(offsets, started_at=offsets)

    def _check(self, start: StreamOffset, states: States) -> States:
        """Compare the position with the log: vanished, deleted, truncated and new partitions; return the states."""
        checked = dict(states)
        for partition, offset in start.offsets.items():
            if partition not in states:
                named = select_subscribed(self._options, [partition])[0]
                gone = "no longer exists" if named else "is no longer among those that the options name"
                self._lost(partition, offset, f"the partition {gone}; it was read up to offset {offset}")
        for partition, state in states.items():
            expected = start.topic_ids.get(partition)
            if expected is not None:
                require_same_topic(partition, expected, state.topic_id, stream=True)
            require_same_incarnation(partition, start.incarnation_ids.get(partition), state.incarnation_id, stream=True)
            read_up_to = start.offsets.get(partition)
            if read_up_to is not None:
                checked[partition] = self._check_end(partition, state, read_up_to, start.leader_epochs.get(partition))
            if state.start_offset > (read_up_to or 0):
                self._lost_to_retention(partition, read_up_to, state.start_offset)
        return checked

    def _check_end(
        self, partition: TopicPartition, state: PartitionSnapshot, read_up_to: int, epoch: int | None
    ) -> PartitionSnapshot:
        """The state to go on with: where records below `read_up_to` were truncated, it ends there, after data loss.

        epoch: of the last record that was read. An end that fell is given time to come back. What was read may lie past
        the last stable offset, by a query without read_committed: then there is nothing to read, and no loss.
        """
        shared = read_up_to if epoch is None else end_of_shared_log(state.leader_epochs, epoch, read_up_to)
        if shared < read_up_to:
            loss = f"offsets {shared} to {read_up_to}, which were read, have been truncated and replaced by others"
            self._lost(partition, shared, loss)
            return replace(state, end_offset=shared)
        if state.end_offset >= read_up_to:
            return state
        with self._logs.use(partition) as log:
            end = read_up_to if log is None else await_end_offset(log, read_up_to, "read_uncommitted")
        if end < read_up_to:
            loss = f"the log now ends at offset {end}, below offset {read_up_to}, read already"
            self._lost(partition, read_up_to, loss)
        return replace(state, end_offset=min(end, read_up_to))

    def _limit(self, start: Offsets, end: Offsets, *, unlimited: bool) -> dict[TopicPartition, int] | None:
        """The end within the options that limit a batch; None to wait for more records."""
        limits = self._options.limits
        if unlimited:
            return dict(end)
        now_s = self._now_s()
        waited_ms = limits.max_delay_ms if self._last_batch_s is None else (now_s - self._last_batch_s) * 1000
        records = sum(max(0, stop - start[partition]) for partition, stop in end.items())
        if self._frozen is None and waits_for_more(records, limits.min_offsets, waited_ms, limits.max_delay_ms):
            return None
        self._last_batch_s = now_s
        limited = dict(end) if limits.max_offsets is None else limit_records(limits.max_offsets, start, end)
        if limits.max_bytes is None:
            return limited
        within_bytes = self._limit_bytes(limits.max_bytes, start, end)
        return {partition: min(stop, within_bytes.get(partition, stop)) for partition, stop in limited.items()}

    def _limit_bytes(self, limit: int, start: Offsets, end: Offsets) -> dict[TopicPartition, int]:
        """The end of each partition with a backlog such that the batch has about `limit` bytes."""
        ranges = {}
        sizes = {}
        for partition, wanted in end.items():
            with self._logs.use(partition) as log:
                if log is not None:
                    committed = end_offset(log, self._options.consumer.isolation_level)
                    first, stop = max(start[partition], log.log_start_offset), min(wanted, committed)
                    if first < stop:
                        ranges[partition] = first, stop
                        sizes[partition] = max(1, _size(log, first, stop))
        limited = {}
        for partition, share in limit_bytes(limit, sizes).items():
            with self._logs.use(partition) as log:
                if log is not None:
                    boundary = partial(_first_boundary, log, ranges[partition][0], share)
                    limited[partition] = end_within_bytes(share, *ranges[partition], sizes[partition], boundary)
        return limited

    def _range(
        self, partition: TopicPartition, start: int | None, stop: int, batch_end: StreamOffset
    ) -> PartitionRange | None:
        """The part that is left of [start, stop), start None for a new partition; None where nothing is."""
        if start is not None and start > stop:
            self._lost(partition, start, f"the log ended at offset {stop}, below offset {start}, read already")
            return None
        with self._logs.use(partition) as log:
            if log is None:
                self._lost(partition, stop, f"offsets {start or 0} to {stop} are gone: the partition no longer exists")
                return None
            expected = batch_end.topic_ids.get(partition)
            if expected is not None:
                require_same_topic(partition, expected, topic_id_of(log), stream=True)
            require_same_incarnation(
                partition, batch_end.incarnation_ids.get(partition), log.incarnation_id, stream=True
            )
            first = log.log_start_offset
            if first > (start or 0):
                self._lost_to_retention(partition, start, first)
            end = await_end_offset(log, stop, self._options.consumer.isolation_level)
            if end < stop <= log.high_watermark:
                raise KreplogError(
                    f"{partition}: the batch ends at offset {stop}, past the oldest open transaction, at {end}: it was "
                    "planned without read_committed; start the query again once the transaction has ended, or without "
                    "isolationLevel",
                    partition=str(partition),
                    offset=end,
                )
            epoch = batch_end.leader_epochs.get(partition)
            if epoch is not None:
                end = min(end, end_of_shared_log(log.leader_epochs, epoch, stop))
            if end < stop:
                self._lost(partition, end, f"offsets {end} to {stop}, committed when the batch began, no longer exist")
            return PartitionRange.of(log, partition, max(first, start or 0), min(end, stop), self._options)

    def _lost_to_retention(self, partition: TopicPartition, offset: int | None, first: int) -> None:
        new = "" if offset is not None else ", of a partition that is new to this query,"
        loss = (
            f"offsets {offset or 0} to {first}{new} were deleted before they were read; the log now starts at {first}"
        )
        self._lost(partition, offset or 0, loss)

    def _lost(self, partition: TopicPartition, offset: int, loss: str) -> None:
        """Report it once: where the query goes on, the next batch finds it again."""
        if (str(partition), loss) in self._reported:
            return
        report_data_loss(
            partition,
            loss,
            offset,
            fail=self._options.fail_on_data_loss,
            stream=True,
            path=None if self._options.bootstrap is not None else partition_path(self._options, partition),
        )
        self._reported.add((str(partition), loss))


def _epochs(start: StreamOffset, end: Offsets, states: States) -> dict[TopicPartition, int]:
    """The leader epoch before each end; that of the start where the position stays, or the partition has vanished."""
    epochs = {
        partition: epoch
        for partition, epoch in start.leader_epochs.items()
        if end.get(partition, start.offsets[partition]) == start.offsets[partition]
    }
    for partition, offset in end.items():
        epoch = epoch_before(states[partition].leader_epochs, offset)
        if epoch is not None:
            epochs[partition] = epoch
    return epochs


def _size(log: RangedLog, start: int, stop: int) -> int:
    """Bytes of [start, stop), 0 where retention deletes `start` at this moment."""
    try:
        return sum(piece.bytes for piece in log.offset_ranges(start, stop, 1 << 62))
    except OffsetOutOfRangeError:
        return 0


def _first_boundary(log: RangedLog, start: int, size: int, stop: int) -> int:
    """The first batch boundary after `start`, about `size` bytes from it, at most `stop`, as where retention
    deletes `start` at this moment."""
    try:
        return log.offset_ranges(start, stop, size)[0].stop
    except OffsetOutOfRangeError:
        return stop
