"""A leader: appends, acknowledgements, commits, reads, and changes of the ISR. F-numbers name known flaws of the base
design that must not come back; KIPs, the sources of the rules."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from kreplog.config import TopicConfig
from kreplog.core import nodes
from kreplog.core.effects import AppendAsLeader, Flush, Reply, SubmitMulti, SubmitRead
from kreplog.core.events import Flushed, Received, Registered, SessionLost, StoreReplied, Tick
from kreplog.core.messages import (
    CONSUMER,
    EARLIEST,
    LATEST,
    READ_COMMITTED,
    EpochPartition,
    FetchPartition,
    FetchRequest,
    LeaderAndIsrRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetsForLeaderEpochRequest,
    PartitionState,
    ProducedPartition,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    StopReplica,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from kreplog.core.replication.role import Role
from kreplog.errors import BadVersionError, ConnectionLossError, ErrorCode, LogFailedError
from kreplog.sim.machines.records import ModelRecords
from kreplog.types import (
    NO_EPOCH,
    BrokerRegistration,
    Check,
    Create,
    EpochEndOffset,
    LeaderAndIsr,
    Node,
    NodeStat,
    SetData,
)
from tests.core.shell import TP, Shell, batch, only, values

MIN2 = TopicConfig(min_insync_replicas=2)


def produce(*names: str, acks: int = -1, timeout_ms: int = 1000, producer_id: int = -1, sequence: int = -1) -> Any:
    records = batch(*names, producer_id=producer_id, sequence=sequence)
    return ProduceRequest(acks, timeout_ms, (ProducePartition(TP, records),))


def fetch(
    replica: int,
    offset: int,
    epoch: int = 1,
    *,
    last_epoch: int = -1,
    max_wait_ms: int = 0,
    broker_epoch: int = 1,
    min_bytes: int = 1,
) -> FetchRequest:
    requested = FetchPartition(TP, "id", epoch, offset, last_epoch)
    return FetchRequest(replica, broker_epoch, max_wait_ms, min_bytes, 1 << 20, (requested,))


def leader(epoch: int = 1, isr: tuple[int, ...] = (1, 2, 3), config: TopicConfig | None = None) -> Shell:
    shell = Shell()
    shell.update_metadata(1, 2, 3)
    shell.leader_and_isr(1, epoch, isr, config=config)
    return shell


def next_leader(isr: tuple[int, ...], records: ModelRecords | None = None) -> Shell:
    """Leads in epoch 2, with records of epoch 1 (by default two) above its high watermark."""
    shell = Shell()
    shell.leader_and_isr(2, 1)
    (written,) = (records or batch("a", "b")).batches
    shell.log.append_as_follower(ModelRecords((written._replace(leader_epoch=1),)))
    shell.start(2)
    shell.update_metadata(1, 2, 3)
    shell.leader_and_isr(1, 2, isr)
    return shell


def fetched(shell: Shell, *args: Any, **kwargs: Any) -> Any:
    response = shell.response_to(fetch(*args, **kwargs))
    return response.partitions[0] if response.partitions else response


def answers(shell: Shell) -> list[ProducedPartition]:
    """The responses to all produces so far."""
    responses = [effect.response for effect in shell.effects if isinstance(effect, Reply)]
    return [
        response_partition
        for response in responses
        if isinstance(response, ProduceResponse)
        for response_partition in response.partitions
    ]


def role(shell: Shell) -> Role:
    return shell.partition.role


def wrote(shell: Shell) -> SubmitMulti:
    """The last write to the store."""
    return [write for write in shell.effects if isinstance(write, SubmitMulti)][-1]


def proposed(shell: Shell) -> LeaderAndIsr:
    write = wrote(shell)
    assert isinstance(write.operations[0], SetData)
    return nodes.decode_leader_and_isr("", Node(write.operations[0].data, NodeStat(0, 0, 0)))


def confirm(shell: Shell, version: int) -> list[Any]:
    return shell.step(StoreReplied(wrote(shell).tag, (NodeStat(version, 0, 0), "/isr")))


def node(state: LeaderAndIsr, version: int) -> Node:
    return Node(nodes.encode_leader_and_isr(state), NodeStat(version, 0, 0))


# Produce


@pytest.mark.parametrize(("acks", "answered"), [(0, None), (1, 0), (-1, "waits")])
def test_a_produce_is_acknowledged_according_to_acks(acks: int, answered: Any) -> None:
    shell = leader()
    shell.request(produce("a", acks=acks))
    if answered == 0:
        assert [produced.base_offset for produced in answers(shell)] == [0]
    else:
        assert answers(shell) == []
    for broker in (2, 3):
        fetched(shell, broker, 1)
    assert [produced.error for produced in answers(shell)] == [] if acks == 0 else [ErrorCode.NONE]


def test_an_unknown_acks_is_refused_before_the_append() -> None:
    shell = leader()
    shell.request(produce("a", acks=2))
    assert answers(shell)[0].error is ErrorCode.INVALID_REQUIRED_ACKS
    assert shell.content() == []


def test_the_watermark_moves_when_the_last_of_the_isr_has_fetched_in_this_epoch() -> None:
    shell = leader()
    shell.request(produce("a", "b"))
    fetched(shell, 2, 2)
    assert shell.partition.high_watermark == 0
    fetched(shell, 3, 1)
    assert shell.partition.high_watermark == 1 and answers(shell) == []
    fetched(shell, 3, 2)
    assert shell.partition.high_watermark == 2
    assert answers(shell) == [ProducedPartition(TP, ErrorCode.NONE, 0, -1, 0)]


def test_a_delayed_produce_times_out_and_gets_one_response() -> None:
    shell = leader()
    shell.request(produce("a", timeout_ms=500))
    shell.now_ms = 500
    assert shell.manager.next_wakeup(0) is not None
    shell.step(Tick())
    assert [produced.error for produced in answers(shell)] == [ErrorCode.REQUEST_TIMED_OUT]
    for broker in (2, 3):
        fetched(shell, broker, 1)
    assert len(answers(shell)) == 1


def test_f18_with_too_few_in_sync_acks_all_is_refused_before_the_append_and_acks_1_is_not() -> None:
    shell = leader(isr=(1,), config=MIN2)
    shell.request(produce("a"))
    assert answers(shell)[0].error is ErrorCode.NOT_ENOUGH_REPLICAS
    assert shell.content() == []
    shell.request(produce("b", acks=1))
    assert answers(shell)[1].error is ErrorCode.NONE


def test_f18_f23_a_shrink_below_min_isr_fails_delayed_produces() -> None:
    shell = leader(isr=(1, 2), config=MIN2)
    shell.request(produce("a", timeout_ms=10**6))
    shell.now_ms = 1001
    shell.step(Tick())
    assert proposed(shell).isr == (1,) and proposed(shell).elr == (2,)
    assert answers(shell) == []
    confirm(shell, 1)
    assert [produced.error for produced in answers(shell)] == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
    assert shell.partition.high_watermark == 0, "KIP-966: it stands while the ISR is too small"


def test_f23_the_shrink_itself_commits_delayed_produces() -> None:
    """A follower has stopped for good: no further fetch is needed once it has left the ISR."""
    shell = leader()
    fetched(shell, 3, 0)
    shell.request(produce("a", timeout_ms=10**6))
    shell.now_ms = 900
    fetched(shell, 2, 1)
    shell.now_ms = 1001
    shell.step(Tick())
    assert proposed(shell).isr == (1, 2)
    assert answers(shell) == [], "the store has not confirmed it: 3 may still be elected (F13)"
    confirm(shell, 1)
    assert [produced.error for produced in answers(shell)] == [ErrorCode.NONE]


def test_f24_a_retry_is_acknowledged_with_its_first_offset_and_written_once() -> None:
    shell = leader(isr=(1,))
    shell.request(produce("a", acks=1))
    for _ in range(2):
        shell.request(produce("b", producer_id=7, sequence=0))
    assert [produced.base_offset for produced in answers(shell)] == [0, 1, 1]
    assert shell.content() == ["a", "b"]


def test_f24_the_next_leader_knows_the_retry_from_its_log() -> None:
    shell = next_leader((1, 3), batch("b", producer_id=7, sequence=0))
    shell.request(produce("b", producer_id=7, sequence=0))
    assert answers(shell) == []
    fetched(shell, 3, 1, 2, last_epoch=1)
    assert answers(shell)[0].base_offset == 0 and shell.content() == ["b"]


def test_delayed_produces_fail_when_leadership_ends() -> None:
    shell = leader()
    shell.request(produce("a"))
    shell.leader_and_isr(2, 2, (2, 3))
    assert [produced.error for produced in answers(shell)] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_f37_a_failed_append_takes_the_replica_offline_and_notifies_the_controller() -> None:
    shell = leader(isr=(1,))
    shell.fails[AppendAsLeader] = LogFailedError("disk gone")
    shell.request(produce("a"))
    assert answers(shell)[0].error is ErrorCode.KAFKA_STORAGE_ERROR
    assert role(shell) is Role.OFFLINE
    write = wrote(shell)
    registration, event = write.operations
    assert registration == Check(nodes.broker_epoch(1), 1), "not of a dead process, after the next has registered"
    assert isinstance(event, Create) and event.path.startswith(nodes.LOG_DIR_EVENTS)
    shell.step(StoreReplied(write.tag, error=ConnectionLossError("lost")))
    shell.step(SessionLost())
    shell.effects.clear()
    shell.now_ms = 10_000
    shell.step(Tick())
    assert not [write for write in shell.effects if isinstance(write, SubmitMulti)], "there is no registration for it"
    shell.step(Registered(2, 1))
    shell.now_ms = 20_000
    shell.step(Tick())
    write = wrote(shell)
    assert write.operations == (Check(nodes.broker_epoch(1), 2), event), "reported until the store has it"
    shell.step(StoreReplied(wrote(shell).tag, ("/event_0",)))
    shell.effects.clear()
    shell.now_ms = 30_000
    shell.step(Tick())
    assert not shell.effects
    assert shell.leader_and_isr(1, 2, broker_epoch=2).partitions[0][1] is ErrorCode.KAFKA_STORAGE_ERROR


def test_with_flush_messages_1_only_fsynced_records_count() -> None:
    shell = leader(isr=(1,), config=TopicConfig(flush_messages=1))
    effects = shell.request(produce("a"))
    only(effects, Flush)
    assert shell.partition.high_watermark == 0 and answers(shell) == []
    shell.step(Flushed(TP, 1))
    assert shell.partition.high_watermark == 1 and len(answers(shell)) == 1


# Epochs


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH), (5, ErrorCode.NONE)],
)
def test_f6_a_fetch_in_another_epoch_is_refused_and_moves_nothing(epoch: int, error: ErrorCode) -> None:
    shell = leader(5)
    shell.request(produce("a"))
    for broker in (2, 3):
        assert fetched(shell, broker, 1, epoch, last_epoch=5).error is error
    assert shell.partition.high_watermark == (1 if error is ErrorCode.NONE else 0)


def test_f4_the_epoch_and_its_start_are_in_the_log_before_it_serves() -> None:
    shell = leader(1, isr=(1,))
    shell.request(produce("a", "b"))
    shell.leader_and_isr(1, 4, (1,), version=1)
    assert shell.log.epochs == ((1, 0), (4, 2))
    query = OffsetsForLeaderEpochRequest(2, (EpochPartition(TP, 4, 1), EpochPartition(TP, 4, 3)))
    assert [answer[2] for answer in shell.response_to(query).partitions] == [
        EpochEndOffset(1, 2),
        EpochEndOffset(1, 2),
    ]
    stale = OffsetsForLeaderEpochRequest(2, (EpochPartition(TP, 3, 1),))
    assert shell.response_to(stale).partitions[0][1] is ErrorCode.FENCED_LEADER_EPOCH


def test_f20_a_new_leaders_end_is_not_its_watermark() -> None:
    shell = next_leader((1, 2, 3))
    assert (shell.partition.log.leo, shell.partition.high_watermark) == (2, 0)
    assert len(fetched(shell, -1, 0, 2).records) == 0


def test_f7_the_fetch_of_a_diverging_follower_is_no_progress() -> None:
    shell = leader(1, isr=(1,))
    shell.request(produce("a"))
    shell.leader_and_isr(1, 3, (1, 2), version=1)
    shell.request(produce("b"))
    answer = fetched(shell, 2, 2, 3, last_epoch=2)
    assert answer.diverging == EpochEndOffset(1, 1)
    assert shell.partition.replicas[2].leo == -1 and shell.partition.high_watermark == 1


def test_f26_stale_control_requests_are_refused() -> None:
    shell = leader(5)
    assert shell.leader_and_isr(2, 4).partitions[0][1] is ErrorCode.FENCED_LEADER_EPOCH
    assert shell.leader_and_isr(2, 9, broker_epoch=0).error is ErrorCode.STALE_BROKER_EPOCH
    shell.leader_and_isr(1, 5, controller_epoch=3)
    assert shell.leader_and_isr(2, 9, controller_epoch=2).error is ErrorCode.STALE_CONTROLLER_EPOCH
    assert role(shell) is Role.LEADER and shell.partition.leader_epoch == 5


def test_without_registration_it_leads_nothing_before_the_next_leader_and_isr() -> None:
    shell = leader()
    shell.request(produce("a"))
    shell.step(SessionLost())
    assert role(shell) is Role.IDLE
    assert answers(shell)[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert shell.leader_and_isr(1, 2).error is ErrorCode.STALE_BROKER_EPOCH
    shell.step(Registered(2, 2))
    assert shell.leader_and_isr(1, 2, broker_epoch=2).error is ErrorCode.NONE
    assert role(shell) is Role.LEADER


# What clients see


def test_f22_consumers_see_nothing_between_the_watermark_and_the_end_and_an_error_past_it() -> None:
    shell = leader(isr=(1, 2))
    shell.request(produce("a"))
    shell.request(produce("b"))
    fetched(shell, 2, 1)
    answer = fetched(shell, -1, 0)
    assert values(answer.records) == ["a"] and answer.high_watermark == 1
    for offset in (1, 2):
        between = fetched(shell, -1, offset)
        assert (between.error, len(between.records)) == (ErrorCode.NONE, 0)
    assert fetched(shell, -1, 3).error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_consumer_that_reads_committed_sees_records_up_to_the_last_stable_offset() -> None:
    """KIP-98: a fetch waits for that, as others do for the high watermark; ListOffsets reports it as the latest."""
    shell = leader(isr=(1,))
    shell.unstable = 1
    shell.request(produce("a"))
    shell.request(produce("b"))
    stable = replace(fetch(-1, 0), isolation_level=READ_COMMITTED)
    (found,) = shell.response_to(stable).partitions
    assert (values(found.records), found.aborted, found.high_watermark, found.last_stable_offset) == (
        ["a"],
        ((7, 0),),
        2,
        1,
    )
    assert values(fetched(shell, -1, 0).records) == ["a", "b"] and fetched(shell, -1, 0).aborted == ()
    latest = ListOffsetsRequest((ListOffsetsPartition(TP, -1, LATEST),), isolation_level=READ_COMMITTED)
    assert shell.response_to(latest).partitions[0].offset == 1
    waiting = replace(fetch(-1, 1, max_wait_ms=500), isolation_level=READ_COMMITTED)
    assert not [reply for reply in shell.request(waiting, "reader") if isinstance(reply, Reply)]
    shell.unstable = None
    effects = shell.request(produce("c"))
    (reply,) = [reply for reply in effects if isinstance(reply, Reply) and reply.reply_to == "reader"]
    response: Any = reply.response
    (found,) = response.partitions
    assert (values(found.records), found.last_stable_offset) == (["b", "c"], -1)
    assert shell.response_to(latest).partitions[0].offset == 3


def test_f21_a_new_leader_reports_no_end_older_than_its_predecessors() -> None:
    """KIP-207: until its watermark has reached the start of its epoch it reports none."""
    shell = next_leader((1, 3))
    request = ListOffsetsRequest((ListOffsetsPartition(TP, -1, LATEST),))
    (latest,) = shell.response_to(request).partitions
    (earliest,) = shell.response_to(ListOffsetsRequest((ListOffsetsPartition(TP, -1, EARLIEST),))).partitions
    assert latest.error is ErrorCode.OFFSET_NOT_AVAILABLE and earliest.offset == 0
    assert fetched(shell, -1, 0, 2).high_watermark == -1
    fetched(shell, 3, 2, 2, last_epoch=1)
    assert shell.response_to(request).partitions[0].offset == 2


# The ISR


def test_f12_a_follower_joins_once_it_has_everything_up_to_the_epochs_start() -> None:
    shell = next_leader((1, 2))
    fetched(shell, 3, 0, 2)
    assert not [write for write in shell.effects if isinstance(write, SubmitMulti)], "it reached the watermark, 0, only"
    fetched(shell, 3, 2, 2, last_epoch=1)
    assert proposed(shell).isr == (1, 2, 3)


def test_f13_a_pending_member_holds_the_watermark_and_counts_for_nothing_else() -> None:
    shell = leader(isr=(1, 2))
    fetched(shell, 3, 0)
    assert proposed(shell).isr == shell.partition.maximal_isr == (1, 2, 3)
    shell.request(produce("a"))
    fetched(shell, 2, 1)
    assert shell.partition.high_watermark == 0
    fetched(shell, 3, 1)
    assert shell.partition.high_watermark == 1
    assert 3 not in shell.partition.isr
    confirm(shell, 1)
    assert 3 in shell.partition.isr and shell.partition.partition_epoch == 1


def test_f16_joining_is_conditional_on_the_registration_that_fetched() -> None:
    """KIP-903: and a fetch of an earlier process is refused."""
    shell = leader(isr=(1, 2))
    fetched(shell, 3, 0)
    write = wrote(shell)
    assert write.operations[1:3] == (Check(nodes.broker_epoch(3), 1), Check(nodes.broker(3), 0))
    shell.step(StoreReplied(write.tag, error=BadVersionError("registered again", path="/brokers/epochs/3", index=1)))
    assert shell.partition.pending is None and shell.partition.isr == (1, 2)
    fetched(shell, 3, 0, broker_epoch=5)
    assert wrote(shell) is write, "metadata does not know that registration yet"
    assert fetched(shell, 3, 0, broker_epoch=4).error is ErrorCode.STALE_BROKER_EPOCH


def test_f15_a_broker_that_is_stopping_or_unknown_does_not_join() -> None:
    shell = leader(isr=(1, 2))
    shell.update_metadata(1, 2)
    fetched(shell, 3, 0)
    assert not [write for write in shell.effects if isinstance(write, SubmitMulti)]


def test_f14_one_change_is_in_flight_and_it_is_conditional() -> None:
    shell = leader(isr=(1,))
    for broker in (2, 3):
        fetched(shell, broker, 0)
    writes = [write for write in shell.effects if isinstance(write, SubmitMulti)]
    assert len(writes) == 1
    first = writes[0].operations[0]
    assert isinstance(first, SetData) and first.version == 0
    confirm(shell, 1)
    fetched(shell, 3, 0)
    assert proposed(shell).isr == (1, 2, 3)
    last = wrote(shell).operations[0]
    assert isinstance(last, SetData) and last.version == 1


def test_f14_a_refused_write_is_followed_by_a_read_and_the_stores_state_is_adopted() -> None:
    shell = leader(isr=(1, 2))
    fetched(shell, 3, 0)
    read = only(shell.step(StoreReplied(wrote(shell).tag, error=BadVersionError("moved", index=0))), SubmitRead)
    shell.step(StoreReplied(read.tag, (node(LeaderAndIsr(1, 1, (1,), (2,), 1), 4),)))
    assert (shell.partition.isr, shell.partition.elr, shell.partition.partition_epoch) == ((1,), (2,), 4)
    assert role(shell) is Role.LEADER


def test_f14_a_deposed_leader_steps_down_and_commits_nothing() -> None:
    """Two leaders for a moment: the old one waits for an ISR that fetches elsewhere, and cannot change it."""
    shell = leader()
    shell.request(produce("a", timeout_ms=10**6))
    shell.now_ms = 2000
    shell.step(Tick())
    read = only(shell.step(StoreReplied(wrote(shell).tag, error=BadVersionError("moved", index=0))), SubmitRead)
    assert shell.partition.high_watermark == 0
    shell.step(StoreReplied(read.tag, (node(LeaderAndIsr(2, 2, (2, 3), (), 1), 1),)))
    assert role(shell) is Role.IDLE and shell.partition.high_watermark == 0
    assert answers(shell)[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_f14_a_write_of_unknown_outcome_is_written_again_so_that_it_cannot_come_late() -> None:
    shell = leader(isr=(1, 2))
    fetched(shell, 3, 0)
    first = wrote(shell)
    shell.step(StoreReplied(first.tag, error=ConnectionLossError("no answer")))
    assert shell.partition.maximal_isr == (1, 2, 3), "it may have been applied"
    shell.now_ms = 5000
    for broker in (2, 3):
        fetched(shell, broker, 0)
    shell.step(Tick())
    again = wrote(shell)
    assert again.operations == first.operations and again.tag != first.tag
    shell.step(StoreReplied(first.tag, (NodeStat(9, 0, 0), "")))
    assert shell.partition.pending is not None, "an answer to the first try counts no more"
    read = only(shell.step(StoreReplied(again.tag, error=BadVersionError("own write", index=0))), SubmitRead)
    shell.step(StoreReplied(read.tag, (node(LeaderAndIsr(1, 1, (1, 2, 3), (), 1), 1),)))
    assert shell.partition.isr == (1, 2, 3) and shell.partition.pending is None


def test_f14_a_read_that_lags_behind_the_refusal_decides_nothing() -> None:
    shell = leader(isr=(1, 2))
    fetched(shell, 3, 0)
    read = only(shell.step(StoreReplied(wrote(shell).tag, error=BadVersionError("moved", index=0))), SubmitRead)
    shell.step(StoreReplied(read.tag, (node(LeaderAndIsr(1, 1, (1, 2), (), 1), 0),)))
    assert shell.partition.pending is not None


def test_f6_f23_an_idle_partitions_followers_stay_in_the_isr() -> None:
    shell = leader()
    for broker in (2, 3):
        fetched(shell, broker, 0)
    for now in range(1000, 10**6, 50_000):
        shell.now_ms = now
        shell.step(Tick())
    assert not [write for write in shell.effects if isinstance(write, SubmitMulti)]


def test_a_follower_that_is_not_assigned_is_refused() -> None:
    shell = leader()
    assert fetched(shell, 7, 0).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_f41_another_topic_of_the_same_name_is_another_topic() -> None:
    shell = leader(isr=(1,))
    shell.request(produce("old"))
    shell.leader_and_isr(1, 0, (1,), topic_id="other")
    assert shell.content() == [] and shell.partition.topic_id == "other"
    assert fetched(shell, 2, 0, 0).error is ErrorCode.INCONSISTENT_TOPIC_ID


def test_a_session_that_holds_a_deleted_topic_is_not_continued_with_its_successor() -> None:
    """KIP-516: an incremental fetch that lists nothing reads nothing of the new topic, and its response names the id
    that the session holds."""
    shell = leader(isr=(1,))
    shell.request(produce("old"))
    session = fetch(CONSUMER, 1, NO_EPOCH)
    session_id = shell.response_to(replace(session, session_epoch=0)).session_id
    epochs = itertools.count(1)

    def next_fetched() -> tuple[ErrorCode, str, int]:
        incremental = replace(session, partitions=(), session_id=session_id, session_epoch=next(epochs))
        (response_partition,) = shell.response_to(incremental).partitions
        return response_partition.error, response_partition.topic_id, len(response_partition.records)

    shell.request(StopReplicaRequest(9, 1, shell.epoch, (StopReplica(TP, "id", NO_EPOCH, True),)))
    shell.request(UpdateMetadataRequest(9, 1, shell.epoch, (BrokerRegistration(1, 1),), (), (TP,)))
    assert next_fetched() == (ErrorCode.UNKNOWN_TOPIC_ID, "id", 0)
    shell.leader_and_isr(1, 0, (1,), topic_id="other")
    shell.request(produce("new", "newer"))
    assert shell.content() == ["new", "newer"]
    assert next_fetched() == (ErrorCode.INCONSISTENT_TOPIC_ID, "id", 0)


def test_an_init_sets_aside_replicas_that_it_does_not_name() -> None:
    shell = leader()
    shell.start(2)
    shell.update_metadata(1, 2, 3)
    shell.response_to(LeaderAndIsrRequest(9, 1, 2, (), True))
    assert TP not in shell.manager.partitions and TP not in shell.logs


def test_a_fetch_under_a_registration_unknown_to_the_leader_is_refused() -> None:
    """Its position does not count, and the registered follower is not kept out by it."""
    shell = leader(isr=(1, 2))
    assert fetched(shell, 3, 0, broker_epoch=5).error is ErrorCode.STALE_BROKER_EPOCH
    assert fetched(shell, 4, 0, broker_epoch=1).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert not [write for write in shell.effects if isinstance(write, SubmitMulti)]
    fetched(shell, 3, 0, broker_epoch=1)
    assert proposed(shell).isr == (1, 2, 3)


def test_a_follower_that_registered_again_is_accepted_once_the_leader_knows() -> None:
    shell = leader(isr=(1, 2))
    assert fetched(shell, 3, 0, broker_epoch=5).error is ErrorCode.STALE_BROKER_EPOCH
    shell.request(
        UpdateMetadataRequest(
            9, 1, shell.epoch, (BrokerRegistration(1, 1), BrokerRegistration(2, 1), BrokerRegistration(3, 5))
        )
    )
    fetched(shell, 3, 0, broker_epoch=5)
    assert proposed(shell).isr == (1, 2, 3)


def test_a_replica_that_would_leave_again_at_once_does_not_join() -> None:
    """While the ISR is too small the watermark does not advance, so a hung follower seems caught up by its last
    fetch."""
    shell = leader(config=MIN2)
    for broker in (2, 3):
        fetched(shell, broker, 0)
    shell.request(produce("a", timeout_ms=10**6))
    shell.now_ms = 2000
    shell.step(Tick())
    assert proposed(shell).isr == (1,)
    confirm(shell, 1)
    for now in range(3000, 20_000, 1000):
        shell.now_ms = now
        shell.step(Tick())
    assert shell.partition.isr == (1,) and proposed(shell).isr == (1,)
    fetched(shell, 2, 1)
    assert proposed(shell).isr == (1, 2)


def test_nothing_is_committed_while_the_store_has_an_elr() -> None:
    """min.insync.replicas was lowered while a shrink under the old value was in flight: 2 is in the ELR of the store,
    and could be elected if the value were raised again."""
    shell = leader(isr=(1,), config=MIN2)
    fetched(shell, 2, 0)
    shell.leader_and_isr(1, 2, (1, 2), version=1, config=MIN2)
    fetched(shell, 2, 0, 2)
    shell.request(produce("a", timeout_ms=10**6))
    shell.now_ms = 2000
    shell.step(Tick())
    assert proposed(shell).elr == (2,)
    confirm(shell, 2)
    shell.leader_and_isr(1, 2, (1,), version=2, config=TopicConfig())
    shell.request(produce("b", acks=1))
    assert shell.partition.high_watermark == 0
    shell.now_ms = 4000
    shell.step(Tick())
    assert (proposed(shell).isr, proposed(shell).elr) == ((1,), ())
    confirm(shell, 3)
    assert shell.partition.high_watermark == 2


def test_a_lower_min_isr_commits_delayed_produces_and_a_higher_one_fails_them() -> None:
    shell = leader(isr=(1,), config=MIN2)
    shell.request(produce("a", acks=1))
    shell.leader_and_isr(1, 1, (1,), config=TopicConfig())
    assert shell.partition.high_watermark == 1
    shell = leader(isr=(1, 2), config=MIN2)
    shell.request(produce("a", timeout_ms=10**6))
    shell.leader_and_isr(1, 1, (1, 2), config=TopicConfig(min_insync_replicas=3))
    assert answers(shell)[0].error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_reassigned_replicas_are_those_assigned_once_the_reassignment_is_done() -> None:
    shell = leader(isr=(1, 2))
    state = LeaderAndIsr(1, 2, (1, 2), (), 1, 1)
    partition_state = PartitionState(TP, "id", state, (3, 4, 1, 2), adding=(3, 4), removing=(1, 2))
    shell.response_to(LeaderAndIsrRequest(9, 1, 1, (partition_state,)))
    assert shell.partition.reassigned_replicas == (3, 4)


def test_completed_requests_are_dropped_before_their_deadlines() -> None:
    """Clients choose the deadlines: a produce may have weeks and complete in milliseconds; a fetch may have a
    minute."""
    shell = leader(isr=(1, 2))
    for number in range(2500):
        shell.step(Received("consumer", fetch(-1, number, max_wait_ms=60_000)))
        shell.step(Received("producer", produce("a", timeout_ms=2**31 - 1)))
        shell.step(Received("follower", fetch(2, number + 1)))
    assert len(answers(shell)) == 2500
    assert {produced.error for produced in answers(shell)} == {ErrorCode.NONE}
    assert len(shell.manager._deadlines) <= 1010
