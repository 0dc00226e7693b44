"""Appends of encoded batches: of a producer, which get their offsets here, or of a leader, unchanged.

The caller's bytes are copied first, so that the bytes written are those that were checked; except a leader's in a
managed log, whose owner does not change the bytes it passes. Everything is checked before the first byte is written.

Decompressing batches to check them takes the longest by far, so a caller may have it done before in a thread: an
append of InspectedBatches decompresses nothing. A follower in a managed log decompresses at most FOLLOWER_INFLATES
bytes an append: its leader has checked the rest, and the CRC shows that they are the same bytes. What it fetches may be
checked before in a thread, too: see CheckedBatches.
"""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport INT32_MAX, INT64_MAX, int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from kreplog._native.batch cimport (
    BAD_ATTRIBUTES,
    BAD_COUNT,
    BATCH_OK,
    BATCH_SHORT,
    CONTROL,
    CRC_START,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MIN_RECORD_SIZE,
    TRANSACTIONAL,
    BatchBuilder,
    BatchHeader,
    Bytes,
    RecordCursor,
    RecordsFound,
    RecordView,
    batch_size,
    check_crc,
    check_records,
    codec_of,
    inflated_size,
    next_offset_of,
    next_record,
    open_records,
    raise_corrupt,
    read_header,
    wall_clock_ms,
)
from kreplog._native.crc32c cimport crc32c_update
from kreplog._native.cursor cimport store16, store32, store64
from kreplog._native.log cimport SegmentedLog, epoch_of

from kreplog._native.batch import MAX_DECOMPRESSED_BYTES
from kreplog.errors import (
    ArgumentTypeError,
    FencedLeaderEpochError,
    InvalidTimestampError,
    OffsetOutOfRangeError,
    RecordBatchTooLargeError,
    ResourceExhaustedError,
    UsageError,
)
from kreplog.types import AppendInfo


cdef enum:
    FOLLOWER_INFLATES = 4 << 20


@cython.final
cdef class InspectedBatches:
    """A producer's batches whose records have been looked into, for Log.append_batches; bytes-like.

    data: the caller's, who changes them no more. error: what append_batches raises for them, None for nothing.
    """

    cdef readonly object data
    cdef readonly object error
    cdef list max_timestamps
    cdef bint keyless  # whether a record has no key
    cdef int64_t min_timestamp

    def __init__(self, data, error=None):
        self.data = data
        self.error = error
        self.min_timestamp = INT64_MAX
        self.max_timestamps = None if error is not None else inspected(data, self)

    def __len__(self):
        return len(self.data)


@cython.final
cdef class CheckedBatches:
    """A leader's batches whose sizes, CRCs and records have been checked, for Log.append_as_follower of a managed log.
    Bytes-like; the caller changes the bytes no more.

    Without the GIL from the first byte to the last, except to decompress. Raises CorruptBatchError,
    UnsupportedCompressionError.
    """

    cdef const uint8_t[::1] data

    def __init__(self, data):
        cdef const uint8_t[::1] given = memoryview(data).cast("B")
        cdef Py_ssize_t at = 0
        cdef int64_t inflated = 0
        cdef BatchHeader h
        cdef int code = BATCH_OK
        while at < given.shape[0] and code == BATCH_OK:
            with nogil:
                code = check_plain(&given[0], given.shape[0], &at, &h)
            if code == BATCH_OK and at < given.shape[0]:  # at a compressed batch
                code = check_followed_records(&given[at], &h, &inflated)
                at += batch_size(&h)
        if code != BATCH_OK:
            raise_corrupt(code, None, -1, None, at)
        self.data = given

    def __len__(self):
        return self.data.shape[0]

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        PyBuffer_FillInfo(buffer, self, <void*> &self.data[0], self.data.shape[0], 1, flags)


cdef int check_plain(const uint8_t* data, Py_ssize_t length, Py_ssize_t* at, BatchHeader* h) noexcept nogil:
    """Check headers and CRCs of batches from `at` on, and the records of those that are not compressed; it ends at a
    compressed one, whose header is in `h`, or at the first that does not hold."""
    cdef const uint8_t* p
    cdef int code
    while at[0] < length:
        p = data + at[0]
        code = read_header(p, length - at[0], h)
        if code == BATCH_OK and batch_size(h) > length - at[0]:
            code = BATCH_SHORT
        if code == BATCH_OK:
            code = check_crc(p, h)
        if code != BATCH_OK or codec_of(h):
            return code
        code = check_plain_records(p, h)
        if code != BATCH_OK:
            return code
        at[0] += batch_size(h)
    return BATCH_OK


