"""Followers and their leaders together: fetching, reconciling, truncating. F-numbers name known flaws of the design
that this must not have; b1, b2 and b3 are shells whose messages the test delivers, or does not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from kreplog.config import ReplicationConfig, TopicConfig
from kreplog.core import nodes
from kreplog.core.effects import AppendAsFollower, EndOfRecords, Flush, Reply, Send, SubmitMulti
from kreplog.core.events import Fetched, Flushed, Received, Registered, Tick
from kreplog.core.messages import (
    DEBUGGING,
    EARLIEST,
    LATEST,
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderAndIsrRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    PartitionState,
    ProducePartition,
    ProduceRequest,
    UpdateMetadataRequest,
)
from kreplog.core.replication.fetcher import NOT_READY_MAX_MS, FetchPosition
from kreplog.core.replication.manager import ReplicaManager, fetcher_index
from kreplog.core.replication.role import Role
from kreplog.errors import CorruptBatchError, ErrorCode, LogFailedError
from kreplog.types import BrokerRegistration, EpochEndOffset, LeaderAndIsr, TopicPartition
from tests.core.shell import TP, Shell, batch


class Brokers:
    """Some of b1 to b3, and the fetches under way between them."""

    def __init__(self, *ids: int, config: ReplicationConfig | None = None) -> None:
        self.shells = {broker: Shell(broker, config) for broker in ids}
        for shell in self.shells.values():
            shell.know(*ids)

    def __getitem__(self, broker: int) -> Shell:
        return self.shells[broker]

    def tell(
        self, leader: int, epoch: int, isr: Iterable[int], *, to: Iterable[int] | None = None, **more: Any
    ) -> None:
        replicas = tuple(self.shells)
        for broker in to if to is not None else replicas:
            self[broker].tell(leader, epoch, tuple(isr), replicas=replicas, **more)

    def write(self, leader: int, *names: str) -> None:
        for name in names:
            self[leader].request(ProduceRequest(1, 1000, (ProducePartition(TP, batch(name)),)))

    def fetch(self, broker: int) -> FetchedPartition | None:
        """One round of a follower: its outstanding fetch is answered; what the leader said of TP."""
        shell = self[broker]
        send = [one for one in shell.effects if isinstance(one, Send)][-1]
        response = self.answer(send)
        shell.step(Fetched(send.leader, send.correlation, response))
        return response.partitions[0] if response.partitions else None

    def answer(self, send: Send) -> FetchResponse:
        leader = self[send.leader]
        effects = leader.step(Received("fetch", send.request))
        leader.now_ms += 10**6
        effects += leader.step(Tick())
        leader.now_ms -= 10**6
        replies = [one for one in effects if isinstance(one, Reply) and one.reply_to == "fetch"]
        assert len(replies) == 1 and isinstance(replies[0].response, FetchResponse)
        return replies[0].response

    def catch_up(self, *followers: int, rounds: int = 6) -> None:
        for _ in range(rounds):
            for broker in followers:
                self.wait(broker)
                self.fetch(broker)

    def wait(self, broker: int) -> None:
        """Until what was delayed is fetched again."""
        self[broker].now_ms += 1000
        self[broker].step(Tick())

    def content(self) -> dict[int, list[str]]:
        return {broker: shell.content() for broker, shell in self.shells.items()}


def role(shell: Shell) -> Role:
    return shell.partition.role


def test_a_follower_takes_over_records_and_the_watermark_a_round_later() -> None:
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1, 2))
    brokers.write(1, "a", "b")
    brokers.fetch(2)
    assert brokers[2].content() == ["a", "b"] and brokers[2].partition.high_watermark == 0
    brokers.fetch(2)
    assert brokers[1].partition.high_watermark == 2
    assert brokers[2].partition.high_watermark == 2


def test_who_debugs_is_told_of_the_replica_it_asks_leader_or_not() -> None:
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1, 2))
    brokers.write(1, "a", "b")
    brokers.fetch(2)
    brokers.fetch(2)
    brokers.write(1, "c")
    end, start = ListOffsetsPartition(TP, -1, LATEST), ListOffsetsPartition(TP, -1, EARLIEST)
    for broker, leo in ((1, 3), (2, 2)):
        listed = [brokers[broker].ask(ListOffsetsRequest((one,), DEBUGGING)).partitions[0] for one in (end, start)]
        assert [(one.error, one.offset) for one in listed] == [(ErrorCode.NONE, leo), (ErrorCode.NONE, 0)]
        asked = FetchPartition(TP, "", -1, leo - 1)
        (told,) = brokers[broker].ask(FetchRequest(DEBUGGING, -1, 0, 0, 1 << 20, (asked,))).partitions
        assert (told.error, told.high_watermark, len(told.records) > 0) == (ErrorCode.NONE, 2, True)
    (refused,) = brokers[2].ask(ListOffsetsRequest((end,))).partitions
    assert refused.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    brokers[2].partition.go_offline()
    (failed,) = brokers[2].ask(ListOffsetsRequest((end,), DEBUGGING)).partitions
    assert failed.error is ErrorCode.KAFKA_STORAGE_ERROR


def test_f1_truncating_by_epoch_keeps_what_was_acknowledged() -> None:
    """KIP-101, scenario 1: b2 holds m2, which b1 acknowledged, but its own watermark stands before it."""
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1, 2))
    brokers.write(1, "m1", "m2")
    brokers.fetch(2)
    brokers[1].step(Received("fetch", [one for one in brokers[2].effects if isinstance(one, Send)][-1].request))
    assert brokers[1].partition.high_watermark == 2, "b2 asked for 2, so m2 is acknowledged"
    assert brokers[2].partition.high_watermark == 0
    brokers[2].start(2)
    brokers[2].tell(1, 1, (1, 2), replicas=(1, 2))
    brokers[2].tell(2, 2, (2,), replicas=(1, 2))
    assert brokers[2].content() == ["m1", "m2"]


def test_f2_logs_that_parted_after_a_common_power_loss_become_one() -> None:
    """KIP-101, scenario 2: the shorter log leads first, and writes other records at the same offsets."""
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1, 2))
    brokers.write(1, "m1", "m2")
    brokers.catch_up(2)
    brokers[2].log.lose(1, 0)
    brokers[2].log.open()
    for broker in (1, 2):
        brokers[broker].start(2)
        brokers[broker].know(1, 2, epoch=2)
    brokers.tell(2, 2, (2,), to=(2,))
    brokers.write(2, "m3")
    brokers.tell(2, 2, (2,), to=(1,))
    brokers.catch_up(1)
    assert brokers.content() == {1: ["m1", "m3"], 2: ["m1", "m3"]}


def test_f3_two_quick_leader_changes_leave_one_lineage() -> None:
    """KIP-279: b1 leads epoch 3 without having heard of b2's epoch 2; one round of looking up is not enough."""
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1, 2))
    brokers.write(1, "a")
    brokers.catch_up(2)
    brokers.write(1, "only on b1", "and this")
    brokers.tell(2, 2, (2,), to=(2,))
    brokers.write(2, "only on b2")
    brokers.tell(1, 3, (1,))
    brokers.write(1, "b")
    brokers.catch_up(2)
    assert brokers.content()[2] == brokers.content()[1] == ["a", "only on b1", "and this", "b"]


