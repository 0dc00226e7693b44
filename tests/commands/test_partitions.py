"""partition reassign and the elections, against brokers that serve; one of them stands still where a move must not
end by itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.client import admin_client, reassignment
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.commands import connecting
from kreplog.types import NO_LEADER, TopicPartition
from tests.commands.conftest import Kreplog
from tests.integration.clusters import WITHIN_S, eventually, pid_of


def replicas(run: Kreplog, topic: str) -> list[list[int]]:
    return [
        partition["replicas"] for partition in json.loads(run("topic", "describe", topic, "--json").out)["partitions"]
    ]


def place(run: Kreplog, topic: str, *targets: str) -> None:
    """A topic whose partitions have these replicas."""
    run("topic", "create", topic, "-p", len(targets), "-r", targets[0].count(",") + 1)
    words = [f"{number}={target}" for number, target in enumerate(targets)]
    assert run("partition", "reassign", topic, *words).code == 0


@contextmanager
def standing_still(cluster: LocalCluster, broker: int) -> Iterator[None]:
    """Stop the broker's process: it stays registered and answers nothing; commands wait less long than usual."""
    os.kill(pid_of(cluster, broker), signal.SIGSTOP)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(admin_client, "CONNECT_TIMEOUT_S", 0.3)
            yield
    finally:
        os.kill(pid_of(cluster, broker), signal.SIGCONT)
        cluster.start([broker])  # its session may have ended meanwhile: until the controller counts on it again


def test_partitions_move_and_nothing_is_lost(on_trio: Kreplog) -> None:
    place(on_trio, "moved", "0", "1")
    on_trio("produce", "moved", "--partition", 0, stdin=b"x" * 1000 + b"\nlast\n")
    outcome = on_trio("partition", "reassign", "moved", "0=1,2", "1=2,0")
    assert outcome.code == 0
    assert outcome.out.startswith(b"2 partitions reassigned, 2,")  # two replicas of one batch of more than 1,000 bytes
    assert "2 of 2 partitions" in outcome.err
    assert replicas(on_trio, "moved") == [[1, 2], [2, 0]]
    assert on_trio("consume", "moved", "--from-beginning", "-n", 2).out == b"x" * 1000 + b"\nlast\n"
    assert on_trio("partition", "reassign").out == b"no partition is being reassigned\n"


