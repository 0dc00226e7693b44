"""partition move, against a broker with two log directories."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cluster.local_cluster import LocalCluster
from tests.commands.conftest import Kreplog
from tests.integration.clusters import FAST, START_S, end
from tests.integration.faults import set_log_dirs

NAMES = ("data", "other")


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    made = LocalCluster.create(tmp_path_factory.mktemp("lone") / "c", (0,), 0, FAST)
    set_log_dirs(made, 0, [made.home(0) / name for name in NAMES])
    try:
        made.start(timeout_s=START_S)
        yield made
    finally:
        end(made)


@pytest.fixture
def run(lone: LocalCluster, kreplog: Kreplog) -> Kreplog:
    return lambda *words, **more: kreplog(*words, "--cluster", lone.directory, **more)


def place(lone: LocalCluster, partition: str) -> Path:
    (path,) = [lone.home(0) / name for name in NAMES if (lone.home(0) / name / partition).exists()]
    return path


def test_replicas_move_to_another_log_directory_and_back(lone: LocalCluster, run: Kreplog) -> None:
    run("topic", "create", "moved", "-p", 2, "-r", 1)
    run("produce", "moved", "--partition", 0, stdin=b"one\ntwo\n")
    here = place(lone, "moved-0")
    target = lone.home(0) / (set(NAMES) - {here.name}).pop()
    plan = run("partition", "move", "moved", 0, "--broker", 0, "--to", target)
    assert plan.code == 0 and place(lone, "moved-0") == here
    assert f"moved-0  broker 0  {here} -> {target}  ".encode() in plan.out
    assert b"nothing changed: use --execute" in plan.out
    done = run("partition", "move", "moved", 0, "--broker", 0, "--to", target, "--execute")
    assert (done.code, done.err) == (0, "") and b"1 replica moved" in done.out
    assert place(lone, "moved-0") == target
    assert run("consume", "moved", "--partition", 0, "--from-beginning", "--max-messages", 2).out == b"one\ntwo\n"
    outcome = run("partition", "move", "moved", "--broker", 0, "--to", here, "--execute", "--json")
    found = json.loads(outcome.out)
    assert place(lone, "moved-0") == place(lone, "moved-1") == here
    assert {"topic": "moved", "partition": 0, "from": str(target), "to": str(here)}.items() <= found["moves"][0].items()
    assert (found["executed"], found["moving"], found["failed"]) == (True, [], [])
    assert b"0 replicas to move" in run("partition", "move", "moved", "--broker", 0, "--to", here).out


def test_moves_that_are_refused(lone: LocalCluster, run: Kreplog, tmp_path: Path) -> None:
    run("topic", "create", "refused", "-p", 1, "-r", 1)
    to = place(lone, "refused-0")
    outcome = run("partition", "move", "refused", "--broker", 0, "--to", tmp_path)
    assert outcome.code and f"broker 0 has no log directory {tmp_path} that works" in outcome.err
    outcome = run("partition", "move", "refused", 7, "--broker", 0, "--to", to)
    assert outcome.code and "broker 0 has no replica of refused-7" in outcome.err
    outcome = run("partition", "move", "refused", "--broker", 5, "--to", to)
    assert outcome.code and "broker 5 has no replica of topic refused" in outcome.err
    assert run("partition", "move", "nowhere", "--broker", 0, "--to", to).code
