"""The embedded store's SQLite database: schema, transactions, and translation of errors.

    meta       one row: the number of the last transaction that changed the tree
    nodes      the tree; columns as tree.NodeRecord, and the parent's path
    sessions   sessions that have not ended; ids are never reused
    changes    the events of the latest transactions, for watches in other processes: a letter and a path per line. The
               oldest are dropped; a session that is further behind compares its watches with the tree

WAL, synchronous=FULL: commits survive a power failure. One connection belongs to one thread at a time.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from kreplog.coord.base import StoreFailedError, parent_of
from kreplog.coord.tree import NodeRecord, Transaction
from kreplog.errors import ConnectionLossError
from kreplog.syncing import sync_parents
from kreplog.types import WatchEvent

_VERSION = 1
_SCHEMA = """
CREATE TABLE meta (one INTEGER PRIMARY KEY CHECK (one = 1), last INTEGER NOT NULL);
CREATE TABLE nodes (
    path TEXT PRIMARY KEY, parent TEXT NOT NULL, data BLOB NOT NULL, version INTEGER NOT NULL,
    created INTEGER NOT NULL, modified INTEGER NOT NULL, owner INTEGER NOT NULL,
    children INTEGER NOT NULL, creates INTEGER NOT NULL, children_modified INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX nodes_by_parent ON nodes (parent);
CREATE INDEX nodes_by_owner ON nodes (owner) WHERE owner <> 0;
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, token TEXT NOT NULL, timeout_ms INTEGER NOT NULL, boot TEXT NOT NULL
);
CREATE TABLE changes (id INTEGER PRIMARY KEY, size INTEGER NOT NULL, events TEXT NOT NULL);
INSERT INTO meta VALUES (1, 0);
INSERT INTO nodes VALUES ('/', '', x'', 0, 0, 0, 0, 0, 0, 0);
"""

_RECORD = "data, version, created, modified, owner, children, creates, children_modified"
_LETTERS = {"created": "c", "changed": "m", "deleted": "d", "children": "k"}
_KINDS = {letter: kind for kind, letter in _LETTERS.items()}
_MAX_CHANGES = 256
_MAX_LARGE_CHANGES = 8
_LARGE = 65536
_CHUNK = 500


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session that has not ended."""

    id: int
    token: str
    timeout_ms: int
    boot: str


