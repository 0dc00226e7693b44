"""SchemaFile: a registry that is a file, by default `<folder>/kreplog.schemas` for the topics of a folder.

    1c2b3a4d {"id": 1, "subject": "orders-value", "version": 1, "schemaType": "AVRO", "schema": "...", "references": []}

A line for each version of a subject: the CRC-32C of what follows it, in hexadecimal, and what follows, in JSON. Lines
are added and never changed. One that a killed process left incomplete has no end, and is removed by the next.
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

CRC_SIZE = 9
"""Bytes in front of what the CRC-32C is of, with the space."""

LOCK_TIMEOUT_S = 5.0
"""A registration takes milliseconds, unless the process is stopped in it."""

_schema_files: weakref.WeakSet[SchemaFile] = weakref.WeakSet()


class SchemaFile:
    """Thread-safe, and for several processes at once. It does not compare the versions of a subject with each other.

    What has read a record's schema once needs no file any more; what has not needs it as long as there are records."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)
        self._mutex = threading.Lock()
        self._forget()
        _schema_files.add(self)

    def __repr__(self) -> str:
        return f"SchemaFile({self._path!r})"

    def abandon(self) -> None:
        """In a forked child: another thread of the parent may have been at work."""
        self._mutex = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._file: tuple[int, int] | None = None  # device and inode of the file that was read
        self._end = 0  # up to where
        self._lines = 0
        self._schemas: dict[int, Schema] = {}
        self._ids: dict[Schema, int] = {}
        self._subjects: dict[str, list[Schema]] = {}

    def register(self, subject: str, schema: Schema) -> SchemaVersion:
        """As `Registry` has it; the schema is durable. Raises LogLockedError, CorruptSchemaFileError, StorageError."""
        with self._mutex, self._locked() as file:
            self._read(file)
            versions = self._subjects.get(subject, [])
            if schema in versions:
                registered = SchemaVersion(self._ids[schema], versions.index(schema) + 1)
                self._sync(file)  # who added it may have been killed before that
                return registered
            registered = SchemaVersion(self._ids.get(schema, max(self._schemas, default=0) + 1), len(versions) + 1)
            self._append(file, _line(subject, registered, schema))
            self._read(file)
            return registered

    def schema(self, schema_id: int) -> Schema | None:
        with self._mutex:
            if schema_id not in self._schemas:
                self._read_new_lines()
            return self._schemas.get(schema_id)

    def version(self, subject: str, version: int) -> Schema | None:
        with self._mutex:
            if version > len(self._subjects.get(subject, ())):
                self._read_new_lines()
            versions = self._subjects.get(subject, [])
            return versions[version - 1] if 0 < version <= len(versions) else None

    def _read_new_lines(self) -> None:
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise error_of("cannot open", self._path, error) from error
        try:
            self._read(file)
        finally:
            os.close(file)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, for this process alone, to be read and added to."""
        deadline_s = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except OSError as error:
                raise error_of("cannot open", self._path, error) from error
            try:
                if self._is_lock_taken(file):
                    try:
                        if leads_to(self._path, file):
                            yield file
                            return
                    finally:
                        fcntl.flock(file, fcntl.LOCK_UN)  # not left to closing: a child may have the descriptor
            finally:
                os.close(file)
            if time.monotonic() >= deadline_s:
                raise LogLockedError(
                    f"{self._path} is locked by another process since {LOCK_TIMEOUT_S:g} s: end it, or try again",
                    path=self._path,
                )
            time.sleep(0.001)  # the kernel does not say when the lock is free, except to who waits for it without end

    def _is_lock_taken(self, file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise error_of("cannot lock", self._path, error) from error
        return True

    def _read(self, file: int) -> None:
        """Read the lines behind those that are known, or all of another file than before."""
        try:
            status = os.fstat(file)
            if self._file != (status.st_dev, status.st_ino) or status.st_size < self._end:
                self._forget()
                self._file = status.st_dev, status.st_ino
            data = os.pread(file, status.st_size - self._end, self._end)
        except OSError as error:
            raise error_of("cannot read", self._path, error) from error
        *lines, rest = data.split(b"\n")  # what follows the last line is being written, or was cut short
        if _is_whole(rest[:-1]):
            lines.append(rest)  # its end is damaged
        for line in lines:
            self._add(line)
            self._end += len(line) + 1
            self._lines += 1

    def _add(self, line: bytes) -> None:
        try:
            if not _is_whole(line):
                raise ValueError("its CRC-32C is another")
            content: dict[str, Any] = json.loads(line[CRC_SIZE:])
            references = tuple(Reference(**reference) for reference in content["references"])
            schema = Schema(content["schemaType"], content["schema"], references)
            schema_id, subject = int(content["id"]), str(content["subject"])
        except (ValueError, LookupError, TypeError) as error:
            raise CorruptSchemaFileError(
                f"{self._path}: line {self._lines + 1} is damaged ({error}): put back the file as it was, since "
                "records are read by the schemas in it",
                path=self._path,
            ) from error
        self._schemas[schema_id] = schema
        self._ids[schema] = schema_id
        self._subjects.setdefault(subject, []).append(schema)

    def _append(self, file: int, line: bytes) -> None:
        """Durably, or not at all."""
        try:
            os.ftruncate(file, self._end)
            try:
                for part in (line, b"\n"):  # a line that has an end is whole, also after a loss of power
                    self._write(file, part)
                    self._sync(file)
            except BaseException:
                os.ftruncate(file, self._end)
                raise
        except OSError as error:
            raise error_of("cannot write", self._path, error) from error

    def _write(self, file: int, data: bytes) -> None:
        at = os.fstat(file).st_size
        while data:
            written = os.pwrite(file, data, at)
            at, data = at + written, data[written:]

    def _sync(self, file: int) -> None:
        try:
            os.fsync(file)
            folder = os.open(os.path.dirname(self._path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise error_of("cannot sync", self._path, error) from error


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


def _abandon_in_child() -> None:
    for file in list(_schema_files):
        file.abandon()


os.register_at_fork(after_in_child=_abandon_in_child)
