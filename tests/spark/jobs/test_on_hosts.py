"""Requests to log directories on named hosts, as far as one host shows it; `make spark-cluster` has three."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import SparkSession

from kreplog.errors import UsageError
from kreplog_jobs import on_hosts
from kreplog_jobs.on_hosts import LogDirectory, run_on_hosts
from tests.faults.forked import result_of

pytestmark = pytest.mark.spark


class Names(NamedTuple):
    """A request for the names of all files of a directory."""

    directory: LogDirectory


def names(request: Names) -> list[str]:
    return sorted(path.name for path in Path(request.directory.path).iterdir())


def directory(path: Path, *files: str, owner: int | None = None) -> str:
    path.mkdir()
    for file in files:
        (path / file).touch()
    if owner is not None:
        (path / "meta.properties").write_text(f"version=0\nbroker.id={owner}\n")
    return str(path)


def test_results_are_in_the_order_of_the_requests(spark: SparkSession, tmp_path: Path) -> None:
    host = socket.gethostname()
    requests = [
        Names(LogDirectory(number, directory(tmp_path / str(number), f"file-{number}"), host if number % 2 else None))
        for number in range(5)
    ]
    assert run_on_hosts(spark, names, requests) == [[f"file-{number}"] for number in range(5)]
    assert run_on_hosts(spark, names, []) == []


def test_spark_hears_where_a_request_is_best_run(spark: SparkSession, tmp_path: Path) -> None:
    requests = {
        number: Names(LogDirectory(number, directory(tmp_path / str(number)), host))
        for number, host in enumerate(["one", None, "two"])
    }
    rdd = on_hosts._rdd(spark, requests, {"one": ["10.0.0.1"], "two": ["10.0.0.2", "two.example"]})
    assert rdd.collect() == list(requests.items())
    made = rdd._jrdd.rdd()
    preferred = [made.preferredLocations(partition).mkString(" ") for partition in made.partitions()]
    assert preferred == ["10.0.0.1", "", "10.0.0.2 two.example"]


def test_a_directory_that_is_not_there_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    here = Names(LogDirectory(1, directory(tmp_path / "1"), "localhost"))
    for host, message in {
        None: "a task ran on host .*, where there is no such directory. Name the host that has it, as in 2=HOST:",
        "elsewhere": "is expected on host elsewhere: tasks ran on .*, where there is no such directory. Name the host",
    }.items():
        with pytest.raises(UsageError, match=f"log directory {tmp_path}/2 of broker 2.*{message}"):
            run_on_hosts(spark, names, [here, Names(LogDirectory(2, f"{tmp_path}/2", host))])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without rights")
@pytest.mark.parametrize(
    ("closed", "absence"),
    [("data", "it cannot be read"), ("data/meta.properties", "its meta.properties cannot be read")],
)
def test_what_a_worker_may_not_read_is_named(closed: str, absence: str) -> None:
    with tempfile.TemporaryDirectory() as root:  # whose parents anybody may enter, unlike those of tmp_path
        path = directory(Path(root, "data"), owner=1)
        Path(root).chmod(0o755)
        Path(root, closed).chmod(0)

        def as_nobody() -> str | None:
            os.setgroups([])
            os.setresuid(65534, 65534, 65534)
            return on_hosts._absence(LogDirectory(1, path, "localhost"))

        assert result_of(as_nobody) == f"{absence}: Permission denied"


def test_a_directory_of_that_name_of_another_broker_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = directory(tmp_path / "data", owner=3)
    assert run_on_hosts(spark, names, [Names(LogDirectory(3, path, "localhost"))]) == [["meta.properties"]]
    with pytest.raises(UsageError, match="the directory of that name is of broker 3"):
        run_on_hosts(spark, names, [Names(LogDirectory(2, path, "localhost"))])
