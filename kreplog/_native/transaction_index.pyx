"""The transaction index: `<20-digit base offset>.txnindex`, the aborted transactions whose markers are in a segment.

     0  2  version 0            2  8  producer id      10  8  first offset of the transaction
    18  8  its last offset, that of the marker         26  8  the last stable offset when the marker was written

Entries of 34 bytes, big-endian, by rising last offset, as Kafka writes them. A segment without aborted transactions has
no file. An entry is written after its marker and before the last stable offset passes that, so a reader that goes by
the last stable offset finds it. What a crash may have lost is written again from the log, by recovery. An entry goes
with the transaction's last batch, before the marker: a reader skips its producer's records until it meets that.
Source: Kafka's TransactionIndex, KIP-98.
"""

from libc.stdint cimport INT64_MAX, int64_t, uint8_t
from posix.fcntl cimport O_CREAT, O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY

from kreplog._native.cursor cimport load16, load64, store16, store64
from kreplog._native.files cimport FileHandle, open_file, sync_directory
from kreplog._native.segment cimport Segment, remove

import os

from kreplog._native.files import error_of
from kreplog.errors import CorruptCheckpointError

cdef enum:
    VERSION = 0
    ENTRY_SIZE = 34
    LAST_OFFSET = 18
    READ_TOGETHER = 120  # entries


cdef struct Aborted:
    int64_t producer_id
    int64_t first_offset
    int64_t last_offset
    int64_t last_stable_offset


cdef str aborted_path(Segment segment):
    """The path of the segment's index, whether there is one or not."""
    return segment.path.removesuffix(".log") + ".txnindex"


cdef FileHandle open_index(Segment segment, int flags):
    """None where the segment has no index."""
    if segment.aborted_count == 0:
        return None
    try:
        return open_file(aborted_path(segment), flags)
    except FileNotFoundError:
        return None


cdef int64_t count_in(FileHandle file) except -1:
    """Whole entries; a writer may be adding one."""
    return file.size() // ENTRY_SIZE


cdef bytes aborted_entry(int64_t producer_id, int64_t first_offset, int64_t last_offset, int64_t last_stable_offset):
    cdef uint8_t entry[ENTRY_SIZE]
    store16(entry, VERSION)
    store64(entry + 2, producer_id)
    store64(entry + 10, first_offset)
    store64(entry + LAST_OFFSET, last_offset)
    store64(entry + 26, last_stable_offset)
    return (<char*> entry)[:ENTRY_SIZE]


cdef bint add_aborted(Segment segment, bytes entry) except -1:
    """Add an entry, with the highest last offset so far; returns whether that made the file. Raises StorageError."""
    cdef FileHandle file = open_index(segment, O_RDWR)
    cdef bint made = file is None
    if made:
        file = open_file(aborted_path(segment), O_RDWR | O_CREAT | O_TRUNC)
        segment.aborted_count = 0
    elif segment.aborted_count < 0:
        segment.aborted_count = count_in(file)
    file.write_at(<const uint8_t*> <char*> entry, ENTRY_SIZE, segment.aborted_count * ENTRY_SIZE)
    segment.aborted_count += 1
    segment.aborted_unsynced = True
    return made


cdef int read_entry(FileHandle file, int64_t i, Aborted* out) except -1:
    cdef uint8_t raw[ENTRY_SIZE]
    if file.read_at(raw, ENTRY_SIZE, i * ENTRY_SIZE) < ENTRY_SIZE:  # cut meanwhile: nothing stands there
        out.first_offset = out.last_offset = out.last_stable_offset = INT64_MAX
        return 0
    return parse(raw, out, file.path)


cdef int parse(const uint8_t* raw, Aborted* out, str path) except -1:
    """Raises CorruptCheckpointError."""
    out.producer_id = <int64_t> load64(raw + 2)
    out.first_offset = <int64_t> load64(raw + 10)
    out.last_offset = <int64_t> load64(raw + LAST_OFFSET)
    out.last_stable_offset = <int64_t> load64(raw + 26)
    if load16(raw) != VERSION or not 0 <= out.first_offset <= out.last_offset:
        raise CorruptCheckpointError(
            f"{path}: an entry of version {load16(raw)} for offsets {out.first_offset} to {out.last_offset} is no "
            "aborted transaction: the file is damaged; delete it and the partition's .snapshot files while no process "
            "has it open, and it is written again from the log", path=path,
        )
    return 0


cdef int64_t first_ending_at(FileHandle file, int64_t offset) except -1:
    """The number of the first entry whose last offset is `offset` or higher."""
    cdef Aborted entry
    cdef int64_t low = 0
    cdef int64_t high = count_in(file)
    cdef int64_t middle
    while low < high:
        middle = (low + high) >> 1
        read_entry(file, middle, &entry)
        if entry.last_offset < offset:
            low = middle + 1
        else:
            high = middle
    return low


