"""The checkers can fail: a small sound history passes, and each promise, broken in it, is noticed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kreplog.config import ReplicationConfig, TopicConfig
from kreplog.core import effects, nodes
from kreplog.core.controller.context import ControllerContext, PartitionAndReplica
from kreplog.core.controller.transitions import (
    PARTITION_TRANSITIONS,
    REPLICA_TRANSITIONS,
    PartitionStatus,
    ReplicaStatus,
)
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.metadata import MetadataCache
from kreplog.core.replication.partition import Partition
from kreplog.core.replication.role import Role
from kreplog.sim import final_checks
from kreplog.sim.checkers import LEGAL, Checkers
from kreplog.sim.disk import Disks, Loss
from kreplog.sim.history import (
    DeletionDone,
    DeletionRequested,
    Fail,
    History,
    Ok,
    Position,
    PromiseBroken,
    Read,
    Unknown,
    Watermark,
)
from kreplog.types import BrokerRegistration, Check, Create, LeaderAndIsr, Node, NodeStat, TopicPartition

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
        self.topic = nodes.Topic(ID, {0: nodes.Assignment(BROKERS)})
        self.put(nodes.topic_config("t"), nodes.encode_topic_config(self.config))
        self.put(nodes.topic("t"), nodes.encode_topic(self.topic))
        for broker in BROKERS:
            self.put(nodes.broker(broker), b"{}")
            self.put(nodes.broker_epoch(broker), b"")
        self.state = LeaderAndIsr(1, 0, BROKERS)
        self.say(self.state)
        self.logs = {broker: self.disks.disk(broker).open(TP, ID).log for broker in BROKERS}

    def _tick(self) -> int:
        self.now_ms += 1
        return self.now_ms

    @property
    def kinds(self) -> list[str]:
        return [one.kind for one in self.checkers.violations]

    def put(self, path: str, data: bytes) -> None:
        old = self.dump.get(path)
        modified = self._tick()
        self.dump[path] = Node(data, NodeStat(0 if old is None else old.stat.version + 1, modified, modified))
        self.checkers.store(self.dump)

    def say(self, state: LeaderAndIsr) -> None:
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

    def told(self, high_watermark: int, epoch: int = 0) -> None:
        self.history.add(Watermark(0, TP, ID, "consumer", 1, epoch, high_watermark, "fetch"))

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
        return [one.kind for one in final_checks.judge(self.checkers, self.dump, context or self.context(), at_rest)]


@pytest.fixture
def world() -> World:
    """Two records, on every replica, committed, acknowledged and read."""
    made = World()
    made.append(0, 0)
    made.append(1, 1)
    made.commit(2)
    made.ok(0, 0)
    made.ok(1, 1)
    made.history.add(Position(0, TP, ID, "consumer", 0, "earliest"))
    made.read(0, 0)
    made.read(1, 1)
    made.told(2)
    return made


def test_a_sound_history_passes(world: World) -> None:
    assert world.judged() == []
    assert world.checkers.stats() == {"acked": 2, "read": 2, "committed": 2, "excused": 0}
    assert [event["event"] for event in world.history.as_json()] == [
        "Ok",
        "Ok",
        "Position",
        "Read",
        "Read",
        "Watermark",
    ]


def test_two_values_at_one_offset() -> None:
    world = World()
    world.say(LeaderAndIsr(1, 0, (1, 2)))
    world.append(0, 0, (1, 2))
    world.append(0, 5, (3,))
    world.commit(1, (1, 2))
    assert world.kinds == []
    world.commit(1, (3,))
    assert world.kinds == ["two values"]
    assert "offset 0 was committed as record 7:0" in world.checkers.violations[0].text


def test_two_values_where_a_log_is_opened_anew() -> None:
    """A replica that comes back with another record below its high watermark."""
    world = World()
    world.append(0, 5, (3,))
    world.commit(1, (3,))
    world.checkers.models.clear()
    world.append(0, 0, (1, 2))
    world.commit(1, (1, 2))
    world.disks.disk(3).open(TP, ID)
    assert "two values" in world.kinds


def test_written_twice_and_out_of_order(world: World) -> None:
    world.append(2, 1)
    world.commit(3)
    assert world.kinds == ["written twice"]
    world.append(3, 4)
    world.commit(4)
    assert world.kinds == ["written twice", "out of order"]


def test_a_member_that_lacks_what_is_committed() -> None:
    world = World()
    world.append(0, 0, (1, 2))
    world.commit(1, (1,))
    assert world.kinds == ["lacks committed"]
    assert "broker 3 is in sync and ends at 0" in world.checkers.violations[0].text


def test_a_member_whose_log_is_another() -> None:
    """It is as long as what is committed, but holds something else there."""
    world = World()
    world.append(0, 0, (1, 2))
    world.append(0, 4, (3,))
    world.commit(1, (1,))
    assert world.kinds == ["lacks committed"]
    assert "broker 3 has record 7:4" in world.checkers.violations[0].text


def test_what_too_few_hold_is_not_to_be_committed() -> None:
    world = World()
    world.say(LeaderAndIsr(1, 0, (1,)))
    world.append(0, 0, (1,))
    world.commit(1, (1,))
    assert world.kinds == ["too few"]


def test_who_held_it_until_a_power_cut_counts(world: World) -> None:
    """A follower fetched record 2, the leader counts it, and only then the follower's power fails."""
    world.say(LeaderAndIsr(1, 0, (1, 2)))
    world.append(2, 2, (1, 2))
    world.checkers.power_lost(lose(world, 2))
    world.commit(3, (1,))
    assert world.kinds == []


