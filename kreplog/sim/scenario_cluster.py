"""The cluster of the simulator on a stage: nothing is drawn, every message takes the same time, and all that matters
is told as it happens.

The brokers, the network and the store are those of a seed; only what a seed leaves to chance is fixed here. Messages
can be held back on their way and delivered one by one. What the cores do comes out as short lines (telling.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from kreplog.config import ReplicationConfig
from kreplog.core.messages import DeletedRecords
from kreplog.errors import ErrorCode
from kreplog.sim.administrator import Administrator
from kreplog.sim.broker import Machine
from kreplog.sim.cluster import Cluster
from kreplog.sim.disk import Disks
from kreplog.sim.faults import SimulationPlan
from kreplog.sim.network import Network, VirtualConnection
from kreplog.sim.scheduler import MS, Scheduler
from kreplog.sim.store import StoreServer
from kreplog.sim.traced_broker import TracedBroker
from kreplog.types import TopicPartition

STEP_MS = 2
"""What passes after a command that sends or delivers something: a message is under way for 0.6 ms."""


class _Fixed(Random):
    """No chance: always the middle, and of several the first."""

    def random(self) -> float:
        return 0.5

    def choice(self, among: Any) -> Any:
        return among[0]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return 0 if stop is None else start


class Way(NamedTuple):
    """From host to host, requests of a channel, or the answers to those that went the other way."""

    source: str
    destination: str
    channel: str
    answers: bool

    def __str__(self) -> str:
        return f"{self.source}->{self.destination} {self.channel}{'-answers' if self.answers else ''}"


class ScenarioNetwork(Network):
    """A network that holds messages back where it is told to: `held` has those that have arrived so far, in order."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self.jitter = (0, 0)
        self.held: dict[Way, deque[tuple[VirtualConnection, int, Any]]] = {}

    def hold(self, way: Way) -> None:
        self.held.setdefault(way, deque())

    def deliver(self, way: Way) -> Any:
        """Let the oldest one held arrive; what it is. Raises IndexError when none is held."""
        connection, number, message = self.held[way].popleft()
        if way.answers:
            super()._arrive_backward(connection, number, message)
        else:
            super()._arrive_forward(connection, number, message)
        return message

    def drop(self, way: Way) -> Any:
        """Lose the oldest one held, with its connection."""
        connection, _, message = self.held[way].popleft()
        self.close(connection)
        return message

    def release(self, way: Way) -> None:
        """Hold nothing there any more; what was held arrives now."""
        for connection, number, message in self.held.pop(way):
            if way.answers:
                super()._arrive_backward(connection, number, message)
            else:
                super()._arrive_forward(connection, number, message)

    def _held_delay(self) -> int:
        return 600

    def _forget(self, connection: VirtualConnection) -> None:
        """What a dead process has sent still arrives."""
        served = connection.served
        super()._forget(connection)
        connection.served = served

    def _arrive_forward(self, connection: VirtualConnection, number: int, request: Any) -> None:
        way = Way(connection.source, connection.destination, connection.channel, False)
        if way in self.held:
            self.held[way].append((connection, number, request))
        else:
            super()._arrive_forward(connection, number, request)

    def _arrive_backward(self, connection: VirtualConnection, number: int, response: Any) -> None:
        way = Way(connection.destination, connection.source, connection.channel, True)
        if way in self.held:
            self.held[way].append((connection, number, response))
        else:
            super()._arrive_backward(connection, number, response)


class ScenarioCluster(Cluster):
    """A cluster without chance, empty at first.

    lines: what has been told, for whoever takes it away. story: all of it, also what was told while `silent`. states,
    messages: whether the states of replicas and partitions, and the controllers' messages, are told as well.
    detects_failures: whether brokers hold connections to each other.
    """

    def __init__(self, disks: Disks) -> None:
        super().__init__(_plan(), disks, traced=False)
        self.scheduler.random = _Fixed()
        self.network: ScenarioNetwork = ScenarioNetwork(self.scheduler)
        self.store = StoreServer(self.scheduler, self.network)
        self.store.on_change = self._store_changed
        self.admin = Administrator(self)
        self.lines: list[str] = []
        self.story: list[str] = []
        self.states = self.messages = self.silent = self.detects_failures = False
        self._triggers: dict[str, Callable[[], None]] = {}

    def tell(self, *lines: str) -> None:
        """Lines of one moment."""
        self.story.extend(lines)
        if not self.silent:
            self.lines.extend(lines)
        for words, pull in list(self._triggers.items()):
            if any(words in line for line in lines):
                del self._triggers[words]
                pull()

    def on_line(self, words: str, pull: Callable[[], None]) -> None:
        """Do something when a line with these words is told; once."""
        self._triggers[words] = pull

    def start_machine(self, machine: Machine) -> None:
        process = machine.process = TracedBroker(self, machine, self.plan.config)
        process.start()

    def deletion_answered(self, partition: TopicPartition, answer: DeletedRecords | None) -> None:
        if answer is None:
            self.tell(f"an operator gets no answer about {partition}")
        elif answer.error is not ErrorCode.NONE:
            self.tell(f"an operator is told of {partition}: {answer.error.name}")
        else:
            self.tell(f"an operator is told that {partition} has nothing below {answer.low_watermark}")

    def values(self, records: Any) -> list[str]:
        return [record.value.decode() for record in self.disks.codec.decode(records)]

    def run_ms(self, ms: int) -> None:
        self.scheduler.run_until(self.scheduler.now_us + ms * MS)

    def run_while(self, waits: Callable[[], bool], limit_ms: int, step_ms: int = 1) -> bool:
        """Run as long as `waits`, at most so long; whether it was over by then."""
        end_us = self.scheduler.now_us + limit_ms * MS
        while waits():
            if self.scheduler.now_us >= end_us:
                return False
            self.run_ms(step_ms)
        return True

    def assignment(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The replicas of every partition, as the store has them."""
        return {
            TopicPartition(name, number): one.replicas
            for name, topic in self.topics().items()
            for number, one in topic.partitions.items()
        }

    def topic_id(self, partition: TopicPartition) -> str:
        topic = self.topics().get(partition.topic)
        return "" if topic is None else topic.topic_id


def _plan() -> SimulationPlan:
    """A cluster in which nothing happens by itself, with short times."""
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
