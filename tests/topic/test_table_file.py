"""Tables in an LMDB file, beside a plain dict of what the log holds. Kills: tests/faults/test_table_file.py."""

from __future__ import annotations

import errno
import itertools
import logging
import multiprocessing
import os
import random
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplog import LogConfig, Table, Topic, errors
from kreplog._native.batch import build
from kreplog._native.crc32c import crc32c
from kreplog.topic import lmdb_layout, lmdb_reader
from tests.faults.forked import ends_by, result_of
from tests.topic.compacting import remove_tombstones
from tests.topic.test_table import newest
from tests.waiting import until

lmdb = pytest.importorskip("lmdb")
lmdb_store = pytest.importorskip("kreplog.topic.lmdb_store")

LONG = b"l" * 478
KEYS = [b"", b"a", b"ab", b"b", LONG, LONG + b"l" * 31, LONG + b"l" * 32, LONG + b"m" * 40, LONG + b"l" * 900]
COMPACTED = LogConfig(cleanup_policy="compact", segment_bytes=1000, delete_retention_ms=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "prices"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "prices.table"


@pytest.fixture
def topic(path: Path) -> Iterator[Topic]:
    with Topic.open(path, 2) as opened:
        yield opened


@pytest.fixture
def filled(topic: Topic, file: Path) -> Path:
    """Of ten records in each partition, of which two keys are left in each."""
    for number in range(20):
        topic.append(b"%d" % number, b"k%d" % (number % 4), partition=number % 2)
    topic.table(path=file).close()
    return file


def check(table: Table, topic: Topic) -> None:
    expected = newest(topic)
    assert list(table.items()) == sorted(expected.items()) and len(table) == len(expected)
    assert {key: table[key] for key in expected} == expected
    assert all((key in table) == (key in expected) for key in KEYS)
    for prefix in (b"a", LONG, LONG + b"l" * 31):
        assert list(table.prefix(prefix)) == sorted(item for item in expected.items() if item[0].startswith(prefix))


def reads(topic: Topic, partition: int) -> None:
    """From now, whoever reads the partition from its start fails."""
    with (Path(topic.log(partition).path) / ("0" * 20 + ".log")).open("r+b") as segment:
        segment.seek(70)
        segment.write(b"\xff\xff")


STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(0, 1), st.sampled_from(KEYS), st.none() | st.binary(max_size=200)),
    st.tuples(st.sampled_from(["roll", "refresh", "reopen", "compact"]), st.integers(0, 1)),
    st.tuples(st.sampled_from(["truncate", "delete"]), st.integers(0, 1), st.floats(0, 1)),
)


@settings(max_examples=30)
@given(steps=st.lists(STEPS, max_size=40), compacts=st.booleans(), draw=st.randoms(use_true_random=False))
def test_a_table_in_a_file_has_what_a_dict_of_the_log_has(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], compacts: bool, draw: random.Random
) -> None:
    folder = tmp_path_factory.mktemp("table")
    clock = itertools.count(1000)
    with Topic.open(folder / "prices", 2, config=COMPACTED if compacts else LogConfig()) as topic:
        table = topic.table(path=folder / "table")
        for verb, partition, *rest in steps:
            log = topic.log(partition)
            if verb == "append":
                topic.append(rest[1], rest[0], timestamp_ms=next(clock) - draw.randrange(3), partition=partition)
            elif verb == "roll":
                log.roll()
            elif verb == "refresh":
                table.refresh()
                check(table, topic)
            elif verb == "reopen":
                table.close()
                table = topic.table(path=folder / "table")
                check(table, topic)
            elif verb == "compact":
                if compacts:
                    log.compact(force=True)
            else:
                span = log.log_end_offset - log.log_start_offset
                (log.truncate_to if verb == "truncate" else log.delete_records_before)(
                    log.log_start_offset + int(rest[0] * span)
                )
        table.refresh()
        check(table, topic)
        table.close()