def test_nobody_joins_by_what_an_earlier_life_held(world: World) -> None:
    world.say(LeaderAndIsr(1, 0, (1, 2)))
    world.checkers.power_lost(lose(world, 3))
    world.say(LeaderAndIsr(1, 0, BROKERS))
    assert world.kinds == []  # the write was on its way when the power failed: nobody could know
    world.say(LeaderAndIsr(1, 0, (1, 2)))
    world.put(nodes.broker_epoch(3), b"")
    world.say(LeaderAndIsr(1, 0, BROKERS))
    assert world.kinds == ["stale registration"]


def test_two_controllers(world: World) -> None:
    world.put(nodes.CONTROLLER_EPOCH, b"2")
    world.say(LeaderAndIsr(1, 0, (1, 2)))
    assert world.kinds == []  # a leader's write, who has not heard of the new one
    world.say(LeaderAndIsr(2, 1, (1, 2), controller_epoch=1))
    assert world.kinds == ["two controllers"]


def test_a_broker_that_goes_back_to_an_older_epoch(world: World) -> None:
    core = world.leads(1, 0)
    core.role, core.leader_epoch = Role.FOLLOWER, 4
    world.step(core)
    core.leader_epoch = 3
    world.step(core)
    assert world.kinds == ["two leaders"]


def test_an_eligible_replica_counts_and_one_that_left_does_not(world: World) -> None:
    world.say(LeaderAndIsr(1, 0, (1,), (2,)))
    world.logs[3].truncate_to(0)
    assert world.kinds == []
    world.logs[2].truncate_to(1)
    assert world.kinds == ["lacks committed"]


def test_a_replica_that_joins_too_early(world: World) -> None:
    world.say(LeaderAndIsr(1, 0, (1, 2)))
    world.append(2, 2, (1, 2))
    world.commit(3, (1, 2))
    assert world.kinds == []
    world.say(LeaderAndIsr(1, 0, (1, 2, 3)))
    assert world.kinds == ["lacks committed"]


def test_flush_messages_of_one_means_fsynced_before_committed() -> None:
    world = World(TopicConfig(min_insync_replicas=2, flush_messages=1))
    world.append(0, 0)
    for broker in (1, 2):
        world.logs[broker].flush()
    world.commit(1, (1,))
    assert world.kinds == ["not fsynced"]


def test_flush_messages_of_one_is_not_excused_by_a_power_cut() -> None:
    world = World(TopicConfig(min_insync_replicas=2, flush_messages=1))
    world.append(0, 0)
    for broker in BROKERS:
        world.logs[broker].flush()
    world.commit(1)
    world.checkers.power_lost([Loss(broker, TP, ID, 0, 1) for broker in BROKERS])
    assert world.kinds == ["not fsynced"]
    assert not world.checkers.model(TP, ID).excused


def test_two_leaders_in_one_epoch(world: World) -> None:
    world.leads(1, 0)
    world.append(2, 2)
    world.commit(3, (1,))
    assert world.kinds == []
    world.leads(2, 0)
    del world.cores[1]
    world.commit(3, (2,))
    assert world.kinds == ["two leaders"]


def test_a_broker_that_leads_in_an_epoch_of_another(world: World) -> None:
    world.step(world.leads(1, 0))
    assert world.kinds == []
    world.step(world.leads(2, 0))
    assert world.kinds == ["two leaders"]


