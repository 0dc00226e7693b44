"""The console of a directory: the logs of a topic while they are written, read-only; damage; what is no log."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kreplog import Log, Topic
from kreplog.batches import build
from kreplog.console.directory_source import DirectorySource
from kreplog.console.record_pages import MAX_RECORDS, PREVIEW_BYTES
from kreplog.errors import UsageError
from tests.console.served import Console, serving


def write(path: Path, *values: bytes) -> None:
    with Log.open(path) as log:
        for value in values:
            log.append(value, key=b"k%d" % (len(value) % 2), timestamp_ms=1000 * len(value))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "a-0", b"1", b"22", b"333")
    write(tmp_path / "a-1")
    write(tmp_path / "b-0", b"x")
    (tmp_path / "no log").mkdir()
    (tmp_path / "c-0").mkdir()
    return tmp_path


@pytest.fixture
def console(folder: Path) -> Iterator[Console]:
    with serving(DirectorySource(folder)) as made:
        made.log_in()
        yield made


def records(console: Console, **parameters: Any) -> Any:
    query = "&".join(f"{name}={value}" for name, value in {"topic": "a", "partition": 0, **parameters}.items())
    return console.request(f"/api/records?{query}").json


def offsets(page: Any) -> list[int]:
    return [record["offset"] for record in page["records"]]


@pytest.mark.parametrize(
    ("name", "topics"), [("", {"a": 2, "b": 1}), ("a", {"a": 2}), ("a-0", {"a": 1}), ("b-0", {"b": 1})]
)
def test_what_a_path_shows(folder: Path, name: str, topics: dict[str, int]) -> None:
    source = DirectorySource(folder / name)
    snapshot = asyncio.run(source.snapshot())
    assert {topic: len(found.partitions) for topic, found in snapshot.topics.items()} == topics
    assert not snapshot.overview()["problems"] and not snapshot.brokers
    with pytest.raises(UsageError, match="there is no partition"):
        asyncio.run(source.read("records", {"topic": "b" if name.startswith("a") else "a", "partition": "7"}))
    if name:
        other = "b" if name.startswith("a") else "a"
        with pytest.raises(UsageError, match="there is no partition"):
            asyncio.run(source.read("records", {"topic": other, "partition": "0"}))
    asyncio.run(source.close())


@pytest.mark.parametrize("name", ["missing", "c-0", "no log", "missing/a"])
def test_a_path_without_logs(folder: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"has no logs|does not exist"):
        DirectorySource(folder / name)


def test_offsets_move_while_the_writer_appends(folder: Path) -> None:
    async def run() -> None:
        source = DirectorySource(folder)
        rows = (await source.snapshot()).topics["a"].partitions
        before = (await source.replicas("a", rows))[1][0]
        write(folder / "a-1", b"1", b"2")
        after = (await source.replicas("a", rows))[1][0]
        assert [(each["log_start_offset"], each["log_end_offset"]) for each in (before, after)] == [(0, 0), (0, 2)]
        for file in (folder / "a-1").iterdir():
            file.unlink()
        (folder / "a-1").rmdir()
        assert "no partition a-1" in (await source.replicas("a", rows))[1][0]["state"]
        assert list((await source.snapshot()).topics["a"].partitions) == [0]
        await source.close()

    asyncio.run(run())


def test_records_by_offset_time_key_and_newest(console: Console) -> None:
    page = records(console)
    assert (offsets(page), page["log_start_offset"], page["high_watermark"], page["next_offset"]) == (
        [0, 1, 2],
        0,
        3,
        3,
    )
    assert base64.b64decode(page["records"][2]["value"]["base64"]) == b"333"
    assert offsets(records(console, offset=1)) == [1, 2]
    assert offsets(records(console, newest=1)) == [2]
    assert offsets(records(console, time_ms=1500)) == [1, 2]
    assert offsets(records(console, time_ms=9000)) == []
    assert offsets(records(console, key="k1")) == [0, 2]
    assert offsets(records(console, offset=99)) == []
    page = records(console, limit=2)
    assert (offsets(page), page["full"], page["next_offset"]) == ([0, 1], True, 2)
    assert offsets(records(console, offset=page["next_offset"])) == [2]


@pytest.mark.parametrize(
    "parameters",
    [
        {"offset": "-1"},
        {"offset": "x"},
        {"offset": 1 << 63},
        {"limit": 0},
        {"limit": MAX_RECORDS + 1},
        {"partition": ""},
        {"partition": 1 << 31},
        {"partition": 7},
        {"topic": "..%2f..%2fetc"},
        {"topic": ""},
        {"time_ms": "now"},
        {"newest": "%F0%9D%9F%99"},
    ],
)
def test_parameters_that_cannot_be(console: Console, parameters: dict[str, Any]) -> None:
    assert list(records(console, **parameters)) == ["error"]


def test_a_long_value_is_cut_and_all_of_it_can_be_had(folder: Path) -> None:
    value = os.urandom(1_000_000)
    write(folder / "long-0", value)
    with serving(DirectorySource(folder)) as console:
        console.log_in()
        (record,) = records(console, topic="long")["records"]
        assert record["value"]["size"] == len(value)
        assert base64.b64decode(record["value"]["base64"]) == value[:PREVIEW_BYTES]
        assert console.request("/api/record-field?topic=long&partition=0&offset=0&field=value").body == value
        assert console.request("/api/record-field?topic=long&partition=0&offset=0&field=key").body == b"k0"
        assert console.request("/api/record-field?topic=long&partition=0&offset=5").status == 400


def test_a_damaged_batch_is_shown_as_such_and_passed_over(folder: Path) -> None:
    (segment,) = (folder / "a-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1  # in the second of three batches
    segment.write_bytes(data)
    with serving(DirectorySource(folder)) as console:
        console.log_in()
        page = records(console)
        assert offsets(page) == [0, 2]
        damaged = [batch for batch in page["batches"] if "damage" in batch]
        assert [(batch["base_offset"], batch["last_offset"]) for batch in damaged] == [(1, 1)]
        assert "CRC" in damaged[0]["damage"]


def test_a_topic_is_shown_while_it_is_open_for_writing(tmp_path: Path) -> None:
    with Topic.open(tmp_path / "t", 2) as topic:
        topic.append(b"v", partition=1)
        with serving(DirectorySource(tmp_path / "t")) as console:
            console.log_in()
            assert offsets(records(console, topic="t", partition=1)) == [0]
            topic.append(b"w", partition=1)
            assert offsets(records(console, topic="t", partition=1)) == [0, 1]


def test_markers_of_transactions_are_shown(tmp_path: Path) -> None:
    with Log.open(tmp_path / "t-0") as log:
        for sequence, committed in enumerate((True, False)):
            batch = build([b"v"], producer_id=7, producer_epoch=0, base_sequence=sequence, transactional=True)
            log.append_batches(batch, transactional=True)
            log.append_transaction_marker(7, 0, committed=committed, coordinator_epoch=300)

    async def run() -> None:
        source = DirectorySource(tmp_path)
        for limit in ("1", "50"):
            found: list[Any] = []
            at = 0
            while at < 4:
                page = await source.read("records", {"topic": "t", "partition": "0", "offset": str(at), "limit": limit})
                found += [(record["offset"], record["marker"]) for record in page["records"]]
                at = page["next_offset"]
            assert found == [(0, None), (1, "COMMIT"), (2, None), (3, "ABORT")]
        await source.close()

    asyncio.run(run())