def test_f5_an_epoch_is_reconciled_with_though_the_leader_is_the_same() -> None:
    """KAFKA-7164: b3 misses that b2 led for a while, and sees only b1, then b1 again."""
    brokers = Brokers(1, 2, 3)
    brokers.tell(1, 1, (1, 2, 3))
    brokers.write(1, "a")
    brokers.catch_up(2, 3)
    brokers.write(1, "lost")
    brokers.fetch(3)
    brokers.tell(2, 2, (2, 3), to=(1, 2))
    brokers.write(2, "b")
    brokers.catch_up(1)
    brokers.tell(1, 3, (1, 2))
    brokers.write(1, "c")
    brokers.catch_up(2, 3)
    assert set(map(tuple, brokers.content().values())) == {("a", "b", "c")}


def test_f6_a_zombie_fetcher_of_an_old_epoch_moves_nothing() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.tell(1, 1, (1, 2, 3))
    brokers.catch_up(2, 3)
    brokers.tell(2, 2, (2, 3), to=(1, 2))
    brokers.tell(1, 3, (1, 3), to=(1, 2))
    brokers.write(1, "a")
    told = brokers.fetch(3)
    assert told is not None and told.error is ErrorCode.FENCED_LEADER_EPOCH
    assert brokers[1].partition.high_watermark == 0


