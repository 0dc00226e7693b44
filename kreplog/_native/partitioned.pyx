"""PartitionedWriter: rows of Arrow columns to encoded batches of many partitions, in one file, natively.

Each destination, a partition of a topic, has a builder of its own; its closed batches are appended to the file once
they are large enough for a write. The file contains whole batches only; the extents have the destination of each range.
"""

cimport cython
from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy
from posix.fcntl cimport O_CREAT, O_EXCL, O_RDWR

from kreplog._native.arrow_export cimport ArrowArray, ArrowSchema
from kreplog._native.batch cimport BatchBuilder, Bytes, codec_id, wall_clock_ms
from kreplog._native.columns cimport Column, column_of
from kreplog._native.cursor cimport write_varint
from kreplog._native.files cimport FileHandle, open_file
from kreplog._native.partitioner cimport partition_of_key

from kreplog._native.batch import MAX_DECOMPRESSED_BYTES
from kreplog._native.compression import compress
from kreplog.errors import ArgumentTypeError, RecordTooLargeError, UsageError

cdef enum:
    GATHERED = 256 << 10  # bytes of closed batches that go out in one write
    RECORD_OVERHEAD = 36  # at most, beside key, value and headers
    BATCH_OVERHEAD = 61


NULL_HEADER = (
    "a header of the record is null, or has no key: only the value of a header may be null; "
    "filter(headers, h -> h.key IS NOT NULL) leaves such headers out"
)


cdef class _Integers:
    """An Arrow int32 array."""

    cdef object capsules
    cdef const int32_t* values
    cdef const uint8_t* validity
    cdef int64_t offset
    cdef readonly int64_t length

    def __init__(self, array, str name):
        self.capsules = array.__arrow_c_array__()
        cdef ArrowSchema* schema = <ArrowSchema*> PyCapsule_GetPointer(self.capsules[0], b"arrow_schema")
        cdef ArrowArray* data = <ArrowArray*> PyCapsule_GetPointer(self.capsules[1], b"arrow_array")
        if schema.format != b"i" or schema.dictionary != NULL:
            raise ArgumentTypeError(f"{name} must be an Arrow int32 array")
        self.validity = <const uint8_t*> data.buffers[0]
        self.values = <const int32_t*> data.buffers[1]
        self.offset = data.offset
        self.length = data.length

    cdef inline bint is_null(self, int64_t i) noexcept:
        i += self.offset
        return self.validity != NULL and not self.validity[i >> 3] >> (i & 7) & 1

    cdef inline int32_t at(self, int64_t i) noexcept:
        return self.values[i + self.offset]


