"""One way to keep records in a directory, behind the few verbs that the benchmarks call; kreplog and its ceiling.

The peers stand in peers.py. Loops over records are inside the verbs, so that every store is called from the tightest
loop that its own interface allows, and the harness adds nothing per record.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import kreplog
from benchmarks import ceiling
from benchmarks.harness import Bench, Role

BATCH_BYTES = 65536


class Store:
    """A store opened for reading and writing; a context manager. A verb it has not raises NotImplementedError.

    directory: an existing folder of its own. durable: `commit` survives power loss.
    """

    name: ClassVar[str]
    role: ClassVar[Role] = "peer"
    requires: ClassVar[str | None] = None

    def __init__(self, directory: Path, durable: bool = False) -> None:
        self.directory = directory
        self.durable = durable

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def append(self, records: Sequence[bytes]) -> None:
        """One call a record; may stay in this process until `finish`."""
        raise NotImplementedError

    def append_visible(self, records: Sequence[bytes]) -> None:
        """One call a record, each readable by other processes when its call returns."""
        raise NotImplementedError

    def append_many(self, records: list[bytes]) -> None:
        """One call for all, readable by other processes when it returns."""
        raise NotImplementedError

    def commit(self, records: list[bytes]) -> None:
        """All of them safe from power loss on return; needs durable=True."""
        raise NotImplementedError

    def finish(self) -> None:
        """Hand what `append` has kept back to the operating system."""

    def values(self) -> Iterator[bytes | None]:
        """Every record, in order, as bytes."""
        raise NotImplementedError

    def scan(self) -> int:
        """Count the records by the fastest pass over all of them that makes no Python object of each."""
        raise NotImplementedError

    def seek(self, offset: int, count: int) -> list[bytes | None]:
        """`count` records from `offset` on."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def disk_bytes(self) -> int:
        """Sizes of all files; call after `close`."""
        return sum(path.stat().st_size for path in self.directory.rglob("*") if path.is_file())


def available(bench: Bench, *stores: type[Store]) -> list[type[Store]]:
    """The stores whose package is installed; the table's notes name the others."""
    missing = {store.name for store in stores if store.requires and importlib.util.find_spec(store.requires) is None}
    if missing:
        bench.notes.append(f"not installed, so left out: {', '.join(sorted(missing))}")
    return [store for store in stores if store.name not in missing]


class Kreplog(Store):
    """kreplog with its default settings."""

    name = "kreplog"
    role = "kreplog"
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, directory: Path, durable: bool = False) -> None:
        super().__init__(directory, durable)
        self.log = kreplog.Log.open(directory / "bench-0", config=kreplog.LogConfig(**self.settings))

    @cached_property
    def _appender(self) -> kreplog.Appender:
        return self.log.appender(batch_bytes=BATCH_BYTES)

    def append(self, records: Sequence[bytes]) -> None:
        append = self._appender.append
        for record in records:
            append(record)

    def append_visible(self, records: Sequence[bytes]) -> None:
        append = self.log.append
        for record in records:
            append(record)

    def append_many(self, records: list[bytes]) -> None:
        self.log.append_many(records)

    def commit(self, records: list[bytes]) -> None:
        if len(records) == 1:
            self.log.append(records[0])
        else:
            self.log.append_many(records)
        self.log.flush()

    def finish(self) -> None:
        if "_appender" in vars(self):
            self._appender.flush()

    def values(self) -> Iterator[bytes | None]:
        return self.log.values()

    def records(self) -> Iterator[kreplog.Record]:
        return self.log.read()

    def scan(self) -> int:
        report = self.log.verify()
        if report.damages:
            raise AssertionError(f"verify found {report.damages[0]}")
        return report.records

    def seek(self, offset: int, count: int) -> list[bytes | None]:
        return list(self.log.values(offset, offset + count))

    def close(self) -> None:
        if "_appender" in vars(self):
            self._appender.close()
        self.log.close()


class KreplogLz4(Kreplog):
    """The same with lz4 batches."""

    settings: ClassVar[dict[str, Any]] = {"compression_type": "lz4"}


class Ceiling(Store):
    """The unavoidable work in C: see ceiling/_ceiling.c. A writer starts a new file; a reader needs a finished one."""

    name = "ceiling"
    role = "ceiling"

    @property
    def _path(self) -> Path:
        return self.directory / "ceiling.log"

    @cached_property
    def _writer(self) -> ceiling.Writer:
        return ceiling.Writer(self._path, BATCH_BYTES)

    @cached_property
    def _reader(self) -> ceiling.Reader:
        return ceiling.Reader(self._path)

    def append(self, records: Sequence[bytes]) -> None:
        append = self._writer.append
        for record in records:
            append(record)

    def append_visible(self, records: Sequence[bytes]) -> None:
        append = self._writer.append_visible
        for record in records:
            append(record)

    def append_many(self, records: list[bytes]) -> None:
        self._writer.append_many(records)

    def finish(self) -> None:
        self._writer.flush()

    def values(self) -> Iterator[bytes | None]:
        return self._reader.values()

    def scan(self) -> int:
        return self._reader.scan()[0]

    def columns(self) -> int:
        """Count the records by the fastest pass that fills Arrow's columns with them."""
        return self._reader.columns()

    def seek(self, offset: int, count: int) -> list[bytes | None]:
        return self._reader.seek(offset, count)

    def close(self) -> None:
        for name in ("_writer", "_reader"):
            if name in vars(self):
                getattr(self, name).close()


class StampedCeiling(Ceiling):
    """The same with one reading of the clock a batch: its records have the time of the first."""

    name = "ceiling, a stamp a batch"

    def append(self, records: Sequence[bytes]) -> None:
        append = self._writer.append_stamped
        for record in records:
            append(record)