def test_f7_an_answer_of_an_earlier_epoch_is_dropped() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.tell(1, 1, (1, 2, 3))
    brokers.write(1, "late")
    send = [one for one in brokers[3].effects if isinstance(one, Send)][-1]
    response = brokers.answer(send)
    brokers.tell(2, 2, (2, 3), to=(2, 3))
    brokers[3].step(Fetched(1, send.correlation, response))
    assert brokers[3].content() == []
    brokers.write(2, "b")
    brokers.catch_up(3)
    assert brokers[3].content() == ["b"]


def test_f8_a_diverging_answer_does_not_move_the_watermark() -> None:
    """KAFKA-14704: the leader says "parted at 1, watermark 3" to one that holds three records."""
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1,))
    brokers.write(1, "a", "x", "y")
    brokers[2].log.assign_leader_epoch(1)
    for name in ("a", "p", "q"):
        brokers[2].log.append_as_leader(batch(name), 1)
    brokers[2].log.assign_leader_epoch(2)
    brokers[2].start(2)
    brokers[2].tell(1, 3, (1,), replicas=(1, 2))
    follower = brokers[2]
    send = [one for one in follower.effects if isinstance(one, Send)][-1]
    parted = FetchedPartition(TP, ErrorCode.NONE, 3, 0, EpochEndOffset(1, 1))
    follower.step(Fetched(1, send.correlation, FetchResponse(ErrorCode.NONE, 0, (parted,))))
    assert follower.content() == ["a"] and follower.partition.high_watermark == 0


def test_f9_a_follower_behind_the_log_start_starts_there_watermark_included() -> None:
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1,))
    brokers.write(1, "a", "b", "c")
    brokers[1].partition.log = type(brokers[1].partition.log)(3, 2, ((1, 2),))
    brokers[1].log.delete_records_before(2)
    told = brokers.fetch(2)
    assert told is not None and told.error is ErrorCode.OFFSET_OUT_OF_RANGE
    partition = brokers[2].partition
    assert (partition.log.log_start, partition.log.leo, partition.high_watermark) == (2, 2, 2)
    brokers.catch_up(2)
    assert brokers[2].content() == ["c"]


def test_f10_one_bad_answer_backs_off_and_the_next_is_taken() -> None:
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1,))
    brokers.write(1, "a")
    brokers[2].fails[AppendAsFollower] = CorruptBatchError("flipped on the wire")
    brokers.fetch(2)
    assert brokers[2].content() == [] and role(brokers[2]) is Role.FOLLOWER
    brokers.catch_up(2, rounds=2)
    assert brokers[2].content() == ["a"]


ONE_BY_ONE = ReplicationConfig(replica_fetch_backoff_ms=100, replica_lag_time_max_ms=1000, replica_fetch_max_bytes=1)


def behind(isr: tuple[int, ...], *names: str, **more: Any) -> Brokers:
    """b2, whose every fetch is answered with one record, is about to fetch all of them from b1."""
    brokers = Brokers(1, 2, config=ONE_BY_ONE)
    brokers.tell(1, 1, isr, **more)
    brokers.write(1, *names)
    return brokers


def order(effects: Iterable[Any]) -> list[tuple[str, int]]:
    """The offsets that are asked for, and the appends, as they come."""
    found = []
    for one in effects:
        if isinstance(one, Send):
            found.append(("asks", one.request.partitions[0].fetch_offset))
        elif isinstance(one, AppendAsFollower):
            found.append(("appends", one.records.batches[0].base_offset))
    return found


