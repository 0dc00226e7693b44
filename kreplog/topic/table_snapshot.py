"""The snapshot of a table: its entries and how far each partition had been applied, in one file that is replaced whole.

    bytes  field                                   bytes  field
        8  magic, b"KRTABLE1"                        each partition:
       22  topic id, as in partition.metadata           4  number
        4  number of partitions                         8  log start offset
        8  number of entries                            8  next offset
                                                        8  base offset of the last batch applied
    each entry: offset 8, timestamp 8, partition 4,     4  its CRC, carried on over its leader epoch
    key length 4, value length 4, key, value
        4  CRC-32C of all before

Big-endian. Entries belong to a log in which the last batch applied is still the same: else the partition is read again.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from kreplog._native.crc32c import crc32c
from kreplog._native.files import error_of
from kreplog._native.key_table import KeyTable
from kreplog.errors import CorruptCheckpointError, StorageError
from kreplog.syncing import sync_directory

MAGIC = b"KRTABLE1"
PIECE = 1 << 20  # bytes of entries that are encoded at once
_HEADER = struct.Struct(">8s22sIQ")
_PARTITION = struct.Struct(">iqqqI")
_CRC = struct.Struct(">I")


class Applied(NamedTuple):
    """The progress of a partition that is applied. base_offset: of the last batch, -1 for none; crc: that batch's, by
    `crc_in_epoch`."""

    log_start_offset: int
    next_offset: int
    base_offset: int
    crc: int


def write_snapshot(path: str, topic_id: str, applied: dict[int, Applied], table: KeyTable) -> None:
    """Replace the file, durably; the table must not change meanwhile. Killed at any step, the one before is there.

    Raises StorageError: disk full; another process writes the same snapshot."""
    part = path + ".part"
    file = _locked(part)
    try:
        os.ftruncate(file, 0)
        crc = 0
        for piece in _pieces(topic_id, applied, table):
            crc = crc32c(piece, crc)
            _write_all(file, piece)
        _write_all(file, _CRC.pack(crc))
        os.fsync(file)
        os.rename(part, path)
        sync_directory(os.path.dirname(path) or ".")
    except OSError as error:
        raise error_of("cannot write the snapshot", path, error) from error
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)  # a process that was forked meanwhile has the descriptor, too
        os.close(file)


def _pieces(topic_id: str, applied: dict[int, Applied], table: KeyTable) -> Iterator[bytes]:
    yield _HEADER.pack(MAGIC, topic_id.encode(), len(applied), table.entries)
    yield b"".join(_PARTITION.pack(number, *place) for number, place in applied.items())
    slot: int | None = 0
    while slot is not None:
        piece, slot = table.encode(slot, PIECE)
        yield piece


def _locked(part: str) -> int:
    """The file to write to, which no other process writes. Raises StorageError."""
    while True:
        try:
            file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise error_of("cannot open", part, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(part)):
                return file
        except FileNotFoundError:
            pass  # another has just renamed it
        except OSError as error:
            os.close(file)
            raise StorageError(
                f"{part} is locked: another process writes this snapshot; give each table a path of its own", path=part
            ) from error
        os.close(file)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def read_snapshot(path: str, topic_id: str, table: KeyTable) -> dict[int, Applied]:
    """Load the entries into the table, which is empty; return how far each partition had been applied.

    Nothing where there is no file. Raises CorruptCheckpointError (damage; another topic id: the table stays empty),
    StorageError, ResourceExhaustedError."""
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.readall()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise error_of("cannot read the snapshot", path, error) from error
    end = len(data) - _CRC.size
    if end < _HEADER.size or crc32c(memoryview(data)[:end]) != _CRC.unpack_from(data, end)[0]:
        raise _damaged(path, "its checksum does not match")
    magic, found_id, partitions, entries = _HEADER.unpack_from(data)
    start = _HEADER.size + partitions * _PARTITION.size
    if magic != MAGIC or start > end:
        raise _damaged(path, "it has another format")
    if found_id != topic_id.encode():
        raise _damaged(path, f"it is of the topic id {found_id.decode('ascii', 'replace')}, not {topic_id}")
    applied = {
        number: Applied(*place)
        for number, *place in (_PARTITION.unpack_from(data, at) for at in range(_HEADER.size, start, _PARTITION.size))
    }
    if not table.decode(memoryview(data)[start:end], entries):
        raise _damaged(path, "its entries have wrong lengths")
    return applied


def _damaged(path: str, reason: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"{path} is no snapshot of this topic, {reason}: the topic is read again", path=path)