cdef int check_plain_records(const uint8_t* p, const BatchHeader* h) noexcept nogil:
    """As check_records, of a batch that is not compressed and whose offsets need not be dense."""
    cdef RecordCursor c
    cdef RecordView view
    cdef int code = 1
    open_records(&c, h, p + HEADER_SIZE, batch_size(h) - HEADER_SIZE)
    if h.record_count > (c.end - c.pos) // MIN_RECORD_SIZE:
        return BAD_COUNT
    while code > 0:
        code = next_record(&c, &view)
    return code


cdef int check_followed_records(const uint8_t* p, const BatchHeader* h, int64_t* inflated) except -1:
    """The code of the records of a batch in a managed log's append as a follower. inflated: what the batches of that
    append may expand to so far."""
    cdef Py_ssize_t size = inflated_size(p, h)
    cdef RecordsFound ignored
    inflated[0] += size
    if inflated[0] > FOLLOWER_INFLATES and size <= MAX_DECOMPRESSED_BYTES:
        return BATCH_OK
    return check_records(p, h, False, &ignored)


cdef list inspected(data, InspectedBatches noted):
    """The largest timestamp of each batch, -1 for none. noted: gets what is of all batches.

    Raises CorruptBatchError, UnsupportedCompressionError."""
    cdef const uint8_t[::1] given = memoryview(data).cast("B")
    cdef Py_ssize_t length = given.shape[0]
    cdef Py_ssize_t at = 0
    cdef BatchHeader h
    cdef RecordsFound records
    cdef int code
    cdef list found = []
    while at < length:
        code = read_header(&given[at], length - at, &h)
        if code == BATCH_OK and batch_size(&h) > length - at:
            code = BATCH_SHORT
        if code == BATCH_OK:
            code = check_records(&given[at], &h, True, &records)
        if code != BATCH_OK:
            raise_corrupt(code, None, -1, None, at)
        noted.keyless |= records.keyless
        noted.min_timestamp = min(noted.min_timestamp, records.min_timestamp)
        found.append(records.max_timestamp)
        at += batch_size(&h)
    return found


def inflated_sizes(data):
    """(bytes, bytes that these may expand to at the most) of the compressed ones among the batches in `data`.

    Only headers are read, so it costs next to nothing. Raises CorruptBatchError for bytes that are no batches.
    """
    cdef const uint8_t[::1] given = memoryview(data).cast("B")
    cdef Py_ssize_t length = given.shape[0]
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t compressed = 0
    cdef Py_ssize_t inflated = 0
    cdef Py_ssize_t size
    cdef BatchHeader h
    cdef int code
    while at < length:
        code = read_header(&given[at], length - at, &h)
        if code == BATCH_OK and batch_size(&h) > length - at:
            code = BATCH_SHORT
        if code != BATCH_OK:
            raise_corrupt(code, None, -1, None, at)
        size = inflated_size(&given[at], &h)
        if size:
            compressed += batch_size(&h)
            inflated += size
        at += batch_size(&h)
    return compressed, inflated


cdef struct Totals:
    int64_t next_offset
    int64_t records
    int64_t max_timestamp
    int64_t transactional  # offset of the first batch of a transaction, -1 for none
    bint gaps  # of a leader's batches: whether offsets are missing, which compaction has removed


