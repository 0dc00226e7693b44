"""What a Python user would pick instead of kreplog: one small class each, tuned as its documentation advises.

Buffered appends are grouped by 1,000 (a chunk) where the store has transactions, which is more than the 600 records of
a 64 KiB batch.
"""

from __future__ import annotations

import bisect
import itertools
import os
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks.stores import BATCH_BYTES, Store

_pack_length = struct.Struct(">I").pack
_unpack_length = struct.Struct(">I").unpack_from
_pack_key = struct.Struct(">Q").pack
_fdatasync = getattr(os, "fdatasync", os.fsync)


class RawFile(Store):
    """Length-prefixed records in one buffered file, with a position remembered for every 1,000th. No checksum."""

    name = "raw file"

    def __init__(self, directory: Path, durable: bool = False) -> None:
        super().__init__(directory, durable)
        self._path = directory / "records"
        # Held as long as the store, not for a block: `close` closes it.
        self._file = open(self._path, "ab", buffering=BATCH_BYTES)  # noqa: SIM115
        self._positions: list[int] = []

    def append(self, records: Sequence[bytes]) -> None:
        write = self._file.write
        for record in records:
            write(_pack_length(len(record)) + record)

    def append_visible(self, records: Sequence[bytes]) -> None:
        file = self._file.fileno()
        for record in records:
            os.write(file, _pack_length(len(record)) + record)

    def append_many(self, records: list[bytes]) -> None:
        os.write(self._file.fileno(), b"".join([_pack_length(len(record)) + record for record in records]))

    def commit(self, records: list[bytes]) -> None:
        self.append_many(records)
        _fdatasync(self._file.fileno())

    def finish(self) -> None:
        self._file.flush()

    def values(self) -> Iterator[bytes | None]:
        return self._values_at(0)

    def _values_at(self, position: int) -> Iterator[bytes]:
        with open(self._path, "rb", buffering=BATCH_BYTES) as file:
            file.seek(position)
            read = file.read
            while prefix := read(4):
                yield read(_unpack_length(prefix)[0])

    def seek(self, offset: int, count: int) -> list[bytes | None]:
        if not self._positions:
            self._positions = self._every_thousandth()
        skip = offset % 1000
        return list(itertools.islice(self._values_at(self._positions[offset // 1000]), skip, skip + count))

    def _every_thousandth(self) -> list[int]:
        lengths = map(len, self._values_at(0))
        return list(itertools.accumulate((4 + length for length in lengths), initial=0))[::1000]

    def close(self) -> None:
        self._file.close()


class Sqlite(Store):
    """A table in WAL mode; synchronous is FULL where durable, else NORMAL."""

    name = "sqlite3"

    def __init__(self, directory: Path, durable: bool = False) -> None:
        super().__init__(directory, durable)
        self._db = sqlite3.connect(directory / "records.db", isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
        self._db.execute("CREATE TABLE IF NOT EXISTS records (number INTEGER PRIMARY KEY, value BLOB NOT NULL)")

    _INSERT = "INSERT INTO records (value) VALUES (?)"

    def append(self, records: Sequence[bytes]) -> None:
        execute = self._db.execute
        execute("BEGIN")
        for record in records:
            execute(self._INSERT, (record,))
        execute("COMMIT")

    def append_visible(self, records: Sequence[bytes]) -> None:
        execute = self._db.execute
        for record in records:
            execute(self._INSERT, (record,))

    def append_many(self, records: list[bytes]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany(self._INSERT, zip(records))
        self._db.execute("COMMIT")

    commit = append_many

    def values(self) -> Iterator[bytes | None]:
        return map(itemgetter(0), self._db.execute("SELECT value FROM records ORDER BY number"))

    def scan(self) -> int:
        count: int = self._db.execute("SELECT count(*), sum(length(value)) FROM records").fetchone()[0]
        return count

    def seek(self, offset: int, count: int) -> list[bytes | None]:
        query = "SELECT value FROM records WHERE number BETWEEN ? AND ? ORDER BY number"
        return [value for (value,) in self._db.execute(query, (offset + 1, offset + count))]

    def close(self) -> None:
        self._db.close()


class Lmdb(Store):
    """Big-endian integer keys, appended in order; every transaction is synced where durable, else none is."""

    name = "lmdb"
    requires = "lmdb"

    def __init__(self, directory: Path, durable: bool = False) -> None:
        import lmdb

        super().__init__(directory, durable)
        self._env = lmdb.open(str(directory), map_size=16 << 30, sync=durable, metasync=durable)
        self._next: int = self._env.stat()["entries"]

    def append(self, records: Sequence[bytes]) -> None:
        with self._env.begin(write=True) as transaction:
            put = transaction.put
            for number, record in enumerate(records, self._next):
                put(_pack_key(number), record, append=True)
        self._next += len(records)

    def append_visible(self, records: Sequence[bytes]) -> None:
        begin = self._env.begin
        for record in records:
            with begin(write=True) as transaction:
                transaction.put(_pack_key(self._next), record, append=True)
            self._next += 1

    def append_many(self, records: list[bytes]) -> None:
        keys = map(_pack_key, range(self._next, self._next + len(records)))
        with self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti(zip(keys, records, strict=True), append=True)
        self._next += len(records)

    commit = append_many

    def values(self) -> Iterator[bytes | None]:
        with self._env.begin() as transaction, transaction.cursor() as cursor:
            yield from cursor.iternext(keys=False)

    def seek(self, offset: int, count: int) -> list[bytes | None]:
        with self._env.begin() as transaction, transaction.cursor() as cursor:
            cursor.set_key(_pack_key(offset))
            return list(itertools.islice(cursor.iternext(keys=False), count))

    def close(self) -> None:
        self._env.close()


class Rocks(Store):
    """RocksDB with its default settings, big-endian integer keys, a write batch for 1,000 records."""

    name = "rocksdict"
    requires = "rocksdict"

    def __init__(self, directory: Path, durable: bool = False) -> None:
        import rocksdict

        super().__init__(directory, durable)
        self._new_batch = rocksdict.WriteBatch
        self._db = rocksdict.Rdict(str(directory), rocksdict.Options(raw_mode=True))
        options = rocksdict.WriteOptions()
        options.sync = durable
        self._db.set_write_options(options)
        self._options = options
        self._next = 0

    def append(self, records: Sequence[bytes]) -> None:
        batch = self._new_batch(raw_mode=True)
        put = batch.put
        for number, record in enumerate(records, self._next):
            put(_pack_key(number), record)
        self._db.write(batch, write_opt=self._options)
        self._next += len(records)

    append_many = append
    commit = append

    def append_visible(self, records: Sequence[bytes]) -> None:
        put = self._db.put
        for number, record in enumerate(records, self._next):
            put(_pack_key(number), record)
        self._next += len(records)

    def values(self) -> Iterator[bytes | None]:
        values: Iterator[bytes | None] = self._db.values()
        return values

    def seek(self, offset: int, count: int) -> list[bytes | None]:
        return list(itertools.islice(self._db.values(from_key=_pack_key(offset)), count))

    def close(self) -> None:
        self._db.close()


class AiokafkaFile(Store):
    """Record batches made and read by aiokafka's Cython, glued into a file: the nearest to kreplog there was."""

    name = "aiokafka batches"
    requires = "aiokafka"

    def __init__(self, directory: Path, durable: bool = False) -> None:
        super().__init__(directory, durable)
        self._file = os.open(directory / "batches", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self._builder = new_builder()
        self._count = 0
        self._next = 0
        self._index: list[tuple[int, int, int]] = []

    def append(self, records: Sequence[bytes]) -> None:
        append = self._builder.append
        for record in records:
            if append(self._count, None, None, record, []) is None:
                self.finish()
                append = self._builder.append
                append(self._count, None, None, record, [])
            self._count += 1

    def append_many(self, records: list[bytes]) -> None:
        self.append(records)
        self.finish()

    def finish(self) -> None:
        if self._count:
            batch = self._builder.build()
            struct.pack_into(">q", batch, 0, self._next)
            os.write(self._file, batch)
            self._next += self._count
            self._count = 0
            self._builder = new_builder()

    def _batches(self) -> list[tuple[int, int, int]]:
        """(base offset, position, size) of every batch in the file."""
        if self._index:
            return self._index
        position, end = 0, os.fstat(self._file).st_size
        while position < end:
            base_offset, length = struct.unpack(">qi", os.pread(self._file, 12, position))
            self._index.append((base_offset, position, 12 + length))
            position += 12 + length
        return self._index

    def _read(self, first: int) -> Iterator[Any]:
        """Checked batches from index entry `first` on."""
        for _, position, size in self._batches()[first:]:
            batch = read_batch(os.pread(self._file, size, position))
            if not batch.validate_crc():
                raise AssertionError(f"{self.name}: the batch at byte {position} fails its CRC")
            yield batch

    def values(self) -> Iterator[bytes | None]:
        for batch in self._read(0):
            for record in batch:
                yield record.value

    def scan(self) -> int:
        return sum(batch.next_offset - batch.base_offset for batch in self._read(0))

    def seek(self, offset: int, count: int) -> list[bytes | None]:
        first = bisect.bisect(self._batches(), offset, key=itemgetter(0)) - 1
        records = itertools.chain.from_iterable(self._read(first))
        wanted = itertools.dropwhile(lambda record: record.offset < offset, records)
        return [record.value for record in itertools.islice(wanted, count)]

    def close(self) -> None:
        os.close(self._file)


def new_builder(batch_bytes: int = BATCH_BYTES) -> Any:
    """aiokafka's builder of an uncompressed batch."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    return DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=batch_bytes,
    )  # fmt: skip


def read_batch(buffer: bytes | memoryview) -> Any:
    """aiokafka's reader of one batch; it can be walked once."""
    from aiokafka.record.default_records import DefaultRecordBatch

    return DefaultRecordBatch(buffer)


PEERS = (RawFile, Sqlite, Lmdb, Rocks, AiokafkaFile)
