"""The checkers can fail: a small sound history passes, and each guarantee violated in it is reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kreplog.config import TopicConfig
from kreplog.core import effects, nodes
from kreplog.core.controller.transitions import (
    PARTITION_TRANSITIONS,
    REPLICA_TRANSITIONS,
)
from kreplog.core.replication.role import Role
from kreplog.sim.checks.legal_transitions import LEGAL
from kreplog.sim.history import (
    DeletionRequested,
    GuaranteeViolated,
    OffsetCommitInvoked,
    OffsetCommitted,
    OffsetFetched,
)
from kreplog.sim.machines.disk import Loss
from kreplog.types import NO_LEADER, Check, Create, LeaderAndIsr, TopicPartition
from tests.sim.checked_world import BROKERS, ID, TP, World


def test_a_sound_history_passes(world: World) -> None:
    assert world.judged() == []
    counts = {
        "acked": 2,
        "read": 2,
        "committed": 2,
        "excused": 0,
        "generations": 0,
        "ownerships": 0,
        "offsets": 0,
        "transactions": 0,
    }
    assert world.checkers.stats() == counts
    assert [event["event"] for event in world.history.as_json()] == [
        "Ok",
        "Ok",
        "Position",
        "Read",
        "Read",
        "Watermark",
    ]


def test_offsets_of_two_groups_are_apart(world: World) -> None:
    texts = {"classic": "a:1", "consumers": "b:1"}
    for group_id, text in texts.items():
        where = world.now_ms, TP, ID, "member", group_id
        world.history.add(OffsetCommitInvoked(*where, 1, "member", "member", 0, text))
        world.history.add(OffsetCommitted(*where, text, "NONE"))
    place = len(world.history.events)
    for group_id, text in texts.items():
        world.history.add(OffsetFetched(world.now_ms, TP, ID, "member", group_id, NO_LEADER, place, 0, text, 1))
    assert world.kinds == []
    assert world.checkers.stats()["offsets"] == 2
    world.history.add(OffsetFetched(world.now_ms, TP, ID, "member", "classic", NO_LEADER, place, 0, "b:1", 1))
    assert world.kinds == ["refused commit"]


def test_two_values_at_one_offset() -> None:
    world = World()
    world.write_state(LeaderAndIsr(1, 0, (1, 2)))
    world.append(0, 0, (1, 2))
    world.append(0, 5, (3,))
    world.commit(1, (1, 2))
    assert world.kinds == []
    world.commit(1, (3,))
    assert world.kinds == ["two values"]
    assert "offset 0 was committed as record 7:0" in world.checkers.violations[0].text


def test_two_values_where_a_log_is_reopened() -> None:
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


def test_a_member_that_lacks_committed_records() -> None:
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


def test_records_on_too_few_replicas_must_not_be_committed() -> None:
    world = World()
    world.write_state(LeaderAndIsr(1, 0, (1,)))
    world.append(0, 0, (1,))
    world.commit(1, (1,))
    assert world.kinds == ["too few"]


def test_a_holder_until_a_power_failure_counts(world: World) -> None:
    """A follower fetched record 2, the leader counts it, and only then the follower's power fails."""
    world.write_state(LeaderAndIsr(1, 0, (1, 2)))
    world.append(2, 2, (1, 2))
    world.checkers.power_lost(lose(world, 2))
    world.commit(3, (1,))
    assert world.kinds == []


def test_no_replica_joins_by_an_earlier_registration(world: World) -> None:
    world.write_state(LeaderAndIsr(1, 0, (1, 2)))
    world.checkers.power_lost(lose(world, 3))
    world.write_state(LeaderAndIsr(1, 0, BROKERS))
    assert world.kinds == []  # the write was on its way when the power failed: nobody could know
    world.write_state(LeaderAndIsr(1, 0, (1, 2)))
    world.put(nodes.broker_epoch(3), b"")
    world.write_state(LeaderAndIsr(1, 0, BROKERS))
    assert world.kinds == ["stale registration"]


def test_two_controllers(world: World) -> None:
    world.put(nodes.CONTROLLER_EPOCH, b"2")
    world.write_state(LeaderAndIsr(1, 0, (1, 2)))
    assert world.kinds == []  # a leader's write, who has not heard of the new one
    world.write_state(LeaderAndIsr(2, 1, (1, 2), controller_epoch=1))
    assert world.kinds == ["two controllers"]


def test_a_broker_that_goes_back_to_an_older_epoch(world: World) -> None:
    core = world.leads(1, 0)
    core.role, core.leader_epoch = Role.FOLLOWER, 4
    world.step(core)
    core.leader_epoch = 3
    world.step(core)
    assert world.kinds == ["two leaders"]


def test_an_eligible_replica_counts_and_one_that_left_does_not(world: World) -> None:
    world.write_state(LeaderAndIsr(1, 0, (1,), (2,)))
    world.logs[3].truncate_to(0)
    assert world.kinds == []
    world.logs[2].truncate_to(1)
    assert world.kinds == ["lacks committed"]


def test_a_replica_that_joins_too_early(world: World) -> None:
    world.write_state(LeaderAndIsr(1, 0, (1, 2)))
    world.append(2, 2, (1, 2))
    world.commit(3, (1, 2))
    assert world.kinds == []
    world.write_state(LeaderAndIsr(1, 0, (1, 2, 3)))
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
    world.write_state(LeaderAndIsr(1, 1, BROKERS))
    world.write_state(state)
    assert world.kinds == ["two leaders"]


