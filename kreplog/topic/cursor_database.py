"""CursorDatabase: the position of a cursor in a database to which its reader writes results, in the same transaction.

It is in the table kreplog_cursors, a row for each partition. `SqliteDatabase` is for connections of sqlite3 and what is
made after it, `DbApiDatabase` for those of other drivers that follow PEP 249.
"""

from __future__ import annotations

import inspect
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from kreplog.errors import ArgumentTypeError, CursorFencedError, UsageError

TABLE = "kreplog_cursors"
_SAVEPOINT = "kreplog_cursor"
_MARKERS: Mapping[str, str] = {
    "qmark": "?",
    "format": "%s",
    "numeric": ":{0}",
    "named": ":v{0}",
    "pyformat": "%(v{0})s",
}
"""A value's marker in a statement by the `paramstyle` of a driver."""


class StoredCursor(NamedTuple):
    """The key of a cursor's rows. topic_id: "" where the topic has none."""

    topic_id: str
    topic: str
    name: str


class CursorDatabase(ABC):
    """The rows of a cursor, and the transaction in which they are read and written."""

    partition_column: str

    def __init__(self, connection: Any, cursor: StoredCursor) -> None:
        self._connection = connection
        self._cursor = cursor

    @contextmanager
    def transaction(self) -> Iterator[dict[int, int]]:
        """A transaction around the `with` statement, rolled back where that raises. Yields the positions that are
        stored, by partition."""
        self._begin()
        try:
            yield self._read()
            self._commit()
        except BaseException:
            self._rollback()
            raise

    def write(self, stored: Mapping[int, int], positions: Mapping[int, int]) -> None:
        """Write the positions that are not stored. Raises CursorFencedError where the rows are not as they were
        read, UsageError where the caller has ended the transaction."""
        self._check_not_ended()
        for number, offset in positions.items():
            if number not in stored:
                self._execute(
                    f"INSERT INTO {TABLE} VALUES ({{}}, {{}}, {{}}, {{}}, {{}})", *self._cursor, number, offset
                )
            elif stored[number] != offset:
                updated = self._execute(
                    f"UPDATE {TABLE} SET next_offset = {{}} WHERE topic_id = {{}} AND topic = {{}} AND name = {{}} AND "
                    f"{self.partition_column} = {{}} AND next_offset = {{}}",
                    offset, *self._cursor, number, stored[number],
                )  # fmt: skip
                if updated.rowcount == 0:
                    raise CursorFencedError(
                        f"cursor {self._cursor.name} of {self._cursor.topic}: its position in partition {number} was "
                        f"changed in {TABLE} since it was read ({stored[number]}): another program uses the cursor "
                        "with this database, and this transaction is rolled back; have one of them"
                    )

    def _read(self) -> dict[int, int]:
        found = self._execute(
            f"SELECT {self.partition_column}, next_offset FROM {TABLE} "
            "WHERE topic_id = {} AND topic = {} AND name = {}",
            *self._cursor,
        )
        return dict(found.fetchall())

    @abstractmethod
    def _begin(self) -> None:
        """Begin a transaction, with the table there. Raises UsageError where that cannot be."""

    @abstractmethod
    def _check_not_ended(self) -> None:
        """Raises UsageError where the caller has ended the transaction, if that can be seen."""

    @abstractmethod
    def _commit(self) -> None: ...

    @abstractmethod
    def _rollback(self) -> None: ...

    @abstractmethod
    def _execute(self, statement: str, *values: str | int) -> Any:
        """Execute a statement that has {} for each of its values; returns what has the rows."""


class SqliteDatabase(CursorDatabase):
    """The database of a connection of sqlite3, in any of its transaction modes."""

    partition_column = "partition"

    def _begin(self) -> None:
        self._implicit = getattr(self._connection, "autocommit", None) is False  # from Python 3.12 on
        if not self._implicit:
            if self._connection.in_transaction:
                raise UsageError("a transaction is open on the connection: commit it first, or roll it back")
            self._execute("BEGIN IMMEDIATE")
        try:
            self._execute(
                f"CREATE TABLE IF NOT EXISTS {TABLE} (topic_id TEXT, topic TEXT, name TEXT, partition INTEGER,"
                " next_offset INTEGER, PRIMARY KEY (topic_id, topic, name, partition)) WITHOUT ROWID"
            )
            self._execute(f"SAVEPOINT {_SAVEPOINT}")
        except BaseException:
            self._rollback()
            raise

    def _check_not_ended(self) -> None:
        try:
            self._execute(f"RELEASE {_SAVEPOINT}")
        except self._connection.OperationalError as error:
            raise UsageError(
                "the transaction was ended inside of the `with` statement, by commit(), rollback() or executescript(): "
                "what was committed there has no position beside it, and its records are returned again; leave the end "
                "to the `with` statement"
            ) from error

    def _commit(self) -> None:
        if self._implicit:
            self._connection.commit()
        else:
            self._execute("COMMIT")  # commit() does nothing where `autocommit` is True

    def _rollback(self) -> None:
        if self._implicit:
            self._connection.rollback()
        elif self._connection.in_transaction:
            self._execute("ROLLBACK")

    def _execute(self, statement: str, *values: str | int) -> Any:
        return self._connection.execute(statement.format(*"?" * len(values)), values)