@pytest.mark.parametrize("state", [LeaderAndIsr(2, 1, BROKERS), LeaderAndIsr(1, 0, BROKERS)])
def test_an_epoch_that_changes_hands_or_falls(world: World, state: LeaderAndIsr) -> None:
    world.say(LeaderAndIsr(1, 1, BROKERS))
    world.say(state)
    assert world.kinds == ["two leaders"]


def test_unclean_elections_are_for_topics_that_allow_them(world: World) -> None:
    world.say(LeaderAndIsr(1, 1, (1,)))
    world.say(LeaderAndIsr(3, 2, (3,)))
    assert world.kinds == ["unclean election"]


def test_a_declared_unclean_election_must_be_allowed_too(world: World) -> None:
    world.checkers.unclean_election(effects.UncleanElection(TP, 3, 2))
    assert world.kinds == ["unclean election"]


def test_an_unclean_election_that_is_allowed_excuses_what_is_lost() -> None:
    world = World(TopicConfig(unclean_leader_election_enable=True))
    world.append(0, 0, (1, 2))
    world.say(LeaderAndIsr(1, 0, (1,)))
    world.commit(1, (1,))
    world.ok(0, 0)
    world.say(LeaderAndIsr(3, 1, (3,)))
    world.append(0, 9, (3,))
    world.commit(1, (3,))
    assert world.kinds == []
    assert world.judged(at_rest=False) == []
    assert world.checkers.stats()["excused"] == 1


@pytest.mark.parametrize(
    "state", [LeaderAndIsr(-1, 1, ()), LeaderAndIsr(1, 1, (1, 2, 3, 4)), LeaderAndIsr(1, 1, (2, 3))], ids=str
)
def test_an_isr_that_cannot_be(world: World, state: LeaderAndIsr) -> None:
    world.say(state)
    assert world.kinds[0] == "isr"


def test_a_leader_whose_isr_is_not_assigned(world: World) -> None:
    core = world.leads(1, 0)
    core.assigned_replicas = (1, 2)
    world.step(core)
    assert world.kinds == ["isr"]


@pytest.mark.parametrize("high_watermark", [1, 3, 0])
def test_a_watermark_that_forgets_its_log_or_leaves_it(world: World, high_watermark: int) -> None:
    core = world.leads(1, 0)
    world.step(core)
    assert world.kinds == []
    core.high_watermark = high_watermark
    world.step(core)
    assert world.kinds == ["watermark"]


def test_illegal_transitions(world: World) -> None:
    world.checkers.transition("t-0@1", "NewReplica", "OnlineReplica")
    world.checkers.transition(TP, "NonExistentPartition", "OnlinePartition")
    assert world.kinds == []
    world.checkers.transition("t-0@1", "OnlineReplica", "ReplicaDeletionStarted")
    assert world.kinds == ["illegal transition"]


def test_the_controllers_table_is_ours() -> None:
    tables: dict[str, set[str]] = {}
    tables |= {str(new): set(map(str, old)) for new, old in REPLICA_TRANSITIONS.items()}
    tables |= {str(new): set(map(str, old)) for new, old in PARTITION_TRANSITIONS.items()}
    assert tables == LEGAL


def test_acknowledged_too_early_and_at_a_wrong_offset(world: World) -> None:
    world.append(2, 2)
    world.ok(2, 2)
    assert world.kinds == ["too early"]
    world.ok(1, 0)
    assert world.kinds == ["too early", "two values"]


def test_acks_of_less_promise_nothing(world: World) -> None:
    world.history.add(Ok(0, TP, ID, "producer", 1, 8, 0, ("8:0",), 50))
    world.history.add(Fail(0, TP, ID, "producer", 1, 8, 1, ("8:1",), "OUT_OF_ORDER_SEQUENCE_NUMBER"))
    world.history.add(Unknown(0, TP, ID, "producer", -1, 8, 2, ("8:2",), "no answer for long"))
    assert world.judged() == []


def test_a_producer_that_is_refused(world: World) -> None:
    world.history.add(Fail(0, TP, ID, "producer", -1, 7, 2, ("7:2",), "OUT_OF_ORDER_SEQUENCE_NUMBER"))
    assert world.kinds == ["refused"]


@pytest.mark.parametrize(("offset", "sequence"), [(2, 2), (2, 0)])
def test_a_phantom(world: World, offset: int, sequence: int) -> None:
    world.append(2, 2)
    world.read(offset, sequence)
    assert world.kinds == ["phantom"]


