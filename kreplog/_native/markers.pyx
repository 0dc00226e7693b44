"""Transaction markers: control batches of one record that commit or abort the open transaction of a producer.

    key     int16 version 0, int16 type: 0 abort, 1 commit
    value   int16 version 0, int32 coordinator epoch

Source: KIP-98, Kafka's ControlRecordType and EndTransactionMarker.
"""

from libc.stdint cimport int16_t, int32_t, uint8_t

from kreplog._native.batch cimport (
    BATCH_OK,
    HEADER_SIZE,
    BatchHeader,
    RecordCursor,
    RecordView,
    batch_size,
    codec_of,
    is_control,
    next_record,
    open_records,
    read_header,
)
from kreplog._native.cursor cimport load16, load32

cdef enum:
    ABORT = 0
    COMMIT = 1


cdef bint read_marker(const uint8_t* batch, const BatchHeader* h, Marker* out) noexcept nogil:
    """Whether the control batch is the marker of a transaction; one of another type, or a damaged one, is none."""
    cdef RecordCursor records
    cdef RecordView record
    cdef int16_t kind
    if codec_of(h) != 0 or h.record_count < 1:
        return False
    open_records(&records, h, batch + HEADER_SIZE, batch_size(h) - HEADER_SIZE)
    if next_record(&records, &record) != 1 or record.key_length < 4 or record.value_length < 6:
        return False
    kind = <int16_t> load16(record.key + 2)
    out.committed = kind == COMMIT
    out.coordinator_epoch = <int32_t> load32(record.value + 2)
    return kind == ABORT or kind == COMMIT


def committed_of(buffer):
    """Whether the marker that `buffer` begins with commits; None if that batch is no marker. No CRC is checked.

    buffer: whole batches, as `decode` has checked them.
    """
    cdef const uint8_t[::1] data = memoryview(buffer).cast("B")
    cdef BatchHeader h
    cdef Marker marker
    if data.shape[0] < HEADER_SIZE or read_header(&data[0], data.shape[0], &h) != BATCH_OK:
        return None
    if batch_size(&h) > data.shape[0] or not is_control(&h) or not read_marker(&data[0], &h, &marker):
        return None
    return bool(marker.committed)
