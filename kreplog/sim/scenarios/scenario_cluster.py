"""ScenarioCluster: the simulated cluster of a scenario file, without randomness, whose brokers report their actions.

Brokers, network and store are those of a seed, but every random draw is fixed, and every message takes the same time.
Messages can be held back on their way and delivered one at a time. Brokers report what their cores do
(traced_broker.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from kreplog.config import ReplicationConfig
from kreplog.core.messages import DeletedRecords
from kreplog.errors import ErrorCode
from kreplog.sim.brokers.administrator import Administrator
from kreplog.sim.brokers.broker import Machine
from kreplog.sim.brokers.traced_broker import TracedBroker
from kreplog.sim.cluster import Cluster
from kreplog.sim.faults import SimulationPlan
from kreplog.sim.machines.disk import Disks
from kreplog.sim.machines.network import Network, VirtualConnection
from kreplog.sim.machines.scheduler import MS, Scheduler
from kreplog.sim.machines.store import StoreServer
from kreplog.types import TopicPartition

STEP_MS = 2
"""Time that a command lets pass after it has sent or delivered a message, which travels for 0.6 ms."""


class _Fixed(Random):
    """Fixed draws: the middle of a range, the first of a sequence."""

    def random(self) -> float:
        return 0.5

    def choice(self, among: Any) -> Any:
        return among[0]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return 0 if stop is None else start


class Direction(NamedTuple):
    """The requests of a channel from host to host, or with `answers` the responses to requests of the other way."""

    source: str
    destination: str
    channel: str
    answers: bool

    def __str__(self) -> str:
        return f"{self.source}->{self.destination} {self.channel}{'-answers' if self.answers else ''}"


class ScenarioNetwork(Network):
    """A network that can hold messages back. held: those that have arrived so far, in order, by direction."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.jitter = (0, 0)
        self.held: dict[Direction, deque[tuple[VirtualConnection, int, Any]]] = {}

    def hold(self, direction: Direction) -> None:
        self.held.setdefault(direction, deque())

    def deliver(self, direction: Direction) -> Any:
        """Deliver the oldest held message and return it. Raises IndexError if none is held."""
        connection, number, message = self.held[direction].popleft()
        if direction.answers:
            super()._arrive_backward(connection, number, message)
        else:
            super()._arrive_forward(connection, number, message)
        return message

    def drop(self, direction: Direction) -> Any:
        """Lose the oldest held message, with its connection, and return it."""
        connection, _, message = self.held[direction].popleft()
        self.close(connection)
        return message

    def release(self, direction: Direction) -> None:
        """End the hold; all held messages arrive now."""
        for connection, number, message in self.held.pop(direction):
            if direction.answers:
                super()._arrive_backward(connection, number, message)
            else:
                super()._arrive_forward(connection, number, message)

    def _held_delay(self) -> int:
        return 600

    def _forget(self, connection: VirtualConnection) -> None:
        """Messages that a crashed process has sent still arrive."""
        served = connection.served
        super()._forget(connection)
        connection.served = served

    def _arrive_forward(self, connection: VirtualConnection, number: int, request: Any) -> None:
        direction = Direction(connection.source, connection.destination, connection.channel, False)
        if direction in self.held:
            self.held[direction].append((connection, number, request))
        else:
            super()._arrive_forward(connection, number, request)

    def _arrive_backward(self, connection: VirtualConnection, number: int, response: Any) -> None:
        direction = Direction(connection.destination, connection.source, connection.channel, True)
        if direction in self.held:
            self.held[direction].append((connection, number, response))
        else:
            super()._arrive_backward(connection, number, response)


class ScenarioCluster(Cluster):
    """A cluster without randomness, empty at first.

    lines: reported since the caller last cleared them. all_lines: every line, also while `silent`. states, messages:
    also report the states of replicas and partitions, and the controllers' messages. detects_failures: brokers hold
    connections to each other. listener: called with every line at once.
    """

    def __init__(self, disks: Disks) -> None:
        super().__init__(_plan(), disks, traced=False)
        self.scheduler.random = _Fixed()
        self.network: ScenarioNetwork = ScenarioNetwork(self.scheduler)
        self.store = StoreServer(self.scheduler, self.network)
        self.store.on_change = self._store_changed
        self.admin = Administrator(self)
        self.lines: list[str] = []
        self.all_lines: list[str] = []
        self.listener: Callable[[str], None] | None = None
        self.states = self.messages = self.silent = self.detects_failures = False
        self._triggers: dict[str, Callable[[], None]] = {}

    def report(self, *lines: str) -> None:
        """Add lines of the same moment, and run the triggers that match."""
        self.all_lines.extend(lines)
        if self.listener is not None:
            for line in lines:
                self.listener(line)
        if not self.silent:
            self.lines.extend(lines)
        for words, trigger in list(self._triggers.items()):
            if any(words in line for line in lines):
                del self._triggers[words]
                trigger()

    def on_line(self, words: str, trigger: Callable[[], None]) -> None:
        """Call `trigger` once, when a line that contains `words` is reported."""
        self._triggers[words] = trigger

    def start_machine(self, machine: Machine) -> None:
        process = machine.process = TracedBroker(self, machine, self.plan.config)
        process.start()

    def deletion_answered(self, partition: TopicPartition, answer: DeletedRecords | None) -> None:
        if answer is None:
            self.report(f"an operator gets no response to DeleteRecords of {partition}")
        elif answer.error is not ErrorCode.NONE:
            self.report(f"an operator gets {answer.error.name} for DeleteRecords of {partition}")
        else:
            self.report(f"an operator gets DeleteRecords of {partition} done: low watermark {answer.low_watermark}")

    def values(self, records: Any) -> list[str]:
        return [record.value.decode() for record in self.disks.codec.decode(records)]

    def run_ms(self, ms: int) -> None:
        self.scheduler.run_until(self.scheduler.now_us + ms * MS)

    def run_while(self, waits: Callable[[], bool], limit_ms: int, step_ms: int = 1) -> bool:
        """Run while `waits` returns True, for at most `limit_ms`; return whether it turned False."""
        end_us = self.scheduler.now_us + limit_ms * MS
        while waits():
            if self.scheduler.now_us >= end_us:
                return False
            self.run_ms(step_ms)
        return True

    def assignment(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The assigned replicas of every partition in the store."""
        return {
            TopicPartition(name, number): assigned.replicas
            for name, topic in self.topics().items()
            for number, assigned in topic.partitions.items()
        }

    def topic_id(self, partition: TopicPartition) -> str:
        topic = self.topics().get(partition.topic)
        return "" if topic is None else topic.topic_id


def _plan() -> SimulationPlan:
    """A plan without faults and clients, with short times."""
    config = ReplicationConfig(
        replica_lag_time_max_ms=1000,
        replica_fetch_wait_max_ms=100,
        replica_fetch_backoff_ms=50,
        auto_leader_rebalance_enable=False,
    )
    return SimulationPlan(
        seed=0,
        brokers=0,
        racks=0,
        topics=(),
        config=config,
        session_timeout_ms=1000,
        fence_late_ms=0,
        quick_notice=True,
        native=False,
        producers=0,
        consumers=0,
        duration_ms=0,
        late=0.0,
        starved=(),
        kinds=(),
        actions=(),
    )
