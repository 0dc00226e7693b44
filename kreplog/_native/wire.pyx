"""Primitives of Kafka's wire format, shared by the codecs; the rules of the format are at the top of wire.pxd.

Checked reading, writing, and access to the fields of dataclasses. The messages are in the codec modules.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject, PyTypeObject
from cpython.sequence cimport PySequence_GetSlice
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from kreplog._native.cursor cimport store32

from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import fields
from functools import lru_cache

from kreplog.errors import ArgumentTypeError, ErrorCode, PeerProtocolError, UsageError, check
from kreplog.types import FileRegion, TopicPartition

cdef extern from "structmember.h":
    ctypedef struct PyMemberDef:
        int type
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef* d_member
    PyTypeObject PyMemberDescr_Type
    int T_OBJECT_EX

cdef extern from *:
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL

cdef enum:
    MAX_FRAME = 0x7FFFFFFF
    FIRST_CAPACITY = 512

cdef dict _ERRORS = {int(code): code for code in ErrorCode}
cdef object _NO_ERROR = ErrorCode.NONE
cdef object _UNKNOWN_ERROR = ErrorCode.UNKNOWN_SERVER_ERROR


cdef int fail(const Input* input, str reason) except -1:
    raise PeerProtocolError(f"{reason}, at byte {input.at - input.start}", position=input.at - input.start)


cdef int64_t read_unsigned_long(Input* input) except -1:
    cdef int64_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while shift < 35:
        need(input, 1)
        byte = input.at[0]
        if shift == 28 and byte > 0x0F:
            break
        input.at += 1
        value |= <int64_t> (byte & 0x7F) << shift
        if byte < 0x80:
            return value
        shift += 7
    return fail(input, "a varint is wider than 32 bits")


cdef int64_t read_tag(Input* input, Input* content) except -1:
    """The next tag; `content` is set on its bytes, and `input` behind them."""
    cdef int64_t tag = read_unsigned(input)
    cdef int64_t size = read_unsigned(input)
    if size > input.end - input.at:
        fail(input, "a tagged field is longer than the message")
    content[0] = input[0]
    content.end = input.at + size
    input.at += size
    return tag


cdef int skip_tags(Input* input) except -1:
    cdef Py_ssize_t count = read_tag_count(input)
    cdef Py_ssize_t _
    cdef Input content
    for _ in range(count):
        read_tag(input, &content)
    return 0


cdef Py_ssize_t read_tag_count(Input* input) except -1:
    cdef int64_t count = read_unsigned(input)
    if count > (input.end - input.at) // 2:
        fail(input, "there are more tagged fields than bytes")
    spend(input, count)
    return count


cdef int close_tag(Input* input, const Input* content) except -1:
    if content.at != content.end:
        fail(content, "a tagged field is longer than its content")
    input.budget = content.budget
    return 0


cdef int close_message(const Input* input) except -1:
    if input.at != input.end:
        fail(input, "bytes are left behind the end of the message")
    return 0


cdef str read_text(Input* input):
    cdef str text = read_nullable_text(input)
    if text is None:
        fail(input, "a string is null")
    return text


cdef str read_nullable_text(Input* input):
    cdef Py_ssize_t length = read_length(input, False)
    if length < 0:
        return None
    try:
        text = PyUnicode_DecodeUTF8(<const char*> input.at, length, NULL)
    except UnicodeDecodeError:
        fail(input, "a string is not UTF-8")
    input.at += length
    return text


cdef str read_topic_id(Input* input):
    need(input, UUID_SIZE)
    input.at += UUID_SIZE
    return topic_id_of(PyBytes_FromStringAndSize(<const char*> input.at - UUID_SIZE, UUID_SIZE))


cdef object read_records(Input* input, object view):
    """A slice of `view`; b"" for none."""
    cdef Py_ssize_t length = read_length(input, True)
    cdef Py_ssize_t start = input.at - input.start
    if length <= 0:
        return b""
    input.at += length
    return PySequence_GetSlice(view, start, start + length)


@lru_cache(maxsize=4096)
def topic_id_of(bytes raw):
    """A topic id as text: 16 bytes in Kafka's base64, "" for all zero."""
    return "" if raw == bytes(UUID_SIZE) else urlsafe_b64encode(raw).rstrip(b"=").decode()


