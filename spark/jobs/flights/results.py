"""The results of the stream: as pandas computes them, as the topic and the Parquet files have them, a chart."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import kreplog
from flights.source import check
from flights.stream import RESULT
from kreplog.errors import StorageError

KEY = ["hour", "origin"]
COLUMNS = [*KEY, "flights", "departures", "mean_delay"]


def by_pandas(flights: pd.DataFrame) -> pd.DataFrame:
    """The result that the stream has to write: for each scheduled hour and airport its flights, the departures, which
    are those not cancelled, and the mean delay of these in minutes, NaN where there is none."""
    groups = flights.groupby([flights["time_hour"].rename("hour"), "origin"])["dep_delay"]
    return _indexed(groups.agg(flights="size", departures="count", mean_delay="mean").reset_index())


def of_topic(data: Path) -> pd.DataFrame:
    values: list[bytes | None] = []
    for path in sorted(data.glob(f"{RESULT}-*")):
        with kreplog.Log.open(path, read_only=True) as log:
            values.extend(log.values())
    return _indexed(pd.DataFrame([json.loads(value or b"{}") for value in values], columns=COLUMNS))


def count_of_topic(data: Path) -> int:
    """The number of records that the topic has so far."""
    count = 0
    for path in data.glob(f"{RESULT}-*"):
        # The sink may be creating the partition, whose log cannot be read yet. All logs are compared at the end.
        with suppress(StorageError), kreplog.Log.open(path, read_only=True) as log:
            count += log.high_watermark
    return count


def of_parquet(directory: Path) -> pd.DataFrame:
    return _indexed(pd.read_parquet(directory, columns=COLUMNS))


def _indexed(rows: pd.DataFrame) -> pd.DataFrame:
    """Sorted by hour and airport, which become the index."""
    hours = pd.to_datetime(rows["hour"], utc=True).dt.as_unit("ms")
    return rows.assign(hour=hours).set_index(KEY).sort_index().astype({"mean_delay": float})


def compare(name: str, found: pd.DataFrame, expected: pd.DataFrame) -> None:
    """Raises DemoError at the first hour and airport that is missing, superfluous, repeated, or has another value."""
    repeated = found.index[found.index.duplicated()]
    check(repeated.empty, f"{name} has {_row(repeated)} twice")
    missing, superfluous = expected.index.difference(found.index), found.index.difference(expected.index)
    check(missing.empty, f"{name} lacks {_row(missing)}")
    check(superfluous.empty, f"{name} has {_row(superfluous)}, for which there is no flight")
    differing = found.compare(expected, result_names=(name, "pandas"))
    check(differing.empty, f"{_row(differing.index)} differs between {name} and pandas:\n{differing.head(1)}")


def _row(index: pd.Index) -> str:
    return "" if index.empty else f"hour {index[0][0]:%Y-%m-%d %H:%M} of {index[0][1]}"


def totals(results: pd.DataFrame, by: object) -> pd.DataFrame:
    """Flights, departures and their mean delay, summed over what has the same `by` (as in DataFrame.groupby)."""
    minutes = results["mean_delay"] * results["departures"]
    sums = results.assign(minutes=minutes).groupby(by)[["flights", "departures", "minutes"]].sum()
    return sums.assign(mean_delay=sums["minutes"] / sums["departures"])


def print_table(console: Console, results: pd.DataFrame) -> None:
    table = Table("airport", title="Departures by airport", title_justify="left")
    for name in ("flights", "departures", "mean delay, minutes"):
        table.add_column(name, justify="right")
    for row in totals(results, "origin").itertuples():
        table.add_row(row.Index, f"{row.flights:,}", f"{row.departures:,}", f"{row.mean_delay:.2f}")
    console.print(table)


def draw(results: pd.DataFrame, chart: Path) -> None:
    """Departures by month, and their mean delay by hour of the day, of each airport, as a PNG."""
    rows = results.reset_index()
    local = rows["hour"].dt.tz_convert("America/New_York")
    by_month = totals(rows, [local.dt.month.rename("month"), "origin"])["departures"].unstack()
    by_hour = totals(rows, [local.dt.hour.rename("hour of the day"), "origin"])["mean_delay"].unstack()
    figure = Figure(figsize=(12, 5), layout="constrained")
    left, right = figure.subplots(1, 2)
    by_month.plot.bar(ax=left, rot=0, legend=False, title="departures")
    by_hour.plot.bar(ax=right, rot=0, title="mean delay of departure, minutes")
    figure.suptitle(f"{results['flights'].sum():,} flights out of New York, 2013")
    chart.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(chart, dpi=150)
