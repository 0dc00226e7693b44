"""LmdbStore: the records of a table in an LMDB file, beside where the table stands in each partition.

    data/prices.table/         the folder that the program gives
      kreplog-3.table, -lock   LMDB's files; of several numbers the highest counts, the others are on their way out

A transaction changes records and the place together, so the two agree after a kill at any step. A file in doubt is not
mended: one with the next number takes its place, under a lock on the folder. Processes that share a folder find that
out before they next apply something, and LMDB's own lock lets one of them write at a time.
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import logging
import os
import re
import threading
import weakref
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import lmdb

from kreplog._native.files import error_of
from kreplog.errors import ArgumentTypeError, LogClosedError, ResourceExhaustedError, StorageError, UsageError
from kreplog.topic.lmdb_layout import (
    COMMIT,
    EVERYTHING,
    HEAD,
    TOPIC,
    DamagedTableError,
    Entry,
    Place,
    decode_commit,
    decode_entries,
    decode_place,
    decode_topic,
    encode_commit,
    encode_entries,
    encode_entry,
    encode_place,
    encode_topic,
    newest,
    partitions_of,
    place_key,
    stored_key,
    stored_prefix,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAP_BYTES = 1 << 40
"""Address space for a file to grow in, which takes no memory; where there is less, or it is full, other sizes."""
LEAST_MAP_BYTES = 1 << 24
MAX_READERS = 1024
LOCK_BYTES = 64 * MAX_READERS + 4096
"""At least the size of LMDB's lock file, which has 64 bytes for each reader."""
FULL_BYTES = 1 << 20
"""A file system with less room is full."""
PIECE = 4096
"""Keys that one transaction looks at while entries are removed, and that an iteration reads at once."""

Found = tuple[int, int, int, bytes, bytes]
"""As KeyTable.get: partition, offset, timestamp in ms, key, value."""
T = TypeVar("T")

_DAMAGE = (
    DamagedTableError,
    lmdb.BadDbiError,
    lmdb.BadTxnError,
    lmdb.BadValsizeError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.NotFoundError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)
_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EFBIG, errno.EACCES, errno.EROFS)
_NO_RIGHT = (errno.EACCES, errno.EPERM, errno.EROFS)
_NAME = re.compile(r"kreplog-([1-9][0-9]{0,17})\.table")
_logger = logging.getLogger("kreplog")
_open_folders: set[str] = (
    set()
)  # of this process and those that it was forked from, in each of which LMDB opens a file once

_stores: weakref.WeakSet[LmdbStore] = weakref.WeakSet()
_inherited: list[object] = []  # of the process that this one was forked from


