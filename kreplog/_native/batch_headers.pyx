"""Headers of whole batches as packed rows, for NumPy; no record is decoded.

One row, 56 bytes in the machine's byte order: int64 base offset, last offset, max timestamp (ms), producer id; int32
size (bytes, header included), leader epoch; uint32 CRC-32C; int32 record count, base sequence; int16 attributes,
producer epoch.
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t

from kreplog._native.batch cimport (
    BATCH_OK,
    BATCH_SHORT,
    HEADER_SIZE,
    BatchHeader,
    batch_size,
    check_crc,
    raise_corrupt,
    read_header,
)
from kreplog._native.view cimport LogView


cdef struct Row:
    int64_t base_offset
    int64_t last_offset
    int64_t max_timestamp
    int64_t producer_id
    int32_t size
    int32_t leader_epoch
    uint32_t crc
    int32_t record_count
    int32_t base_sequence
    int16_t attributes
    int16_t producer_epoch


cdef Py_ssize_t _fill(const uint8_t* data, Py_ssize_t length, Row* row, int* code) noexcept nogil:
    """Rows for the batches in `data` with a valid CRC; returns their number. code: BATCH_OK, or the next one's error.

    Each header is copied once: the bytes may be mapped, and change.
    """
    cdef BatchHeader h
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t rows = 0
    code[0] = BATCH_OK
    while at < length:
        code[0] = read_header(data + at, length - at, &h)
        if code[0] == BATCH_OK and batch_size(&h) > length - at:
            code[0] = BATCH_SHORT
        if code[0] == BATCH_OK:
            code[0] = check_crc(data + at, &h)
        if code[0] != BATCH_OK:
            break
        row.base_offset = h.base_offset
        row.last_offset = h.base_offset + h.last_offset_delta
        row.max_timestamp = h.max_timestamp
        row.producer_id = h.producer_id
        row.size = <int32_t> batch_size(&h)
        row.leader_epoch = h.leader_epoch
        row.crc = h.crc
        row.record_count = h.record_count
        row.base_sequence = h.base_sequence
        row.attributes = h.attributes
        row.producer_epoch = h.producer_epoch
        at += batch_size(&h)
        rows += 1
        row += 1
    return rows


def packed(LogView log, buffer, int64_t offset):
    """The rows of the batches in `buffer`, which `fetch` took from `log` at `offset`. Raises CorruptBatchError with
    the offset at which the damaged batch was expected."""
    cdef const uint8_t[::1] data = memoryview(buffer).cast("B")
    cdef Py_ssize_t length = data.shape[0]
    cdef Py_ssize_t rows
    cdef Row* table
    cdef int code
    if length == 0:
        return b""
    table = <Row*> PyMem_Malloc((length // HEADER_SIZE + 1) * sizeof(Row))
    if table == NULL:
        raise MemoryError()
    try:
        with nogil:
            rows = _fill(&data[0], length, table, &code)
        if code != BATCH_OK:
            raise_corrupt(code, log.name, table[rows - 1].last_offset + 1 if rows else offset, log.path, -1)
        return PyBytes_FromStringAndSize(<const char*> table, rows * <Py_ssize_t> sizeof(Row))
    finally:
        PyMem_Free(table)
