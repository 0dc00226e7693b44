# Kafka record batch, magic 2: header access, the record walk that every reader shares, and the builder.
#
#   position  bytes  field                    position  bytes  field
#          0      8  base offset                    27      8  base timestamp (ms)
#          8      4  batch length (after it)        35      8  max timestamp (ms)
#         12      4  leader epoch                   43      8  producer id
#         16      1  magic, 2                       51      2  producer epoch
#         17      4  CRC-32C of 21..end             53      4  base sequence
#         21      2  attributes                     57      4  record count
#         23      4  last offset delta              61      -  records, compressed as one piece if at all
#
# attributes: bits 0-2 codec, 3 timestamp type (1 = log append time), 4 transactional, 5 control, 6 (KIP-534): the base
# timestamp is when tombstones of the batch may be deleted; the timestamps of its records count from it all the same.
# A record: varint length; int8 attributes; varlong timestamp delta; varint offset delta; varint key length, key;
# varint value length, value; varint header count; headers, each varint key length, key, varint value length, value.
# A length of -1 stands for null (key, value, header value).

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from kreplog._native.cursor cimport (
    likely,
    load16,
    load32,
    load64,
    read_varint,
    read_varlong,
    unlikely,
    varint_size,
    write_varint,
)

cdef enum:
    HEADER_SIZE = 61
    LOG_OVERHEAD = 12  # base offset and batch length
    CRC_START = 21
    MIN_BATCH_LENGTH = HEADER_SIZE - LOG_OVERHEAD
    MIN_RECORD_SIZE = 7

cdef enum:
    CODEC_MASK = 7
    LOG_APPEND_TIME = 8
    TRANSACTIONAL = 16
    CONTROL = 32
    DELETE_HORIZON = 64

cdef enum:
    BATCH_OK = 0
    BATCH_SHORT = -1
    BAD_LENGTH = -2
    BAD_MAGIC = -3
    BAD_CRC = -4
    BAD_COUNT = -5
    BAD_VARINT = -6
    BAD_RECORD_LENGTH = -7
    BAD_OFFSET_DELTA = -8
    BAD_KEY = -9
    BAD_VALUE = -10
    BAD_HEADERS = -11
    TRAILING_BYTES = -12
    BAD_BASE_OFFSET = -13
    BAD_LEADER_EPOCH = -14
    OLD_MAGIC = -15
    BAD_ATTRIBUTES = -16


cdef struct BatchHeader:
    int64_t base_offset
    int32_t batch_length
    int32_t leader_epoch
    int8_t magic
    uint32_t crc
    int16_t attributes
    int32_t last_offset_delta
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t producer_id
    int16_t producer_epoch
    int32_t base_sequence
    int32_t record_count


cdef struct RecordView:
    int64_t offset
    int64_t timestamp
    const uint8_t* key
    Py_ssize_t key_length
    const uint8_t* value
    Py_ssize_t value_length
    int32_t header_count
    const uint8_t* headers
    Py_ssize_t headers_length


cdef struct HeaderView:
    const uint8_t* key
    Py_ssize_t key_length
    const uint8_t* value
    Py_ssize_t value_length


cdef struct RecordCursor:
    const uint8_t* pos
    const uint8_t* end
    int64_t base_offset
    int64_t base_timestamp
    int64_t append_timestamp  # every record's time under log append time
    bint log_append_time
    int32_t remaining
    int32_t last_delta
    int32_t max_delta


cdef inline Py_ssize_t batch_size(const BatchHeader* h) noexcept nogil:
    return <Py_ssize_t> h.batch_length + LOG_OVERHEAD


cdef inline int64_t next_offset_of(const BatchHeader* h) noexcept nogil:
    return h.base_offset + h.last_offset_delta + 1


cdef inline bint is_control(const BatchHeader* h) noexcept nogil:
    return (h.attributes & CONTROL) != 0


cdef inline int codec_of(const BatchHeader* h) noexcept nogil:
    return h.attributes & CODEC_MASK


