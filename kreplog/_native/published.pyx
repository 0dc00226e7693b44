"""The offsets of a small log as its writer has published them, found without opening the log.

Opening one lists its directory and prepares for reads. The state file and the header of the first batch suffice for
the offsets of a log whose records are all committed and in one segment; of any other log, or where two files disagree,
or one is missing or damaged, nothing is said here, and whoever opens the log learns why.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint64_t
from posix.fcntl cimport O_RDONLY

from kreplog._native.batch cimport BATCH_OK, HEADER_SIZE, BatchHeader, batch_size, codec_of, read_header
from kreplog._native.files cimport FileHandle, open_file
from kreplog._native.state cimport Position, StateFile, open_state

from kreplog._native.checkpoint import offsets_by_partition
from kreplog._native.partition_metadata import read_topic_uuid
from kreplog._native.state import STATE_NAME
from kreplog.errors import StorageError


@cython.final
cdef class PublishedOffsets:
    """One look at a log; made by published_offsets. size: bytes of all batches. compressed: whether the first one is.
    device: number of the file system."""

    cdef readonly int64_t log_start_offset
    cdef readonly int64_t high_watermark
    cdef readonly int64_t last_stable_offset
    cdef readonly int64_t size
    cdef readonly bint compressed
    cdef readonly object incarnation_id
    cdef readonly object topic_id
    cdef readonly object device


def published_offsets(str path not None, partition not None, int64_t max_bytes):
    """The PublishedOffsets of the log of `partition` in the directory `path`; None if it takes Log.open.

    Not None only where the high watermark is the log end offset, and one segment of at most `max_bytes` has all from
    the log start offset on."""
    try:
        return _look(path, partition, max_bytes)
    except (StorageError, FileNotFoundError):
        return None


cdef PublishedOffsets _look(str path, object partition, int64_t max_bytes):
    cdef PublishedOffsets found
    cdef Position position
    cdef Position after
    cdef BatchHeader h
    cdef uint8_t raw[HEADER_SIZE]
    cdef FileHandle file
    cdef uint64_t incarnation
    cdef str name = str(partition)
    cdef StateFile state = open_state(f"{path}/{STATE_NAME}", False)
    if state is None or not state.read(&position):
        return None
    if (
        position.generation & 1 or position.high_watermark != position.leo
        or position.active_base != position.log_start_offset or not 0 <= position.active_size <= max_bytes
    ):
        return None
    found = PublishedOffsets.__new__(PublishedOffsets)
    found.log_start_offset, found.high_watermark = position.log_start_offset, position.high_watermark
    # After the position: see state.pxd.
    found.last_stable_offset = max(min(position.high_watermark, state.first_unstable()), position.log_start_offset)
    checkpoint = f"{path.rpartition('/')[0]}/replication-offset-checkpoint"
    if offsets_by_partition(checkpoint, name, True).get(partition, 0) > position.leo:
        return None
    file = open_file(f"{path}/{position.active_base:020d}.log", O_RDONLY)
    found.size = min(file.size(), position.active_size)
    found.compressed = (
        read_header(raw, file.read_at(raw, HEADER_SIZE, 0), &h) == BATCH_OK
        and batch_size(&h) <= found.size and codec_of(&h) != 0
    )
    found.topic_id = read_topic_uuid(path, name)
    incarnation = state.incarnation()
    found.incarnation_id = f"{incarnation:016x}" if incarnation else None
    found.device = state.device
    state.require_at_path(name)  # all files are of one log
    if not state.read(&after) or after.generation != position.generation:
        return None
    return found
