"""Cursors whose position is in the caller's database, by sqlite3 and by other drivers of PEP 249."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pytest

from kreplog import Topic, errors
from tests.faults.forked import ends_by


@pytest.fixture
def database(tmp_path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(tmp_path / "results.db")
    connection.execute("CREATE TABLE results (value TEXT)")
    return connection


def values(database: sqlite3.Connection) -> list[str]:
    return [value for (value,) in database.execute("SELECT value FROM results")]


class TestTransaction:
    def test_results_and_place_are_committed_together(self, topic: Topic, database: sqlite3.Connection) -> None:
        with topic.cursor("a") as cursor:
            with cursor.transaction(database):
                database.executemany("INSERT INTO results VALUES (?)", [(r.value.decode(),) for r in cursor])
            assert not database.in_transaction and cursor.lag() == {0: 0, 1: 0}
        topic.append(b"new", partition=0)
        with topic.cursor("a") as cursor, cursor.transaction(database):
            assert [record.value for record in cursor] == [b"new"], "the place is that of the database"
        assert sorted(values(database)) == [str(number) for number in range(10)]

    def test_an_error_rolls_both_back(self, topic: Topic, database: sqlite3.Connection) -> None:
        with topic.cursor("a") as cursor:
            with pytest.raises(ZeroDivisionError), cursor.transaction(database):
                for record in cursor:
                    database.execute("INSERT INTO results VALUES (?)", (record.value.decode(),))
                    if record.offset == 3:
                        raise ZeroDivisionError
            assert cursor.positions == {0: 0, 1: 0} and values(database) == []

    def test_a_killed_process_has_done_nothing_or_all(self, path: Path, tmp_path: Path) -> None:
        def work(die: bool) -> None:
            database = sqlite3.connect(tmp_path / "results.db")
            database.execute("CREATE TABLE IF NOT EXISTS results (value TEXT)")
            with Topic.open(path, read_only=True) as reader, reader.cursor("a") as cursor:
                while any(cursor.lag().values()):
                    with cursor.transaction(database):
                        for record in cursor:
                            database.execute("INSERT INTO results VALUES (?)", (record.value.decode(),))
                            if record.offset == 2:
                                break
                        if die:
                            os.kill(os.getpid(), 9)
                    die = True

        with Topic.open(path, 1) as topic:
            for number in range(10):
                topic.append(b"%d" % number)
            assert ends_by(lambda: work(True))[0] == -9
            assert ends_by(lambda: work(False))[0] in (0, -9)
        database = sqlite3.connect(tmp_path / "results.db")
        assert values(database) == ["0", "1", "2"]
        with Topic.open(path, read_only=True) as reader, reader.cursor("a") as cursor, cursor.transaction(database):
            assert cursor.positions == {0: 3}

    def test_what_is_no_free_connection(self, topic: Topic, database: sqlite3.Connection) -> None:
        with topic.cursor("a") as cursor:
            database.execute("INSERT INTO results VALUES ('x')")
            with pytest.raises(errors.UsageError, match="open on the connection"), cursor.transaction(database):
                pass


class _NewConnection(sqlite3.Connection):
    """With the `autocommit` of Python 3.12: where it is True, commit and rollback do nothing; where it is False, a
    transaction is always open."""

    autocommit: bool = True

    def commit(self) -> None:
        if not self.autocommit:
            super().commit()
            self.execute("BEGIN")

    def rollback(self) -> None:
        if not self.autocommit:
            super().rollback()
            self.execute("BEGIN")


class TestEndInside:
    """A transaction that the caller has ended would leave results without a position."""

    @pytest.mark.parametrize(
        "end",
        [
            sqlite3.Connection.commit,
            sqlite3.Connection.rollback,
            lambda database: database.executescript("CREATE TABLE other (value TEXT)"),
        ],
    )
    def test_is_refused(self, topic: Topic, database: sqlite3.Connection, end: Callable[[Any], object]) -> None:
        with topic.cursor("a") as cursor:
            with pytest.raises(errors.UsageError, match="ended inside"), cursor.transaction(database):
                list(cursor)
                end(database)
                database.execute("INSERT INTO results VALUES ('after')")
            assert not database.in_transaction and cursor.positions == {0: 0, 1: 0}
            assert values(database) == []
            with cursor.transaction(database):
                assert len(list(cursor)) == 10

    def test_the_callers_own_savepoints_are_not(self, topic: Topic, database: sqlite3.Connection) -> None:
        with topic.cursor("a") as cursor, cursor.transaction(database):
            database.execute("SAVEPOINT own")
            database.execute("INSERT INTO results VALUES ('x')")
            database.execute("ROLLBACK TO own")
        assert values(database) == []


class TestTransactionModes:
    @pytest.mark.parametrize("autocommit", [True, False])
    def test_of_newer_pythons(self, topic: Topic, tmp_path: Path, autocommit: bool) -> None:
        database = sqlite3.connect(tmp_path / "new.db", factory=_NewConnection, isolation_level=None)
        database.execute("CREATE TABLE results (value TEXT)")
        database.autocommit = autocommit
        if not autocommit:
            database.execute("BEGIN")
        with topic.cursor("a") as cursor:
            with pytest.raises(ZeroDivisionError), cursor.transaction(database):
                database.execute("INSERT INTO results VALUES (?)", (next(iter(cursor)).value,))
                raise ZeroDivisionError
            with cursor.transaction(database):
                database.executemany("INSERT INTO results VALUES (?)", [(record.value,) for record in cursor])
        database.close()
        opened_again = sqlite3.connect(tmp_path / "new.db")
        assert len(values(opened_again)) == 10
        with topic.cursor("a") as cursor, cursor.transaction(opened_again):
            assert cursor.positions == {0: 5, 1: 5}

    def test_without_implicit_transactions(self, topic: Topic, tmp_path: Path) -> None:
        database = sqlite3.connect(tmp_path / "none.db", isolation_level=None)
        with topic.cursor("a") as cursor:
            with cursor.transaction(database):
                list(cursor)
            assert not database.in_transaction
            with cursor.transaction(database):
                assert list(cursor) == []


class _Driver:
    """A connection as PEP 249 has it and no more, over sqlite3: it begins a transaction with the first statement."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self.autocommit = False

    def cursor(self) -> _DriverCursor:
        return _DriverCursor(self._database, sys.modules[type(self).__module__].paramstyle)

    def commit(self) -> None:
        self._database.execute("COMMIT")

    def rollback(self) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK")


