"""A registry that is a file: several processes, kills, full disks and damage."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from kreplog.errors import CorruptSchemaFileError, DiskFullError, LogLockedError, StorageError
from kreplog.schemas import Reference, Schema, SchemaFile, SchemaVersion, schema_file
from tests.schemas.reader import as_who_may_only_read
from tests.waiting import InChild

A = Schema("AVRO", '"long"')
B = Schema("AVRO", '"string"', (Reference("shop.Money", "money", 3),))
C = Schema("PROTOBUF", "CgVvcmRlcg==")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.schemas"


def test_schemas_have_ids_and_subjects_have_versions(path: Path) -> None:
    file = SchemaFile(path)
    with pytest.raises(StorageError, match="cannot open"):
        file.schema(1)
    with pytest.raises(StorageError, match="cannot open"):
        file.version("s", 1)
    assert file.register("s", A) == (1, 1)
    assert file.register("s", B) == (2, 2)
    assert file.register("t", B) == SchemaVersion(id=2, version=1)
    assert file.register("t", C) == SchemaVersion(id=3, version=2)
    assert file.register("s", A) == (1, 1)
    assert len(path.read_bytes().splitlines()) == 4
    for reader in (file, SchemaFile(path)):
        assert [reader.schema(number) for number in range(5)] == [None, A, B, C, None]
        assert [reader.version("t", number) for number in range(4)] == [None, B, C, None]
        assert reader.version("u", 1) is None


def test_what_another_process_registers_is_found(path: Path) -> None:
    file = SchemaFile(path)
    assert file.register("s", A).id == 1
    assert InChild(lambda: SchemaFile(path).register("s", B)).result() == (2, 2)
    assert file.schema(2) == B
    assert file.register("s", C) == (3, 3)


def test_processes_and_threads_register_at_the_same_time(path: Path) -> None:
    schemas = [Schema("AVRO", str(number)) for number in range(40)]

    def register_all() -> dict[Schema, SchemaVersion]:
        file = SchemaFile(path)
        found: dict[Schema, SchemaVersion] = {}

        def register(part: list[Schema]) -> None:
            found.update({schema: file.register("s", schema) for schema in part})

        threads = [threading.Thread(target=register, args=(part,)) for part in (schemas, schemas[::-1])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found

    children = [InChild(register_all) for _ in range(4)]
    results = [child.result() for child in children]
    assert all(result == results[0] for result in results)
    assert sorted(results[0].values()) == [SchemaVersion(number, number) for number in range(1, 41)]
    assert len(path.read_bytes().splitlines()) == 40


def test_a_line_that_was_cut_short_is_removed(path: Path) -> None:
    SchemaFile(path).register("s", A)
    whole = path.read_bytes()
    SchemaFile(path).register("s", B)
    both = path.read_bytes()
    for end in range(len(whole), len(both)):
        path.write_bytes(both[:end])
        file = SchemaFile(path)
        assert file.schema(2) is None
        assert file.schema(1) == A
        assert file.register("s", B) == (2, 2)
        assert path.read_bytes() == both


def test_damage_of_any_byte_is_found(path: Path) -> None:
    file = SchemaFile(path)
    file.register("s", A)
    file.register("s", B)
    whole = path.read_bytes()
    for at, bit in itertools.product(range(len(whole)), range(8)):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 1 << bit,)) + whole[at + 1 :])
        try:
            assert SchemaFile(path).schema(2) is None, f"byte {at}"
        except CorruptSchemaFileError as error:
            assert error.path == str(path) and "put back the file" in str(error)
        with pytest.raises(CorruptSchemaFileError, match=r"line [12] is damaged"):
            SchemaFile(path).register("s", C)


def test_a_file_that_was_put_back_is_read_again(path: Path) -> None:
    file = SchemaFile(path)
    file.register("s", A)
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    SchemaFile(other).register("t", B)
    os.replace(other, path)
    assert file.schema(2) == B
    assert file.register("s", A) == (1, 1)
    assert file.register("s", C) == (3, 2)
    assert SchemaFile(path).schema(3) == C


@pytest.mark.parametrize("how", ["deleted", "made again", "replaced", "written over"])
def test_a_file_that_lacks_what_was_read_gives_no_number_twice(
    path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """By another process, under a writer that knows its schema's number."""
    monkeypatch.setattr(schema_file, "CHECK_INTERVAL_S", 0.0)
    file = SchemaFile(path)
    assert file.register("s", A) == (1, 1)
    whole = path.read_bytes()

    def act() -> None:
        if how in ("deleted", "made again"):
            path.unlink()
        if how == "made again":
            assert SchemaFile(path).register("s", B) == (1, 1)
        if how in ("replaced", "written over"):
            SchemaFile(path.with_name("other")).register("s", B)
            if how == "replaced":
                os.replace(path.with_name("other"), path)
            else:
                path.write_bytes(path.with_name("other").read_bytes())

    InChild(act).result()
    with pytest.raises(CorruptSchemaFileError, match="since this process read it: put it back") as caught:
        file.register("s", A)
    assert caught.value.path == str(path)
    for call in (
        lambda: file.register("s", C),
        lambda: file.find("s", C),
        lambda: file.schema(2),
        lambda: file.version("s", 2),
    ):
        with pytest.raises(CorruptSchemaFileError, match="since this process read it"):
            call()
    assert path.exists() == (how != "deleted")
    assert (file.schema(1), file.find("s", A)) == (A, (1, 1)), "what was read is known"
    path.write_bytes(whole)
    assert file.register("s", A) == (1, 1)
    assert file.register("s", C) == (2, 2)