class Database:
    """One connection. Raises ConnectionLossError where another process holds the lock for longer than `busy_ms`,
    StoreFailedError where the file cannot be read or written."""

    def __init__(self, path: Path, busy_ms: int) -> None:
        self._path = path
        self._busy_ms = busy_ms
        with self._translated():
            self._connection = sqlite3.connect(
                path, timeout=busy_ms / 1000, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Close the connection; a transaction under way is rolled back."""
        with suppress(sqlite3.Error):
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Reads inside are one snapshot."""
        with self._translated():
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Writes inside are committed and synced at the end, or rolled back on any exception."""
        with self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def last_transaction(self) -> int:
        """Number of the last transaction that changed the tree."""
        return int(self._fetch_row("SELECT last FROM meta")[0])

    def sessions(self) -> dict[int, SessionRow]:
        """Sessions that have not ended, by id."""
        rows = self._connection.execute("SELECT id, token, timeout_ms, boot FROM sessions ORDER BY id")
        return {row[0]: SessionRow(*row) for row in rows}

    def has_session(self, id: int) -> bool:
        """Whether the session has not ended."""
        return self._connection.execute("SELECT 1 FROM sessions WHERE id = ?", (id,)).fetchone() is not None

    def add_session(self, token: str, timeout_ms: int, boot: str) -> int:
        """Add a session and return its id. Inside writing()."""
        row = (token, timeout_ms, boot)
        cursor = self._connection.execute("INSERT INTO sessions (token, timeout_ms, boot) VALUES (?, ?, ?)", row)
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def end_session(self, id: int) -> None:
        """Remove a session and its ephemeral nodes. Inside writing()."""
        owned = self._connection.execute("SELECT path FROM nodes WHERE owner = ? AND owner <> 0 ORDER BY path", (id,))
        transaction = self.begin(id)
        transaction.remove([path for (path,) in owned.fetchall()])
        self.put(transaction)
        self._connection.execute("DELETE FROM sessions WHERE id = ?", (id,))

    def read(self, session: int, path: str) -> tuple[bool, NodeRecord | None]:
        """Whether the session has not ended, and the node, in one snapshot."""
        with self._translated():
            row = self._fetch_row(
                f"SELECT sessions.id, {_RECORD} FROM meta LEFT JOIN sessions ON sessions.id = ? "
                "LEFT JOIN nodes ON nodes.path = ?",
                (session, path),
            )
        return row[0] is not None, None if row[1] is None else NodeRecord(*row[1:])

    def load(self, path: str) -> NodeRecord | None:
        """The node, None if it does not exist. Inside reading() or writing(), as all below."""
        row = self._connection.execute(f"SELECT {_RECORD} FROM nodes WHERE path = ?", (path,)).fetchone()
        return None if row is None else NodeRecord(*row)

    def load_many(self, paths: Iterable[str]) -> dict[str, NodeRecord | None]:
        """The nodes by path, None for those that do not exist."""
        found: dict[str, NodeRecord | None] = dict.fromkeys(paths)
        for chunk in _chunks(list(found)):
            marks = ", ".join("?" * len(chunk))
            rows = self._connection.execute(f"SELECT path, {_RECORD} FROM nodes WHERE path IN ({marks})", chunk)
            for row in rows:
                found[row[0]] = NodeRecord(*row[1:])
        return found

    def children(self, path: str) -> list[str]:
        """Paths of the children."""
        return [row[0] for row in self._connection.execute("SELECT path FROM nodes WHERE parent = ?", (path,))]

    def begin(self, session: int, load: Callable[[str], NodeRecord | None] | None = None) -> Transaction:
        """The next transaction, by `session`. Inside writing()."""
        return Transaction(self.last_transaction() + 1, session, load or self.load)

    def put(self, transaction: Transaction) -> None:
        """Write the changes of a transaction and its events. Inside writing()."""
        if transaction.touches_nothing():
            return
        execute_many = self._connection.executemany
        changed = transaction.changed.items()
        execute_many("DELETE FROM nodes WHERE path = ?", [(path,) for path, record in changed if record is None])
        execute_many(
            f"INSERT OR REPLACE INTO nodes (path, parent, {_RECORD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    *(path, parent_of(path), r.data, r.version, r.created, r.modified),
                    *(r.owner, r.children, r.creates, r.children_modified),
                )
                for path, r in changed
                if r is not None and r.created == transaction.id
            ],
        )
        execute_many(
            "UPDATE nodes SET data = ?, version = ?, modified = ?, children = ?, creates = ?, children_modified = ? "
            "WHERE path = ?",
            [
                (r.data, r.version, r.modified, r.children, r.creates, r.children_modified, path)
                for path, r in changed
                if r is not None and r.created != transaction.id
            ],
        )
        self._connection.execute("UPDATE meta SET last = ?", (transaction.id,))
        events = "\n".join([_LETTERS[event.kind] + event.path for event in transaction.events])
        self._connection.execute("INSERT INTO changes VALUES (?, ?, ?)", (transaction.id, len(events), events))
        self._connection.execute("DELETE FROM changes WHERE id <= ?", (transaction.id - _MAX_CHANGES,))
        if len(events) > _LARGE:
            bound = (transaction.id - _MAX_LARGE_CHANGES, _LARGE)
            self._connection.execute("DELETE FROM changes WHERE id <= ? AND size > ?", bound)

    def changes(self, after: int) -> Iterator[tuple[int, list[WatchEvent]]]:
        """The transactions after number `after` whose events are still stored, in order, with their events."""
        for id, events in self._connection.execute("SELECT id, events FROM changes WHERE id > ? ORDER BY id", (after,)):
            yield id, [WatchEvent(line[1:], _KINDS[line[0]]) for line in events.split("\n")]

    def _fetch_row(self, statement: str, parameters: Sequence[object] = ()) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = self._connection.execute(statement, parameters).fetchone()
        if row is None:
            raise StoreFailedError(f"{self._path} is not a coordination store, or is damaged", path=str(self._path))
        return row

    def _prepare(self) -> None:
        deadline = time.monotonic() + self._busy_ms / 1000
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
                time.sleep(0.005)  # SQLite's own busy timeout does not apply here while another process does the same
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA journal_size_limit = 16777216")
        if self._fetch_row("PRAGMA user_version")[0] == 0:
            sync_parents(self._path)
            with self.writing():
                if self._fetch_row("PRAGMA user_version")[0] == 0:
                    for statement in _SCHEMA.split(";\n"):
                        self._connection.execute(statement)
                    self._connection.execute(f"PRAGMA user_version = {_VERSION}")
        found = self._fetch_row("PRAGMA user_version")[0]
        if found != _VERSION:
            raise StoreFailedError(
                f"{self._path} has format {found}, this kreplog knows {_VERSION}: use the kreplog that wrote it",
                path=str(self._path),
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise ConnectionLossError(
                    f"{self._path} is being written by another process, for more than {self._busy_ms} ms ({error}): "
                    "nothing was applied; retry, and look for a stopped process if this persists",
                    path=str(self._path),
                ) from error
            raise StoreFailedError(
                f"{self._path} cannot be read or written ({error}): free space, check the permissions and the disk, "
                "then read before a retry",
                path=str(self._path),
            ) from error


def make_folder(path: Path) -> None:
    """Create a directory with mode 0700, whatever the umask, unless it exists."""
    if not path.is_dir():
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.chmod(0o700)


def make_file(path: Path) -> None:
    """Create an empty file with mode 0600, whatever the umask, unless it exists; SQLite gives its other files the same
    permissions."""
    with suppress(FileExistsError):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.fchmod(file, 0o600)
        os.close(file)


def _chunks(paths: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(paths), _CHUNK):
        yield paths[start : start + _CHUNK]