def test_unclean_elections_are_for_topics_that_allow_them(world: World) -> None:
    world.write_state(LeaderAndIsr(1, 1, (1,)))
    world.write_state(LeaderAndIsr(3, 2, (3,)))
    assert world.kinds == ["unclean election"]


def test_a_declared_unclean_election_must_be_allowed_too(world: World) -> None:
    world.checkers.unclean_election(effects.UncleanElection(TP, 3, 2))
    assert world.kinds == ["unclean election"]


def test_an_allowed_unclean_election_excuses_losses() -> None:
    world = World(TopicConfig(unclean_leader_election_enable=True))
    world.append(0, 0, (1, 2))
    world.write_state(LeaderAndIsr(1, 0, (1,)))
    world.commit(1, (1,))
    world.ok(0, 0)
    world.write_state(LeaderAndIsr(3, 1, (3,)))
    world.append(0, 9, (3,))
    world.commit(1, (3,))
    assert world.kinds == []
    assert world.judged(at_rest=False) == []
    assert world.checkers.stats()["excused"] == 1


@pytest.mark.parametrize(
    "state", [LeaderAndIsr(-1, 1, ()), LeaderAndIsr(1, 1, (1, 2, 3, 4)), LeaderAndIsr(1, 1, (2, 3))], ids=str
)
def test_an_isr_that_cannot_be(world: World, state: LeaderAndIsr) -> None:
    world.write_state(state)
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


def test_power_failures_excuse_once_they_hit_all_members(world: World) -> None:
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


def test_a_replica_that_refetched_its_records_must_hold_them_again(world: World) -> None:
    world.checkers.power_lost(lose(world, 3))
    world.append(0, 0, (3,))
    world.append(1, 1, (3,))
    assert world.checkers.model(TP, ID).lost == {}
    world.logs[3].truncate_to(0)
    assert world.kinds == ["lacks committed"]


def test_a_declared_break_excuses(world: World) -> None:
    world.history.add(GuaranteeViolated(0, TP, ID, "a test"))
    world.logs[1].truncate_to(0)
    world.read(7, 7)
    assert world.kinds == []


def test_nothing_is_guaranteed_once_deletion_is_requested(world: World) -> None:
    world.put(f"{nodes.DELETED_TOPICS}/t", b"")
    world.logs[1].truncate_to(0)
    assert world.kinds == []
    assert world.checkers.model(TopicPartition("t", 1), ID).excused


def test_deleted_records_must_have_been_released_and_committed(world: World) -> None:
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


def test_a_leader_applies_the_settings_that_it_received() -> None:
    world = World()
    core = world.leads(1, 0)
    core.config = world.config
    world.write_state(LeaderAndIsr(1, 0, (1,)))
    world.put(nodes.topic_config("t"), nodes.encode_topic_config(TopicConfig()))
    world.append(0, 0, (1,))
    world.commit(1, (1,))
    assert world.kinds == ["too few"]
    world.checkers.violations.clear()
    core.config = TopicConfig()
    world.append(1, 1, (1,))
    world.commit(2, (1,))
    assert world.kinds == []


def test_a_new_partition_may_receive_settings_that_are_older_than_it() -> None:
    world = World(TopicConfig())
    world.put(nodes.topic_config("t"), nodes.encode_topic_config(TopicConfig(min_insync_replicas=2)))
    added = TopicPartition("t", 1)
    world.put(
        nodes.topic("t"),
        nodes.encode_topic(replace(world.topic, partitions={**world.topic.partitions, 1: nodes.Assignment(BROKERS)})),
    )
    world.put(nodes.leader_and_isr(added), nodes.encode_leader_and_isr(LeaderAndIsr(1, 0, (1,))))
    log = world.disks.disk(1).open(added, ID).log
    core = world.leads(1, 0)
    for offset, config in enumerate((TopicConfig(), TopicConfig(retention_ms=1))):
        assert world.kinds == []
        core.config = config
        log.append_as_follower(world.records(offset, offset))
        log.advance_high_watermark(offset + 1)
    assert world.kinds == ["too few"]


def test_records_committed_unflushed_need_not_be_flushed_later(world: World) -> None:
    flushed = TopicConfig(min_insync_replicas=2, flush_messages=1)
    core = world.leads(1, 0)
    world.put(nodes.topic_config("t"), nodes.encode_topic_config(flushed))
    world.append(2, 2)
    world.commit(3)
    assert world.kinds == []
    core.config, core.flush_every_record = flushed, True
    world.append(3, 3)
    world.commit(4)
    assert world.kinds == ["not fsynced"]


def test_a_broker_must_not_believe_another_end_than_its_log_has(world: World) -> None:
    core = world.leads(1, 0)
    world.step(core)
    core.log = replace(core.log, leo=core.log.leo + 1)
    core.interrupted = True  # it is about to be opened again
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


def test_a_topic_that_lacks_a_partition_below_others_is_found() -> None:
    world = World(TopicConfig())
    partitions = {**world.topic.partitions, 2: nodes.Assignment(BROKERS)}
    world.put(nodes.topic("t"), nodes.encode_topic(replace(world.topic, partitions=partitions)))
    assert world.kinds == ["partition missing"]
