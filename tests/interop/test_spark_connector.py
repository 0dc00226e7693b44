"""Spark's own Kafka connector, unmodified, against kreplog's brokers: batches and streams, both ways.

The connector's newest version is one for another PySpark than ours, which therefore gets an environment of its own in
the user's cache folder, made once.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration.clusters import admin_of, running, wait_for_topic
from tests.interop.clients import found_by_kreplog
from tests.interop.connector.job import FIRST, SECOND
from tests.interop.jvm import Unavailable, cache_folder, classpath, java

pytestmark = pytest.mark.interop

FOLDER = Path(__file__).parent / "connector"
INSTALL_S = 900
JOB_S = 300


def interpreter() -> Path:
    """Of an environment that has the PySpark of the connector's pom.xml. Raises Unavailable."""
    found = re.search(r"<spark.version>(.+)</spark.version>", (FOLDER / "pom.xml").read_text())
    assert found is not None
    python = cache_folder() / f"pyspark-{found[1]}-{sys.version_info[0]}.{sys.version_info[1]}" / "bin" / "python"
    installed = python.parent.parent / "installed"
    if not installed.exists():
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(python.parent.parent)],
            [str(python), "-m", "pip", "install", "--quiet", f"pyspark=={found[1]}"],
        ):
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_S)
            if done.returncode:
                raise Unavailable(f"pyspark {found[1]} cannot be installed: {(done.stderr or done.stdout)[-500:]}")
        installed.touch()
    return python


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
    try:
        jars = ",".join(classpath(FOLDER / "pom.xml").split(os.pathsep))
        python, home = interpreter(), Path(java()).parent.parent
    except Unavailable as error:
        pytest.skip(str(error))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    environment |= {"PYSPARK_PYTHON": str(python), "JAVA_HOME": str(home)}
    command = [str(python), str(FOLDER / "job.py"), cluster.bootstrap(), jars, str(tmp_path_factory.mktemp("job"))]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=JOB_S
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
