"""Each program of examples/ runs, and prints what it is there to show."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kreplog.cluster.local_cluster import LocalCluster
from tests.integration import clusters

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
WITHIN_S = 300

RECORDS = ["0 b'record 0'", "1 b'record 1'", "2 b'record 2'"]
IN_A_DIRECTORY = {
    "embedded_log": ["0 b'alice' b'apples'", "1 b'bob' b'pears'", "2 b'alice' b'plums'"],
    "topic": ["alice apples", "bob pears", "alice plums", "3 records in 4 partitions"],
    "cursor": ["alice 8", "bob 4"],
    "cursor_group": ["100 jobs are done"],
    "job_queue": ["9 jobs are done", "broken b'ValueError: this job always fails'"],
    "outbox": ["order 1: pen", "order 2: ink", "order 3: cup"],
    "event_sourcing": ["bob has 20, not 30", "{'alice': 35, 'bob': 20}"],
    "tail_to_web_page": ['data: "news 0"', 'data: "news 1"', 'data: "news 2"'],
    "table": ["tea 4", "tea 5", "2 keys"],
    "appender": ["10000 records, 1 segment"],
    "tail_from_another_process": [f"{number} b'record {number}'" for number in range(5)],
    "follow_with_asyncio": ["from 0: 10", "from 1: 9", "from 2: 7"],
    "arrow_to_pandas": ["{'alice': 8, 'bob': 4}"],
    "arrow_to_polars": ["{'alice': 8, 'bob': 4}"],
    "arrow_to_duckdb": ["{'alice': 8, 'bob': 4}"],
}
ON_A_CLUSTER = {
    "cluster_kafka_python": ["offsets [0, 1, 2]", *RECORDS],
    "cluster_confluent_kafka": ["offset 0", "offset 1", "offset 2", *RECORDS],
    "bulk_client": ["bulk-client-0: offsets 0 to 9999", "alice 5000", "bob 5000"],
    "cluster_aiokafka": ["offset 0", "offset 1", "offset 2", *RECORDS],
}
WITH_SPARK = {"spark_batch": ["alice 8", "bob 4"]}


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KREPLOG_")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "spark")])
    return subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def lines_of(name: str, *arguments: str) -> list[str]:
    """What the example prints."""
    done = run(name, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_each_is_run_here() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*IN_A_DIRECTORY, *ON_A_CLUSTER, *WITH_SPARK}


@pytest.mark.parametrize("name", IN_A_DIRECTORY)
def test_in_a_directory(name: str, tmp_path: Path) -> None:
    assert lines_of(name, str(tmp_path / "new")) == IN_A_DIRECTORY[name], "which makes its directory"


@pytest.mark.parametrize("name", IN_A_DIRECTORY)
def test_without_a_directory_the_usage_is_shown(name: str) -> None:
    done = run(name)
    assert done.returncode == 1 and f"Usage: python {name}.py DIRECTORY" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with clusters.running(tmp_path_factory.mktemp("examples"), clusters.GROUPS) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("name", ON_A_CLUSTER)
def test_on_a_cluster(name: str, cluster: LocalCluster) -> None:
    topic = name.replace("_", "-")
    with clusters.admin_of(cluster.bootstrap()) as admin:
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 3}})
    clusters.wait_for_topic(cluster, topic)
    assert lines_of(name, cluster.bootstrap(), topic) == ON_A_CLUSTER[name]


@pytest.mark.long  # it starts Spark as the README does, whose blocks every run of the tests runs
@pytest.mark.spark
def test_with_spark(tmp_path: Path) -> None:
    assert lines_of("spark_batch", str(tmp_path)) == WITH_SPARK["spark_batch"]
