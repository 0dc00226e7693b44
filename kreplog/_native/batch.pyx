"""Kafka record batch, magic 2: check, read and build. The byte layout is at the top of batch.pxd.

Covers every byte of a batch, but no files. A RecordCursor reads the records of a batch with a valid CRC; a BatchBuilder
formats records directly into the buffer that is written.
"""

cimport cython
from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport INT32_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from kreplog._native.compression cimport compressed_pieces, decompress, inflated_bound
from kreplog._native.crc32c cimport crc32c_update
from kreplog._native.cursor cimport load16, load64, store16, store32, store64, write_varint

from kreplog._native.compression import CODECS
from kreplog.errors import (
    ArgumentTypeError,
    CorruptBatchError,
    RecordTooLargeError,
    UnsupportedFormatError,
    UsageError,
)
from kreplog.types import EpochEndOffset

# The most that one batch may decompress to; far above what producers send, far below what would hurt.
MAX_DECOMPRESSED_BYTES = 64 << 20

cdef dict _REASONS = {
    BATCH_SHORT: "the batch is cut short",
    BAD_LENGTH: "the batch length is impossible",
    BAD_MAGIC: "the magic byte is not 2",
    BAD_CRC: "the CRC-32C does not match",
    BAD_COUNT: "the record count contradicts the batch",
    BAD_VARINT: "a varint is cut short or too wide",
    BAD_RECORD_LENGTH: "a record's length contradicts its content",
    BAD_OFFSET_DELTA: "offset deltas do not rise within the batch",
    BAD_KEY: "a key's length reaches outside its record",
    BAD_VALUE: "a value's length reaches outside its record",
    BAD_HEADERS: "record headers reach outside their record",
    TRAILING_BYTES: "bytes are left after the last record",
    BAD_BASE_OFFSET: "the base offset does not follow the batch before it",
    BAD_LEADER_EPOCH: "the leader epoch contradicts the epochs known for this offset",
    OLD_MAGIC: "the batch has a format older than magic 2",
    BAD_ATTRIBUTES: "the attributes are not allowed here",
}


cdef str reason_of(int code):
    return _REASONS[code]


cdef int raise_corrupt(int code, str partition, int64_t offset, str path, int64_t position) except -1:
    """Raise CorruptBatchError (or UnsupportedFormatError for magic 0 and 1); -1 and None mean unknown."""
    cdef str where = ""
    if partition is not None:
        where += f"{partition}: "
    message = f"{where}{_REASONS[code]}"
    if offset >= 0:
        message += f", expected offset {offset}"
    if path is not None:
        message += f", file {path}"
    if position >= 0:
        message += f", byte {position}"
    if path is not None:
        message += "; batches after it can still be read, `kreplog log verify` lists all damage"
    kind = UnsupportedFormatError if code == OLD_MAGIC else CorruptBatchError
    raise kind(
        message, partition=partition, offset=offset if offset >= 0 else None, path=path,
        position=position if position >= 0 else None,
    )


cdef int check_crc(const uint8_t* p, const BatchHeader* h) noexcept nogil:
    """BATCH_OK or BAD_CRC; the whole batch must be readable at `p`."""
    if crc32c_update(0, p + CRC_START, batch_size(h) - CRC_START) != h.crc:
        return BAD_CRC
    return BATCH_OK


cdef int64_t next_sound(const uint8_t* data, int64_t size, int64_t damaged, int64_t chain) noexcept nogil:
    """The first position after `damaged` of a whole, sound batch with a base offset >= `chain`, else `size`."""
    cdef BatchHeader h
    cdef int64_t p
    for p in range(damaged + 1, size - HEADER_SIZE + 1):
        if data[p + 16] == 2 and 0 <= <int64_t> load64(data + p) - chain <= INT32_MAX:
            if (
                read_header(data + p, size - p, &h) == BATCH_OK and batch_size(&h) <= size - p
                and check_crc(data + p, &h) == BATCH_OK
            ):
                return p
    return size


