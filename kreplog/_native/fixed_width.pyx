"""Columns of one width, lent through the buffer protocol without a copy: what `Log.to_numpy` makes its arrays of."""

from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport int32_t, int64_t

from kreplog._native.arrow_export cimport ArrowColumns
from kreplog._native.arrow_memory cimport ByteColumn, Columns

from kreplog.errors import UsageError


cdef class FixedWidthColumn:
    """A read-only buffer over a finished column. The memory lives as long as any view of it."""

    cdef ArrowColumns owner
    cdef void* data
    cdef Py_ssize_t length

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.length, True, flags)


cdef object _lend(ArrowColumns owner, void* data, Py_ssize_t length):
    cdef FixedWidthColumn column = FixedWidthColumn.__new__(FixedWidthColumn)
    column.owner = owner
    column.data = data
    column.length = length
    return memoryview(column)


def offsets(ArrowColumns columns):
    """The offset column, int64, of columns that were built with it."""
    return _lend(columns, columns._columns.offset.data, 8 * columns._columns.rows)


def timestamps(ArrowColumns columns):
    """The timestamp column, int64, of columns that were built with it."""
    return _lend(columns, columns._columns.timestamp.data, 8 * columns._columns.rows)


def values(ArrowColumns columns, Py_ssize_t width):
    """The value column, `width` bytes a row, of columns that were built with it and with the offsets.

    width: at least 1. Raises UsageError for the first record whose value is null or of another size.
    """
    cdef Columns* c = columns._columns
    cdef int64_t row = _first_of_other_width(&c.value, c.rows, width)
    if row < c.rows:
        offset = (<int64_t*> c.offset.data)[row]
        raise UsageError(
            f"the record at offset {offset} has {_size(&c.value, row)}, where the dtype takes {width} bytes: choose a "
            "dtype of the values' size or another range of offsets, or read values of several sizes with to_arrow",
            offset=offset,
        )
    return _lend(columns, c.value.bytes.data, c.rows * width)


cdef int64_t _first_of_other_width(const ByteColumn* column, int64_t rows, Py_ssize_t width) noexcept nogil:
    cdef const int32_t* bounds = <const int32_t*> column.offsets.data
    cdef int64_t row
    for row in range(rows):
        if bounds[row + 1] - bounds[row] != width:
            return row
    return rows


cdef str _size(const ByteColumn* column, int64_t row):
    cdef const int32_t* bounds = <const int32_t*> column.offsets.data
    if column.validity.data != NULL and not column.validity.data[row >> 3] >> (row & 7) & 1:
        return "no value"
    return f"a value of {bounds[row + 1] - bounds[row]} bytes"
