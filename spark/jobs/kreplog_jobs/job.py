"""What the jobs have alike: command line, session, source, progress, and errors of one line."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pyspark.errors import PySparkException
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import pyspark_kreplog
from kreplog.errors import KreplogError, UsageError
from pyspark_kreplog.kafka_options import client_module

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_S = 0.2

console = Console(stderr=True)

Source = Annotated[Path, typer.Argument(help="The directory that holds the <topic>-<partition> folders.")]
Topics = Annotated[str | None, typer.Option("--subscribe", "-t", help="Topics, with commas between [default: all].")]
Master = Annotated[
    str | None, typer.Option(help="Spark's master, as in local[4] or spark://host:7077 [default: Spark's own setting].")
]

CommandConfig = Annotated[
    Path | None,
    typer.Option(help="Properties of the connections to brokers, such as security.protocol=SASL_SSL and a password."),
]

_BROKERS = re.compile(r"[^/\s,]+:\d+(,[^/\s,]+:\d+)*")


def is_brokers(text: str) -> bool:
    """Whether it is host:port,host:port; a directory of such a name is written ./name."""
    return _BROKERS.fullmatch(text) is not None


def security_of(brokers: str, config: Path | None, option: str = "--command-config") -> dict[str, str]:
    """Kafka's settings of a client's security from the properties `config`, for connections to `brokers`; none without
    a file. They are not on the command line, where other users of the host would see passwords.

    option: by which the file is given. Raises UsageError, which quotes no secret, also where `brokers` is a
    directory."""
    if config is None:
        return {}
    if not is_brokers(brokers):
        raise UsageError(f"{option} is of connections to brokers, and {brokers} is a directory: leave the option out")
    security = client_module("security", "reach")
    settings: dict[str, str] = security.read_properties(config)
    try:
        security.ClientSecurity.of(settings)
    except UsageError as error:
        raise UsageError(f"{option} {config}: {error}", path=str(config)) from None
    return settings


def place(where: str, security: Mapping[str, str]) -> dict[str, str]:
    """The options of a data source or sink for brokers, with the settings of `security`, or for a directory."""
    if not is_brokers(where):
        return {"path": where}
    return {"kafka.bootstrap.servers": where, **{f"kafka.{name}": value for name, value in security.items()}}


def run(main: Callable[..., None]) -> None:
    """Run `main` as the whole command of this process; exits 1 with one line where it fails, 2 for wrong usage."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(help=main.__doc__)(main)
    try:
        app(standalone_mode=True)
    except (KreplogError, PySparkException, OSError) as error:
        console.print(f"error: {_message(error)}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)


def _message(error: Exception) -> str:
    """The sentence of an error that came through Spark's Python worker, without its tracebacks."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if re.match(r"kreplog\.[\w.]+: ", line)]
    return ours[-1].partition(": ")[2] if ours else lines[0] if lines else type(error).__name__


@contextmanager
def session(name: str, master: str | None, **settings: object) -> Iterator[SparkSession]:
    """A session of the job's own, stopped at its end; one that runs in this process already is used, and left."""
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    spark = running or pyspark_kreplog.session(
        f"kreplog {name}", master, spark_log_level="ERROR", spark_ui_showConsoleProgress=False, **settings
    )
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


def subscription(topics: str | None) -> dict[str, str]:
    """The option that names `topics`, or every topic but the internal ones."""
    return {"subscribePattern": "."} if topics is None else {"subscribe": topics}


def records(spark: SparkSession, path: Path, topics: str | None, schema: str) -> DataFrame:
    """The committed records below `path`, of `topics` or of every topic, with the columns of `schema`."""
    return spark.read.format("kreplog").schema(schema).options(path=str(path), **subscription(topics)).load()


@contextmanager
def progress(spark: SparkSession, title: str) -> Iterator[None]:
    """A bar on stderr of the tasks that Spark has finished meanwhile; without a terminal, a line at the end."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    done = threading.Event()
    tracker = spark.sparkContext.statusTracker()
    task = bar.add_task(title, total=None)

    def follow() -> None:
        while not done.wait(POLL_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            running = [stage for stage in stages if stage is not None]
            total = sum(stage.numTasks for stage in running)
            finished = sum(stage.numCompletedTasks for stage in running)
            bar.update(task, completed=finished, total=total or None)

    with bar:
        thread = threading.Thread(target=follow, name="kreplog-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        total = bar.tasks[0].total or 1
        bar.update(task, completed=total, total=total)  # Spark forgets the tasks of a stage as it ends