def test_a_follower_that_is_behind_asks_ahead_below_the_watermark_that_it_was_told() -> None:
    """What it has not appended it may call its own only where that lets it neither commit nor join."""
    brokers = behind((1,), "a", "b", "c")
    shell = brokers[2]
    del shell.effects[:-1]
    for _ in range(3):
        assert brokers[1].partition.pending is None
        brokers.fetch(2)
    first, second, third = [("asks", 1), ("appends", 0)], [("asks", 2), ("appends", 1)], [("appends", 2), ("asks", 3)]
    assert order(shell.effects[1:]) == [*first, *second, *third]
    brokers.fetch(2)
    assert brokers[1].partition.pending is not None  # it joins, now that it has all


def test_a_follower_in_sync_asks_for_what_it_has_appended() -> None:
    """There its word counts."""
    brokers = behind((1, 2), "a", "b")
    del brokers[2].effects[:-1]
    brokers.fetch(2)
    brokers.fetch(2)
    assert order(brokers[2].effects[1:]) == [("appends", 0), ("asks", 1), ("appends", 1), ("asks", 2)]


def test_with_flush_messages_1_nothing_is_asked_ahead() -> None:
    brokers = behind((1,), "a", "b", "c", config=TopicConfig(flush_messages=1))
    brokers[1].step(Flushed(TP, 3))
    assert brokers[1].partition.high_watermark == 3
    del brokers[2].effects[:-1]
    brokers.fetch(2)
    assert order(brokers[2].effects[1:]) == [("appends", 0)]


def test_an_append_that_fails_after_more_was_asked_for_makes_nobody_believe_in_it() -> None:
    brokers = behind((1,), "a", "b", "c", "d")
    follower, leader = brokers[2], brokers[1].partition
    brokers.fetch(2)
    follower.fails[AppendAsFollower] = CorruptBatchError("flipped on the wire")
    brokers.fetch(2)
    brokers.fetch(2)
    assert (leader.replicas[2].leo, leader.high_watermark, leader.pending) == (2, 4, None)
    assert follower.content() == ["a"]
    brokers.write(1, "e")
    brokers.catch_up(2, rounds=6)
    assert follower.content() == ["a", "b", "c", "d", "e"]


def test_f7_a_late_answer_is_no_ground_to_ask_ahead() -> None:
    """What another epoch's leader told of its watermark does not hold in this one."""
    brokers = behind((1,), "a", "b", "c")
    send = [one for one in brokers[2].effects if isinstance(one, Send)][-1]
    asked, partition = send.request.partitions[0], brokers[2].partition
    (data,) = brokers.answer(send).partitions

    def after(request: FetchPartition, end: EpochEndOffset | None) -> FetchPosition | None:
        steps = partition.pipelined_fetch_position(request, data)
        try:
            assert next(steps) == EndOfRecords(TP, data.records)
            steps.send(end)
        except StopIteration as done:
            found: FetchPosition | None = done.value
            return found
        raise AssertionError("it goes on")

    assert after(asked, EpochEndOffset(1, 1)) == FetchPosition(1, 1, 0)
    assert after(asked, None) is None
    assert after(asked, EpochEndOffset(1, 0)) is None
    assert after(replace(asked, current_leader_epoch=0), EpochEndOffset(1, 1)) is None
    assert after(replace(asked, fetch_offset=1), EpochEndOffset(1, 1)) is None
    partition.step_down()
    assert after(replace(asked, current_leader_epoch=partition.leader_epoch), EpochEndOffset(1, 1)) is None


def test_a_lost_connection_is_tried_again_after_a_pause() -> None:
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1,))
    brokers.write(1, "a")
    send = [one for one in brokers[2].effects if isinstance(one, Send)][-1]
    assert not [one for one in brokers[2].step(Fetched(1, send.correlation, None)) if isinstance(one, Send)]
    assert brokers[2].manager.next_wakeup(brokers[2].now_ms) is not None
    brokers.catch_up(2, rounds=1)
    assert brokers[2].content() == ["a"]