cdef class _Headers:
    """An Arrow list<struct<key: string, value: binary>> array, encoded a row at a time."""

    cdef object capsules
    cdef ArrowArray* lists
    cdef ArrowArray* structs
    cdef Column keys
    cdef Column values
    cdef uint8_t* scratch
    cdef Py_ssize_t capacity
    cdef readonly int64_t length

    def __cinit__(self):
        self.scratch = NULL

    def __dealloc__(self):
        free(self.scratch)

    def __init__(self, array, keys, values):
        """keys, values: Arrow arrays of all entries of all rows, as the array's child has them, its offset left out."""
        self.capsules = array.__arrow_c_array__()
        cdef ArrowSchema* schema = <ArrowSchema*> PyCapsule_GetPointer(self.capsules[0], b"arrow_schema")
        self.lists = <ArrowArray*> PyCapsule_GetPointer(self.capsules[1], b"arrow_array")
        if schema.format != b"+l" or self.lists.n_children != 1 or self.lists.children[0].n_children != 2:
            raise ArgumentTypeError("headers must be an Arrow list<struct<key: string, value: binary>> array")
        self.structs = self.lists.children[0]
        self.keys = column_of(keys, "header keys")
        self.values = column_of(values, "header values")
        self.length = self.lists.length

    cdef int encode(self, int64_t row, Bytes* out) except -1:
        cdef const uint8_t* validity = <const uint8_t*> self.lists.buffers[0]
        cdef const int32_t* offsets = <const int32_t*> self.lists.buffers[1]
        cdef const uint8_t* present = <const uint8_t*> self.structs.buffers[0]
        cdef int64_t at = row + self.lists.offset
        cdef int32_t i
        cdef int64_t entry
        cdef Bytes key
        cdef Bytes value
        cdef uint8_t* p
        out.data = self.scratch
        out.length = 0
        if validity != NULL and not validity[at >> 3] >> (at & 7) & 1 or offsets[at] == offsets[at + 1]:
            return 0
        self.reserve(10)
        p = write_varint(self.scratch, offsets[at + 1] - offsets[at])
        for i in range(offsets[at], offsets[at + 1]):
            entry = i + self.structs.offset
            self.keys.at(i, &key)
            self.values.at(i, &value)
            if key.length < 0 or present != NULL and not present[entry >> 3] >> (entry & 7) & 1:
                raise UsageError(NULL_HEADER)
            at = p - self.scratch
            self.reserve(at + 20 + key.length + max(value.length, 0))
            p = write_varint(self.scratch + at, key.length)
            if key.length:
                memcpy(p, key.data, key.length)
            p = write_varint(p + key.length, value.length)
            if value.length > 0:
                memcpy(p, value.data, value.length)
                p += value.length
        out.data = self.scratch
        out.length = p - self.scratch
        return 0

    cdef int reserve(self, Py_ssize_t wanted) except -1:
        cdef uint8_t* grown
        if wanted > self.capacity:
            grown = <uint8_t*> realloc(self.scratch, 2 * wanted)
            if grown == NULL:
                raise MemoryError()
            self.scratch = grown
            self.capacity = 2 * wanted
        return 0