def append_batches(
    SegmentedLog log, buffer, leader_epoch=None, bint strict=False, bint new_producers=True, bint transactional=False,
    bint sequenced=True, int32_t verified_by=INT32_MAX
):
    """See Log.append_batches."""
    cdef InspectedBatches prechecked = buffer if isinstance(buffer, InspectedBatches) else None
    cdef BatchHeader header
    cdef Totals totals
    cdef int64_t first
    cdef int64_t now = wall_clock_ms()
    cdef int32_t epoch
    cdef Py_ssize_t size
    if prechecked is not None and prechecked.error is not None:
        raise prechecked.error
    cdef const uint8_t[::1] given = bytes_of(log, buffer if prechecked is None else prechecked.data)
    log.begin_write()
    try:
        epoch = leader_epoch_for(log, leader_epoch)
        copy_in(log, given)
        first = totals.next_offset = log.position.leo
        assign_offsets(log, prechecked, epoch, now, transactional, log.managed and sequenced, &header, &totals)
        duplicate = None
        if header.producer_id >= 0:
            if sequenced:
                duplicate = log.producers.check(
                    header.producer_id, header.producer_epoch, header.base_sequence, header.record_count, strict,
                )
            else:
                log.producers.check_epoch(header.producer_id, header.producer_epoch)
            if duplicate is None and log.first_unstable != INT64_MAX:
                log.producers.check_transaction(header.producer_id, totals.transactional >= 0)
            if duplicate is None and totals.transactional >= 0:
                log.producers.check_verified(header.producer_id, header.producer_epoch, verified_by)
            log.producers.admit(header.producer_id, now, log.config.max_producer_ids, new_producers)
        size = log.builder.length
        if duplicate is None:
            if epoch != log.last_epoch:
                log.assign_epoch(epoch)
            write_all(log, log.builder.buffer, size, &totals)
        else:
            first = duplicate[0]
            totals.next_offset = duplicate[1] + 1
    finally:
        log.unlock()
    log.flush_due(totals.next_offset)  # of a duplicate batch too: its first append may still wait for its fsync
    if duplicate is not None:
        return AppendInfo(first, totals.next_offset - 1, totals.records, 0, totals.max_timestamp, -1, True)
    return AppendInfo(
        first, totals.next_offset - 1, totals.records, size, totals.max_timestamp,
        now if log.log_append_time else -1, False,
    )


cdef int assign_offsets(
    SegmentedLog log, InspectedBatches prechecked, int32_t epoch, int64_t now, bint transactional, bint bounded,
    BatchHeader* first, Totals* totals
) except -1:
    """Check the batches in the log's builder and write offsets, epoch and timestamps into their headers.

    transactional: whether a batch may be of a transaction. bounded: whether each has to fit in a segment. first: the
    header of the first batch, as the producer sent it. totals: next_offset is where they begin, then end.
    Raises CorruptBatchError, RecordTooLargeError, RecordBatchTooLargeError, UsageError.
    """
    cdef uint8_t* p
    cdef BatchHeader h
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t length = log.builder.length
    cdef Py_ssize_t count = 0
    cdef int64_t batch_max = -1
    cdef RecordsFound found
    cdef bint keyless = prechecked is not None and prechecked.keyless
    cdef int64_t earliest = INT64_MAX if prechecked is None else prechecked.min_timestamp
    cdef int code
    cdef int barred = CONTROL | LOG_APPEND_TIME | DELETE_HORIZON | (0 if transactional else TRANSACTIONAL)
    totals.records = 0
    totals.max_timestamp = totals.transactional = -1
    while at < length:
        p = log.builder.buffer + at
        code = check_produced(log, p, length - at, barred, bounded, &h)
        if prechecked is not None:
            batch_max = <int64_t> prechecked.max_timestamps[count]
        elif code == BATCH_OK:
            code = check_records(p, &h, True, &found)
            batch_max = found.max_timestamp
            keyless |= found.keyless
            earliest = found.min_timestamp
        if code != BATCH_OK:
            raise_corrupt(code, log.name, -1, None, at)
        if keyless and log.needs_keys:
            log.refuse_keyless()
        if not log.log_append_time and (batch_max - now > log.newest_ms or earliest < now - log.oldest_ms):
            refuse_timestamps(log, earliest, batch_max, now)
        if at == 0:
            first[0] = h
            if h.attributes & TRANSACTIONAL:  # then it stands alone
                totals.transactional = totals.next_offset
        batch_max = stamp(log, p, &h, totals.next_offset, epoch, batch_max, now)
        if batch_max > totals.max_timestamp:
            totals.max_timestamp = batch_max
        totals.next_offset += h.last_offset_delta + 1
        totals.records += h.record_count
        at += batch_size(&h)
        count += 1
        if h.producer_id >= 0 and (count > 1 or at < length):
            raise UsageError(f"{log.name}: an idempotent producer's batch must stand alone in its append")
    return 0