@lru_cache(maxsize=4096)
def topic_id_bytes(str text):
    """A topic id as 16 bytes. Raises UsageError when `text` is none."""
    if not text:
        return bytes(UUID_SIZE)
    try:
        raw = urlsafe_b64decode(text + "==")
    except ValueError:
        raw = b""
    if len(raw) != UUID_SIZE:
        raise UsageError(f"{text!r} is no topic id: 16 bytes in URL-safe base64, without padding")
    return raw


@cython.final
cdef class Frame:

    def __init__(self, data):
        if not PyObject_CheckBuffer(data):
            raise ArgumentTypeError(f"a frame is bytes-like, not {type(data).__name__}")
        self.view = memoryview(data)

    cdef int open(self, Input* input, Py_ssize_t start, bint flexible) except -1:
        """`input` reads from byte `start` on; the buffer is held until this object goes."""
        PyObject_GetBuffer(self.view, &self.buffer, PyBUF_SIMPLE)
        if start < 0 or start > self.buffer.len:
            raise UsageError(f"byte {start} lies outside of a frame of {self.buffer.len} bytes")
        input.start = <const uint8_t*> self.buffer.buf
        input.at = input.start + start
        input.end = input.start + self.buffer.len
        input.flexible = flexible
        input.budget = BUDGET
        return 0

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)  # nothing where it was never opened


