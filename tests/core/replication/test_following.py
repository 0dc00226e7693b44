"""Followers and their leaders together: fetching, reconciling, truncating. F-numbers name known flaws of the base
design that must not come back; b1, b2 and b3 are shells whose messages the test delivers, or loses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from kreplog.config import ReplicationConfig, TopicConfig
from kreplog.core import nodes
from kreplog.core.effects import AppendAsFollower, EndOfRecords, Flush, Reply, Send, SubmitMulti
from kreplog.core.events import FetchReplied, Flushed, Received, Registered, Tick
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
from kreplog.core.replication.fetcher_manager import fetcher_index
from kreplog.core.replication.manager import ReplicaManager
from kreplog.core.replication.replica_fetcher import NOT_READY_MAX_MS, FetchPosition
from kreplog.core.replication.role import Role
from kreplog.errors import CorruptBatchError, ErrorCode, LogFailedError
from kreplog.types import BrokerRegistration, EpochEndOffset, LeaderAndIsr, TopicPartition
from tests.core.shell import TP, Shell, batch


class Brokers:
    """The brokers b1 to b3, or those of `ids`, and the fetches in flight between them."""

    def __init__(self, *ids: int, config: ReplicationConfig | None = None) -> None:
        self.shells = {broker: Shell(broker, config) for broker in ids}
        for shell in self.shells.values():
            shell.update_metadata(*ids)

    def __getitem__(self, broker: int) -> Shell:
        return self.shells[broker]

    def leader_and_isr(
        self, leader: int, epoch: int, isr: Iterable[int], *, to: Iterable[int] | None = None, **more: Any
    ) -> None:
        replicas = tuple(self.shells)
        for broker in to if to is not None else replicas:
            self[broker].leader_and_isr(leader, epoch, tuple(isr), replicas=replicas, **more)

    def write(self, leader: int, *names: str) -> None:
        for name in names:
            self[leader].request(ProduceRequest(1, 1000, (ProducePartition(TP, batch(name)),)))

    def fetch(self, broker: int) -> FetchedPartition | None:
        """Deliver the fetch of a follower in flight and its response; returns the part about TP."""
        shell = self[broker]
        send = [sent for sent in shell.effects if isinstance(sent, Send)][-1]
        response = self.response(send)
        shell.step(FetchReplied(send.leader, send.correlation, response))
        return response.partitions[0] if response.partitions else None

    def response(self, send: Send) -> FetchResponse:
        leader = self[send.leader]
        effects = leader.step(Received("fetch", send.request))
        leader.now_ms += 10**6
        effects += leader.step(Tick())
        leader.now_ms -= 10**6
        replies = [reply for reply in effects if isinstance(reply, Reply) and reply.reply_to == "fetch"]
        assert len(replies) == 1 and isinstance(replies[0].response, FetchResponse)
        return replies[0].response

    def catch_up(self, *followers: int, rounds: int = 6) -> None:
        for _ in range(rounds):
            for broker in followers:
                self.wait(broker)
                self.fetch(broker)

    def wait(self, broker: int) -> None:
        """Until the delayed partition is fetched again."""
        self[broker].now_ms += 1000
        self[broker].step(Tick())

    def content(self) -> dict[int, list[str]]:
        return {broker: shell.content() for broker, shell in self.shells.items()}


def role(shell: Shell) -> Role:
    return shell.partition.role


def test_a_follower_appends_records_and_gets_the_watermark_a_round_later() -> None:
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2))
    brokers.write(1, "a", "b")
    brokers.fetch(2)
    assert brokers[2].content() == ["a", "b"] and brokers[2].partition.high_watermark == 0
    brokers.fetch(2)
    assert brokers[1].partition.high_watermark == 2
    assert brokers[2].partition.high_watermark == 2


def test_a_debugging_fetch_reads_the_replica_leader_or_not() -> None:
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2))
    brokers.write(1, "a", "b")
    brokers.fetch(2)
    brokers.fetch(2)
    brokers.write(1, "c")
    end, start = ListOffsetsPartition(TP, -1, LATEST), ListOffsetsPartition(TP, -1, EARLIEST)
    for broker, leo in ((1, 3), (2, 2)):
        listed = [
            brokers[broker].response_to(ListOffsetsRequest((requested,), DEBUGGING)).partitions[0]
            for requested in (end, start)
        ]
        assert [(listed_offset.error, listed_offset.offset) for listed_offset in listed] == [
            (ErrorCode.NONE, leo),
            (ErrorCode.NONE, 0),
        ]
        requested = FetchPartition(TP, "", -1, leo - 1)
        (fetched,) = brokers[broker].response_to(FetchRequest(DEBUGGING, -1, 0, 0, 1 << 20, (requested,))).partitions
        assert (fetched.error, fetched.high_watermark, len(fetched.records) > 0) == (ErrorCode.NONE, 2, True)
    (refused,) = brokers[2].response_to(ListOffsetsRequest((end,))).partitions
    assert refused.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    brokers[2].partition.go_offline()
    (failed,) = brokers[2].response_to(ListOffsetsRequest((end,), DEBUGGING)).partitions
    assert failed.error is ErrorCode.KAFKA_STORAGE_ERROR


def test_f1_truncating_by_epoch_retains_acknowledged_records() -> None:
    """KIP-101, scenario 1: b2 holds m2, which b1 acknowledged, but its own high watermark is below it."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2))
    brokers.write(1, "m1", "m2")
    brokers.fetch(2)
    brokers[1].step(Received("fetch", [sent for sent in brokers[2].effects if isinstance(sent, Send)][-1].request))
    assert brokers[1].partition.high_watermark == 2, "b2 fetches from 2, so m2 is acknowledged"
    assert brokers[2].partition.high_watermark == 0
    brokers[2].start(2)
    brokers[2].leader_and_isr(1, 1, (1, 2), replicas=(1, 2))
    brokers[2].leader_and_isr(2, 2, (2,), replicas=(1, 2))
    assert brokers[2].content() == ["m1", "m2"]