cdef bint replace_aborted(Segment segment, int64_t offset, bytes entries) except -1:
    """Make `entries` those of the transactions whose marker stands at `offset` or beyond; returns whether the directory
    has changed. Raises StorageError, CorruptCheckpointError.

    Where the file has them it is left alone, and else replaced as a whole: a reader may look at it at any moment."""
    cdef FileHandle file = open_index(segment, O_RDONLY)
    cdef int64_t before = 0
    cdef bint same = not entries
    if file is not None:
        try:
            before = first_ending_at(file, offset)
        except CorruptCheckpointError:
            if offset > segment.base_offset:
                raise
        same = (
            file.size() - before * ENTRY_SIZE == len(entries)
            and read_piece(file, before * ENTRY_SIZE, len(entries)) == entries
        )
    if not same and (before or entries):
        write_whole(aborted_path(segment), read_piece(file, 0, before * ENTRY_SIZE) + entries)
    elif not same:
        remove(aborted_path(segment))
    segment.aborted_count = before + len(entries) // ENTRY_SIZE
    segment.aborted_unsynced = segment.aborted_count > 0
    return not same


cdef bytes read_piece(FileHandle file, int64_t at, Py_ssize_t length):
    """As much of it as the file has."""
    cdef bytearray data = bytearray(length)
    cdef uint8_t[::1] view = data
    return bytes(data[:file.read_at(&view[0], length, at)]) if length else b""


cdef bint collect_aborted(Segment segment, int64_t start, int64_t stop, list found) except -1:
    """Add (producer id, first offset) of the transactions with records in [start, stop); returns whether later segments
    have no others. Raises StorageError, CorruptCheckpointError."""
    cdef uint8_t raw[ENTRY_SIZE * READ_TOGETHER]
    cdef Aborted entry
    cdef FileHandle file = open_index(segment, O_RDONLY)
    cdef int64_t at
    cdef Py_ssize_t got
    cdef Py_ssize_t i
    if file is None:
        return False
    at = first_ending_at(file, start)
    while True:
        got = file.read_at(raw, ENTRY_SIZE * READ_TOGETHER, at * ENTRY_SIZE) // ENTRY_SIZE
        for i in range(got):
            parse(raw + i * ENTRY_SIZE, &entry, file.path)
            if entry.last_offset >= start and entry.first_offset < stop:
                found.append((entry.producer_id, entry.first_offset))
            if entry.last_stable_offset >= stop:
                return True
        at += got
        if got < READ_TOGETHER:
            return False


cdef int list_aborted(Segment segment, int64_t stop, list found) except -1:
    """Add (producer id, first offset, last offset) of the aborted transactions that begin below `stop`. Raises
    StorageError, CorruptCheckpointError."""
    cdef Aborted entry
    cdef FileHandle file = open_index(segment, O_RDONLY)
    cdef int64_t i
    if file is not None:
        for i in range(count_in(file)):
            read_entry(file, i, &entry)
            if entry.first_offset < stop:
                found.append((entry.producer_id, entry.first_offset, entry.last_offset))
    return 0


cdef bytes aborted_without(Segment segment, set last_offsets):
    """The entries of the segment but for those of the transactions with these last offsets. Raises StorageError,
    CorruptCheckpointError."""
    cdef Aborted entry
    cdef FileHandle file = open_index(segment, O_RDONLY)
    cdef int64_t i
    cdef list pieces = []
    if file is not None:
        for i in range(count_in(file)):
            read_entry(file, i, &entry)
            if entry.last_offset not in last_offsets:
                pieces.append(read_piece(file, i * ENTRY_SIZE, ENTRY_SIZE))
    return b"".join(pieces)


cdef int put_aborted(Segment segment, str path, bytes entries) except -1:
    """Make the file at `path`, which has these entries and is durable but for its name, the index of the segment.
    Without entries there is neither. Raises StorageError."""
    if entries:
        rename(path, aborted_path(segment))
    else:
        remove(aborted_path(segment))
    segment.aborted_count = len(entries) // ENTRY_SIZE
    segment.aborted_unsynced = False
    return 0


cdef int merge_aborted(str stem, list others) except -1:
    """The index of the segment `stem` gets the entries of the segments `others`, which compaction puts into it; their
    stems are in the order of their offsets. It is durable then, since recovery does not look for what is lost of
    flushed segments. Doing it twice is no harm. Raises StorageError."""
    cdef bytes merged = b""
    cdef int64_t last = -1
    paths = [f"{name}.txnindex" for name in (stem, *others)]
    for path in paths:
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise error_of("cannot read", path, error) from error
        for at in range(0, len(data) - ENTRY_SIZE + 1, ENTRY_SIZE):
            ends = int.from_bytes(data[at + LAST_OFFSET:at + LAST_OFFSET + 8], "big", signed=True)
            if ends > last:
                merged += data[at:at + ENTRY_SIZE]
                last = ends
    if not merged or not others:
        return 0
    write_whole(paths[0], merged)
    sync_directory(os.path.dirname(stem))
    return 0


cdef int write_whole(str path, bytes data) except -1:
    cdef str temporary = path + ".tmp"
    write_index(temporary, data)
    return rename(temporary, path)


cdef int write_index(str path, bytes entries) except -1:
    """Durable but for the file's name. Raises StorageError."""
    cdef const uint8_t[::1] view = entries
    cdef FileHandle file = open_file(path, O_WRONLY | O_CREAT | O_TRUNC)
    file.write_at(&view[0], len(entries), 0)
    return file.sync()


cdef int rename(str path, str name) except -1:
    try:
        os.replace(path, name)
    except OSError as error:
        raise error_of("cannot replace", name, error) from error
    return 0