cdef int walk(RecordCursor* c, bint dense, RecordsFound* found) noexcept nogil:
    cdef RecordView view
    cdef int code = 1
    cdef int32_t expected = 0
    while True:
        code = next_record(c, &view)
        if code <= 0:
            return code
        if dense and c.last_delta != expected:
            return BAD_OFFSET_DELTA
        expected += 1
        if view.timestamp > found.max_timestamp:
            found.max_timestamp = view.timestamp
        if view.timestamp < found.min_timestamp and view.timestamp != -1:
            found.min_timestamp = view.timestamp
        found.keyless |= view.key_length < 0


cdef int check_records(const uint8_t* p, const BatchHeader* h, bint dense, RecordsFound* found) except -1:
    """Walk every record, decompressing if needed: BATCH_OK or a negative code other than -1.

    dense: offsets must run 0, 1, 2 ... to the last offset delta, as a producer's do (a compacted log's need not).
    found: set to what the records have, up to the first that is wrong.
    """
    cdef RecordCursor c
    cdef int code
    found.max_timestamp = -1
    found.min_timestamp = INT64_MAX
    found.keyless = False
    if dense and h.record_count != h.last_offset_delta + 1:
        return BAD_COUNT
    _plain = open_batch(&c, p, h)
    if h.record_count > (c.end - c.pos) // MIN_RECORD_SIZE:
        return BAD_COUNT
    with nogil:
        code = walk(&c, dense, found)
    return code


cdef object uncompressed(const uint8_t* p, const BatchHeader* h):
    """The records section of a compressed batch as bytes."""
    piece = section(p, h)
    cdef Py_ssize_t most = min(inflated_bound(codec_of(h), piece), <Py_ssize_t> MAX_DECOMPRESSED_BYTES)
    return decompress(codec_of(h), piece, most)


cdef object section(const uint8_t* p, const BatchHeader* h):
    """The records section of the whole batch at `p` as it stands there."""
    return PyMemoryView_FromMemory(<char*> p + HEADER_SIZE, batch_size(h) - HEADER_SIZE, PyBUF_READ)


cdef Py_ssize_t inflated_size(const uint8_t* p, const BatchHeader* h) except -1:
    """The most that the compressed batch at `p` may expand to, 0 for one that is not compressed."""
    return 0 if codec_of(h) == 0 else inflated_bound(codec_of(h), section(p, h))


cdef object open_batch(RecordCursor* c, const uint8_t* p, const BatchHeader* h):
    """Point `c` at the records of the whole batch at `p`; returns what they must not outlive, None where that is `p`.

    Raises CorruptBatchError, UnsupportedCompressionError.
    """
    cdef bytes plain
    if codec_of(h) == 0:
        open_records(c, h, p + HEADER_SIZE, batch_size(h) - HEADER_SIZE)
        return None
    plain = uncompressed(p, h)
    open_records(c, h, <const uint8_t*> PyBytes_AS_STRING(plain), PyBytes_GET_SIZE(plain))
    return plain


cdef object bytes_or_none(const uint8_t* p, Py_ssize_t length):
    if length < 0:
        return None
    return PyBytes_FromStringAndSize(<const char*> p, length)


cdef tuple headers_of(const RecordView* view):
    cdef const uint8_t* p = view.headers
    cdef HeaderView header
    cdef list out = []
    cdef int32_t _i
    for _i in range(view.header_count):
        if next_header(&p, view.headers + view.headers_length, &header) != BATCH_OK:
            break
        key = PyBytes_FromStringAndSize(<const char*> header.key, header.key_length)
        out.append((key.decode(errors="replace"), bytes_or_none(header.value, header.value_length)))
    return tuple(out)