class LmdbStore:
    """Thread-safe. reload: called after the file was replaced, to fill the new one.

    Raises UsageError (the folder is open in this process already), StorageError."""

    def __init__(self, path: str, topic: str, topic_id: str, reload: Callable[[], object]) -> None:
        self._path = path
        self._topic = topic
        self._topic_id = topic_id
        self._reload = weakref.WeakMethod(reload)
        self._reloading = False
        self._closed = False
        self._pid = os.getpid()
        self._lock = _SharedLock()
        self._scans: weakref.WeakSet[_Scan] = weakref.WeakSet()
        self._env: lmdb.Environment | None = None
        self._number = 0
        identity = os.path.realpath(path)
        if identity in _open_folders:
            raise UsageError(
                f"{path} is open as a table in this process already, or in one that it was forked from: use that "
                "table, another path, or a process that is not forked"
            )
        with self._folder_lock():
            self._open_newest()
        _open_folders.add(identity)
        self._forget = weakref.finalize(self, _open_folders.discard, identity)
        _stores.add(self)

    # The file

    @contextmanager
    def _folder_lock(self) -> Iterator[None]:
        try:
            os.makedirs(self._path, exist_ok=True)
            folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _error_of("cannot open the folder of the table", self._path, error) from error
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(folder, fcntl.LOCK_UN)  # a process that was forked meanwhile has the descriptor, too
            os.close(folder)

    def _file(self, number: int) -> str:
        return os.path.join(self._path, f"kreplog-{number}.table")

    def _numbers(self) -> list[int]:
        """Numbers in names as `_file` gives them: whatever else is in the folder is not the table's."""
        return sorted(int(found[1]) for found in map(_NAME.fullmatch, os.listdir(self._path)) if found)

    def _open_newest(self, after: int = 0) -> None:
        """Use the file with the highest number, a new one where that is in doubt or not above `after`. Under the lock
        on the folder, and nothing else uses the store."""
        numbers = self._numbers()
        latest = max([after, *numbers])
        try:
            if latest > after:
                self._open(latest)
        except _DAMAGE as error:
            _logger.warning("%s is not used, %s: %s is loaded again", self._file(latest), error, self._topic)
        if self._env is None:
            self._open(latest + 1)
        for number in numbers:
            if number != self._number:
                for name in (self._file(number), f"{self._file(number)}-lock"):
                    with suppress(OSError):
                        os.unlink(name)

    def _open(self, number: int) -> None:
        """Raises what is in _DAMAGE, StorageError."""
        path = self._file(number)
        env = self._environment(path)
        try:
            if env.info()["last_txnid"] == 0:
                with env.begin(write=True) as txn:
                    places, keys = (env.open_db(name, txn) for name in (b"places", b"keys"))
                    txn.put(TOPIC, encode_topic(self._topic_id), db=places)
                    txn.put(COMMIT, encode_commit(txn.id(), 0), db=places)
            else:
                _check_size(env, path)
                env.reader_check()  # a killed process may hold pages that could be used again
                places, keys = (env.open_db(name, create=False) for name in (b"places", b"keys"))
                self._check(env, places, keys)
        except BaseException as error:
            env.close()
            if isinstance(error, lmdb.Error) and not isinstance(error, _DAMAGE):
                raise self._error("cannot open the table", error) from error
            raise
        self._env, self._places, self._keys, self._number = env, places, keys, number

    def _environment(self, path: str) -> lmdb.Environment:
        try:
            _allocate(f"{path}-lock", LOCK_BYTES)
        except OSError as error:
            raise _error_of("cannot open the table", self._path, error) from error
        size = MAP_BYTES
        while True:
            try:
                return lmdb.open(
                    path, map_size=size, subdir=False, mode=0o600, metasync=False, readahead=False, max_dbs=2,
                    max_readers=MAX_READERS,
                )  # fmt: skip
            except _DAMAGE:
                raise
            except (lmdb.Error, MemoryError) as error:
                if "data format" in str(error):  # of another LMDB: py-lmdb 3 has no class for it
                    raise DamagedTableError(error) from error
                if size <= LEAST_MAP_BYTES or _errno_of(error) != errno.ENOMEM:
                    raise self._error("cannot open the table", error) from error
                size >>= 1

    def _check(self, env: lmdb.Environment, places: Any, keys: Any) -> None:
        """Whether the file is as it was left, and of this topic. Raises DamagedTableError, StorageError."""
        with env.begin() as txn:
            commit = decode_commit(_present(txn.get(COMMIT, db=places)))
            if commit != (txn.id(), txn.stat(keys)["entries"]):
                raise DamagedTableError("it is not as its last transaction has left it")
            topic_id = decode_topic(_present(txn.get(TOPIC, db=places)))
        if topic_id == self._topic_id:
            return
        if self._number:
            raise StorageError(
                f"{self._path} is used by another topic by now, with the id {topic_id}: give each table a path of its "
                "own",
                path=self._path,
            )
        raise DamagedTableError(
            "it has another format" if topic_id is None else f"it is of the topic id {topic_id}, not {self._topic_id}"
        )

    def _error(self, action: str, error: Exception) -> Exception:
        """As a StorageError with the path: DiskFullError, ResourceExhaustedError where it is one."""
        if isinstance(error, lmdb.ReadersFullError):
            return ResourceExhaustedError(
                f"{self._path} has {MAX_READERS} readers: end iterations that are not needed", path=self._path
            )
        number = _errno_of(error)
        if number == errno.EIO and _is_full(self._path):
            number = errno.ENOSPC  # of which LMDB has seen a short write
        found = _error_of(action, self._path, OSError(number, str(error)))
        if number not in _NO_RIGHT:
            advice = "its kreplog-*.table may be deleted, the table is then loaded again"
            found.args = (f"{found.args[0]}; {advice} ({error})",)
        return found

    def close(self) -> None:
        """In a forked child nothing ends that is the parent's, too: its place among LMDB's readers, its locks."""
        if os.getpid() != self._pid:
            self._closed = True
            return
        with self._lock.exclusive():
            self._closed = True
            self._end_scans()
            if self._env is not None:
                self._env.close()
                self._env = None
        self._forget()

    # Transactions

    def _opened(self) -> lmdb.Environment:
        if self._closed:
            raise LogClosedError(f"the table of {self._topic} is closed", path=self._topic)
        if self._env is None:
            raise StorageError(
                f"{self._path} could not be opened again: close the table, and open another", path=self._path
            )
        return self._env

    def _retried(self, transaction: Callable[[], T]) -> T:
        """Run a transaction again with a larger map where it needs one, and after the file was replaced."""
        readers_checked = False
        while True:
            number, size = self._number, 0
            try:
                with self._lock:
                    number, size = self._number, self._opened().info()["map_size"]
                    return transaction()
            except lmdb.MapFullError:
                self._resize(size, 2 * size)
            except lmdb.MapResizedError:  # by another process
                self._resize(size, 0)
            except _DAMAGE as error:
                self._replace(number, error)
            except lmdb.ReadersFullError as error:
                if readers_checked:
                    raise self._error("cannot read the table", error) from error
                readers_checked = True
                with self._lock:
                    self._opened().reader_check()
            except (lmdb.Error, MemoryError) as error:
                raise self._error("cannot use the table", error) from error

    def _write(self, change: Callable[[Any], T]) -> T:
        def transaction() -> T:
            with self._opened().begin(write=True) as txn:
                result = change(txn)
                if result is not False:
                    keys = txn.stat(self._keys)["entries"]
                    txn.put(COMMIT, encode_commit(txn.id(), keys), db=self._places)
                return result

        return self._retried(transaction)

    def _read(self, look: Callable[[Any], T]) -> T:
        def transaction() -> T:
            with self._opened().begin(db=self._keys) as txn:
                return look(txn)

        return self._retried(transaction)

    def _resize(self, size: int, wanted: int) -> None:
        """Map `wanted` bytes, 0 for as many as another process has, unless another thread has done so."""
        with self._lock.exclusive():
            env = self._opened()
            if env.info()["map_size"] != size:
                return
            self._end_scans()
            try:
                env.set_mapsize(wanted)
            except (lmdb.Error, MemoryError) as error:
                raise self._error(f"cannot map {wanted} bytes of the table", error) from error

    def _replace(self, number: int, error: Exception) -> None:
        """Use another file than `number`, which is damaged, and have it loaded. Raises StorageError, and as loading."""
        with self._lock.exclusive():
            replacing = self._number == number
            if replacing and self._reloading:
                raise StorageError(
                    f"{self._path}: the file is damaged again while it is loaded ({error}): check the disk",
                    path=self._path,
                ) from error
            if replacing:
                _logger.warning("%s is damaged (%s): %s is loaded again", self._file(number), error, self._topic)
                self._reopen(after=number)
                self._reloading = True
        try:
            self._load()
        finally:
            if replacing:
                self._reloading = False

    def find_replacement(self) -> None:
        """Use the file by which another process has replaced this one, where it has. Raises as `_replace`."""
        path = self._file(self._number)
        try:
            os.stat(path)
            return
        except FileNotFoundError:
            pass
        except OSError as error:  # whether it was replaced, nobody knows
            raise _error_of("cannot look at the table", self._path, error) from error
        with self._lock.exclusive():
            if self._file(self._number) == path:
                self._reopen(after=0)
        self._load()

    def _reopen(self, after: int) -> None:
        """Under the exclusive lock."""
        self._end_scans()
        self._opened().close()
        self._env = None
        with self._folder_lock():
            self._open_newest(after)

    def _load(self) -> None:
        reload = self._reload()
        if reload is not None:
            reload()

    def _end_scans(self) -> None:
        for scan in list(self._scans):
            scan.end()

    # Changing

    def place(self, partition: int) -> Place | None:
        return self._read(lambda txn: self._place(txn, partition))

    def _place(self, txn: Any, partition: int) -> Place | None:
        data = txn.get(place_key(partition), db=self._places)
        return None if data is None else decode_place(partition, data)

    def apply(
        self, partition: int, before: Place | None, records: dict[bytes, tuple[int, int, bytes | None]], after: Place
    ) -> bool:
        """Move from one place to the other with the newest record of each key in between: (offset, timestamp, value).
        False, and nothing is changed, where another process has moved the place."""
        keys = {stored_key(key): key for key in sorted(records)}

        def change(txn: Any) -> bool:
            if self._place(txn, partition) != before:
                return False
            for stored, key in keys.items():
                offset, timestamp_ms, value = records[key]
                found = txn.get(stored, db=self._keys)
                others = [] if found is None else _others(partition, stored, found)
                if others:
                    own = [] if value is None else [Entry(partition, offset, timestamp_ms, value)]
                    txn.put(stored, encode_entries(stored, key, others + own), db=self._keys)
                elif value is not None:
                    entry = encode_entry(stored, key, partition, offset, timestamp_ms, value)
                    txn.put(stored, entry, db=self._keys)
                elif found is not None:
                    txn.delete(stored, db=self._keys)
            txn.put(place_key(partition), encode_place(partition, after), db=self._places)
            return True

        return self._write(change)

    def remove_due(self, partition: int) -> None:
        """Remove the partition's entries below the place's `remove_below`, in transactions of PIECE keys."""
        place = self.place(partition)
        start: bytes | None = b""
        while start is not None and place is not None and place.remove_below:
            start = self._write(partial(self._remove_some, partition, place, start))

    def _remove_some(self, partition: int, place: Place, start: bytes, txn: Any) -> bytes | None:
        """The key to go on from; None at the end, or where another process has moved the place."""
        if self._place(txn, partition) != place:
            return None
        going_on = None
        if place.remove_below == EVERYTHING and txn.stat(self._places)["entries"] == 3:  # no other partition
            txn.drop(self._keys, delete=False)
        else:
            with txn.cursor(db=self._keys) as cursor:
                pairs = list(itertools.islice(cursor, PIECE + 1)) if cursor.set_range(start) else []
            if len(pairs) > PIECE:
                going_on = pairs.pop()[0]
            for stored, data in pairs:
                key, entries = decode_entries(stored, data)
                left = [
                    entry for entry in entries if entry.partition != partition or entry.offset >= place.remove_below
                ]
                if not left:
                    txn.delete(stored, db=self._keys)
                elif len(left) < len(entries):
                    txn.put(stored, encode_entries(stored, key, left), db=self._keys)
        if going_on is None:
            done = encode_place(partition, place._replace(remove_below=0))
            txn.put(place_key(partition), done, db=self._places)
        return going_on

    def remove_partitions_but(self, numbers: Container[int]) -> None:
        """Remove the entries and the place of each partition that is not in `numbers`."""
        for partition in self._read(lambda txn: partitions_of(txn.cursor(db=self._places).iternext(values=False))):
            place = None if partition in numbers else self.place(partition)
            if place is None:
                continue
            emptied = place._replace(next_offset=place.log_start_offset, base_offset=-1, crc=0, remove_below=EVERYTHING)
            self.apply(partition, place, {}, emptied)
            self.remove_due(partition)
            self._write(partial(self._forget_place, partition, emptied._replace(remove_below=0)))

    def _forget_place(self, partition: int, place: Place, txn: Any) -> bool:
        """False where another process has moved it."""
        return self._place(txn, partition) == place and bool(txn.delete(place_key(partition), db=self._places))

    # Reading

    def __len__(self) -> int:
        """Distinct keys."""
        return self._read(lambda txn: int(txn.stat(self._keys)["entries"]))

    @property
    def nbytes(self) -> int:
        """Bytes of the pages that hold keys and values."""

        def look(txn: Any) -> int:
            stat = txn.stat(self._keys)
            return int(stat["psize"] * (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]))

        return self._read(look)

    def get(self, key: Buffer) -> Found | None:
        """(partition, offset, timestamp_ms, key, value) of the newest record of a key; None for none.

        Raises ArgumentTypeError."""
        stored = stored_key(key if isinstance(key, bytes) else _as_bytes(key))

        def look(txn: Any) -> Found | None:
            data = txn.get(stored)
            return None if data is None else _newest_of(stored, data)

        return self._read(look)

    def get_value(self, key: Buffer) -> bytes | None:
        found = self.get(key)
        return None if found is None else found[4]

    def records(self, prefix: bytes = b"") -> Iterator[Found]:
        """The results of `get` for all keys that begin with `prefix` at one moment, in the order of the keys."""
        return self._records(prefix, self._read_scan(stored_prefix(prefix)))

    def _read_scan(self, start: bytes) -> _Scan:
        return self._retried(lambda: _Scan(self, start))

    def _records(self, prefix: bytes, scan: _Scan) -> Iterator[Found]:
        number, count = self._number, 0
        try:
            for _, group in itertools.groupby(self._pairs(scan), key=_head_of_long):
                found = [_newest_of(stored, data) for stored, data in group]
                count += len(found)
                if len(found) > 1:
                    found.sort(key=lambda record: record[3])
                yield from (record for record in found if record[3].startswith(prefix))
            if not prefix and count != scan.keys:
                raise DamagedTableError(f"it has {count} keys, not {scan.keys}")
        except _DAMAGE as error:
            self._replace(number, error)
            raise StorageError(
                f"{self._path} was damaged, and is loaded again: iterate again", path=self._path
            ) from error

    def _pairs(self, scan: _Scan) -> Iterator[tuple[bytes, bytes]]:
        while True:
            with self._lock:
                pairs = scan.next_piece()
            if not pairs:
                return
            yield from pairs


