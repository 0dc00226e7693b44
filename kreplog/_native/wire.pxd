# Primitives of Kafka's wire format: checked reads, writes around records that are never copied, fields of dataclasses.
#
#                        plain versions                flexible versions (KIP-482)
#   string               int16 length, UTF-8           unsigned varint of length + 1, UTF-8
#   records              int32 length, bytes           unsigned varint of length + 1, bytes
#   array                int32 count, items            unsigned varint of count + 1, items
#   null                 length or count of -1         length or count written as 0
#   end of each struct   -                             tags: count, then (tag, size, bytes) each; all unsigned varints
#
# Integers are big-endian. Reads know where the bytes end; each raises PeerProtocolError rather than go past it.

from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t

from kreplog._native.cursor cimport likely, load16, load32, load64, store16, store32, store64, unlikely

cdef extern from "Python.h":
    object PyType_GenericAlloc(PyTypeObject* type, Py_ssize_t items)

cdef enum:
    BUDGET = 400000  # topics, partitions and tags of one message: more than any cluster has, few enough for memory
    UUID_SIZE = 16


cdef struct Input:
    const uint8_t* start
    const uint8_t* at
    const uint8_t* end
    bint flexible
    int32_t budget  # how many more items the message may have


cdef int fail(const Input* input, str reason) except -1


cdef inline int need(const Input* input, Py_ssize_t size) except -1:
    if unlikely(input.end - input.at < size):
        fail(input, "the message is cut short")
    return 0


cdef inline int8_t read_int8(Input* input) except? -1:
    need(input, 1)
    input.at += 1
    return <int8_t> (input.at - 1)[0]


cdef inline int16_t read_int16(Input* input) except? -1:
    need(input, 2)
    input.at += 2
    return <int16_t> load16(input.at - 2)


cdef inline int32_t read_int32(Input* input) except? -1:
    need(input, 4)
    input.at += 4
    return <int32_t> load32(input.at - 4)


cdef inline int64_t read_int64(Input* input) except? -1:
    need(input, 8)
    input.at += 8
    return <int64_t> load64(input.at - 8)


cdef inline int64_t read_unsigned(Input* input) except -1:
    """An unsigned varint of at most 32 bits."""
    if likely(input.at < input.end and input.at[0] < 0x80):
        input.at += 1
        return (input.at - 1)[0]
    return read_unsigned_long(input)


