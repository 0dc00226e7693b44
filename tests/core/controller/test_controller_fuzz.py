"""Random histories of brokers, disks, topics, reassignments and controllers, with crashes and lost replies in between.

When the faults end everything must come to rest as requested: all partitions led and in sync, no request left, each
broker with what it should have. What every write must keep is checked in `controlled`. The simulator does this with
real logs and clients; here the controller alone is driven harder, and a failing seed is shrunk more easily.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from kreplog.config import ReplicationConfig, TopicConfig
from kreplog.core import nodes
from kreplog.core.controller import admin_operations
from kreplog.core.controller.transitions import PartitionStatus, ReplicaStatus
from kreplog.core.effects import Effect, GetChildren, GetNodes, Multi
from kreplog.core.events import Received, Registered, SessionLost
from kreplog.core.messages import ControlledShutdownRequest
from kreplog.errors import ConnectionLossError, CoordinationError, UsageError
from kreplog.types import Create, ElectionType, TopicPartition
from tests.core.controller.controlled import Box, Cluster, FakeBroker


class History:
    """One seed: every method that begins with do_ is one thing that may happen."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.cluster = Cluster(
            range(1, self.draw.randint(3, 6)), ReplicationConfig(leader_imbalance_check_interval_ms=5000)
        )
        for _ in range(self.draw.randint(1, 3)):
            self.cluster.start_controller()
        self.crashes, self.losses = (self.draw.choice([0, 0.002, 0.01, 0.03]) for _ in range(2))
        self.races = self.draw.choice([0, 0.01, 0.1])
        self.admin_operations = 0
        self.cluster.before = self.meddle

    def meddle(self, box: Box, effect: Effect) -> bool:
        """Between two effects of a controller: it dies, loses a reply, or the world changes under its hands."""
        draw, cluster = self.draw, self.cluster
        if draw.random() < self.losses and isinstance(effect, Multi | GetNodes | GetChildren):
            cluster.lost, cluster.unapplied = ConnectionLossError("lost"), draw.random() < 0.5
        if draw.random() < self.races:
            for broker in list(cluster.brokers.values()):
                if broker.alive and draw.random() < 0.5:
                    broker.catch_up()
                elif broker.alive:
                    self.shrink(broker)
        if draw.random() < self.races / 4:
            self.bounce(draw.choice(list(cluster.brokers.values())))
        return draw.random() < self.crashes

    def shrink(self, broker: FakeBroker) -> None:
        """A leader drops followers from its ISR."""
        for partition in sorted(broker.replicas):
            if broker.leads(partition) and self.cluster.exists(nodes.leader_and_isr(partition)):
                state = self.cluster.state(partition)
                epoch = broker.replicas[partition].state.leader_epoch
                if (state.leader, state.leader_epoch) == (broker.id, epoch) and len(state.isr) > 1:
                    broker.write_isr(
                        partition,
                        [broker_id for broker_id in state.isr if broker_id == broker.id or self.draw.random() < 0.5],
                    )

    def bounce(self, broker: FakeBroker) -> None:
        if broker.alive:
            broker.stop()
        else:
            broker.broken.clear()
            broker.start(unclean=self.draw.random() < 0.3)

    def partition(self) -> TopicPartition:
        found = [
            TopicPartition(name, number)
            for name in self.cluster.admin.children(nodes.TOPICS)
            for number in self.cluster.topic(name).partitions
        ]
        if not found:
            raise UsageError("no topic")
        return self.draw.choice(found)

    def replicas(self, size: int) -> list[int]:
        return self.draw.sample(sorted(self.cluster.brokers), size)

    def is_first(self, under: str, topic: str) -> bool:
        return not self.cluster.exists(f"{under}/{topic}")

    def do_bounce(self) -> None:
        self.bounce(self.draw.choice(list(self.cluster.brokers.values())))

    def do_disk(self) -> None:
        broker = self.draw.choice(list(self.cluster.brokers.values()))
        lost = [partition for partition in sorted(broker.replicas) if self.draw.random() < 0.5]
        if broker.alive and lost:
            broker.lose_disk(lost)

    def do_stop(self) -> None:
        broker = self.draw.choice(list(self.cluster.brokers.values()))
        boxes = [box for box in self.cluster.controllers if box.alive]
        if broker.alive and boxes:
            broker.mark_stopping()
            request = ControlledShutdownRequest(broker.id, broker.epoch)
            self.draw.choice(boxes).queue.append(Received("stop", request))

    def do_create(self) -> None:
        size = self.draw.randint(1, 3)
        self.admin_operations += 1
        self.cluster.create_topic(
            self.draw.choice("abc"),
            {number: self.replicas(min(size, len(self.cluster.brokers))) for number in range(self.draw.randint(1, 3))},
            TopicConfig(min_insync_replicas=self.draw.randint(1, min(size, len(self.cluster.brokers)))),
            f"id{self.admin_operations}",
        )

    def do_configure(self) -> None:
        config = TopicConfig(min_insync_replicas=self.draw.randint(1, 3))
        self.cluster.write(*admin_operations.set_config_operations(self.draw.choice("abc"), config))

    def do_delete(self) -> None:
        self.cluster.delete_topic(self.draw.choice("abc"))

    def do_reassign(self) -> None:
        partition = self.partition()
        target = self.replicas(self.draw.randint(1, min(3, len(self.cluster.brokers))))
        pending = self.cluster.exists(nodes.partition(partition, nodes.REASSIGNED))
        first = self.is_first(nodes.REASSIGNED, partition.topic)
        self.cluster.write(
            *admin_operations.reassign_operations(partition, target, target, directory=first, pending=pending)
        )

    def do_cancel(self) -> None:
        self.cluster.write(*admin_operations.cancel_reassignment_operations(self.partition()))

    def do_add(self) -> None:
        name = self.partition().topic
        new = TopicPartition(name, max(self.cluster.topic(name).partitions) + 1)
        if self.is_first(nodes.ADDED, name):
            self.cluster.write(Create(f"{nodes.ADDED}/{name}"))
        self.cluster.write(Create(nodes.partition(new, nodes.ADDED), nodes.encode_replicas(self.replicas(2))))

    def do_remove(self) -> None:
        name, number = (partition := self.partition()).topic, partition.partition
        first = self.is_first(nodes.REMOVED, name)
        topic = self.cluster.topic(name)
        self.cluster.write(*admin_operations.remove_partitions_operations(name, topic, [number], directory=first))

    def do_prefer(self) -> None:
        self.cluster.write(*admin_operations.election_operations(ElectionType.PREFERRED))

    def do_pause(self) -> None:
        box = self.draw.choice(self.cluster.controllers)
        box.paused = not box.paused
        if box.alive and box.paused and self.draw.random() < 0.5:
            self.cluster.store.expire(box.session.id)
            box.queue.append(SessionLost())

    def do_kill(self) -> None:
        box = self.draw.choice(self.cluster.controllers)
        if box.alive:
            box.die()

    def do_stand(self) -> None:
        self.cluster.start_controller()

    def run(self) -> None:
        actions: list[Callable[[], None]] = [
            getattr(self, name) for name in sorted(vars(History)) if name.startswith("do_")
        ]
        actions += [self.do_create, self.do_reassign, self.do_bounce]
        for _ in range(self.draw.randint(5, 60)):
            self.cluster.catching_up = self.draw.random() < 0.7
            try:
                self.draw.choice(actions)()
            except (CoordinationError, UsageError):
                continue  # the request is refused
            if self.draw.random() < 0.8:
                self.cluster.run()
            if self.draw.random() < 0.3:
                self.cluster.tick(self.draw.choice([0, 100, 600, 6000]))

    def heal(self) -> None:
        cluster = self.cluster
        cluster.before = lambda box, effect: False
        cluster.catching_up = True
        for box in cluster.controllers:
            box.paused = False
            if box.alive and box.session.expired:
                box.session = cluster.store.connect(6000)
                box.queue.append(Registered(0, box.session.id))
        for broker in cluster.brokers.values():
            path = nodes.broker(broker.id)
            if not broker.alive or broker.broken or nodes.decode_broker(path, cluster.node(path), 0).stopping:
                broker.stop()
                broker.broken.clear()
                broker.start()
        if not any(box.alive for box in cluster.controllers):
            cluster.start_controller()
        cluster.settle()

    def check(self) -> None:
        cluster = self.cluster
        cluster.check()
        context = cluster.controller.context
        for name in cluster.admin.children(nodes.TOPICS):
            for number, assignment in cluster.topic(name).partitions.items():
                state = cluster.state(TopicPartition(name, number))
                assert not assignment.adding + assignment.removing
                assert state.isr == tuple(sorted(assignment.replicas))
                assert state.leader in state.isr
        assert set(context.partition_statuses.values()) <= {PartitionStatus.ONLINE}
        assert set(context.replica_statuses.values()) <= {ReplicaStatus.ONLINE}
        directories = (*nodes.PARTITION_REQUESTS, nodes.DELETED_TOPICS)
        for directory in (*directories, nodes.ISR_CHANGES, nodes.LOG_DIR_EVENTS):
            assert cluster.admin.children(directory) == []
        assert not cluster.exists(nodes.PREFERRED_ELECTION)
        assert not cluster.unclean
        assert not [error for error in cluster.errors() if "cannot become" in error]


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_random_histories_come_to_rest_as_requested(first: int) -> None:
    for seed in range(first, first + 10):
        history = History(seed)
        try:
            history.run()
            history.heal()
            history.check()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
