"""Columns: the growing buffers that Arrow columns are built in.

Buffers are aligned to 64 bytes and belong to a `Columns`, which counts its references: the builder or the ArrowColumns
holds one, every exported Arrow array one more, and the last to let go frees it, on whatever thread that happens. Room
is made before a row is put, by whoever puts it; bytes behind the row count are scratch.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from kreplog._native.batch cimport BATCH_OK

cdef extern from "stdlib.h" nogil:
    int posix_memalign(void** out, size_t alignment, size_t size)

cdef enum:
    ALIGNMENT = 64
    LOSSY_UTF8_GROWTH = 3  # bytes of U+FFFD, which may stand for a single invalid one


cdef Columns* new_columns(int wanted, int64_t timestamp_factor) noexcept nogil:
    """Empty columns with one reference; NULL without memory."""
    cdef Columns* c = <Columns*> calloc(1, sizeof(Columns))
    if c == NULL:
        return NULL
    c.references = 1
    c.wanted = wanted
    c.timestamp_factor = timestamp_factor
    if reserve_rows(c, 1) and (not wanted & (1 << HEADERS) or reserve_headers(c, 1)):
        return c
    release_columns(c)
    return NULL


cdef void release_columns(Columns* c) noexcept nogil:
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


cdef bint grow(Buffer* buffer, size_t used, size_t needed) noexcept nogil:
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


cdef bint grow_offsets(Buffer* buffer, int64_t used, int64_t needed) noexcept nogil:
    """Room for `needed` + 1 offsets, of which `used` + 1 are kept; the first is 0."""
    cdef bint fresh = buffer.data == NULL
    if not grow(buffer, 0 if fresh else 4 * <size_t> (used + 1), 4 * <size_t> (needed + 1)):
        return False
    if fresh:
        (<int32_t*> buffer.data)[0] = 0
    return True


cdef bint reserve_rows(Columns* c, int64_t needed) noexcept nogil:
    """Room for `needed` rows in every column wanted, their bytes aside."""
    cdef int64_t rows = c.rows
    if needed <= c.row_capacity:
        return True
    needed = max(needed, 2 * c.row_capacity)
    if c.wanted & (1 << OFFSET) and not grow(&c.offset, 8 * rows, 8 * needed):
        return False
    if c.wanted & (1 << TIMESTAMP) and not grow(&c.timestamp, 8 * rows, 8 * needed):
        return False
    if c.wanted & (1 << TIMESTAMP_TYPE) and not grow(&c.timestamp_type, 4 * rows, 4 * needed):
        return False
    if c.wanted & (1 << KEY) and not grow_offsets(&c.key.offsets, rows, needed):
        return False
    if c.wanted & (1 << VALUE) and not grow_offsets(&c.value.offsets, rows, needed):
        return False
    if c.wanted & (1 << HEADERS) and not grow_offsets(&c.header_lists, rows, needed):
        return False
    c.row_capacity = needed
    return True


cdef bint reserve_headers(Columns* c, int64_t needed) noexcept nogil:
    cdef int64_t used = headers_used(c)
    if needed <= c.header_capacity:
        return True
    needed = max(needed, 2 * c.header_capacity)
    if not grow_offsets(&c.header_key.offsets, used, needed):
        return False
    if not grow_offsets(&c.header_value.offsets, used, needed):
        return False
    c.header_capacity = needed
    return True


cdef int reserve_batch(Columns* c, int64_t records, Py_ssize_t length) noexcept nogil:
    """Room for a batch of at most so many records whose keys, values and headers lie within `length` bytes."""
    cdef int64_t room = <int64_t> length
    if not reserve_rows(c, c.rows + records):
        return NO_MEMORY
    if c.wanted & (1 << KEY):
        if bytes_of(&c.key, c.rows) + room > INT32_MAX:
            return TOO_LARGE
        if not grow(&c.key.bytes, bytes_of(&c.key, c.rows), bytes_of(&c.key, c.rows) + room):
            return NO_MEMORY
    if c.wanted & (1 << VALUE):
        if bytes_of(&c.value, c.rows) + room > INT32_MAX:
            return TOO_LARGE
        if not grow(&c.value.bytes, bytes_of(&c.value, c.rows), bytes_of(&c.value, c.rows) + room):
            return NO_MEMORY
    if c.wanted & (1 << HEADERS):
        return reserve_header_batch(c, headers_used(c), room)
    return BATCH_OK


cdef int reserve_header_batch(Columns* c, int64_t used, int64_t room) noexcept nogil:
    """Room for the headers within `room` bytes, of which one takes two or more."""
    cdef int64_t keys = bytes_of(&c.header_key, used) + LOSSY_UTF8_GROWTH * room
    cdef int64_t values = bytes_of(&c.header_value, used) + room
    if keys > INT32_MAX or values > INT32_MAX:
        return TOO_LARGE
    if (
        not reserve_headers(c, used + room // 2)
        or not grow(&c.header_key.bytes, bytes_of(&c.header_key, used), keys)
        or not grow(&c.header_value.bytes, bytes_of(&c.header_value, used), values)
    ):
        return NO_MEMORY
    return BATCH_OK


cdef void empty(Columns* c) noexcept nogil:
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


cdef bint same_room(Columns* fresh, const Columns* old) noexcept nogil:
    """Give `fresh` what `old` came to need, so that equal deliveries do not grow step by step each time."""
    return reserve_rows(fresh, old.row_capacity) and grow(
        &fresh.value.bytes, 0, min(old.value.bytes.capacity, 2 * <size_t> bytes_of(&old.value, old.rows))
    ) and grow(&fresh.key.bytes, 0, min(old.key.bytes.capacity, 2 * <size_t> bytes_of(&old.key, old.rows)))


cdef int64_t bytes_used(const Columns* c) noexcept nogil:
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
        headers = headers_used(c)
        used += 4 * (c.rows + 1) + _column_bytes(&c.header_key, headers) + _column_bytes(&c.header_value, headers)
        if c.header_lists_validity.data != NULL:
            used += (c.rows + 7) // 8
    return used


cdef int64_t _column_bytes(const ByteColumn* column, int64_t rows) noexcept nogil:
    return 4 * (rows + 1) + bytes_of(column, rows) + ((rows + 7) // 8 if column.validity.data != NULL else 0)