cdef int check_produced(
    SegmentedLog log, const uint8_t* p, Py_ssize_t available, int barred, bint bounded, BatchHeader* h
) except 1:
    """Read and check the header and the CRC of a producer's batch; BATCH_OK, or the code of what is wrong with it.

    barred: attributes that it must not have. bounded: whether it has to fit in a segment.
    Raises RecordTooLargeError, RecordBatchTooLargeError, UsageError.
    """
    cdef int code = check(log, p, available, h)
    if code != BATCH_OK:
        return code
    if h.attributes & barred or h.attributes & TRANSACTIONAL and h.producer_id < 0:
        return BAD_ATTRIBUTES
    if bounded and batch_size(h) > log.segment_bytes:
        raise RecordBatchTooLargeError(
            f"{log.name}: a batch of {batch_size(h)} bytes does not fit in a segment of {log.segment_bytes}; "
            "nothing was written: send smaller batches, or raise segment.bytes", partition=log.name,
        )
    if h.record_count == 0:
        raise UsageError(f"{log.name}: a producer's batch holds at least one record")
    return BATCH_OK


cdef int refuse_timestamps(SegmentedLog log, int64_t earliest, int64_t latest, int64_t now) except -1:
    early = latest - now <= log.newest_ms
    raise InvalidTimestampError(
        f"{log.name}: a record has timestamp {earliest if early else latest}, and now is {now}: at most "
        f"{log.oldest_ms if early else log.newest_ms} ms {'before' if early else 'after'} now are allowed; nothing was "
        f"written: see message.timestamp.{'before' if early else 'after'}.max.ms", partition=log.name,
    )


cdef int64_t stamp(
    SegmentedLog log, uint8_t* p, const BatchHeader* h, int64_t base_offset, int32_t epoch, int64_t batch_max,
    int64_t now
) noexcept:
    """Write into a producer's batch the fields that its leader assigns; return its largest timestamp.

    batch_max: the largest timestamp of its records. now: in ms, which takes its place under LogAppendTime.
    """
    if log.log_append_time:
        store16(p + 21, <unsigned short> (h.attributes | LOG_APPEND_TIME))
        batch_max = now
    if batch_max != h.max_timestamp or log.log_append_time:
        store64(p + 35, <uint64_t> batch_max)
        store32(p + 17, crc32c_update(0, p + CRC_START, batch_size(h) - CRC_START))
    store64(p, <uint64_t> base_offset)
    store32(p + 12, <unsigned int> epoch)
    return batch_max


def append_as_follower(SegmentedLog log, buffer):
    """See Log.append_as_follower."""
    cdef const uint8_t[::1] given = bytes_of(log, buffer)
    cdef const uint8_t* data = &given[0]
    cdef Py_ssize_t length = given.shape[0]
    cdef Totals totals
    cdef int64_t first
    cdef int32_t epoch
    cdef list new_epochs = []
    log.begin_write()
    try:
        if not log.managed:
            copy_in(log, given)
            data = log.builder.buffer
        first = totals.next_offset = log.position.leo
        check_follows(log, data, length, log.managed and isinstance(buffer, CheckedBatches), new_epochs, &totals)
        if totals.gaps:
            expect_gaps(log)
        try:
            for epoch, start in new_epochs:
                log.epochs.assign(epoch, start)
                log.current_epoch = max(log.current_epoch, epoch)
            if log.flush_epochs():
                log.publish_epochs()
        except BaseException as error:
            log.fail_unless_exhausted(error)
        write_all(log, data, length, &totals)
    finally:
        log.unlock()
    log.flush_due(totals.next_offset)
    return AppendInfo(first, totals.next_offset - 1, totals.records, length, totals.max_timestamp, -1, False)


