"""Table: the newest value of each key of a topic, as a mapping that follows the log.

The records lie in memory as the log has them (`_native/key_table`), or in a file (`lmdb_store`); keys and values become
objects when they are read.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from kreplog._native import waiting
from kreplog._native.key_table import KeyTable
from kreplog._native.table_reader import TableReader
from kreplog._native.waiting import HighWatermarkWait, Outcome, checked_offset, checked_timeout, new_wait
from kreplog.closing import Closing
from kreplog.codecs import CodecLike, ObjectCodec, codec_of
from kreplog.errors import (
    ArgumentTypeError,
    CorruptBatchError,
    CorruptCheckpointError,
    LogClosedError,
    OffsetOutOfRangeError,
    UsageError,
)
from kreplog.log import Log
from kreplog.topic.decoding import Decoding, OnError, check_on_error
from kreplog.topic.merge import TopicRecord
from kreplog.topic.removed_offsets import has_removed_offsets
from kreplog.topic.single_log import SingleLog
from kreplog.topic.table_follower import TableFollower
from kreplog.topic.table_snapshot import Applied, read_snapshot, write_snapshot

if TYPE_CHECKING:
    from kreplog.topic import Topic
    from kreplog.topic.lmdb_reader import LmdbReader
    from kreplog.topic.lmdb_store import LmdbStore

At: TypeAlias = Mapping[int, int] | datetime | int | None
"""The state to show: offsets by partition, exclusive; a time, as datetime or in ms since 1970; None for that of now."""

_logger = logging.getLogger("kreplog")
_MISSING = object()
_tables: weakref.WeakValueDictionary[int, Table] = weakref.WeakValueDictionary()  # a mapping has no hash


class TableEntry(NamedTuple):
    """The newest record of a key: where it is, its timestamp in ms since 1970, and its value."""

    partition: int
    offset: int
    timestamp_ms: int
    value: Any


class Table(Closing, Mapping[Any, Any]):
    """The newest value of each key of a topic, made by `Topic.table`, or of a log, by `Table.of`; a context manager.
    Safe for several threads.

    A record with a null value, a tombstone, removes its key; a record without a key does not count; nor does one of a
    transaction that is open or was aborted. The table changes by `refresh`, `wait_for` and its thread alone, a batch
    at a time. After `refresh` it has what the log has: keys whose newest record was deleted by retention are gone, and
    what was truncated is undone, for which the partition is read again and its keys are missing meanwhile.
    A key that is in several partitions, as after `add_partitions`, has the value with the latest timestamp.
    """

    def __init__(
        self,
        topic: Topic | SingleLog,
        key_codec: ObjectCodec | None,
        value_codec: ObjectCodec | None,
        at: At,
        snapshot: str | os.PathLike[str] | None,
        path: str | os.PathLike[str] | None,
        follow: bool,
        on_error: OnError,
    ) -> None:
        check_on_error(on_error)
        self._topic = topic
        self._decoding = Decoding(topic.name, key_codec, value_codec)
        self._on_error = on_error
        self._mutex = threading.RLock()  # a file that is found damaged while it is read for is loaded again inside
        self._readers: dict[int, TableReader | LmdbReader] = {}
        self._generations: dict[int, int] = {}  # of the logs, when a table in memory last read them
        self._limits = None if at is None else _limits(topic, at)
        self._closed = False
        self._snapshot = None if snapshot is None else _path(snapshot, "snapshot")
        if path is not None and (at is not None or snapshot is not None):
            raise UsageError(
                "a table in a file follows, and needs no snapshot: leave out `path`, or `at` and `snapshot`"
            )
        self._memory = KeyTable()
        self._entries: KeyTable | LmdbStore = self._memory if path is None else self._open_store(_path(path, "path"))
        if self._snapshot is not None:
            if at is not None:
                raise UsageError("a snapshot is of a table that follows: leave out `at`, or `snapshot`")
            self._load(self._snapshot)
        self._waits: dict[int, HighWatermarkWait] = {}
        self._follower: TableFollower | None = None
        if follow and at is not None:
            raise UsageError("the table as of a moment does not follow: leave out `at`, or `follow`")
        try:
            if not isinstance(self._entries, KeyTable):
                self._entries.remove_partitions_but(set(topic._folder.numbers))
            self._follow_to_now()
        except BaseException:
            self._release()
            raise
        _tables[id(self)] = self
        if follow:
            self._follower = TableFollower(self)

    @classmethod
    def of(
        cls,
        log: Log,
        *,
        key_codec: CodecLike = None,
        value_codec: CodecLike = None,
        at: At = None,
        snapshot: str | os.PathLike[str] | None = None,
        path: str | os.PathLike[str] | None = None,
        follow: bool = False,
        on_error: OnError = "raise",
    ) -> Self:
        """The table of a log by itself, which the caller closes after it; `wait_for` takes its offsets.

        key_codec, value_codec: as of Topic.open. The others as of Topic.table, which also says what it raises."""
        if not isinstance(log, Log):
            raise ArgumentTypeError(f"log is a kreplog.Log, not {type(log).__name__}")
        codecs = codec_of(key_codec, "key", log.path), codec_of(value_codec, "value", log.path)
        return cls(SingleLog(log), *codecs, at, snapshot, path, follow, on_error)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._entries)} keys"
        return f"<kreplog.Table of {self._topic.path} {state}>"

    @property
    def closed(self) -> bool:
        return self._closed or self._topic.closed

    @property
    def offsets(self) -> dict[int, int]:
        """The offset below which all records have been applied, by partition."""
        return {number: reader.next_offset for number, reader in list(self._readers.items())}

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and values; the table takes about 60 to 85 more for each key. In a file: of their pages."""
        return self._entries.nbytes

    # The mapping

    def __len__(self) -> int:
        self._check_open()
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        self._check_open()
        data = self._bytes_of(key)
        return data is not None and self._entries.get_value(data) is not None

    def __getitem__(self, key: Any) -> Any:
        """The newest value of a key. Raises KeyError, RecordDecodeError, RecordEncodeError, ArgumentTypeError."""
        value = self.get(key, _MISSING)
        if value is _MISSING:
            raise KeyError(key)
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        """The newest value of a key, or `default`; raises as [] does otherwise."""
        if self._decoding.value_codec is not None:
            entry = self.entry(key)
            return default if entry is None else entry.value
        self._check_open()
        data = self._bytes_of(key)
        value = None if data is None else self._entries.get_value(data)
        return default if value is None else value

    def entry(self, key: Any) -> TableEntry | None:
        """The newest record of a key, None for none; raises as [] does otherwise."""
        self._check_open()
        data = self._bytes_of(key)
        found = None if data is None else self._entries.get(data)
        if found is None:
            return None
        record = TopicRecord(*found, ())
        return TableEntry(*found[:3], self._decoding.field(record, "value"))

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self._pairs(b"", False))

    def items(self) -> ItemsView[Any, Any]:
        """The keys and values; each iteration is over those of one moment. on_error of `Topic.table` applies."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """As `items`, the values."""
        return _Values(self)

    def prefix(self, prefix: bytes | str) -> Iterator[tuple[Any, Any]]:
        """Iterate over the keys that begin so and their values, of one moment, in the order of the stored keys.

        prefix: bytes of the key as it is stored, or a str of its UTF-8. Looks at every key. on_error of `Topic.table`
        applies. Raises ArgumentTypeError."""
        if not isinstance(prefix, (bytes, str)):
            raise ArgumentTypeError(f"prefix is bytes or a str, not {type(prefix).__name__}")
        return self._pairs(prefix.encode() if isinstance(prefix, str) else prefix, True)

    def _pairs(self, prefix: bytes, in_order: bool) -> Iterator[tuple[Any, Any]]:
        self._check_open()
        found = self._entries.records(prefix)
        if in_order and isinstance(found, list):
            found.sort(key=lambda record: record[3])
        records = (TopicRecord(*record, ()) for record in found)
        return ((record.key, record.value) for record in self._decoding.decoded(records, self._on_error))

    def _bytes_of(self, key: Any) -> Any:
        codec = self._decoding.key_codec
        return key if codec is None else codec.encoded_to_find(key, "key")

    # Following

    def refresh(self) -> None:
        """Apply what has been committed since; partitions that were added, too. Does nothing with `at`.

        Raises CorruptBatchError, PartitionDeletedError, StorageError, ResourceExhaustedError (memory), LogClosedError:
        the batches before have been applied, and the next call goes on there."""
        self._check_open()
        if self._limits is None:
            self._follow_to_now()

    def wait_for(self, position: tuple[int, int] | int, timeout: float | None = None) -> bool:
        """Wait until the record at `position` has been applied, (partition, offset) as `Topic.append` returns it; of
        the table of a Log, the offset.

        False if it has not been after `timeout` seconds; a writer is not needed meanwhile. Raises UsageError (no such
        partition; the table is one of `at`), and as `refresh` and Log.wait do."""
        self._check_open()
        if self._limits is not None:
            raise UsageError(f"the table of {self._topic.path} as of a moment does not follow: open one without `at`")
        if isinstance(self._topic, SingleLog) and isinstance(position, int):
            position = self._topic.number, position
        try:
            number, offset = position  # type: ignore[misc]  # an int of a topic's table is refused below
        except (TypeError, ValueError):
            raise ArgumentTypeError(f"position is a pair of partition and offset, not {position!r}") from None
        log = self._topic._folder.log(number)
        checked_offset(log, offset)
        checked_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._advance(number, log).next_offset > offset:
                return True
            remaining_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not waiting.wait(log, offset, remaining_s, True, stable=True):
                return False

    def _follow_to_now(self) -> None:
        for number in self._topic._folder.numbers:
            self._advance(number, self._topic._folder.log(number))

    def _advance(self, number: int, log: Log) -> TableReader | LmdbReader:
        """Apply what is committed in a partition. From its start, where the log was compacted since the last time and
        may lack a tombstone beyond the place that this table has reached."""
        with self._mutex:
            reader = self._reader(number, log)
            if not isinstance(reader, TableReader) or self._limits is not None:
                reader.advance()
                return reader
            generation = log.generation
            before = self._generations.get(number, generation)
            if generation != before and _may_lack_tombstones(log, reader.next_offset):
                reader = self._read_again(number, log)
            reader.advance()
            if log.generation != generation and number in self._generations:  # in the midst of what was read
                generation = log.generation
                reader = self._read_again(number, log)
                reader.advance()
            self._generations[number] = generation
            return reader

    def _read_again(self, number: int, log: Log) -> TableReader | LmdbReader:
        _logger.info("%s-%d: compacted: it is read again", self._topic.path, number)
        self._memory.drop(number)
        del self._readers[number]
        return self._reader(number, log)

    def _poll_and_update(self) -> list[HighWatermarkWait] | None:
        """For the follower: apply what is committed; return the wait of each partition, whose wake-up is registered.
        None where there is more by now."""
        waits: list[HighWatermarkWait] | None = []
        for number in self._topic._folder.numbers:
            log = self._topic._folder.log(number)
            generation = log.generation
            reader = self._advance(number, log)
            wait = self._waits.get(number)
            if wait is None:
                wait = self._waits[number] = new_wait(log, True, stable=True)
            if wait.poll(reader.next_offset, generation) != Outcome.WAITING:
                waits = None
            elif waits is not None:
                waits.append(wait)
        return waits

    def _reader(self, number: int, log: Log) -> TableReader | LmdbReader:
        with self._mutex:
            reader = self._readers.get(number)
            if reader is None:
                if isinstance(self._entries, KeyTable):
                    limit = None if self._limits is None else self._limits.get(number, 0)
                    reader = TableReader(self._memory, log, number, limit)
                else:
                    from kreplog.topic.lmdb_reader import LmdbReader

                    reader = LmdbReader(self._entries, log, number)
                self._readers[number] = reader
            return reader

    def _open_store(self, path: str) -> LmdbStore:
        try:
            from kreplog.topic.lmdb_store import LmdbStore
        except ImportError as error:
            raise UsageError(
                "a table in a file needs lmdb, which is not installed: pip install 'kreplog[tables]'"
            ) from error
        topic_id = self._topic_id()
        if isinstance(self._topic, SingleLog):
            topic_id = f"{topic_id}-{self._topic.number}"  # whose file has no other partition
        return LmdbStore(path, self._topic.path, topic_id, self._follow_to_now)

    # The snapshot

    def save(self) -> None:
        """Replace the snapshot with the table as it is, durably. Reading goes on; `refresh` and `wait_for` wait.

        Raises UsageError (opened without `snapshot`, or the topic has no id), StorageError (disk full; another process
        writes the same file): the snapshot before is there."""
        self._check_open()
        if self._snapshot is None:
            raise UsageError(f"the table of {self._topic.path} has no snapshot: open it with snapshot=PATH")
        with self._mutex:
            applied = {
                number: Applied(reader.log_start, reader.next_offset, reader.base_offset, reader.crc)
                for number, reader in self._readers.items()
                if isinstance(reader, TableReader)
            }
            write_snapshot(self._snapshot, self._topic_id(), applied, self._memory)

    def _load(self, path: str) -> None:
        """Load the snapshot; without what is in doubt, which is read again."""
        try:
            applied = read_snapshot(path, self._topic_id(), self._memory)
        except CorruptCheckpointError as error:
            _logger.warning("%s", error)
            return
        numbers = set(self._topic._folder.numbers)
        for number, place in applied.items():
            if number in numbers and self._resume(number, place):
                continue
            if place.base_offset >= 0:
                _logger.info("%s-%d: not as in %s: it is read again", self._topic.path, number, path)
            self._memory.drop(number)
            self._generations.pop(number, None)

    def _resume(self, number: int, place: Applied) -> bool:
        """Go on in a partition where the snapshot ends. False: from its start, since the log is another there, or
        compaction may have removed a tombstone after that."""
        log = self._topic._folder.log(number)
        reader = self._reader(number, log)
        self._generations[number] = log.generation
        if _may_lack_tombstones(log, place.next_offset):
            return False
        return isinstance(reader, TableReader) and reader.resume(*place)

    def _topic_id(self) -> str:
        self._topic._folder.refresh()
        topic_id = self._topic._folder.topic_id
        if topic_id is None:
            raise UsageError(f"{self._topic.path} has no topic id, by which a file is known to be of this topic")
        return topic_id

    # The end

    def close(self) -> None:
        """Let go of the memory, or close the file. Closing twice does nothing."""
        self._closed = True
        if self._follower is not None:
            self._follower.join()
        self._release()

    def _release(self) -> None:
        if not isinstance(self._entries, KeyTable):
            self._entries.close()
        self._readers = {}
        self._entries = self._memory = KeyTable()

    def _check_open(self) -> None:
        if self._closed or self._topic._folder.closed:
            raise LogClosedError(f"the table of {self._topic.path} is closed", path=self._topic.path)
        if self._follower is not None and self._follower.failure is not None:
            raise self._follower.failure


class _Items(ItemsView[Any, Any]):
    _mapping: Table

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._mapping._pairs(b"", False)


class _Values(ValuesView[Any]):
    _mapping: Table

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._mapping._pairs(b"", False))


def _path(given: str | os.PathLike[str], argument: str) -> str:
    try:
        return os.path.abspath(os.fsdecode(given))
    except TypeError:
        raise ArgumentTypeError(f"{argument} is a str or os.PathLike, not {type(given).__name__}") from None
    except ValueError as error:
        raise UsageError(f"{argument} {given!r} cannot be used: {error}") from None


def _limits(topic: Topic | SingleLog, at: Mapping[int, int] | datetime | int) -> dict[int, int]:
    """The end of each partition. Raises ArgumentTypeError, OffsetOutOfRangeError."""
    offsets = topic.offsets()
    if isinstance(at, Mapping):
        for number, end in at.items():
            if number not in offsets:
                raise UsageError(f"{topic.path} has no partition {number!r}", path=topic.path)
            if isinstance(end, bool) or not isinstance(end, int):
                raise ArgumentTypeError(f"at has offsets by partition, of {number} an int, not {type(end).__name__}")
            if not offsets[number].start <= end <= offsets[number].stop:
                raise OffsetOutOfRangeError(
                    f"{topic.name}-{number}: the state at offset {end} cannot be had, the log holds "
                    f"{offsets[number].start} to {offsets[number].stop}",
                    partition=f"{topic.name}-{number}",
                    offset=end,
                )
        return dict(at)
    if isinstance(at, datetime):
        try:
            at = int(at.timestamp() * 1000)
        except (OverflowError, ValueError) as error:  # where it is in local time, without a zone
            raise UsageError(f"at {at!r} cannot be converted to ms since 1970: {error}; give it a time zone") from None
    if isinstance(at, bool) or not isinstance(at, int):
        raise ArgumentTypeError(f"at is offsets by partition, a datetime, or ms since 1970, not {type(at).__name__}")
    ends: dict[int, int] = {}
    for number, committed in offsets.items():
        later = topic._folder.log(number).offset_for_timestamp(at + 1)
        ends[number] = committed.stop if later is None else later
    return ends


def _after_fork_in_child() -> None:
    """A lock may be held by a thread that the child does not have."""
    for table in list(_tables.values()):
        table._closed = True


os.register_at_fork(after_in_child=_after_fork_in_child)


def _may_lack_tombstones(log: Log, place: int) -> bool:
    """Whether compaction may have removed a tombstone beyond a place. Not where that cannot be read: whoever reads on
    from there gets the error, and what comes before it."""
    try:
        return has_removed_offsets(log, place)
    except (CorruptBatchError, OffsetOutOfRangeError):
        return False
