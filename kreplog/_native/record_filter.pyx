"""RecordFilter: which records of a log that is compacted stay, and the batches that hold them then.

Two passes over batches in memory: `learn` notes the newest offset of each key, `run` writes what stays to `output`. A
record stays while no newer one of its key is known; a tombstone goes later too, once the delete horizon of its batch
has passed, which is set when compaction meets it first (KIP-534). Records without a key go where that is wanted, else
the first of them ends the first pass, and those outside of it stay. Of a batch that loses records the offsets, the
epoch and the sequence stay; of one that loses all, the header stays as that of an empty batch where it is a producer's
newest, by which its sequence is known after a restart, or the last of a segment, so that a segment ends where the next
one begins. Records of aborted transactions go, and take no other's place.

The marker of a transaction gets a delete horizon in a pass that meets no batch of it any more, and goes in one after
that: else a recovery would take the transaction for open. It stays where nothing else has its producer's epoch,
and as the last of a segment.
Source: Kafka's Cleaner, MemoryRecords.filterTo, CleanedTransactionMetadata.
"""

cimport cython
from cpython.buffer cimport PyBUF_READ
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from kreplog._native.batch cimport (
    BAD_BASE_OFFSET,
    BATCH_OK,
    BATCH_SHORT,
    CODEC_MASK,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    BatchHeader,
    RecordCursor,
    RecordView,
    batch_size,
    check_crc,
    codec_of,
    next_offset_of,
    next_record,
    open_batch,
    open_records,
    read_header,
)
from kreplog._native.compression cimport compressed_pieces
from kreplog._native.crc32c cimport crc32c_update
from kreplog._native.cursor cimport (
    read_varint,
    read_varlong,
    store16,
    store32,
    store64,
    varint_size,
    write_varint,
)
from kreplog._native.files cimport allocate
from kreplog._native.key_map cimport KeyHash, KeyMap
from kreplog._native.markers cimport Marker, read_marker

from array import array

cdef enum:
    TOGETHER = 32  # records whose slots of the map are fetched from memory at the same time
    GROWTH = 16  # bytes by which a record may grow that gets another base timestamp
    LEAST_OUTPUT = 1 << 20
    LEAST_UNDECIDED = 64


cdef struct Item:
    const uint8_t* start
    const uint8_t* end
    int64_t offset
    int64_t timestamp
    KeyHash key
    bint keyed
    bint tombstone


