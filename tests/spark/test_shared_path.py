"""A sink's path that is not the same directory on all hosts: nothing is staged, and the message says so."""

from __future__ import annotations

import pickle
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kreplog.errors import UsageError
from pyspark_kreplog import shipping
from pyspark_kreplog.shared_path import mark, require_mark
from pyspark_kreplog.sink import DirectorySink
from pyspark_kreplog.sink_options import SinkOptions, parse_sink
from pyspark_kreplog.write import BatchWriter, StreamWriter


def test_a_directory_keeps_its_mark(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    found = mark(path)
    assert mark(path) == found and [file.name for file in tmp_path.rglob("*") if file.is_file()] == [found]
    require_mark(path, found)


def test_drivers_that_mark_a_directory_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    with ThreadPoolExecutor(8) as threads:
        for found in threads.map(lambda _: mark(path), range(64)):
            require_mark(path, found)


@pytest.mark.parametrize("kind", [BatchWriter, StreamWriter])
@pytest.mark.parametrize("content", ["nothing", "another directory", "another sink's directory"])
def test_a_task_with_another_directory_stages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BatchWriter | StreamWriter], content: str
) -> None:
    path = tmp_path / "data"
    options = parse_sink({"path": str(path), "topic": "t"})
    assert isinstance(options, SinkOptions)
    sent = shipping.dumps(kind(DirectorySink(options)))
    shutil.rmtree(path)
    if content != "nothing":
        path.mkdir()
    if content == "another sink's directory":
        mark(str(path))
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr("pyspark_kreplog.write._task", Task)
    with pytest.raises(UsageError, match=r"'path' = '.*/data' is not shared: on host .*Nothing is written"):
        pickle.loads(sent).write(iter(()))
    assert sorted(tmp_path.rglob("*")) == before


class Task:
    """A task of batch 0."""

    def partitionId(self) -> int:
        return 0

    def getLocalProperty(self, name: str) -> str:
        return "0" if name.endswith("batchId") else "11111111-2222-3333-4444-555555555555"
