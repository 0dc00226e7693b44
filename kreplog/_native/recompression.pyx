"""A producer's batches with their records under another codec, as a topic's compression.type has it.

Headers keep all but the codec, the length and the CRC: offsets, timestamps, producer and sequence are the producer's.
The records themselves are not looked into here, but where the batches are appended.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint8_t, uint16_t, uint32_t

from kreplog._native.batch cimport (
    BATCH_OK,
    BATCH_SHORT,
    CODEC_MASK,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    batch_size,
    check_crc,
    codec_id,
    codec_of,
    raise_corrupt,
    read_header,
    section,
    uncompressed,
)
from kreplog._native.compression cimport compressed_pieces
from kreplog._native.crc32c cimport crc32c_update
from kreplog._native.cursor cimport store16, store32

from kreplog.errors import RecordTooLargeError


def has_other_codec(buffer, compression):
    """Whether one of the batches has another codec than `compression`; only headers are read."""
    cdef const uint8_t[::1] data = memoryview(buffer).cast("B")
    cdef Py_ssize_t at = 0
    cdef int codec = codec_id(compression)
    cdef BatchHeader h
    while at < data.shape[0] and read_header(&data[at], data.shape[0] - at, &h) == BATCH_OK:
        if codec_of(&h) != codec:
            return True
        at += batch_size(&h)
    return False


def recompressed(buffer, compression, int level, Py_ssize_t max_message_bytes, str partition):
    """The batches as bytes, those of another codec under `compression` ("none", "gzip", "snappy", "lz4", "zstd").

    level: of that codec, 0 for its default. max_message_bytes: of a batch as it came; how large it has become is for
    its append to check. partition: in errors.
    Raises CorruptBatchError, RecordTooLargeError, UnsupportedCompressionError, UsageError.
    """
    cdef const uint8_t[::1] data = memoryview(buffer).cast("B")
    cdef Py_ssize_t length = data.shape[0]
    cdef Py_ssize_t at = 0
    cdef int codec = codec_id(compression)
    cdef int code
    cdef BatchHeader h
    cdef list pieces = []
    while at < length:
        code = read_header(&data[at], length - at, &h)
        if code == BATCH_OK and batch_size(&h) > length - at:
            code = BATCH_SHORT
        if code == BATCH_OK and batch_size(&h) > max_message_bytes:
            raise RecordTooLargeError(
                f"{partition}: a batch of {batch_size(&h)} bytes is over the limit of {max_message_bytes} for one; "
                "nothing was written: send smaller batches, or raise max.message.bytes", partition=partition,
            )
        if code == BATCH_OK:
            with nogil:
                code = check_crc(&data[at], &h)
        if code != BATCH_OK:
            raise_corrupt(code, partition, -1, None, at)
        if codec_of(&h) == codec:
            pieces.append(bytes(data[at:at + batch_size(&h)]))
        else:
            pieces += _with_codec(&data[at], &h, codec, level)
        at += batch_size(&h)
    return b"".join(pieces)


cdef list _with_codec(const uint8_t* batch, const BatchHeader* h, int codec, int level):
    """A header, and the records of the batch behind it."""
    records = section(batch, h) if codec_of(h) == 0 else uncompressed(batch, h)
    cdef list pieces = compressed_pieces(codec, records, level)
    cdef bytes header = PyBytes_FromStringAndSize(<const char*> batch, HEADER_SIZE)
    cdef uint8_t* p = <uint8_t*> PyBytes_AS_STRING(header)
    cdef uint32_t crc
    cdef const uint8_t[::1] piece
    cdef Py_ssize_t size = HEADER_SIZE
    for packed in pieces:
        size += len(packed)
    store32(p + 8, <uint32_t> (size - LOG_OVERHEAD))
    store16(p + 21, <uint16_t> ((h.attributes & ~CODEC_MASK) | codec))
    crc = crc32c_update(0, p + CRC_START, HEADER_SIZE - CRC_START)
    for packed in pieces:
        if len(packed):
            piece = packed
            crc = crc32c_update(crc, &piece[0], piece.shape[0])
    store32(p + 17, crc)
    return [header, *pieces]