def _after_fork_in_child() -> None:
    """References stay: what is forgotten is closed, and LMDB would end the reads of the parent."""
    _inherited.extend((store, list(store._scans)) for store in list(_stores))


os.register_at_fork(after_in_child=_after_fork_in_child)


class _Scan:
    """A read of many keys, in one transaction."""

    def __init__(self, store: LmdbStore, start: bytes) -> None:
        self._topic = store._topic
        self._start = start
        self._txn: Any = store._opened().begin()
        self.keys = self._txn.stat(store._keys)["entries"]
        self._cursor = self._txn.cursor(db=store._keys)
        self._left = self._cursor.set_range(start)
        store._scans.add(self)

    def next_piece(self) -> list[tuple[bytes, bytes]]:
        """Empty at the end. Raises StorageError where the transaction was ended meanwhile."""
        if not self._left:
            return []
        if self._txn is None:
            raise StorageError(
                f"the file of the table of {self._topic} was closed, replaced, or had to grow: iterate again"
            )
        pairs = list(itertools.islice(self._cursor, PIECE))
        self._left = len(pairs) == PIECE and self._cursor.next()
        while pairs and not pairs[-1][0].startswith(self._start):
            pairs.pop()
            self._left = False
        if not self._left:
            self.end()
        return pairs

    def end(self) -> None:
        if self._txn is not None:
            self._txn.abort()
            self._txn = None