def test_a_file_that_is_deleted_before_it_is_locked_is_not_made_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = SchemaFile(path)
    file.register("s", A)
    monkeypatch.setattr(file, "_found_durably", lambda *_: path.unlink())
    with pytest.raises(CorruptSchemaFileError, match="was deleted"):
        file.register("s", B)
    assert not path.exists()


def test_the_file_is_looked_at_now_and_then(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SchemaFile(path)
    file.register("s", A)
    path.unlink()
    monkeypatch.setattr(schema_file, "CHECK_INTERVAL_S", 1e9)
    assert file.register("s", A) == (1, 1)
    monkeypatch.setattr(schema_file, "CHECK_INTERVAL_S", 0.0)
    with pytest.raises(CorruptSchemaFileError, match="was deleted"):
        file.register("s", A)


def test_to_find_a_schema_changes_nothing(path: Path) -> None:
    file = SchemaFile(path)
    assert file.find("s", A) is None
    assert not list(path.parent.iterdir())
    SchemaFile(path).register("s", A)
    whole = path.read_bytes()
    assert (file.find("s", A), file.find("s", B), file.find("t", A)) == ((1, 1), None, None)
    assert (file.has_subject("s"), file.has_subject("t")) == (True, False)
    assert path.read_bytes() == whole


def test_what_is_registered_is_found_without_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    SchemaFile(path).register("s", A)

    def fail(*_: Any) -> None:
        raise AssertionError("it was locked")

    monkeypatch.setattr(fcntl, "flock", fail)
    assert SchemaFile(path).register("s", A) == (1, 1)
    assert SchemaFile(path).find("s", A) == (1, 1)


def test_a_line_that_others_may_have_read_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second fsync of it fails."""
    file = SchemaFile(path)
    file.register("s", A)
    failing: list[OSError | None] = [OSError(errno.EIO, "bad sector"), None, None, None]
    synced = os.fsync

    def fail(descriptor: int) -> None:
        synced(descriptor)
        if not os.path.isdir(f"/proc/self/fd/{descriptor}") and path.read_bytes().endswith(b"\n") and failing:
            error = failing.pop(0)
            if error is not None:
                raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="cannot sync"):
        file.register("s", B)
    assert SchemaFile(path).schema(2) == B
    assert file.register("s", C) == (3, 3)
    assert file.register("s", B) == (2, 2)


@pytest.mark.parametrize("end", [b"", b"\0"])
def test_a_line_without_an_end_is_nothing_to_readers_and_completed_by_the_next_writer(path: Path, end: bytes) -> None:
    SchemaFile(path).register("s", A)
    SchemaFile(path).register("s", B)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + end)
    file = SchemaFile(path)
    assert (file.schema(2), file.find("s", B)) == (None, None)
    assert file.register("t", C) == (3, 1), "number 2 may have been read by others before a loss of power"
    assert path.read_bytes().startswith(whole)
    assert file.schema(2) == B


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_full_disk_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    file = SchemaFile(path)
    file.register("s", A)
    before = path.read_bytes()
    written = os.pwrite

    def fail(*given: Any) -> int:
        if call == "pwrite":
            written(given[0], given[1][:5], given[2])
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(DiskFullError, match=r"orders\.schemas"):
            file.register("s", B)
    assert path.read_bytes() == before
    assert file.schema(2) is None
    assert file.register("s", C) == (2, 2)


def test_a_schema_that_was_found_is_made_durable_before_it_is_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who added it may have been killed before that."""
    SchemaFile(path).register("s", A)
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    SchemaFile(path).register("s", A)
    assert len(synced) == 2, "the file and its directory"


def test_writes_that_are_cut_short_go_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: written(file, data[:3], at))
    assert SchemaFile(path).register("s", A) == (1, 1)
    assert SchemaFile(path).schema(1) == A