def test_keys_of_any_length_are_in_order(topic: Topic, file: Path) -> None:
    """Also those whose first bytes alone LMDB has, which are the same here."""
    keys = [*KEYS, *(LONG + b"%02d" % number + bytes(500) for number in range(30))]
    topic.append_many([b"%d" % number for number in range(len(keys))], keys)
    with topic.table(path=file) as table:
        check(table, topic)
        assert len(table) == len(keys)


def test_only_what_comes_after_the_place_is_read(topic: Topic, filled: Path) -> None:
    topic.append(b"new", b"k0", partition=0)
    topic.append(None, b"k1", partition=1)
    topic.add_partitions(3)
    topic.append(b"added", b"other", partition=2)
    expected = {b"k0": b"new", b"k2": b"18", b"k3": b"19", b"other": b"added"}
    reads(topic, 0)
    reads(topic, 1)
    with topic.table(path=filled) as table:
        assert dict(table.items()) == expected and len(table) == 4 and table.offsets == {0: 11, 1: 11, 2: 1}
        entry = table.entry(b"k2")
        assert entry is not None and (entry.partition, entry.offset, entry.value) == (0, 9, b"18")
        assert table.nbytes % 4096 == 0 < table.nbytes
        assert table.wait_for(topic.append(b"newer", b"k0", partition=0)) and table[b"k0"] == b"newer"
        with pytest.raises(errors.ArgumentTypeError, match="a key is bytes-like, not int"):
            table.get(5)


