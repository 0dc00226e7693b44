"""ActionTargets: what an action of a plan applies to, chosen from its draws at the time of the action."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kreplog.sim.faults import Action
from kreplog.sim.machines.scheduler import MS
from kreplog.types import NO_LEADER, TopicPartition

if TYPE_CHECKING:
    from kreplog.sim.brokers.broker import BrokerProcess, Machine
    from kreplog.sim.cluster import Cluster


class ActionTargets:
    """Base of the classes whose methods are actions: `_KIND(action)` carries out an action of that kind, and returns
    whether it was possible."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._scheduler = cluster.scheduler
        self._healed = False

    def _note(self, action: Action, text: str, *partitions: TopicPartition) -> None:
        self._cluster.trace.note("fault", f"#{action.number} {text}", *partitions)

    def _machine(self, draw: float, pick: float) -> Machine:
        """Often a partition's leader, sometimes the controller, otherwise any machine."""
        cluster = self._cluster
        machines = list(cluster.machines.values())
        chosen = NO_LEADER
        if draw < 0.4:
            partitions = cluster.partitions()
            if partitions:
                chosen = cluster.leader_of(partitions[int(pick * len(partitions))])
        elif draw < 0.55:
            chosen = cluster.controller()
        if chosen in cluster.machines:
            return cluster.machines[chosen]
        return machines[int(pick * len(machines))]

    def _process(self, action: Action) -> BrokerProcess | None:
        return self._machine(action.draws[0], action.draws[1]).process

    def _other(self, machine: Machine, pick: float) -> Machine:
        others = [other for other in self._cluster.machines.values() if other is not machine]
        return others[int(pick * len(others))]

    def _partition(self, pick: float) -> TopicPartition | None:
        partitions = self._cluster.partitions()
        return partitions[int(pick * len(partitions))] if partitions else None

    def _later(self, action: Action, end: Callable[..., object], *arguments: object) -> None:
        """Call `end` when the fault's duration is over, unless all faults have ended before."""

        def at_end() -> None:
            if not self._healed:
                end(*arguments)

        self._scheduler.after(action.duration_ms * MS, at_end)