def test_f2_logs_that_diverged_after_a_common_power_loss_converge() -> None:
    """KIP-101, scenario 2: the shorter log leads first, and writes other records at the same offsets."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2))
    brokers.write(1, "m1", "m2")
    brokers.catch_up(2)
    brokers[2].log.lose(1, 0)
    brokers[2].log.open()
    for broker in (1, 2):
        brokers[broker].start(2)
        brokers[broker].update_metadata(1, 2, epoch=2)
    brokers.leader_and_isr(2, 2, (2,), to=(2,))
    brokers.write(2, "m3")
    brokers.leader_and_isr(2, 2, (2,), to=(1,))
    brokers.catch_up(1)
    assert brokers.content() == {1: ["m1", "m3"], 2: ["m1", "m3"]}


def test_f3_two_quick_leader_changes_leave_one_lineage() -> None:
    """KIP-279: b1 leads epoch 3 without knowing b2's epoch 2; one round of epoch lookup is not enough."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2))
    brokers.write(1, "a")
    brokers.catch_up(2)
    brokers.write(1, "only on b1", "and this")
    brokers.leader_and_isr(2, 2, (2,), to=(2,))
    brokers.write(2, "only on b2")
    brokers.leader_and_isr(1, 3, (1,))
    brokers.write(1, "b")
    brokers.catch_up(2)
    assert brokers.content()[2] == brokers.content()[1] == ["a", "only on b1", "and this", "b"]


def test_f5_an_epoch_is_reconciled_with_though_the_leader_is_the_same() -> None:
    """KAFKA-7164: b3 misses that b2 led for a while, and sees only b1, then b1 again."""
    brokers = Brokers(1, 2, 3)
    brokers.leader_and_isr(1, 1, (1, 2, 3))
    brokers.write(1, "a")
    brokers.catch_up(2, 3)
    brokers.write(1, "lost")
    brokers.fetch(3)
    brokers.leader_and_isr(2, 2, (2, 3), to=(1, 2))
    brokers.write(2, "b")
    brokers.catch_up(1)
    brokers.leader_and_isr(1, 3, (1, 2))
    brokers.write(1, "c")
    brokers.catch_up(2, 3)
    assert set(map(tuple, brokers.content().values())) == {("a", "b", "c")}