cdef object make_record(const RecordView* view):
    cdef Record record = Record.__new__(Record)
    record.offset = view.offset
    record.timestamp_ms = view.timestamp
    record.key = None if view.key_length < 0 else PyBytes_FromStringAndSize(<const char*> view.key, view.key_length)
    record.value = (
        None if view.value_length < 0 else PyBytes_FromStringAndSize(<const char*> view.value, view.value_length)
    )
    record.headers = () if view.header_count == 0 else headers_of(view)
    return record


@cython.final
@cython.no_gc
@cython.freelist(256)
cdef class Record:
    """One record: offset, timestamp_ms, key and value (bytes or None), headers ((name, bytes or None), ...)."""

    cdef readonly int64_t offset
    cdef readonly int64_t timestamp_ms
    cdef readonly bytes key
    cdef readonly bytes value
    cdef readonly tuple headers

    __match_args__ = ("offset", "timestamp_ms", "key", "value", "headers")

    def __init__(self, int64_t offset, int64_t timestamp_ms, bytes key, bytes value, tuple headers=()):
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.value = value
        self.headers = headers

    cdef tuple _fields(self):
        return (self.offset, self.timestamp_ms, self.key, self.value, self.headers)

    def __iter__(self):
        return iter(self._fields())

    def __eq__(self, other):
        if not isinstance(other, Record):
            return NotImplemented
        return self._fields() == (<Record> other)._fields()

    def __hash__(self):
        return hash(self._fields())

    def __repr__(self):
        return (
            f"Record(offset={self.offset}, timestamp_ms={self.timestamp_ms}, key={self.key!r}, "
            f"value={self.value!r}, headers={self.headers!r})"
        )

    def __reduce__(self):
        return (Record, self._fields())


@cython.final
cdef class BatchInfo:
    """A batch's header fields, as read; `size` counts its bytes, header included."""

    cdef readonly int64_t base_offset
    cdef readonly int64_t last_offset
    cdef readonly Py_ssize_t size
    cdef readonly int32_t leader_epoch
    cdef readonly int32_t record_count
    cdef readonly int16_t attributes
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly int64_t producer_id
    cdef readonly int16_t producer_epoch
    cdef readonly int32_t base_sequence

    @property
    def codec(self):
        return self.attributes & CODEC_MASK

    @property
    def is_control(self):
        return (self.attributes & CONTROL) != 0

    @property
    def is_log_append_time(self):
        return (self.attributes & LOG_APPEND_TIME) != 0

    def __repr__(self):
        return (
            f"BatchInfo(base_offset={self.base_offset}, last_offset={self.last_offset}, size={self.size}, "
            f"leader_epoch={self.leader_epoch}, record_count={self.record_count}, attributes={self.attributes}, "
            f"base_timestamp={self.base_timestamp}, max_timestamp={self.max_timestamp}, "
            f"producer_id={self.producer_id}, producer_epoch={self.producer_epoch}, "
            f"base_sequence={self.base_sequence})"
        )


@cython.final
cdef class Payload:
    """Borrows the bytes of one Python value while it is copied into a batch."""

    cdef int borrow(self, object value, Bytes* out) except -1:
        if not PyObject_CheckBuffer(value):
            hint = "; encode it first, as in value.encode()" if isinstance(value, str) else ""
            raise ArgumentTypeError(
                f"keys and values are bytes-like or None, not {type(value).__name__}{hint}"
            )
        self.release()
        try:
            PyObject_GetBuffer(value, &self.view, PyBUF_SIMPLE)
        except BufferError as error:
            raise ArgumentTypeError(f"keys and values must be contiguous bytes: {error}") from None
        self.held = True
        out.data = <const uint8_t*> self.view.buf
        out.length = self.view.len
        return 0

    cdef void release(self) noexcept:
        if self.held:
            self.held = False
            PyBuffer_Release(&self.view)

    def __dealloc__(self):
        self.release()


cdef bytes as_bytes(object value):
    """A bytes-like value as bytes. Raises ArgumentTypeError."""
    cdef Payload payload = Payload()
    cdef Bytes content
    payload.take(value, &content)
    return PyBytes_FromStringAndSize(<const char*> content.data, content.length)