def test_with_flush_messages_1_a_follower_asks_for_more_once_it_has_fsynced() -> None:
    """So that the offset it asks for is the end of what would survive a power loss."""
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1, 2), config=TopicConfig(flush_messages=1))
    brokers.write(1, "a")
    send = [one for one in brokers[2].effects if isinstance(one, Send)][-1]
    effects = brokers[2].step(Fetched(1, send.correlation, brokers.answer(send)))
    assert [type(one) for one in effects if isinstance(one, Flush | Send)] == [Flush]
    effects = brokers[2].step(Flushed(TP, 1))
    assert [one.request.partitions[0].fetch_offset for one in effects if isinstance(one, Send)] == [1]


def test_a_follower_in_front_after_an_unclean_election_is_cut_and_says_so() -> None:
    """F19: the watermark steps back only then, and one lineage is left."""
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1, 2))
    brokers.write(1, "a", "b")
    brokers.catch_up(2)
    brokers[1].log.lose(0, 0)
    brokers[1].log.open()
    brokers[1].start(2)
    brokers[1].know(1, 2)
    brokers.tell(1, 2, (1,), to=(1,))
    brokers.write(1, "c")
    brokers.tell(1, 2, (1,), to=(2,))
    brokers.catch_up(2)
    assert brokers.content() == {1: ["c"], 2: ["c"]}
    assert any(
        line.startswith("warning: topic-0: truncated to 0, below the high watermark 2") for line in brokers[2].said
    )


@pytest.mark.parametrize("isr", [(1,), (1, 2)])
def test_a_restart_keeps_the_watermark_within_the_log(isr: tuple[int, ...]) -> None:
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, isr)
    brokers.write(1, "a", "b")
    brokers.catch_up(2)
    assert brokers[1].partition.high_watermark == 2
    brokers[1].checkpointed[TP] = 99
    brokers[1].start(2)
    brokers[1].tell(2, 2, (2,), replicas=(1, 2))
    assert brokers[1].partition.high_watermark == 2
    assert brokers[1].tell(1, 0, (1,)).partitions[0][1] is ErrorCode.FENCED_LEADER_EPOCH


def test_with_flush_messages_1_a_change_of_epoch_does_not_let_it_ask_before_it_has_fsynced() -> None:
    brokers = Brokers(1, 2)
    config = TopicConfig(flush_messages=1)
    brokers.tell(1, 1, (1, 2), config=config)
    brokers.write(1, "a")
    brokers.fetch(2)
    brokers[2].effects.clear()
    brokers.tell(1, 2, (1, 2), config=config)
    assert [type(one) for one in brokers[2].effects if isinstance(one, Flush | Send)] == [Flush]
    effects = brokers[2].step(Flushed(TP, 1))
    assert [one.request.partitions[0].fetch_offset for one in effects if isinstance(one, Send)] == [1]


def test_with_flush_messages_1_a_restart_fsyncs_what_it_found_before_it_counts() -> None:
    brokers = Brokers(1, 2)
    config = TopicConfig(flush_messages=1)
    brokers.tell(1, 1, (1,), config=config)
    brokers.write(1, "a")
    brokers[1].start(2)
    brokers[1].effects.clear()
    brokers[1].tell(1, 2, (1,), replicas=(1, 2), config=config)
    assert [type(one) for one in brokers[1].effects if isinstance(one, Flush)] == [Flush]
    assert brokers[1].partition.high_watermark == 0
    brokers[1].step(Flushed(TP, 1))
    assert brokers[1].partition.high_watermark == 1


def test_a_leader_that_wrote_nothing_follows_one_whose_records_are_of_an_older_epoch() -> None:
    """b1 led epoch 4 and wrote nothing; b2, elected next, holds records of epoch 1 that b1 lacks."""
    brokers = Brokers(1, 2)
    brokers.tell(2, 1, (2,))
    brokers.write(2, "a", "b")
    brokers.tell(1, 4, (1,), to=(1,))
    assert brokers[1].log.epochs == ((4, 0),)
    brokers.tell(2, 5, (2,))
    brokers.catch_up(1)
    assert brokers[1].content() == ["a", "b"]


