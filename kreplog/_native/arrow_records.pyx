"""ArrowRows and RowSelection: the rows of Arrow data as record batches, without a Python object per row.

    column       Arrow type                                                        absent or null
    value, key   binary, string, large or view                                     a null value, a null key
    timestamp    timestamp of any unit, or int64 of milliseconds                   the time of the call
    headers      list, large or not, of struct<key: string, value: binary>         no headers
    partition    int32 or int64                                                    chosen by the key
    offset, timestampType, topic                                                   ignored: the log gives its own

Rows are dealt to partitions as Kafka's clients do: by the murmur2 hash of the key; rows without a key in long runs.
Data come in through the Arrow PyCapsule interface. What exports that is in this process and is trusted to keep it;
types, nulls and sizes are checked.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t, uint8_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, strcmp

from kreplog._native.arrow_export cimport ArrowArray, ArrowSchema
from kreplog._native.batch cimport HEADER_SIZE, TRANSACTIONAL, BatchBuilder, Bytes, codec_id, wall_clock_ms
from kreplog._native.cursor cimport varint_size, write_varint
from kreplog._native.partitioner cimport partition_of_key

from kreplog.errors import ArgumentTypeError, RecordTooLargeError, UsageError

cdef enum:
    MAX_RUN = 1000  # fewest rows without a key that go to one partition together
    MAX_RECORD = 1 << 30
    MAX_BATCH = 1 << 30


def arrow_pieces(data):
    """`data` as ArrowRows: an Arrow stream (a table, a reader, a DataFrame) piece by piece, or one record batch.

    Raises ArgumentTypeError for what is no Arrow data, or has columns of other names or types."""
    if hasattr(data, "__arrow_c_stream__"):
        return stream_rows(data.__arrow_c_stream__())
    if hasattr(data, "__arrow_c_array__"):
        return iter((array_rows(data.__arrow_c_array__()),))
    raise ArgumentTypeError(
        f"Arrow data is a table, a record batch, a reader or a DataFrame with the Arrow PyCapsule interface, not "
        f"{type(data).__name__}"
    )


def stream_rows(capsule):
    """The record batches of an exported Arrow stream, each as ArrowRows when its turn comes. Raises as arrow_pieces."""
    cdef ArrowStream* stream = <ArrowStream*> PyCapsule_GetPointer(capsule, b"arrow_array_stream")
    cdef ArrowRows rows
    while True:
        rows = ArrowRows.__new__(ArrowRows)
        if stream.get_schema(stream, &rows.schema) != 0:
            rows.schema.release = NULL
            raise ArgumentTypeError(f"the Arrow stream gives no schema: {stream_error(stream)}")
        rows.owned = True
        if stream.get_next(stream, &rows.array) != 0:
            rows.array.release = NULL
            raise ArgumentTypeError(f"the Arrow stream failed: {stream_error(stream)}")
        if rows.array.release == NULL:
            return
        rows.bind(&rows.schema, &rows.array)
        yield rows


cdef str stream_error(ArrowStream* stream):
    cdef const char* text = stream.get_last_error(stream)
    return "no reason given" if text == NULL else text.decode(errors="replace")


def array_rows(capsules):
    """One exported record batch as ArrowRows. Raises as arrow_pieces."""
    cdef ArrowRows rows = ArrowRows.__new__(ArrowRows)
    rows.capsules = capsules
    rows.bind(
        <ArrowSchema*> PyCapsule_GetPointer(capsules[0], b"arrow_schema"),
        <ArrowArray*> PyCapsule_GetPointer(capsules[1], b"arrow_array"),
    )
    return rows


@cython.final
cdef class ArrowRows:
    """One record batch; `length` rows. Made by arrow_pieces."""

    def __dealloc__(self):
        if self.owned and self.array.release != NULL:
            self.array.release(&self.array)
        if self.owned and self.schema.release != NULL:
            self.schema.release(&self.schema)

    cdef int bind(self, const ArrowSchema* schema, const ArrowArray* array) except -1:
        cdef int64_t i
        cdef str name
        if strcmp(schema.format, b"+s") != 0:
            raise ArgumentTypeError(
                "Arrow data to append is a table or record batch with the columns value, key, timestamp, headers, "
                "partition"
            )
        if array.buffers[0] != NULL and array.null_count != 0:
            raise UsageError("a row that is null as a whole is no record")
        self.length = array.length
        for i in range(schema.n_children):
            name = schema.children[i].name.decode() if schema.children[i].name != NULL else ""
            self.bind_column(name, schema.children[i], array.children[i], array.offset)
        if self.inputs.timestamp.kind != ABSENT:
            with nogil:
                for i in range(self.length):
                    if _timestamp_at(&self.inputs.timestamp, i, 0) < 0:
                        break
                else:
                    i = -1
            if i >= 0:
                raise UsageError(f"row {i}: its timestamp lies before 1970, or too far in the future")
        return 0

    cdef int bind_column(self, str name, const ArrowSchema* schema, const ArrowArray* array, int64_t first) except -1:
        if schema.dictionary != NULL:
            raise ArgumentTypeError(f"column {name!r} is dictionary-encoded: cast it to its values first")
        if name == "value":
            self.inputs.value = bytes_column(name, schema, array, first)
        elif name == "key":
            self.inputs.key = bytes_column(name, schema, array, first)
        elif name == "timestamp":
            self.inputs.timestamp = _timestamps(schema, array, first)
        elif name == "headers":
            self.bind_headers(schema, array, first)
        elif name == "partition":
            self.inputs.partition = _numbers(schema, array, first)
        elif name not in ("offset", "timestampType", "topic"):
            raise ArgumentTypeError(
                f"column {name!r} belongs to no record: value, key, timestamp, headers and partition are written; "
                "offset, timestampType and topic are ignored"
            )
        return 0

    cdef int bind_headers(self, const ArrowSchema* schema, const ArrowArray* array, int64_t first) except -1:
        cdef const ArrowSchema* item = schema.children[0] if schema.n_children == 1 else NULL
        cdef const ArrowArray* items
        if (
            item == NULL or strcmp(schema.format, b"+l") != 0 and strcmp(schema.format, b"+L") != 0
            or strcmp(item.format, b"+s") != 0 or item.n_children != 2
        ):
            raise ArgumentTypeError("column 'headers' is no list of struct<key: string, value: binary>")
        items = array.children[0]
        self.inputs.headers = _input(NARROW if strcmp(schema.format, b"+l") == 0 else WIDE, array, first)
        self.inputs.header_key = bytes_column("headers.key", item.children[0], items.children[0], items.offset)
        self.inputs.header_value = bytes_column("headers.value", item.children[1], items.children[1], items.offset)
        return 0

    def whole(self, int32_t partition):
        """All rows, for that partition. Raises UsageError if the partition column has another one."""
        if self.inputs.partition.kind != ABSENT:
            raise UsageError("the data have a partition column: leave the argument `partition` out")
        cdef RowSelection selection = RowSelection.__new__(RowSelection)
        selection.rows = self
        selection.inputs = &self.inputs
        selection.partition = partition
        selection.length = self.length
        return selection

    def by_partition(self, int32_t count, int32_t first):
        """The rows as RowSelections, one for each partition of `count` that gets any; the first run of rows without a
        key goes to partition `first`. Raises UsageError for a partition that there is not."""
        cdef int64_t* order
        cdef int32_t* chosen
        cdef int64_t* ends
        cdef Py_ssize_t i
        cdef int64_t wrong
        cdef int32_t at
        cdef RowSelection selection
        cdef RowOrder owner = RowOrder.__new__(RowOrder)
        if count < 1:
            raise UsageError(f"count = {count}: a topic has at least one partition")
        chosen = <int32_t*> malloc(max(1, self.length) * sizeof(int32_t))
        ends = <int64_t*> calloc(count + 1, sizeof(int64_t))
        owner.order = order = <int64_t*> malloc(max(1, self.length) * sizeof(int64_t))
        try:
            if chosen == NULL or ends == NULL or order == NULL:
                raise MemoryError()
            with nogil:
                wrong = self.choose(chosen, count, first)
                if wrong < 0:
                    for i in range(self.length):
                        ends[chosen[i] + 1] += 1
                    for at in range(count):
                        ends[at + 1] += ends[at]
                    for i in range(self.length):
                        order[ends[chosen[i]]] = i
                        ends[chosen[i]] += 1
            if wrong >= 0:
                raise UsageError(
                    f"row {wrong}: its partition {_number_at(&self.inputs.partition, wrong)} is not in the range "
                    f"[0...{count})"
                )
            found = []
            for at in range(count):  # ends[at] is now the end of partition `at`
                i = ends[at - 1] if at else 0
                if ends[at] > i:
                    selection = RowSelection.__new__(RowSelection)
                    selection.rows = self
                    selection.inputs = &self.inputs
                    selection.owner = owner
                    selection.order = order + i
                    selection.partition = at
                    selection.length = ends[at] - i
                    found.append(selection)
            return found
        finally:
            free(chosen)
            free(ends)

    cdef int64_t choose(self, int32_t* chosen, int32_t count, int32_t first) noexcept nogil:
        """The partition of each row; the first row whose partition column is wrong, -1 for none."""
        cdef Py_ssize_t i
        cdef Py_ssize_t keyless = 0
        cdef Py_ssize_t run = max(<Py_ssize_t> MAX_RUN, (self.length + count - 1) // count)
        cdef int64_t at
        cdef Bytes key
        for i in range(self.length):
            if self.inputs.partition.kind != ABSENT and not _is_null(&self.inputs.partition, i):
                at = _number_at(&self.inputs.partition, i)
                if at < 0 or at >= count:
                    return i
                chosen[i] = <int32_t> at
                continue
            _bytes_at(&self.inputs.key, i, &key)
            if key.length >= 0:
                chosen[i] = partition_of_key(key.data, key.length, <int32_t> count)
            else:
                chosen[i] = <int32_t> ((first + keyless // run) % count)
                keyless += 1
        return -1


@cython.final
cdef class RowOrder:

    def __dealloc__(self):
        free(self.order)


@cython.final
cdef class RowSelection:
    """Rows of one partition, to be encoded batch by batch. position: rows that are encoded already, of `length`."""

    def next_batch(
        self, BatchEncoder encoder not None, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence
    ):
        """(batch, records): the next rows, up to the encoder's size before compression, or one larger row alone.

        Raises RecordTooLargeError for a row that exceeds the encoder's max_record_bytes; the selection is of no further
        use then.
        """
        cdef BatchBuilder builder = encoder.builder
        cdef int64_t now = wall_clock_ms()
        cdef Py_ssize_t needed = 0
        cdef int code
        builder.reset()
        builder.begin()
        builder.reserve(encoder.max_bytes)
        while True:
            with nogil:
                code = self.encode(builder, encoder.max_bytes, encoder.max_record_bytes, now, &needed)
            if code == LARGE and needed <= encoder.max_record_bytes:
                builder.reserve(needed + BEHIND)
                continue
            break
        if code < 0:
            at = self.order[self.position] if self.order != NULL else self.position
            raise RecordTooLargeError(
                f"row {at}: a record of {needed} bytes, more than the {encoder.max_record_bytes} allowed"
            )
        if builder.count == 0:
            raise UsageError("all rows of this selection are encoded already")
        records = builder.count
        builder.finish(0, -1, encoder.codec, False, producer_id, producer_epoch, base_sequence)
        if encoder.transactional:
            builder.mark(TRANSACTIONAL)
        batch = PyBytes_FromStringAndSize(<char*> builder.buffer, builder.length)
        return batch, records

    cdef int encode(
        self, BatchBuilder builder, Py_ssize_t max_bytes, Py_ssize_t max_record_bytes, int64_t now, Py_ssize_t* needed
    ) noexcept nogil:
        """Append rows to the open batch while they fit; LARGE for a first row that needs more room than there is."""
        cdef const Inputs* rows = self.inputs
        cdef Py_ssize_t i
        cdef Py_ssize_t body
        cdef Py_ssize_t headers_size
        cdef int64_t timestamp
        cdef int64_t delta
        cdef Bytes key
        cdef Bytes value
        cdef uint8_t* p
        while self.position < self.length and builder.count < INT32_MAX:
            i = self.order[self.position] if self.order != NULL else self.position
            _bytes_at(&rows.key, i, &key)
            _bytes_at(&rows.value, i, &value)
            timestamp = _timestamp_at(&rows.timestamp, i, now)
            if builder.count == 0:
                builder.base_timestamp = builder.max_timestamp = timestamp
            delta = timestamp - builder.base_timestamp
            headers_size = _headers_size(rows, i)
            body = (
                1 + varint_size(delta) + varint_size(builder.count) + varint_size(key.length)
                + max(key.length, <Py_ssize_t> 0) + varint_size(value.length) + max(value.length, <Py_ssize_t> 0)
                + headers_size
            )
            needed[0] = body
            if builder.count and builder.length - builder.start + body + 10 > max_bytes:
                return FULL
            if body > max_record_bytes or builder.length + body + 10 > builder.capacity:
                return LARGE
            p = write_varint(builder.buffer + builder.length, body)
            p[0] = 0
            p = write_varint(p + 1, delta)
            p = write_varint(p, builder.count)
            p = _put(p, &key)
            p = _put(p, &value)
            p = _put_headers(p, rows, i)
            builder.length = p - builder.buffer
            builder.count += 1
            if timestamp > builder.max_timestamp:
                builder.max_timestamp = timestamp
            self.position += 1
        return DONE

    cdef int64_t first_over(self, Py_ssize_t limit) noexcept nogil:
        """The first row of more than `limit` bytes, keys, values and headers together; -1 for none."""
        cdef int64_t at
        cdef int64_t i
        cdef Bytes key
        cdef Bytes value
        for at in range(self.length):
            i = self.order[at] if self.order != NULL else at
            _bytes_at(&self.inputs.key, i, &key)
            _bytes_at(&self.inputs.value, i, &value)
            if (
                max(key.length, <Py_ssize_t> 0) + max(value.length, <Py_ssize_t> 0)
                + _headers_size(self.inputs, i) > limit
            ):
                return i
        return -1

    cdef int64_t first_keyless(self) noexcept nogil:
        """The first row without a key; -1 for none."""
        cdef int64_t at
        cdef int64_t i
        cdef Bytes key
        for at in range(self.length):
            i = self.order[at] if self.order != NULL else at
            _bytes_at(&self.inputs.key, i, &key)
            if key.length < 0:
                return i
        return -1


@cython.final
cdef class BatchEncoder:
    """How batches are made: up to `max_bytes` before compression, of records up to `max_record_bytes`. Memory for one
    batch, for one thread at a time. transactional: whether they belong to a transaction of their producer (KIP-98)."""

    cdef BatchBuilder builder
    cdef readonly Py_ssize_t max_bytes
    cdef readonly Py_ssize_t max_record_bytes
    cdef int codec
    cdef bint transactional

    def __init__(
        self, Py_ssize_t max_bytes, str compression="none", Py_ssize_t max_record_bytes=MAX_RECORD,
        bint transactional=False,
    ):
        if not HEADER_SIZE < max_bytes <= MAX_BATCH:
            raise UsageError(f"a batch has {HEADER_SIZE + 1} to {MAX_BATCH} bytes, not {max_bytes}")
        if not 0 < max_record_bytes <= MAX_RECORD:
            raise UsageError(f"a record has 1 to {MAX_RECORD} bytes, not {max_record_bytes}")
        self.max_bytes = max_bytes
        self.max_record_bytes = max_record_bytes
        self.codec = codec_id(compression)
        self.transactional = transactional
        self.builder = BatchBuilder()


# Columns


cdef Input _input(int kind, const ArrowArray* array, int64_t first) noexcept:
    cdef Input column
    column.kind = kind
    column.array = array
    column.first = first + array.offset
    column.factor = 1
    return column


cdef Input bytes_column(str name, const ArrowSchema* schema, const ArrowArray* array, int64_t first) except *:
    cdef bytes format = schema.format
    if format in (b"z", b"u"):
        return _input(NARROW, array, first)
    if format in (b"Z", b"U"):
        return _input(WIDE, array, first)
    if format in (b"vz", b"vu"):
        return _input(VIEW, array, first)
    if format == b"n":
        return _input(ABSENT, array, first)
    raise ArgumentTypeError(f"column {name!r} is no Arrow binary or string, large or view, but {format.decode()!r}")


cdef Input _timestamps(const ArrowSchema* schema, const ArrowArray* array, int64_t first) except *:
    cdef bytes format = schema.format
    cdef Input column = _input(WIDE, array, first)
    if format == b"l" or format.startswith(b"tsm:"):
        return column
    if format.startswith(b"tss:"):
        column.factor = -1000
    elif format.startswith(b"tsu:"):
        column.factor = 1000
    elif format.startswith(b"tsn:"):
        column.factor = 1000000
    else:
        raise ArgumentTypeError(f"column 'timestamp' is no Arrow timestamp or int64, but {format.decode()!r}")
    return column


cdef Input _numbers(const ArrowSchema* schema, const ArrowArray* array, int64_t first) except *:
    cdef bytes format = schema.format
    if format not in (b"i", b"l"):
        raise ArgumentTypeError(f"column 'partition' is no Arrow int32 or int64, but {format.decode()!r}")
    return _input(NARROW if format == b"i" else WIDE, array, first)


cdef inline bint _is_null(const Input* column, int64_t i) noexcept nogil:
    cdef const uint8_t* validity = <const uint8_t*> column.array.buffers[0]
    i += column.first
    return validity != NULL and not validity[i >> 3] >> (i & 7) & 1


cdef inline int64_t _number_at(const Input* column, int64_t i) noexcept nogil:
    i += column.first
    if column.kind == NARROW:
        return (<const int32_t*> column.array.buffers[1])[i]
    return (<const int64_t*> column.array.buffers[1])[i]


cdef inline int64_t _timestamp_at(const Input* column, int64_t i, int64_t now) noexcept nogil:
    """In milliseconds; a negative number for one before 1970, or too far in the future."""
    cdef int64_t value
    if column.kind == ABSENT or _is_null(column, i):
        return now
    value = _number_at(column, i)
    if value < 0:
        return -1
    if column.factor < 0:
        return value * -column.factor if value <= INT64_MAX // -column.factor else -1
    return value // column.factor


cdef inline void _bytes_at(const Input* column, int64_t i, Bytes* out) noexcept nogil:
    cdef const int32_t* narrow
    cdef const int64_t* wide
    out.data = NULL
    out.length = -1
    if column.kind == ABSENT or _is_null(column, i):
        return
    i += column.first
    if column.kind == NARROW:
        narrow = <const int32_t*> column.array.buffers[1]
        out.data = <const uint8_t*> column.array.buffers[2] + narrow[i]
        out.length = narrow[i + 1] - narrow[i]
    elif column.kind == WIDE:
        wide = <const int64_t*> column.array.buffers[1]
        out.data = <const uint8_t*> column.array.buffers[2] + wide[i]
        out.length = wide[i + 1] - wide[i]
    else:
        narrow = <const int32_t*> column.array.buffers[1] + 4 * i
        out.length = narrow[0]
        if narrow[0] <= 12:
            out.data = <const uint8_t*> (narrow + 1)
        else:
            out.data = <const uint8_t*> column.array.buffers[2 + narrow[2]] + narrow[3]


cdef void bytes_at(const Input* column, int64_t i, Bytes* out) noexcept nogil:
    """Row `i` of a column of bytes; for other modules."""
    _bytes_at(column, i, out)


cdef inline uint8_t* _put(uint8_t* p, const Bytes* value) noexcept nogil:
    p = write_varint(p, value.length)
    if value.length > 0:
        memcpy(p, value.data, value.length)
        p += value.length
    return p


cdef inline void _header_range(const Inputs* rows, int64_t i, int64_t* begin, int64_t* end) noexcept nogil:
    begin[0] = end[0] = 0
    if rows.headers.kind == ABSENT or _is_null(&rows.headers, i):
        return
    begin[0] = _number_at(&rows.headers, i)
    end[0] = _number_at(&rows.headers, i + 1)


cdef inline Py_ssize_t _headers_size(const Inputs* rows, int64_t i) noexcept nogil:
    cdef int64_t at
    cdef int64_t begin
    cdef int64_t end
    cdef Py_ssize_t size
    cdef Bytes piece
    _header_range(rows, i, &begin, &end)
    size = varint_size(end - begin)
    for at in range(begin, end):
        _bytes_at(&rows.header_key, at, &piece)
        size += varint_size(max(piece.length, <Py_ssize_t> 0)) + max(piece.length, <Py_ssize_t> 0)
        _bytes_at(&rows.header_value, at, &piece)
        size += varint_size(piece.length) + max(piece.length, <Py_ssize_t> 0)
    return size


cdef inline uint8_t* _put_headers(uint8_t* p, const Inputs* rows, int64_t i) noexcept nogil:
    cdef int64_t at
    cdef int64_t begin
    cdef int64_t end
    cdef Bytes piece
    _header_range(rows, i, &begin, &end)
    p = write_varint(p, end - begin)
    for at in range(begin, end):
        _bytes_at(&rows.header_key, at, &piece)
        piece.length = max(piece.length, <Py_ssize_t> 0)  # a header's key is never null
        p = _put(p, &piece)
        _bytes_at(&rows.header_value, at, &piece)
        p = _put(p, &piece)
    return p
