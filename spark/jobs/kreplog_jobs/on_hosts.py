"""Reading log directories that not every host has: on the host of each, so that only results move.

Spark's RDDs know where their partitions are best computed. PySpark has no way to say it, so SparkContext.makeRDD of the
JVM makes them. Spark prefers that host and does not promise it: a request that lands elsewhere reads nothing, and is
made again.
"""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from kreplog.errors import UsageError

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import SparkSession

ATTEMPTS = 3
"""Rounds in a row in which all requests may land elsewhere."""

EXECUTORS_WITHIN_S = 30.0
"""Spark starts executors while the program runs already."""


class LogDirectory(NamedTuple):
    """A log directory of `broker` at `path` on `host`; without a host, where all that read it are."""

    broker: int
    path: str
    host: str | None = None


class Request(Protocol):
    """The part of a log directory that a function is to read."""

    @property
    def directory(self) -> LogDirectory: ...


Q = TypeVar("Q", bound=Request)
R = TypeVar("R")


class RunOnHosts(Protocol):
    """The results of `function`, in the order of the requests."""

    def __call__(self, function: Callable[[Q], R], requests: Sequence[Q]) -> list[R]: ...


class _Outcome(NamedTuple):
    """The outcome of request `number`: its result, or why `host` does not have its directory."""

    number: int
    host: str
    result: Any
    absence: str | None


def run_in_driver(function: Callable[[Q], R], requests: Sequence[Q]) -> list[R]:
    """A RunOnHosts of directories that this host has."""
    return [function(request) for request in requests]


def run_on_hosts(spark: SparkSession, function: Callable[[Q], R], requests: Sequence[Q]) -> list[R]:
    """The results in the order of the requests, one Spark task each, run on the hosts of their directories.

    Raises UsageError for a directory that is not on its host, or on a host where no executor of Spark runs."""
    locations = _locations(spark, {request.directory.host for request in requests if request.directory.host})
    results: dict[int, R] = {}
    waiting = dict(enumerate(requests))
    in_vain = 0
    while waiting:
        numbered = _rdd(spark, waiting, locations)
        outcomes = numbered.map(lambda item: _run_if_here(function, *item)).collect()
        results |= {outcome.number: outcome.result for outcome in outcomes if outcome.absence is None}
        absent = [outcome for outcome in outcomes if outcome.absence is not None]
        in_vain = in_vain + 1 if len(absent) == len(waiting) else 0
        for outcome in absent:
            directory = requests[outcome.number].directory
            if directory.host is None or in_vain == ATTEMPTS:
                raise _absent(directory, outcome)
        waiting = {outcome.number: requests[outcome.number] for outcome in absent}
    return [results[number] for number in range(len(requests))]


def _run_if_here(function: Callable[[Any], object], number: int, request: Request) -> _Outcome:
    absence = _absence(request.directory)
    result = function(request) if absence is None else None
    return _Outcome(number, socket.gethostname(), result, absence)


def _absence(directory: LogDirectory) -> str | None:
    """Why this host does not have the directory, or not for this user; None where it does."""
    try:
        os.scandir(directory.path).close()
    except FileNotFoundError:
        return "there is no such directory"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if directory.host is None:
        return None
    try:
        with open(os.path.join(directory.path, "meta.properties")) as file:
            lines = [line.strip().partition("=") for line in file]
    except FileNotFoundError:  # a log directory without a broker has none
        return None
    except OSError as error:
        return f"its meta.properties cannot be read: {error.strerror}"
    owner = next((value for key, _, value in lines if key == "broker.id"), "")
    return None if owner in ("", str(directory.broker)) else f"the directory of that name is of broker {owner}"


def _absent(directory: LogDirectory, outcome: _Outcome) -> UsageError:
    where = f"log directory {directory.path} of broker {directory.broker}"
    if directory.host is None:
        return UsageError(
            f"{where}: a task ran on host {outcome.host}, where {outcome.absence}. Name the host that has it, as in "
            f"{directory.broker}=HOST:{directory.path}, or mount it on every worker",
            path=directory.path,
        )
    return UsageError(
        f"{where} is expected on host {directory.host}: tasks ran on {outcome.host}, where {outcome.absence}. Name the "
        "host and the directory as they are there, and run a Spark worker on that host as a user who may read it",
        path=directory.path,
    )


def _locations(spark: SparkSession, hosts: Iterable[str]) -> Mapping[str, list[str]]:
    """The executors' hosts, as Spark writes them, of each of `hosts`; none where Spark runs in the driver alone."""
    context = spark.sparkContext
    hosts = sorted(hosts)
    if not hosts or str(context.master).startswith("local"):
        return {}
    deadline = time.monotonic() + EXECUTORS_WITHIN_S
    while True:
        executors = {info.host() for info in context._jsc.sc().statusTracker().getExecutorInfos()}
        located = {host: [name for name in executors if _addresses(name) & _addresses(host)] for host in hosts}
        lacking = [host for host, names in located.items() if not names]
        if not lacking:
            return located
        if time.monotonic() > deadline:
            raise UsageError(
                f"no Spark executor runs on {', '.join(lacking)}, where log directories are to be read: they run on "
                f"{', '.join(sorted(executors))}. Start a worker there, give it a core of this job, or name the host "
                "as Spark does"
            )
        time.sleep(0.2)  # executors register with the driver, which has no event of it for Python


def _addresses(host: str) -> set[str]:
    try:
        found = socket.getaddrinfo(host.removeprefix("[").removesuffix("]"), None)
    except OSError:
        return {host}
    return {host, *(str(entry[4][0]) for entry in found)}


def _rdd(
    spark: SparkSession, requests: Mapping[int, Request], locations: Mapping[str, list[str]]
) -> RDD[tuple[int, Request]]:
    """All (number, request), each in a partition of its own, computed where its host is located if that can be."""
    from pyspark import RDD
    from pyspark.serializers import CPickleSerializer

    context = spark.sparkContext
    jvm: Any = context._jvm
    pair, sequence = jvm.scala.Tuple2, jvm.PythonUtils.toSeq
    located = [
        pair(bytearray(pickle.dumps(item)), sequence(locations.get(item[1].directory.host or "", [])))
        for item in requests.items()
    ]
    empty = context._jsc.emptyRDD()
    made = context._jsc.sc().makeRDD(sequence(located), empty.classTag())
    return RDD(empty.wrapRDD(made), context, CPickleSerializer())