class _SharedLock:
    """Many hold it by `with`, or one alone by `exclusive`."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._shared = 0
        self._exclusive = False
        self._waiting = 0  # for exclusive(): who comes to share it waits, too, or there would always be one more

    def __enter__(self) -> None:
        with self._condition:
            while self._exclusive or self._waiting:
                self._condition.wait()
            self._shared += 1

    def __exit__(self, *_error: object) -> None:
        with self._condition:
            self._shared -= 1
            if not self._shared:
                self._condition.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._condition:
            self._waiting += 1
            try:
                while self._exclusive or self._shared:
                    self._condition.wait()
                self._exclusive = True
            finally:
                self._waiting -= 1
                self._condition.notify_all()
        try:
            yield
        finally:
            with self._condition:
                self._exclusive = False
                self._condition.notify_all()


def _error_of(action: str, path: str, error: OSError) -> Exception:
    found = error_of(action, path, error)
    if error.errno in _NO_RIGHT:
        advice = "every process that opens a table writes to its files: give this user that right, or a path of its own"
        found.args = (f"{found.args[0]}; {advice}",)
    return found


def _allocate(path: str, size: int) -> None:
    """Give the file its blocks, which LMDB maps and writes to: a full disk would end the process. Raises OSError."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(file).st_size < size:
            os.posix_fallocate(file, 0, size)
    finally:
        os.close(file)