def test_f6_a_zombie_fetcher_of_an_old_epoch_moves_nothing() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.leader_and_isr(1, 1, (1, 2, 3))
    brokers.catch_up(2, 3)
    brokers.leader_and_isr(2, 2, (2, 3), to=(1, 2))
    brokers.leader_and_isr(1, 3, (1, 3), to=(1, 2))
    brokers.write(1, "a")
    response = brokers.fetch(3)
    assert response is not None and response.error is ErrorCode.FENCED_LEADER_EPOCH
    assert brokers[1].partition.high_watermark == 0


def test_f7_a_response_of_an_earlier_epoch_is_dropped() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.leader_and_isr(1, 1, (1, 2, 3))
    brokers.write(1, "late")
    send = [sent for sent in brokers[3].effects if isinstance(sent, Send)][-1]
    response = brokers.response(send)
    brokers.leader_and_isr(2, 2, (2, 3), to=(2, 3))
    brokers[3].step(FetchReplied(1, send.correlation, response))
    assert brokers[3].content() == []
    brokers.write(2, "b")
    brokers.catch_up(3)
    assert brokers[3].content() == ["b"]


def test_f8_a_diverging_response_does_not_move_the_watermark() -> None:
    """KAFKA-14704: the leader responds "diverging at 1, watermark 3" to a follower with three records."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1,))
    brokers.write(1, "a", "x", "y")
    brokers[2].log.assign_leader_epoch(1)
    for name in ("a", "p", "q"):
        brokers[2].log.append_as_leader(batch(name), 1)
    brokers[2].log.assign_leader_epoch(2)
    brokers[2].start(2)
    brokers[2].leader_and_isr(1, 3, (1,), replicas=(1, 2))
    follower = brokers[2]
    send = [sent for sent in follower.effects if isinstance(sent, Send)][-1]
    parted = FetchedPartition(TP, ErrorCode.NONE, 3, 0, EpochEndOffset(1, 1))
    follower.step(FetchReplied(1, send.correlation, FetchResponse(ErrorCode.NONE, 0, (parted,))))
    assert follower.content() == ["a"] and follower.partition.high_watermark == 0


def test_f9_a_follower_behind_the_log_start_starts_there_watermark_included() -> None:
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1,))
    brokers.write(1, "a", "b", "c")
    brokers[1].partition.log = type(brokers[1].partition.log)(3, 2, ((1, 2),))
    brokers[1].log.delete_records_before(2)
    response = brokers.fetch(2)
    assert response is not None and response.error is ErrorCode.OFFSET_OUT_OF_RANGE
    partition = brokers[2].partition
    assert (partition.log.log_start, partition.log.leo, partition.high_watermark) == (2, 2, 2)
    brokers.catch_up(2)
    assert brokers[2].content() == ["c"]


def test_f10_a_bad_response_backs_off_and_the_next_is_applied() -> None:
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1,))
    brokers.write(1, "a")
    brokers[2].fails[AppendAsFollower] = CorruptBatchError("flipped on the wire")
    brokers.fetch(2)
    assert brokers[2].content() == [] and role(brokers[2]) is Role.FOLLOWER
    brokers.catch_up(2, rounds=2)
    assert brokers[2].content() == ["a"]


ONE_BY_ONE = ReplicationConfig(replica_fetch_backoff_ms=100, replica_lag_time_max_ms=1000, replica_fetch_max_bytes=1)


def behind(isr: tuple[int, ...], *names: str, **more: Any) -> Brokers:
    """b2, which gets one record with each response, is about to fetch all of them from b1."""
    brokers = Brokers(1, 2, config=ONE_BY_ONE)
    brokers.leader_and_isr(1, 1, isr, **more)
    brokers.write(1, *names)
    return brokers


def order(effects: Iterable[Any]) -> list[tuple[str, int]]:
    """The fetch offsets and the appends, in order."""
    found = []
    for effect in effects:
        if isinstance(effect, Send):
            found.append(("fetches", effect.request.partitions[0].fetch_offset))
        elif isinstance(effect, AppendAsFollower):
            found.append(("appends", effect.records.batches[0].base_offset))
    return found


def test_a_follower_that_is_behind_pipelines_fetches_below_the_watermark_it_received() -> None:
    """It may fetch past its log end only where that neither commits records nor brings it into the ISR."""
    brokers = behind((1,), "a", "b", "c")
    shell = brokers[2]
    del shell.effects[:-1]
    for _ in range(3):
        assert brokers[1].partition.pending is None
        brokers.fetch(2)
    first, second, third = (
        [("fetches", 1), ("appends", 0)],
        [("fetches", 2), ("appends", 1)],
        [("appends", 2), ("fetches", 3)],
    )
    assert order(shell.effects[1:]) == [*first, *second, *third]
    brokers.fetch(2)
    assert brokers[1].partition.pending is not None  # it joins, now that it has all


def test_an_in_sync_follower_fetches_from_its_log_end() -> None:
    """Its fetch offset counts for the high watermark."""
    brokers = behind((1, 2), "a", "b")
    del brokers[2].effects[:-1]
    brokers.fetch(2)
    brokers.fetch(2)
    assert order(brokers[2].effects[1:]) == [("appends", 0), ("fetches", 1), ("appends", 1), ("fetches", 2)]


def test_with_flush_messages_1_no_fetch_is_pipelined() -> None:
    brokers = behind((1,), "a", "b", "c", config=TopicConfig(flush_messages=1))
    brokers[1].step(Flushed(TP, 3))
    assert brokers[1].partition.high_watermark == 3
    del brokers[2].effects[:-1]
    brokers.fetch(2)
    assert order(brokers[2].effects[1:]) == [("appends", 0)]


def test_an_append_that_fails_after_a_pipelined_fetch_commits_nothing() -> None:
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


def test_f7_no_fetch_is_pipelined_by_a_late_response() -> None:
    """The watermark sent by the leader of another epoch does not hold in this one."""
    brokers = behind((1,), "a", "b", "c")
    send = [sent for sent in brokers[2].effects if isinstance(sent, Send)][-1]
    requested, partition = send.request.partitions[0], brokers[2].partition
    (data,) = brokers.response(send).partitions

    def after(request: FetchPartition, end: EpochEndOffset | None) -> FetchPosition | None:
        steps = partition.pipelined_fetch_position(request, data)
        try:
            assert next(steps) == EndOfRecords(TP, data.records)
            steps.send(end)
        except StopIteration as done:
            found: FetchPosition | None = done.value
            return found
        raise AssertionError("it goes on")

    assert after(requested, EpochEndOffset(1, 1)) == FetchPosition(1, 1, 0)
    assert after(requested, None) is None
    assert after(requested, EpochEndOffset(1, 0)) is None
    assert after(replace(requested, current_leader_epoch=0), EpochEndOffset(1, 1)) is None
    assert after(replace(requested, fetch_offset=1), EpochEndOffset(1, 1)) is None
    partition.step_down()
    assert after(replace(requested, current_leader_epoch=partition.leader_epoch), EpochEndOffset(1, 1)) is None


def test_a_lost_connection_is_retried_after_the_backoff() -> None:
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1,))
    brokers.write(1, "a")
    send = [sent for sent in brokers[2].effects if isinstance(sent, Send)][-1]
    assert not [sent for sent in brokers[2].step(FetchReplied(1, send.correlation, None)) if isinstance(sent, Send)]
    assert brokers[2].manager.next_wakeup(brokers[2].now_ms) is not None
    brokers.catch_up(2, rounds=1)
    assert brokers[2].content() == ["a"]


def test_with_flush_messages_1_a_follower_fetches_again_once_it_has_fsynced() -> None:
    """So that its fetch offset is the end of what would survive a power loss."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2), config=TopicConfig(flush_messages=1))
    brokers.write(1, "a")
    send = [sent for sent in brokers[2].effects if isinstance(sent, Send)][-1]
    effects = brokers[2].step(FetchReplied(1, send.correlation, brokers.response(send)))
    assert [type(effect) for effect in effects if isinstance(effect, Flush | Send)] == [Flush]
    effects = brokers[2].step(Flushed(TP, 1))
    assert [sent.request.partitions[0].fetch_offset for sent in effects if isinstance(sent, Send)] == [1]


