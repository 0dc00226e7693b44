"""Administrator: requests of operators, by the steps and rules of brokers, in a session of its own with the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kreplog.config import TopicConfig
from kreplog.coord.memory import MemorySession
from kreplog.core import nodes
from kreplog.core.controller import admin_requests
from kreplog.core.controller.config_requests import alter_broker, alter_topic
from kreplog.core.controller.leader_elections import ELECTIONS
from kreplog.core.controller.new_partitions import added_partitions, assignable
from kreplog.core.dynamic_configs import DELETE, SET, Change, altered
from kreplog.core.effects import Steps
from kreplog.core.messages import NO_CONFIGS
from kreplog.core.request_calls import carry_out
from kreplog.errors import ConnectionLossError, CoordinationError, UsageError
from kreplog.sim.faults import TopicPlan
from kreplog.sim.machines.scheduler import MS
from kreplog.sim.machines.store import StoreServer
from kreplog.types import (
    BrokerRegistration,
    Delete,
    ElectionType,
    SetData,
    StoreOperation,
    TopicPartition,
    topic_id_text,
)

if TYPE_CHECKING:
    from kreplog.sim.cluster import Cluster


class Administrator:
    """Makes requests to the controller. Each method returns whether the request was accepted, and at once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._session = cluster.store.store.connect(2**31 - 1)
        self._calls = _OperatorCalls(cluster.store, self._session)
        self._names = 0

    def create_topic(self, plan: TopicPlan, brokers: Sequence[int]) -> bool:
        """Partitions are assigned round-robin, each with another leader."""
        random = self._cluster.scheduler.random
        start = random.randrange(len(brokers))
        partitions = {
            number: tuple(brokers[(start + number + index) % len(brokers)] for index in range(plan.replication_factor))
            for number in range(plan.partitions)
        }
        topic_id = topic_id_text(UUID(bytes=random.randbytes(16)))
        return self.place_topic(plan.name, topic_id, partitions, plan.config)

    def place_topic(
        self, name: str, topic_id: str, partitions: Mapping[int, Sequence[int]], config: TopicConfig
    ) -> bool:
        """Create a topic with these replicas by partition number."""
        brokers = assignable(self.live_brokers())
        done = self._request(lambda: admin_requests.create_topic(name, topic_id, partitions, config, brokers))
        if done:  # before any broker can read it
            self._cluster.topic_created(name, topic_id, config, len(partitions))
        return done

    def delete_topic(self, name: str) -> bool:
        done = self._request(lambda: admin_requests.delete_topic(name))
        if done:
            self._cluster.requests.deletion_accepted(name)
            self._cluster.topic_deleted(name)
        return done

    def configure(self, name: str, config: TopicConfig) -> bool:
        """New settings for a topic."""
        done = self._request(lambda: alter_topic(name, lambda *_: config, replace_unreadable=False))
        if done:
            self._cluster.topic_configured(name, config)
        return done

    def configure_broker(self, broker_id: int | None, name: str, value: str | None) -> bool:
        """Set a dynamic config of a broker, or with None as its id of all brokers; or delete it. Not while its node is
        unreadable."""
        if broker_id in self._cluster.unreadable_configs:
            return False
        changes = [Change(name, value, DELETE if value is None else SET)]

        def alter(before: Mapping[str, str]) -> dict[str, str]:
            return altered(before, changes, {name: str}, cluster_wide=broker_id is None)

        return self._request(lambda: alter_broker(broker_id, alter, replace_unreadable=False))

    def spoil_broker_config(self, broker_id: int | None) -> bool:
        """Make the node of a broker's dynamic configs unreadable, or with None as its id that of all brokers; only if
        the active controller has sent what is there."""
        cluster, path = self._cluster, nodes.broker_config(broker_id)
        node, machine = cluster.store.store.peek(path), cluster.machines.get(cluster.controller())
        process = None if machine is None else machine.process
        if node is None or process is None or not process.controller.active or broker_id in cluster.unreadable_configs:
            return False
        configs = nodes.decode_broker_config(path, node)
        held = process.controller.context.broker_configs
        sent = {each.default for each in held.values()} if broker_id is None else {held.get(broker_id, NO_CONFIGS).own}
        if not configs or configs not in sent:
            return False
        cluster.unreadable_configs.spoilt(broker_id, configs, process.controller.epoch)
        if not self._write(SetData(path, b"{")):
            cluster.unreadable_configs.repaired(broker_id)
            return False
        return True

    def repair_broker_configs(self) -> None:
        """Write the nodes of dynamic configs that are unreadable as they were."""
        unreadable = self._cluster.unreadable_configs
        for broker_id, configs in unreadable.items():
            if self._write(SetData(nodes.broker_config(broker_id), nodes.encode_broker_config(dict(configs)))):
                unreadable.repaired(broker_id)

    def live_brokers(self) -> dict[int, BrokerRegistration]:
        """The registered brokers by id."""
        peek = self._cluster.store.store.peek
        found = {broker_id: peek(nodes.broker(broker_id)) for broker_id in self._cluster.machines}
        return {
            broker_id: nodes.decode_broker(nodes.broker(broker_id), node, 0)
            for broker_id, node in found.items()
            if node is not None
        }

    def replicas_of(self, partition: TopicPartition) -> tuple[int, ...]:
        """Its assigned replicas, the target during a reassignment."""
        topic = self._topic(partition.topic)
        found = None if topic is None else topic.partitions.get(partition.partition)
        return () if found is None else found.target

    def reassign(self, partition: TopicPartition, target: Sequence[int] | None) -> bool:
        """None as the target cancels a reassignment."""
        done = self._request(lambda: admin_requests.reassign(partition, target, self.live_brokers()))
        if done:
            self._cluster.requests.reassignment_accepted(partition, target)
        return done

    def elect_preferred(self) -> bool:
        """Accepted later, while an earlier election is pending."""
        return self._request(lambda: admin_requests.elect_leaders(ElectionType.PREFERRED))

    def elect_unclean(self, partitions: Sequence[TopicPartition]) -> bool:
        """As elect_preferred."""
        return self._request(lambda: admin_requests.elect_leaders(ElectionType.UNCLEAN, partitions))

    def _drawn_topic(self, names: Sequence[str], draw: float) -> tuple[str, nodes.TopicNode | None]:
        name = names[int(draw * len(names))] if names else ""
        return name, self._topic(name) if names else None

    def add_partition(self, names: Sequence[str], topic_draw: float, broker_draw: float) -> bool:
        """Add a partition to one of the topics, with as many replicas as its first has; not if it is refused."""
        name, topic = self._drawn_topic(names, topic_draw)
        if topic is None or not topic.partitions:
            return False
        machines = list(self._cluster.machines)
        start = int(broker_draw * len(machines))
        count = min(len(topic.partitions[min(topic.partitions)].target), len(machines))
        replicas = tuple(machines[(start + index) % len(machines)] for index in range(count))
        number = max(topic.partitions) + 1
        brokers = assignable(self.live_brokers())

        def steps() -> Steps[None]:
            added = added_partitions(name, topic, number + 1, [replicas], brokers)
            return admin_requests.add_partitions(name, topic, added, brokers)

        done = self._request(steps)
        if done:
            partition = TopicPartition(name, number)
            self._cluster.requests.addition_accepted(partition, replicas)
            self._cluster.partition_added(partition)
        return done

    def remove_partition(self, names: Sequence[str], topic_draw: float) -> bool:
        """Remove the last partition of a topic that has several, or is an internal one; not if it is refused."""
        topics = self._cluster.topics()
        several = [name for name in names if name in topics and len(topics[name].partitions) > 1]
        name, topic = self._drawn_topic(several or names, topic_draw)
        if topic is None or not topic.partitions:
            return False
        last = max(topic.partitions)
        done = self._request(lambda: admin_requests.remove_partitions(name, last))
        if done:
            partition = TopicPartition(name, last)
            self._cluster.requests.removal_accepted(partition)
            self._cluster.partition_removed(partition)
        return done

    def depose(self) -> bool:
        """Have another controller elected."""
        return self._write(Delete(nodes.CONTROLLER))

    def change_topics(self, draws: Sequence[float], duration_ms: int) -> bool:
        """Create an extra topic; or delete a topic; or delete it and create it again at once, while brokers may be
        down."""
        cluster = self._cluster
        if draws[0] < 0.4:
            return self._create_extra(draws, f"x{self._names}")
        names = [name for name in cluster.topic_names() if name.startswith("x")] or cluster.topic_names()
        if not names:
            return False
        name = names[int(draws[1] * len(names))]
        done = self.delete_topic(name)
        if cluster.plan.misused:  # it may be gone by then
            cluster.scheduler.after(duration_ms * MS // 8, self.delete_topic, name)
        if draws[2] < 0.8 or not name.startswith("x"):
            plan = cluster.topic_plan(name)
            if cluster.plan.replaces_topics:
                self._replace(plan)
            else:
                cluster.scheduler.after(duration_ms * MS // 4, self._create_when_gone, plan)
        return done

    def pending(self) -> str | None:
        """The path of a request that the controller has not completed, or of a failure report; None if all are done."""
        children = self._session.children
        if self._cluster.store.store.peek(nodes.CONTROLLER_EPOCH) is None:
            return nodes.CONTROLLER_EPOCH
        for root in (nodes.DELETED_TOPICS, nodes.ISR_CHANGES, nodes.LOG_DIR_EVENTS, nodes.BROKER_FAILURES):
            for name in children(root):
                return f"{root}/{name}"
        for root in nodes.PARTITION_REQUESTS:
            for name in children(root):
                for number in children(f"{root}/{name}"):
                    return f"{root}/{name}/{number}"
        return next((path for path in ELECTIONS if self._session.exists(path) is not None), None)

    def _create_extra(self, draws: Sequence[float], name: str) -> bool:
        self._names += 1
        plan = self._cluster.extra_topic(name, draws)
        return self.create_topic(plan, list(self._cluster.machines))

    def _create_when_gone(self, plan: TopicPlan) -> None:
        exists = self._cluster.store.store.peek(nodes.topic(plan.name)) is not None
        if exists or not self.create_topic(plan, list(self._cluster.machines)):
            self._cluster.scheduler.after(100 * MS, self._create_when_gone, plan)

    def _replace(self, plan: TopicPlan) -> None:
        """Create a topic again as soon as it is gone; and reassign a partition as soon as its state is, which the
        controller deletes first."""
        cluster, first = self._cluster, TopicPartition(plan.name, 0)
        peek = cluster.store.store.peek
        if peek(nodes.topic(plan.name)) is None:
            if self.create_topic(plan, list(cluster.machines)):
                return
        elif peek(nodes.leader_and_isr(first)) is None and peek(nodes.partition(first, nodes.REASSIGNED)) is None:
            self.reassign(first, self.replicas_of(first)[::-1])
        cluster.scheduler.after(1 * MS, self._replace, plan)

    def _topic(self, name: str) -> nodes.TopicNode | None:
        path = nodes.topic(name)
        node = self._cluster.store.store.peek(path)
        return None if node is None else nodes.decode_topic(path, node)

    def _write(self, *operations: StoreOperation) -> bool:
        try:
            self._calls.multi(operations)
        except CoordinationError:
            return False
        return True

    def _request(self, make: Callable[[], Steps[Any]]) -> bool:
        """Carry out the steps of a request; after a pause in the background. Returns whether it was accepted before."""
        try:
            return self._carry_out(make())
        except (admin_requests.RefusedError, UsageError, CoordinationError):
            return False

    def _carry_out(self, steps: Steps[Any]) -> bool:
        try:
            carry_out(steps, self._calls)
        except _PausedError as paused:
            self._cluster.scheduler.after(paused.ms * MS, self._request, lambda: steps)
            return False
        return True


class _PausedError(Exception):
    """The steps go on after `ms`."""

    def __init__(self, ms: int) -> None:
        super().__init__(ms)
        self.ms = ms


class _OperatorCalls:
    """Calls in a session that never ends, while the store is available."""

    def __init__(self, store: StoreServer, session: MemorySession) -> None:
        self._store = store
        self._session = session

    def get_nodes(self, paths: Sequence[str]) -> Any:
        return self._available().get_many(paths)

    def get_children(self, path: str) -> Any:
        session = self._available()
        return None if session.exists(path) is None else session.children(path)

    def multi(self, operations: Sequence[StoreOperation]) -> Any:
        results = self._available().multi(operations)
        self._store.changed()
        return results

    def pause(self, ms: int) -> None:
        raise _PausedError(ms)

    def note(self, level: str, text: str) -> None:
        """Nobody reads an operator's log."""

    def _available(self) -> MemorySession:
        if not self._store.available:
            raise ConnectionLossError("the store does not respond")
        return self._session
