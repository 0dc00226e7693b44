"""Record batches to Arrow columns: one walk over the bytes, no Python object per record.

ArrowBuilder collects the records of a range of offsets and hands them over as ArrowColumns, which any Arrow library
takes through the C data interface. Which bytes to read, and how far, is for the caller: nothing here knows of files or
of the high watermark.

    column          Arrow type                                         null
    offset          int64                                              never
    timestamp       timestamp[ms or us, tz=UTC]                        never
    timestampType   int32: 0 create time, 1 log append time            never
    key, value      binary                                             where the record's is null
    headers         list<element: struct<key: string, value: binary>>  where the record has none

Buffers are aligned to 64 bytes and belong to a `Columns`, which counts its references: the builder or the ArrowColumns
holds one, every exported Arrow array one more, and the last to let go frees it, on whatever thread that happens. The
builder keeps a reference to the last few it lent out as well, and fills them anew once it is the only holder.
The state while building is the row count alone: bytes behind it are scratch, so a batch that turns out to be corrupt
leaves no trace.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, memset

from kreplog._native.batch cimport (
    BATCH_OK,
    BATCH_SHORT,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MIN_RECORD_SIZE,
    BatchHeader,
    HeaderView,
    RecordCursor,
    RecordView,
    batch_size,
    check_crc,
    codec_of,
    is_control,
    next_header,
    next_offset_of,
    next_record,
    open_records,
    raise_corrupt,
    read_header,
    uncompressed,
)
from kreplog._native.cursor cimport likely, unlikely

from kreplog.errors import ArgumentTypeError, UsageError

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void** out, size_t alignment, size_t size)

cdef extern from *:
    """
    #define kreplog_ref_add(counter, by) __atomic_add_fetch((counter), (by), __ATOMIC_ACQ_REL)
    """
    int32_t ref_add "kreplog_ref_add"(int32_t* counter, int32_t by) noexcept nogil

COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")

cdef enum:
    OFFSET
    TIMESTAMP
    TIMESTAMP_TYPE
    KEY
    VALUE
    HEADERS

cdef enum:  # beside the negative codes of batch.pxd
    COMPRESSED = 1
    NO_MEMORY = 2
    TOO_LARGE = 3
    TIMESTAMP_OVERFLOW = 4

cdef enum:
    ALIGNMENT = 64
    NULLABLE = 2  # ARROW_FLAG_NULLABLE
    LOSSY_UTF8_GROWTH = 3  # bytes of U+FFFD, which may stand for a single invalid one


cdef class ArrowBuilder:
    """Collects records into the columns asked for, in the order asked for; `finish` hands them over.

    columns: any of COLUMNS, each at most once, at least one. timestamp_unit: "ms" or "us".
    Columns that were not asked for are not decoded. Not for use by two threads at once (refused with UsageError).
    """

    def __cinit__(self, columns, timestamp_unit="ms"):
        if not isinstance(timestamp_unit, str):
            raise ArgumentTypeError(f"timestamp_unit is a str, not {type(timestamp_unit).__name__}")
        if timestamp_unit not in ("ms", "us"):
            raise UsageError(f"timestamp_unit = {timestamp_unit!r} is not known: choose 'ms' or 'us'")
        try:
            names = [columns] if isinstance(columns, str) else list(columns)
        except TypeError:
            raise ArgumentTypeError(f"columns is a sequence of str, not {type(columns).__name__}") from None
        if not all([isinstance(name, str) for name in names]):
            raise ArgumentTypeError(f"columns = {columns!r} is not a sequence of str")
        if isinstance(columns, str) or not names or len(set(names)) != len(names) or not set(names) <= set(COLUMNS):
            raise UsageError(f"columns = {columns!r}: name one or more of {', '.join(COLUMNS)} in a list, each once")
        self._count = len(names)
        cdef int i
        cdef int wanted = 0
        for i in range(self._count):
            self._order[i] = COLUMNS.index(names[i])
            wanted |= 1 << self._order[i]
        self._columns = _new_columns(wanted, 1000 if timestamp_unit == "us" else 1)
        if self._columns == NULL:
            raise MemoryError()

    def __dealloc__(self):
        cdef int i
        _release_columns(self._columns)
        for i in range(LENT):
            _release_columns(self._lent[i])

    @property
    def rows(self):
        """Records collected since the last `finish`."""
        return self._columns.rows

    @property
    def nbytes(self):
        """Bytes of the buffers that these rows fill."""
        return _bytes_used(self._columns)

    def add_batches(self, buffer, int64_t start=0, int64_t stop=INT64_MAX):
        """`add` for any contiguous buffer of whole batches."""
        cdef const uint8_t[::1] view = memoryview(buffer).cast("B")
        if view.shape[0]:
            self.add(&view[0], view.shape[0], start, stop)

    cdef int add(self, const uint8_t* data, Py_ssize_t length, int64_t start, int64_t stop) except -1:
        """Append the records with start <= offset < stop of the whole batches in `data`; control batches are skipped.

        A batch is believed, even that it has nothing to add, only after its CRC; the bytes before the CRC (base offset,
        length) are the caller's to check against the batches around. The GIL is held only while a compressed batch is
        unpacked.
        Raises CorruptBatchError, and UsageError when a column would pass Arrow's 2 GiB or a timestamp does not fit
        microseconds: in either case the batches before the one named have been added, and `finish` delivers them.
        """
        cdef Py_ssize_t position = 0
        cdef BatchHeader header
        cdef const uint8_t[::1] records
        cdef const uint8_t* unpacked
        cdef int code
        if self._busy:
            raise UsageError("this ArrowBuilder is in use by another thread: make one for each")
        self._busy = True
        try:
            while True:
                with nogil:
                    code = _add_plain(self._columns, data, length, &position, &header, start, stop)
                if code == COMPRESSED:
                    records = uncompressed(data + position, &header)
                    with nogil:
                        unpacked = &records[0] if records.shape[0] else data
                        code = _add_records(self._columns, &header, unpacked, records.shape[0], start, stop)
                    if code == BATCH_OK:
                        position += batch_size(&header)
                        continue
                if code == BATCH_OK:
                    return 0
                _raise(code, &header, length - position, position)
        finally:
            self._busy = False

    cpdef ArrowColumns finish(self):
        """Hand over the rows collected, which may be none, and start anew."""
        if self._busy:
            raise UsageError("this ArrowBuilder is in use by another thread: make one for each")
        cdef Columns* fresh = self._take_back()
        cdef ArrowColumns out = ArrowColumns.__new__(ArrowColumns)
        out._columns = self._columns
        out._order = self._order
        out._count = self._count
        ref_add(&self._columns.references, 1)
        _release_columns(self._lent[LENT - 1])
        memmove(&self._lent[1], &self._lent[0], (LENT - 1) * sizeof(self._lent[0]))
        self._lent[0] = self._columns
        self._columns = fresh
        return out

    cdef Columns* _take_back(self) except NULL:
        """Columns to fill next: some that were lent out and that nobody else holds any more, or new ones.

        Pages touched before cost half of what fresh ones do, and a reader lets go of a batch when it takes the next.
        """
        cdef Columns* c
        cdef int i
        for i in range(LENT):
            c = self._lent[i]
            if c != NULL and ref_add(&c.references, 0) == 1:
                self._lent[i] = NULL
                _empty(c)
                return c
        c = _new_columns(self._columns.wanted, self._columns.timestamp_factor)
        if c == NULL or not _same_room(c, self._columns):
            _release_columns(c)
            raise MemoryError()
        return c


cdef class ArrowColumns:
    """Finished columns, for `pyarrow.record_batch()` and whatever else reads the Arrow PyCapsule interface.

    May be exported any number of times; the memory is shared and lives until the last holder lets go.
    """

    def __dealloc__(self):
        _release_columns(self._columns)

    def __len__(self):
        return self._columns.rows

    @property
    def nbytes(self):
        """Bytes of the buffers that the rows fill."""
        return _bytes_used(self._columns)

    def __arrow_c_schema__(self):
        """A new "arrow_schema" capsule: a struct of the columns, all nullable."""
        cdef ArrowSchema* schema = <ArrowSchema*> calloc(1, sizeof(ArrowSchema))
        if schema == NULL:
            raise MemoryError()
        capsule = PyCapsule_New(schema, b"arrow_schema", _drop_schema_capsule)
        cdef SchemaNode* node = _schema(schema, "+s", "", self._count)
        cdef int i
        if node == NULL:
            raise MemoryError()
        for i in range(self._count):
            if not _export_schema(&node.storage[i], self._columns, self._order[i]):
                raise MemoryError()
        return capsule

    def __arrow_c_array__(self, requested_schema=None):
        """New ("arrow_schema", "arrow_array") capsules; `requested_schema` changes nothing, as the protocol allows."""
        cdef ArrowArray* array = <ArrowArray*> calloc(1, sizeof(ArrowArray))
        if array == NULL:
            raise MemoryError()
        capsule = PyCapsule_New(array, b"arrow_array", _drop_array_capsule)
        cdef ArrayNode* node = _array(array, self._columns, self._columns.rows, 1, self._count)
        cdef int i
        if node == NULL:
            raise MemoryError()
        for i in range(self._count):
            if not _export_array(&node.storage[i], self._columns, self._order[i]):
                raise MemoryError()
        return self.__arrow_c_schema__(), capsule


# Walking


cdef int _raise(int code, const BatchHeader* header, Py_ssize_t available, Py_ssize_t position) except -1:
    cdef int64_t offset = header.base_offset if available >= HEADER_SIZE else -1
    if code == NO_MEMORY:
        raise MemoryError()
    if code == TOO_LARGE:
        raise UsageError(
            f"the batch at offset {offset} would take an Arrow column past 2 GiB: finish() what was collected before "
            "adding it, or leave the large column out",
            offset=offset,
        )
    if code == TIMESTAMP_OVERFLOW:
        raise UsageError(
            f"a timestamp in the batch at offset {offset} does not fit microseconds: ask for timestamp_unit='ms', or "
            "leave the timestamp column out",
            offset=offset,
        )
    return raise_corrupt(code, None, offset, None, position)


cdef int _add_plain(
    Columns* c, const uint8_t* data, Py_ssize_t length, Py_ssize_t* position, BatchHeader* header, int64_t start,
    int64_t stop
) noexcept nogil:
    """Add batches from `position` on, up to the end (BATCH_OK), to a compressed one, or to one with a fault.

    `position` is then that batch's, and `header` its header.
    """
    cdef const uint8_t* batch
    cdef int code
    while position[0] < length:
        batch = data + position[0]
        code = read_header(batch, length - position[0], header)
        if code != BATCH_OK:
            return code
        if batch_size(header) > length - position[0]:
            return BATCH_SHORT
        if header.base_offset < stop:
            code = check_crc(batch, header)
            if code != BATCH_OK:
                return code
        if header.base_offset < stop and next_offset_of(header) > start and not is_control(header):
            if codec_of(header):
                return COMPRESSED
            code = _add_records(c, header, batch + HEADER_SIZE, batch_size(header) - HEADER_SIZE, start, stop)
            if code != BATCH_OK:
                return code
        position[0] += batch_size(header)
    return BATCH_OK


cdef int _add_records(
    Columns* c, const BatchHeader* header, const uint8_t* records, Py_ssize_t length, int64_t start, int64_t stop
) noexcept nogil:
    """Add the records of one batch: all that are in range, or none."""
    cdef RecordCursor cursor
    cdef RecordView record
    cdef int wanted = c.wanted
    cdef int64_t factor = c.timestamp_factor
    cdef int64_t earliest = INT64_MIN // factor
    cdef int64_t latest = INT64_MAX // factor
    cdef int32_t timestamp_type = (header.attributes & LOG_APPEND_TIME) != 0
    cdef int64_t row = c.rows
    cdef int code = _reserve_batch(c, min(<int64_t> header.record_count, <int64_t> length // MIN_RECORD_SIZE), length)
    cdef int64_t* offsets = <int64_t*> c.offset.data
    cdef int64_t* timestamps = <int64_t*> c.timestamp.data
    if code != BATCH_OK:
        return code
    open_records(&cursor, header, records, length)
    while True:
        code = next_record(&cursor, &record)
        if unlikely(code != 1):
            break
        if record.offset < start:
            continue
        if record.offset >= stop:
            code = BATCH_OK
            break
        if wanted & (1 << OFFSET):
            offsets[row] = record.offset
        if wanted & (1 << TIMESTAMP):
            if unlikely(record.timestamp < earliest or record.timestamp > latest):
                return TIMESTAMP_OVERFLOW
            timestamps[row] = record.timestamp * factor
        if wanted & (1 << TIMESTAMP_TYPE):
            (<int32_t*> c.timestamp_type.data)[row] = timestamp_type
        if wanted & (1 << KEY):
            code = _put(&c.key, row, c.row_capacity, record.key, record.key_length)
            if unlikely(code != BATCH_OK):
                return code
        if wanted & (1 << VALUE):
            code = _put(&c.value, row, c.row_capacity, record.value, record.value_length)
            if unlikely(code != BATCH_OK):
                return code
        if wanted & (1 << HEADERS):
            code = _put_headers(c, row, &record)
            if unlikely(code != BATCH_OK):
                return code
        row += 1
    if code == BATCH_OK:
        c.rows = row
    return code


cdef inline int _put(
    ByteColumn* column, int64_t row, int64_t row_capacity, const uint8_t* data, Py_ssize_t length
) noexcept nogil:
    """Write one value at `row`; the room for its bytes is there already."""
    cdef int32_t* offsets = <int32_t*> column.offsets.data
    cdef int32_t begin = offsets[row]
    if likely(length > 0):
        memcpy(column.bytes.data + begin, data, length)
        offsets[row + 1] = begin + <int32_t> length
    else:
        offsets[row + 1] = begin
    if unlikely(length < 0 or column.validity.data != NULL):
        return _put_validity(&column.validity, row, row_capacity, length >= 0)
    return BATCH_OK


cdef int _put_validity(Buffer* validity, int64_t row, int64_t row_capacity, bint valid) noexcept nogil:
    """Set the row's bit. A column without nulls has no bits, so the first null finds all rows before it valid."""
    cdef size_t needed = <size_t> (row_capacity + 7) // 8
    cdef size_t had = validity.capacity
    if had < needed:
        if not _grow(validity, had, needed):
            return NO_MEMORY
        memset(validity.data + had, 0xFF, validity.capacity - had)
    if valid:
        validity.data[row >> 3] |= <uint8_t> (1 << (row & 7))
    else:
        validity.data[row >> 3] &= <uint8_t> ~(1 << (row & 7))
    return BATCH_OK