@cython.final
cdef class PartitionedWriter:
    """Encodes rows for the partitions of several topics into a new file.

    path: must not exist yet. batch_bytes: maximum size of a batch. max_message_bytes: the
    largest batch that the partitions take. Raises StorageError, UnsupportedCompressionError, UsageError.
    """

    cdef readonly str path
    cdef readonly list extents  # (destination, position, bytes, records) in the order of the file
    cdef FileHandle file
    cdef int64_t position
    cdef int codec
    cdef Py_ssize_t batch_bytes
    cdef Py_ssize_t record_limit
    cdef list builders  # by destination; None where there was no record yet
    cdef list records  # of closed batches that are not written yet, by destination
    cdef int64_t rows  # of earlier writes

    def __init__(self, str path, *, Py_ssize_t batch_bytes=65536, compression="none",
                 Py_ssize_t max_message_bytes=1048588):
        self.codec = codec_id(compression)
        self.record_limit = max_message_bytes
        if self.codec:
            compress(self.codec, b"")  # its package is there
            self.record_limit = min(self.record_limit, MAX_DECOMPRESSED_BYTES // 2)
        self.batch_bytes = min(batch_bytes, self.record_limit)
        self.path = path
        self.file = open_file(path, O_RDWR | O_CREAT | O_EXCL)
        self.extents = []
        self.builders = []
        self.records = []

    def add_topic(self, Py_ssize_t partitions):
        """Make room for the partitions of one more topic; return the destination of its partition 0."""
        first = len(self.builders)
        self.builders.extend([None] * partitions)
        self.records.extend([0] * partitions)
        return first

    def write(self, values, keys, headers, partitions, topic_indexes, list topics, int64_t turn):
        """Encode the rows of Arrow arrays of one length, stamped with the time of now.

        values, keys (or None): binary or string. headers: None, or (the list array, its entries' keys, and values).
        partitions: int32 or None; null for a record that goes by its key. topic_indexes: int32 into `topics`, None
        where there is one. topics: (name, destination of partition 0, number of partitions). turn: records without a
        key go to the partition of this number, modulo theirs. Raises UsageError for a row that fits nowhere and
        RecordTooLargeError, which name the topic and the row, the first of the first write being 0; ArgumentTypeError,
        StorageError.
        """
        cdef Column value_column = column_of(values, "value")
        cdef Column key_column = None if keys is None else column_of(keys, "key")
        cdef _Headers header_column = None if headers is None else _Headers(*headers)
        cdef _Integers partition_column = None if partitions is None else _Integers(partitions, "partition")
        cdef _Integers topic_column = None if topic_indexes is None else _Integers(topic_indexes, "topic")
        cdef int64_t now = wall_clock_ms()
        cdef Py_ssize_t i
        cdef int32_t partition
        cdef int32_t count = 0
        cdef Py_ssize_t first = 0
        cdef str topic = None
        cdef Bytes key
        cdef Bytes value
        cdef Bytes encoded
        for other in (key_column, header_column, partition_column, topic_column):
            if other is not None and other.length != value_column.length:
                raise UsageError("the columns of one write have one length")
        key.data = encoded.data = NULL
        key.length = -1
        encoded.length = 0
        if topic_column is None:
            topic, first, count = topics[0]
        try:
            for i in range(value_column.length):
                if topic_column is not None:
                    if topic_column.is_null(i):
                        topic = None
                        raise UsageError("null topic present in the data. Use the topic option for setting a topic.")
                    topic, first, count = topics[topic_column.at(i)]
                value_column.at(i, &value)
                if key_column is not None:
                    key_column.at(i, &key)
                if header_column is not None:
                    header_column.encode(i, &encoded)
                if partition_column is not None and not partition_column.is_null(i):
                    partition = partition_column.at(i)
                    if not 0 <= partition < count:
                        raise UsageError(
                            f"Invalid partition given with record: {partition} is not in the range [0...{count}). Give "
                            "a partition that the topic has, or null to have the key choose it"
                        )
                elif key.length >= 0:
                    partition = partition_of_key(key.data, key.length, count)
                else:
                    partition = <int32_t> (turn % count)
                self.add(first + partition, now, key, value, encoded)
        except UsageError as error:
            place = f"row {self.rows + i}" if topic is None else f"topic {topic}, row {self.rows + i}"
            raise type(error)(f"{place}: {error}") from None
        self.rows += value_column.length

    cdef int add(self, Py_ssize_t destination, int64_t now, Bytes key, Bytes value, Bytes headers) except -1:
        cdef Py_ssize_t size = max(key.length, 0) + max(value.length, 0) + headers.length + RECORD_OVERHEAD
        cdef object found = self.builders[destination]
        cdef BatchBuilder builder
        if size + BATCH_OVERHEAD > self.record_limit:
            raise RecordTooLargeError(
                f"a record of {size + BATCH_OVERHEAD} bytes is over the limit of {self.record_limit} for one batch"
            )
        if found is None:
            found = self.builders[destination] = BatchBuilder()
        builder = <BatchBuilder> found
        if builder.count and builder.length - builder.start + size > self.batch_bytes:
            self.close_batch(destination, builder, now)
        if builder.count == 0:
            builder.begin()
        return builder.add_encoded(now, key, value, headers)

    cdef int close_batch(self, Py_ssize_t destination, BatchBuilder builder, int64_t now) except -1:
        self.records[destination] += builder.count
        builder.finish(0, 0, self.codec, False, -1, -1, -1)
        builder.count = 0
        if builder.length >= GATHERED:
            self.write_out(destination, builder)
        return 0

    cdef int write_out(self, Py_ssize_t destination, BatchBuilder builder) except -1:
        self.file.write_at(builder.buffer, builder.length, self.position)
        self.extents.append((destination, self.position, builder.length, self.records[destination]))
        self.position += builder.length
        self.records[destination] = 0
        builder.reset()
        return 0

    def finish(self):
        """Write the open batches, make the file durable and close it; return the extents. Raises StorageError."""
        cdef Py_ssize_t destination
        cdef BatchBuilder builder
        for destination in range(len(self.builders)):
            found = self.builders[destination]
            if found is None:
                continue
            builder = <BatchBuilder> found
            if builder.count:
                self.close_batch(destination, builder, 0)
            if builder.length:
                self.write_out(destination, builder)
        self.file.sync()
        self.file = None
        self.builders = []
        return self.extents