cdef int check_follows(
    SegmentedLog log, const uint8_t* data, Py_ssize_t length, bint sound, list new_epochs, Totals* totals
) except -1:
    """Check a leader's batches: sound, next to each other from the log end on, in epochs that do not fall. In a log
    that is compacted offsets may be missing between two batches.

    sound: they are CheckedBatches. new_epochs: gets (epoch, start offset) of each that the log has no entry of. totals:
    as for assign_offsets. Raises CorruptBatchError, OffsetOutOfRangeError, FencedLeaderEpochError.
    """
    cdef BatchHeader h
    cdef Py_ssize_t at = 0
    cdef RecordsFound ignored
    cdef int64_t inflated = 0
    cdef int32_t epoch = log.epochs.latest_epoch
    cdef int code
    totals.records = 0
    totals.max_timestamp = totals.transactional = -1
    totals.gaps = False
    while at < length:
        code = check_header(data + at, length - at, &h)  # max_message_bytes may be less by now than the leader's was
        if code == BATCH_OK and not sound:
            with nogil:
                code = check_crc(data + at, &h)
            if code == BATCH_OK and log.managed:
                code = check_followed_records(data + at, &h, &inflated)
            elif code == BATCH_OK:
                code = check_records(data + at, &h, False, &ignored)
        if code != BATCH_OK:
            raise_corrupt(code, log.name, -1, None, at)
        if h.base_offset != totals.next_offset and log.compacts and 0 < h.base_offset - totals.next_offset < INT32_MAX:
            totals.gaps = True
        elif h.base_offset != totals.next_offset:
            raise OffsetOutOfRangeError(
                f"{log.name}: the leader's batch begins at offset {h.base_offset}, the log ends at "
                f"{totals.next_offset}; nothing written: truncate, or fetch from {log.position.leo}",
                partition=log.name, offset=h.base_offset,
            )
        if h.leader_epoch < epoch:
            raise FencedLeaderEpochError(
                f"{log.name}: the batch at offset {h.base_offset} has leader epoch {h.leader_epoch}, the log "
                f"already {epoch}; nothing written", partition=log.name, offset=h.base_offset,
            )
        if h.leader_epoch > epoch:
            epoch = h.leader_epoch
            new_epochs.append((epoch, h.base_offset))
        if h.attributes & TRANSACTIONAL and totals.transactional < 0 and not h.attributes & CONTROL:
            totals.transactional = h.base_offset
        if h.max_timestamp > totals.max_timestamp:
            totals.max_timestamp = h.max_timestamp
        totals.next_offset = next_offset_of(&h)
        totals.records += h.record_count
        at += batch_size(&h)
    return 0


cdef int expect_gaps(SegmentedLog log) except -1:
    """Before the first append with a gap: it is no damage, to readers as to recovery. Raises LogFailedError."""
    if log.position.dense_from == INT64_MAX:
        return 0
    log.position.dense_from = INT64_MAX
    log.state.publish(&log.position)
    try:
        log.state.sync()
    except BaseException as error:
        log.fail(error)
    return 0


def producer_count(SegmentedLog log):
    """See Log.producer_count."""
    return 0 if log.producers is None else len(log.producers)


def active_producers(SegmentedLog log):
    """See ManagedLog.active_producers."""
    log.begin_write()
    try:
        return log.producers.active()
    finally:
        log.unlock()


def expire_producers(SegmentedLog log, int64_t now_ms):
    """See Log.expire_producers."""
    log.begin_write()
    try:
        log.producers.expire(now_ms, log.config.producer_id_expiration_ms)
    finally:
        log.unlock()


cdef const uint8_t[::1] bytes_of(SegmentedLog log, object buffer):
    """The caller's bytes, at least one. Raises ArgumentTypeError, UsageError."""
    cdef const uint8_t[::1] data
    try:
        data = memoryview(buffer).cast("B")
    except TypeError as error:
        raise ArgumentTypeError(f"encoded batches are contiguous bytes-like: {error}") from None
    if data.shape[0] == 0:
        raise UsageError(f"{log.name}: there is no batch in an empty buffer")
    return data


cdef int copy_in(SegmentedLog log, const uint8_t[::1] data) except -1:
    """Copy the caller's bytes, so that what was checked is what is written."""
    log.builder.reset()
    log.builder.reserve(data.shape[0])
    memcpy(log.builder.buffer, &data[0], data.shape[0])
    log.builder.length = data.shape[0]
    return 0


cdef int check(SegmentedLog log, const uint8_t* p, Py_ssize_t available, BatchHeader* h) except 1:
    """The code of a batch's header and its CRC. Raises RecordTooLargeError."""
    cdef int code = check_header(p, available, h)
    if code != BATCH_OK:
        return code
    if batch_size(h) > log.max_message_bytes:
        log._refuse_size(batch_size(h))
    with nogil:
        code = check_crc(p, h)
    return code