cdef int _put_headers(Columns* c, int64_t row, const RecordView* record) noexcept nogil:
    cdef int32_t* lists = <int32_t*> c.header_lists.data
    cdef int32_t at = lists[row]
    cdef const uint8_t* p = record.headers
    cdef const uint8_t* end = p + record.headers_length
    cdef HeaderView header
    cdef int code
    for _ in range(record.header_count):
        code = next_header(&p, end, &header)
        if code != BATCH_OK:
            return code
        if unlikely(not _is_utf8(header.key, header.key_length)):
            code = _put_lossy(&c.header_key, at, header.key, header.key_length)
        else:
            code = _put(&c.header_key, at, c.header_capacity, header.key, header.key_length)
        if code == BATCH_OK:
            code = _put(&c.header_value, at, c.header_capacity, header.value, header.value_length)
        if code != BATCH_OK:
            return code
        at += 1
    lists[row + 1] = at
    if record.header_count == 0 or c.header_lists_validity.data != NULL:
        return _put_validity(&c.header_lists_validity, row, c.row_capacity, record.header_count > 0)
    return BATCH_OK


cdef bint _is_utf8(const uint8_t* p, Py_ssize_t length) noexcept nogil:
    """Whether the bytes are well-formed UTF-8 (no overlong form, surrogate or code point past U+10FFFF)."""
    cdef const uint8_t* end = p + length
    cdef uint8_t lead
    cdef uint8_t low
    cdef uint8_t high
    cdef int more
    while p < end:
        lead = p[0]
        p += 1
        if lead < 0x80:
            continue
        low = 0x80
        high = 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return False
        if end - p < more or p[0] < low or p[0] > high:
            return False
        for _ in range(1, more):
            p += 1
            if p[0] & 0xC0 != 0x80:
                return False
        p += 1
    return True


