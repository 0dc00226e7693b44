"""Spark's own Kafka connector, unmodified, against kreplog's brokers: batches and streams, both ways."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration.clusters import admin_of, running, wait_for_topic
from tests.interop.clients import found_by_kreplog
from tests.interop.connector.job import FIRST, SECOND
from tests.interop.connector_environment import FOLDER, environment, interpreter, jars
from tests.interop.jvm import skipped_where_unavailable

pytestmark = pytest.mark.interop

JOB_S = 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as made:
        with admin_of(made.bootstrap()) as admin:
            for topic, partitions in (("written", 2), ("streamed", 1)):
                admin.create_topics(
                    {topic: {"num_partitions": partitions, "replication_factor": 3}}, wait_for_metadata=True
                )
                wait_for_topic(made, topic, partitions)
        yield made


@pytest.fixture(scope="module")
def result(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the job printed."""
    with skipped_where_unavailable():
        python = interpreter()
        arguments = [cluster.bootstrap(), jars(), str(tmp_path_factory.mktemp("job"))]
        variables = environment(python)
    command = [str(python), str(FOLDER / "job.py"), *arguments]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=variables, timeout=JOB_S
    )
    assert done.returncode == 0, done.stderr[-4000:]
    read: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return read


def values(start: int, stop: int) -> list[str]:
    return sorted(f"value-{number}" for number in range(start, stop))


def test_a_batch_is_written_and_read(result: dict[str, Any]) -> None:
    rows = result["rows"]
    assert [(row[2], row[3]) for row in rows] == [
        (partition, offset) for partition in (0, 1) for offset in range((FIRST + SECOND) // 2)
    ]
    expected = {
        (None if number % 10 == 0 else f"key-{number % 7}", f"value-{number}", number % 2, str(number))
        for number in range(FIRST + SECOND)
    }
    assert {(key, value, partition, header) for key, value, partition, _, header in rows} == expected


def test_a_read_begins_at_offsets_and_at_a_time(result: dict[str, Any]) -> None:
    assert result["tail"] == values(FIRST, FIRST + SECOND)
    assert result["later"] == values(FIRST, FIRST + SECOND)


def test_a_stream_goes_on_from_its_checkpoint(result: dict[str, Any], cluster: LocalCluster) -> None:
    assert result["first_batches"] == [1000, 1000, 1000]
    assert result["second_batches"] == [SECOND]
    assert result["streamed"] == values(0, FIRST + SECOND)
    for broker in cluster.brokers:
        found = found_by_kreplog(cluster.home(broker) / "data" / "streamed-0", FIRST + SECOND)
        assert sorted((record.value or b"").decode() for record in found) == result["streamed"]