cdef inline Py_ssize_t read_count(Input* input, Py_ssize_t item_size) except -2:
    """Items of an array, -1 for null; no more than bytes are left for, of at least `item_size` each, nor the budget."""
    cdef int64_t count
    if input.flexible:
        count = read_unsigned(input) - 1
    else:
        count = read_int32(input)
    if unlikely(count < -1 or count > (input.end - input.at) // item_size):
        fail(input, "an array is longer than the message")
    if count > 0:
        spend(input, count)
    return count


cdef inline int spend(Input* input, Py_ssize_t items) except -1:
    if unlikely(items > input.budget):
        fail(input, "the message has too many items")
    input.budget -= <int32_t> items
    return 0


cdef inline Py_ssize_t read_array(Input* input, Py_ssize_t item_size) except -1:
    """Items of an array that cannot be null."""
    cdef Py_ssize_t count = read_count(input, item_size)
    if unlikely(count < 0):
        fail(input, "an array is null")
    return count


cdef inline Py_ssize_t read_length(Input* input, bint wide) except -2:
    """Bytes that follow of a string, or `wide` of records; -1 for null."""
    cdef int64_t length
    if input.flexible:
        length = read_unsigned(input) - 1
    elif wide:
        length = read_int32(input)
    else:
        length = read_int16(input)
    if unlikely(length < -1 or length > input.end - input.at):
        fail(input, "a string or records are longer than the message")
    return length


cdef inline int end_struct(Input* input) except -1:
    """Skip the tags that end a struct in flexible versions."""
    if input.flexible:
        if likely(input.at < input.end and input.at[0] == 0):
            input.at += 1
            return 0
        skip_tags(input)
    return 0


cdef int64_t read_unsigned_long(Input* input) except -1
cdef int64_t read_tag(Input* input, Input* content) except -1
cdef int skip_tags(Input* input) except -1
cdef Py_ssize_t read_tag_count(Input* input) except -1
cdef int close_tag(Input* input, const Input* content) except -1
cdef int close_message(const Input* input) except -1
cdef str read_text(Input* input)
cdef str read_nullable_text(Input* input)
cdef str read_topic_id(Input* input)
cdef object read_records(Input* input, object view)


cdef class Frame:
    """Bytes while they are decoded. `view`: a memoryview of them, that records are cut from."""

    cdef readonly object view
    cdef Py_buffer buffer

    cdef int open(self, Input* input, Py_ssize_t start, bint flexible) except -1


cdef class Output:
    """A frame being written: its small parts in one buffer, and where records go between them."""

    cdef uint8_t* buffer
    cdef Py_ssize_t length
    cdef Py_ssize_t capacity
    cdef Py_ssize_t outside  # bytes of records
    cdef bint flexible
    cdef list records
    cdef list cuts

    cdef int grow(self, Py_ssize_t size) except -1
    cdef int text(self, str value) except -1
    cdef int topic_id(self, str value) except -1
    cdef int raw(self, bytes value) except -1
    cdef int put_records(self, object value) except -1
    cdef list finish(self)

    cdef inline int reserve(self, Py_ssize_t size) except -1:
        if unlikely(self.capacity - self.length < size):
            self.grow(size)
        return 0

    cdef inline int int8(self, int8_t value) except -1:
        self.reserve(1)
        self.buffer[self.length] = <uint8_t> value
        self.length += 1
        return 0

    cdef inline int int16(self, int16_t value) except -1:
        self.reserve(2)
        store16(self.buffer + self.length, <unsigned short> value)
        self.length += 2
        return 0

    cdef inline int int32(self, int32_t value) except -1:
        self.reserve(4)
        store32(self.buffer + self.length, <uint32_t> value)
        self.length += 4
        return 0

    cdef inline int int64(self, int64_t value) except -1:
        self.reserve(8)
        store64(self.buffer + self.length, <unsigned long long> value)
        self.length += 8
        return 0

    cdef inline int unsigned(self, uint32_t value) except -1:
        self.reserve(5)
        while value >= 0x80:
            self.buffer[self.length] = <uint8_t> (value | 0x80)
            self.length += 1
            value >>= 7
        self.buffer[self.length] = <uint8_t> value
        self.length += 1
        return 0

    cdef inline int array(self, Py_ssize_t count) except -1:
        if self.flexible:
            return self.unsigned(<uint32_t> (count + 1))
        return self.int32(<int32_t> count)

    cdef inline int end_struct(self) except -1:
        if self.flexible:
            self.int8(0)
        return 0


cdef class Slots:
    """The fields of a frozen, slotted dataclass, by their number; read and set where they lie in the object.

    Its own __init__ and attribute lookup take ten times as long, for each partition of each message.
    """

    cdef PyTypeObject* type
    cdef readonly object cls
    cdef Py_ssize_t count
    cdef Py_ssize_t offsets[16]

    cdef int expect(self, object instance) except -1

    cdef inline object new(self):
        """An instance with no field set: the caller sets each once before it hands the instance out."""
        return PyType_GenericAlloc(self.type, 0)

    cdef inline void set(self, object instance, int field, object value) noexcept:
        Py_INCREF(value)
        (<PyObject**> (<char*> <PyObject*> instance + self.offsets[field]))[0] = <PyObject*> value

    cdef inline object get(self, object instance, int field):
        """A field of an instance that expect() has passed."""
        return <object> (<PyObject**> (<char*> <PyObject*> instance + self.offsets[field]))[0]


cdef object error_of(int code)
cdef object partition_of(object topic, int32_t partition)
cdef str topic_of(object topic_partition)
cdef int32_t number_of(object topic_partition) except? -1
cdef Py_ssize_t run_end(tuple items, Py_ssize_t start, Slots slots, int field, int id_field) except -1
cdef Py_ssize_t count_runs(tuple items, Slots slots, int field, int id_field) except -1
