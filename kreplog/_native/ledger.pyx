"""The writers that append exactly once: the file `kreplog.writers` in a partition directory, little-endian.

      0  8  magic "KREPWRT1"       8  4  CRC-32C of 12..end       12  4  number of entries
     16  -  entries: int64 sequence, first offset, end offset, time (ms), uint16 length of the writer id, the id (UTF-8)

An entry has the offsets [first offset, end offset) of `sequence`, the latest of that writer. At most one has the end
offset -1: its append is pending or was interrupted, and everything from its first offset on is not
committed. The file is replaced atomically and made durable before the first byte of such an append is written, and
again once its last byte is durable: that second replacement commits it.

Above MAX_WRITERS the entry of the writer that has been idle for longest is removed, never that of the writer that
commits: where the clock steps back, the time of a commit is a millisecond after the newest entry's.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t

from kreplog._native.crc32c cimport crc32c_update

import os
import struct

from kreplog._native.checkpoint import atomic_write
from kreplog._native.files import error_of
from kreplog.errors import CorruptCheckpointError

LEDGER_NAME = "kreplog.writers"
MAX_WRITERS = 1000

cdef bytes MAGIC = b"KREPWRT1"
cdef int64_t PENDING = -1

cdef object _entry = struct.Struct("<qqqqH")


cdef class WriterLedger:
    """The entries of one partition. `path` is the file, which may be missing.

    Raises CorruptCheckpointError if it is invalid, StorageError if it cannot be read.
    """

    def __init__(self, str path not None):
        self.path = path
        self._committed = {}
        self._pending = None
        try:
            with open(path, "rb") as file:
                self._load(file.read())
        except FileNotFoundError:
            pass
        except OSError as error:
            raise error_of("cannot read", path, error) from error

    @property
    def pending_start(self):
        """First offset of an append that has not been committed, -1 when there is none."""
        return PENDING if self._pending is None else self._pending[2]

    def committed(self, writer):
        """(sequence, first offset, end offset) of the writer's latest append, None for a writer that is not known."""
        entry = self._committed.get(writer)
        return None if entry is None else entry[:3]

    def begin(self, writer, sequence, start):
        """Record a pending append that begins at offset `start`; durable on return. Raises StorageError: it may be
        recorded, which `settle` reverts."""
        self._pending = writer, sequence, start
        self._write(self._committed)

    def commit(self, int64_t end, int64_t now_ms):
        """Commit the pending append, which is durable up to offset `end`. Raises StorageError."""
        writer, sequence, start = self._pending
        committed = {name: entry for name, entry in self._committed.items() if name != writer}
        newest = max([entry[3] for entry in self._committed.values()], default=-1)
        idlest_first = sorted(committed, key=lambda name: committed[name][3])
        for idle in idlest_first[:max(len(committed) + 1 - MAX_WRITERS, 0)]:
            del committed[idle]
        committed[writer] = sequence, start, end, max(now_ms, min(newest, INT64_MAX - 1) + 1)
        self._pending = None
        self._write(committed)
        self._committed = committed

    def settle(self, int64_t leo):
        """Adapt the entries to a log that ends at `leo` without a pending append: remove appends with no record left.

        An append that was truncated in its middle then ends at `leo`. Raises StorageError.
        """
        committed = {
            writer: (sequence, start, min(end, leo), time_ms)
            for writer, (sequence, start, end, time_ms) in self._committed.items()
            if start < leo or start == end <= leo
        }
        if self._pending is None and committed == self._committed:
            return
        self._pending = None
        self._write(committed)
        self._committed = committed

    def clear(self):
        """Remove all entries. Raises StorageError."""
        if self._committed or self._pending is not None:
            self._pending = None
            self._write({})
            self._committed = {}

    cdef object _write(self, dict committed):
        cdef list entries = [
            (writer, sequence, start, end, time_ms) for writer, (sequence, start, end, time_ms) in committed.items()
        ]
        cdef bytes body
        if self._pending is not None:
            entries.append((*self._pending, PENDING, 0))
        body = struct.pack("<I", len(entries)) + b"".join([
            _entry.pack(sequence, start, end, time_ms, len(name)) + name
            for name, sequence, start, end, time_ms in [(entry[0].encode(), *entry[1:]) for entry in entries]
        ])
        atomic_write(self.path, MAGIC + struct.pack("<I", _crc(body)) + body)

    cdef object _load(self, bytes data):
        cdef Py_ssize_t at = 16
        if len(data) < 16 or data[:8] != MAGIC or struct.unpack_from("<I", data, 8)[0] != _crc(data[12:]):
            raise self._corrupt("its checksum does not match")
        for _ in range(struct.unpack_from("<I", data, 12)[0]):
            try:
                sequence, start, end, time_ms, length = _entry.unpack_from(data, at)
                at += _entry.size
                name = data[at:at + length].decode()
            except (struct.error, UnicodeDecodeError) as error:
                raise self._corrupt(str(error)) from None
            at += length
            if end == PENDING and self._pending is None:
                self._pending = name, sequence, start
            elif 0 <= start <= end and name not in self._committed:
                self._committed[name] = sequence, start, end, time_ms
            else:
                raise self._corrupt(f"the entry of {name!r} contradicts itself or another")
        if at != len(data):
            raise self._corrupt(f"it holds {len(data)} bytes, its entries {at}")

    cdef object _corrupt(self, str reason):
        return CorruptCheckpointError(
            f"{self.path} cannot be believed: {reason}. It says which appends are in the log already; delete it, and "
            "writers that repeat an append write it again", path=self.path,
        )


cdef uint32_t _crc(bytes data) except? 0:
    return crc32c_update(0, <const uint8_t*> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))


def latest_append(directory, writer):
    """(sequence, first offset, end offset) of the writer's latest committed append in a partition directory that
    another process may write; None for an unknown writer. Raises CorruptCheckpointError, StorageError."""
    return WriterLedger(ledger_path(directory)).committed(writer)


def ledger_path(directory):
    """Path of the ledger of a partition directory."""
    return os.path.join(directory, LEDGER_NAME)