cdef int _put_lossy(ByteColumn* column, int64_t row, const uint8_t* data, Py_ssize_t length) noexcept with gil:
    """Write a header key that is no UTF-8, U+FFFD standing for what is not, as Kafka's Java consumer reads it."""
    cdef Py_ssize_t size = 0
    cdef const char* text
    try:
        key = PyUnicode_DecodeUTF8(<const char*> data, length, "replace")
        text = PyUnicode_AsUTF8AndSize(key, &size)
    except MemoryError:
        return NO_MEMORY
    return _put(column, row, 0, <const uint8_t*> text, size)


# Memory


cdef Columns* _new_columns(int wanted, int64_t timestamp_factor) noexcept nogil:
    """Empty columns with one reference; NULL without memory."""
    cdef Columns* c = <Columns*> calloc(1, sizeof(Columns))
    if c == NULL:
        return NULL
    c.references = 1
    c.wanted = wanted
    c.timestamp_factor = timestamp_factor
    if _reserve_rows(c, 1) and (not wanted & (1 << HEADERS) or _reserve_headers(c, 1)):
        return c
    _release_columns(c)
    return NULL


cdef void _release_columns(Columns* c) noexcept nogil:
    if c == NULL or ref_add(&c.references, -1) > 0:
        return
    free(c.offset.data)
    free(c.timestamp.data)
    free(c.timestamp_type.data)
    _free_bytes(&c.key)
    _free_bytes(&c.value)
    free(c.header_lists.data)
    free(c.header_lists_validity.data)
    _free_bytes(&c.header_key)
    _free_bytes(&c.header_value)
    free(c)