def test_a_file_in_kafkas_format(on_trio: Kreplog, tmp_path: Path) -> None:
    place(on_trio, "filed", "0", "1")
    requested = {
        "version": 1,
        "partitions": [
            {"topic": "filed", "partition": 0, "replicas": [2], "log_dirs": ["any"]},
            {"topic": "filed", "partition": 1, "replicas": [0]},
        ],
    }
    (tmp_path / "plan.json").write_text(json.dumps(requested))
    outcome = on_trio("partition", "reassign", "--file", tmp_path / "plan.json", "--json")
    assert json.loads(outcome.out) == {
        "done": [{"topic": "filed", "partition": 0}, {"topic": "filed", "partition": 1}],
        "moving": [],
        "failed": [],
        "bytes_copied": 0,
    }
    assert replicas(on_trio, "filed") == [[2], [0]]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"version": 2, "partitions": []}',
        '{"version": 1, "partitions": []}',
        '{"partitions": [{"topic": "t"}]}',
        '{"partitions": [{"topic": "t", "partition": "0", "replicas": [1]}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": ["1"]}]}',
        '{"partitions": [{"topic": "a/b", "partition": 0, "replicas": [1]}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/data"]}]}',
        '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}, '
        '{"topic": "t", "partition": 0, "replicas": [1]}]}',
    ],
)
def test_files_that_are_no_reassignment(kreplog: Kreplog, tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    outcome = kreplog("partition", "reassign", "--file", tmp_path / "plan.json", "--bootstrap", "localhost:1")
    assert outcome.code == 2
    assert outcome.err.startswith("kreplog: ") and outcome.err.count("\n") == 1


def test_what_is_refused(on_trio: Kreplog) -> None:
    place(on_trio, "refused-moves", "0", "0")
    for words, expected in (
        (["refused-moves", "0=9"], "refused-moves-0 is given replicas [9], of which [9] are no brokers here"),
        (["refused-moves", "0=1,1"], "refused-moves-0 is given replicas [1, 1]: name each broker once"),
        (["refused-moves", "2=1"], "there is no partition refused-moves-2: the topic has 2, counted from 0"),
        (["nope", "0=1"], "topic nope: there is no such topic"),
        (["refused-moves"], "no partitions given: use `refused-moves 0=1,2,3`"),
        (["refused-moves", "0"], "'0': give PARTITION=BROKER,BROKER as in 0=1,2,3"),
        (["refused-moves", "0=a"], "'0=a': give PARTITION=BROKER,BROKER"),
        (["refused-moves", "0=1", "0=2"], "refused-moves-0 is given twice"),
        (["--cancel"], "no partition is being reassigned: there is nothing to cancel"),
        (["refused-moves", "0", "--cancel"], "refused-moves-0 is not being reassigned"),
    ):
        answer = on_trio("partition", "reassign", *words)
        assert answer.code != 0
        assert expected in answer.err
    mixed = on_trio("partition", "reassign", "refused-moves", "0=9", "1=1", "--json")
    found = json.loads(mixed.out)
    assert (mixed.code, found["done"]) == (1, [{"topic": "refused-moves", "partition": 1}])
    assert [(failure["partition"], "no brokers here" in failure["error"]) for failure in found["failed"]] == [(0, True)]
    assert replicas(on_trio, "refused-moves") == [[0], [1]]


def test_a_cancelled_reassignment_is_rolled_back(trio: LocalCluster, on_trio: Kreplog) -> None:
    place(on_trio, "led-back", "0", "0")
    with standing_still(trio, 2):
        outcome = on_trio("partition", "reassign", "led-back", "0=2", "1=1,2", "--no-wait")
        assert (outcome.code, outcome.out) == (
            0,
            b"2 partitions still moving: wait with `kreplog partition reassign`\n",
        )
        eventually(lambda: moving(on_trio, "led-back") == [[2], [1, 2]], "it does not begin")
        assert on_trio("partition", "reassign", "led-back", "--cancel", "1").code == 0
        assert moving(on_trio, "led-back") == [[2], []]
        assert on_trio("partition", "reassign", "--cancel").code == 0
    assert replicas(on_trio, "led-back") == [[0], [0]]


def moving(run: Kreplog, topic: str) -> list[list[int]]:
    return [
        partition["adding"] for partition in json.loads(run("topic", "describe", topic, "--json").out)["partitions"]
    ]


def test_an_interrupted_reassignment_continues_and_can_be_followed_again(trio: LocalCluster, on_trio: Kreplog) -> None:
    place(on_trio, "left", "0")
    command = [sys.executable, "-m", "kreplog", "partition", "reassign"]
    where = ["--cluster", str(trio.directory)]
    with standing_still(trio, 2):
        waiting = subprocess.Popen([*command, "left", "0=2", *where], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        assert waiting.stderr is not None
        assert waiting.stderr.readline().startswith(b"0 of 1 partition")
        waiting.send_signal(signal.SIGINT)
        out, err = waiting.communicate(timeout=WITHIN_S)
        assert (waiting.returncode, out) == (
            130,
            b"1 partition still moving: wait with `kreplog partition reassign`\n",
        )
        assert b"Traceback" not in err
    outcome = on_trio("partition", "reassign")
    assert outcome.code == 0 and replicas(on_trio, "left") == [[2]]


def throttles(run: Kreplog, topic: str, *brokers: int) -> list[dict[str, str]]:
    """The own settings of a topic and of brokers that have to do with throttles."""
    configs = [json.loads(run("topic", "describe", topic, "--json").out)["configs"]]
    configs += [json.loads(run("broker", "describe", "--id", broker, "--json").out)["configs"] for broker in brokers]
    return [{name: value for name, value in found.items() if "throttled" in name} for found in configs]


def test_a_move_is_throttled_until_it_has_ended(on_trio: Kreplog) -> None:
    """KIP-73: a response has 4 MiB, and none follows within eleven seconds."""
    leader, follower = "leader.replication.throttled", "follower.replication.throttled"
    rates = {f"{leader}.rate": "1", f"{follower}.rate": "1"}
    place(on_trio, "slow", "0", "0")
    assert on_trio("topic", "alter", "slow", "--config", f"{leader}.replicas=1:0").code == 0
    on_trio("produce", "slow", "--partition", 0, stdin=(b"x" * 1000 + b"\n") * 20_000)
    assert on_trio("partition", "reassign", "slow", "0=1,2", "--throttle", 1, "--no-wait").code == 0
    lists = {f"{leader}.replicas": "1:0,0:0", f"{follower}.replicas": "0:1,0:2"}
    assert throttles(on_trio, "slow", 0, 1, 2) == [lists, rates, rates, rates]
    assert moving(on_trio, "slow")[0] == [1, 2]
    for broker in range(3):
        faster = (f"--config={name}=1000000000" for name in rates)
        assert on_trio("broker", "alter", "--id", broker, *faster).code == 0
    assert on_trio("partition", "reassign").code == 0
    assert replicas(on_trio, "slow") == [[1, 2], [0]]
    assert throttles(on_trio, "slow", 0, 1, 2) == [{f"{leader}.replicas": "1:0"}, {}, {}, {}]


def test_throttles_are_removed_by_the_command_that_has_set_them(on_trio: Kreplog) -> None:
    place(on_trio, "throttled", "0", "0")
    outcome = on_trio("partition", "reassign", "throttled", "0=1", "1=9", "--throttle", 1_000_000)
    assert outcome.code == 1 and "no brokers here" in outcome.err
    assert replicas(on_trio, "throttled") == [[1], [0]]
    assert throttles(on_trio, "throttled", 0, 1, 2) == [{}, {}, {}, {}]
    for words in (["throttled", "0", "--cancel"], []):
        refused = on_trio("partition", "reassign", *words, "--throttle", 5)
        assert (refused.code, "--throttle is for partitions that are given" in refused.err) == (2, True)


def test_a_reassignment_that_is_cancelled_elsewhere_is_not_awaited_for_ever(
    trio: LocalCluster, on_trio: Kreplog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reassignment, "START_TIMEOUT_S", 0.2)
    place(on_trio, "elsewhere", "0")
    with connecting.admin_client(trio.directory, None) as brokers:
        nobodys = TopicPartition("elsewhere", 0)
        gone = TopicPartition("gone", 0)
        *_, progress = reassignment.follow(brokers, {nobodys: (1,), gone: (1,)})
    assert progress.ended and not progress.done
    assert "not being reassigned, and its replicas are [0]" in progress.failed[nobodys]
    assert "deleted" in progress.failed[gone]


def test_elect_preferred_elects_the_preferred_replicas(on_trio: Kreplog) -> None:
    place(on_trio, "elected", "0,1", "0,1")
    first, second = (partition["leader"] for partition in described(on_trio, "elected"))
    words = f"0={1 - first},{first}", f"1={second},{1 - second}"
    assert on_trio("partition", "reassign", "elected", *words).code == 0
    result = json.loads(on_trio("partition", "elect-preferred", "elected", "--json").out)
    moved = {"topic": "elected", "partition": 0, "leader": 1 - first}
    assert result == {"elected": [moved], "unchanged": 1, "failed": []}
    assert [partition["leader"] for partition in described(on_trio, "elected")] == [1 - first, second]
    result = on_trio("partition", "elect-preferred", "elected")
    assert (result.code, result.out) == (0, b"0 leaders elected, 2 preferred already, 0 not elected\n")
    assert on_trio("partition", "elect-preferred").code == 0
    refused = on_trio("partition", "elect-preferred", "nope")
    assert (refused.code, "topic nope: there is no such topic" in refused.err) == (1, True)


def test_elect_unclean_elects_of_partitions_without_a_leader_alone(trio: LocalCluster, on_trio: Kreplog) -> None:
    """Partition 0 is on brokers 0 and 1, of which 0 alone has the newest record and is down; 1 is on broker 2."""
    place(on_trio, "bereft", "0,1", "2,1")
    assert on_trio("topic", "alter", "bereft", "--config", "min.insync.replicas=1").code == 0
    on_trio("produce", "bereft", "--partition", 0, stdin=b"of both\n")
    try:
        trio.stop([1])
        on_trio("produce", "bereft", "--partition", 0, stdin=b"of broker 0\n")
        trio.stop([0])
        failed = on_trio("partition", "elect-unclean", "bereft", "--execute")
        assert (failed.code, b"1 partition without a leader, 0 leaders elected" in failed.out) == (1, True)
        trio.start([1])
        planned = on_trio("partition", "elect-unclean", "bereft")
        assert planned.out == (
            b"bereft-0: no leader, in sync [0], live [1]\n1 partition without a leader: --execute elects leaders\n"
        )
        assert described(on_trio, "bereft")[0]["leader"] == NO_LEADER
        assert on_trio("partition", "elect-unclean", "bereft", 1, "--execute").out.startswith(b"0 partitions")
        refused = on_trio("partition", "elect-unclean", "bereft", 7)
        assert (refused.code, "topic bereft has no partition 7" in refused.err) == (2, True)
        result = json.loads(on_trio("partition", "elect-unclean", "bereft", "--execute", "--json").out)
        elected = {"topic": "bereft", "partition": 0, "isr": [0], "live": [1], "leader": 1, "error": None}
        assert result == {"leaderless": [elected]}
        on_trio("produce", "bereft", "--partition", 0, stdin=b"of broker 1\n")
    finally:
        trio.start()
    eventually(lambda: described(on_trio, "bereft")[0]["isr"] == [0, 1], "broker 0 is in sync")
    outcome = on_trio("consume", "bereft", "--partition", 0, "--from-beginning", "-n", 2)
    assert outcome.out == b"of both\nof broker 1\n"


def described(run: Kreplog, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run("topic", "describe", topic, "--json").out)["partitions"]
    return found


def test_a_replica_that_is_done_before_the_first_poll_counts_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """By then the old leader's replica is deleted: its size is read before."""
    moved, refused = TopicPartition("t", 0), TopicPartition("t", 1)
    sizes = {moved: 100, refused: 1000}
    monkeypatch.setattr(
        reassignment,
        "leader_sizes",
        lambda brokers, partitions: {partition: sizes[partition] for partition in partitions},
    )
    monkeypatch.setattr(reassignment, "replica_sizes", lambda brokers, wanted: {})
    monkeypatch.setattr(reassignment, "ongoing_reassignments", lambda brokers: {})
    monkeypatch.setattr(reassignment, "partitions_in", lambda metadata: {moved: SimpleNamespace(replica_nodes=[1, 2])})
    brokers: Any = SimpleNamespace(metadata=lambda topics: None)
    before = {size: SimpleNamespace(replica_nodes=[0]) for size in sizes}
    looked = reassignment.CopiedBytes(brokers, dict.fromkeys(sizes, (1, 2)), before)
    sizes[moved] = 0
    (progress,) = reassignment.follow(brokers, {moved: (1, 2)}, looked)
    assert progress.done == [moved] and (progress.bytes, progress.bytes_to_copy) == (200, 200)
