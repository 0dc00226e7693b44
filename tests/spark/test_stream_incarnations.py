"""A partition of an embedded topic that is deleted and created again has the topic id of its neighbours. No plan takes
it for the former one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import kreplog
from kreplog.errors import KreplogError
from pyspark_kreplog.options import parse_batch, parse_stream
from pyspark_kreplog.plan import plan
from pyspark_kreplog.read import read
from pyspark_kreplog.stream_planner import StreamPlanner

MESSAGE = r"t-0: the partition was deleted and created again: its incarnation id was \w{16} and is now \w{16}: "


def fill(path: Path, count: int) -> None:
    with kreplog.Log.open(path) as log:
        log.append_many([b"x"] * count)


def recreate(path: Path, count: int) -> None:
    topic_id = (path / "partition.metadata").read_bytes()
    shutil.rmtree(path)
    fill(path, count)
    assert (path / "partition.metadata").read_bytes() == topic_id, "the neighbour's"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fill(tmp_path / "t-0", 10)
    fill(tmp_path / "t-1", 10)
    return tmp_path


@pytest.fixture
def planner(path: Path) -> Callable[..., StreamPlanner]:
    def make(**options: str) -> StreamPlanner:
        return StreamPlanner(
            parse_stream({"path": str(path), "subscribe": "t", "startingOffsets": "earliest", **options})
        )

    return make


def end_of_batch(planner: StreamPlanner, start: str) -> str:
    return json.dumps(planner.end_of_batch(json.loads(start), unlimited=False))


@pytest.mark.parametrize("count", [0, 5, 10, 50])
@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_stream(
    path: Path, planner: Callable[..., StreamPlanner], count: int, fail_on_data_loss: str, restarts: bool
) -> None:
    """However many records the new one has: an error, since its offsets mean other records."""
    running = planner(failOnDataLoss=fail_on_data_loss)
    start = json.dumps(running.initial_offset())
    end = end_of_batch(running, start)
    assert sorted(json.loads(end)["@kreplog"]["incarnationIds"]["t"]) == ["0", "1"]
    assert end_of_batch(running, end) == end
    recreate(path / "t-0", count)
    if restarts:
        running = planner(failOnDataLoss=fail_on_data_loss)
    with pytest.raises(KreplogError, match=f"{MESSAGE}start the query with a new checkpointLocation"):
        end_of_batch(running, end)
    with pytest.raises(KreplogError, match=MESSAGE):
        running.tasks(json.loads(start), json.loads(end), 2)


def test_a_batch_read(path: Path) -> None:
    """Between its plan and its tasks."""
    tasks = plan(parse_batch({"path": str(path), "subscribe": "t"}), 2)
    recreate(path / "t-0", 20)
    with pytest.raises(KreplogError, match=f"{MESSAGE}load\\(\\) again"):
        list(read(tasks[0], ["offset"]))
    assert sum(rows.num_rows for rows in read(tasks[1], ["offset"])) == 10


def test_ids_that_are_not_known(path: Path, planner: Callable[..., StreamPlanner]) -> None:
    """A checkpoint of an earlier version, or a state file that was lost: neither is a deletion."""
    running = planner()
    end = end_of_batch(running, json.dumps(running.initial_offset()))
    document = json.loads(end)
    del document["@kreplog"]["incarnationIds"]
    assert end_of_batch(running, json.dumps(document)) == json.dumps(
        {name: value for name, value in json.loads(end).items() if name != "@kreplog"}
        | {"@kreplog": {name: value for name, value in json.loads(end)["@kreplog"].items() if name != "startedAt"}}
    )
    (path / "t-0" / "kreplog.state").unlink()
    fill(path / "t-0", 5)
    later = end_of_batch(running, end)
    assert json.loads(later)["t"] == {"0": 15, "1": 10}
    assert end_of_batch(planner(), later) == later
