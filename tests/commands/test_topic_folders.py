"""`kreplog topic list` and `describe` with --folder."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kreplog import Topic
from tests.commands.test_cursors import run

__all__ = ["run"]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two topics, a log that no topic file belongs to, and names that are none."""
    with Topic.open(tmp_path / "orders", 2) as topic:
        for number in range(5):
            topic.append(b"v", partition=number % 2)
        topic.log(0).delete_records_before(1)
    Topic.open(tmp_path / "a-b.c", 11).close()
    (tmp_path / "flights-0").mkdir()
    for name in ("flights", "flights-01", "flights--1", "-3", "fl ights-2"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes-7").touch()
    return tmp_path


def test_list(data: Path, run: Run) -> None:
    names = ["a-b.c", "flights", "flights-", "orders"]
    assert run("topic", "list", "--folder", str(data), "--json") == (
        0,
        json.dumps({"topics": names}, separators=(",", ":")) + "\n",
        "",
    )
    assert run("topic", "list", "--folder", str(data))[1].splitlines() == names


def test_describe(data: Path, run: Run) -> None:
    """Beside a writer, whose lock it does not take."""
    with Topic.open(data / "orders") as topic:
        topic.append(b"one more", partition=1)
        sizes = [topic.log(number).size for number in range(2)]
        status, output, _ = run("topic", "describe", "orders", "--folder", str(data), "--json")
    facts = json.loads(output)
    assert status == 0 and facts["name"] == "orders" and len(facts["topic_id"]) == 22
    assert [tuple(row.values()) for row in facts["partitions"]] == [(0, 1, 3, 3, sizes[0]), (1, 0, 3, 3, sizes[1])]
    _, output, _ = run("topic", "describe", "orders", "--folder", str(data))
    assert output.splitlines()[0] == f"orders ({facts['topic_id']}): 2 partitions"
    assert output.splitlines()[2].split() == ["0", "1", "3", "3", str(sizes[0])]


def test_it_needs_no_cluster(data: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KREPLOG_CLUSTER", str(data / "no cluster"))
    assert run("topic", "list", "--folder", str(data))[0] == 0
    for command in (["list"], ["describe", "orders"]):
        status, _, error = run("topic", *command, "--folder", str(data), "--bootstrap", "127.0.0.1:1")
        assert status == 2 and "--folder" in error


def test_what_is_not_there(data: Path, run: Run) -> None:
    status, _, error = run("topic", "describe", "payments", "--folder", str(data))
    assert status == 1 and "there is no such topic" in error
    status, _, error = run("topic", "list", "--folder", str(data / "nowhere"))
    assert status == 1 and "nowhere" in error
    status, _, error = run("topic", "describe", "../orders", "--folder", str(data / "flights"))
    assert status == 2 and "no legal topic name" in error


def test_the_extra_cluster_is_not_needed(data: Path) -> None:
    script = "import sys; sys.modules['kafka'] = None\nfrom kreplog.cli import main\nmain(sys.argv[1:])"

    def without_kafka(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False)

    assert without_kafka("topic", "list", f"--folder={data}").stdout.splitlines()[-1] == "orders"
    assert "orders (" in without_kafka("topic", "describe", "orders", "-f", str(data)).stdout
    refused = without_kafka("topic", "list", "--bootstrap", "127.0.0.1:1")
    assert refused.returncode == 2 and "pip install 'kreplog[cluster]'" in refused.stderr