def test_a_stopped_process_that_has_the_lock_is_reported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_file, "LOCK_TIMEOUT_S", 0.05)
    SchemaFile(path).register("s", A)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(LogLockedError, match="locked by another process"):
            SchemaFile(path).register("s", B)
        assert SchemaFile(path).schema(1) == A, "readers take no lock"
    assert SchemaFile(path).register("s", B) == (2, 2)


def test_a_child_that_was_forked_meanwhile_leaves_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SchemaFile(path)
    synced = os.fsync
    children: list[int] = []

    def fork_and_sync(descriptor: int) -> None:
        if not children:
            child = os.fork()
            if child == 0:
                signal.pause()
                os._exit(0)
            children.append(child)
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", fork_and_sync)
    monkeypatch.setattr(schema_file, "LOCK_TIMEOUT_S", 0.05)
    try:
        file.register("s", A)
        assert file.register("s", B) == (2, 2)
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)


def test_a_child_does_not_wait_for_a_thread_of_its_parent(path: Path) -> None:
    file = SchemaFile(path)
    with file._mutex:
        child = InChild(lambda: file.register("s", A))
        assert child.result() == (1, 1)


def test_who_may_not_write_or_read(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no-folder"):
        SchemaFile(tmp_path / "no-folder" / "s").register("s", A)
    with pytest.raises(StorageError, match="cannot"):
        SchemaFile(tmp_path).schema(1)


@pytest.mark.skipif(os.geteuid() == 0 and not sys.platform.startswith("linux"), reason="root may write anywhere")
def test_a_user_who_may_only_read_finds_schemas_and_registers_none(path: Path) -> None:
    SchemaFile(path).register("s", A)

    def call() -> str:
        file = SchemaFile(path)
        with pytest.raises(StorageError) as caught:
            file.register("s", B)
        assert file.schema(1) == A
        assert file.find("s", A) == file.register("s", A) == (1, 1)
        return str(caught.value)

    assert "cannot open" in as_who_may_only_read(path, call)


def test_what_was_cut_short_leaves_nothing_behind_a_shorter_line(path: Path) -> None:
    SchemaFile(path).register("s", A)
    whole = path.read_bytes()
    path.write_bytes(whole + b"0123abcd " + b"x" * 1000)
    SchemaFile(path).register("s", C)
    assert path.read_bytes().startswith(whole) and len(path.read_bytes()) < 500
    assert SchemaFile(path).version("s", 2) == C


def test_a_file_that_is_replaced_before_it_is_locked_is_not_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = fcntl.flock

    def replace_and_lock(file: int, operation: int) -> None:
        patch.undo()
        path.unlink()
        locked(file, operation)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", replace_and_lock)
        SchemaFile(path).register("s", A)
    assert SchemaFile(path).schema(1) == A