def test_a_load_in_pieces_and_a_damaged_batch(topic: Topic, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece ends within a batch; what comes before the damage is applied, and the next call tries again."""
    monkeypatch.setattr(lmdb_reader, "PIECE_BYTES", 3000)
    draw = random.Random(7)
    keys = [b"%d" % draw.randrange(300) for _ in range(2000)]
    topic.append_many([draw.choice([None, draw.randbytes(20)]) for _ in keys], keys)
    with topic.table(path=file) as table:
        check(table, topic)
        first = topic.append(b"1", b"first", partition=0)
        topic.append(b"value 2", b"second", partition=0)
        segment = Path(topic.log(0).path) / ("0" * 20 + ".log")
        sound = segment.read_bytes()
        with segment.open("r+b") as damaged:
            damaged.seek(sound.rindex(b"value 2"))
            damaged.write(b"w")
        for _ in range(2):
            with pytest.raises(errors.CorruptBatchError):
                table.refresh()
            assert table[b"first"] == b"1" and table.offsets[0] == first.offset + 1
        with segment.open("r+b") as damaged:
            damaged.seek(sound.rindex(b"value 2"))
            damaged.write(b"v")
        table.refresh()
        check(table, topic)


def test_transactions_count_once_they_are_committed(topic: Topic, file: Path) -> None:
    log = topic.log(0)
    topic.append(b"before", b"k", partition=0)
    with topic.table(path=file, follow=True) as table:
        for sequence, committed in enumerate((False, True)):
            batch = build([b"in"], [b"k"], producer_id=7, producer_epoch=3, base_sequence=sequence, transactional=True)
            first = log.append_batches(batch, transactional=True).first_offset
            assert not table.wait_for((0, first), timeout=0) and table[b"k"] == b"before"
            log.append_transaction_marker(7, 3, committed=committed, coordinator_epoch=1)
            assert table.wait_for((0, first))
            assert table[b"k"] == (b"in" if committed else b"before")


def test_a_partition_that_was_truncated_since_is_read_again(topic: Topic, filled: Path) -> None:
    topic.log(0).truncate_to(5)
    for _ in range(5):
        topic.append(b"again", b"k2", partition=0)
    reads(topic, 1)
    with topic.table(path=filled) as table:
        assert table[b"k2"] == b"again" and table[b"k0"] == b"8", "the other is as in the file"
        topic.log(0).truncate_to(0)
        table.refresh()
        assert sorted(table) == [b"k1", b"k3"]


@pytest.mark.parametrize("applied", ["all", "half"])
def test_a_tombstone_that_compaction_has_removed_unseen(
    path: Path, file: Path, applied: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batch that was applied stays as it was: it does not show that the log was compacted."""
    with Topic.open(path, 1, config=COMPACTED) as topic:
        topic.append(b"v", b"deleted")
        topic.append(b"v", b"stays")
        if applied == "half":  # a first load that is killed
            topic.append(b"v", b"not read")
            monkeypatch.setattr(lmdb_reader, "PIECE_BYTES", 150)
            with monkeypatch.context() as patch:
                patch.setattr(lmdb_store.LmdbStore, "apply", broken_at(2, lmdb_store.LmdbStore.apply))
                with pytest.raises(KeyboardInterrupt):
                    topic.table(path=file)
        else:
            topic.table(path=file).close()
        topic.append(None, b"deleted")
        remove_tombstones(topic)
        assert newest(topic) == {record.key: record.value for record in topic.read()}, "the tombstone is gone"
        with topic.table(path=file) as table:
            assert dict(table.items()) == newest(topic)


def test_a_first_load_goes_on_after_a_compaction(
    path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Within delete_retention_ms no tombstone goes that it needs."""
    caplog.set_level(logging.INFO, "kreplog")
    with Topic.open(path, 1, config=replace(COMPACTED, delete_retention_ms=10**9)) as topic:
        for number in range(100):
            key = b"%03d" % (number if number % 2 == 0 else number % 10)  # the first piece ends with a key that stays
            topic.append(None if number == 61 else b"%02d" % number, key)
        monkeypatch.setattr(lmdb_reader, "PIECE_BYTES", 3000)
        with monkeypatch.context() as patch:
            patch.setattr(lmdb_store.LmdbStore, "apply", broken_at(2, lmdb_store.LmdbStore.apply))
            with pytest.raises(KeyboardInterrupt):
                topic.table(path=file)
        assert topic.log(0).compact(force=True)
        with topic.table(path=file) as table:
            check(table, topic)
    assert "read again" not in caplog.text


def broken_at(count: int, apply: Any) -> Any:
    calls = itertools.count(1)

    def broken(*arguments: Any) -> Any:
        if next(calls) == count:
            raise KeyboardInterrupt
        return apply(*arguments)

    return broken


def test_beside_compaction_nothing_is_read_again(path: Path, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a table at the end of the log, and of one that is closed meanwhile."""
    caplog.set_level(logging.INFO, "kreplog")
    with Topic.open(path, 1, config=COMPACTED) as topic:
        table = topic.table(path=file)
        for number in range(300):
            topic.append(None if number % 5 == 0 else b"%d" % number, b"k%d" % (number % 7))
            if number % 100 == 50:
                topic.append(b"stays", b"last %d" % number)
                table.refresh()
                if number == 150:
                    table.close()
                for unread in range(20):
                    topic.append(b"unread", b"u%d-%d" % (number, unread))
                assert topic.log(0).compact(force=True)
                if number == 150:
                    table = topic.table(path=file)
                table.refresh()
                check(table, topic)
        table.close()
    assert "read again" not in caplog.text


def test_a_file_of_another_topic_is_replaced(
    topic: Topic, filled: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic.close()
    shutil.rmtree(path.parent)
    with Topic.open(path, 2) as other:
        other.append(b"1", b"other")
        with other.table(path=filled) as table:
            assert dict(table.items()) == {b"other": b"1"}
    assert "kreplog-1.table is not used, it is of the topic id" in caplog.text
    assert sorted(entry.name for entry in filled.iterdir()) == ["kreplog-2.table", "kreplog-2.table-lock"]


def test_files_of_other_programs_stay(topic: Topic, file: Path) -> None:
    file.mkdir()
    names = ["2024.mdb", "7.table", "kreplog-07.table", "kreplog-0.table", "kreplog-x.table", "kreplog-9.table.old"]
    for name in names:
        (file / name).write_text(name)
    topic.table(path=file).close()
    assert {entry.name for entry in file.iterdir()} == {*names, "kreplog-1.table", "kreplog-1.table-lock"}
    assert all((file / name).read_text() == name for name in names)


def test_a_log_by_itself_and_its_topic_do_not_mix(topic: Topic, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each takes a file of another for one of another topic."""
    for number in range(4):
        topic.append(b"%d" % number, b"k%d" % number, partition=number % 2)
    for number in (0, 1, 0):
        with Table.of(topic.log(number), path=file) as table:
            assert sorted(table) == [b"k%d" % number, b"k%d" % (number + 2)]
        with topic.table(path=file) as table:
            check(table, topic)
    with Table.of(topic.log(0), path=file), Table.of(topic.log(1), path=file.parent / "1"):
        pass
    Table.of(topic.log(1), path=file).close()
    assert f"is of the topic id {topic._folder.topic_id}-0, not {topic._folder.topic_id}-1" in caplog.text
    assert f"is of the topic id {topic._folder.topic_id}, not {topic._folder.topic_id}-0" in caplog.text


@pytest.mark.parametrize("piece", [1, 4096])
def test_a_partition_that_was_moved_away(
    path: Path, filled: Path, topic: Topic, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its keys are not in the table, until it is there again."""
    monkeypatch.setattr(lmdb_store, "PIECE", piece)
    expected = newest(topic)
    topic.close()
    away = Path(f"{path}-1")
    away.rename(path.parent.parent / "away")
    with Topic.open(path, read_only=True) as reader, reader.table(path=filled) as table:
        assert sorted(table) == [b"k0", b"k2"] and table.offsets == {0: 10}
    (path.parent.parent / "away").rename(away)
    with Topic.open(path, read_only=True) as reader, reader.table(path=filled) as table:
        assert dict(table.items()) == expected


def test_what_is_removed_is_below_one_bound(topic: Topic, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may move the bound between two transactions: the removal begins again."""
    monkeypatch.setattr(lmdb_store, "PIECE", 1)
    with topic.table(path=filled) as table:
        store: Any = table._entries
        place = store.place(0)._replace(remove_below=1)
        store.apply(0, store.place(0), {}, place)
        remove_some = store._remove_some
        bounds = iter([lmdb_layout.EVERYTHING])

        def interleaved(*arguments: Any) -> Any:
            start, txn = remove_some(*arguments), arguments[-1]
            for bound in bounds:
                moved = lmdb_layout.encode_place(0, place._replace(remove_below=bound))
                txn.put(lmdb_layout.place_key(0), moved, db=store._places)
            return start

        monkeypatch.setattr(store, "_remove_some", interleaved)
        store.remove_due(0)
        assert store.place(0).remove_below == lmdb_layout.EVERYTHING
        store.remove_due(0)
        assert sorted(table) == [b"k1", b"k3"] and store.place(0).remove_below == 0


def test_a_partition_that_was_deleted_and_created_again(path: Path, file: Path) -> None:
    """It has the topic id of the others, and here a last batch that looks the same."""
    for first in (b"before", b"after"):
        with Topic.open(path, 2) as topic:
            topic.append(first, b"first", partition=0)
            topic.append(b"last", b"last", partition=0, timestamp_ms=1000)
            with topic.table(path=file) as table:
                assert table[b"first"] == first
        if first == b"before":
            shutil.copy(f"{path}-0/partition.metadata", path.parent / "metadata")
            shutil.rmtree(f"{path}-0")
            with Topic.open(path.parent / "other" / "prices", 1):
                pass
            shutil.move(path.parent / "other" / "prices-0", f"{path}-0")
            shutil.move(path.parent / "metadata", f"{path}-0/partition.metadata")


def test_the_map_grows(topic: Topic, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An iteration that is open then is ended; all else goes on."""
    monkeypatch.setattr(lmdb_store, "MAP_BYTES", 1 << 16)
    topic.append_many([bytes(500)] * 100, [b"%d" % number for number in range(100)])
    with topic.table(path=file) as table:
        assert len(table) == 100
        items = iter(table.items())
        next(items)
        topic.append_many([bytes(500)] * 3000, [b"%d" % number for number in range(3000)])
        table.refresh()
        assert len(table) == 3000
        monkeypatch.setattr(lmdb_store, "PIECE", 10)
        items = iter(table.items())
        next(items)
        topic.append_many([bytes(5000)] * 3000, [b"%d" % number for number in range(3000)])
        table.refresh()
        with pytest.raises(errors.StorageError, match="had to grow: iterate again"):
            list(items)
        check(table, topic)


def test_an_iteration_is_of_one_moment(topic: Topic, filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_store, "PIECE", 1)
    with topic.table(path=filled) as table:
        before = dict(table.items())
        items = iter(table.items())
        next(items)
        topic.append(None, b"k3", partition=1)
        topic.append(b"new", b"k2", partition=0)
        table.refresh()
        assert dict(items) == {key: value for key, value in before.items() if key != b"k0"}
        assert dict(table.items()) == newest(topic)
        items = iter(table.items())
        next(items)
        table.close()
        with pytest.raises((errors.StorageError, errors.LogClosedError)):
            list(items)


def test_the_disk_is_full(topic: Topic, file: Path) -> None:
    """RLIMIT_FSIZE stands for it."""
    topic.append_many([bytes(1000)] * 3000, [b"%d" % number for number in range(3000)])

    def body() -> tuple[str, str, int]:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, hard))
        with Topic.open(topic.path, read_only=True) as reader:
            try:
                reader.table(path=file)
            except errors.StorageError as error:
                resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
                with reader.table(path=file) as table:
                    return str(error), str(error.path), len(table)
        return "", "", 0

    message, named, entries = result_of(body)
    assert str(file) in message and "may be deleted" in message and named == str(file) and entries == 3000


def test_a_disk_without_room_is_full(topic: Topic, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB's lock file has its blocks before it is mapped; a short write, for LMDB an I/O error, is of a full disk."""

    def full(*_arguments: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(errors.DiskFullError) as raised:
            topic.table(path=file)
        assert raised.value.path == str(file)
    with topic.table(path=file) as table:
        lock = (file / "kreplog-1.table-lock").stat()
        assert 512 * lock.st_blocks >= lock.st_size >= 64 * lmdb_store.MAX_READERS
        store: Any = table._entries
        error = lmdb.DiskError("mdb_txn_commit: Input/output error")
        for available, kind in ((0, errors.DiskFullError), (1 << 20, errors.StorageError)):
            monkeypatch.setattr(os, "statvfs", lambda _, room=available: SimpleNamespace(f_bavail=room, f_frsize=4096))
            assert type(store._error("cannot use the table", error)) is kind


def items_of(path: str, file: Path) -> dict[bytes, bytes]:
    with Topic.open(path, read_only=True) as reader, reader.table(path=file) as table:
        return dict(table.items())


def take_over(path: Path, file: Path) -> int:
    with Topic.open(path, 1) as other, other.table(path=file) as table:
        return len(table)


def test_processes_share_a_file(topic: Topic, filled: Path) -> None:
    """Each applies what it finds, and the others see it, also when one replaces the file."""
    topic.append(b"new", b"k0", partition=0)
    with (
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,  # LMDB opens a file once in a process
        topic.table(path=filled) as table,
    ):
        assert pool.submit(items_of, topic.path, filled).result() == dict(table.items()) == newest(topic)
        topic.append(b"newer", b"k0", partition=0)
        assert pool.submit(items_of, topic.path, filled).result() == newest(topic)
        assert table[b"k0"] == b"newer", "before a refresh: the file has it"
        (filled / "kreplog-2.table").write_bytes(b"no LMDB file" * 1000)  # as if another process had replaced it
        topic.append(b"newest", b"k0", partition=0)
        assert pool.submit(items_of, topic.path, filled).result() == newest(topic)
        assert sorted(entry.name for entry in filled.iterdir()) == ["kreplog-3.table", "kreplog-3.table-lock"]
        table.refresh()
        assert dict(table.items()) == newest(topic)
        assert pool.submit(take_over, Path(topic.path).parent / "other", filled).result() == 0
        with pytest.raises(errors.StorageError, match="is used by another topic by now"):
            table.refresh()


def test_what_cannot_be_opened(topic: Topic, filled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with topic.table(path=filled) as table:
        with pytest.raises(errors.UsageError, match="is open as a table in this process already"):
            topic.table(path=filled)
        with pytest.raises(errors.UsageError, match="no snapshot"):
            table.save()
    wrong: dict[str, Any]
    for wrong in ({"at": 0}, {"snapshot": "snapshot"}):
        with pytest.raises(errors.UsageError, match="leave out `path`"):
            topic.table(path=filled, **wrong)
    number: Any = 5
    with pytest.raises(errors.ArgumentTypeError, match="path is a str"):
        topic.table(path=number)
    (tmp_path / "a file").touch()
    with pytest.raises(errors.StorageError, match="a file"):
        topic.table(path=tmp_path / "a file")
    reads(topic, 0)
    with pytest.raises(errors.CorruptBatchError):
        topic.table(path=tmp_path / "other")
    monkeypatch.delitem(sys.modules, "kreplog.topic.lmdb_store")
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(errors.UsageError, match=r"pip install 'kreplog\[tables\]'"):
        topic.table(path=filled)


def test_the_end_of_a_table(topic: Topic, filled: Path) -> None:
    table = topic.table(path=filled)

    def in_a_child() -> str:
        try:
            return str(table[b"k0"])
        except errors.LogClosedError as error:
            return str(error)

    assert "is closed" in result_of(in_a_child)
    assert table[b"k0"] == b"16"
    table.close()
    for call in (lambda: table[b"k0"], lambda: len(table), table.refresh, lambda: list(table)):
        with pytest.raises(errors.LogClosedError, match=r"table of .*prices is closed"):
            call()
    left = topic.table(path=filled)
    del left
    until(lambda: not lmdb_store._open_folders)
    topic.table(path=filled).close()


# Damage


def put(file: Path, database: bytes, key: bytes, change: Any) -> None:
    with lmdb.open(str(file / "kreplog-1.table"), subdir=False, max_dbs=2) as env, env.begin(write=True) as txn:
        of = env.open_db(database, txn)
        value = change(txn.get(key, db=of))
        if value is None:
            txn.delete(key, db=of)
        else:
            txn.put(key, value, db=of)


@pytest.mark.parametrize("look", ["get", "items", "refresh"])
def test_a_value_that_was_changed_is_not_returned(
    topic: Topic, filled: Path, look: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The LMDB file is whole; the checksum of the entry is not that of its bytes."""
    with topic.table(path=filled) as table:
        sound = (filled / "kreplog-1.table").read_bytes()
        expected = newest(topic)
        with (filled / "kreplog-1.table").open("r+b") as damaged:
            for at in (at for at in range(len(sound)) if sound[at : at + 2] == b"16"):
                damaged.seek(at)
                damaged.write(b"61")
        if look == "get":
            assert table[b"k0"] == b"16"
        elif look == "items":
            with pytest.raises(errors.StorageError, match="iterate again"):
                dict(table.items())
        else:
            topic.append(b"new", b"k0", partition=0)
            expected = newest(topic)
            table.refresh()
        assert dict(table.items()) == expected and len(table) == 4
    assert "is damaged (the checksum of b'kk0' does not match)" in caplog.text
    assert sorted(entry.name for entry in filled.iterdir()) == ["kreplog-2.table", "kreplog-2.table-lock"]


@pytest.mark.parametrize(
    ("database", "key", "change"),
    [
        (b"keys", b"kk0", lambda value: None),
        (b"places", b"topic", lambda value: None),
        (b"places", b"topic", lambda value: value[:-1] + b"?"),
        (b"places", b"commit", lambda value: value[:-1] + b"?"),
        (b"places", b"p" + bytes(4), lambda value: value[:20] + b"?" + value[21:]),
        (b"places", b"p" + bytes(4), lambda value: value[:-1]),
    ],
)
def test_a_file_that_something_else_has_changed_is_loaded_anew(
    topic: Topic, filled: Path, database: bytes, key: bytes, change: Any
) -> None:
    put(filled, database, key, change)
    with topic.table(path=filled) as table:
        assert dict(table.items()) == newest(topic)
    assert sorted(entry.name for entry in filled.iterdir()) == ["kreplog-2.table", "kreplog-2.table-lock"]


def of_another_layout(file: Path) -> None:
    """As a later kreplog may write it: whole, with another magic."""
    put(file, b"places", b"topic", lambda value: sealed(b"topic", b"KRTABLM2" + value[12:]))


def sealed(key: bytes, rest: bytes) -> bytes:
    return crc32c(key + rest).to_bytes(4, "big") + rest


def of_another_lmdb(file: Path) -> None:
    """The version is at byte 20 of both meta pages, after LMDB's magic."""
    with (file / "kreplog-1.table").open("r+b") as table:
        for page in (0, 4096):
            table.seek(page + 16)
            assert table.read(8) == bytes.fromhex("dec0efbe01000000")
            table.seek(page + 20)
            table.write(b"\2")


@pytest.mark.parametrize("change", [of_another_layout, of_another_lmdb])
def test_a_file_of_another_version_is_loaded_anew(
    topic: Topic, filled: Path, change: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """All that is in it is in the log."""
    change(filled)
    with topic.table(path=filled) as table:
        assert dict(table.items()) == newest(topic)
    assert sorted(entry.name for entry in filled.iterdir()) == ["kreplog-2.table", "kreplog-2.table-lock"]
    assert "kreplog-1.table" in caplog.text


def test_a_file_that_was_cut_is_loaded_anew(topic: Topic, filled: Path) -> None:
    sound = (filled / "kreplog-1.table").read_bytes()
    for size in (0, 1, 100, 4096, 8192, 9000, len(sound) - 4096, len(sound) - 1):
        shutil.rmtree(filled)
        filled.mkdir()
        (filled / "kreplog-1.table").write_bytes(sound[:size])
        with topic.table(path=filled) as table:
            assert dict(table.items()) == newest(topic), size


def test_no_damaged_byte_gives_a_wrong_value(topic: Topic, filled: Path) -> None:
    """LMDB has no checksums: a page that is damaged may end the process, or lose keys. What is returned is right, and
    an iteration that ends has every key."""
    topic.append_many([b"%d" % number * 20 for number in range(400)], [b"%d" % number for number in range(400)])
    with topic.table(path=filled):
        expected = newest(topic)
    sound = (filled / "kreplog-1.table").read_bytes()
    draw = random.Random(4)
    ended = {"right": 0, "lost keys": 0, "killed": 0}
    for _ in range(60):
        page = draw.randrange(len(sound) // 4096)
        position = 4096 * page + draw.choice([draw.randrange(40), draw.randrange(4096)])
        damaged = bytearray(sound)
        damaged[position] ^= 1 << draw.randrange(8)
        shutil.rmtree(filled)
        filled.mkdir()
        (filled / "kreplog-1.table").write_bytes(damaged)

        def body() -> bytes:
            with Topic.open(topic.path, read_only=True) as reader, reader.table(path=filled) as table:
                for _ in range(2):
                    try:
                        items = dict(table.items())
                    except errors.StorageError:
                        continue
                    found = {key: table[key] for key in expected if key in table}
                    if items == expected and found.items() <= expected.items():
                        return b"right" if found == expected else b"lost keys"
                    return b"wrong"
                return b"no end"

        code, said = ends_by(body)
        assert (code, said) in [(0, b"right"), (0, b"lost keys")] or code < 0, (position, code, said)
        ended["killed" if code < 0 else said.decode()] += 1
    assert ended["right"] > 40, ended
