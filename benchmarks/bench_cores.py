"""The cores of controller and brokers as partitions grow: CPU time of a failover, of idle rounds, and memory.

    python -m benchmarks.bench_cores [--partitions N,N...] [--quick]

The cores run without I/O, over a store and logs in memory and brokers that respond at once; what is counted is the
CPU time inside them alone. Three brokers, three replicas of each partition, topics of up to 1,000 partitions. Costs are
of one partition, but for idle rounds, where nothing happens. Growth is the cost at the most partitions to that at the
fewest: 1 is a straight line, and for an idle round a cost that does not depend on them. Each count has processes of its
own, one of which is traced for the memory that the cores have allocated.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

import kreplog.core
from benchmarks import report
from kreplog.config import TopicConfig
from kreplog.core.events import Tick
from kreplog.core.messages import FetchPartition, FetchRequest, FetchResponse, LeaderAndIsrRequest, PartitionState
from kreplog.types import LeaderAndIsr, TopicPartition
from tests.core.controller.controlled import Cluster
from tests.core.shell import Shell

COUNTS = "1000,10000,100000"
BROKERS = (1, 2, 3)
TOPIC_PARTITIONS = 1000
IDLE_ROUNDS = 100
"""Of which the mean is taken."""

Costs = dict[str, float]
"""Microseconds of CPU, or bytes, by what they are for."""


class TimedCore:
    """A core whose steps are timed. seconds: of CPU, inside the core."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def step(self, *arguments: Any) -> Generator[Any, Any, None]:
        steps = self._core.step(*arguments)
        resume: Callable[[], Any] = partial(next, steps)
        while True:
            began = time.thread_time()
            try:
                effect = resume()
            except StopIteration:
                return
            finally:
                self.seconds += time.thread_time() - began
            try:
                resume = partial(steps.send, (yield effect))
            except Exception as error:  # the effect's, which the core handles
                resume = partial(steps.throw, error)

    @contextmanager
    def timing(self, costs: Costs, name: str, divisor: int) -> Iterator[None]:
        before = self.seconds
        yield
        costs[name] = 1e6 * (self.seconds - before) / divisor


def controller_costs(partitions: int) -> Costs:
    """Costs of a controller that creates the partitions, idles, and loses a broker; and of its successor."""
    cluster, costs = Cluster(BROKERS), Costs()
    box = cluster.start_controller()
    cluster.settle()
    core: Any = TimedCore(box.core)
    box.core = core
    with core.timing(costs, "controller: creation", partitions):
        for first in range(0, partitions, TOPIC_PARTITIONS):
            numbers = range(min(TOPIC_PARTITIONS, partitions - first))
            replicas = {number: [BROKERS[(number + place) % 3] for place in range(3)] for number in numbers}
            cluster.create_topic(f"t{first // TOPIC_PARTITIONS}", replicas)
            cluster.settle()
    if tracemalloc.is_tracing():
        return {"controller: memory": core_bytes() / partitions}
    with core.timing(costs, "controller: idle round", IDLE_ROUNDS):
        for _ in range(IDLE_ROUNDS):
            cluster.tick(1)
    with core.timing(costs, "controller: failover of a third", partitions):
        cluster.broker(1).stop()
        cluster.run()
    box.die()
    box = cluster.start_controller()
    successor: Any = TimedCore(box.core)
    box.core = successor
    with successor.timing(costs, "controller: election", partitions):
        cluster.run()
    return costs


def broker_costs(partitions: int) -> Costs:
    """Costs of a broker that leads every second partition, and follows the others."""
    shell, costs = Shell(), Costs()
    shell.update_metadata(*BROKERS)
    core: Any = TimedCore(shell.manager)
    shell.manager = core
    states = tuple(
        PartitionState(
            TopicPartition(f"t{number // TOPIC_PARTITIONS}", number % TOPIC_PARTITIONS),
            f"id{number // TOPIC_PARTITIONS}",
            LeaderAndIsr(1 + number % 2, 1, BROKERS, (), 1, 0),
            BROKERS,
            is_new=True,
            config=TopicConfig(),
        )
        for number in range(partitions)
    )
    with core.timing(costs, "broker: LeaderAndIsr", partitions):
        shell.response_to(LeaderAndIsrRequest(9, 1, shell.epoch, states, True))
    led = tuple(FetchPartition(each.partition, each.topic_id, 1, 0) for each in states if each.state.leader == 1)
    sessions = []
    with core.timing(costs, "broker: a follower's first fetch", 2 * len(led)):
        for follower in (2, 3):
            response = shell.response_to(FetchRequest(follower, 1, 0, 1, 1 << 20, led, session_epoch=0))
            assert isinstance(response, FetchResponse) and response.session_id
            sessions.append(response.session_id)
    if tracemalloc.is_tracing():
        shell.effects.clear()
        return {"broker: memory": core_bytes() / partitions}
    shell.now_ms += shell.config.replica_lag_time_max_ms
    shell.step(Tick())  # finds that all are in sync
    with core.timing(costs, "broker: a follower's idle fetch", IDLE_ROUNDS):
        for number in range(1, IDLE_ROUNDS + 1):
            request = FetchRequest(2, 1, 0, 1, 1 << 20, (), (), sessions[0], number)
            assert not shell.response_to(request).partitions
    with core.timing(costs, "broker: idle round", IDLE_ROUNDS):
        for _ in range(IDLE_ROUNDS):
            shell.now_ms += shell.config.replica_lag_time_max_ms
            shell.step(Tick())
    return costs


def core_bytes() -> int:
    """Bytes that the modules of the cores have allocated and still hold."""
    modules = tracemalloc.Filter(True, str(Path(kreplog.core.__file__).parent / "*"))
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([modules]).traces)


def measure(work: Callable[[int], Costs], partitions: int, traced: bool) -> Costs:
    """In a process of its own."""
    if traced:
        tracemalloc.start()
    return work(partitions)


def main(
    partitions: Annotated[str, typer.Option(help="Numbers of partitions, separated by commas.")] = COUNTS,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny: shows that it works, not how fast it is.")] = False,
) -> None:
    counts = [100, 200] if quick else sorted(int(number) for number in partitions.split(","))
    for name, fact in report.host(Path(tempfile.gettempdir())).items():
        print(f"{name}: {fact}")
    rows: dict[str, list[float]] = {}
    for count in counts:
        for work in (controller_costs, broker_costs):
            for traced in (False, True):
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                    for name, cost in process.submit(measure, work, count, traced).result().items():
                        rows.setdefault(name, []).append(cost)
    table = Table()
    for column in ("µs of CPU, or bytes", *(f"{count:,} partitions" for count in counts), "growth"):
        table.add_column(column)
    for name, costs in rows.items():
        table.add_row(name, *(f"{cost:,.1f}" for cost in costs), f"{costs[-1] / costs[0]:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