def _is_full(path: str) -> bool:
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < FULL_BYTES


def _check_size(env: lmdb.Environment, path: str) -> None:
    """Reading past the end of a file that was cut ends the process. Raises DamagedTableError."""
    needed = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if os.path.getsize(path) < needed:
        raise DamagedTableError(f"it has {os.path.getsize(path)} bytes, not {needed}")


def _others(partition: int, stored: bytes, data: bytes) -> list[Entry]:
    """The entries that other partitions have of a key. Raises DamagedTableError."""
    return [entry for entry in decode_entries(stored, data)[1] if entry.partition != partition]


def _newest_of(stored: bytes, data: bytes) -> Found:
    """Raises DamagedTableError."""
    key, entries = decode_entries(stored, data)
    partition, offset, timestamp_ms, value = newest(entries)
    return partition, offset, timestamp_ms, key, value


def _head_of_long(pair: tuple[bytes, bytes]) -> bytes:
    """The common beginning of stored keys by which they are grouped: long ones of a group are in no order."""
    stored = pair[0]
    return stored[:HEAD] if len(stored) > HEAD else stored


def _present(data: bytes | None) -> bytes:
    if data is None:
        raise DamagedTableError("it lacks an entry that each has")
    return data


def _as_bytes(key: Buffer) -> bytes:
    try:
        return bytes(memoryview(key))
    except TypeError:
        raise ArgumentTypeError(f"a key is bytes-like, not {type(key).__name__}") from None


def _errno_of(error: Exception) -> int:
    """LMDB's errors of the system have the text of its number."""
    if isinstance(error, (MemoryError, lmdb.MemoryError)):
        return errno.ENOMEM
    return next((number for number in _ERRNOS if os.strerror(number) in str(error)), errno.EIO)