@cython.final
cdef class Output:

    def __cinit__(self, bytes header, bint flexible):
        """header: of the request or response; the frame's size goes before it, once it is known."""
        self.records = []
        self.cuts = []
        self.flexible = flexible
        self.grow(FIRST_CAPACITY)
        self.length = 4
        self.raw(header)

    def __dealloc__(self):
        PyMem_Free(self.buffer)

    cdef int grow(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t capacity = max(2 * self.capacity, self.length + size)
        cdef uint8_t* buffer = <uint8_t*> PyMem_Realloc(self.buffer, capacity)
        if buffer is NULL:
            raise MemoryError()
        self.buffer = buffer
        self.capacity = capacity
        return 0

    cdef int text(self, str value) except -1:
        """A string, None for null."""
        cdef Py_ssize_t size = -1
        cdef const char* data = NULL
        if value is not None:
            data = PyUnicode_AsUTF8AndSize(value, &size)
        if self.flexible:
            self.unsigned(<uint32_t> (size + 1))
        elif size > 0x7FFF:
            raise UsageError(f"a string of {size} bytes is too long for Kafka's protocol: 32767 at most")
        else:
            self.int16(<short> size)
        if size > 0:
            self.reserve(size)
            memcpy(self.buffer + self.length, data, size)
            self.length += size
        return 0

    cdef int topic_id(self, str value) except -1:
        return self.raw(topic_id_bytes(value))

    cdef int raw(self, bytes value) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(value)
        self.reserve(size)
        memcpy(self.buffer + self.length, PyBytes_AS_STRING(value), size)
        self.length += size
        return 0

    cdef int put_records(self, object value) except -1:
        cdef Py_ssize_t size = size_of(value)
        if size > MAX_FRAME - 1:
            raise UsageError(f"{size} bytes of records do not fit into a frame")
        if self.flexible:
            self.unsigned(<uint32_t> (size + 1))
        else:
            self.int32(<int32_t> size)
        if size > 0:
            self.outside += size
            self.cuts.append(self.length)
            self.records.append(value)
        return 0

    cdef list finish(self):
        """The whole frame as buffers in order: bytes, and each records object itself between them."""
        cdef Py_ssize_t size = self.length - 4 + self.outside
        cdef Py_ssize_t start = 0
        cdef Py_ssize_t end
        cdef Py_ssize_t i
        cdef list pieces = []
        if size > MAX_FRAME:
            raise UsageError(f"a frame of {size} bytes is too long for Kafka's protocol")
        store32(self.buffer, <uint32_t> size)
        for i in range(len(self.cuts)):
            end = self.cuts[i]
            pieces.append(PyBytes_FromStringAndSize(<const char*> self.buffer + start, end - start))
            pieces.append(self.records[i])
            start = end
        if start < self.length:
            pieces.append(PyBytes_FromStringAndSize(<const char*> self.buffer + start, self.length - start))
        return pieces


cdef Py_ssize_t size_of(object records) except -1:
    cdef Py_buffer view
    cdef Py_ssize_t size
    if type(records) is bytes:
        return PyBytes_GET_SIZE(records)
    if PyObject_CheckBuffer(records):
        PyObject_GetBuffer(records, &view, PyBUF_SIMPLE)
        size = view.len
        PyBuffer_Release(&view)
        return size
    if isinstance(records, FileRegion):
        return records.count
    return len(records)


@cython.final
cdef class Slots:

    def __init__(self, cls, *names):
        """names: of all fields of `cls`, in their order; a number is a place in them."""
        cdef Py_ssize_t number
        cdef PyObject* descriptor
        check(len(names) <= 16, f"{cls.__name__} has more fields than there is room for")
        check(names == tuple([field.name for field in fields(cls)]), f"{cls.__name__} has other fields than {names}")
        for number in range(len(names)):
            slot = cls.__dict__.get(names[number])
            descriptor = <PyObject*> slot
            check(
                descriptor.ob_type is &PyMemberDescr_Type
                and (<PyMemberDescrObject*> descriptor).d_member.type == T_OBJECT_EX,
                f"{cls.__name__}.{names[number]} is no slot",
            )
            self.offsets[number] = (<PyMemberDescrObject*> descriptor).d_member.offset
        self.cls = cls
        self.type = <PyTypeObject*> cls
        self.count = len(names)

    def make(self, *values):
        """An instance with these values of all its fields, in their order; __post_init__ is not called."""
        cdef Py_ssize_t number
        if len(values) != self.count:
            raise ArgumentTypeError(f"{self.cls.__name__} has {self.count} fields, not {len(values)}")
        instance = self.new()
        for number in range(self.count):
            self.set(instance, <int> number, values[number])
        return instance

    cdef int expect(self, object instance) except -1:
        if (<PyObject*> instance).ob_type is not self.type:
            raise ArgumentTypeError(f"{self.cls.__name__} is needed here, not {type(instance).__name__}")
        return 0


cdef object _TOPIC_PARTITION = TopicPartition


cdef object partition_of(object topic, int32_t partition):
    return tuple.__new__(_TOPIC_PARTITION, (topic, partition))


cdef int _expect_partition(object instance) except -1:
    if type(instance) is not _TOPIC_PARTITION:
        raise ArgumentTypeError(f"TopicPartition is needed here, not {type(instance).__name__}")
    return 0


cdef str topic_of(object topic_partition):
    _expect_partition(topic_partition)
    return (<tuple> topic_partition)[0]


cdef int32_t number_of(object topic_partition) except? -1:
    _expect_partition(topic_partition)
    return (<tuple> topic_partition)[1]


cdef object error_of(int code):
    """The ErrorCode of a number; a number that kreplog does not know is UNKNOWN_SERVER_ERROR."""
    return _NO_ERROR if code == 0 else _ERRORS.get(code, _UNKNOWN_ERROR)


cdef Py_ssize_t run_end(tuple items, Py_ssize_t start, Slots slots, int field, int id_field) except -1:
    """Where in `items` the run of neighbours of the same topic as items[start] ends.

    field: the TopicPartition among the `slots` of an item, or slots is None and the items are TopicPartitions.
    id_field: the topic id, where a topic of the same name and another id is another topic; -1 for none.
    """
    cdef Py_ssize_t at
    cdef str topic = topic_at(items, start, slots, field)
    for at in range(start + 1, len(items)):
        other = topic_at(items, at, slots, field)
        if other is not topic and other != topic:
            return at
        if id_field >= 0:
            topic_id = slots.get(items[start], id_field)
            other = slots.get(items[at], id_field)
            if other is not topic_id and other != topic_id:
                return at
    return len(items)


cdef inline str topic_at(tuple items, Py_ssize_t at, Slots slots, int field):
    if slots is None:
        return topic_of(items[at])
    slots.expect(items[at])
    return topic_of(slots.get(items[at], field))


cdef Py_ssize_t count_runs(tuple items, Slots slots, int field, int id_field) except -1:
    """How many topics a message has when neighbours of the same topic are written together; arguments as of run_end."""
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t count = 0
    while at < len(items):
        at = run_end(items, at, slots, field, id_field)
        count += 1
    return count
