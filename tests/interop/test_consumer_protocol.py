"""The newest Kafka's own consumers with group.protocol=consumer (KIP-848), and its tools, against kreplog's brokers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import kafka
import pytest

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration.clusters import FAST, admin_of, eventually, running
from tests.interop.jvm import CONSOLE_CONSUMER, Kafka
from tests.interop.test_groups import COUNT, groups

pytestmark = pytest.mark.interop

DUMP, CONFIG_TOOL = "org.apache.kafka.tools.DumpLogSegments", "org.apache.kafka.tools.ConfigCommand"
"""The tools' places in the newest Kafka."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    settings = (
        *(*FAST, '"offsets.topic.num.partitions" = 1'),
        '"group.consumer.min.heartbeat.interval.ms" = 200',
        '"group.consumer.heartbeat.interval.ms" = 200',
    )
    with running(tmp_path_factory.mktemp("cluster"), settings) as made:
        with admin_of(made.bootstrap()) as admin:
            admin.create_topics({"grouped": {"num_partitions": 3, "replication_factor": 3}}, wait_for_metadata=True)
        yield made


def reading(cluster: LocalCluster, group: str) -> tuple[str, ...]:
    """Arguments of the console consumer."""
    return (
        *("--bootstrap-server", cluster.bootstrap(), "--topic", "grouped", "--group", group, "--from-beginning"),
        *("--command-property", "group.protocol=consumer"),
    )


def consumed(newest: Kafka, cluster: LocalCluster, group: str, count: int) -> list[int]:
    limits = ("--max-messages", str(count), "--timeout-ms", "30000")
    output = newest.run(CONSOLE_CONSUMER, *reading(cluster, group), *limits)
    return sorted(int(line) for line in output.split())


def columns(output: str, group: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines() if line.startswith(f"{group} ")]


@pytest.fixture(scope="module", autouse=True)
def records(cluster: LocalCluster) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap().split(","))
    for number in range(COUNT):
        producer.send("grouped", b"%d" % number, partition=number % 3)
    producer.close()


def test_a_console_consumer_continues_where_its_group_was(newest: Kafka, cluster: LocalCluster) -> None:
    first = consumed(newest, cluster, "continued", 20)
    second = consumed(newest, cluster, "continued", COUNT - 20)
    assert sorted(first + second) == list(range(COUNT))


def test_the_coordinator_matches_an_expression(newest: Kafka, cluster: LocalCluster) -> None:
    arguments = (cluster.bootstrap(), "expression", "gr.*ed", str(COUNT))
    output = newest.run(Path(__file__).with_name("PatternConsumer.java"), *arguments)
    assert sorted(map(int, output.split())) == list(range(COUNT))


def test_the_tool_describes_a_group_with_members(newest: Kafka, cluster: LocalCluster, tmp_path: Path) -> None:
    log = tmp_path / "consumer.log"
    consumers = [newest.start(CONSOLE_CONSUMER, *reading(cluster, "described"), log=log) for _ in range(2)]
    try:
        output = ""

        def has_followed() -> bool:
            nonlocal output
            output = groups(newest, cluster, "--describe", "--group", "described", "--members", "--verbose")
            # group, member, host, client, number of partitions, epoch, partitions, target epoch, target
            rows = columns(output, "described")
            return sorted(row[4] for row in rows) == ["1", "2"] and all(row[5:7] == row[7:9] for row in rows)

        eventually(has_followed, lambda: f"{output}\n{log.read_text()}", 90)
        state = groups(newest, cluster, "--describe", "--group", "described", "--state")
        assert re.search(r"^described .* uniform +Stable +2$", state, re.MULTILINE), state
        listed = groups(newest, cluster, "--list", "--type", "consumer")
        assert re.search(r"^described +Consumer", listed, re.MULTILINE), listed
        assert not re.search(r"^described ", groups(newest, cluster, "--list", "--type", "classic"), re.MULTILINE)
    finally:
        for consumer in consumers:
            consumer.terminate()
        for consumer in consumers:
            consumer.wait(30)
    lags = [row[3:6] for row in columns(groups(newest, cluster, "--describe", "--group", "described"), "described")]
    assert sum(int(current) for current, _, _ in lags) == COUNT and {lag for _, _, lag in lags} == {"0"}


def test_kip_1043_the_tool_for_groups_of_all_types_lists_and_filters(newest: Kafka, cluster: LocalCluster) -> None:
    consumed(newest, cluster, "of-a-type", 20)
    tool = ("org.apache.kafka.tools.GroupsCommand", "--bootstrap-server", cluster.bootstrap(), "--list")
    assert re.search(r"^of-a-type +Consumer +consumer", newest.run(*tool), re.MULTILINE)
    assert not re.search(r"^of-a-type ", newest.run(*tool, "--group-type", "classic"), re.MULTILINE)


def test_the_tool_resets_and_deletes(newest: Kafka, cluster: LocalCluster) -> None:
    consumed(newest, cluster, "tended", COUNT)
    named = ("--group", "tended")
    groups(newest, cluster, "--reset-offsets", *named, "--to-earliest", "--topic", "grouped", "--execute")
    assert consumed(newest, cluster, "tended", COUNT) == list(range(COUNT))
    output = groups(newest, cluster, "--delete-offsets", *named, "--topic", "grouped:0")
    assert "Successful" in output, output
    assert "successful" in groups(newest, cluster, "--delete", *named)
    assert "tended" not in groups(newest, cluster, "--list").split()


def test_kafkas_tool_changes_configs_of_groups(newest: Kafka, cluster: LocalCluster) -> None:
    every = ("--bootstrap-server", cluster.bootstrap(), "--entity-type", "groups")
    own = (*every, "--entity-name", "configured")
    given = "consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=300"
    newest.run(CONFIG_TOOL, *own, "--alter", "--add-config", given)
    for entity in (own, every):  # without a name: of all groups that have some
        output = newest.run(CONFIG_TOOL, *entity, "--describe")
        assert "configured" in output, output
        assert (
            "consumer.session.timeout.ms=50000 sensitive=false synonyms={DYNAMIC_GROUP_CONFIG:"
            "consumer.session.timeout.ms=50000, DEFAULT_CONFIG:group.consumer.session.timeout.ms=45000}"
        ) in output, output
        assert "consumer.heartbeat.interval.ms=300 sensitive=false" in output, output
    assert consumed(newest, cluster, "configured", COUNT) == list(range(COUNT))
    newest.run(CONFIG_TOOL, *own, "--alter", "--delete-config", "consumer.session.timeout.ms")
    output = newest.run(CONFIG_TOOL, *own, "--describe")
    assert "consumer.session.timeout.ms" not in output and "consumer.heartbeat.interval.ms=300" in output, output
    for refused, reason in (
        ("consumer.session.timeout.ms=60001", "must be within"),
        ("share.session.timeout.ms=50000", "is a setting of share groups"),
    ):
        with pytest.raises(AssertionError, match=reason):
            newest.run(CONFIG_TOOL, *own, "--alter", "--add-config", refused)


def test_the_dump_tool_reads_the_records(newest: Kafka, cluster: LocalCluster) -> None:
    """Last: it stops the brokers."""
    consumed(newest, cluster, "dumped", COUNT)
    cluster.stop()  # a log that is closed ends where its records do
    (segment,) = (cluster.home(0) / "data" / "__consumer_offsets-0").glob("*.log")
    output = newest.run(DUMP, "--offsets-decoder", "--files", str(segment))
    for kind in (3, 5, 6, 7, 8):
        assert re.search(rf'"type":"{kind}","data":{{"groupId":"dumped"', output), output
