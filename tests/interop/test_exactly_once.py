"""Faults on three real brokers beneath read-process-write loops of Kafka's own clients, whose transactions are of the
second version (KIP-890): as tests/integration/test_exactly_once.py does with librdkafka, which has the first alone."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.wire import transaction_records
from tests.integration.copying import Copying
from tests.integration.namespaces import Net
from tests.integration.test_exactly_once import Copies, cluster_and_net
from tests.interop.jvm import Kafka

__all__ = ["cluster_and_net"]

pytestmark = [pytest.mark.interop, pytest.mark.long]

SEED = 20261136
PARTS, ROUNDS = 2, 8
"""Each part has brokers of its own, and takes some minutes. Together they have every kind of fault."""


class JavaCopying(Copying):
    """Whose members are Kafka's own clients."""

    def __init__(self, kafka: Kafka, bootstrap: str, *arguments: Any) -> None:
        super().__init__(bootstrap, *arguments)
        self._kafka = kafka

    def _spawn(self, slot: int) -> subprocess.Popen[bytes]:
        return self._kafka.start(
            Path(__file__).with_name("CopyMember.java"),
            *(self._bootstrap, self.source, self.target, self.group, self.protocol, self.transactional_id(slot)),
            log=self._folder / f"{self.target}-member-{slot}",
        )


@pytest.mark.parametrize("seed", range(SEED, SEED + PARTS))
def test_each_record_is_copied_once_by_java_in_many_rounds(
    cluster_and_net: tuple[LocalCluster, Net | None],
    newest: Kafka,
    tmp_path: Path,
    figure: Callable[[str], None],
    seed: int,
) -> None:
    cluster, net = cluster_and_net
    with Copies(cluster, net, tmp_path, ["classic", "consumer"], seed, partial(JavaCopying, newest)) as copies:
        copies.run(ROUNDS)
    copies.judge()
    cluster.stop()
    assert client_versions(cluster) == {"copy-classic": {2}, "copy-consumer": {2}}
    figure(f"{ROUNDS} rounds of faults beneath Java's clients, {copies.counts()} (seed {seed})")


def client_versions(cluster: LocalCluster) -> dict[str, set[int]]:
    """The versions of the protocol of the transactions of each group's members, by the coordinators' log."""
    found: dict[str, set[int]] = {}
    for segment in (cluster.home(0) / "data").glob("__transaction_state-*/*.log"):
        for _, record in transaction_records.decode_batches(segment.read_bytes(), 0):
            if record.value is not None and record.value.partitions:
                group, _, _ = record.transactional_id.rpartition("-")
                found.setdefault(group, set()).add(record.value.client_version)
    return found