def test_a_follower_ahead_after_an_unclean_election_truncates_and_logs_the_loss() -> None:
    """F19: only then the watermark moves back, and the logs converge."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2))
    brokers.write(1, "a", "b")
    brokers.catch_up(2)
    brokers[1].log.lose(0, 0)
    brokers[1].log.open()
    brokers[1].start(2)
    brokers[1].update_metadata(1, 2)
    brokers.leader_and_isr(1, 2, (1,), to=(1,))
    brokers.write(1, "c")
    brokers.leader_and_isr(1, 2, (1,), to=(2,))
    brokers.catch_up(2)
    assert brokers.content() == {1: ["c"], 2: ["c"]}
    assert any(
        line.startswith("warning: topic-0: truncated to 0, below the high watermark 2") for line in brokers[2].log_lines
    )


@pytest.mark.parametrize("isr", [(1,), (1, 2)])
def test_after_a_restart_the_watermark_is_within_the_log(isr: tuple[int, ...]) -> None:
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, isr)
    brokers.write(1, "a", "b")
    brokers.catch_up(2)
    assert brokers[1].partition.high_watermark == 2
    brokers[1].checkpointed[TP] = 99
    brokers[1].start(2)
    brokers[1].leader_and_isr(2, 2, (2,), replicas=(1, 2))
    assert brokers[1].partition.high_watermark == 2
    assert brokers[1].leader_and_isr(1, 0, (1,)).partitions[0][1] is ErrorCode.FENCED_LEADER_EPOCH


def test_with_flush_messages_1_a_new_epoch_starts_no_fetch_before_the_fsync() -> None:
    brokers = Brokers(1, 2)
    config = TopicConfig(flush_messages=1)
    brokers.leader_and_isr(1, 1, (1, 2), config=config)
    brokers.write(1, "a")
    brokers.fetch(2)
    brokers[2].effects.clear()
    brokers.leader_and_isr(1, 2, (1, 2), config=config)
    assert [type(effect) for effect in brokers[2].effects if isinstance(effect, Flush | Send)] == [Flush]
    effects = brokers[2].step(Flushed(TP, 1))
    assert [sent.request.partitions[0].fetch_offset for sent in effects if isinstance(sent, Send)] == [1]


def test_with_flush_messages_1_recovered_records_count_after_an_fsync() -> None:
    brokers = Brokers(1, 2)
    config = TopicConfig(flush_messages=1)
    brokers.leader_and_isr(1, 1, (1,), config=config)
    brokers.write(1, "a")
    brokers[1].start(2)
    brokers[1].effects.clear()
    brokers[1].leader_and_isr(1, 2, (1,), replicas=(1, 2), config=config)
    assert [type(effect) for effect in brokers[1].effects if isinstance(effect, Flush)] == [Flush]
    assert brokers[1].partition.high_watermark == 0
    brokers[1].step(Flushed(TP, 1))
    assert brokers[1].partition.high_watermark == 1


def test_a_leader_that_wrote_nothing_follows_one_whose_records_are_of_an_older_epoch() -> None:
    """b1 led epoch 4 and wrote nothing; b2, elected next, holds records of epoch 1 that b1 lacks."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(2, 1, (2,))
    brokers.write(2, "a", "b")
    brokers.leader_and_isr(1, 4, (1,), to=(1,))
    assert brokers[1].log.epochs == ((4, 0),)
    brokers.leader_and_isr(2, 5, (2,))
    brokers.catch_up(1)
    assert brokers[1].content() == ["a", "b"]


