"""ProducerState: the last batches of each idempotent producer, so that a retried batch is not written twice.

The sequences of a producer epoch count records from 0 to 2**31 - 1 and wrap around. The state has a producer's last
five batches with their offsets, and the first offset of its open transaction: nothing from there on is returned to
read_committed consumers. Of transactions that have ended, `transaction_index` has the aborted ones.

A snapshot, `<20-digit offset>.snapshot`, holds the state after all records below that offset, big-endian:

     0  2  version 1        2  4  CRC-32C of 6..end        6  4  number of entries, then each
     0  8  producer id      8  2  epoch    10  4  last sequence     14  8  last offset    22  4  offset delta
    26  8  timestamp       34  4  coordinator epoch, or -1          38  8  first offset of its transaction, or -1

An entry is a batch, a producer's batches standing together from oldest to newest. Kafka writes the newest alone, and
of several keeps the last it reads, so either reads the other's files. A producer known by its epoch alone has one entry
with last sequence and offset -1.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int16_t, int32_t, int64_t, uint8_t

from kreplog._native.batch cimport wall_clock_ms
from kreplog._native.checkpoint cimport atomic_write
from kreplog._native.crc32c cimport crc32c_update
from kreplog._native.cursor cimport load16, load32, load64, store16, store32, store64

import logging
import os
import re

from kreplog._native.files import error_of, names_in
from kreplog.errors import (
    CoordinatorFencedError,
    CorruptCheckpointError,
    DuplicateSequenceError,
    InvalidTransactionStateError,
    InvariantError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    TooManyProducersError,
    UnverifiedTransactionError,
    UsageError,
)

from kreplog.types import ActiveProducer

_logger = logging.getLogger("kreplog")

cdef enum:
    VERSION = 1
    HEADER_SIZE = 10
    CRC_FROM = 6
    ENTRY_SIZE = 46
    SEQUENCE_MASK = 0x7fffffff
    IDLE_MS = 600000        # clients give up a batch after two minutes (delivery.timeout.ms) by default
    LONGEST_RUN = 1 << 30   # half the sequences: what lies further back could as well lie ahead

cdef object _file_name = re.compile(r"([0-9]{20})\.snapshot")


@cython.final
cdef class ProducerEntry:
    """The last batches of one producer id in its current epoch."""

    def __cinit__(self):
        self.timestamp = -1
        self.transaction = -1
        self.coordinator_epoch = -1
        self.newest = REMEMBERED - 1


@cython.final
cdef class ProducerState:
    """All idempotent producers of one partition; its owner calls it under the partition lock.

    A producer is kept when retention deletes its records: its next batch is then still in order (KAFKA-7298).
    """

    def __init__(self):
        self._producers = {}
        self._open = {}

    def __len__(self):
        return len(self._producers)

    cpdef tuple check(
        self, int64_t producer_id, int16_t epoch, int32_t base_sequence, int32_t record_count, bint strict=False
    ):
        """None if the batch is the next one, to be appended; its (first, last) offset if it is among the last five.

        A new epoch begins at 0; an unknown producer may begin anywhere (KIP-360), unless `strict`. Changes nothing.
        Raises ProducerFencedError for an older epoch, OutOfOrderSequenceError for a gap, DuplicateSequenceError for
        records written before the last five batches; UsageError for negative numbers.
        """
        cdef ProducerEntry producer
        cdef Batch* batch
        cdef int32_t last_sequence, expected
        cdef int64_t behind, window
        cdef int i
        if producer_id < 0 or epoch < 0 or base_sequence < 0 or record_count < 1:
            raise UsageError(
                f"producer {producer_id}, epoch {epoch}, sequence {base_sequence}, {record_count} records: "
                "an idempotent batch has at least one record and none of these negative"
            )
        producer = self._producers.get(producer_id)
        if producer is None:
            if strict and base_sequence > 0:
                raise OutOfOrderSequenceError(
                    f"producer {producer_id} sent sequence {base_sequence} in epoch {epoch}, and nothing before that "
                    "is here: a batch before it is missing, or it wrote so long ago that it was forgotten"
                )
            return None
        if epoch < producer.epoch:
            raise ProducerFencedError(
                f"producer {producer_id} writes in epoch {epoch}, but epoch {producer.epoch} has begun: another "
                "instance took over, or its transaction has timed out: it can abort or begin again, nothing else"
            )
        expected = _expected(producer) if epoch == producer.epoch else 0
        if base_sequence == expected:
            return None
        if epoch == producer.epoch:
            last_sequence = _advance(base_sequence, record_count - 1)
            for i in range(producer.count):
                batch = _batch(producer, i)
                if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                    return batch.first_offset, batch.last_offset
            if producer.count:
                behind = (<int64_t> expected - base_sequence) & SEQUENCE_MASK
                window = (<int64_t> expected - _batch(producer, 0).base_sequence) & SEQUENCE_MASK
                if behind <= producer.run and behind - record_count >= window:
                    raise DuplicateSequenceError(
                        f"producer {producer_id} sent sequence {base_sequence} again, {behind} records back: it was "
                        "written, but the offsets of only the last five batches are remembered"
                    )
        raise OutOfOrderSequenceError(
            f"producer {producer_id} sent sequence {base_sequence} in epoch {epoch} where {expected} comes next: "
            "a batch before it is missing"
        )

    cpdef object update(
        self, int64_t producer_id, int16_t epoch, int32_t base_sequence, int64_t first_offset, int64_t last_offset,
        int64_t timestamp_ms
    ):
        """Add a batch that is now in the log, without checks: they were made before it was written.

        timestamp_ms: the batch's largest. The log is authoritative: a lower epoch, too, replaces the state.
        """
        cdef ProducerEntry producer = self._producers.get(producer_id)
        if producer is None:
            producer = ProducerEntry.__new__(ProducerEntry)
            self._producers[producer_id] = producer
        _enter(producer, epoch, timestamp_ms)
        _remember(producer, base_sequence, first_offset, last_offset)

    cpdef object begin_transaction(self, int64_t producer_id, int64_t offset):
        """The batch at `offset`, which `update` has noted, belongs to a transaction: a new one if none was open."""
        cdef ProducerEntry producer = self._producers[producer_id]
        if producer.transaction < 0:
            producer.transaction = offset
            self._open[producer_id] = offset

    cpdef int64_t end_transaction(
        self, int64_t producer_id, int16_t epoch, int64_t timestamp_ms, int32_t coordinator_epoch=-1
    ) except? -1:
        """A marker that commits or aborts is now in the log; returns the first offset of its transaction, -1 if the
        producer has none open here. coordinator_epoch: of the marker, -1 if that is not known."""
        cdef ProducerEntry producer = self._producers.setdefault(producer_id, ProducerEntry.__new__(ProducerEntry))
        cdef int64_t first = producer.transaction
        _enter(producer, epoch, timestamp_ms)
        producer.transaction = -1
        if coordinator_epoch >= 0:
            producer.coordinator_epoch = coordinator_epoch
        self._open.pop(producer_id, None)
        return first

    cpdef object check_transaction(self, int64_t producer_id, bint transactional):
        """Check that a producer's batch, which `check` accepts, is of its open transaction where it has one.

        Raises InvalidTransactionStateError."""
        cdef ProducerEntry producer = self._producers.get(producer_id)
        if not transactional and producer is not None and producer.transaction >= 0:
            raise InvalidTransactionStateError(
                f"producer {producer_id} sent a batch outside of its transaction, which has been open since offset "
                f"{producer.transaction}: end the transaction first", offset=producer.transaction
            )

    cpdef object check_verified(self, int64_t producer_id, int16_t epoch, int32_t verified_by):
        """Check that a batch of a transaction, which `check` accepts, goes on with one that is open in its epoch, or
        that the coordinator has confirmed it (KIP-890).

        verified_by: the epoch of the coordinator that has, -1 for none. One that is older than the last marker here no
        longer knows how the transaction ended. Raises UnverifiedTransactionError.
        """
        cdef ProducerEntry producer = self._producers.get(producer_id)
        if producer is not None and producer.transaction >= 0 and producer.epoch == epoch:
            return
        if verified_by < 0 or producer is not None and verified_by < producer.coordinator_epoch:
            raise UnverifiedTransactionError(
                f"producer {producer_id}, epoch {epoch}, has no open transaction here, and its coordinator has not "
                "confirmed that it writes to this partition", producer_id, epoch
            )

    cpdef object check_epoch(self, int64_t producer_id, int16_t epoch):
        """Check a batch that a coordinator appends for a producer: it has no sequence of its own.

        Raises ProducerFencedError for an older epoch, UsageError for negative numbers.
        """
        cdef ProducerEntry producer = self._producers.get(producer_id)
        if producer_id < 0 or epoch < 0:
            raise UsageError(f"producer {producer_id}, epoch {epoch}: neither is negative in a transaction")
        if producer is not None and epoch < producer.epoch:
            raise ProducerFencedError(
                f"a batch for producer {producer_id} has epoch {epoch}, but epoch {producer.epoch} has begun: another "
                "instance took over, or its transaction has timed out: it can abort or begin again, nothing else"
            )

    cpdef object check_marker(self, int64_t producer_id, int16_t epoch, int32_t coordinator_epoch):
        """Check a marker of a coordinator, to be appended.

        Raises ProducerFencedError for an older epoch of the producer, CoordinatorFencedError for an older coordinator.
        """
        cdef ProducerEntry producer = self._producers.get(producer_id)
        if producer is None:
            return
        if epoch < producer.epoch:
            raise ProducerFencedError(
                f"a marker for producer {producer_id} has epoch {epoch}, but epoch {producer.epoch} has begun"
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise CoordinatorFencedError(
                f"a marker for producer {producer_id} is of coordinator epoch {coordinator_epoch}, but one of epoch "
                f"{producer.coordinator_epoch} has written here: another broker coordinates the transaction"
            )

    cpdef int64_t first_open(self) except? -1:
        """The first offset of the oldest open transaction, INT64_MAX without one."""
        for offset in self._open.values():
            return offset
        return INT64_MAX

    cpdef object expire(self, int64_t now_ms, int64_t expiration_ms):
        """Remove the producers without a batch for `expiration_ms`, except those with an open transaction.

        The timestamps of a batch do not count: records may be of events long past.
        """
        cdef ProducerEntry producer
        cdef list expired = []
        for producer_id, producer in self._producers.items():
            if producer.transaction < 0 and now_ms - producer.heard_ms >= expiration_ms:
                expired.append(producer_id)
        for producer_id in expired:
            del self._producers[producer_id]

    cpdef object admit(self, int64_t producer_id, int64_t now_ms, int64_t most, bint more):
        """Check that an unknown producer can be added: there are fewer than `most`, and `more` is True.

        Producers that have been idle for longer than clients retry a batch are removed for it, at most once a second.
        Raises TooManyProducersError, with nothing changed.
        """
        if producer_id in self._producers or more and <int64_t> len(self._producers) < most:
            return
        if now_ms - self.made_room_ms >= 1000 or now_ms < self.made_room_ms:
            self.made_room_ms = now_ms
            self.expire(now_ms, IDLE_MS)
            if <int64_t> len(self._producers) < most and (more or not self._producers):
                return
        raise TooManyProducersError(
            f"producer {producer_id} is new here, where {len(self._producers)} producers have written of late: there "
            "is no room for more until one of them has been idle for 10 minutes; let producers live longer"
        )

    cpdef object clear(self):
        """Remove all producers, before a rebuild."""
        self._producers.clear()
        self._open.clear()

    cdef set ids(self):
        """The ids of all producers."""
        return set(self._producers)

    cpdef list active(self):
        """An ActiveProducer for each producer."""
        cdef ProducerEntry producer
        cdef list found = []
        for producer_id, producer in self._producers.items():
            last_sequence = _batch(producer, producer.count - 1).last_sequence if producer.count else -1
            found.append(ActiveProducer(
                producer_id, producer.epoch, last_sequence, producer.timestamp, producer.coordinator_epoch,
                producer.transaction,
            ))
        return found

    cpdef bytes snapshot(self):
        """The state as the content of a snapshot file; equal states give equal bytes."""
        cdef ProducerEntry producer
        cdef Py_ssize_t count = 0
        cdef int i
        for producer in self._producers.values():
            count += max(producer.count, 1)
        cdef bytes data = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + count * ENTRY_SIZE)
        cdef uint8_t* start = <uint8_t*> PyBytes_AS_STRING(data)
        cdef uint8_t* p = start + HEADER_SIZE
        for producer_id in sorted(self._producers):
            producer = self._producers[producer_id]
            if producer.count == 0:
                _store_entry(p, producer_id, producer, NULL, producer.timestamp)
                p += ENTRY_SIZE
            for i in range(producer.count):
                _store_entry(p, producer_id, producer, _batch(producer, i), _batch(producer, i).timestamp)
                p += ENTRY_SIZE
        store16(start, VERSION)
        store32(start + CRC_FROM, <int32_t> count)
        store32(start + 2, crc32c_update(0, start + CRC_FROM, p - start - CRC_FROM))
        return data

    cpdef object load(self, bytes data):
        """Replace the state by that of a snapshot. Raises CorruptCheckpointError, with nothing changed."""
        self._load(data, INT64_MAX)

    cdef object _load(self, bytes data, int64_t end_offset):
        """`load`, of a snapshot that may hold nothing at `end_offset` or beyond (KAFKA-6683)."""
        cdef const uint8_t* p = <const uint8_t*> PyBytes_AS_STRING(data)
        cdef Py_ssize_t length = len(data)
        cdef const uint8_t* end = p + length
        cdef ProducerEntry producer
        cdef int64_t last_offset
        cdef int32_t last_sequence, delta
        cdef dict producers = {}
        if length < HEADER_SIZE or load16(p) != VERSION:
            raise CorruptCheckpointError("a producer snapshot is cut short, or of an unknown version")
        if load32(p + 2) != crc32c_update(0, p + CRC_FROM, length - CRC_FROM):
            raise CorruptCheckpointError("a producer snapshot does not match its CRC")
        if load32(p + CRC_FROM) * <int64_t> ENTRY_SIZE != length - HEADER_SIZE:
            raise CorruptCheckpointError(f"a producer snapshot of {load32(p + CRC_FROM)} entries has {length} bytes")
        p += HEADER_SIZE
        while p < end:
            producer_id = <int64_t> load64(p)
            last_sequence = <int32_t> load32(p + 10)
            last_offset = <int64_t> load64(p + 14)
            delta = <int32_t> load32(p + 22)
            if last_offset >= end_offset or last_offset >= 0 and not (last_sequence >= 0 <= delta <= last_offset):
                raise CorruptCheckpointError(
                    f"a producer snapshot has an impossible entry: producer {producer_id}, sequence {last_sequence}, "
                    f"offset {last_offset}, delta {delta}, end offset {end_offset}"
                )
            producer = producers.get(producer_id)
            if producer is None:
                producer = ProducerEntry.__new__(ProducerEntry)
                producers[producer_id] = producer
            _enter(producer, <int16_t> load16(p + 8), <int64_t> load64(p + 26))
            producer.coordinator_epoch = <int32_t> load32(p + 34)
            producer.transaction = <int64_t> load64(p + 38)
            if last_offset >= 0:
                _remember(producer, _advance(last_sequence, -<int64_t> delta), last_offset - delta, last_offset)
            p += ENTRY_SIZE
        self._producers = producers
        self._open = {}
        for first, open_id in sorted([
            ((<ProducerEntry> producers[known]).transaction, known) for known in producers
            if (<ProducerEntry> producers[known]).transaction >= 0
        ]):
            self._open[open_id] = first

    cpdef str write_snapshot(self, str directory, int64_t offset, bint durable=True):
        """Write the snapshot for `offset`, the next one the log will give; return its path. Raises StorageError.

        Not `durable`: until the caller syncs the file a crash of the host may leave it torn; a torn one is passed over.
        """
        cdef ProducerEntry producer
        for producer_id, producer in self._producers.items():
            if producer.count and _batch(producer, producer.count - 1).last_offset >= offset:
                raise InvariantError(
                    f"producer {producer_id} wrote offset {_batch(producer, producer.count - 1).last_offset}, which "
                    f"a snapshot for offset {offset} may not hold",
                    path=directory, offset=offset
                )
        path = _path(directory, offset)
        atomic_write(path, self.snapshot(), durable)
        return path

    cpdef object latest_snapshot(self, str directory, int64_t max_offset, bint discard=False):
        """Load the newest sound snapshot for `max_offset` or less; its offset, or None with the state empty.

        The caller replays the log from there. A bad one is passed over with a warning. discard: also delete the bad
        ones and those above max_offset, which are of records that are gone. Raises StorageError.
        """
        if discard and max_offset < INT64_MAX:
            self.delete_snapshots(directory, max_offset + 1)
        self._producers = {}
        self._open = {}
        for offset in sorted(_snapshots(directory), reverse=True):
            if offset > max_offset:
                continue
            path = _path(directory, offset)
            try:
                with open(path, "rb") as file:
                    self._load(file.read(), offset)
                return offset
            except CorruptCheckpointError as error:
                _logger.warning("%s is passed over: %s; producers are found again by a scan of the log", path, error)
                if discard:
                    _delete(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise error_of("cannot read", path, error) from error
        return None

    cpdef object delete_snapshots(self, str directory, int64_t from_offset=0, int64_t to_offset=INT64_MAX):
        """Delete the snapshots for offsets in [from_offset, to_offset), as after a truncation. Raises StorageError."""
        for offset in _snapshots(directory):
            if from_offset <= offset < to_offset:
                _delete(_path(directory, offset))


cdef inline Batch* _batch(ProducerEntry producer, int i) noexcept:
    """The i-th of the batches remembered, 0 being the oldest."""
    return &producer.batches[(producer.newest + 1 - producer.count + i + REMEMBERED) % REMEMBERED]


cdef inline int32_t _advance(int32_t sequence, int64_t records) noexcept:
    return <int32_t> ((sequence + records) & SEQUENCE_MASK)


cdef inline int32_t _expected(ProducerEntry producer) noexcept:
    return _advance(producer.batches[producer.newest].last_sequence, 1) if producer.count else 0


cdef inline void _enter(ProducerEntry producer, int16_t epoch, int64_t timestamp) noexcept:
    """A batch in `epoch` came: in another than before, what was remembered no longer counts."""
    if producer.epoch != epoch:
        producer.epoch = epoch
        producer.count = 0
    producer.timestamp = timestamp
    producer.heard_ms = wall_clock_ms()


cdef inline void _remember(
    ProducerEntry producer, int32_t base_sequence, int64_t first_offset, int64_t last_offset
) noexcept:
    """Add the batch that `_enter` announced, in the place of the oldest where five are known."""
    cdef int64_t delta = last_offset - first_offset
    cdef Batch* batch
    if producer.count and base_sequence == _expected(producer):
        producer.run = min(producer.run + delta + 1, <int64_t> LONGEST_RUN)
    else:
        producer.run = delta + 1
    producer.newest = (producer.newest + 1) % REMEMBERED
    producer.count = min(producer.count + 1, <int> REMEMBERED)
    batch = &producer.batches[producer.newest]
    batch.base_sequence = base_sequence
    batch.last_sequence = _advance(base_sequence, delta)
    batch.first_offset = first_offset
    batch.last_offset = last_offset
    batch.timestamp = producer.timestamp


cdef void _store_entry(
    uint8_t* p, int64_t producer_id, ProducerEntry producer, Batch* batch, int64_t timestamp
) noexcept:
    store64(p, producer_id)
    store16(p + 8, producer.epoch)
    store32(p + 10, batch.last_sequence if batch else -1)
    store64(p + 14, batch.last_offset if batch else -1)
    store32(p + 22, <int32_t> (batch.last_offset - batch.first_offset) if batch else 0)
    store64(p + 26, timestamp)
    store32(p + 34, producer.coordinator_epoch)
    store64(p + 38, producer.transaction)


cdef str _path(str directory, int64_t offset):
    return os.path.join(directory, f"{offset:020d}.snapshot")


cdef list _snapshots(str directory):
    """The offsets that there are snapshots for, in no order."""
    found = map(_file_name.fullmatch, names_in(directory))
    return [int(match[1]) for match in found if match and int(match[1]) <= INT64_MAX]


cdef object _delete(str path):
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise error_of("cannot delete", path, error) from error
