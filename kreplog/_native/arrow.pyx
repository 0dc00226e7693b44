"""Record batches to Arrow columns: one walk over the bytes, no Python object per record.

ArrowBuilder collects the records of a range of offsets and hands them over as ArrowColumns, which any Arrow library
imports through the C data interface. The caller chooses the bytes to read and where to stop: this module has no access
to files or the high watermark.

    column          Arrow type                                         null
    offset          int64                                              never
    timestamp       timestamp[ms or us, tz=UTC]                        never
    timestampType   int32: 0 create time, 1 log append time            never
    key, value      binary                                             where the record's is null
    headers         list<element: struct<key: string, value: binary>>  where the record has none

The buffers are `arrow_memory`'s, handing them over `arrow_export`'s. The builder keeps a reference to the last few
columns that it lent out, and refills them once it is the only holder.
The state while building is the row count alone: bytes behind it are scratch, so a batch that turns out to be corrupt
leaves no trace.
"""

from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t
from libc.string cimport memcpy, memmove, memset

from kreplog._native.arrow_memory cimport (
    HEADERS,
    KEY,
    NO_MEMORY,
    OFFSET,
    TIMESTAMP,
    TIMESTAMP_TYPE,
    TOO_LARGE,
    VALUE,
    Buffer,
    ByteColumn,
    bytes_used,
    empty,
    grow,
    new_columns,
    ref_add,
    release_columns,
    reserve_batch,
    reserve_rows,
    same_room,
)
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

COLUMNS = ("offset", "timestamp", "timestampType", "key", "value", "headers")

cdef enum:  # beside NO_MEMORY, TOO_LARGE and the negative codes of batch.pxd
    COMPRESSED = 1
    TIMESTAMP_OVERFLOW = 4

cdef enum:
    MAX_INFERRED = 1 << 16  # records of a compressed batch that its header alone may vouch for


cdef class ArrowBuilder:
    """Collects records into the requested columns, in the order requested; `finish` hands them over.

    columns: any of COLUMNS, each at most once, at least one. timestamp_unit: "ms" or "us".
    Other columns are not decoded: of a batch whose header determines the columns, no record is. Not for use by two
    threads at once (refused with UsageError).
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
        self._columns = new_columns(wanted, 1000 if timestamp_unit == "us" else 1)
        if self._columns == NULL:
            raise MemoryError()

    def __dealloc__(self):
        cdef int i
        release_columns(self._columns)
        for i in range(LENT):
            release_columns(self._lent[i])

    @property
    def rows(self):
        """Records collected since the last `finish`."""
        return self._columns.rows

    @property
    def nbytes(self):
        """Bytes of the buffers that these rows fill."""
        return bytes_used(self._columns)

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
        """Return the collected rows, which may be none, and start the next ones."""
        if self._busy:
            raise UsageError("this ArrowBuilder is in use by another thread: make one for each")
        cdef Columns* fresh = self._take_back()
        cdef ArrowColumns out = ArrowColumns.__new__(ArrowColumns)
        out._columns = self._columns
        out._order = self._order
        out._count = self._count
        ref_add(&self._columns.references, 1)
        release_columns(self._lent[LENT - 1])
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
                empty(c)
                return c
        c = new_columns(self._columns.wanted, self._columns.timestamp_factor)
        if c == NULL or not same_room(c, self._columns):
            release_columns(c)
            raise MemoryError()
        return c


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
            f"a timestamp in the batch at offset {offset} does not fit microseconds: use timestamp_unit='ms', or "
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
            if _header_suffices(c, header):
                code = _add_numbers(c, header, start, stop)
            elif codec_of(header):
                return COMPRESSED
            else:
                code = _add_records(c, header, batch + HEADER_SIZE, batch_size(header) - HEADER_SIZE, start, stop)
            if code != BATCH_OK:
                return code
        position[0] += batch_size(header)
    return BATCH_OK


cdef bint _header_suffices(const Columns* c, const BatchHeader* header) noexcept nogil:
    """Whether the header alone determines the wanted columns: offsets have no gaps, and times are the batch's.

    The count is untrusted: memory is reserved only for what the bytes can hold, or, compressed, for MAX_INFERRED."""
    cdef int32_t count = header.record_count
    if c.wanted & (1 << KEY | 1 << VALUE | 1 << HEADERS) or count != header.last_offset_delta + 1:
        return False
    if c.wanted & (1 << TIMESTAMP) and not header.attributes & LOG_APPEND_TIME:
        return False
    if codec_of(header):
        return count <= MAX_INFERRED
    return count <= (batch_size(header) - HEADER_SIZE) // MIN_RECORD_SIZE


cdef int _add_numbers(Columns* c, const BatchHeader* header, int64_t start, int64_t stop) noexcept nogil:
    """Add the records in range of a batch whose header suffices."""
    cdef int64_t first = max(start, header.base_offset)
    cdef int64_t count = max(<int64_t> 0, min(stop, next_offset_of(header)) - first)
    cdef int64_t factor = c.timestamp_factor
    cdef int64_t row = c.rows
    cdef int64_t i
    if not reserve_rows(c, row + count):
        return NO_MEMORY
    if c.wanted & (1 << OFFSET):
        for i in range(count):
            (<int64_t*> c.offset.data)[row + i] = first + i
    if c.wanted & (1 << TIMESTAMP):
        if not INT64_MIN // factor <= header.max_timestamp <= INT64_MAX // factor:
            return TIMESTAMP_OVERFLOW
        for i in range(count):
            (<int64_t*> c.timestamp.data)[row + i] = header.max_timestamp * factor
    if c.wanted & (1 << TIMESTAMP_TYPE):
        for i in range(count):
            (<int32_t*> c.timestamp_type.data)[row + i] = (header.attributes & LOG_APPEND_TIME) != 0
    c.rows = row + count
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
    cdef int code = reserve_batch(c, min(<int64_t> header.record_count, <int64_t> length // MIN_RECORD_SIZE), length)
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
        if not grow(validity, had, needed):
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