cdef void _free_bytes(ByteColumn* column) noexcept nogil:
    free(column.offsets.data)
    free(column.bytes.data)
    free(column.validity.data)


cdef bint _grow(Buffer* buffer, size_t used, size_t needed) noexcept nogil:
    """Make room for `needed` bytes, at least doubling, keeping the first `used`; False without memory."""
    cdef void* fresh = NULL
    cdef size_t capacity
    if needed <= buffer.capacity:
        return True
    capacity = (max(needed, 2 * buffer.capacity) + ALIGNMENT - 1) & ~<size_t> (ALIGNMENT - 1)
    if posix_memalign(&fresh, ALIGNMENT, capacity) != 0:
        return False
    if used:
        memcpy(fresh, buffer.data, used)
    free(buffer.data)
    buffer.data = <uint8_t*> fresh
    buffer.capacity = capacity
    return True


cdef bint _grow_offsets(Buffer* buffer, int64_t used, int64_t needed) noexcept nogil:
    """Room for `needed` + 1 offsets, of which `used` + 1 are kept; the first is 0."""
    cdef bint fresh = buffer.data == NULL
    if not _grow(buffer, 0 if fresh else 4 * <size_t> (used + 1), 4 * <size_t> (needed + 1)):
        return False
    if fresh:
        (<int32_t*> buffer.data)[0] = 0
    return True


