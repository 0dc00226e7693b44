"""LmdbReader: applies the committed records of one partition to an LmdbStore, from where it stands to the end of now.

As TableReader does for a table in memory, with two differences. The place is in the file, and other processes may move
it: what has been read counts if the place is still where reading began. And a table may have been closed for long,
while compaction has removed tombstones of keys that the file has. Compaction raises the generation of a log; what it
has removed beyond the place shows as offsets that no batch has. Then the partition is read again.
"""

from __future__ import annotations

import logging
import os
import time

from kreplog._native.following import END, FollowIterator
from kreplog._native.key_table import KeyTable
from kreplog._native.reader import Records
from kreplog._native.table_reader import TableReader, crc_in_epoch
from kreplog._native.waiting import Outcome
from kreplog.errors import CorruptBatchError, LogTruncatedError, OffsetOutOfRangeError
from kreplog.log import Log
from kreplog.topic.lmdb_layout import EVERYTHING, Place
from kreplog.topic.lmdb_store import LmdbStore
from kreplog.topic.removed_offsets import has_removed_offsets

PIECE_BYTES = 8 << 20
"""One transaction applies records of so many bytes, and one more; each counts RECORD_BYTES beside key and value."""
RECORD_BYTES = 100

_logger = logging.getLogger("kreplog")


class LmdbReader:
    """For one thread at a time."""

    def __init__(self, store: LmdbStore, log: Log, partition: int) -> None:
        self._store = store
        self._log = log
        self._partition = partition
        self._incarnation = int(log.incarnation_id or "0", 16)
        self._follow: FollowIterator | None = None
        self._follow_offset = -1  # what comes next from `_follow`, of which all was taken if `_at_end`
        self._at_end = False
        self._compared = False  # whether the place was that of this log when this process first looked
        self.next_offset = 0

    def advance(self) -> None:
        """Apply what is committed now. Raises as TableReader.advance, and StorageError of the file."""
        self._store.find_replacement()
        while not self._step():
            pass

    def _step(self) -> bool:
        """Whether all that is committed has been applied."""
        place = before = self._store.place(self._partition)
        generation = self._log.generation
        log_start = self._log.log_start_offset
        if place is None:
            place = Place(log_start, log_start, -1, 0, generation, self._incarnation, _now_ms(), 0)
            self._compared = True
        elif place.remove_below:
            self._store.remove_due(self._partition)
            return False
        self.next_offset = place.next_offset
        try:
            if not self._is_of_this_log(place, generation):
                return self._read_again(place, generation, "the file is of another log")
            if log_start > place.log_start_offset:
                self._forget(place, log_start)
                return False
            if (
                place == before
                and generation == place.generation
                and place.next_offset >= self._log.last_stable_offset
                and not place.loading_since_ms
            ):
                self._log.fetch(place.next_offset, 0)  # raises where the partition was deleted
                return True
            return self._apply_piece(before, place, generation)
        except LogTruncatedError:
            return self._read_again(place, generation, "records were truncated that had been applied")
        except OffsetOutOfRangeError:
            self._follow = None
            if self._log.log_start_offset <= place.next_offset:
                raise
            return False

    def _is_of_this_log(self, place: Place, generation: int) -> bool:
        """Raises LogTruncatedError."""
        if place.incarnation != self._incarnation:
            return False
        if self._compared and generation == place.generation:
            return True
        if self._follow is not None and self._at_end and self._follow_offset == place.next_offset:
            self._follow.go_on(Outcome.REACHED)  # knows what was truncated
        elif place.next_offset > place.log_start_offset and not self._has_last_batch(place):
            return False
        if not self._compared and not os.path.exists(os.path.join(self._log.path, "kreplog.state")):
            generation = -1  # where nothing notes a compaction
        if generation != place.generation and self._may_lack_tombstones(place):
            return False
        self._compared = True
        return True

    def _has_last_batch(self, place: Place) -> bool:
        if self._log.log_start_offset >= place.next_offset:
            return True  # all that was applied has been deleted
        reader = TableReader(KeyTable(), self._log, self._partition)
        return reader.resume(place.log_start_offset, place.next_offset, place.base_offset, place.crc)

    def _may_lack_tombstones(self, place: Place) -> bool:
        """Whether compaction may have removed, beyond the place, a tombstone of a key that the file has.

        A first load has none of before it began: of a key that it had read by then, a tombstone that came later stays
        for delete_retention_ms."""
        if place.loading_since_ms:
            passed_ms = _now_ms() - place.loading_since_ms
            if 0 <= passed_ms < self._log.config.delete_retention_ms:
                return False
        return has_removed_offsets(self._log, place.next_offset)

    def _read_again(self, place: Place, generation: int, reason: str) -> bool:
        _logger.info("%s: read again into the table, %s", self._log.topic_partition, reason)
        self._follow = None
        self._compared = True
        start = self._log.log_start_offset
        after = Place(start, start, -1, 0, generation, self._incarnation, _now_ms(), EVERYTHING)
        self._store.apply(self._partition, place, {}, after)
        return False

    def _forget(self, place: Place, log_start: int) -> None:
        """Have the entries below the log start offset removed."""
        after = place._replace(
            log_start_offset=log_start, next_offset=max(place.next_offset, log_start), remove_below=log_start
        )
        self._store.apply(self._partition, place, {}, after)

    def _apply_piece(self, before: Place | None, place: Place, generation: int) -> bool:
        records: dict[bytes, tuple[int, int, bytes | None]] = {}
        next_offset = self._read_piece(place.next_offset, records)
        base, crc = place.base_offset, place.crc
        if next_offset > place.next_offset:
            base, crc = self._batch_before(next_offset)
        complete = next_offset >= self._log.last_stable_offset
        if self._log.generation != generation:  # what was read may have been cut or compacted meanwhile
            self._follow = None
            return False
        since_ms = 0 if complete else place.loading_since_ms
        after = Place(place.log_start_offset, next_offset, base, crc, generation, self._incarnation, since_ms, 0)
        if after != before and not self._store.apply(self._partition, before, records, after):
            return False
        self.next_offset = next_offset
        return complete

    def _read_piece(self, start: int, records: dict[bytes, tuple[int, int, bytes | None]]) -> int:
        """Where it ends. Raises as Log.follow."""
        follow = self._follow
        if follow is None or self._follow_offset != start:
            items = Records(self._log, start, None, False, "read_committed")
            follow = self._follow = FollowIterator(self._log, items, None, True)
        elif self._at_end:
            follow.go_on(Outcome.REACHED)
        self._at_end = False
        size, next_offset = 0, start
        try:
            for offset, timestamp_ms, key, value, _ in iter(follow.take, END):
                next_offset = offset + 1
                size += RECORD_BYTES
                if key is not None:
                    records[key] = (offset, timestamp_ms, value)
                    size += len(key) + len(value or b"")
                if size > PIECE_BYTES:
                    break
            else:
                self._at_end = True
                next_offset = follow.place()
        except CorruptBatchError:
            self._follow = None
            if next_offset == start:
                raise
        self._follow_offset = next_offset
        return next_offset

    def _batch_before(self, offset: int) -> tuple[int, int]:
        """Base offset and `crc` of the batch that ends there or later; (-1, 0) where compaction has removed it."""
        try:
            rows = next(self._log.batches(offset - 1, offset, max_bytes=0), None)
        except (CorruptBatchError, OffsetOutOfRangeError):
            return -1, 0
        if rows is None or not len(rows):
            return -1, 0
        row = rows[0]
        return int(row["base_offset"]), crc_in_epoch(int(row["crc"]), int(row["leader_epoch"]))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
