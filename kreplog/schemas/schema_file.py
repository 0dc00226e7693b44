"""SchemaFile: a registry that is a file, by default `<folder>/kreplog.schemas` for the topics of a folder.

    1c2b3a4d {"id": 1, "subject": "orders-value", "version": 1, "schemaType": "AVRO", "schema": "...", "references": []}

A line for each version of a subject: the CRC-32C of what follows it, in hexadecimal, and what follows, in JSON. Lines
are added and never changed. A line counts once it has an end, which is written when the line is durable; what a killed
process left without one is completed by the next writer if it is whole, and removed if it is not.
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kreplog._native.crc32c import crc32c
from kreplog._native.directory import leads_to
from kreplog._native.files import error_of
from kreplog.errors import CorruptSchemaFileError, LogLockedError
from kreplog.schemas.registry import Reference, Schema, SchemaVersion
from kreplog.syncing import sync_directory

CRC_SIZE = 9
"""Bytes in front of what the CRC-32C is of, with the space."""

LOCK_TIMEOUT_S = 5.0
"""A registration takes milliseconds, unless the process is stopped in it."""

CHECK_INTERVAL_S = 0.01
"""So often what is known of the file is used without a look whether it is still there."""

_schema_files: weakref.WeakSet[SchemaFile] = weakref.WeakSet()


class SchemaFile:
    """Thread-safe, and for several processes at once. It does not compare the versions of a subject with each other.

    What has read a record's schema once needs no file any more; what has not needs it as long as there are records. A
    file that was deleted, or replaced by one that lacks or changes what was read, gives its ids a second time: all but
    what was read raises CorruptSchemaFileError then.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._mutex = threading.Lock()
        self._forget()
        _schema_files.add(self)

    def __repr__(self) -> str:
        return f"SchemaFile({self._path!r})"

    def _after_fork_in_child(self) -> None:
        """In a forked child: another thread of the parent may have been at work."""
        self._mutex = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._content = _Content(self._path)
        self._seen: tuple[int, ...] = ()
        self._durable: dict[tuple[str, Schema], SchemaVersion] = {}
        self._checked_s = 0.0

    def register(self, subject: str, schema: Schema) -> SchemaVersion:
        """As `Registry` has it; the schema is durable. Raises LogLockedError, CorruptSchemaFileError, StorageError."""
        with self._mutex:
            registered = self._durable.get((subject, schema))
            if registered is None or not self._is_as_it_was():
                registered = self._found_durably(subject, schema) or self._added(subject, schema)
                self._durable[subject, schema] = registered
            return registered

    def find(self, subject: str, schema: Schema) -> SchemaVersion | None:
        with self._mutex:
            found = self._content.place(subject, schema)
            if found is None and self._has_file():
                self._read_new_lines()
                found = self._content.place(subject, schema)
            return found

    def schema(self, schema_id: int) -> Schema | None:
        with self._mutex:
            if schema_id not in self._content.schemas:
                self._read_new_lines()
            return self._content.schemas.get(schema_id)

    def version(self, subject: str, version: int) -> Schema | None:
        with self._mutex:
            if version > len(self._content.versions(subject)):
                self._read_new_lines()
            versions = self._content.versions(subject)
            return versions[version - 1] if 0 < version <= len(versions) else None

    def has_subject(self, subject: str) -> bool:
        return self.version(subject, 1) is not None

    # Reading, without a lock

    def _is_as_it_was(self) -> bool:
        """Whether the file is the one that was read, and as it was then, by the latest check."""
        now_s = time.monotonic()
        if now_s - self._checked_s >= CHECK_INTERVAL_S:
            try:
                status = os.stat(self._path)
            except OSError:  # which to open it raises, too
                return False
            if self._seen != _identity(status):
                return False
            self._checked_s = now_s
        return True

    def _has_file(self) -> bool:
        """False where there is none yet."""
        return self._content.lines > 0 or os.path.exists(self._path)

    def _found_durably(self, subject: str, schema: Schema) -> SchemaVersion | None:
        if not self._has_file():
            return None
        with self._opened(os.O_RDONLY) as file:
            self._read(file)
            found = self._content.place(subject, schema)
            if found is not None:
                self._sync(file)  # who added it may have been killed before that
            return found

    def _read_new_lines(self) -> None:
        with self._opened(os.O_RDONLY) as file:
            self._read(file)

    @contextmanager
    def _opened(self, flags: int) -> Iterator[int]:
        """The file. Raises CorruptSchemaFileError where it was read before and is gone, StorageError."""
        try:
            file = os.open(self._path, flags | os.O_CLOEXEC, 0o666)
        except FileNotFoundError as error:
            if self._content.lines:
                raise self._replaced("was deleted") from error
            raise error_of("cannot open", self._path, error) from error
        except OSError as error:
            raise error_of("cannot open", self._path, error) from error
        try:
            yield file
        finally:
            os.close(file)

    def _read(self, file: int) -> bytes:
        """Read the lines behind those that are known, or all of another file than before; return what follows them,
        which has no end yet."""
        try:
            status = os.fstat(file)
            known = self._content
            is_same = self._seen[:2] == _identity(status)[:2] and known.is_in(file)
            content = known if is_same else _Content(self._path)
            data = os.pread(file, max(0, status.st_size - content.end), content.end)
        except OSError as error:
            raise error_of("cannot read", self._path, error) from error
        *lines, rest = data.split(b"\n")
        for line in lines:
            content.add(line)
        if _is_whole(rest[:-1]):
            if not rest.endswith(b"\0"):
                content.add(rest)  # raises: its end is damaged
            rest = rest[:-1]  # a loss of power has left the file's size, and not its last byte
        if not content.continues(known):
            raise self._replaced("was replaced by another")
        if not is_same:
            self._durable.clear()
        self._content, self._seen = content, _identity(status)
        self._checked_s = time.monotonic()
        return rest

    def _replaced(self, change: str) -> CorruptSchemaFileError:
        return CorruptSchemaFileError(
            f"{self._path} {change} since this process read it: put it back as it was, since records are read by the "
            "schemas in it, and its numbers must not be given twice; where its topics are to be new, open them again",
            path=self._path,
        )

    # Adding

    def _added(self, subject: str, schema: Schema) -> SchemaVersion:
        with self._locked() as file:
            rest = self._read(file)
            if _is_whole(rest):
                self._sync(file)
                self._write(file, b"\n", self._content.end + len(rest))
                self._read(file)
            content = self._content
            found = content.place(subject, schema)
            if found is None:
                schema_id = content.ids.get(schema, max(content.schemas, default=0) + 1)
                found = SchemaVersion(schema_id, len(content.versions(subject)) + 1)
                self._append(file, _line(subject, found, schema))
                self._read(file)
            else:
                self._sync(file)
            return found

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, for this process alone, to be read and added to."""
        deadline_s = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            with self._opened(os.O_RDWR | (0 if self._content.lines else os.O_CREAT)) as file:
                if self._try_lock(file):
                    try:
                        if leads_to(self._path, file):
                            yield file
                            return
                    finally:
                        fcntl.flock(file, fcntl.LOCK_UN)  # not left to closing: a child may have the descriptor
            if time.monotonic() >= deadline_s:
                raise LogLockedError(
                    f"{self._path} is locked by another process since {LOCK_TIMEOUT_S:g} s: end it, or try again",
                    path=self._path,
                )
            time.sleep(0.001)  # the kernel does not say when the lock is free, except to who waits for it without end

    def _try_lock(self, file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise error_of("cannot lock", self._path, error) from error
        return True

    def _append(self, file: int, line: bytes) -> None:
        """Durably; or, without its end, not at all."""
        end = self._content.end
        try:
            os.ftruncate(file, end)
            try:
                self._write(file, line, end)
            except BaseException:
                os.ftruncate(file, end)
                raise
        except OSError as error:
            raise error_of("cannot write", self._path, error) from error
        self._write(file, b"\n", end + len(line))  # others may read it from now on: it stays, whatever fails

    def _write(self, file: int, data: bytes, at: int) -> None:
        """Durably. Raises StorageError."""
        try:
            while data:
                written = os.pwrite(file, data, at)
                at, data = at + written, data[written:]
        except OSError as error:
            raise error_of("cannot write", self._path, error) from error
        self._sync(file)

    def _sync(self, file: int) -> None:
        try:
            os.fsync(file)
            sync_directory(os.path.dirname(self._path) or ".")
        except OSError as error:
            raise error_of("cannot sync", self._path, error) from error


class _Content:
    """The content of the file at a path, up to where it was read."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._last = b""
        self._subjects: dict[str, list[Schema]] = {}
        self.end = 0
        self.lines = 0
        self.schemas: dict[int, Schema] = {}
        self.ids: dict[Schema, int] = {}

    def versions(self, subject: str) -> list[Schema]:
        return self._subjects.get(subject, [])

    def place(self, subject: str, schema: Schema) -> SchemaVersion | None:
        versions = self.versions(subject)
        return SchemaVersion(self.ids[schema], versions.index(schema) + 1) if schema in versions else None

    def is_in(self, file: int) -> bool:
        """Whether the last line is where it was, and so the others: lines are never changed. Raises OSError."""
        return os.pread(file, len(self._last), self.end - len(self._last)) == self._last

    def continues(self, earlier: _Content) -> bool:
        """Whether all is as in `earlier`, and perhaps more."""
        return self is earlier or (
            all(self.schemas.get(schema_id) == schema for schema_id, schema in earlier.schemas.items())
            and all(self.versions(name)[: len(known)] == known for name, known in earlier._subjects.items())
        )

    def add(self, line: bytes) -> None:
        """Raises CorruptSchemaFileError."""
        try:
            if not _is_whole(line):
                raise ValueError("its CRC-32C is another")
            content: dict[str, Any] = json.loads(line[CRC_SIZE:])
            references = tuple(Reference(**reference) for reference in content["references"])
            schema = Schema(content["schemaType"], content["schema"], references)
            schema_id, subject = int(content["id"]), str(content["subject"])
        except (ValueError, LookupError, TypeError) as error:
            raise CorruptSchemaFileError(
                f"{self._path}: line {self.lines + 1} is damaged ({error}): put back the file as it was, since "
                "records are read by the schemas in it",
                path=self._path,
            ) from error
        self.schemas[schema_id] = schema
        self.ids[schema] = schema_id
        self._subjects.setdefault(subject, []).append(schema)
        self._last = line + b"\n"
        self.end += len(self._last)
        self.lines += 1


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """Device and inode, which may be those of a file that was deleted, and the latest change."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _is_whole(line: bytes) -> bool:
    return line[:CRC_SIZE] == b"%08x " % crc32c(line[CRC_SIZE:])


def _line(subject: str, registered: SchemaVersion, schema: Schema) -> bytes:
    content = {
        "id": registered.id,
        "subject": subject,
        "version": registered.version,
        "schemaType": schema.kind,
        "schema": schema.text,
        "references": [reference._asdict() for reference in schema.references],
    }
    data = json.dumps(content).encode()
    return b"%08x %s" % (crc32c(data), data)


def _after_fork_in_child() -> None:
    for file in list(_schema_files):
        file._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
