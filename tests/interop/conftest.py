"""The real Apache Kafka: its tools and its broker, one of each for the whole run.

`make interop` runs this folder, and so does CI; `make test` does not, for it downloads Kafka and takes minutes.
`KREPLOG_INTEROP=1 make test-long` runs the long tests here with the others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from tests.interop.jvm import NEWEST, Broker, Kafka, skipped_where_unavailable
from tests.spark.conftest import spark

__all__ = ["spark"]

WANTED = "KREPLOG_INTEROP"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "interop: needs a real Apache Kafka, so Java 17 or newer, and Maven to get it")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Left out, unless selected by the environment or by name."""
    wanted = os.environ.get(WANTED) or any("interop" in argument for argument in config.args)
    return None if wanted else True


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Kafka:
    with skipped_where_unavailable():
        return Kafka(tmp_path_factory.mktemp("newest"), NEWEST)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Kafka:
    with skipped_where_unavailable():
        return Kafka(tmp_path_factory.mktemp("kafka"))


@pytest.fixture(scope="session")
def one_broker(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Made once; killed at the end if it still runs."""
    made = Broker(kafka, tmp_path_factory.mktemp("broker"))
    try:
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="module")
def broker(one_broker: Broker) -> Broker:
    """A broker that serves when a module begins, also where an earlier one has stopped it."""
    one_broker.start()
    return one_broker


@pytest.fixture(scope="module", params=[None, NEWEST], ids=["pom", NEWEST])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of each release, of the module's own; killed at the end."""
    folder = tmp_path_factory.mktemp("either")
    with skipped_where_unavailable():
        made = Broker(Kafka(folder, request.param), folder)
    try:
        made.start()
        yield made
    finally:
        made.kill()