def test_a_watermark_that_nobody_committed(world: World) -> None:
    world.told(3)
    assert world.kinds == ["phantom"]


def test_a_consumer_that_misses_or_repeats(world: World) -> None:
    world.append(2, 2)
    world.append(3, 3)
    world.commit(4)
    world.read(3, 3)
    assert world.kinds == ["gap"]


def test_a_consumer_that_is_set_back_reads_anew(world: World) -> None:
    world.history.add(Position(0, TP, ID, "consumer", 0, "latest"))
    world.read(0, 0)
    assert world.kinds == []
    world.history.add(Position(0, TP, ID, "consumer", -1, "1 is out of range"))
    assert world.kinds == ["out of range"]


def test_a_watermark_that_falls(world: World) -> None:
    world.told(1, epoch=-1)
    assert world.kinds == []  # an old leader's word after a new one's
    world.told(1, epoch=3)
    assert world.kinds == ["watermark fell"]


def test_lost(world: World) -> None:
    """Every replica is wiped at once: nobody looked, but at the end it shows."""
    world.checkers.model(TP, ID).members = ()
    for broker in BROKERS:
        world.logs[broker].truncate_to(0)
    world.say(world.state._replace(leader_epoch=1))
    world.checkers.violations.clear()
    assert "lost" in world.judged()


def test_lost_with_its_partition(world: World) -> None:
    del world.dump[nodes.topic("t")]
    assert "lost" in world.judged(at_rest=False)


def test_power_cuts_excuse_once_they_hit_all_who_had_to_hold_it(world: World) -> None:
    model = world.checkers.model(TP, ID)
    for broker in BROKERS:
        assert not model.excused
        world.checkers.power_lost(lose(world, broker))
    assert "power failed under all of [1, 2, 3]" in model.excused
    assert world.kinds == []


def lose(world: World, broker: int) -> list[Loss]:
    """A power cut that takes all from a broker's replica."""
    disk = world.disks.disk(broker)
    disk._replicas[TP].durable = 0

    class Lowest:
        def choice(self, options: list[int]) -> int:
            return options[0]

        def randrange(self, stop: int) -> int:
            return 0

    losses = disk.crash(True, Lowest())  # type: ignore[arg-type]
    world.logs[broker] = disk.open(TP, ID).log
    return losses


def test_a_power_cut_does_not_excuse_the_others(world: World) -> None:
    world.checkers.power_lost(lose(world, 3))
    assert world.kinds == []
    world.logs[2].truncate_to(1)
    assert world.kinds == ["lacks committed"]


def test_who_has_got_it_back_is_held_to_it_again(world: World) -> None:
    world.checkers.power_lost(lose(world, 3))
    world.append(0, 0, (3,))
    world.append(1, 1, (3,))
    assert world.checkers.model(TP, ID).lost == {}
    world.logs[3].truncate_to(0)
    assert world.kinds == ["lacks committed"]


def test_a_declared_break_excuses(world: World) -> None:
    world.history.add(PromiseBroken(0, TP, ID, "a test"))
    world.logs[1].truncate_to(0)
    world.read(7, 7)
    assert world.kinds == []


def test_nothing_is_owed_once_deletion_is_asked_for(world: World) -> None:
    world.put(f"{nodes.DELETED_TOPICS}/t", b"")
    world.logs[1].truncate_to(0)
    assert world.kinds == []
    assert world.checkers.model(TopicPartition("t", 1), ID).excused


def damage_a_log(world: World) -> None:
    world.logs[3].truncate_to(1)
    world.append(1, 4, (3,))


def lag(world: World) -> None:
    world.append(2, 2)
    world.commit(3, (1, 2))


def leave_a_stray(world: World) -> None:
    world.disks.disk(2).open(TopicPartition("gone", 0), "x")


BREAKS: dict[str, tuple[str, Callable[[World], None]]] = {
    "a leader is missing": ("not converged", lambda world: world.say(LeaderAndIsr(-1, 5, BROKERS))),
    "somebody is not in sync": ("not converged", lambda world: world.say(LeaderAndIsr(1, 5, (1, 2)))),
    "a log is missing": ("not converged", lambda world: world.disks.disk(3).delete(TP)),
    "a log is longer": ("not converged", lambda world: world.append(2, 2, (3,))),
    "a watermark lags": ("not converged", lag),
    "a log differs": ("logs differ", damage_a_log),
    "a request stands": ("not converged", lambda world: world.put(nodes.partition(TP, nodes.REASSIGNED), b"[]")),
    "a deletion stands": ("not converged", lambda world: world.put(f"{nodes.DELETED_TOPICS}/other", b"")),
    "an election stands": ("not converged", lambda world: world.put(nodes.PREFERRED_ELECTION, b"[]")),
    "a notification stands": ("not converged", lambda world: world.put(f"{nodes.ISR_CHANGES}/change_0", b"[]")),
    "a stray stands": ("not converged", leave_a_stray),
}


