"""A topic of real flights in a directory, for the jobs to work on."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import kreplog
from flights.source import PARTITIONS, TOPIC, DemoError, events, load_flights

ROWS = 20_000


@pytest.fixture(scope="session")
def flights() -> pd.DataFrame:
    try:
        return load_flights(ROWS)
    except DemoError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def topic(flights: pd.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the topic "flights", keyed by carrier."""
    directory = tmp_path_factory.mktemp("flights")
    logs = [kreplog.Log.open(directory / f"{TOPIC}-{partition}") for partition in range(PARTITIONS)]
    appenders = [log.appender(compression="lz4") for log in logs]
    for event in events(flights):
        appenders[event.partition].append(event.value, key=event.key, timestamp_ms=event.timestamp_ms)
    for log, appender in zip(logs, appenders, strict=True):
        appender.close()
        log.close()
    return directory