cdef int check_header(const uint8_t* p, Py_ssize_t available, BatchHeader* h) noexcept:
    """Read the header; BATCH_OK if the batch is whole."""
    cdef int code = read_header(p, available, h)
    if code != BATCH_OK:
        return code
    if batch_size(h) > available:
        return BATCH_SHORT
    return BATCH_OK


cdef int write_all(SegmentedLog log, const uint8_t* data, Py_ssize_t length, const Totals* totals) except -1:
    """Write these batches, at once where they fit in a segment, else one by one; remember their producers.

    A producer is remembered before the next write, which may roll the segment and write the snapshot.
    """
    if totals.transactional < 0:
        return write_pieces(log, data, length, totals)
    log.announce_transaction(totals.transactional)
    try:
        return write_pieces(log, data, length, totals)
    except BaseException:
        log.settle_transactions()
        raise


cdef int write_pieces(SegmentedLog log, const uint8_t* data, Py_ssize_t length, const Totals* totals) except -1:
    cdef BatchHeader h
    cdef Py_ssize_t at = 0
    cdef bint at_once = length <= log.segment_bytes and totals.next_offset - log.position.leo <= INT32_MAX
    if at_once:
        log.write(data, length, totals.next_offset, totals.max_timestamp)
    while at < length:
        read_header(data + at, length - at, &h)
        if not at_once:
            try:
                log.write(data + at, batch_size(&h), next_offset_of(&h), h.max_timestamp)
            except ResourceExhaustedError as error:
                if at:  # the caller would take what was written for not written
                    log.fail(error)
                raise
        if h.producer_id >= 0:
            note(log, &h, data + at)
        at += batch_size(&h)
    return 0


cdef int note(SegmentedLog log, const BatchHeader* h, const uint8_t* batch) except -1:
    """Remember the producer of a batch that is written. Raises LogFailedError where the index of an aborted transaction
    cannot be written."""
    try:
        log.note_producer(h, batch, log.active)
    except BaseException as error:
        log.fail(error)
    return 0


def append_marker(
    SegmentedLog log, int64_t producer_id, int16_t producer_epoch, bint committed, int32_t coordinator_epoch,
    leader_epoch=None
):
    """See Log.append_transaction_marker."""
    cdef BatchBuilder builder = log.builder
    cdef Totals totals
    cdef int64_t now = wall_clock_ms()
    cdef int64_t offset
    cdef int32_t epoch
    cdef Bytes key
    cdef Bytes value
    cdef uint8_t fields[10]
    if producer_id < 0 or producer_epoch < 0 or coordinator_epoch < 0:
        raise UsageError(
            f"{log.name}: a marker for producer {producer_id}, epoch {producer_epoch}, of coordinator epoch "
            f"{coordinator_epoch}: none of them is negative"
        )
    store32(fields, 1 if committed else 0)  # int16 version 0, int16 type
    store16(fields + 4, 0)
    store32(fields + 6, <unsigned int> coordinator_epoch)
    key.data, key.length = fields, 4
    value.data, value.length = fields + 4, 6
    log.begin_write()
    try:
        epoch = leader_epoch_for(log, leader_epoch)
        log.producers.check_marker(producer_id, producer_epoch, coordinator_epoch)
        if epoch != log.last_epoch:
            log.assign_epoch(epoch)
        offset = log.position.leo
        builder.reset()
        builder.begin()
        builder.add(now, key, value, None)
        builder.finish(offset, epoch, 0, log.log_append_time, producer_id, producer_epoch, -1)
        builder.mark(TRANSACTIONAL | CONTROL)
        totals.next_offset = offset + 1
        totals.max_timestamp = now
        totals.transactional = -1
        size = builder.length
        write_all(log, builder.buffer, builder.length, &totals)
    finally:
        log.unlock()
    log.flush_due(offset + 1)
    return AppendInfo(offset, offset, 1, size, now, now if log.log_append_time else -1, False)


cdef int32_t leader_epoch_for(SegmentedLog log, leader_epoch) except? -1:
    """The epoch of an append; by default the log's. Raises FencedLeaderEpochError."""
    cdef int32_t epoch = log.current_epoch if leader_epoch is None else epoch_of(leader_epoch)
    if epoch < log.current_epoch:
        raise FencedLeaderEpochError(
            f"{log.name}: leader epoch {epoch} is older than the log's {log.current_epoch}; nothing written",
            partition=log.name,
        )
    return epoch