def test_f16_before_its_registration_a_process_applies_no_control_request() -> None:
    """A request for its former process would have it lead without the records that its crash lost."""
    brokers = Brokers(1, 2)
    manager = ReplicaManager(1, brokers[1].config, {})
    brokers[1].manager = manager
    assert brokers[1].leader_and_isr(1, 7, (1,), broker_epoch=1).error is ErrorCode.BROKER_NOT_AVAILABLE
    brokers[1].step(Registered(2, 2))
    assert brokers[1].leader_and_isr(1, 7, (1,), broker_epoch=1).error is ErrorCode.STALE_BROKER_EPOCH
    assert brokers[1].leader_and_isr(1, 7, (1,), broker_epoch=3).error is ErrorCode.BROKER_NOT_AVAILABLE
    assert brokers[1].leader_and_isr(1, 7, (1,), broker_epoch=2).error is ErrorCode.NONE


def test_leader_and_isr_updates_the_metadata_of_known_partitions() -> None:
    """Not of new or re-created partitions: clients would see a part of a topic."""
    shell = Shell()
    states = [
        PartitionState(TP, "id", LeaderAndIsr(1, epoch, (1,), partition_epoch=epoch), (1,), is_new=True)
        for epoch in range(3)
    ]
    known = shell.manager.metadata.partitions
    shell.response_to(LeaderAndIsrRequest(9, 1, 1, (states[0],), True))
    assert known == {}
    shell.response_to(UpdateMetadataRequest(9, 1, 1, (), (states[0],)))
    known = shell.manager.metadata.partitions
    for partition_state in (states[2], states[1], states[2]._replace(topic_id="another")):
        shell.response_to(LeaderAndIsrRequest(9, 1, 1, (partition_state,)))
        assert known == {TP: states[2]}
    shell.response_to(UpdateMetadataRequest(9, 2, 1, (), ()))
    assert not shell.manager.metadata.partitions, "a new controller's first is complete"