cdef bytes encode_headers(object headers):
    """Headers as they stand in a record, count included. Raises ArgumentTypeError."""
    cdef bytearray out = bytearray()
    cdef uint8_t scratch[10]
    cdef uint8_t* end
    pairs = headers.items() if isinstance(headers, dict) else headers
    try:
        pairs = [(name, value) for name, value in pairs]
    except (TypeError, ValueError):
        raise ArgumentTypeError("headers are a sequence of (str, bytes or None) pairs") from None
    end = write_varint(scratch, len(pairs))
    out += scratch[:end - scratch]
    for name, value in pairs:
        if not isinstance(name, str) or not (value is None or isinstance(value, (bytes, bytearray, memoryview))):
            raise ArgumentTypeError(f"a header is a (str, bytes or None) pair, not ({name!r}, {value!r})")
        try:
            key = name.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"header name {name!r} is no text that UTF-8 can hold: {error}") from None
        end = write_varint(scratch, len(key))
        out += scratch[:end - scratch]
        out += key
        if value is None:
            end = write_varint(scratch, -1)
            out += scratch[:end - scratch]
        else:
            value = bytes(value)
            end = write_varint(scratch, len(value))
            out += scratch[:end - scratch]
            out += value
    return bytes(out)


@cython.final
cdef class BatchBuilder:
    """Formats records into batches, one after another in one buffer.

    begin() opens a batch, add() appends a record to it, finish() compresses it with the codec, if any, and writes its
    header. The bytes are buffer[0:length]; nothing is believed written until the caller says so with reset().
    """

    def __cinit__(self):
        self.buffer = NULL
        self.capacity = 0
        self.reset()

    def __dealloc__(self):
        free(self.buffer)

    cdef void reset(self) noexcept:
        self.start = 0
        self.length = 0
        self.count = 0

    cdef int reserve(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t wanted = self.length + more
        cdef Py_ssize_t capacity
        cdef uint8_t* grown
        if wanted <= self.capacity:
            return 0
        capacity = self.capacity * 2 if self.capacity * 2 > wanted else wanted
        grown = <uint8_t*> realloc(self.buffer, capacity)
        if grown == NULL:
            raise MemoryError()
        self.buffer = grown
        self.capacity = capacity
        return 0

    cdef int begin(self) except -1:
        self.start = self.length
        self.count = 0
        self.reserve(HEADER_SIZE)
        self.length += HEADER_SIZE
        return 0

    cdef int refuse_length(self) except -1:
        raise UsageError("a key or value of over 1 GiB fits in no record batch")

    cdef int finish(
        self, int64_t base_offset, int32_t leader_epoch, int codec, bint log_append_time, int64_t producer_id,
        int16_t producer_epoch, int32_t base_sequence
    ) except -1:
        """Close the open batch: compress its records if `codec` is not 0, write its header and CRC."""
        cdef uint8_t* p
        cdef Py_ssize_t size
        cdef list pieces
        if codec != 0:
            if self.length - self.start - HEADER_SIZE > MAX_DECOMPRESSED_BYTES:
                raise RecordTooLargeError(
                    f"{self.length - self.start - HEADER_SIZE} bytes are too many for one compressed batch, which may "
                    f"expand to {MAX_DECOMPRESSED_BYTES} at most"
                )
            piece = PyMemoryView_FromMemory(
                <char*> self.buffer + self.start + HEADER_SIZE, self.length - self.start - HEADER_SIZE, PyBUF_READ
            )
            pieces = compressed_pieces(codec, piece)
            self.length = self.start + HEADER_SIZE
            for packed in pieces:
                self.reserve(PyBytes_GET_SIZE(packed))
                memcpy(self.buffer + self.length, PyBytes_AS_STRING(packed), PyBytes_GET_SIZE(packed))
                self.length += PyBytes_GET_SIZE(packed)
        p = self.buffer + self.start
        size = self.length - self.start
        store64(p, base_offset)
        store32(p + 8, <uint32_t> (size - LOG_OVERHEAD))
        store32(p + 12, <uint32_t> leader_epoch)
        p[16] = 2
        store16(p + 21, <uint16_t> (codec | (LOG_APPEND_TIME if log_append_time else 0)))
        store32(p + 23, <uint32_t> (self.count - 1))
        store64(p + 27, <uint64_t> self.base_timestamp)
        store64(p + 35, <uint64_t> self.max_timestamp)
        store64(p + 43, <uint64_t> producer_id)
        store16(p + 51, <uint16_t> producer_epoch)
        store32(p + 53, <uint32_t> base_sequence)
        store32(p + 57, <uint32_t> self.count)
        if size > 16384:
            with nogil:
                store32(p + 17, crc32c_update(0, p + CRC_START, size - CRC_START))
        else:
            store32(p + 17, crc32c_update(0, p + CRC_START, size - CRC_START))
        self.start = self.length
        return 0

    cdef void mark(self, int attributes) noexcept:
        """Set attributes of the one finished batch that the buffer holds."""
        store16(self.buffer + 21, load16(self.buffer + 21) | <uint16_t> attributes)
        store32(self.buffer + 17, crc32c_update(0, self.buffer + CRC_START, self.length - CRC_START))


cpdef int codec_id(name) except -1:
    """The codec id of a name ("none", "gzip", "snappy", "lz4", "zstd"). Raises ArgumentTypeError, UsageError."""
    if not isinstance(name, str):
        raise ArgumentTypeError(f"compression is one of {', '.join(CODECS)} as a str, not {type(name).__name__}")
    try:
        return CODECS[name]
    except KeyError:
        raise UsageError(
            f"compression {name!r} is not known: choose one of {', '.join(CODECS)}"
        ) from None


cdef int64_t _stamp(object value) except? -1:
    if not isinstance(value, int):
        raise ArgumentTypeError(f"a timestamp is an int, not {type(value).__name__}")
    if not INT64_MIN <= value <= INT64_MAX:
        raise UsageError(f"timestamp {value} does not fit in 64 bits")
    return value


def build(
    values, keys=None, timestamps_ms=None, headers=None, *, int64_t base_offset=0, int32_t leader_epoch=0,
    int64_t producer_id=-1, int16_t producer_epoch=-1, int32_t base_sequence=-1, str compression="none",
    bint transactional=False
):
    """One encoded batch as bytes, for `Log.append_batches` and tests.

    values, keys, timestamps_ms, headers: parallel sequences; keys and headers default to none, timestamps to now.
    transactional: it is of the producer's transaction.
    Raises UsageError (no records, lengths differ), ArgumentTypeError, UnsupportedCompressionError.
    """
    cdef BatchBuilder builder = BatchBuilder()
    cdef Payload key_payload = Payload()
    cdef Payload value_payload = Payload()
    cdef Bytes key
    cdef Bytes value
    cdef Py_ssize_t n = len(values)
    cdef Py_ssize_t i
    cdef int64_t now = wall_clock_ms()
    cdef int codec = codec_id(compression)
    if n == 0:
        raise UsageError("a batch holds at least one record")
    for other, name in ((keys, "keys"), (timestamps_ms, "timestamps_ms"), (headers, "headers")):
        if other is not None and len(other) != n:
            raise UsageError(f"{name} has {len(other)} items, values has {n}")
    key.data = NULL
    key.length = -1
    builder.reserve(HEADER_SIZE + 128 * n)
    builder.begin()
    for i in range(n):
        value_payload.take(values[i], &value)
        if keys is not None:
            key_payload.take(keys[i], &key)
        encoded = None if headers is None or not headers[i] else encode_headers(headers[i])
        builder.add(now if timestamps_ms is None else _stamp(timestamps_ms[i]), key, value, encoded)
    builder.finish(base_offset, leader_epoch, codec, False, producer_id, producer_epoch, base_sequence)
    if transactional:
        builder.mark(TRANSACTIONAL)
    return PyBytes_FromStringAndSize(<char*> builder.buffer, builder.length)


cdef int _checked_header(const uint8_t* p, Py_ssize_t available, BatchHeader* h, Py_ssize_t position) except -1:
    cdef int code = read_header(p, available, h)
    if code == BATCH_OK and batch_size(h) > available:
        code = BATCH_SHORT
    if code == BATCH_OK:
        with nogil:
            code = check_crc(p, h)
    if code != BATCH_OK:
        raise_corrupt(code, None, -1, None, position)
    return 0


def validate(buffer, *, bint deep=False):
    """Check the batch at the start of `buffer`: header, length and CRC, and with `deep` every record; return BatchInfo.

    Raises CorruptBatchError, UnsupportedFormatError (magic 0 and 1).
    """
    cdef const uint8_t[::1] data = memoryview(buffer).cast("B")
    cdef BatchHeader h
    cdef RecordsFound found
    cdef int code
    if data.shape[0] == 0:
        raise_corrupt(BATCH_SHORT, None, -1, None, 0)
    _checked_header(&data[0], data.shape[0], &h, 0)
    if deep:
        code = check_records(&data[0], &h, False, &found)
        if code != BATCH_OK:
            raise_corrupt(code, None, -1, None, 0)
    return info_of(&h)


def end_of(buffer):
    """The leader epoch and next_offset of the last batch in `buffer`, as its header says: no CRC is checked.

    None unless whole batches fill the buffer."""
    cdef const uint8_t[::1] data = memoryview(buffer).cast("B")
    cdef Py_ssize_t length = data.shape[0]
    cdef Py_ssize_t at = 0
    cdef BatchHeader h
    while at < length:
        if read_header(&data[at], length - at, &h) != BATCH_OK or batch_size(&h) > length - at:
            return None
        at += batch_size(&h)
    return EpochEndOffset(h.leader_epoch, next_offset_of(&h)) if at else None


cdef BatchInfo info_of(const BatchHeader* h):
    cdef BatchInfo info = BatchInfo.__new__(BatchInfo)
    info.base_offset = h.base_offset
    info.last_offset = h.base_offset + h.last_offset_delta
    info.size = batch_size(h)
    info.leader_epoch = h.leader_epoch
    info.record_count = h.record_count
    info.attributes = h.attributes
    info.base_timestamp = h.base_timestamp
    info.max_timestamp = h.max_timestamp
    info.producer_id = h.producer_id
    info.producer_epoch = h.producer_epoch
    info.base_sequence = h.base_sequence
    return info


cdef list _decode(object buffer, bint values_only):
    cdef const uint8_t[::1] data = memoryview(buffer).cast("B")
    cdef Py_ssize_t at = 0
    cdef BatchHeader h
    cdef RecordCursor c
    cdef RecordView view
    cdef int code
    cdef list out = []
    while at < data.shape[0]:
        _checked_header(&data[at], data.shape[0] - at, &h, at)
        _plain = open_batch(&c, &data[at], &h)
        while True:
            code = next_record(&c, &view)
            if code <= 0:
                break
            if is_control(&h):
                continue
            if values_only:
                out.append(bytes_or_none(view.value, view.value_length))
            else:
                out.append(make_record(&view))
        if code != BATCH_OK:
            raise_corrupt(code, None, -1, None, at)
        at += batch_size(&h)
    return out


def decode(buffer):
    """The records of every batch in `buffer`, CRC checked, control batches left out.

    Raises CorruptBatchError, UnsupportedFormatError, UnsupportedCompressionError.
    """
    return _decode(buffer, False)


def decode_values(buffer):
    """The values (bytes or None) of the records that `decode` returns."""
    return _decode(buffer, True)
