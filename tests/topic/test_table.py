"""Tables: the newest value of each key, beside a plain dict of what the log holds."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplog import Log, LogConfig, Table, Topic, errors
from kreplog._native.batch import build
from kreplog._native.key_table import KeyTable
from kreplog._native.table_reader import TableReader
from tests.faults.boots import reboot
from tests.faults.forked import result_of
from tests.topic.compacting import remove_tombstones
from tests.waiting import InChild, InThread, until_open, until_waiting

COMPACTED = LogConfig(cleanup_policy="compact", segment_bytes=1000)
KEYS = [b"", b"a", b"ab", b"b", b"key of more bytes"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "prices"


@pytest.fixture
def topic(path: Path) -> Iterator[Topic]:
    with Topic.open(path, 2) as opened:
        yield opened


def newest(topic: Topic) -> dict[bytes, bytes]:
    """What a table holds, by all records of the log. Of a key in several partitions, the latest timestamp counts."""
    partitions: dict[int, dict[bytes, tuple[int, int, bytes]]] = {}
    for record in topic.read():
        if record.key is not None:
            entries = partitions.setdefault(record.partition, {})
            if record.value is None:
                entries.pop(record.key, None)
            else:
                entries[record.key] = (record.timestamp_ms, record.partition, record.value)
    found: dict[bytes, tuple[int, int, bytes]] = {}
    for entries in partitions.values():
        for key, entry in entries.items():
            found[key] = max(entry, found.get(key, entry))
    return {key: value for key, (_, _, value) in found.items()}


def check(table: Table, topic: Topic) -> None:
    expected = newest(topic)
    assert dict(table.items()) == expected and len(table) == len(expected)
    assert {key: table[key] for key in expected} == expected
    assert all((key in table) == (key in expected) for key in KEYS)
    assert list(table.prefix(b"a")) == sorted((key, value) for key, value in expected.items() if key[:1] == b"a")
    assert table.nbytes >= sum(len(key) + len(value) for key, value in expected.items())


STEPS = st.one_of(
    st.tuples(
        st.just("append"), st.integers(0, 1), st.sampled_from(KEYS), st.none() | st.binary(max_size=200),
        st.integers(1, 5),
    ),
    st.tuples(st.just("keyless"), st.integers(0, 1)),
    st.tuples(st.sampled_from(["roll", "refresh"]), st.integers(0, 1)),
    st.tuples(st.sampled_from(["truncate", "delete"]), st.integers(0, 1), st.floats(0, 1)),
)  # fmt: skip


@given(steps=st.lists(STEPS, max_size=40), compression=st.sampled_from(["none", "lz4"]))
def test_a_table_has_what_a_dict_of_the_log_has(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], compression: str
) -> None:
    path = tmp_path_factory.mktemp("table") / "prices"
    with Topic.open(path, 2, config=LogConfig(compression_type=compression)) as topic:
        table = topic.table()
        with Topic.open(path, read_only=True) as reader:
            beside = reader.table()
            for verb, partition, *rest in steps:
                log = topic.log(partition)
                if verb == "append":
                    key, value, timestamp = rest
                    topic.append(value, key, timestamp_ms=timestamp, partition=partition)
                elif verb == "keyless":
                    topic.append(b"no key", partition=partition)
                elif verb == "roll":
                    log.roll()
                elif verb == "refresh":
                    table.refresh()
                    beside.refresh()
                    check(table, topic)
                    check(beside, topic)
                else:
                    span = log.log_end_offset - log.log_start_offset
                    offset = log.log_start_offset + int(rest[0] * span)
                    (log.truncate_to if verb == "truncate" else log.delete_records_before)(offset)
            for each in (table, beside):
                each.refresh()
                check(each, topic)


def test_many_keys_come_and_go(topic: Topic) -> None:
    """The table grows, entries change their size and place, and runs of slots lose entries in their middle."""
    draw = random.Random(5)
    table = topic.table()
    model: dict[bytes, bytes] = {}
    for size in (3000, 200, 3000):
        keys = [b"%d" % draw.randrange(size) for _ in range(5000)]
        values = [draw.choice([None, draw.randbytes(draw.randrange(40))]) for _ in keys]
        topic.append_many(values, keys)
        for key, value in zip(keys, values, strict=True):
            if value is None:
                model.pop(key, None)
            else:
                model[key] = value
        table.refresh()
        assert dict(table.items()) == model == {key: table[key] for key in model} and len(table) == len(model)


def test_the_mapping_of_objects(path: Path) -> None:
    with Topic.open(path, 2, key_codec="str", value_codec="json") as topic:
        table = topic.table()
        assert len(table) == 0 and "tea" not in table and table.get("tea") is None and table.get("tea", 5) == 5
        place = topic.append({"price": 4}, "tea", timestamp_ms=1000)
        topic.append({"price": 6}, "teapot")
        assert "tea" not in table, "it follows by refresh alone"
        table.refresh()
        assert table["tea"] == {"price": 4} and list(table.prefix("teap")) == [("teapot", {"price": 6})]
        assert sorted(table) == sorted(table.keys()) == ["tea", "teapot"] and len(table.values()) == 2
        assert table.entry("tea") == (*place, 1000, {"price": 4}) and table.entry("coffee") is None
        topic.append(None, "tea")
        table.refresh()
        with pytest.raises(KeyError, match="tea"):
            table["tea"]
        assert table == {"teapot": {"price": 6}} and None not in table
        with pytest.raises(errors.RecordEncodeError):
            table.get(5)
        number: Any = 5
        with pytest.raises(errors.ArgumentTypeError, match="prefix"):
            table.prefix(number)


def test_a_value_that_does_not_decode_is_raised_skipped_or_set_aside(path: Path) -> None:
    with Topic.open(path, 1) as raw:
        raw.append(b"no JSON", b"bad")
        raw.append(b"1", b"good")
    aside: list[errors.RecordDecodeError] = []
    with Topic.open(path, key_codec="str", value_codec="json") as topic:
        table = topic.table()
        with pytest.raises(errors.RecordDecodeError, match="prices-0: the value of the record at offset 0"):
            table["bad"]
        with pytest.raises(errors.RecordDecodeError):
            dict(table.items())
        assert list(topic.table(on_error="skip").values()) == [1]
        assert list(topic.table(on_error=aside.append)) == ["good"]
        assert [(error.partition, error.offset, error.field) for error in aside] == [("prices-0", 0, "value")]
        with pytest.raises(errors.UsageError, match="on_error"):
            topic.table(on_error="drop")


def test_keys_of_several_partitions(topic: Topic) -> None:
    """The latest timestamp counts, whichever partition is read last; a tombstone is one of its partition."""
    topic.append(b"new", b"k", partition=0, timestamp_ms=20)
    topic.append(b"old", b"k", partition=1, timestamp_ms=10)
    table = topic.table()
    assert table[b"k"] == b"new" and len(table) == 1 and list(table) == [b"k"]
    topic.append(None, b"k", partition=0, timestamp_ms=30)
    table.refresh()
    assert table[b"k"] == b"old" and len(table) == 1
    topic.add_partitions(3)
    topic.append(b"newest", b"k", partition=2, timestamp_ms=10)
    table.refresh()
    assert table[b"k"] == b"newest", "of equal timestamps that of the highest partition"
    assert table.offsets == {0: 2, 1: 1, 2: 1}
    topic.log(2).delete_records_before(1)
    table.refresh()
    assert table[b"k"] == b"old"


def test_a_tombstone_that_compaction_has_removed_before_it_was_read(path: Path) -> None:
    config = LogConfig(cleanup_policy="compact", segment_bytes=1000, delete_retention_ms=0)
    with Topic.open(path, 1, config=config) as topic, Topic.open(path, read_only=True) as reader:
        topic.append(b"v", b"deleted")
        topic.append(b"v", b"stays")
        with reader.table() as table:
            assert sorted(table) == [b"deleted", b"stays"]
            topic.append(None, b"deleted")
            remove_tombstones(topic)
            assert [record.key for record in topic.read()] == [b"stays", b"other"], "the tombstone is gone"
            table.refresh()
            assert sorted(table) == [b"other", b"stays"]


def test_transactions_count_once_they_are_committed(topic: Topic) -> None:
    log = topic.log(0)
    topic.append(b"before", b"k", partition=0)
    table = topic.table()
    for sequence, committed in enumerate((False, True)):
        batch = build([b"in it"], [b"k"], producer_id=7, producer_epoch=3, base_sequence=sequence, transactional=True)
        first = log.append_batches(batch, transactional=True).first_offset
        table.refresh()
        assert table[b"k"] == b"before" and not table.wait_for((0, first), timeout=0)
        log.append_transaction_marker(7, 3, committed=committed, coordinator_epoch=1)
        assert table.wait_for((0, first), timeout=0)
        assert table[b"k"] == (b"in it" if committed else b"before")


def test_a_decision_wakes_who_waits_for_a_record(topic: Topic, path: Path) -> None:
    """At whatever point of it the reader looks; no record comes behind it."""
    log = topic.log(0)
    batch = build([b"in it"], [b"k"], producer_id=7, producer_epoch=3, base_sequence=0, transactional=True)
    log.append_batches(batch, transactional=True)
    with Topic.open(path, read_only=True) as reader:
        table = reader.table()
        waiting = InThread(lambda: (table.wait_for((0, 0)), table[b"k"]))
        until_waiting(Path(f"{path}-0"), 0)
        log.append_transaction_marker(7, 3, committed=True, coordinator_epoch=1)
        assert waiting.result() == (True, b"in it")


def test_wait_for_a_record_of_another_process(path: Path) -> None:
    def write() -> None:
        with Topic.open(path) as topic:
            topic.append(b"1", b"a", partition=1)
            until_waiting(Path(f"{path}-1"), 1)
            topic.append(b"2", b"a", partition=1)

    Topic.open(path, 2).close()
    writer = InChild(write)
    until_open(Path(f"{path}-1"))
    with Topic.open(path, read_only=True) as reader:
        table = reader.table()
        waiting = InThread(lambda: (table.wait_for((1, 1)), table[b"a"]))
        assert waiting.result() == (True, b"2")
        writer.result()
        assert table.wait_for((1, 2), timeout=0.001) is False
        wrong: Any
        for wrong, said in (((2, 0), "no partition 2"), ((0, -1), "offset -1"), (5, "position is a pair")):
            with pytest.raises(errors.UsageError, match=said):
                table.wait_for(wrong)


def test_beside_compaction(path: Path) -> None:
    with Topic.open(path, 1, config=COMPACTED) as topic, Topic.open(path, read_only=True) as reader:
        table = reader.table()
        for number in range(300):
            topic.append(b"%d" % number, b"k%d" % (number % 7))
            if number % 100 == 50:
                table.refresh()
                report = topic.log(0).compact(force=True)
                assert report is not None and report.records_dropped
        table.refresh()
        check(table, topic)
        check(reader.table(), topic)


def test_a_truncation_brings_older_values_back(topic: Topic) -> None:
    for number in range(4):
        topic.append(b"%d" % number, b"k", partition=0)
    native = KeyTable()
    reader = TableReader(native, topic.log(0), 0)
    reader.advance()
    topic.log(0).truncate_to(2)
    topic.append(b"again", b"other", partition=0)
    reader.advance()
    assert native.get_value(b"k") == b"1" and native.get_value(b"other") == b"again"
    assert (reader.reloads, reader.next_offset) == (1, 3)


def test_as_of_offsets_and_of_times(topic: Topic) -> None:
    for number in range(4):
        topic.append(b"%d" % number, b"k", partition=0, timestamp_ms=1000 * number)
        topic.append(b"%d" % number, b"other", partition=1, timestamp_ms=1000 * number)
    assert topic.table(at={0: 2, 1: 1}) == {b"k": b"1", b"other": b"0"}
    assert topic.table(at={1: 4}) == {b"other": b"3"}, "of a partition that is left out there is none"
    assert topic.table(at=2000) == topic.table(at=2999) == {b"k": b"2", b"other": b"2"}
    assert topic.table(at=datetime.fromtimestamp(1, UTC)) == {b"k": b"1", b"other": b"1"}
    assert topic.table(at=99_000) == topic.table()
    table = topic.table(at={0: 4})
    topic.append(b"4", b"k", partition=0)
    table.refresh()
    assert table == {b"k": b"3"}
    with pytest.raises(errors.UsageError, match="does not follow"):
        table.wait_for((0, 4))
    topic.log(0).delete_records_before(2)
    for wrong in ({0: 1}, {0: 6}):
        with pytest.raises(errors.OffsetOutOfRangeError, match="prices-0: the state at offset"):
            topic.table(at=wrong)
    with pytest.raises(errors.UsageError, match="no partition 2"):
        topic.table(at={2: 0})
    words: list[Any] = ["yesterday", {0: "2"}, {0: True}]
    for word in words:
        with pytest.raises(errors.ArgumentTypeError):
            topic.table(at=word)
    places: list[Any] = [{"0": 2, 1: 1}, datetime.min]  # the latter is before the year 1 somewhere
    for place in places:
        with pytest.raises(errors.UsageError):
            topic.table(at=place)


def test_damage_is_reported_with_its_place_and_the_batches_before_stay(path: Path) -> None:
    with Topic.open(path, 1) as topic:
        for number in range(3):
            topic.append(b"value %d" % number, b"k%d" % number)
        segment = Path(f"{path}-0") / ("0" * 20 + ".log")
        sound = segment.read_bytes()
        with Topic.open(path, read_only=True) as reader:
            with segment.open("r+b") as file:
                file.seek(sound.index(b"value 2"))
                file.write(b"w")
            with pytest.raises(errors.CorruptBatchError) as refused:
                reader.table()
            assert (refused.value.partition, refused.value.offset) == ("prices-0", 2)
            native = KeyTable()
            applied = TableReader(native, reader.log(0), 0)
            for _ in range(2):
                with pytest.raises(errors.CorruptBatchError):
                    applied.advance()
                assert len(native) == 2 and applied.next_offset == 2
            segment.write_bytes(sound)
            applied.advance()
            assert len(native) == 3


def fill_beyond_memory(path: Path) -> tuple[int, int]:
    """How many keys a table has when there is no more memory, and afterwards."""
    with Topic.open(path, 1) as topic:
        table = topic.table()
        topic.append(b"small", b"first")
        for number in range(150):
            topic.append(bytes(900_000), b"%d" % number)
        list(topic.read(start=0, partition=0, stop=1))  # maps the segment
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 20), limits[1]))
        with pytest.raises(errors.ResourceExhaustedError, match="no memory for a table"):
            table.refresh()
        resource.setrlimit(resource.RLIMIT_AS, limits)
        before = len(table)
        table.refresh()
        assert table[b"first"] == b"small"
        return before, len(table)


def test_memory_runs_out(path: Path) -> None:
    """The table stays readable, and goes on once there is memory."""
    # Not a fork: of what its parent has freed a table could be filled within any limit.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        before, after = pool.submit(fill_beyond_memory, path).result()
    assert 0 < before < after == 151


def test_the_end_of_a_table(topic: Topic) -> None:
    topic.append(b"v", b"k")
    table = topic.table()

    with Topic.open(topic.path, read_only=True) as reader, reader.table() as parents:

        def in_a_child() -> str:
            assert not reader.closed
            try:
                return str(parents[b"k"])
            except errors.LogClosedError as error:
                return str(error)

        assert "is closed" in result_of(in_a_child)
    with table:
        assert table[b"k"] == b"v" and "1 keys" in repr(table)
    for call in (lambda: table[b"k"], lambda: len(table), table.refresh, lambda: list(table), lambda: b"k" in table):
        with pytest.raises(errors.LogClosedError, match=r"table of .*prices is closed"):
            call()
    other = topic.table()
    topic.close()
    assert other.closed and "closed" in repr(other)
    with pytest.raises(errors.LogClosedError):
        other.get(b"k")
    with pytest.raises(errors.LogClosedError):
        topic.table()


@pytest.mark.parametrize("in_file", [False, True])
def test_the_table_of_a_log(tmp_path: Path, in_file: bool) -> None:
    with Log.open(tmp_path / "stock-3") as log:
        first = log.append(b"1", key=b"tea")
        with Table.of(log, value_codec="json", path=tmp_path / "table" if in_file else None) as table:
            assert table[b"tea"] == 1 and table.offsets == {3: 1} and not table.wait_for(1, timeout=0)
            latest = log.append(b"2", key=b"tea")
            assert table.wait_for(latest) and table.wait_for((3, latest)) and table[b"tea"] == 2
            with pytest.raises(errors.UsageError, match="is partition 3, not 0"):
                table.wait_for((0, latest))
            with Table.of(log, at={3: latest}) as before:
                assert before == {b"tea": b"1"} and first == 0
        wrong: Any = tmp_path
        with pytest.raises(errors.ArgumentTypeError, match=r"log is a kreplog\.Log"):
            Table.of(wrong)
        left = Table.of(log)
    assert left.closed


def test_a_topic_that_is_deleted(path: Path) -> None:
    with Topic.open(path, 1) as topic:
        topic.append(b"v", b"k")
        with Topic.open(path, read_only=True) as reader:
            table = reader.table()
            os.rename(f"{path}-0", f"{path}-0.gone")
            with pytest.raises(errors.PartitionDeletedError):
                table.refresh()
            os.rename(f"{path}-0.gone", f"{path}-0")
            table.refresh()
            assert table[b"k"] == b"v"


@pytest.mark.parametrize("storage", ["snapshot", "path"])
def test_the_same_last_record_after_a_loss_of_power(
    tmp_path: Path, storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was appended in the place of lost records ends as they did, byte by byte, but in another leader epoch."""
    if storage == "path":
        pytest.importorskip("lmdb", reason="needs lmdb, the extra `tables`")
    path, partition = tmp_path / "data" / "prices", tmp_path / "data" / "prices-0"
    place: dict[str, Any] = {storage: tmp_path / "table"}
    Topic.open(path, 1).close()
    shutil.copytree(partition, tmp_path / "durable")

    def append(to: Topic, first: bytes) -> None:
        for key in (first, b"last"):
            to.append(b"1", key, timestamp_ms=1)

    with Topic.open(path) as topic:
        append(topic, b"lost")
        with topic.table(**place) as table:
            assert dict(table.items()) == {b"lost": b"1", b"last": b"1"}
            if storage == "snapshot":
                table.save()
    shutil.rmtree(partition)
    shutil.copytree(tmp_path / "durable", partition)
    reboot(monkeypatch)
    with Topic.open(path) as topic:
        append(topic, b"other")
        for value in (b"1", b"2"):
            with topic.table(**place) as table:
                assert dict(table.items()) == {b"other": b"1", b"last": value}
            topic.append(b"2", b"last")