class _DriverCursor:
    def __init__(self, database: sqlite3.Connection, paramstyle: str) -> None:
        self._database = database
        self._paramstyle = paramstyle
        self._found = database.cursor()
        self.rowcount = -1

    def execute(self, statement: str, values: Any = ()) -> None:
        if not self._database.in_transaction:
            self._database.execute("BEGIN")
        for marker in () if self._paramstyle in ("qmark", "numeric", "named") else values or ():
            sought, put = ("%s", "?") if self._paramstyle == "format" else (f"%({marker})s", f":{marker}")
            assert sought in statement
            statement = statement.replace(sought, put, 1)
        if self._paramstyle == "numeric":
            statement = statement.replace(":", "?")
        self._found.execute(statement, values)
        self.rowcount = self._found.rowcount

    def fetchall(self) -> list[Any]:
        return self._found.fetchall()


@pytest.fixture(params=["qmark", "numeric", "named", "format", "pyformat"])
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> type[_Driver]:
    package, module = ModuleType("driver"), ModuleType("driver.connections")
    vars(package)["paramstyle"] = vars(module)["paramstyle"] = request.param
    monkeypatch.setitem(sys.modules, "driver", package)
    monkeypatch.setitem(sys.modules, "driver.connections", module)
    return type("Connection", (_Driver,), {"__module__": "driver.connections"})


class TestOtherDrivers:
    def test_of_each_paramstyle(self, topic: Topic, tmp_path: Path, driver: type[_Driver]) -> None:
        database = driver(tmp_path / "results.db")
        with topic.cursor("a") as cursor:
            with pytest.raises(ZeroDivisionError), cursor.transaction(database):
                list(cursor)
                raise ZeroDivisionError
            assert cursor.positions == {0: 0, 1: 0}
            for stop in (1, 2):
                with cursor.transaction(database):
                    assert next(iter(cursor)).offset == stop - 1
            assert cursor.committed == {0: 2, 1: 0}
        with topic.cursor("a") as cursor, cursor.transaction(driver(tmp_path / "results.db")):
            assert len(list(cursor)) == 8

    def test_duckdb(self, topic: Topic, tmp_path: Path) -> None:
        with duckdb.connect(tmp_path / "results.duckdb") as database:
            database.execute("CREATE TABLE results (value INTEGER)")
            with topic.cursor("a") as cursor:
                with cursor.transaction(database):
                    for record in cursor:
                        database.execute("INSERT INTO results VALUES (?)", (int(record.value),))
                topic.append(b"100", partition=1)
                with pytest.raises(ZeroDivisionError), cursor.transaction(database):
                    for record in cursor:
                        database.execute("INSERT INTO results VALUES (?)", (int(record.value),))
                    raise ZeroDivisionError
        with duckdb.connect(tmp_path / "results.duckdb") as database:
            assert database.execute("SELECT sum(value) FROM results").fetchall() == [(45,)]
            with topic.cursor("a") as cursor, cursor.transaction(database):
                assert [record.value for record in cursor] == [b"100"]

    def test_rows_that_another_program_has_changed(self, topic: Topic, tmp_path: Path, driver: type[_Driver]) -> None:
        database = driver(tmp_path / "results.db")
        with topic.cursor("a") as cursor:
            with cursor.transaction(database):
                list(cursor)
            topic.append(b"new", partition=0)
            with pytest.raises(errors.CursorFencedError, match=r"partition 0 .*\(5\)"), cursor.transaction(database):
                list(cursor)
                database._database.execute("UPDATE kreplog_cursors SET next_offset = 2 WHERE partition_number = 0")
            assert cursor.positions == {0: 5, 1: 5}

    def test_one_that_commits_each_statement(self, topic: Topic, tmp_path: Path, driver: type[_Driver]) -> None:
        database = driver(tmp_path / "results.db")
        database.autocommit = True
        with (
            topic.cursor("a") as cursor,
            pytest.raises(errors.UsageError, match="autocommit"),
            cursor.transaction(database),
        ):
            pass

    def test_what_is_no_connection(self, topic: Topic, tmp_path: Path) -> None:
        class Asynchronous:
            async def cursor(self) -> None: ...
            async def commit(self) -> None: ...
            async def rollback(self) -> None: ...

        foreign: list[Any] = ["results.db", None, Asynchronous(), _Driver(tmp_path / "x.db")]
        with topic.cursor("a") as cursor:
            for given in foreign:  # the last is of a module without a paramstyle
                with pytest.raises(errors.ArgumentTypeError), cursor.transaction(given):
                    pass
            assert len(list(cursor)) == 10