cdef inline int read_header(const uint8_t* p, Py_ssize_t available, BatchHeader* out) noexcept nogil:
    """Copy the header at `p` and check every field on its own; BATCH_SHORT when fewer than HEADER_SIZE bytes are there.

    That the whole batch is there (batch_size(out) <= available) is for the caller to check.
    """
    if available < HEADER_SIZE:
        return BATCH_SHORT
    out.base_offset = <int64_t> load64(p)
    out.batch_length = <int32_t> load32(p + 8)
    out.leader_epoch = <int32_t> load32(p + 12)
    out.magic = <int8_t> p[16]
    out.crc = load32(p + 17)
    out.attributes = <int16_t> load16(p + 21)
    out.last_offset_delta = <int32_t> load32(p + 23)
    out.base_timestamp = <int64_t> load64(p + 27)
    out.max_timestamp = <int64_t> load64(p + 35)
    out.producer_id = <int64_t> load64(p + 43)
    out.producer_epoch = <int16_t> load16(p + 51)
    out.base_sequence = <int32_t> load32(p + 53)
    out.record_count = <int32_t> load32(p + 57)
    if unlikely(out.magic != 2):
        return OLD_MAGIC if 0 <= out.magic < 2 else BAD_MAGIC
    if unlikely(out.batch_length < MIN_BATCH_LENGTH):
        return BAD_LENGTH
    if unlikely(out.base_offset < 0 or out.last_offset_delta < 0
                or out.base_offset > (INT64_MAX - 1) - out.last_offset_delta):
        return BAD_BASE_OFFSET
    if unlikely(out.record_count < 0 or out.record_count - 1 > out.last_offset_delta):
        return BAD_COUNT
    return BATCH_OK


cdef inline void open_records(
    RecordCursor* c, const BatchHeader* h, const uint8_t* records, Py_ssize_t length
) noexcept nogil:
    """Point `c` at the uncompressed records of the batch that `h` heads."""
    c.pos = records
    c.end = records + length
    c.base_offset = h.base_offset
    c.base_timestamp = h.base_timestamp
    c.append_timestamp = h.max_timestamp
    c.log_append_time = (h.attributes & LOG_APPEND_TIME) != 0
    c.remaining = h.record_count
    c.last_delta = -1
    c.max_delta = h.last_offset_delta


cdef inline int next_header(const uint8_t** at, const uint8_t* end, HeaderView* out) noexcept nogil:
    """Read one record header and advance `at`; BATCH_OK or BAD_HEADERS."""
    cdef const uint8_t* p = at[0]
    cdef int32_t length
    if not read_varint(&p, end, &length) or length < 0 or length > end - p:
        return BAD_HEADERS
    out.key = p
    out.key_length = length
    p += length
    if not read_varint(&p, end, &length) or length < -1 or length > end - p:
        return BAD_HEADERS
    out.value = p
    out.value_length = length
    if length > 0:
        p += length
    at[0] = p
    return BATCH_OK