@pytest.mark.parametrize("broken", BREAKS)
def test_not_at_rest_as_it_should_be(world: World, broken: str) -> None:
    kind, break_it = BREAKS[broken]
    break_it(world)
    assert kind in world.judged()


def test_a_context_that_is_not_the_stores(world: World) -> None:
    context = world.context()
    context.put_state(TP, world.state._replace(leader=2))
    assert world.judged(context=context) == ["context"]


def test_a_context_with_a_broker_too_many(world: World) -> None:
    context = world.context()
    context.brokers[4] = BrokerRegistration(4, 0)
    assert world.judged(context=context) == ["context"]


def test_a_context_with_somebody_not_online(world: World) -> None:
    context = world.context()
    context.put_replica_status(PartitionAndReplica(TP, 3), ReplicaStatus.OFFLINE)
    assert world.judged(context=context) == ["context"]


def test_nobody_controls(world: World) -> None:
    assert [one.kind for one in final_checks.judge(world.checkers, world.dump, None, at_rest=True)] == ["context"]


def test_what_is_deleted_must_have_been_let_go_and_be_committed(world: World) -> None:
    world.logs[1].delete_records_before(1)
    assert world.kinds == ["deleted"] and "only below 0 was released" in world.checkers.violations[0].text
    other = World()
    other.append(0, 0)
    other.history.add(DeletionRequested(0, TP, ID, 1))
    other.commit(1)
    other.logs[1].delete_records_before(1)
    assert other.kinds == []


def test_nothing_uncommitted_is_deleted() -> None:
    world = World()
    world.append(0, 0)
    world.history.add(DeletionRequested(0, TP, ID, 1))
    world.checkers.model(TP, ID)
    world.logs[1]._replica.files.log_start = 1  # type: ignore[misc]
    world.step(world.leads(1, 0))
    assert "deleted" in world.kinds


def test_all_that_is_committed_is_for_leaders_to_delete(world: World) -> None:
    world.history.add(DeletionRequested(0, TP, ID, -1))
    world.leads(1, 0)
    world.logs[1].delete_records_before(2)
    world.logs[2].delete_records_before(2)
    assert world.kinds == []


def test_who_stood_at_what_was_deleted_is_out_of_range(world: World) -> None:
    world.history.add(DeletionRequested(0, TP, ID, 1))
    world.history.add(Position(0, TP, ID, "one", 0, "earliest"))
    world.history.add(Position(0, TP, ID, "one", -1, "0 is out of range"))
    assert world.kinds == []
    world.history.add(Position(0, TP, ID, "two", 1, "earliest"))
    world.history.add(Position(0, TP, ID, "two", -1, "1 is out of range"))
    assert world.kinds == ["out of range"]


def test_what_was_deleted_on_purpose_is_not_lost() -> None:
    world = World()
    for log in world.logs.values():
        log._files._segment_bytes = 1  # type: ignore[attr-defined]
    world.append(0, 0)
    world.append(1, 1)
    world.commit(2)
    world.ok(0, 0)
    world.history.add(DeletionRequested(0, TP, ID, 1))
    for log in world.logs.values():
        log.delete_records_before(1)
    assert final_checks.judge(world.checkers, world.dump, None, at_rest=False) == []
    world.checkers.model(TP, ID).released = 0
    assert [one.kind for one in final_checks.judge(world.checkers, world.dump, None, at_rest=False)] == ["lost"]


def test_a_producer_that_is_deleted_with_its_records_may_be_forgotten(world: World) -> None:
    world.history.add(DeletionRequested(0, TP, ID, 2))
    world.append(2, 1)
    world.commit(3)
    assert world.kinds == []
    world.append(3, 1)
    world.commit(4)
    assert world.kinds == ["written twice"]