class DbApiDatabase(CursorDatabase):
    """The database of a connection of another driver, which begins a transaction with the first statement (PEP 249), or
    by its `begin`."""

    partition_column = "partition_number"  # "partition" is a reserved word in MySQL and Oracle

    def __init__(self, connection: Any, cursor: StoredCursor, paramstyle: str) -> None:
        super().__init__(connection, cursor)
        self._marker = _MARKERS[paramstyle]

    def _begin(self) -> None:
        if _commits_each_statement(self._connection):
            begin = getattr(self._connection, "begin", None)
            if begin is None:
                raise UsageError(
                    "the connection commits each statement by itself: set its `autocommit` to False, so that the "
                    "results and the position are in one transaction"
                )
            begin()
        try:
            self._execute(
                f"CREATE TABLE IF NOT EXISTS {TABLE} (topic_id VARCHAR(36), topic VARCHAR(249), name VARCHAR(249),"
                " partition_number INTEGER, next_offset BIGINT, PRIMARY KEY (topic_id, topic, name, partition_number))"
            )
        except BaseException:
            self._rollback()
            raise

    def _check_not_ended(self) -> None:
        """A transaction that has ended looks like one that has not begun."""

    def _commit(self) -> None:
        self._connection.commit()

    def _rollback(self) -> None:
        self._connection.rollback()

    def _execute(self, statement: str, *values: str | int) -> Any:
        markers = (self._marker.format(number) for number in range(1, len(values) + 1))
        by_name = self._marker.format(1).find("v1") >= 0
        given = {f"v{number}": value for number, value in enumerate(values, 1)} if by_name else values
        # A cursor of DuckDB has a transaction of its own.
        target = self._connection if hasattr(self._connection, "execute") else self._connection.cursor()
        result = target.execute(statement.format(*markers), given)
        return target if result is None or isinstance(result, int) else result


def database_of(connection: Any, cursor: StoredCursor) -> CursorDatabase:
    """The database of a caller's connection. Raises ArgumentTypeError for what is no such connection."""
    calls = [getattr(connection, name, None) for name in ("cursor", "commit", "rollback")]
    if not all(callable(call) for call in calls) or any(map(inspect.iscoroutinefunction, calls)):
        raise ArgumentTypeError(
            "connection is a sqlite3.Connection, or one of another driver as PEP 249 has it, not asynchronous, not "
            f"{type(connection).__name__}"
        )
    if _of_driver(type(connection), "sqlite_version") is not None:
        return SqliteDatabase(connection, cursor)
    paramstyle = _of_driver(type(connection), "paramstyle")
    if paramstyle is None or paramstyle not in _MARKERS:
        raise ArgumentTypeError(
            f"the driver of {type(connection).__module__}.{type(connection).__qualname__} has no `paramstyle`, as PEP "
            "249 wants it: give the connection of the driver itself"
        )
    return DbApiDatabase(connection, cursor, paramstyle)


def _of_driver(connection_type: type, name: str) -> str | None:
    """A text of the driver's module: the one that defines the class, or a package above."""
    for base in connection_type.__mro__:
        module = base.__module__
        while module:
            found = getattr(sys.modules.get(module), name, None)
            if isinstance(found, str):
                return found
            module = module.rpartition(".")[0]
    return None


def _commits_each_statement(connection: Any) -> bool:
    """Whether the driver has no transactions that begin by themselves, or has them switched off."""
    autocommit = getattr(connection, "autocommit", None)
    if callable(autocommit):  # in PyMySQL it sets the mode
        query: Callable[[], Any] | None = getattr(connection, "get_autocommit", None)
        autocommit = None if query is None else query()
    return bool(autocommit) or (autocommit is None and hasattr(connection, "begin"))
