"""Rows for the partitions of a topic: columns of any kind as ArrowRows, and rows appended to a log natively.

Columns that are no Arrow table (lists, NumPy arrays, single Arrow arrays) are copied into buffers of Arrow's layout
first: their objects are looked at once, in order, and whatever other threads do with them later changes nothing. From
then on no Python object is touched, and the lock of the interpreter is only taken for the calls of the log.
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, strcmp

from kreplog._native.arrow_export cimport ArrowArray, ArrowSchema
from kreplog._native.arrow_records cimport (
    BEHIND,
    LARGE,
    WIDE,
    ArrowRows,
    ArrowStream,
    Input,
    RowSelection,
    bytes_at,
    bytes_column,
    stream_error,
)
from kreplog._native.batch cimport BatchBuilder, Bytes, wall_clock_ms
from kreplog._native.columns cimport Column, Timestamps, column_of, timestamps_of
from kreplog._native.log cimport SegmentedLog

from kreplog._native.arrow_records import array_rows, stream_rows
from kreplog.errors import ArgumentTypeError, RecordTooLargeError, ResourceExhaustedError, UsageError

cdef enum:
    COALESCE = 1 << 20  # bytes that go out in one write
    RECORD_SPACE = 61 + 36  # a batch of one record takes at most this beside key, value and headers
    FIRST_BYTES = 1 << 16


@cython.final
cdef class PackedColumn:
    """Bytes or int64s, one after the other, as an Arrow array of its own."""

    cdef ArrowArray array
    cdef const void* buffers[3]
    cdef uint8_t* validity
    cdef int64_t* offsets  # or the numbers themselves
    cdef uint8_t* data
    cdef Py_ssize_t capacity
    cdef Py_ssize_t rows

    def __dealloc__(self):
        free(self.validity)
        free(self.offsets)
        free(self.data)

    cdef int make_room(self, Py_ssize_t rows) except -1:
        """For `rows` more rows; those that stand there stay."""
        cdef Py_ssize_t count = self.array.length + rows
        cdef uint8_t* validity
        cdef int64_t* offsets
        if count <= self.rows:
            return 0
        count = max(count, 2 * self.rows)
        validity = <uint8_t*> realloc(self.validity, count // 8 + 1)
        if validity == NULL:
            raise MemoryError()
        self.validity = validity
        offsets = <int64_t*> realloc(self.offsets, (count + 1) * sizeof(int64_t))
        if offsets == NULL:
            raise MemoryError()
        if self.offsets == NULL:
            offsets[0] = 0
        self.offsets = offsets
        self.rows = count
        return 0

    cdef int push(self, const Bytes* item) except -1:
        """Add a row of bytes; one of length -1 is null."""
        cdef int64_t i = self.array.length
        cdef int64_t at = self.offsets[i]
        cdef Py_ssize_t length = max(item.length, <Py_ssize_t> 0)
        cdef uint8_t* grown
        if at + length > self.capacity:
            self.capacity = max(<Py_ssize_t> at + length, 2 * self.capacity, <Py_ssize_t> FIRST_BYTES)
            grown = <uint8_t*> realloc(self.data, self.capacity)
            if grown == NULL:
                raise MemoryError()
            self.data = grown
        if length:
            memcpy(self.data + at, item.data, length)
        if i & 7 == 0:
            self.validity[i >> 3] = 0
        if item.length >= 0:
            self.validity[i >> 3] |= <uint8_t> (1 << (i & 7))
        self.offsets[i + 1] = at + length
        self.array.length = i + 1
        return 0

    cdef Input finish(self, bint with_nulls) noexcept:
        cdef Input column
        self.buffers[0] = self.validity if with_nulls else NULL
        self.buffers[1] = self.offsets
        self.buffers[2] = self.data
        self.array.buffers = self.buffers
        column.kind = WIDE
        column.first = 0
        column.factor = 1
        column.array = &self.array
        return column


def rows_of(values, keys=None, timestamps_ms=None):
    """Columns as a list of ArrowRows: a table as arrow_pieces takes it, or single columns of equal length.

    values, keys: what Log.append_many takes, or an Arrow array in chunks. Raises ArgumentTypeError, UsageError.
    """
    cdef ArrowRows rows
    cdef PackedColumn value_column
    cdef PackedColumn key_column
    cdef PackedColumn timestamp_column
    stream, array = _exported(values)
    if keys is None and timestamps_ms is None:
        if stream is not None and _has_rows(stream):
            return list(stream_rows(stream))
        if array is not None and _is_struct(array):
            return [array_rows(array)]
    value_column = _pack(values, stream, array, "values")
    rows = ArrowRows.__new__(ArrowRows)
    rows.length = value_column.array.length
    rows.inputs.value = value_column.finish(True)
    key_column = timestamp_column = None
    if keys is not None:
        stream, array = _exported(keys)
        key_column = _pack(keys, stream, array, "keys")
        if key_column.array.length != rows.length:
            raise UsageError(f"keys has {key_column.array.length} items, values has {rows.length}")
        rows.inputs.key = key_column.finish(True)
    if timestamps_ms is not None:
        timestamp_column = _pack_timestamps(timestamps_ms, rows.length)
        rows.inputs.timestamp = timestamp_column.finish(False)
    rows.capsules = value_column, key_column, timestamp_column
    return [rows]


cdef tuple _exported(object data):
    """As an Arrow stream, or else an Arrow array; None for what it does not export."""
    if hasattr(data, "__arrow_c_stream__"):
        return data.__arrow_c_stream__(), None
    return None, data.__arrow_c_array__() if hasattr(data, "__arrow_c_array__") else None


cdef bint _has_rows(capsule) except -1:
    """Whether an exported stream is of record batches, not of one column."""
    cdef ArrowStream* stream = <ArrowStream*> PyCapsule_GetPointer(capsule, b"arrow_array_stream")
    cdef ArrowSchema schema
    _get_schema(stream, &schema)
    found = strcmp(schema.format, b"+s") == 0
    schema.release(&schema)
    return found


cdef bint _is_struct(capsules) except -1:
    return strcmp((<ArrowSchema*> PyCapsule_GetPointer(capsules[0], b"arrow_schema")).format, b"+s") == 0


cdef int _get_schema(ArrowStream* stream, ArrowSchema* schema) except -1:
    if stream.get_schema(stream, schema) != 0:
        raise ArgumentTypeError(f"the Arrow stream gives no schema: {stream_error(stream)}")
    return 0


cdef PackedColumn _pack(object values, stream, array, str name):
    """values: also as an exported Arrow stream or array, where it is one."""
    cdef PackedColumn packed = PackedColumn.__new__(PackedColumn)
    cdef Column column
    cdef Bytes item
    cdef Py_ssize_t i
    if stream is not None:
        _pack_stream(packed, stream, name)
    elif array is not None:
        _pack_array(
            packed, <ArrowSchema*> PyCapsule_GetPointer(array[0], b"arrow_schema"),
            <ArrowArray*> PyCapsule_GetPointer(array[1], b"arrow_array"), name,
        )
    else:
        column = column_of(values, name)
        packed.make_room(column.length)
        for i in range(column.length):
            column.at(i, &item)
            packed.push(&item)
    return packed


cdef int _pack_stream(PackedColumn packed, capsule, str name) except -1:
    cdef ArrowStream* stream = <ArrowStream*> PyCapsule_GetPointer(capsule, b"arrow_array_stream")
    cdef ArrowSchema schema
    cdef ArrowArray array
    _get_schema(stream, &schema)
    try:
        while True:
            if stream.get_next(stream, &array) != 0:
                raise ArgumentTypeError(f"{name}: the Arrow stream failed: {stream_error(stream)}")
            if array.release == NULL:
                return 0
            try:
                _pack_array(packed, &schema, &array, name)
            finally:
                array.release(&array)
    finally:
        schema.release(&schema)


cdef int _pack_array(PackedColumn packed, const ArrowSchema* schema, const ArrowArray* array, str name) except -1:
    cdef Input column
    cdef Bytes item
    cdef int64_t i
    if schema.dictionary != NULL:
        raise ArgumentTypeError(f"{name} is dictionary-encoded: cast it to its values first")
    column = bytes_column(name, schema, array, 0)
    packed.make_room(array.length)
    for i in range(array.length):
        bytes_at(&column, i, &item)
        packed.push(&item)
    return 0


cdef PackedColumn _pack_timestamps(object timestamps_ms, Py_ssize_t expected):
    cdef Timestamps timestamps = timestamps_of(timestamps_ms, expected)
    cdef PackedColumn packed = PackedColumn.__new__(PackedColumn)
    cdef Py_ssize_t i
    packed.make_room(expected)
    for i in range(expected):
        packed.offsets[i] = timestamps.at(i)
    packed.array.length = expected
    return packed


def check_rows(SegmentedLog log not None, RowSelection rows not None):
    """Raise RecordTooLargeError if the log takes no record as large as one of `rows`, InvalidRecordError if it is
    compacted and one has no key."""
    cdef int64_t wrong
    with nogil:
        wrong = rows.first_over(log.record_limit - RECORD_SPACE)
    if wrong >= 0:
        raise RecordTooLargeError(
            f"{log.name}: the record of row {wrong} is over the limit of {log.record_limit} bytes for one batch "
            "(max_message_bytes, or half of what a compressed batch may expand to); nothing was written: split the "
            "record or raise the limit", partition=log.name,
        )
    if log.needs_keys:
        with nogil:
            wrong = rows.first_keyless()
        if wrong >= 0:
            log.refuse_keyless()


def append_rows(SegmentedLog log not None, list selections not None, make_room=None):
    """Append the rows of each RowSelection in turn, which are checked; return the range of their offsets.

    make_room: called where the process may open no more files; where it returns True, the rest is appended, with what
    other threads have appended meanwhile before it and within the range. Raises LogFailedError, LogClosedError, and
    ResourceExhaustedError: of several batches the first may be written, log_end_offset says how many records."""
    cdef int64_t first = INT64_MAX
    cdef int64_t next_offset = 0
    cdef RowSelection rows
    while True:
        try:
            write_rows(log, selections, &first, &next_offset)
            break
        except ResourceExhaustedError:
            if make_room is None or not make_room():
                raise
            for rows in selections:
                rows.position = rows.written
    log.flush_due(next_offset)
    return range(first, next_offset)


cdef int write_rows(SegmentedLog log, list selections, int64_t* first, int64_t* next_offset) except -1:
    """Encode and write what is not written yet. first: at most the offset of the first record that was."""
    cdef BatchBuilder builder = log.builder
    cdef RowSelection rows
    cdef Py_ssize_t piece = min(log.segment_bytes, <int64_t> COALESCE)
    cdef Py_ssize_t needed = 0
    cdef int64_t now = wall_clock_ms()
    cdef int64_t max_timestamp = 0
    cdef int64_t start
    cdef int code
    log.begin_write()
    try:
        start = next_offset[0] = log.position.leo
        if log.current_epoch != log.last_epoch:
            log.assign_epoch(log.current_epoch)
        builder.reset()
        for rows in selections:
            while rows.position < rows.length:
                if builder.length and builder.length + log.batch_bytes > piece:
                    log.write(builder.buffer, builder.length, next_offset[0], max_timestamp)
                    builder.reset()
                    note_written(selections)
                    first[0] = min(first[0], start)
                builder.begin()
                builder.reserve(log.batch_bytes)
                while True:
                    with nogil:
                        code = rows.encode(builder, log.batch_bytes, log.record_limit, now, &needed)
                    if code != LARGE or needed > log.record_limit:
                        break
                    builder.reserve(needed + BEHIND)
                if builder.count == 0:
                    raise UsageError(
                        f"{log.name}: rows were changed by another thread while they were appended; the records before "
                        "them may be in the log", partition=log.name,
                    )
                next_offset[0] += log._close_batch(builder, next_offset[0], &max_timestamp)
        if builder.length:
            log.write(builder.buffer, builder.length, next_offset[0], max_timestamp)
            note_written(selections)
        first[0] = min(first[0], start)
    finally:
        log.unlock()
    return 0


cdef int note_written(list selections) except -1:
    cdef RowSelection rows
    for rows in selections:
        rows.written = rows.position
    return 0
