"""Administrator: requests of operators, written to the store as the tools write them, by a session of its own."""

from __future__ import annotations

from base64 import urlsafe_b64encode
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kreplog.config import TopicConfig
from kreplog.core import nodes
from kreplog.core.controller.admin_operations import (
    election_operations,
    set_broker_config_operations,
    set_config_operations,
)
from kreplog.core.controller.leader_elections import ELECTIONS
from kreplog.core.controller.new_partitions import added_partitions, check_keeps_partitions
from kreplog.core.dynamic_configs import DELETE, SET, Change, altered
from kreplog.core.messages import NO_CONFIGS
from kreplog.errors import CoordinationError, InvalidPartitionsError
from kreplog.sim.faults import TopicPlan
from kreplog.sim.machines.scheduler import MS
from kreplog.types import Create, Delete, ElectionType, SetData, StoreOperation, TopicPartition

if TYPE_CHECKING:
    from kreplog.sim.cluster import Cluster


class Administrator:
    """Writes requests to the controller into the store. Each method returns whether the store accepted it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._session = cluster.store.store.connect(2**31 - 1)
        self._names = 0

    def create_topic(self, plan: TopicPlan, brokers: Sequence[int]) -> bool:
        """Partitions are assigned round-robin, each with another leader."""
        random = self._cluster.scheduler.random
        start = random.randrange(len(brokers))
        partitions = {
            number: nodes.Assignment(
                tuple(brokers[(start + number + index) % len(brokers)] for index in range(plan.replication_factor))
            )
            for number in range(plan.partitions)
        }
        topic_id = urlsafe_b64encode(random.randbytes(16)).decode().rstrip("=")
        content = nodes.encode_topic(nodes.TopicNode(topic_id, partitions))
        peek = self._cluster.store.store.peek
        if not self._cluster.store.available or peek(nodes.TOPICS) is None or peek(nodes.topic(plan.name)) is not None:
            return False
        config = Create(nodes.topic_config(plan.name), nodes.encode_topic_config(plan.config))
        if peek(config.path) is not None:
            return False
        self._cluster.topic_created(plan.name, topic_id, plan.config, len(partitions))
        return self._write(config, Create(nodes.topic(plan.name), content))

    def delete_topic(self, name: str) -> bool:
        if self._cluster.store.store.peek(nodes.topic(name)) is None:
            return False
        done = self._write(Create(f"{nodes.DELETED_TOPICS}/{name}"))
        if done:  # before any broker can read it
            self._cluster.topic_deleted(name)
        return done

    def configure(self, name: str, config: TopicConfig) -> bool:
        """New settings for a topic."""
        if self._cluster.store.store.peek(nodes.topic(name)) is None:
            return False
        done = self._write(*set_config_operations(name, config))
        if done:
            self._cluster.topic_configured(name, config)
        return done

    def configure_broker(self, broker_id: int | None, name: str, value: str | None) -> bool:
        """Set a dynamic config of a broker, or with None as its id of all brokers; or delete it. Not while its node is
        unreadable."""
        peek = self._cluster.store.store.peek
        if broker_id in self._cluster.unreadable_configs:
            return False
        path, directory = nodes.broker_config(broker_id), peek(nodes.BROKER_CONFIGS) is None
        node = peek(path)
        before = dict(nodes.decode_broker_config(path, node))
        changes = [Change(name, value, DELETE if value is None else SET)]
        after = altered(before, changes, {name: str}, cluster_wide=broker_id is None)
        version = None if node is None else node.stat.version
        return self._write(*set_broker_config_operations(broker_id, after, version, directory=directory))

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

    def replicas_of(self, partition: TopicPartition) -> tuple[int, ...]:
        """Its assigned replicas, the target during a reassignment."""
        topic = self._topic(partition.topic)
        found = None if topic is None else topic.partitions.get(partition.partition)
        return () if found is None else found.target

    def reassign(self, partition: TopicPartition, target: Sequence[int]) -> bool:
        return self._reassign(partition, nodes.encode_replicas(target))

    def cancel_reassignment(self, partition: TopicPartition) -> bool:
        return self._reassign(partition, nodes.encode_replicas(()))

    def elect_preferred(self) -> bool:
        return self._write(*election_operations(ElectionType.PREFERRED))

    def elect_unclean(self, partitions: Sequence[TopicPartition]) -> bool:
        return self._write(*election_operations(ElectionType.UNCLEAN, partitions))

    def _drawn_topic(self, names: Sequence[str], draw: float) -> tuple[str, nodes.TopicNode | None]:
        name = names[int(draw * len(names))] if names else ""
        return name, self._topic(name) if names else None

    def add_partition(self, names: Sequence[str], topic_draw: float, broker_draw: float) -> bool:
        """Add a partition to one of the topics, with as many replicas as its first has; not if it is refused."""
        name, topic = self._drawn_topic(names, topic_draw)
        if topic is None or not topic.partitions:
            return False
        brokers = list(self._cluster.machines)
        start = int(broker_draw * len(brokers))
        count = min(len(topic.partitions[min(topic.partitions)].target), len(brokers))
        replicas = [brokers[(start + index) % len(brokers)] for index in range(count)]
        number = max(topic.partitions) + 1
        try:
            added = added_partitions(name, topic, number + 1, [replicas], {})
        except InvalidPartitionsError:
            return False
        partition = TopicPartition(name, number)
        done = self._under(nodes.ADDED, partition, nodes.encode_replicas(added[number]))
        if done:
            self._cluster.partition_added(partition)
        return done

    def remove_partition(self, names: Sequence[str], topic_draw: float) -> bool:
        """Remove the last partition of one of the topics, not if it is refused; the controller refuses it for the only
        one."""
        name, topic = self._drawn_topic(names, topic_draw)
        if topic is None or not topic.partitions:
            return False
        try:
            check_keeps_partitions(name)
        except InvalidPartitionsError:
            return False
        partition = TopicPartition(name, max(topic.partitions))
        done = self._under(nodes.REMOVED, partition, b"")
        if done:
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
        if draws[2] < 0.8 or not name.startswith("x"):
            plan = cluster.topic_plan(name)
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
        for root in (nodes.REASSIGNED, nodes.ADDED, nodes.REMOVED):
            for name in children(root):
                for number in children(f"{root}/{name}"):
                    return f"{root}/{name}/{number}"
        return next((path for path in ELECTIONS if self._session.exists(path) is not None), None)

    def _create_extra(self, draws: Sequence[float], name: str) -> bool:
        self._names += 1
        plan = self._cluster.extra_topic(name, draws)
        return self.create_topic(plan, list(self._cluster.machines))

    def _create_when_gone(self, plan: TopicPlan) -> None:
        if self._cluster.store.store.peek(nodes.topic(plan.name)) is not None:
            self._cluster.scheduler.after(100 * MS, self._create_when_gone, plan)
        else:
            self.create_topic(plan, list(self._cluster.machines))

    def _reassign(self, partition: TopicPartition, data: bytes) -> bool:
        return self._under(nodes.REASSIGNED, partition, data)

    def _under(self, root: str, partition: TopicPartition, data: bytes) -> bool:
        """Write a request for a partition under `root`, in place of a pending one."""
        peek = self._cluster.store.store.peek
        path = nodes.partition(partition, root)
        parent = path.rpartition("/")[0]
        operations: list[StoreOperation] = []
        if peek(parent) is None:
            operations.append(Create(parent))
        operations.append(Create(path, data) if peek(path) is None else SetData(path, data))
        return self._write(*operations)

    def _topic(self, name: str) -> nodes.TopicNode | None:
        path = nodes.topic(name)
        node = self._cluster.store.store.peek(path)
        return None if node is None else nodes.decode_topic(path, node)

    def _write(self, *operations: StoreOperation) -> bool:
        if not self._cluster.store.available:
            return False
        try:
            self._session.multi(operations)
        except CoordinationError:
            return False
        self._cluster.store.changed()
        return True