def test_a_late_copy_of_a_control_request_undoes_nothing() -> None:
    """It was sent again on a new connection and applied; now the first copy comes out of a slow broker's buffer."""
    shell = Shell()
    init = LeaderAndIsrRequest(9, 1, 1, (), True, sequence=1)
    metadata = UpdateMetadataRequest(9, 1, 1, (), sequence=2)
    partition_state = PartitionState(TP, "id", LeaderAndIsr(1, 1, (1,)), (1,), is_new=True)
    requests = [init, metadata, LeaderAndIsrRequest(9, 1, 1, (partition_state,), sequence=3)]
    for request in requests:
        shell.response_to(request)
    shell.response_to(UpdateMetadataRequest(9, 1, 1, (BrokerRegistration(1, 1),), sequence=4))
    for late in requests:
        assert shell.response_to(late).error is ErrorCode.NONE
    assert TP in shell.manager.partitions and shell.manager.metadata.brokers
    shell.response_to(LeaderAndIsrRequest(9, 2, 1, (), True, sequence=1))
    assert TP not in shell.manager.partitions, "a newer controller has its own sequence"


def test_a_delayed_fetch_does_not_hold_up_the_first_fetch_of_a_partition_that_moves_here() -> None:
    """Failover: the follower has a long poll at the new leader when both get LeaderAndIsr, the leader a moment
    earlier."""
    shell = Shell(1)
    shell.update_metadata(1, 2)
    other = FetchPartition(TP, "id", 1, 0)
    shell.leader_and_isr(1, 1, (1, 2), replicas=(1, 2))
    long_poll = FetchRequest(2, 1, 500, 1, 1 << 20, (other,), (), 0, 0)
    shell.request(long_poll, "poll")
    moved = TopicPartition("topic", 1)
    partition_state = PartitionState(moved, "id", LeaderAndIsr(1, 3, (1, 2)), (1, 2), is_new=True)
    effects = shell.request(LeaderAndIsrRequest(9, 1, 1, (partition_state,)), "controller")
    (answer,) = [reply for reply in effects if isinstance(reply, Reply) and reply.reply_to == "poll"]
    assert isinstance(answer.response, FetchResponse)
    again = FetchRequest(2, 1, 500, 1, 1 << 20, (), (), answer.response.session_id, 1)
    assert not [reply for reply in shell.request(again, "again") if isinstance(reply, Reply)]
    assert (shell.manager.next_wakeup(0) or 0) <= 10
    shell.now_ms = 10
    assert [reply.reply_to for reply in shell.step(Tick()) if isinstance(reply, Reply)] == ["again"]
    first = FetchRequest(2, 1, 500, 1, 1 << 20, (FetchPartition(moved, "id", 3, 0),), (), again.session_id, 2)
    shell.request(first, "first")
    shell.now_ms = 100
    assert not [reply for reply in shell.step(Tick()) if isinstance(reply, Reply)], "all that it expected was fetched"