def test_f16_before_it_is_registered_a_process_obeys_nobody() -> None:
    """What is meant for its former life would have it lead with the hole that its crash left."""
    brokers = Brokers(1, 2)
    manager = ReplicaManager(1, brokers[1].config, {})
    brokers[1].manager = manager
    assert brokers[1].tell(1, 7, (1,), broker_epoch=1).error is ErrorCode.BROKER_NOT_AVAILABLE
    brokers[1].step(Registered(2, 2))
    assert brokers[1].tell(1, 7, (1,), broker_epoch=1).error is ErrorCode.STALE_BROKER_EPOCH
    assert brokers[1].tell(1, 7, (1,), broker_epoch=3).error is ErrorCode.BROKER_NOT_AVAILABLE
    assert brokers[1].tell(1, 7, (1,), broker_epoch=2).error is ErrorCode.NONE


def test_what_a_leader_and_isr_says_of_the_known_clients_hear_without_an_update_metadata() -> None:
    """Not of what is new, or made anew: they would hear of a part of a topic."""
    shell = Shell()
    states = [
        PartitionState(TP, "id", LeaderAndIsr(1, epoch, (1,), partition_epoch=epoch), (1,), is_new=True)
        for epoch in range(3)
    ]
    known = shell.manager.metadata.partitions
    shell.ask(LeaderAndIsrRequest(9, 1, 1, (states[0],), True))
    assert known == {}
    shell.ask(UpdateMetadataRequest(9, 1, 1, (), (states[0],)))
    known = shell.manager.metadata.partitions
    for told in (states[2], states[1], states[2]._replace(topic_id="another")):
        shell.ask(LeaderAndIsrRequest(9, 1, 1, (told,)))
        assert known == {TP: states[2]}
    shell.ask(UpdateMetadataRequest(9, 2, 1, (), ()))
    assert not shell.manager.metadata.partitions, "a new controller's first is complete"


def test_a_late_copy_of_a_control_request_undoes_nothing() -> None:
    """It was sent again on a new connection, answered, and the first copy comes out of a slow broker's buffer now."""
    shell = Shell()
    init = LeaderAndIsrRequest(9, 1, 1, (), True, sequence=1)
    metadata = UpdateMetadataRequest(9, 1, 1, (), sequence=2)
    told = PartitionState(TP, "id", LeaderAndIsr(1, 1, (1,)), (1,), is_new=True)
    requests = [init, metadata, LeaderAndIsrRequest(9, 1, 1, (told,), sequence=3)]
    for request in requests:
        shell.ask(request)
    shell.ask(UpdateMetadataRequest(9, 1, 1, (BrokerRegistration(1, 1),), sequence=4))
    for late in requests:
        assert shell.ask(late).error is ErrorCode.NONE
    assert TP in shell.manager.partitions and shell.manager.metadata.brokers
    shell.ask(LeaderAndIsrRequest(9, 2, 1, (), True, sequence=1))
    assert TP not in shell.manager.partitions, "a newer controller counts anew"


def test_a_fetch_that_waits_does_not_hold_up_the_first_of_a_partition_that_moves_here() -> None:
    """Failover: the follower has a long poll at the new leader when both are told; the leader a moment earlier."""
    shell = Shell(1)
    shell.know(1, 2)
    other = FetchPartition(TP, "id", 1, 0)
    shell.tell(1, 1, (1, 2), replicas=(1, 2))
    long_poll = FetchRequest(2, 1, 500, 1, 1 << 20, (other,), (), 0, 0)
    shell.request(long_poll, "poll")
    moved = TopicPartition("topic", 1)
    told = PartitionState(moved, "id", LeaderAndIsr(1, 3, (1, 2)), (1, 2), is_new=True)
    effects = shell.request(LeaderAndIsrRequest(9, 1, 1, (told,)), "controller")
    (answer,) = [one for one in effects if isinstance(one, Reply) and one.reply_to == "poll"]
    assert isinstance(answer.response, FetchResponse)
    again = FetchRequest(2, 1, 500, 1, 1 << 20, (), (), answer.response.session_id, 1)
    assert not [one for one in shell.request(again, "again") if isinstance(one, Reply)]
    assert (shell.manager.next_wakeup(0) or 0) <= 10
    shell.now_ms = 10
    assert [one.reply_to for one in shell.step(Tick()) if isinstance(one, Reply)] == ["again"]
    first = FetchRequest(2, 1, 500, 1, 1 << 20, (FetchPartition(moved, "id", 3, 0),), (), again.session_id, 2)
    shell.request(first, "first")
    shell.now_ms = 100
    assert not [one for one in shell.step(Tick()) if isinstance(one, Reply)], "all it expected was asked for"


