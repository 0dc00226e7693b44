"""View: the state of a cluster in the coordination store, for tests that wait until it reaches a given state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Self, TypeVar

from kreplog.cluster.local_cluster import LocalCluster
from kreplog.coord.base import Session
from kreplog.core import nodes
from kreplog.errors import ConnectionLossError, NoNodeError
from kreplog.server.runtime.store import make_store
from kreplog.types import LeaderAndIsr, Node, TopicPartition
from tests.integration.clusters import eventually

_SESSION_MS = 20_000

T = TypeVar("T")


class View:
    """Reads the store of a cluster in a session of its own; close it, or use it in a with statement."""

    def __init__(self, cluster: LocalCluster) -> None:
        settings = cluster.settings(cluster.brokers[0])
        self._store = make_store(settings.coordination, settings.zookeeper)
        self._session = _Reads(self._store.connect(_SESSION_MS))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._store.close()

    def state(self, partition: TopicPartition) -> LeaderAndIsr:
        """The partition's LeaderAndIsr; leader -1 and an empty ISR until the controller has written it."""
        path = nodes.leader_and_isr(partition)
        (node,) = self._session.get_many((path,))
        return LeaderAndIsr(-1, -1, ()) if node is None else nodes.decode_leader_and_isr(path, node)

    def controller(self) -> int:
        """The active controller's broker id; -1 while there is no controller."""
        (node,) = self._session.get_many((nodes.CONTROLLER,))
        return -1 if node is None else int(json.loads(node.data)["broker_id"])

    def registered(self) -> set[int]:
        return {int(name) for name in self._session.children(nodes.BROKER_IDS)}

    def topics(self) -> list[str]:
        return sorted(self._session.children(nodes.TOPICS))

    def session_of(self, broker: int) -> int:
        """The session that holds the broker's registration; 0 when the broker is not registered."""
        (node,) = self._session.get_many((nodes.broker(broker),))
        return 0 if node is None else node.stat.ephemeral_owner

    def broker_epoch(self, broker: int) -> int:
        return self._session.get(nodes.broker_epoch(broker)).stat.version

    def is_handled(self, broker: int) -> bool:
        """Whether a controller has handled the broker's latest registration."""
        (handled,) = self._session.get_many((nodes.handled_epoch(broker),))
        return handled is not None and int(handled.data) == self.broker_epoch(broker)

    def under_replicated(self, topic: str) -> list[str]:
        """Partitions that lack an in-sync replica or a live leader, each with its assignment and state."""
        path = nodes.topic(topic)
        assigned = nodes.decode_topic(path, self._session.get(path)).partitions
        paths = [nodes.leader_and_isr(TopicPartition(topic, number)) for number in assigned]
        states = dict(zip(paths, self._session.get_many(paths), strict=True))
        return _under_replicated(topic, assigned, states, self.registered())

    def await_replicated(self, topic: str) -> None:
        eventually(
            lambda: not self.under_replicated(topic), lambda: f"under-replicated: {self.under_replicated(topic)}"
        )

    def await_leader(self, partition: TopicPartition, than: int = -1) -> int:
        """Wait until a live broker other than `than` leads the partition; return that leader."""
        eventually(lambda: self._leads(partition, than), f"{partition}: nobody leads, but perhaps {than}", 60.0)
        return self.state(partition).leader

    def _leads(self, partition: TopicPartition, than: int) -> bool:
        leader = self.state(partition).leader
        return leader != than and leader in self.registered()

    def serves_none(self, partitions: Iterable[TopicPartition], broker: int) -> bool:
        """Whether the broker leads none of the partitions and is in none of their ISRs."""
        states = [self.state(partition) for partition in partitions]
        return all(broker not in state.isr and broker != state.leader for state in states)

    def dump(self) -> dict[str, Node]:
        """Every node, read one after the other."""
        found: dict[str, Node] = {}
        waiting = ["/"]
        while waiting:
            path = waiting.pop()
            try:
                names = self._session.children(path)
                node = self._session.get(path)
            except NoNodeError:
                continue
            if path != "/":
                found[path] = node
            waiting += [f"{path.rstrip('/')}/{name}" for name in names if (path, name) != ("/", "zookeeper")]
        return found


def under_replicated(dump: Mapping[str, Node]) -> list[str]:
    """Partitions that lacked an in-sync replica or a live leader when the dump was read, each with both."""
    living = {int(name) for path in dump if (name := _name_below(nodes.BROKER_IDS, path))}
    topics = {name: nodes.decode_topic(path, dump[path]) for path in dump if (name := _name_below(nodes.TOPICS, path))}
    found = (_under_replicated(name, topic.partitions, dump, living) for name, topic in topics.items())
    return [each for partitions in found for each in partitions]


def _name_below(parent: str, path: str) -> str:
    """The name of a child of `parent`; empty for any other path."""
    above, _, name = path.rpartition("/")
    return name if above == parent else ""


def _under_replicated(
    topic: str, assigned: Mapping[int, nodes.Assignment], states: Mapping[str, Node | None], living: set[int]
) -> list[str]:
    wrong = []
    for number, assignment in assigned.items():
        path = nodes.leader_and_isr(TopicPartition(topic, number))
        found = states.get(path)
        state = None if found is None else nodes.decode_leader_and_isr(path, found)
        if state is None or set(state.isr) != set(assignment.replicas) or state.leader not in living:
            wrong.append(f"{topic}-{number}: {assignment} {state}")
    return wrong


class _Reads:
    """The reads of a session, repeated where the connection breaks: its server of ZooKeeper may be the one that is cut
    off. Raises SessionExpiredError when that lasts."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get(self, path: str) -> Node:
        return self._read(lambda: self._session.get(path))

    def get_many(self, paths: Sequence[str]) -> list[Node | None]:
        return self._read(lambda: self._session.get_many(paths))

    def children(self, path: str) -> list[str]:
        return self._read(lambda: self._session.children(path))

    def _read(self, read: Callable[[], T]) -> T:
        while True:
            try:
                return read()
            except ConnectionLossError:
                continue  # a call waits for the next connection until the session has expired


def by_controller(dump: dict[str, Node]) -> list[dict[str, Node]]:
    """The dump as it may have grown: after each controller's elections, oldest first, that controller's epoch.

    The simulator's checkers see every change in its order. A dump is read once, and states that an older controller
    wrote must not pass for a newer controller's.
    """
    states = {path: nodes.decode_leader_and_isr(path, node) for path, node in dump.items() if _is_state(path)}
    grown = []
    for epoch in sorted({state.controller_epoch for state in states.values()}):
        result = {
            path: node for path, node in dump.items() if path not in states or states[path].controller_epoch <= epoch
        }
        stat = replace(dump[nodes.CONTROLLER_EPOCH].stat, modified=-1 - epoch)
        result[nodes.CONTROLLER_EPOCH] = Node(b"%d" % epoch, stat)
        grown.append(result)
    return [*grown, dump]


def _is_state(path: str) -> bool:
    return path.startswith(nodes.TOPICS) and path.endswith("/leaderAndISR")