def test_a_leader_that_is_not_ready_is_retried_soon() -> None:
    brokers = Brokers(1, 2)

    def pause_ms() -> int:
        return (brokers[2].manager.next_wakeup(brokers[2].now_ms) or 0) - brokers[2].now_ms

    brokers.leader_and_isr(1, 1, (1, 2), to=(2,))
    response = brokers.fetch(2)
    assert response is not None and response.error is ErrorCode.UNKNOWN_TOPIC_ID
    assert 0 < pause_ms() <= NOT_READY_MAX_MS
    brokers.wait(2)
    send = [sent for sent in brokers[2].effects if isinstance(sent, Send)][-1]
    unknown = FetchResponse(ErrorCode.NONE, partitions=(FetchedPartition(TP, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),))
    brokers[2].step(FetchReplied(send.leader, send.correlation, unknown))
    assert 0 < pause_ms() <= NOT_READY_MAX_MS
    brokers.leader_and_isr(2, 0, (2,), to=(1,))
    brokers.wait(2)
    response = brokers.fetch(2)
    assert response is not None and response.error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert 0 < pause_ms() <= NOT_READY_MAX_MS


def test_f37_a_follower_whose_log_fails_goes_offline_and_reports_it() -> None:
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2))
    brokers.write(1, "a")
    brokers[2].fails[AppendAsFollower] = LogFailedError("disk gone")
    brokers.fetch(2)
    assert role(brokers[2]) is Role.OFFLINE
    writes = [write for write in brokers[2].effects if isinstance(write, SubmitMulti)]
    assert nodes.LOG_DIR_EVENTS in writes[0].operations[1].path


def test_a_log_start_inside_a_batch_is_reached_from_the_start_of_the_batch() -> None:
    """Kafka's UnexpectedAppendOffset: the leader deleted records up to 1, its first batch holds 0 to 2."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1,))
    brokers[1].request(ProduceRequest(1, 1000, (ProducePartition(TP, batch("a", "b", "c")),)))
    brokers[1].log.delete_records_before(1)
    brokers[1].partition.log = type(brokers[1].partition.log)(3, 1, brokers[1].log.epochs)
    brokers.catch_up(2)
    follower = brokers[2].partition
    assert (follower.log.log_start, follower.log.leo, follower.high_watermark) == (1, 3, 3)


def test_a_missing_replica_is_not_recreated_empty_while_it_is_in_sync() -> None:
    """Its disk was lost or replaced: an empty log in the ISR could be elected, and all would truncate to it."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2))
    brokers[2].topic_ids.clear()
    brokers[2].start(2)
    brokers[2].manager = ReplicaManager(2, brokers[2].config, {}, disk_lost=True)
    brokers[2].step(Registered(2, 2))
    state = LeaderAndIsr(1, 2, (1,), (2,))
    for isr in (state._replace(isr=(1, 2), elr=()), state):
        request = LeaderAndIsrRequest(9, 1, 2, (PartitionState(TP, "id", isr, (1, 2)),))
        assert brokers[2].response_to(request).partitions == ((TP, ErrorCode.KAFKA_STORAGE_ERROR),)
    again = LeaderAndIsrRequest(9, 1, 2, (PartitionState(TP, "id", state, (1, 2)),), True)
    for _ in range(2):
        assert brokers[2].response_to(again).partitions == ((TP, ErrorCode.KAFKA_STORAGE_ERROR),), (
            "after the INIT as well"
        )
    assert brokers[2].manager.missing == {TP: "id"}
    next_epoch = PartitionState(TP, "id", state._replace(leader_epoch=3, elr=()), (1, 2))
    assert brokers[2].response_to(LeaderAndIsrRequest(9, 1, 2, (next_epoch,))).partitions == ((TP, ErrorCode.NONE),)


def test_a_broker_on_its_first_registration_has_lost_nothing() -> None:
    """Its first LeaderAndIsr may come late, with is_new unset, while a leader has it in the ISR."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2))
    brokers[2].topic_ids.clear()
    brokers[2].start(2)
    request = LeaderAndIsrRequest(9, 1, 1, (PartitionState(TP, "id", LeaderAndIsr(1, 2, (1, 2), ()), (1, 2)),))
    brokers[2].manager = ReplicaManager(2, brokers[2].config, {}, disk_lost=True)
    brokers[2].step(Registered(1, 2))
    assert brokers[2].response_to(request).partitions == ((TP, ErrorCode.NONE),)


def test_flush_messages_1_counts_from_a_new_leader_epoch_on() -> None:
    """Fetches made before a follower had the setting promise no fsync: the epoch says which it is, whatever setting a
    LeaderAndIsr brings."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2))
    brokers.write(1, "a")
    durable = TopicConfig(flush_messages=1)
    brokers.leader_and_isr(1, 1, (1, 2), config=durable, flush_every_record=False)
    assert brokers[1].partition.config == durable
    brokers.fetch(2)
    brokers.fetch(2)
    assert brokers[1].partition.high_watermark == 1
    brokers.leader_and_isr(1, 2, (1, 2), config=durable)
    brokers.write(1, "b")
    brokers[2].step(Flushed(TP, 1))
    brokers.fetch(2)  # of the former epoch, and refused
    brokers.fetch(2)
    assert brokers[1].partition.high_watermark == 1
    brokers[1].step(Flushed(TP, 2))
    brokers[2].step(Flushed(TP, 2))
    brokers.fetch(2)
    assert brokers[1].partition.high_watermark == 2


