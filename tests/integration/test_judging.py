"""The disks that are judged are read at one time, although brokers append while they are read; and what of a dump is
under-replicated. Without brokers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("kafka", reason="the load that is judged is kafka-python's")

from kreplog import Log
from kreplog.core import nodes
from kreplog.types import LeaderAndIsr, Node, NodeStat, TopicPartition
from tests.integration import judging
from tests.integration.view import under_replicated

BROKERS = (0, 1, 2)
P0 = TopicPartition("t", 0)


class Replicas:
    """A partition's logs on the disks of three brokers; `cluster` has its interface as far as it is used here."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folders = {broker: folder / str(broker) for broker in BROKERS}
        self.logs = [stack.enter_context(Log.open(path / str(P0))) for path in self.folders.values()]
        settings = {broker: SimpleNamespace(log_dirs=[str(path)]) for broker, path in self.folders.items()}
        self.cluster: Any = SimpleNamespace(brokers=BROKERS, settings=settings.get)
        self.append(*self.logs)

    def append(self, *logs: Log) -> None:
        for log in logs:
            log.append(b"v")


@pytest.mark.parametrize("broker", BROKERS)
def test_disks_are_read_again_if_a_record_comes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: int
) -> None:
    reads: list[int] = []

    class Appended(judging.ReadDisk):
        """The first time, all replicas get a record after the disk of `broker` has been read."""

        def __init__(self, directories: list[Path]) -> None:
            super().__init__(directories)
            reads.append(int(directories[0].name))
            if len(reads) == broker + 1:
                replicas.append(*replicas.logs)

    with ExitStack() as stack:
        replicas = Replicas(tmp_path, stack)
        monkeypatch.setattr(judging, "ReadDisk", Appended)
        disks = judging.read_at_rest(replicas.cluster)
        ends = [disk.logs[P0].state().leo for _, disk in disks.all()]
        assert ends in ([1, 1, 1], [2, 2, 2])
        assert len(reads) == (3 if broker == 2 else 6)


def test_replicas_that_do_not_agree_are_no_verdict(tmp_path: Path) -> None:
    with ExitStack() as stack:
        replicas = Replicas(tmp_path, stack)
        replicas.append(replicas.logs[1])
        with pytest.raises(AssertionError, match="do not come to the same end"):
            judging.read_at_rest(replicas.cluster, within_s=0.1)


@pytest.mark.parametrize(
    ("living", "isr", "leader", "converged"),
    [
        ((0, 1, 2), (0, 1, 2), 1, True),
        ((0, 1, 2), (0, 1), 1, False),
        ((0, 2), (0, 1, 2), 1, False),
        ((0, 1, 2), (0, 1, 2), -1, False),
        ((0, 1, 2), None, -1, False),
    ],
)
def test_a_state_that_is_under_replicated(
    living: tuple[int, ...], isr: tuple[int, ...] | None, leader: int, converged: bool
) -> None:
    topic = nodes.TopicNode("id", {P0.partition: nodes.Assignment(BROKERS)})
    data = {nodes.topic(P0.topic): nodes.encode_topic(topic), **{nodes.broker(each): b"" for each in living}}
    if isr is not None:
        data[nodes.leader_and_isr(P0)] = nodes.encode_leader_and_isr(LeaderAndIsr(leader, 0, isr))
    found = under_replicated({path: Node(content, NodeStat(0, 1, 1)) for path, content in data.items()})
    assert [text.partition(":")[0] for text in found] == ([] if converged else [str(P0)])
