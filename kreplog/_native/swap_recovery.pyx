"""Completion of a swap of compaction that was broken off; its steps are in `compaction_swap`.

    <base>.swap-checkpoint    CRC-32C of the rest of the line, size and CRC-32C of <base>.log.swap, base offsets of the
                              segments that it replaces; then the same line again, since one damaged byte leaves one
                              of the two whole

The CRC of a batch does not cover its base offset, so that a damaged .log.swap may seem to reach beyond what it
replaces. No segment is deleted before it is proved that a later file has what was kept of it: by the checkpoint, or,
where another program has written the .log.swap, as Kafka does, by its last batch, which has to be in the last segment.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from posix.fcntl cimport O_RDONLY

from kreplog._native.batch cimport BATCH_OK, BatchHeader, batch_size, check_crc, next_offset_of, read_header
from kreplog._native.crc32c cimport crc32c_update
from kreplog._native.files cimport FileHandle, Mapping, map_file, open_file, sync_directory
from kreplog._native.segment cimport remove
from kreplog._native.transaction_index cimport merge_aborted

import filecmp
import logging
import os

from kreplog._native.batch import decode
from kreplog._native.crc32c import crc32c
from kreplog._native.files import error_of, names_in
from kreplog.errors import CorruptBatchError, CorruptCheckpointError

_logger = logging.getLogger("kreplog")

SUFFIXES = (".cleaned", ".swap", ".swap-checkpoint")


cdef str checkpoint_path(str stem):
    """Of the segment `stem`, a path without suffix."""
    return stem + ".swap-checkpoint"


cdef int write_checkpoint(FileHandle checkpoint, FileHandle cleaned, list base_offsets) except -1:
    """Write, into an empty file, that `cleaned` replaces these segments; durable but for the file's name.

    Raises StorageError."""
    text = b" ".join([b"%d" % number for number in (*_size_and_crc(cleaned), *base_offsets)])
    cdef bytes lines = b"%d %b\n" % (crc32c(text), text) * 2
    cdef const uint8_t[::1] view = lines
    checkpoint.write_at(&view[0], len(lines), 0)
    checkpoint.sync()
    return 0


def _read_checkpoint(path):
    """(size and CRC, base offsets); None without the file. Raises CorruptCheckpointError, OSError."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.read()
    except FileNotFoundError:
        return None
    half = len(data) // 2
    for line in (data[:half], data[half:]):
        crc, _, text = line.removesuffix(b"\n").partition(b" ")
        if text and crc == b"%d" % crc32c(text):
            size, sum_, *base_offsets = map(int, text.split())
            return (size, sum_), base_offsets
    raise CorruptCheckpointError(
        f"{path} is damaged: it said which segments a compaction that was broken off replaces. Nothing was deleted: "
        "restore the partition from a replica or a backup", path=path,
    )


cdef tuple _size_and_crc(FileHandle file):
    cdef int64_t size = file.size()
    cdef Mapping mapping = map_file(file, max(size, <int64_t> 1))
    cdef uint32_t crc
    with nogil:
        crc = crc32c_update(0, mapping.data, size)
    return size, crc


cdef bint link_at(str path, str name) except -1:
    """Give the file another name; False where the file system cannot."""
    try:
        os.link(path, name)
    except OSError:
        return False
    return True


def settle_swaps(str directory not None):
    """Before the segments of a directory are listed: complete swaps that were broken off, and drop what was not whole.

    Raises CorruptBatchError, CorruptCheckpointError: nothing proves what is to be deleted, and nothing was;
    StorageError."""
    names = names_in(directory)
    try:
        for name in sorted(names):
            if _is_of_segment(name, ".log.swap"):
                _settle(directory, int(name[:20]))
        for name in names:
            if name.endswith(SUFFIXES):
                remove(os.path.join(directory, name))
    except OSError as error:
        raise error_of("cannot complete a compaction in", directory, error) from error


def _is_of_segment(name, suffix):
    return name[20:] == suffix and name[:20].isdigit()


def _settle(directory, base):
    bases = sorted([int(name[:20]) for name in names_in(directory) if _is_of_segment(name, ".log")])
    stem = _stem_in(directory, base)
    log = stem + ".log"
    marker = stem + ".log.swap"
    checkpoint = _read_checkpoint(checkpoint_path(stem))
    if checkpoint is None:
        placed = _is_same(marker, log)
        sources = _sources_by_content(directory, base, bases) if placed or base not in bases else None
    else:
        made, sources = checkpoint
        placed = base in bases and _size_and_crc(open_file(log, O_RDONLY)) == made
        if not placed and _size_and_crc(open_file(marker, O_RDONLY)) != made:
            if not set(sources) <= set(bases) or _is_same(marker, log):
                _refuse(marker, "it is not what compaction wrote, and of the segments that it replaces some have gone")
            sources = None
    if sources is None:
        _logger.warning("%s is dropped: the segments that it was to replace are all there", marker)
        remove(marker)
        sync_directory(directory)  # before they change
    else:
        _complete(directory, base, placed, [other for other in sources if other != base and other in bases])


