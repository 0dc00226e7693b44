"""A small history for tests of the checkers: replicas of one partition, their store, a producer and a consumer."""

from __future__ import annotations

from collections import deque
from typing import Any

from kreplog.config import ReplicationConfig, TopicConfig
from kreplog.core import nodes
from kreplog.core.controller.context import ControllerContext, PartitionAndReplica
from kreplog.core.controller.transitions import (
    PartitionStatus,
    ReplicaStatus,
)
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.role import Role
from kreplog.sim.checks import final_checks
from kreplog.sim.checks.checkers import Checkers
from kreplog.sim.history import (
    History,
    Ok,
    Read,
    Watermark,
)
from kreplog.sim.machines.disk import Disks
from kreplog.types import BrokerRegistration, LeaderAndIsr, Node, NodeStat, TopicPartition

TP = TopicPartition("t", 0)


ID = "topic-id"


BROKERS = (1, 2, 3)


class World:
    """Three replicas of one partition, their store, and one producer and consumer; sound until a test breaks it."""

    def __init__(self, config: TopicConfig | None = None) -> None:
        self.now_ms = 0
        self.disks = Disks("model")
        self.history = History(self._tick)
        self.cores: dict[int, Partition] = {}
        self.checkers = Checkers(self.disks, self.history, lambda broker, partition: self.cores.get(broker))
        self.config = config or TopicConfig(min_insync_replicas=2)
        self.dump: dict[str, Node] = {}
        self.topic = nodes.TopicNode(ID, {0: nodes.Assignment(BROKERS)})
        self.put(nodes.topic_config("t"), nodes.encode_topic_config(self.config))
        self.put(nodes.topic("t"), nodes.encode_topic(self.topic))
        for broker in BROKERS:
            self.put(nodes.broker(broker), b"{}")
            self.put(nodes.broker_epoch(broker), b"")
        self.state = LeaderAndIsr(1, 0, BROKERS)
        self.write_state(self.state)
        self.logs = {broker: self.disks.disk(broker).open(TP, ID).log for broker in BROKERS}

    def _tick(self) -> int:
        self.now_ms += 1
        return self.now_ms

    @property
    def kinds(self) -> list[str]:
        return [violation.kind for violation in self.checkers.violations]

    def put(self, path: str, data: bytes) -> None:
        old = self.dump.get(path)
        modified = self._tick()
        self.dump[path] = Node(data, NodeStat(0 if old is None else old.stat.version + 1, modified, modified))
        self.checkers.store(self.dump)

    def write_state(self, state: LeaderAndIsr) -> None:
        self.state = state
        self.put(nodes.leader_and_isr(TP), nodes.encode_leader_and_isr(state))

    def records(self, sequence: int, offset: int = 0, epoch: int = 0, producer: int = 7, count: int = 1) -> Any:
        values = [b"%d:%d" % (producer, sequence + index) for index in range(count)]
        return self.disks.codec.encode(producer, 0, sequence, values, base_offset=offset, leader_epoch=epoch)

    def append(self, offset: int, sequence: int, brokers: tuple[int, ...] = BROKERS, **facts: int) -> None:
        for broker in brokers:
            self.logs[broker].append_as_follower(self.records(sequence, offset, **facts))

    def commit(self, offset: int, brokers: tuple[int, ...] = BROKERS) -> None:
        for broker in brokers:
            self.logs[broker].advance_high_watermark(offset)

    def leads(self, broker: int, epoch: int) -> Partition:
        core = Partition(broker, TP, ID, ReplicationConfig(), MetadataCache(), deque())
        core.role, core.leader_epoch, core.isr, core.assigned_replicas = Role.LEADER, epoch, BROKERS, BROKERS
        core.log, core.high_watermark = self.logs[broker].state(), self.logs[broker].high_watermark
        self.cores[broker] = core
        return core

    def step(self, core: Partition) -> None:
        manager = ReplicaManager(core.broker_id, ReplicationConfig())
        manager.partitions[TP] = core
        self.checkers.stepped(core.broker_id, manager)

    def ok(self, base_offset: int, sequence: int = 0, producer: int = 7) -> None:
        values = (f"{producer}:{sequence}",)
        self.history.add(Ok(0, TP, ID, "producer", -1, producer, sequence, values, base_offset))

    def read(self, offset: int, sequence: int, producer: int = 7) -> None:
        value = f"{producer}:{sequence}"
        self.history.add(Read(0, TP, ID, "consumer", 1, 0, offset, 0, producer, sequence, value))

    def got_watermark(self, high_watermark: int, epoch: int = 0, source: str = "fetch") -> None:
        self.history.add(Watermark(0, TP, ID, "consumer", 1, epoch, high_watermark, source))

    def context(self) -> ControllerContext:
        context = ControllerContext(1, 1, 1)
        context.put_topic("t", self.topic)
        stored = self.dump[nodes.leader_and_isr(TP)]
        context.put_state(TP, self.state._replace(partition_epoch=stored.stat.version))
        context.put_partition_status(TP, PartitionStatus.ONLINE)
        for broker in BROKERS:
            context.brokers[broker] = BrokerRegistration(broker, self.dump[nodes.broker_epoch(broker)].stat.version)
            context.put_replica_status(PartitionAndReplica(TP, broker), ReplicaStatus.ONLINE)
        return context

    def judged(self, at_rest: bool = True, context: ControllerContext | None = None) -> list[str]:
        return [
            violation.kind
            for violation in final_checks.judge(self.checkers, self.dump, context or self.context(), at_rest)
        ]