@cython.final
cdef class RecordFilter:

    def __init__(
        self, KeyMap keys, int64_t dense_from, int64_t now_ms, int64_t delete_retention_ms, last_offsets,
        aborted, bint drops_keyless,
    ):
        """last_offsets, aborted: int64 arrays, sorted."""
        self.keys = keys
        self.dense_from = dense_from
        self.now_ms = now_ms
        self.horizon_ms = min(now_ms, (1 << 62) - delete_retention_ms) + delete_retention_ms
        self.last_offsets = last_offsets
        self.aborted = aborted
        self.met = bytearray(len(aborted) // 3)
        self.undecided = array("q", bytes(8 * LEAST_UNDECIDED))
        self.drops_keyless = drops_keyless
        self.output = allocate(LEAST_OUTPUT)

    cdef void begin(self, int64_t chain, int64_t bound) noexcept nogil:
        """The next batches are those of [chain, bound)."""
        self.chain = chain
        self.bound = bound

    cdef int check(self, const uint8_t* p, Py_ssize_t available, BatchHeader* h) noexcept nogil:
        """Read the header at `p`, and check all that can be of a batch but its records: its offset has no CRC."""
        cdef int code = read_header(p, available, h)
        if code != BATCH_OK:
            return code
        if batch_size(h) > available:
            return BATCH_SHORT
        if h.base_offset < self.chain or next_offset_of(h) > self.bound or (
            h.base_offset != self.chain and self.chain >= self.dense_from
        ):
            return BAD_BASE_OFFSET
        return check_crc(p, h)

    # The first pass

    cdef int learn(self, const uint8_t* data, Py_ssize_t size, Py_ssize_t stop, Py_ssize_t* at) noexcept nogil:
        """Note the keys of the batches of data[:size] from `at` on, which moves on, to `stop` or beyond.

        Returns BATCH_OK; FULL, COMPRESSED_NEXT, KEYLESS or UNCONFIRMED before the batch that is the reason; or the
        error of the next batch.
        """
        cdef BatchHeader h
        cdef RecordCursor c
        cdef int code
        while at[0] < stop:
            code = self.check(data + at[0], size - at[0], &h)
            if code != BATCH_OK:
                return code
            if h.attributes & CONTROL:
                if not self.confirm(data + at[0], &h):
                    return UNCONFIRMED
            elif not self.is_aborted(&h):
                if self.keys.count + h.record_count > self.keys.limit:
                    return FULL
                if codec_of(&h) != 0 and h.record_count:
                    return COMPRESSED_NEXT
                open_records(&c, &h, data + at[0] + HEADER_SIZE, batch_size(&h) - HEADER_SIZE)
                code = self.learn_records(&c)
                if code != BATCH_OK:
                    return code
            self.chain = self.end = next_offset_of(&h)
            at[0] += batch_size(&h)
        return BATCH_OK

    cdef int learn_compressed(self, const uint8_t* data, Py_ssize_t size, Py_ssize_t* at) except 1:
        """`learn` of the one compressed batch at `at`. Raises CorruptBatchError, UnsupportedCompressionError."""
        cdef BatchHeader h
        cdef RecordCursor c
        cdef int code = self.check(data + at[0], size - at[0], &h)
        if code != BATCH_OK:
            return code
        _plain = open_batch(&c, data + at[0], &h)
        with nogil:
            code = self.learn_records(&c)
        if code == BATCH_OK:
            self.chain = self.end = next_offset_of(&h)
            at[0] += batch_size(&h)
        return code

    cdef int learn_records(self, RecordCursor* c) noexcept nogil:
        cdef Item[TOGETHER] items
        cdef RecordView view
        cdef int code = 1
        cdef int n
        cdef int i
        while code == 1:
            n = 0
            while n < TOGETHER:
                code = next_record(c, &view)
                if code != 1:
                    break
                if view.key_length >= 0:
                    items[n].key = self.keys.hash_of(view.key, view.key_length)
                    items[n].offset = view.offset
                    n += 1
                elif not self.drops_keyless:
                    self.keyless = view.offset
                    return KEYLESS
            for i in range(n):
                self.keys.put(&items[i].key, items[i].offset)
        return code

    # The second pass

    cdef int run(self, const uint8_t* data, Py_ssize_t size, Py_ssize_t stop, Py_ssize_t* at) noexcept nogil:
        """Write what stays of the batches of data[:size] from `at` on, which moves on, to `stop` or beyond.

        Returns BATCH_OK; FULL, COMPRESSED_NEXT or CHANGED before the batch that is the reason; or the error of the next
        batch. Caller then empties the output, calls make_room and filter_compressed, or sets `copies`.
        """
        cdef BatchHeader h
        cdef RecordCursor c
        cdef Retained retained
        cdef const uint8_t* p
        cdef bint last
        cdef int code
        while at[0] < stop:
            p = data + at[0]
            code = self.check(p, size - at[0], &h)
            if code != BATCH_OK:
                return code
            last = self.ends_group and at[0] + batch_size(&h) == size
            if self.output.size - self.length < 2 * batch_size(&h) + h.record_count * GROWTH:
                return FULL
            if h.base_offset < self.end and not self.note_batch(&h):
                return FULL
            if h.base_offset >= self.end or h.record_count == 0 and self.is_needed(&h, last):
                self.write_whole(p, &h)
            elif h.attributes & CONTROL and h.record_count:
                code = self.run_marker(p, &h, last)
                if code != BATCH_OK:
                    return code
            elif h.record_count == 0 or self.is_to_go(&h):
                if not self.copies:
                    return CHANGED
                if self.is_needed(&h, last):
                    self.write_empty(p, &h)
                self.records += h.record_count
                self.dropped += h.record_count
            elif codec_of(&h) != 0:
                return COMPRESSED_NEXT
            else:
                open_records(&c, &h, p + HEADER_SIZE, batch_size(&h) - HEADER_SIZE)
                code = self.retain(&c, &h, self.output.data + self.length + HEADER_SIZE, &retained)
                if code != BATCH_OK:
                    return code
                if self.stays(&h, &retained):
                    self.write_whole(p, &h)
                elif not self.copies:
                    return CHANGED
                elif retained.count:
                    self.rebase(&h, self.output.data + self.length + HEADER_SIZE, &retained)
                    self.seal(p, &h, &retained)
                elif self.is_needed(&h, last):
                    self.write_empty(p, &h)
                self.records += h.record_count
                self.dropped += h.record_count - retained.count
            self.chain = next_offset_of(&h)
            at[0] += batch_size(&h)
        return BATCH_OK

    cdef int filter_compressed(self, const uint8_t* data, Py_ssize_t size, Py_ssize_t* at) except 1:
        """`run` of the one compressed batch at `at`. Raises CorruptBatchError, UnsupportedCompressionError."""
        cdef BatchHeader h
        cdef RecordCursor c
        cdef Retained retained
        cdef const uint8_t* p = data + at[0]
        cdef int code = self.check(p, size - at[0], &h)
        cdef bint last = self.ends_group and at[0] + batch_size(&h) == size
        cdef Py_ssize_t wanted
        cdef Py_ssize_t length = 0
        if code != BATCH_OK:
            return code
        plain = open_batch(&c, p, &h)
        wanted = 2 * PyBytes_GET_SIZE(plain) + h.record_count * <Py_ssize_t> GROWTH
        if self.scratch is None or self.scratch.size < wanted:
            self.scratch = allocate(wanted)
        with nogil:
            code = self.retain(&c, &h, self.scratch.data, &retained)
        if code != BATCH_OK:
            return code
        if self.stays(&h, &retained):
            self.write_whole(p, &h)
        elif not self.copies:
            return CHANGED
        elif retained.count:
            self.rebase(&h, self.scratch.data, &retained)
            pieces = compressed_pieces(
                codec_of(&h), PyMemoryView_FromMemory(<char*> self.scratch.data, retained.length, PyBUF_READ)
            )
            self.reserve(HEADER_SIZE + sum(map(len, pieces)))
            for piece in pieces:
                memcpy(
                    self.output.data + self.length + HEADER_SIZE + length, PyBytes_AS_STRING(piece),
                    PyBytes_GET_SIZE(piece),
                )
                length += PyBytes_GET_SIZE(piece)
            retained.length = length
            self.seal(p, &h, &retained)
        elif self.is_needed(&h, last):
            self.write_empty(p, &h)
        self.records += h.record_count
        self.dropped += h.record_count - retained.count
        self.chain = next_offset_of(&h)
        at[0] += batch_size(&h)
        return BATCH_OK

    cdef int make_room(self, const uint8_t* p, Py_ssize_t available) except -1:
        """With the output written out, have room in it for the batch at `p`, which `run` did not find, or for its
        producer."""
        cdef BatchHeader h
        if self.undecided_count == self.undecided.shape[0]:
            self.undecided = array("q", bytes(self.undecided)) + array("q", bytes(self.undecided.nbytes))
        if self.length == 0 and read_header(p, available, &h) == BATCH_OK:
            self.reserve(2 * batch_size(&h) + h.record_count * <Py_ssize_t> GROWTH)
        return 0

    cdef int reserve(self, Py_ssize_t more) except -1:
        cdef HeapBuffer larger
        if self.output.size - self.length < more:
            larger = allocate(self.length + more)
            memcpy(larger.data, self.output.data, self.length)
            self.output = larger
        return 0

    cdef bint is_aborted(self, const BatchHeader* h) noexcept nogil:
        """Whether the batch, no marker, is of an aborted transaction."""
        return h.attributes & TRANSACTIONAL and self.find_aborted(h.producer_id, h.base_offset) >= 0

    cdef bint is_to_go(self, const BatchHeader* h) noexcept nogil:
        """Whether the batch, no marker, is of an aborted transaction of which the first pass has met the marker: a
        damaged transaction index does not delete what was committed."""
        cdef Py_ssize_t i
        if not h.attributes & TRANSACTIONAL:
            return False
        i = self.find_aborted(h.producer_id, h.base_offset)
        return i >= 0 and self.first_dirty <= self.aborted[3 * i + 2] < self.end

    cdef bint confirm(self, const uint8_t* p, const BatchHeader* h) noexcept nogil:
        """Whether the control batch says of no aborted transaction that it is another."""
        cdef Marker marker
        cdef Py_ssize_t i = self.find_aborted(h.producer_id, h.base_offset)
        if i < 0 or not read_marker(p, h, &marker):
            return True
        if marker.committed or self.aborted[3 * i + 2] != h.base_offset:
            return False
        self.confirmed += 1
        return True

    cdef Py_ssize_t unconfirmed(self):
        """The number of the first aborted transaction that ends in [first_dirty, end) where the first pass has met no
        marker of some; else -1."""
        cdef Py_ssize_t i
        cdef Py_ssize_t count = 0
        cdef Py_ssize_t first = -1
        for i in range(self.aborted.shape[0] // 3):
            if self.first_dirty <= self.aborted[3 * i + 2] < self.end:
                count += 1
                if first < 0:
                    first = i
        return -1 if count == self.confirmed else first

    cdef Py_ssize_t find_aborted(self, int64_t producer_id, int64_t offset) noexcept nogil:
        """The number of the producer's aborted transaction in which the offset lies; -1 if it lies in none."""
        cdef Py_ssize_t low = 0
        cdef Py_ssize_t high = self.aborted.shape[0] // 3
        cdef Py_ssize_t middle
        while low < high:  # the first that begins after the offset, or is of a later producer
            middle = (low + high) >> 1
            if self.aborted[3 * middle] < producer_id or (
                self.aborted[3 * middle] == producer_id and self.aborted[3 * middle + 1] <= offset
            ):
                low = middle + 1
            else:
                high = middle
        if low > 0 and self.aborted[3 * low - 3] == producer_id and offset <= self.aborted[3 * low - 1]:
            return low - 1
        return -1

    cdef bint is_emptied(self, int64_t producer_id, int64_t last_offset) noexcept nogil:
        """Whether the second pass, which has met the marker at `last_offset`, has met no batch of the aborted
        transaction before."""
        cdef Py_ssize_t i = self.find_aborted(producer_id, last_offset)
        return last_offset < self.end and i >= 0 and not self.met[i]

    cdef bint is_undecided(self, int64_t producer_id, Py_ssize_t* place) noexcept nogil:
        place[0] = lower_bound(self.undecided, self.undecided_count, producer_id)
        return place[0] < self.undecided_count and self.undecided[place[0]] == producer_id

    cdef bint note_batch(self, const BatchHeader* h) noexcept nogil:
        """That there is a batch of its transaction, if it is of one; False where there is no room to note that."""
        cdef Py_ssize_t i
        if h.attributes & (TRANSACTIONAL | CONTROL) != TRANSACTIONAL:
            return True
        if not self.is_undecided(h.producer_id, &i):
            if self.undecided_count == self.undecided.shape[0]:
                return False
            memmove(&self.undecided[i] + 1, &self.undecided[i], (self.undecided_count - i) * sizeof(int64_t))
            self.undecided[i] = h.producer_id
            self.undecided_count += 1
        i = self.find_aborted(h.producer_id, h.base_offset)
        if i >= 0:
            self.met[i] = True
        return True

    cdef int run_marker(self, const uint8_t* p, const BatchHeader* h, bint last) noexcept nogil:
        """`run` of a control batch, for which the output has room; BATCH_OK or CHANGED."""
        cdef Marker marker
        cdef Retained retained
        cdef Py_ssize_t i
        cdef bint undecided
        if not read_marker(p, h, &marker):  # of another type
            self.write_whole(p, h)
            return BATCH_OK
        undecided = self.is_undecided(h.producer_id, &i)
        if undecided or self.is_newest(h) or h.attributes & DELETE_HORIZON and (
            h.base_timestamp > self.now_ms or last  # and no header of it, at which kafka-python fails
        ):
            self.write_whole(p, h)
        elif not self.copies:
            return CHANGED
        elif h.attributes & DELETE_HORIZON:
            self.drops_markers = True
        else:
            retained.count = h.record_count
            retained.tombstones = 1
            retained.max_timestamp = h.max_timestamp
            retained.length = batch_size(h) - HEADER_SIZE
            memcpy(self.output.data + self.length + HEADER_SIZE, p + HEADER_SIZE, retained.length)
            self.rebase(h, self.output.data + self.length + HEADER_SIZE, &retained)
            self.seal(p, h, &retained)
        if undecided:
            self.undecided_count -= 1
            memmove(&self.undecided[i], &self.undecided[i] + 1, (self.undecided_count - i) * sizeof(int64_t))
        return BATCH_OK

    cdef bint is_newest(self, const BatchHeader* h) noexcept nogil:
        """Whether the state of its producer is found again by this batch, or marker."""
        cdef int64_t wanted = next_offset_of(h) - 1
        cdef Py_ssize_t i
        if h.producer_id < 0:
            return False
        i = lower_bound(self.last_offsets, self.last_offsets.shape[0], wanted)
        return i < self.last_offsets.shape[0] and self.last_offsets[i] == wanted

    cdef bint is_needed(self, const BatchHeader* h, bint last) noexcept nogil:
        """Whether the header of a batch without records stays."""
        return last or self.is_newest(h)

    cdef int retain(self, RecordCursor* c, const BatchHeader* h, uint8_t* out, Retained* retained) noexcept nogil:
        """Copy the records that stay to `out`, which has room for all, as they stand."""
        cdef Item[TOGETHER] items
        cdef Item* item
        cdef RecordView view
        cdef bint expired = h.attributes & DELETE_HORIZON and h.base_timestamp <= self.now_ms
        cdef int code = 1
        cdef int n
        cdef int i
        retained.count = retained.tombstones = 0
        retained.max_timestamp = -1
        retained.length = 0
        while code == 1:
            n = 0
            while n < TOGETHER:
                item = &items[n]
                item.start = c.pos
                code = next_record(c, &view)
                if code != 1:
                    break
                item.end = c.pos
                item.offset = view.offset
                item.timestamp = view.timestamp
                item.keyed = view.key_length >= 0
                item.tombstone = item.keyed and view.value_length < 0
                if item.keyed:
                    item.key = self.keys.hash_of(view.key, view.key_length)
                n += 1
            for i in range(n):
                item = &items[i]
                if item.keyed:
                    if item.tombstone and expired or self.keys.newest(&item.key) > item.offset:
                        continue
                elif self.drops_keyless:
                    continue
                memcpy(out + retained.length, item.start, item.end - item.start)
                retained.length += item.end - item.start
                retained.count += 1
                retained.tombstones += item.tombstone
                if item.timestamp > retained.max_timestamp:
                    retained.max_timestamp = item.timestamp
        return code

    cdef bint stays(self, const BatchHeader* h, const Retained* retained) noexcept nogil:
        """Whether the batch stays as it is: no record of it goes, nor has it tombstones that were not met before."""
        return retained.count == h.record_count and (retained.tombstones == 0 or h.attributes & DELETE_HORIZON)

    cdef int rebase(self, const BatchHeader* h, uint8_t* records, Retained* retained) noexcept nogil:
        """Make the delete horizon the base timestamp of the records, if tombstones among them have none yet.

        There is room behind them for as much again, and GROWTH for each."""
        cdef const uint8_t* p = records
        cdef const uint8_t* end = records + retained.length
        cdef const uint8_t* stop
        cdef uint8_t* start = records + retained.length
        cdef uint8_t* out = start
        cdef int32_t length
        cdef int64_t delta
        if retained.tombstones == 0 or h.attributes & DELETE_HORIZON:
            return 0
        while p < end:
            read_varint(&p, end, &length)
            stop = p + length
            p += 1
            read_varlong(&p, stop, &delta)
            delta = <int64_t> (
                <uint64_t> h.base_timestamp + <uint64_t> delta - <uint64_t> self.horizon_ms
            )
            out = write_varint(out, 1 + varint_size(delta) + (stop - p))
            out[0] = 0
            out = write_varint(out + 1, delta)
            memcpy(out, p, stop - p)
            out += stop - p
            p = stop
        retained.length = out - start
        memmove(records, start, retained.length)
        return 0

    cdef void write_whole(self, const uint8_t* p, const BatchHeader* h) noexcept nogil:
        if self.copies:
            memcpy(self.output.data + self.length, p, batch_size(h))
            self.length += batch_size(h)

    cdef void write_empty(self, const uint8_t* p, const BatchHeader* h) noexcept nogil:
        """The header at `p` as that of a batch without records: its base timestamp is -1, as Kafka writes it."""
        cdef uint8_t* out = self.output.data + self.length
        memcpy(out, p, HEADER_SIZE)
        store32(out + 8, HEADER_SIZE - LOG_OVERHEAD)
        store16(out + 21, <uint16_t> (h.attributes & ~(CODEC_MASK | DELETE_HORIZON)))
        store64(out + 27, <uint64_t> -1)
        store32(out + 57, 0)
        store32(out + 17, crc32c_update(0, out + CRC_START, HEADER_SIZE - CRC_START))
        self.length += HEADER_SIZE

    cdef void seal(self, const uint8_t* p, const BatchHeader* h, const Retained* retained) noexcept nogil:
        """Make a batch of the records in the output, by the header at `p`."""
        cdef uint8_t* out = self.output.data + self.length
        memcpy(out, p, HEADER_SIZE)
        store32(out + 8, <uint32_t> (HEADER_SIZE - LOG_OVERHEAD + retained.length))
        if retained.tombstones and not h.attributes & DELETE_HORIZON:
            store16(out + 21, <uint16_t> (h.attributes | DELETE_HORIZON))
            store64(out + 27, <uint64_t> self.horizon_ms)
        if not h.attributes & LOG_APPEND_TIME:
            store64(out + 35, <uint64_t> retained.max_timestamp)
        store32(out + 57, <uint32_t> retained.count)
        store32(out + 17, crc32c_update(0, out + CRC_START, HEADER_SIZE + retained.length - CRC_START))
        self.length += HEADER_SIZE + retained.length


cdef Py_ssize_t lower_bound(int64_t[::1] values, Py_ssize_t count, int64_t wanted) noexcept nogil:
    """The number of the first of `count` sorted values that is `wanted` or more."""
    cdef Py_ssize_t low = 0
    cdef Py_ssize_t high = count
    cdef Py_ssize_t middle
    while low < high:
        middle = (low + high) >> 1
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low