def _complete(directory, base, placed, sources):
    """placed: the segment `base` is what replaces it and `sources`."""
    stem = _stem_in(directory, base)
    log = stem + ".log"
    marker = stem + ".log.swap"
    replaced = [_stem_in(directory, other) for other in sources]
    merge_aborted(stem, replaced)
    remove(stem + ".index")
    remove(stem + ".timeindex")
    if not placed:
        remove(log + ".cleaned")
        placed = link_at(marker, log + ".cleaned")
        if placed:
            os.replace(log + ".cleaned", log)
    for other in replaced:  # a reader misses no record of them, whichever is the first that is left
        for suffix in (".log", ".index", ".timeindex", ".txnindex"):
            remove(other + suffix)
    sync_directory(directory)
    if placed:
        remove(marker)
    else:
        os.replace(marker, log)
    sync_directory(directory)


def _stem_in(directory, base):
    return os.path.join(directory, f"{base:020}")


def _is_same(path, other):
    """Whether both have the same bytes, as two names of a file have, and its copies."""
    return os.path.exists(other) and (os.path.samefile(path, other) or filecmp.cmp(path, other, shallow=False))


def _refuse(marker, reason):
    raise CorruptBatchError(
        f"{marker} cannot take the place of segments: {reason}. Nothing was deleted: restore the partition from a "
        "replica or a backup, or, if Kafka has compacted it, open it with Kafka",
        partition=os.path.basename(os.path.dirname(marker)), path=marker,
    )


def _sources_by_content(directory, base, bases):
    """Which segments a .log.swap without a checkpoint replaces, by its batches. Raises CorruptBatchError."""
    cdef int64_t end
    stem = _stem_in(directory, base)
    mapping, last = _read_sound(stem + ".log.swap", &end)
    sources = [other for other in bases if base < other < end]
    if sources and not _holds(_stem_in(directory, sources[len(sources) - 1]) + ".log", mapping, last):
        _refuse(stem + ".log.swap", "nothing proves that it replaces the segments up to where it ends")
    return sources


cdef tuple _read_sound(str path, int64_t* end):
    """The mapped file, the position of its last batch, or 0, and, in `end`, its last offset + 1. Raises
    CorruptBatchError where not all of it is sound; StorageError."""
    cdef BatchHeader h
    cdef FileHandle file = open_file(path, O_RDONLY)
    cdef int64_t size = file.size()
    cdef int64_t at = 0
    cdef int64_t last = 0
    cdef Mapping mapping = map_file(file, max(size, <int64_t> 1))
    end[0] = -1
    with nogil:
        while (
            at < size and read_header(mapping.data + at, size - at, &h) == BATCH_OK and batch_size(&h) <= size - at
            and h.base_offset >= end[0] and check_crc(mapping.data + at, &h) == BATCH_OK
        ):
            end[0] = next_offset_of(&h)
            last = at
            at += batch_size(&h)
    if at < size:
        _refuse(path, f"it is damaged at byte {at}")
    return mapping, last


cdef bint _holds(str path, Mapping ours, int64_t last) except -1:
    """Whether a segment has the batch at `last` at its offset, with its records and maybe others.

    Raises StorageError."""
    cdef BatchHeader batch
    cdef BatchHeader h
    cdef FileHandle file = open_file(path, O_RDONLY)
    cdef int64_t size = file.size()
    cdef int64_t at = 0
    cdef Mapping theirs = map_file(file, max(size, <int64_t> 1))
    read_header(ours.data + last, ours.size - last, &batch)
    while at < size and read_header(theirs.data + at, size - at, &h) == BATCH_OK and batch_size(&h) <= size - at:
        if h.base_offset == batch.base_offset:
            break
        at += batch_size(&h)
    else:
        return False
    if h.crc == batch.crc:
        return True
    if (
        next_offset_of(&h) != next_offset_of(&batch) or h.producer_id != batch.producer_id
        or h.producer_epoch != batch.producer_epoch or h.base_sequence != batch.base_sequence
    ):
        return False
    if batch.record_count == 0:
        return batch.producer_id >= 0
    records = decode(theirs.data[at:at + batch_size(&h)])
    return all([record in records for record in decode(ours.data[last:last + batch_size(&batch)])])
