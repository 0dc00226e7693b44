"""Kafka's own consumers and tools as members and administrators of groups of kreplog's brokers, unmodified."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration.clusters import FAST, admin_of, running
from tests.interop.jvm import CONSOLE_CONSUMER, CONSOLE_PRODUCER, Kafka

pytestmark = pytest.mark.interop

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
COUNT = 50


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = (*FAST, '"offsets.topic.num.partitions" = 1', '"group.initial.rebalance.delay.ms" = 0')
    with running(tmp_path_factory.mktemp("cluster"), settings) as made:
        yield made


def groups(kafka: Kafka, cluster: LocalCluster, *arguments: str) -> str:
    return kafka.run(GROUPS, "--bootstrap-server", cluster.bootstrap(), *arguments)


def consumed(kafka: Kafka, cluster: LocalCluster, group: str, count: int, strategy: str = "RangeAssignor") -> list[int]:
    output = kafka.run(
        CONSOLE_CONSUMER,
        *("--bootstrap-server", cluster.bootstrap(), "--topic", "grouped", "--group", group, "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", "30000"),
        *("--consumer-property", f"partition.assignment.strategy=org.apache.kafka.clients.consumer.{strategy}"),
    )
    return sorted(int(line) for line in output.split())


@pytest.fixture(scope="module", autouse=True)
def records(kafka: Kafka, cluster: LocalCluster) -> None:
    with admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({"grouped": {"num_partitions": 3, "replication_factor": 3}}, wait_for_metadata=True)
    kafka.run(
        CONSOLE_PRODUCER,
        *("--bootstrap-server", cluster.bootstrap(), "--topic", "grouped"),
        given=b"".join(b"%d\n" % number for number in range(COUNT)),
    )


@pytest.mark.parametrize("strategy", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_a_console_consumer_continues_where_its_group_was(kafka: Kafka, cluster: LocalCluster, strategy: str) -> None:
    first = consumed(kafka, cluster, strategy, 20, strategy)
    second = consumed(kafka, cluster, strategy, COUNT - 20, strategy)
    assert sorted(first + second) == list(range(COUNT))


def test_the_tool_lists_describes_resets_and_deletes(kafka: Kafka, cluster: LocalCluster) -> None:
    consumed(kafka, cluster, "tended", COUNT)
    assert "tended" in groups(kafka, cluster, "--list").split()
    assert re.search(r"^tended +Empty", groups(kafka, cluster, "--list", "--state"), re.MULTILINE)
    named = ("--group", "tended")
    described = groups(kafka, cluster, "--describe", *named)
    lags = [line.split()[3:6] for line in described.splitlines() if line.startswith("tended")]
    assert sum(int(current) for current, _, _ in lags) == COUNT and {lag for _, _, lag in lags} == {"0"}, described
    groups(kafka, cluster, "--reset-offsets", *named, "--to-earliest", "--topic", "grouped", "--execute")
    assert consumed(kafka, cluster, "tended", COUNT) == list(range(COUNT))
    output = groups(kafka, cluster, "--delete-offsets", *named, "--topic", "grouped:0")
    assert "Successful" in output, output
    assert "successful" in groups(kafka, cluster, "--delete", *named)
    assert "tended" not in groups(kafka, cluster, "--list").split()


def test_the_dump_tool_reads_the_records_of_groups(kafka: Kafka, cluster: LocalCluster) -> None:
    consumed(kafka, cluster, "dumped", COUNT)
    cluster.stop()  # a log that is closed ends where its records do
    (segment,) = (cluster.home(0) / "data" / "__consumer_offsets-0").glob("*.log")
    output = kafka.dump("--offsets-decoder", "--files", str(segment))
    committed = re.findall(
        r'"group":"dumped","topic":"grouped","partition":\d}} payload: {"version":"3","data":{"offset":(\d+),', output
    )
    assert sum(map(int, committed)) == COUNT, output
    assert re.search(r'"group":"dumped"}}.*"protocol":"range","leader":"console-consumer-', output), output