def test_a_producer_that_was_forgotten_may_send_all_that_was_deleted_again_but_once(world: World) -> None:
    world.history.add(DeletionRequested(0, TP, ID, 2))
    for offset, sequence in ((2, 0), (3, 1)):
        world.append(offset, sequence)
        world.commit(offset + 1)
    assert world.kinds == []
    world.append(4, 1)
    world.commit(5)
    assert world.kinds == ["written twice"]


def test_a_follower_must_delete_what_its_leader_has(world: World) -> None:
    world.history.add(DeletionRequested(0, TP, ID, 1))
    world.logs[1].delete_records_before(1)
    found = final_checks.judge(world.checkers, world.dump, world.context(), at_rest=True)
    assert [one.text for one in found if one.kind == "not converged"] == [
        "t-0: the log of broker 2 begins at 0, that of its leader at 1"
    ]


def test_deletion_is_not_done_before_the_low_watermark_says_so(world: World) -> None:
    world.history.add(DeletionDone(0, TP, ID, 2, 1))
    assert world.kinds == ["too early"]


def test_a_leader_goes_by_the_settings_that_it_was_told_of() -> None:
    world = World()
    core = world.leads(1, 0)
    core.config = world.config
    world.say(LeaderAndIsr(1, 0, (1,)))
    world.put(nodes.topic_config("t"), nodes.encode_topic_config(TopicConfig()))
    world.append(0, 0, (1,))
    world.commit(1, (1,))
    assert world.kinds == ["too few"]
    world.checkers.violations.clear()
    core.config = TopicConfig()
    world.append(1, 1, (1,))
    world.commit(2, (1,))
    assert world.kinds == []


def test_a_new_partition_may_be_told_of_settings_that_are_older_than_it() -> None:
    world = World(TopicConfig())
    world.put(nodes.topic_config("t"), nodes.encode_topic_config(TopicConfig(min_insync_replicas=2)))
    added = TopicPartition("t", 1)
    world.put(nodes.topic("t"), nodes.encode_topic(replace(world.topic, partitions={1: nodes.Assignment(BROKERS)})))
    world.put(nodes.leader_and_isr(added), nodes.encode_leader_and_isr(LeaderAndIsr(1, 0, (1,))))
    log = world.disks.disk(1).open(added, ID).log
    core = world.leads(1, 0)
    for offset, config in enumerate((TopicConfig(), TopicConfig(retention_ms=1))):
        assert world.kinds == []
        core.config = config
        log.append_as_follower(world.records(offset, offset))
        log.advance_high_watermark(offset + 1)
    assert world.kinds == ["too few"]


def test_what_was_committed_unflushed_need_not_be_flushed_later(world: World) -> None:
    flushed = TopicConfig(min_insync_replicas=2, flush_messages=1)
    core = world.leads(1, 0)
    world.put(nodes.topic_config("t"), nodes.encode_topic_config(flushed))
    world.append(2, 2)
    world.commit(3)
    assert world.kinds == []
    core.config = flushed
    world.append(3, 3)
    world.commit(4)
    assert world.kinds == ["not fsynced"]


def test_a_broker_must_not_believe_another_end_than_its_log_has(world: World) -> None:
    core = world.leads(1, 0)
    world.step(core)
    core.log = replace(core.log, leo=core.log.leo + 1)
    core.interrupted = True  # it is about to be opened anew
    world.step(core)
    assert world.kinds == []
    core.interrupted = False
    world.step(core)
    assert world.kinds == ["log state"]
    assert "broker 1 has log state LogState(leo=3" in world.checkers.violations[0].text


def test_failed_logs_are_reported_under_a_registration_that_stands(world: World) -> None:
    event = Create(f"{nodes.LOG_DIR_EVENTS}/event_", b"", sequential=True)
    before = Check(nodes.broker_epoch(2), world.dump[nodes.broker_epoch(2)].stat.version)
    world.checkers.written(2, before.version, (before, event))
    world.put(nodes.broker_epoch(2), b"")
    world.checkers.written(2, before.version, (Create(f"{nodes.ISR_CHANGES}/isr_change_", b"", sequential=True),))
    assert world.kinds == []
    world.checkers.written(2, before.version, (before, event))
    assert world.kinds == ["stale log dir event"]


def test_a_report_of_failed_logs_names_its_registration(world: World) -> None:
    registered = world.dump[nodes.broker_epoch(2)].stat.version
    world.checkers.written(2, registered, (Create(f"{nodes.LOG_DIR_EVENTS}/event_", b"", sequential=True),))
    assert world.kinds == ["stale log dir event"]