def test_an_epoch_without_flush_messages_1_has_a_leader_count_no_fetch_as_fsynced() -> None:
    """The setting changes while the epoch's LeaderAndIsr has reached the follower alone: the leader gets the epoch with
    the new setting, and must not believe that its follower had it as well (seed 9514)."""
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2), to=(2,))
    durable = TopicConfig(flush_messages=1)
    brokers.leader_and_isr(1, 1, (1, 2), to=(1,), config=durable, flush_every_record=False)
    brokers.write(1, "a")
    brokers.fetch(2)
    assert [brokers[broker].partition.awaits_flush for broker in (1, 2)] == [False, False]
    brokers.leader_and_isr(1, 2, (1, 2), config=durable)
    assert [brokers[broker].partition.awaits_flush for broker in (1, 2)] == [True, True]


def test_a_follower_that_gets_flush_messages_1_within_an_epoch_fsyncs_and_goes_on() -> None:
    brokers = Brokers(1, 2)
    brokers.leader_and_isr(1, 1, (1, 2))
    brokers.write(1, "a")
    brokers.fetch(2)
    brokers[2].effects.clear()
    brokers.leader_and_isr(1, 1, (1, 2), to=(2,), config=TopicConfig(flush_messages=1), flush_every_record=False)
    assert [effect for effect in brokers[2].effects if isinstance(effect, Flush)]


def test_flush_messages_1_ends_with_the_leader_epoch() -> None:
    """A leader counts fetch offsets as fsynced until then, so followers fsync before they fetch."""
    brokers = Brokers(1, 2)
    durable, weaker = TopicConfig(flush_messages=1), TopicConfig(retention_ms=1000)
    brokers.leader_and_isr(1, 1, (1, 2), config=durable)
    brokers.leader_and_isr(1, 1, (1, 2), to=(2,), config=weaker, flush_every_record=True)
    assert brokers[2].partition.config == weaker
    brokers.write(1, "a")
    brokers.fetch(2)
    assert brokers[2].partition.awaits_flush
    assert [effect for effect in brokers[2].effects if isinstance(effect, Flush)]
    assert brokers[1].partition.high_watermark == 0
    brokers.leader_and_isr(1, 2, (1, 2), config=weaker)
    brokers.fetch(2)
    assert brokers[1].partition.high_watermark == 1


@pytest.mark.parametrize("fetchers", [1, 2, 3])
def test_the_partitions_of_a_leader_are_distributed_over_its_fetchers(fetchers: int) -> None:
    """num.replica.fetchers: each fetcher sends its own requests, with its own partitions."""
    shell = Shell(config=ReplicationConfig(num_replica_fetchers=fetchers))
    shell.update_metadata(1, 2)
    places = [TopicPartition(topic, number) for topic in ("a", "b") for number in range(6)]
    states = [PartitionState(place, "id", LeaderAndIsr(2, 1, (1, 2)), (1, 2), is_new=True) for place in places]
    shell.response_to(LeaderAndIsrRequest(9, 1, shell.epoch, tuple(states)))
    sent = [effect.request for effect in shell.effects if isinstance(effect, Send)]
    assert len({effect.correlation for effect in shell.effects if isinstance(effect, Send)}) == fetchers
    fetched = [[each.partition for each in request.partitions] for request in sent]
    assert sorted(partition for partitions in fetched for partition in partitions) == sorted(places)
    assert {len(partitions) for partitions in fetched} == {len(places) // fetchers}
    for partitions in fetched:
        assert len({fetcher_index(partition, fetchers) for partition in partitions}) == 1