def test_a_leader_that_has_not_heard_of_it_is_asked_again_soon() -> None:
    brokers = Brokers(1, 2)

    def pause_ms() -> int:
        return (brokers[2].manager.next_wakeup(brokers[2].now_ms) or 0) - brokers[2].now_ms

    brokers.tell(1, 1, (1, 2), to=(2,))
    told = brokers.fetch(2)
    assert told is not None and told.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert 0 < pause_ms() <= NOT_READY_MAX_MS
    brokers.wait(2)
    send = [one for one in brokers[2].effects if isinstance(one, Send)][-1]
    unknown = FetchResponse(ErrorCode.NONE, partitions=(FetchedPartition(TP, ErrorCode.UNKNOWN_TOPIC_ID),))
    brokers[2].step(Fetched(send.leader, send.correlation, unknown))
    assert 0 < pause_ms() <= NOT_READY_MAX_MS
    brokers.tell(2, 0, (2,), to=(1,))
    brokers.wait(2)
    told = brokers.fetch(2)
    assert told is not None and told.error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert 0 < pause_ms() <= NOT_READY_MAX_MS


def test_f37_a_follower_whose_log_fails_goes_offline_and_tells() -> None:
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1, 2))
    brokers.write(1, "a")
    brokers[2].fails[AppendAsFollower] = LogFailedError("disk gone")
    brokers.fetch(2)
    assert role(brokers[2]) is Role.OFFLINE
    writes = [one for one in brokers[2].effects if isinstance(one, SubmitMulti)]
    assert nodes.LOG_DIR_EVENTS in writes[0].operations[1].path


def test_a_log_start_inside_a_batch_is_reached_from_the_start_of_the_batch() -> None:
    """Kafka's UnexpectedAppendOffset: the leader deleted records up to 1, its first batch holds 0 to 2."""
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1,))
    brokers[1].request(ProduceRequest(1, 1000, (ProducePartition(TP, batch("a", "b", "c")),)))
    brokers[1].log.delete_records_before(1)
    brokers[1].partition.log = type(brokers[1].partition.log)(3, 1, brokers[1].log.epochs)
    brokers.catch_up(2)
    follower = brokers[2].partition
    assert (follower.log.log_start, follower.log.leo, follower.high_watermark) == (1, 3, 3)


def test_a_replica_that_is_missing_is_not_made_empty_while_it_counts_as_in_sync() -> None:
    """Its disk was lost or replaced: an empty log in the ISR could be elected, and all would truncate to it."""
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1, 2))
    brokers[2].topic_ids.clear()
    brokers[2].start(2)
    brokers[2].manager = ReplicaManager(2, brokers[2].config, {}, disk_lost=True)
    brokers[2].step(Registered(2, 2))
    state = LeaderAndIsr(1, 2, (1,), (2,))
    for isr in (state._replace(isr=(1, 2), elr=()), state):
        told = LeaderAndIsrRequest(9, 1, 2, (PartitionState(TP, "id", isr, (1, 2)),))
        assert brokers[2].ask(told).partitions == ((TP, ErrorCode.KAFKA_STORAGE_ERROR),)
    again = LeaderAndIsrRequest(9, 1, 2, (PartitionState(TP, "id", state, (1, 2)),), True)
    for _ in range(2):
        assert brokers[2].ask(again).partitions == ((TP, ErrorCode.KAFKA_STORAGE_ERROR),), "after the INIT as well"
    assert brokers[2].manager.missing == {TP: "id"}
    anew = PartitionState(TP, "id", state._replace(leader_epoch=3, elr=()), (1, 2))
    assert brokers[2].ask(LeaderAndIsrRequest(9, 1, 2, (anew,))).partitions == ((TP, ErrorCode.NONE),)