cdef bint _reserve_rows(Columns* c, int64_t needed) noexcept nogil:
    """Room for `needed` rows in every column wanted, their bytes aside."""
    cdef int64_t rows = c.rows
    if needed <= c.row_capacity:
        return True
    needed = max(needed, 2 * c.row_capacity)
    if c.wanted & (1 << OFFSET) and not _grow(&c.offset, 8 * rows, 8 * needed):
        return False
    if c.wanted & (1 << TIMESTAMP) and not _grow(&c.timestamp, 8 * rows, 8 * needed):
        return False
    if c.wanted & (1 << TIMESTAMP_TYPE) and not _grow(&c.timestamp_type, 4 * rows, 4 * needed):
        return False
    if c.wanted & (1 << KEY) and not _grow_offsets(&c.key.offsets, rows, needed):
        return False
    if c.wanted & (1 << VALUE) and not _grow_offsets(&c.value.offsets, rows, needed):
        return False
    if c.wanted & (1 << HEADERS) and not _grow_offsets(&c.header_lists, rows, needed):
        return False
    c.row_capacity = needed
    return True


cdef bint _reserve_headers(Columns* c, int64_t needed) noexcept nogil:
    cdef int64_t used = _headers_used(c)
    if needed <= c.header_capacity:
        return True
    needed = max(needed, 2 * c.header_capacity)
    if not _grow_offsets(&c.header_key.offsets, used, needed):
        return False
    if not _grow_offsets(&c.header_value.offsets, used, needed):
        return False
    c.header_capacity = needed
    return True