cdef inline int next_record(RecordCursor* c, RecordView* out) noexcept nogil:
    """1 and the next record; 0 when all counted records were read and no byte is left; else a negative code."""
    cdef const uint8_t* p = c.pos
    cdef const uint8_t* end = c.end
    cdef HeaderView header
    cdef int64_t timestamp_delta
    cdef int32_t length
    cdef int32_t _i
    if c.remaining == 0:
        return 0 if p == end else TRAILING_BYTES
    if unlikely(not read_varint(&p, end, &length)):
        return BAD_VARINT
    if unlikely(length < MIN_RECORD_SIZE - 1 or length > end - p):
        return BAD_RECORD_LENGTH
    end = p + length
    p += 1
    if unlikely(not read_varlong(&p, end, &timestamp_delta)):
        return BAD_VARINT
    if unlikely(not read_varint(&p, end, &length)):
        return BAD_VARINT
    if unlikely(length <= c.last_delta or length > c.max_delta):
        return BAD_OFFSET_DELTA
    c.last_delta = length
    out.offset = c.base_offset + length
    if c.log_append_time:
        out.timestamp = c.append_timestamp
    else:
        out.timestamp = <int64_t> (<unsigned long long> c.base_timestamp + <unsigned long long> timestamp_delta)
    if unlikely(not read_varint(&p, end, &length) or length < -1 or length > end - p):
        return BAD_KEY
    out.key = p
    out.key_length = length
    if length > 0:
        p += length
    if unlikely(not read_varint(&p, end, &length) or length < -1 or length > end - p):
        return BAD_VALUE
    out.value = p
    out.value_length = length
    if length > 0:
        p += length
    if unlikely(not read_varint(&p, end, &length) or length < 0 or length > (end - p) // 2):
        return BAD_HEADERS
    out.header_count = length
    out.headers = p
    out.headers_length = end - p
    if unlikely(length > 0):
        for _i in range(length):
            if next_header(&p, end, &header) != BATCH_OK:
                return BAD_HEADERS
    if unlikely(p != end):
        return BAD_RECORD_LENGTH
    c.pos = end
    c.remaining -= 1
    return 1


cdef inline int64_t wall_clock_ms() noexcept nogil:
    """Wall clock, milliseconds since the epoch."""
    cdef timespec t
    clock_gettime(CLOCK_REALTIME, &t)
    return <int64_t> t.tv_sec * 1000 + t.tv_nsec // 1000000


cdef int check_crc(const uint8_t* p, const BatchHeader* h) noexcept nogil
cdef int64_t next_sound(const uint8_t* data, int64_t size, int64_t damaged, int64_t chain) noexcept nogil
cdef str reason_of(int code)
cdef int raise_corrupt(int code, str partition, int64_t offset, str path, int64_t position) except -1
cdef struct RecordsFound:
    int64_t max_timestamp  # of any record, -1 when there is none
    int64_t min_timestamp  # of those that have one, INT64_MAX when there is none
    bint keyless  # a record has no key


cdef int check_records(const uint8_t* p, const BatchHeader* h, bint dense, RecordsFound* found) except -1
cdef object uncompressed(const uint8_t* p, const BatchHeader* h)
cdef object section(const uint8_t* p, const BatchHeader* h)

cdef Py_ssize_t inflated_size(const uint8_t* p, const BatchHeader* h) except -1

cdef object open_batch(RecordCursor* c, const uint8_t* p, const BatchHeader* h)
cpdef int codec_id(name) except -1
cdef object make_record(const RecordView* view)
cdef object bytes_or_none(const uint8_t* p, Py_ssize_t length)
cdef bytes as_bytes(object value)
cdef bytes encode_headers(object headers)
cdef tuple headers_of(const RecordView* view)


cdef struct Bytes:  # a borrowed byte range; length -1 is null
    const uint8_t* data
    Py_ssize_t length


cdef class BatchBuilder:
    cdef uint8_t* buffer
    cdef Py_ssize_t capacity
    cdef Py_ssize_t start  # where the open batch begins
    cdef Py_ssize_t length  # bytes used, closed batches before `start` included
    cdef int32_t count
    cdef int64_t base_timestamp
    cdef int64_t max_timestamp

    cdef int begin(self) except -1
    cdef int reserve(self, Py_ssize_t more) except -1
    cdef int finish(
        self, int64_t base_offset, int32_t leader_epoch, int codec, bint log_append_time, int64_t producer_id,
        int16_t producer_epoch, int32_t base_sequence
    ) except -1
    cdef void mark(self, int attributes) noexcept
    cdef void reset(self) noexcept
    cdef int refuse_length(self) except -1

    cdef inline int add(self, int64_t timestamp, Bytes key, Bytes value, bytes headers) except -1:
        """Append one record; `headers` as encode_headers made them, None for none."""
        cdef Bytes encoded
        encoded.data = NULL
        encoded.length = 0
        if headers is not None:
            encoded.data = <const uint8_t*> PyBytes_AS_STRING(headers)
            encoded.length = PyBytes_GET_SIZE(headers)
        return self.add_encoded(timestamp, key, value, encoded)

    cdef inline int add_encoded(self, int64_t timestamp, Bytes key, Bytes value, Bytes headers) except -1:
        """Append one record; `headers` as they stand in it, count included, of length 0 for none."""
        cdef Py_ssize_t body
        cdef Py_ssize_t key_bytes = key.length if key.length > 0 else 0
        cdef Py_ssize_t value_bytes = value.length if value.length > 0 else 0
        cdef int64_t delta
        cdef uint8_t* p
        if key_bytes > 0x3FFFFFFF or value_bytes > 0x3FFFFFFF:
            self.refuse_length()
        if self.count == 0:
            self.base_timestamp = timestamp
            self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        delta = <int64_t> (<unsigned long long> timestamp - <unsigned long long> self.base_timestamp)
        body = (
            2 + varint_size(delta) + varint_size(self.count) + varint_size(key.length) + key_bytes
            + varint_size(value.length) + value_bytes
        )
        if headers.length:
            body += headers.length - 1
        if self.length + body + 10 > self.capacity:
            self.reserve(body + 10)
        p = write_varint(self.buffer + self.length, body)
        p[0] = 0
        p = write_varint(p + 1, delta)
        p = write_varint(p, self.count)
        p = write_varint(p, key.length)
        if key_bytes:
            memcpy(p, key.data, key_bytes)
            p += key_bytes
        p = write_varint(p, value.length)
        if value_bytes:
            memcpy(p, value.data, value_bytes)
            p += value_bytes
        if headers.length == 0:
            p[0] = 0
            p += 1
        else:
            memcpy(p, headers.data, headers.length)
            p += headers.length
        self.length = p - self.buffer
        self.count += 1
        return 0


cdef class Payload:
    cdef Py_buffer view
    cdef bint held
    cdef int borrow(self, object value, Bytes* out) except -1
    cdef void release(self) noexcept

    cdef inline int take(self, object value, Bytes* out) except -1:
        """The bytes of `value`, valid until release() or the next take(). Raises ArgumentTypeError."""
        if PyBytes_CheckExact(value):
            out.data = <const uint8_t*> PyBytes_AS_STRING(value)
            out.length = PyBytes_GET_SIZE(value)
            return 0
        if value is None:
            out.data = NULL
            out.length = -1
            return 0
        return self.borrow(value, out)