def test_a_broker_that_never_was_before_has_lost_nothing() -> None:
    """Its first partitions may reach it late, no longer as new ones, while a leader counts it as in sync."""
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1, 2))
    brokers[2].topic_ids.clear()
    brokers[2].start(2)
    told = LeaderAndIsrRequest(9, 1, 1, (PartitionState(TP, "id", LeaderAndIsr(1, 2, (1, 2), ()), (1, 2)),))
    brokers[2].manager = ReplicaManager(2, brokers[2].config, {}, disk_lost=True)
    brokers[2].step(Registered(1, 2))
    assert brokers[2].ask(told).partitions == ((TP, ErrorCode.NONE),)


def test_flush_messages_1_counts_from_a_new_leader_epoch_on() -> None:
    """What followers asked for before they knew of the setting promises no fsync; the leader has the epoch raised."""
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1, 2))
    brokers.write(1, "a")
    durable = TopicConfig(flush_messages=1)
    assert brokers[1].tell(1, 1, (1, 2), replicas=(1, 2), config=durable).partitions[0][1] is (
        ErrorCode.FENCED_LEADER_EPOCH
    )
    assert brokers[1].partition.config.flush_messages > 1
    brokers.tell(1, 2, (1, 2), config=durable)
    assert brokers[1].partition.config == durable and brokers[1].partition.high_watermark == 0


def test_a_follower_that_hears_of_flush_messages_1_in_its_epoch_fsyncs_and_goes_on() -> None:
    brokers = Brokers(1, 2)
    brokers.tell(1, 1, (1, 2))
    brokers.write(1, "a")
    brokers.fetch(2)
    brokers[2].effects.clear()
    brokers.tell(1, 1, (1, 2), to=(2,), config=TopicConfig(flush_messages=1))
    assert [one for one in brokers[2].effects if isinstance(one, Flush)]


def test_flush_messages_1_ends_for_a_follower_with_the_leader_epoch() -> None:
    """Its leader may not have heard of the weaker setting, and counts what is asked for as fsynced; whoever leads by
    the weaker one already will not have the epoch raised for it."""
    brokers = Brokers(1, 2)
    durable, weaker = TopicConfig(flush_messages=1), TopicConfig(retention_ms=1000)
    brokers.tell(1, 1, (1, 2), config=durable)
    refused = brokers[2].tell(1, 1, (1, 2), replicas=(1, 2), config=weaker)
    assert refused.partitions == ((TP, ErrorCode.FENCED_LEADER_EPOCH),)
    assert brokers[2].partition.config == durable
    brokers.write(1, "a")
    brokers.fetch(2)
    assert brokers[2].partition.awaits_flush
    brokers.fetch(2)
    assert brokers[1].partition.high_watermark == 0
    brokers.tell(1, 2, (1, 2), config=weaker)
    assert brokers[2].partition.config == weaker
    brokers.fetch(2)
    assert brokers[1].partition.high_watermark == 1


@pytest.mark.parametrize("fetchers", [1, 2, 3])
def test_the_partitions_of_a_leader_are_shared_out_among_its_fetchers(fetchers: int) -> None:
    """num.replica.fetchers: each has requests of its own, and its partitions in all of them."""
    shell = Shell(config=ReplicationConfig(num_replica_fetchers=fetchers))
    shell.know(1, 2)
    places = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(6)]
    states = [PartitionState(place, "id", LeaderAndIsr(2, 1, (1, 2)), (1, 2), is_new=True) for place in places]
    shell.ask(LeaderAndIsrRequest(9, 1, shell.epoch, tuple(states)))
    sent = [effect.request for effect in shell.effects if isinstance(effect, Send)]
    assert len({effect.correlation for effect in shell.effects if isinstance(effect, Send)}) == fetchers
    fetched = [[each.partition for each in request.partitions] for request in sent]
    assert sorted(place for places_of_one in fetched for place in places_of_one) == sorted(places)
    assert {len(places_of_one) for places_of_one in fetched} == {len(places) // fetchers}
    for places_of_one in fetched:
        assert len({fetcher_index(place, fetchers) for place in places_of_one}) == 1
