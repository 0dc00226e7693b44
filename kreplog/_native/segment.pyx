"""Segment: one `.log` file and its two indexes; append, find, cut, delete. `transaction_index` has a third.

A segment handles bytes and offsets, not their visibility to readers. An index entry is used only after a check of the
batch that it points at.

Why no reader is hit by SIGBUS, whatever the writer does:

- A writer truncates a file in place only while no other process can have mapped it: the active segment, never sealed
  before. Any other is replaced by a copy of the remaining bytes, and readers keep the old inode mapped (`exposed`).
- A reader maps a file only once it is final (`is_final`): it opens the file, then looks whether the writer has
  published a later segment as the active one, in the generation in which it listed this one. Sealing trims the file
  before that is published, so the size of the same descriptor afterwards never changes again. Until then it reads.
- Every access to a mapping is bounded by the size that was mapped.

If another program shortens a file in place (rsync --inplace, copytruncate), the next seek raises an error; a process
that accesses the missing bytes before that is killed by the kernel.

A process may read more segments than it may have files open: the files of segments that need none just then are closed
once there are many, or where there is no descriptor left for another. A writer's is one where everything is synced, a
fsync's error being reported to the descriptor that wrote; a reader's is one that is mapped.
"""

cimport cython
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t
from libc.string cimport memcpy
from posix.fcntl cimport O_CREAT, O_EXCL, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY

from kreplog._native.batch cimport (
    BAD_BASE_OFFSET, BAD_CRC, BATCH_OK, BATCH_SHORT, HEADER_SIZE, BatchHeader, batch_size, check_crc, next_offset_of,
    next_sound, raise_corrupt, read_header,
)
from kreplog._native.files cimport FileHandle, HeapBuffer, Mapping, allocate, map_file, map_tail, open_file
from kreplog._native.index cimport OffsetIndex, TimeIndex
from kreplog._native.state cimport Position

import logging
import os
import resource
import sys
from weakref import ref

from kreplog._native.files import error_of, on_exhaustion, status_of
from kreplog.errors import CorruptBatchError, ResourceExhaustedError, StorageError

_logger = logging.getLogger("kreplog")

cdef enum:
    COPY_PIECE = 1 << 20
    LEAST_AHEAD = 16 << 10  # how far ahead of the end blocks are allocated at first: there may be many small logs
    MOST_AHEAD = 4 << 20  # and at most; between the two, as much as there is already
    SMALL = 2048  # up to here a copy into the mapped tail is cheaper than a system call
    RESYNC_WINDOW = 16 << 20  # how far ahead a sound batch is looked for in a segment that cannot be mapped


cdef set _open = set()  # references to segments, from when they opened their file; each change of it is atomic
cdef Py_ssize_t _most_open = -1, _close_at = 0


def keep_open(Py_ssize_t count):
    """How many segments of this process may have their files open before those that need none are closed; negative:
    half of the descriptors that it may have."""
    global _most_open, _close_at
    _most_open = count
    _close_at = 0


def close_idle_files():
    """Close the files of segments that do not need them at the moment; return how many."""
    cdef Segment segment
    cdef Py_ssize_t closed = 0, left = 0
    for reference in _open.copy():  # other threads open and close some meanwhile
        segment = reference()
        if segment is None or segment.file is None:
            _open.discard(reference)
        elif segment.synced if segment.writable else segment.mapping is not None:
            segment.file = None
            _open.discard(reference)
            closed += 1
        else:
            left += 1
    _look_at(left)
    return closed


on_exhaustion(close_idle_files)


def exceeds_open_limit():
    """Whether more segments than `keep_open` allows have files open that may not be closed before an fsync."""
    if len(_open) <= _most():
        return False
    close_idle_files()
    return len(_open) > _most()


cdef Py_ssize_t _most() except -1:
    """How many segments may have their files open."""
    cdef Py_ssize_t most = _most_open if _most_open >= 0 else resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
    return most if most > 0 else sys.maxsize