cdef int _reserve_batch(Columns* c, int64_t records, Py_ssize_t length) noexcept nogil:
    """Room for a batch of at most so many records whose keys, values and headers lie within `length` bytes."""
    cdef int64_t room = <int64_t> length
    if not _reserve_rows(c, c.rows + records):
        return NO_MEMORY
    if c.wanted & (1 << KEY):
        if _size(&c.key, c.rows) + room > INT32_MAX:
            return TOO_LARGE
        if not _grow(&c.key.bytes, _size(&c.key, c.rows), _size(&c.key, c.rows) + room):
            return NO_MEMORY
    if c.wanted & (1 << VALUE):
        if _size(&c.value, c.rows) + room > INT32_MAX:
            return TOO_LARGE
        if not _grow(&c.value.bytes, _size(&c.value, c.rows), _size(&c.value, c.rows) + room):
            return NO_MEMORY
    if c.wanted & (1 << HEADERS):
        return _reserve_header_batch(c, _headers_used(c), room)
    return BATCH_OK


cdef int _reserve_header_batch(Columns* c, int64_t used, int64_t room) noexcept nogil:
    """Room for the headers within `room` bytes, of which one takes two or more."""
    cdef int64_t keys = _size(&c.header_key, used) + LOSSY_UTF8_GROWTH * room
    cdef int64_t values = _size(&c.header_value, used) + room
    if keys > INT32_MAX or values > INT32_MAX:
        return TOO_LARGE
    if (
        not _reserve_headers(c, used + room // 2)
        or not _grow(&c.header_key.bytes, _size(&c.header_key, used), keys)
        or not _grow(&c.header_value.bytes, _size(&c.header_value, used), values)
    ):
        return NO_MEMORY
    return BATCH_OK


cdef void _empty(Columns* c) noexcept nogil:
    """No rows, the room kept; without bits, since a column has none until its first null."""
    c.rows = 0
    _drop(&c.key.validity)
    _drop(&c.value.validity)
    _drop(&c.header_lists_validity)
    _drop(&c.header_value.validity)


cdef void _drop(Buffer* buffer) noexcept nogil:
    free(buffer.data)
    buffer.data = NULL
    buffer.capacity = 0


cdef bint _same_room(Columns* fresh, const Columns* old) noexcept nogil:
    """Give `fresh` what `old` came to need, so that equal deliveries do not grow step by step each time."""
    return _reserve_rows(fresh, old.row_capacity) and _grow(
        &fresh.value.bytes, 0, min(old.value.bytes.capacity, 2 * <size_t> _size(&old.value, old.rows))
    ) and _grow(&fresh.key.bytes, 0, min(old.key.bytes.capacity, 2 * <size_t> _size(&old.key, old.rows)))


cdef inline int64_t _size(const ByteColumn* column, int64_t rows) noexcept nogil:
    """Bytes that the column's first `rows` values take; 0 when the column is not wanted."""
    return (<int32_t*> column.offsets.data)[rows] if column.offsets.data != NULL else 0


cdef inline int64_t _headers_used(const Columns* c) noexcept nogil:
    return (<int32_t*> c.header_lists.data)[c.rows]


cdef int64_t _bytes_used(const Columns* c) noexcept nogil:
    cdef int64_t used = 0
    cdef int64_t headers
    if c.wanted & (1 << OFFSET):
        used += 8 * c.rows
    if c.wanted & (1 << TIMESTAMP):
        used += 8 * c.rows
    if c.wanted & (1 << TIMESTAMP_TYPE):
        used += 4 * c.rows
    if c.wanted & (1 << KEY):
        used += _column_bytes(&c.key, c.rows)
    if c.wanted & (1 << VALUE):
        used += _column_bytes(&c.value, c.rows)
    if c.wanted & (1 << HEADERS):
        headers = _headers_used(c)
        used += 4 * (c.rows + 1) + _column_bytes(&c.header_key, headers) + _column_bytes(&c.header_value, headers)
        if c.header_lists_validity.data != NULL:
            used += (c.rows + 7) // 8
    return used


cdef int64_t _column_bytes(const ByteColumn* column, int64_t rows) noexcept nogil:
    return 4 * (rows + 1) + _size(column, rows) + ((rows + 7) // 8 if column.validity.data != NULL else 0)


# Export through the Arrow C data interface. A node, its children and what they point to are freed by the node's own
# release callback; a child that a consumer has moved away is marked released in place and frees itself.


cdef struct SchemaNode:
    ArrowSchema* children[6]
    ArrowSchema storage[6]


cdef struct ArrayNode:
    Columns* columns
    const void* buffers[3]
    ArrowArray* children[6]
    ArrowArray storage[6]


cdef SchemaNode* _schema(ArrowSchema* out, const char* format, const char* name, int children) noexcept nogil:
    """Fill `out`, its children still released; NULL without memory. The strings are literals."""
    cdef SchemaNode* node = <SchemaNode*> calloc(1, sizeof(SchemaNode))
    cdef int i
    if node == NULL:
        return NULL
    for i in range(children):
        node.children[i] = &node.storage[i]
    out.format = format
    out.name = name
    out.flags = NULLABLE
    out.n_children = children
    out.children = node.children if children else NULL
    out.release = _release_schema
    out.private_data = node
    return node


cdef bint _export_schema(ArrowSchema* out, const Columns* c, int column) noexcept nogil:
    cdef SchemaNode* node
    if column == OFFSET:
        return _schema(out, "l", "offset", 0) != NULL
    if column == TIMESTAMP:
        return _schema(out, "tsu:UTC" if c.timestamp_factor == 1000 else "tsm:UTC", "timestamp", 0) != NULL
    if column == TIMESTAMP_TYPE:
        return _schema(out, "i", "timestampType", 0) != NULL
    if column == KEY:
        return _schema(out, "z", "key", 0) != NULL
    if column == VALUE:
        return _schema(out, "z", "value", 0) != NULL
    node = _schema(out, "+l", "headers", 1)
    if node == NULL:
        return False
    node = _schema(&node.storage[0], "+s", "element", 2)
    return node != NULL and _schema(&node.storage[0], "u", "key", 0) and _schema(&node.storage[1], "z", "value", 0)


cdef ArrayNode* _array(ArrowArray* out, Columns* c, int64_t length, int buffers, int children) noexcept nogil:
    """Fill `out` with buffers yet unset and children yet released; NULL without memory. Takes a reference to `c`."""
    cdef ArrayNode* node = <ArrayNode*> calloc(1, sizeof(ArrayNode))
    cdef int i
    if node == NULL:
        return NULL
    for i in range(children):
        node.children[i] = &node.storage[i]
    node.columns = c
    ref_add(&c.references, 1)
    out.length = length
    out.n_buffers = buffers
    out.buffers = node.buffers
    out.n_children = children
    out.children = node.children if children else NULL
    out.release = _release_array
    out.private_data = node
    return node


cdef bint _export_array(ArrowArray* out, Columns* c, int column) noexcept nogil:
    cdef ArrayNode* node
    cdef int64_t headers
    if column == OFFSET:
        return _export_fixed(out, c, &c.offset)
    if column == TIMESTAMP:
        return _export_fixed(out, c, &c.timestamp)
    if column == TIMESTAMP_TYPE:
        return _export_fixed(out, c, &c.timestamp_type)
    if column == KEY:
        return _export_bytes(out, c, &c.key, c.rows)
    if column == VALUE:
        return _export_bytes(out, c, &c.value, c.rows)
    headers = _headers_used(c)
    node = _array(out, c, c.rows, 2, 1)
    if node == NULL:
        return False
    _set_validity(out, node, &c.header_lists_validity)
    node.buffers[1] = c.header_lists.data
    node = _array(&node.storage[0], c, headers, 1, 2)
    return (
        node != NULL
        and _export_bytes(&node.storage[0], c, &c.header_key, headers)
        and _export_bytes(&node.storage[1], c, &c.header_value, headers)
    )


cdef bint _export_fixed(ArrowArray* out, Columns* c, const Buffer* values) noexcept nogil:
    cdef ArrayNode* node = _array(out, c, c.rows, 2, 0)
    if node == NULL:
        return False
    node.buffers[1] = values.data
    return True


cdef bint _export_bytes(ArrowArray* out, Columns* c, ByteColumn* column, int64_t rows) noexcept nogil:
    cdef ArrayNode* node
    if not _grow(&column.bytes, 0, 1):
        return False
    node = _array(out, c, rows, 3, 0)
    if node == NULL:
        return False
    _set_validity(out, node, &column.validity)
    node.buffers[1] = column.offsets.data
    node.buffers[2] = column.bytes.data
    return True


cdef void _set_validity(ArrowArray* out, ArrayNode* node, const Buffer* validity) noexcept nogil:
    node.buffers[0] = validity.data
    out.null_count = 0 if validity.data == NULL else -1  # -1: for the reader to count


cdef void _release_schema(ArrowSchema* schema) noexcept nogil:
    cdef SchemaNode* node = <SchemaNode*> schema.private_data
    cdef int64_t i
    for i in range(schema.n_children):
        if node.storage[i].release != NULL:
            node.storage[i].release(&node.storage[i])
    free(node)
    schema.release = NULL


cdef void _release_array(ArrowArray* array) noexcept nogil:
    cdef ArrayNode* node = <ArrayNode*> array.private_data
    cdef int64_t i
    for i in range(array.n_children):
        if node.storage[i].release != NULL:
            node.storage[i].release(&node.storage[i])
    _release_columns(node.columns)
    free(node)
    array.release = NULL


cdef void _drop_schema_capsule(object capsule) noexcept:
    cdef ArrowSchema* schema = <ArrowSchema*> PyCapsule_GetPointer(capsule, b"arrow_schema")
    if schema.release != NULL:
        schema.release(schema)
    free(schema)


cdef void _drop_array_capsule(object capsule) noexcept:
    cdef ArrowArray* array = <ArrowArray*> PyCapsule_GetPointer(capsule, b"arrow_array")
    if array.release != NULL:
        array.release(array)
    free(array)
