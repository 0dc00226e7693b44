"""Many keys, values or timestamps at once, whatever they came in, read without a Python object per record.

Takes lists and other sequences of bytes-like, Arrow binary and string arrays through the Arrow PyCapsule interface (no
pyarrow needed here), and through the buffer protocol 2-D uint8 arrays and 1-D NumPy arrays of fixed-size items. Items
are checked when they are looked at; a caller that has to know of a bad one far down before it acts looks at all first.
"""

cimport cython
from cpython.buffer cimport PyBUF_FORMAT, PyBUF_STRIDES, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.number cimport PyNumber_Index
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t

from kreplog._native.arrow_export cimport ArrowArray, ArrowSchema
from kreplog._native.batch cimport Payload

from kreplog.errors import ArgumentTypeError, UsageError


@cython.final
cdef class Column:

    def __cinit__(self):
        self.payload = Payload()

    def __dealloc__(self):
        if self.viewed:
            PyBuffer_Release(&self.view)

    cdef int at_row(self, Py_ssize_t i, Bytes* out) noexcept:
        cdef ArrowArray* array
        cdef const uint8_t* validity
        cdef const int32_t* narrow
        cdef const int64_t* wide
        if self.kind == ROWS:
            out.data = <const uint8_t*> self.view.buf + i * self.view.strides[0]
            out.length = self.row_bytes
            return 0
        array = <ArrowArray*> self.array
        i += array.offset
        validity = <const uint8_t*> array.buffers[0]
        if validity != NULL and not validity[i >> 3] >> (i & 7) & 1:
            out.data = NULL
            out.length = -1
        elif self.kind == ARROW_32:
            narrow = <const int32_t*> array.buffers[1]
            out.data = <const uint8_t*> array.buffers[2] + narrow[i]
            out.length = narrow[i + 1] - narrow[i]
        else:
            wide = <const int64_t*> array.buffers[1]
            out.data = <const uint8_t*> array.buffers[2] + wide[i]
            out.length = wide[i + 1] - wide[i]
        return 0

    cdef int take_over(self, Py_ssize_t i, Bytes* out) except -1:
        """What is not bytes may run code that changes the caller's list: go on with a copy of it."""
        cdef list items = list(self.items)
        if self.settled or PyList_GET_SIZE(items) < self.length:
            self.refuse_change()
        self.items = items
        self.kind = LIST
        return self.payload.take(<object> PyList_GET_ITEM(items, i), out)

    cdef int refuse_change(self) except -1:
        raise UsageError(
            f"{self.name} was changed by another thread while it was appended; the records before the change may be in "
            "the log: give each call a list of its own"
        )


cdef Column column_of(object values, str name):
    """Raises ArgumentTypeError."""
    cdef Column column = Column.__new__(Column)
    cdef ArrowSchema* schema
    if isinstance(values, (str, bytes, bytearray)):
        raise ArgumentTypeError(f"{name} is a sequence of bytes-like, not one {type(values).__name__}; use append()")
    if hasattr(values, "combine_chunks"):
        values = values.combine_chunks()
    if hasattr(values, "__arrow_c_array__"):
        column.capsules = values.__arrow_c_array__()
        schema = <ArrowSchema*> PyCapsule_GetPointer(column.capsules[0], b"arrow_schema")
        column.array = PyCapsule_GetPointer(column.capsules[1], b"arrow_array")
        if schema.dictionary == NULL and schema.format in (b"z", b"u"):
            column.kind = ARROW_32
        elif schema.dictionary == NULL and schema.format in (b"Z", b"U"):
            column.kind = ARROW_64
        else:
            raise ArgumentTypeError(f"{name} must be an Arrow binary or string array, large or not; cast it first")
        column.length = (<ArrowArray*> column.array).length
        return column
    if not isinstance(values, (list, tuple)) and PyObject_CheckBuffer(values):
        PyObject_GetBuffer(values, &column.view, PyBUF_FORMAT | PyBUF_STRIDES)
        column.viewed = True
        if column.view.ndim == 2 and column.view.itemsize == 1 and column.view.strides[1] == 1:
            column.row_bytes = column.view.shape[1]
        elif column.view.ndim == 1 and column.view.itemsize > 1 and getattr(values, "dtype", None) is not None:
            if values.dtype.hasobject:
                raise ArgumentTypeError(f"{name} as an array must hold plain bytes or numbers, not Python objects")
            column.row_bytes = column.view.itemsize
        else:
            raise ArgumentTypeError(
                f"{name} as an array must be 2-D uint8 with contiguous rows, a record a row, or a 1-D NumPy array of "
                "items of 2 bytes or more, a record an item"
            )
        column.kind = ROWS
        column.length = column.view.shape[0]
        return column
    column.name = name
    if type(values) is list:
        column.items = values
        column.kind = CALLERS_LIST
    else:
        try:
            column.items = list(values)
        except TypeError:
            raise ArgumentTypeError(f"{name} is a sequence of bytes-like, not {type(values).__name__}") from None
        column.kind = LIST
    column.length = len(column.items)
    return column


cdef int64_t integer(object value, str name) except? -1:
    """An int, or what stands for one exactly. Raises ArgumentTypeError, UsageError beyond 64 bits."""
    try:
        return PyNumber_Index(value)
    except TypeError:
        raise ArgumentTypeError(f"{name} is an int, not {type(value).__name__}") from None
    except OverflowError:
        raise UsageError(f"{name} = {value} does not fit in 64 bits") from None


cdef int64_t timestamp_of(object value) except? -1:
    """A timestamp in ms as given by a caller. Raises ArgumentTypeError, UsageError."""
    cdef int64_t timestamp = value if type(value) is int and 0 <= value <= INT64_MAX else integer(value, "a timestamp")
    if timestamp < 0:
        raise UsageError(f"timestamp {value} is out of range: 0 to {INT64_MAX} ms since 1970")
    return timestamp


@cython.final
cdef class Timestamps:

    def __dealloc__(self):
        if self.viewed:
            PyBuffer_Release(&self.view)

    cdef int64_t at(self, Py_ssize_t i) except? -1:
        cdef int64_t timestamp
        if not self.viewed:
            return timestamp_of(<object> PyList_GET_ITEM(self.items, i))
        timestamp = (<int64_t*> (<char*> self.view.buf + i * self.view.strides[0]))[0]
        if timestamp < 0:
            raise UsageError(f"timestamp {timestamp} is out of range: 0 to {INT64_MAX} ms since 1970")
        return timestamp


cdef Timestamps timestamps_of(object values, Py_ssize_t expected):
    """Every timestamp checked. Raises ArgumentTypeError, UsageError (count or range)."""
    cdef Timestamps timestamps = Timestamps.__new__(Timestamps)
    cdef Py_ssize_t i
    if not isinstance(values, (list, tuple)) and PyObject_CheckBuffer(values):
        PyObject_GetBuffer(values, &timestamps.view, PyBUF_FORMAT | PyBUF_STRIDES)
        timestamps.viewed = True
        if timestamps.view.ndim != 1 or timestamps.view.format not in (b"l", b"q"):
            raise ArgumentTypeError("timestamps_ms as an array must be 1-D int64")
        timestamps.length = timestamps.view.shape[0]
    else:
        try:
            timestamps.items = list(values)
        except TypeError:
            raise ArgumentTypeError("timestamps_ms is a sequence of ints") from None
        timestamps.length = len(timestamps.items)
    if timestamps.length != expected:
        raise UsageError(f"timestamps_ms has {timestamps.length} items, values has {expected}")
    for i in range(expected):
        timestamps.at(i)
    return timestamps
