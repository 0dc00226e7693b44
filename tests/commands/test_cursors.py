"""`kreplog cursor` on a topic in a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kreplog import Topic
from kreplog.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        output = capsys.readouterr()
        code = ended.value.code
        return int(code or 0), output.out, output.err

    return call


@pytest.fixture
def path(tmp_path: Path) -> str:
    place = tmp_path / "data" / "orders"
    with Topic.open(place, 2) as topic:
        for number in range(5):
            topic.append(b"%d" % number, partition=number % 2)
        with topic.cursor("billing") as cursor:
            cursor.seek(0, 2)
            cursor.commit()
        with topic.cursor("audit") as cursor:
            list(cursor)
            cursor.commit()
    return str(place)


def test_list(path: str, run: Run) -> None:
    status, output, _ = run("cursor", "list", path, "--json")
    rows = [tuple(row.values()) for row in json.loads(output)]
    assert status == 0
    assert rows == [("audit", 0, 3, 3, 0), ("audit", 1, 2, 2, 0), ("billing", 0, 2, 3, 1), ("billing", 1, 0, 2, 2)]
    _, output, _ = run("cursor", "list", path)
    assert [line.split() for line in output.splitlines()][3] == ["billing", "0", "2", "3", "1"]


def test_a_work_queue_is_listed_with_what_is_not_done(path: str, run: Run) -> None:
    with Topic.open(path, read_only=True) as topic, topic.work_queue("mail") as queue:
        records = {(record.partition, record.offset): record for record in queue.take(4)}
        queue.ack(records[0, 1], records[0, 2], records[1, 0])
        assert topic.lags()["mail"] == {0: 1, 1: 1}
    _, output, _ = run("cursor", "list", path, "--json")
    rows = [tuple(row.values()) for row in json.loads(output)]
    assert [row for row in rows if row[0] == "mail"] == [("mail", 0, 0, 3, 1), ("mail", 1, 1, 2, 1)]
    status, output, _ = run("cursor", "reset", path, "mail", "--to-offset", "1", "--partition", "0", "--json")
    assert (status, json.loads(output)) == (0, {"0": 1, "1": 1})
    with Topic.open(path, read_only=True) as topic, topic.work_queue("mail") as queue:
        assert sorted(record[:2] for record in queue.take(9)) == [(0, 1), (0, 2), (1, 1)]


@pytest.mark.parametrize(
    ("options", "committed"),
    [
        (["--to-earliest"], {"0": 0, "1": 0}),
        (["--to-latest"], {"0": 3, "1": 2}),
        (["--to-offset", "1", "--partition", "1"], {"0": 2, "1": 1}),
    ],
)
def test_reset(path: str, run: Run, options: list[str], committed: dict[str, int]) -> None:
    status, output, _ = run("cursor", "reset", path, "billing", "--json", *options)
    assert (status, json.loads(output)) == (0, committed)
    with Topic.open(path, read_only=True) as topic:
        assert topic.committed_offsets()["billing"] == {int(number): offset for number, offset in committed.items()}


@pytest.mark.parametrize(
    ("options", "words"),
    [([], "give --to-earliest"), (["--to-offset", "9", "--partition", "0"], "has the offsets 0 to 3, not 9")],
)
def test_wrong_usage(path: str, run: Run, options: list[str], words: str) -> None:
    status, _, error = run("cursor", "reset", path, "billing", *options)
    assert status == 2 and words in error


def test_the_log_command_reads_partitions_of_an_open_topic(path: str, run: Run) -> None:
    with Topic.open(path) as topic:
        topic.append(b"new", partition=1)
        status, output, _ = run("log", "info", f"{path}-1", "--json")
        assert status == 0 and json.loads(output)["high_watermark"] == 3
        status, output, _ = run("log", "dump", f"{path}-1", "--json")
        assert status == 0 and "new" in output.splitlines()[-1]


def test_a_cursor_that_is_open(path: str, run: Run) -> None:
    with Topic.open(path) as topic, topic.cursor("billing"):
        status, _, error = run("cursor", "reset", path, "billing", "--to-latest")
        assert status == 1 and "is open in process" in error