cdef int _look_at(Py_ssize_t left) except -1:
    """When files are closed next: not for every one that is opened, where all are in use."""
    global _close_at
    _close_at = max(_most(), left + max(16, left // 16))
    return 0


cdef Segment new_segment(
    str directory, str partition, int64_t base_offset, bint writable, int64_t map_size, Py_ssize_t index_interval
):
    """An existing segment, nothing of it opened yet."""
    cdef Segment segment = Segment.__new__(Segment)
    cdef str stem = f"{directory}/{base_offset:020d}"
    segment.base_offset = base_offset
    segment.partition = partition
    segment.path = stem + ".log"
    segment.offsets = OffsetIndex(stem + ".index")
    segment.times = TimeIndex(stem + ".timeindex")
    segment.writable = writable
    segment.exposed = True
    segment.sealed = True
    segment.mappable = True
    segment.size = -1
    segment.map_size = map_size
    segment.index_interval = index_interval
    segment.first_timestamp = -1
    segment.max_timestamp = -1
    segment.max_timestamp_offset = base_offset
    segment.aborted_count = -1
    segment.synced = True
    return segment


cdef int remove(str path) except -1:
    """Delete the file, if it is there. Raises StorageError."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise error_of("cannot delete", path, error) from error
    return 0


cdef Segment create_segment(
    str directory, str partition, int64_t base_offset, int64_t map_size, Py_ssize_t index_interval
):
    """A new, empty segment with its three files, none of them left open.

    Raises StorageError; of a ResourceExhaustedError no file is left."""
    cdef Segment segment = new_segment(directory, partition, base_offset, True, map_size, index_interval)
    open_file(segment.path, O_WRONLY | O_CREAT | O_EXCL)
    try:
        segment.remove_aborted()
        for path in (segment.offsets.path, segment.times.path):  # what an interrupted deletion left may be mapped
            remove(path)
            open_file(path, O_WRONLY | O_CREAT | O_EXCL)
    except ResourceExhaustedError:
        segment.delete()
        raise
    segment.exposed = False
    segment.size = 0
    segment.sealed = False
    segment.indexed = True
    segment.timestamps_known = True
    segment.synced = False
    return segment


@cython.final
cdef class Segment:

    cdef FileHandle open(self):
        """Raises FileNotFoundError, also where the file belongs to a segment that has replaced this one: look again."""
        cdef FileHandle file = self.file
        if file is None:
            if len(_open) >= _close_at:
                close_idle_files()
            file = open_file(self.path, O_RDWR if self.writable else O_RDONLY)
            if self.state is not None:  # a reader's
                self.state.require_at_path(self.partition)
            if self.replaced:  # looked at once it is open: it may have been replaced meanwhile
                raise FileNotFoundError(f"{self.path} has been compacted")
            self.file = file
            _open.add(ref(self, _open.discard))
        return file  # which another thread may have taken from the segment as idle

    cdef int64_t byte_size(self) except -1:
        """Bytes of whole batches; the file's size until recovery or an append has said otherwise."""
        if self.size < 0:
            if self.file is not None:
                self.size = self.file.size()
            else:
                self.size = status_of(self.path).st_size
        return self.size

    cdef Mapping mapped(self):
        """The file mapped, whose first `size` bytes may be touched; None where a reader has to read it instead."""
        cdef int64_t size
        cdef FileHandle file
        if self.writable:
            size = self.byte_size()
            if self.mapping is None or self.mapping.size < size:
                self.mapping = map_file(self.open(), max(size, self.map_size, <int64_t> 1))
        elif self.mapping is None and self.is_final():
            file = self.open()
            size = file.size()
            self.mapping = map_file(file, max(size, <int64_t> 1))
            self.size = size
        return self.mapping

    cdef bint is_final(self) except -1:
        """Whether a reader's file, which this opens, is never changed or cut again."""
        cdef Position position
        if not (self.sealed and self.mappable) or self.state is None:
            return False
        self.open()  # before the look: what is at this path later may be another file
        return (
            self.state.read(&position) and position.generation == self.generation and position.generation & 1 == 0
            and position.active_base > self.base_offset
        )

    cdef int check_whole(self) except -1:
        """Raise StorageError where another program has shortened the file that is mapped."""
        cdef int64_t size
        if self.mapping is not None and (self.writable or self.file is not None):
            size = self.open().size()
            if size < self.size:
                raise StorageError(
                    f"{self.partition}: another program has cut {self.path} to {size} bytes, of which kreplog wrote "
                    f"{self.size}: put back a copy, or open the log for writing, which goes on with what is left",
                    partition=self.partition, path=self.path,
                )
        return 0

    cdef int header_at(self, int64_t position, BatchHeader* out) except 1:
        """The header at `position`: BATCH_OK when the whole batch lies inside the segment, else a negative code."""
        cdef uint8_t raw[HEADER_SIZE]
        cdef int64_t left
        cdef int code
        if (self.mapping is not None or self.sealed) and self.mapped() is not None:
            left = self.size - position
            code = read_header(self.mapping.data + position, left, out)
        else:
            left = self.byte_size() - position
            code = read_header(raw, self.open().read_at(raw, HEADER_SIZE, position), out)
        if code == BATCH_OK and batch_size(out) > left:
            code = BATCH_SHORT
        return code

    cdef int note(self, const BatchHeader* h, int64_t position) except -1:
        """Account for a batch now in the file: time range and index entries, as Kafka's LogSegment.append does."""
        if position == 0:
            self.first_timestamp = h.max_timestamp
        if h.max_timestamp > self.max_timestamp:
            self.max_timestamp = h.max_timestamp
            self.max_timestamp_offset = h.base_offset + h.last_offset_delta
        if self.since_index > self.index_interval:
            self.offsets.push(<int> (h.base_offset + h.last_offset_delta - self.base_offset), <int> position)
            self.times.push(self.max_timestamp, <int> (self.max_timestamp_offset - self.base_offset))
            self.since_index = 0
        self.since_index += batch_size(h)
        return 0

    cdef int append(self, const uint8_t* data, Py_ssize_t length) except -1:
        """Write whole, checked batches at the end, after `make_ready`. Raises StorageError; the segment then stands as
        before."""
        cdef BatchHeader h
        cdef Py_ssize_t at = 0
        if length <= SMALL and self.allocated >= 0 and self.size + length <= self.tail.size:
            if self.size + length > self.tail.pages_end:
                self.tail.make_pages(self.file, self.size, self.allocated)
            memcpy(self.tail.data + self.size, data, length)
        else:
            self.open().write_at(data, length, self.size)
        while at < length:
            read_header(data + at, length - at, &h)
            self.note(&h, self.size + at)
            at += batch_size(&h)
        self.size += length
        return 0

    cdef int make_ready(self, Py_ssize_t length) except -1:
        """Have the file open, and room in it for `length` bytes more. Raises StorageError; nothing has changed."""
        cdef bint synced = self.synced
        self.synced = False  # from now on the file stays open
        try:
            self.open()
        except BaseException:
            self.synced = synced
            raise
        if synced and self.tail is not None:
            self.tail.note_sync(self.size)
        if self.size + length > self.allocated >= 0:
            self.make_room(length)
        return 0

    cdef int make_room(self, Py_ssize_t length) except -1:
        """Have blocks for `length` bytes more, and ahead of need, so that writes neither wait nor fail for them.

        Raises StorageError, as when the disk is full.
        """
        cdef int64_t end = self.size + length
        cdef int64_t ahead = min(max(end, <int64_t> LEAST_AHEAD), <int64_t> MOST_AHEAD)
        cdef int64_t wanted = max(min(end + ahead, self.map_size), end)
        cdef FileHandle file = self.open()
        if self.allocated < self.size:
            self.allocated = self.size
        try:
            if not file.allocate(self.allocated, wanted - self.allocated):
                self.allocated = -1
                return 0
        except StorageError:
            wanted = end  # just what is needed, if that much is left
            if not file.allocate(self.allocated, wanted - self.allocated):
                self.allocated = -1
                return 0
        if self.tail is None:
            self.tail = map_tail(file, max(self.map_size, wanted), self.size)
        self.allocated = wanted
        return 0

    cdef int trim(self) except -1:
        """Give back what was allocated past the end. Raises StorageError."""
        if self.allocated > self.size:
            self.open().truncate(self.size)
            self.synced = False
        self.allocated = 0
        self.tail = None
        return 0

    cdef int load_indexes(self) except -1:
        """Read both indexes; rebuild them where they are missing, torn or out of order."""
        cdef str reason = None
        if self.indexed:
            return 0
        self.indexed_size = self.byte_size()
        try:
            self.offsets.load(self.mappable)
            self.times.load(self.mappable)
        except FileNotFoundError as missing:
            reason = f"{os.path.basename(missing.filename)} is missing"
        except ResourceExhaustedError:
            raise
        except StorageError as unreadable:
            reason = str(unreadable)
        if reason is None:
            if not self.sealed and not self.writable:
                self._drop_unsettled()
            for index in (self.offsets, self.times):
                reason = self._fault_of(index)
                if reason is not None:
                    break
        if reason is None:
            self.indexed = True
        else:
            self.rebuild_indexes(reason)
        return 0

    def _drop_unsettled(self):
        """Leave out the last entries that a writer at work has half written, or made for bytes not looked at yet."""
        cdef OffsetIndex offsets = self.offsets
        cdef TimeIndex times = self.times
        cdef Py_ssize_t last = offsets.count - 1
        while last >= 0 and (offsets.position_at(last) >= self.byte_size() or last > 0 and (
            offsets.position_at(last) <= offsets.position_at(last - 1)
            or offsets.offset_at(last) <= offsets.offset_at(last - 1)
        )):
            last -= 1
        offsets.count = last + 1
        while times.count and (last < 0 or times.offset_at(times.count - 1) > offsets.offset_at(last) or (
            times.count > 1 and times.timestamp_at(times.count - 1) <= times.timestamp_at(times.count - 2)
        )):
            times.count -= 1

    def _fault_of(self, index):
        cdef OffsetIndex offsets
        cdef str name = os.path.basename(index.path)
        if (self.sealed or self.writable) and status_of(index.path).st_size % (8 if index is self.offsets else 12):
            return f"{name} is torn"
        if index is self.offsets:
            offsets = self.offsets
            if not offsets.sorted():
                return f"{name} is out of order"
            if offsets.count and offsets.position_at(offsets.count - 1) >= self.byte_size():
                return f"{name} points past the end of the log"
        elif not self.times.sorted():
            return f"{name} is out of order"
        return None

    cdef int rebuild_indexes(self, str reason) except -1:
        """Rebuild both indexes from the log; a writer puts them in their files' place.

        reason: what was wrong, for the warning; None when the log itself has changed.
        """
        cdef BatchHeader h
        cdef int64_t position = 0
        cdef int64_t chain = self.base_offset
        cdef int64_t size = self.byte_size()
        if size and reason is not None:
            _logger.warning("%s: %s in %s; indexes rebuilt from the log", self.partition, reason, self.path)
        self.offsets.clear()
        self.times.clear()
        self.since_index = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = self.base_offset
        self.offsets.saved = self.times.saved = 1 << 60  # nothing is to be written half way
        try:
            while position < size:
                if self.header_at(position, &h) != BATCH_OK or not 0 <= h.base_offset - chain <= INT32_MAX:
                    position = self.resync(position, chain)
                    continue
                self.note(&h, position)
                chain = next_offset_of(&h)
                position += batch_size(&h)
        finally:
            self.offsets.saved = self.times.saved = 0
        if self.sealed and self.max_timestamp >= 0:
            self.times.push(self.max_timestamp, <int> (self.max_timestamp_offset - self.base_offset))
        if self.writable:
            try:
                self.offsets.rewrite()
                self.times.rewrite()
            except (StorageError, OSError) as error:
                _logger.warning("%s: the rebuilt indexes could not be written: %s", self.partition, error)
        self.indexed = True
        self.timestamps_known = True
        return 0

    cdef int64_t position_near(self, int64_t offset) except -1:
        """The position of a batch at or before `offset`, by the index: where a search starts."""
        cdef Py_ssize_t i, fit
        self.load_indexes()
        i = self.offsets.floor_offset(offset - self.base_offset)
        fit = i
        while fit >= 0 and not self.entry_fits(fit):
            fit -= 1
        if fit < i and self.entry_is_wrong(fit, fit + 1):
            self.rebuild_indexes(f"an entry of {os.path.basename(self.offsets.path)} does not fit the log")
            fit = self.offsets.floor_offset(offset - self.base_offset)
        return self.offsets.position_at(fit) if fit >= 0 else 0

    cdef bint entry_fits(self, Py_ssize_t i) except -1:
        """Whether the batch that index entry `i` points at lies where the entry says."""
        cdef BatchHeader h, after
        cdef int64_t position = self.offsets.position_at(i)
        cdef int64_t last = self.base_offset + self.offsets.offset_at(i)
        if self.header_at(position, &h) != BATCH_OK or h.base_offset < self.base_offset:
            return False
        if next_offset_of(&h) == last + 1:
            return True
        return (  # Kafka's followers and its cleaner make one entry for several batches, with the offset of the last
            next_offset_of(&h) <= last and self.header_at(position + batch_size(&h), &after) == BATCH_OK
            and next_offset_of(&h) <= after.base_offset <= last
        )

    cdef bint entry_is_wrong(self, Py_ssize_t fit, Py_ssize_t i) except -1:
        """Whether entry `i` is to blame for not fitting, rather than damage in the log: walk to it from entry `fit`."""
        cdef BatchHeader h
        cdef int64_t target = self.offsets.position_at(i)
        cdef int64_t at = self.offsets.position_at(fit) if fit >= 0 else 0
        cdef int64_t chain = self.base_offset
        while at < target:
            if self.header_at(at, &h) != BATCH_OK:
                return False
            chain = next_offset_of(&h)
            at += batch_size(&h)
        if at > target:
            return True
        return self.header_at(at, &h) == BATCH_OK and h.base_offset == chain and self.crc_holds(at, &h)

    cdef bint crc_holds(self, int64_t position, const BatchHeader* h) except -1:
        cdef HeapBuffer buffer
        if self.mapping is not None:
            return check_crc(self.mapping.data + position, h) == BATCH_OK
        buffer = allocate(batch_size(h))
        return (
            self.open().read_at(buffer.data, buffer.size, position) == buffer.size
            and check_crc(buffer.data, h) == BATCH_OK
        )

    cdef bint is_padding(self, int64_t position) except -1:
        """Whether only zeros follow: blocks allocated ahead, whose trim a loss of power has undone."""
        cdef HeapBuffer buffer = allocate(COPY_PIECE)
        cdef Py_ssize_t n, i
        while True:
            n = self.open().read_at(buffer.data, buffer.size, position)
            for i in range(n):
                if buffer.data[i]:
                    return False
            if n < buffer.size:
                return True
            position += n

    cdef int64_t locate(self, int64_t offset, int64_t dense_from, BatchHeader* out) except -1:
        """Position of the first batch whose last offset is >= `offset`; the segment's size when there is none.

        Damage before it is stepped over. dense_from: from this offset on a gap counts as damage.
        Raises CorruptBatchError when `offset` itself lies in damage.
        """
        cdef int64_t position = self.position_near(offset)
        cdef int64_t size = self.byte_size()
        cdef int64_t chain = self.base_offset if position == 0 else -1
        cdef int64_t damaged, before = -1
        cdef int code
        while position < size:
            code = self.header_at(position, out)
            if code == BATCH_OK and chain >= 0 and out.base_offset != chain and (
                out.base_offset < chain or chain >= dense_from
            ):
                code = BAD_BASE_OFFSET
            if code == BATCH_OK and next_offset_of(out) > offset and not self.is_followed(position, out):
                code = BAD_CRC
            if code != BATCH_OK:
                damaged = position
                if code == BAD_CRC and chain < 0:
                    chain = out.base_offset
                if (
                    code != BAD_CRC and before >= 0 and self.header_at(before, out) == BATCH_OK
                    and not self.crc_holds(before, out)
                ):
                    damaged = before  # its length led here
                    chain = out.base_offset
                position = self.resync(damaged, max(chain, self.base_offset))
                if position >= size or self.header_at(position, out) != BATCH_OK or out.base_offset > offset:
                    raise_corrupt(code, self.partition, max(chain, self.base_offset), self.path, damaged)
            if next_offset_of(out) > offset:
                return position
            chain = next_offset_of(out)
            before = position
            position += batch_size(out)
        return position

    cdef bint is_followed(self, int64_t position, const BatchHeader* h) except -1:
        """Whether the next batch begins where this one ends; where it does not, whether this one's CRC holds."""
        cdef BatchHeader after
        if (
            position + batch_size(h) < self.byte_size()
            and self.header_at(position + batch_size(h), &after) == BATCH_OK
            and after.base_offset == next_offset_of(h)
        ):
            return True
        return self.crc_holds(position, h)

    cdef int64_t resync(self, int64_t damaged, int64_t chain) except -1:
        """The first position after `damaged` where a whole batch stands that can follow; the segment's size if none."""
        cdef HeapBuffer buffer
        cdef int64_t found, size = self.byte_size()
        if (self.mapping is not None or self.sealed) and self.mapped() is not None:
            return next_sound(self.mapping.data, self.size, damaged, chain)
        buffer = allocate(min(size - damaged, <int64_t> RESYNC_WINDOW))
        buffer.size = self.open().read_at(buffer.data, buffer.size, damaged)
        found = next_sound(buffer.data, buffer.size, 0, chain)
        return damaged + found if found < buffer.size else size

    cdef int learn_timestamps(self) except -1:
        """Find the segment's largest timestamp: the last time index entry if its batch agrees, else from the log."""
        cdef BatchHeader h
        cdef int64_t offset, position = 0
        if self.timestamps_known:
            return 0
        self.load_indexes()
        if self.timestamps_known:
            return 0
        if self.byte_size() and self.header_at(0, &h) == BATCH_OK:
            self.first_timestamp = h.max_timestamp
        if self.times.count:
            offset = self.base_offset + self.times.offset_at(self.times.count - 1)
            try:
                position = self.locate(offset, INT64_MAX, &h)
            except CorruptBatchError:
                self.suspect = True
            if self.timestamps_known:  # the indexes did not fit, and were rebuilt
                return 0
            if not self.suspect:
                if position < self.size and not self.crc_holds(position, &h):
                    self.suspect = True
                elif position >= self.size or h.max_timestamp != self.times.timestamp_at(self.times.count - 1):
                    self.rebuild_indexes(f"an entry of {os.path.basename(self.times.path)} does not fit the log")
                    return 0
            self.max_timestamp = self.times.timestamp_at(self.times.count - 1)
            self.max_timestamp_offset = offset
        while position < self.size and not self.suspect:
            self.suspect = self.header_at(position, &h) != BATCH_OK or not self.crc_holds(position, &h)
            if not self.suspect and h.max_timestamp > self.max_timestamp:
                self.max_timestamp = h.max_timestamp
                self.max_timestamp_offset = h.base_offset + h.last_offset_delta
            position += batch_size(&h)
        self.timestamps_known = True
        return 0

    cdef int complete(self) except -1:
        """Before `seal`, while appends may yet follow: file and indexes are as those of a sealed segment. Raises
        StorageError."""
        self.trim()
        self.load_indexes()
        if self.max_timestamp >= 0:
            self.times.push(self.max_timestamp, <int> (self.max_timestamp_offset - self.base_offset))
        self.offsets.save()
        self.times.save()
        return 0

    cdef int seal(self) except -1:
        """Seal the segment, which gets no more appends: release the resources of a growing one."""
        self.forget_indexes()
        self.sealed = self.exposed = True
        return 0

    cdef int forget_indexes(self) except -1:
        """Let the indexes be read from their files again when next needed."""
        self.offsets = OffsetIndex(self.offsets.path)
        self.times = TimeIndex(self.times.path)
        self.indexed = False
        return 0

    cdef int cut(self, int64_t position) except -1:
        """Drop the bytes from `position` on and the index entries that point there; the segment is then unsealed.

        Raises StorageError.
        """
        cdef FileHandle old = self.open()
        cdef str temporary = self.path + ".tmp"
        cdef FileHandle new
        cdef int64_t at = 0
        cdef Py_ssize_t n
        cdef bytearray piece
        cdef uint8_t[::1] view
        self.tail = None
        self.allocated = 0
        if self.mapping is None and not self.exposed:
            old.truncate(position)
        else:
            new = open_file(temporary, O_RDWR | O_CREAT | O_TRUNC)
            piece = bytearray(COPY_PIECE)
            view = piece
            while at < position:
                n = min(position - at, <int64_t> COPY_PIECE)
                if old.read_at(&view[0], n, at) != n:
                    raise StorageError(f"{self.path} ended before byte {position} while it was cut", path=self.path)
                new.write_at(&view[0], n, at)
                at += n
            new.sync()
            os.replace(temporary, self.path)
            new.path = self.path
            self.file = new
            self.mapping = None
            self.exposed = False
        self.synced = False
        self.size = position
        self.sealed = False
        self.first_timestamp = -1
        self.forget_indexes()
        self.rebuild_indexes(None)
        return 0

    cdef int sync(self) except -1:
        """fsync what has changed of log file and transaction index. Raises StorageError."""
        if not self.synced:
            self.open().sync()
            self.synced = True
        if self.aborted_unsynced:
            open_file(self.path.removesuffix(".log") + ".txnindex", O_RDONLY).sync()
            self.aborted_unsynced = False
        return 0

    cdef int rename_from(self, str stem, str suffix) except -1:
        """Give the files, from create_cleaned, the names of a segment. The log's own stands at `stem`.log then."""
        os.replace(f"{stem}.index{suffix}", f"{stem}.index")
        os.replace(f"{stem}.timeindex{suffix}", f"{stem}.timeindex")
        self.path = f"{stem}.log"
        self.file.path = self.path
        self.offsets.path = f"{stem}.index"
        self.times.path = f"{stem}.timeindex"
        self.aborted_count = -1
        return self.seal()

    cdef int follow_rename(self, str directory) except -1:
        """The directory of the files has got another name."""
        cdef str stem = f"{directory}/{self.base_offset:020d}"
        self.path = f"{stem}.log"
        if self.file is not None:
            self.file.path = self.path
        self.offsets.path = f"{stem}.index"
        self.times.path = f"{stem}.timeindex"
        return 0

    cdef int delete(self) except -1:
        """Remove the files. Readers that hold them go on; Raises StorageError."""
        for path in (self.path, self.offsets.path, self.times.path):
            remove(path)
        return self.remove_aborted()

    cdef int remove_aborted(self) except -1:
        """That of segments which compaction is about to replace stays."""
        if self.path.endswith(".log"):
            remove(self.path.removesuffix(".log") + ".txnindex")
        self.aborted_count = 0
        self.aborted_unsynced = False
        return 0
