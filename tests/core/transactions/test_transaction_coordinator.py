"""The coordinator of transactions: its requests, its decisions, and what a later coordinator makes of them (KIP-98)."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kreplog.core.events import (
    LeadershipChanged,
)
from kreplog.core.group_messages import OFFSETS_TOPIC, partition_of_group
from kreplog.core.memory import MemoryAccount
from kreplog.core.transaction_messages import (
    LAST_EPOCH,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TransactionRecord,
)
from kreplog.core.transactions import transaction_states
from kreplog.core.transactions.marker_writer import ABSENCE_MS, FENCED_RESEND_MS, RESEND_MS
from kreplog.core.transactions.transaction_coordinator import PATIENCE_MS
from kreplog.core.transactions.transaction_states import TransactionState
from kreplog.errors import ErrorCode, InvariantError
from kreplog.types import TopicPartition
from tests.core.transactions.shell import GONE, LOG, TIMEOUT_MS, A, B, Shell, end_second, for_leader, ongoing


def test_the_table_of_states_is_that_of_the_docstring() -> None:
    printed = dict(re.findall(r"^(\w+) +from (.+)$", transaction_states.table(), re.M))
    text = (transaction_states.__doc__ or "").replace("the Complete states", "CompleteCommit, CompleteAbort")
    described = dict(re.findall(r"^    (\w+) .* from (.+)$", text, re.M))
    labels = {state.label for state in TransactionState}
    assert described.pop("Dead") == "all others"
    assert set(printed.pop("Dead").split(", ")) == labels - {"Dead"}
    assert {state: set(old.split(", ")) for state, old in described.items()} == {
        state: set(old.split(", ")) for state, old in printed.items()
    }
    assert {*printed, "Dead"} == labels


@pytest.mark.parametrize("committed", [True, False])
def test_a_transaction_is_decided_then_marked_then_complete(committed: bool) -> None:
    shell = ongoing()
    assert shell.end(committed) is None and not shell.sent
    shell.commit()
    assert shell.replies[shell.count] == EndTxnResponse(ErrorCode.NONE)
    assert shell.state == (TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT).label
    assert shell.markers() == [(1, committed, 0, 1, [A]), (2, committed, 0, 1, [B])]
    assert shell.end(committed) == ErrorCode.CONCURRENT_TRANSACTIONS
    shell.answer()
    shell.commit()
    assert shell.state == (TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT).label
    assert shell.end(committed) == ErrorCode.NONE and shell.end(not committed) == ErrorCode.INVALID_TXN_STATE
    shell.automatic = True
    assert shell.add(B) is ErrorCode.NONE and shell.end() is ErrorCode.NONE


def test_markers_are_sent_again_until_every_partition_has_one() -> None:
    """Whatever a leader answers, and whoever leads; a partition that is deleted meanwhile needs none."""
    shell = ongoing()
    shell.end()
    shell.commit()
    for outcome in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT):
        shell.answer(outcome)
        assert not shell.sent
        shell.tick(50)
        assert len(shell.sent) == 2
    shell.answer(lost=True)
    shell.leaders = {}
    shell.tick(50)
    assert not shell.sent
    shell.leaders = {A: 3, B: 3}
    shell.tick(50)
    assert shell.markers() == [(3, True, 0, 1, [A, B])]
    shell.known.discard(A)
    shell.answer(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    shell.tick(50)
    assert shell.markers() == [(3, True, 0, 1, [B])]
    shell.answer()
    shell.tick(ABSENCE_MS)
    shell.commit()
    assert shell.state == TransactionState.COMPLETE_COMMIT.label


def test_a_new_producer_fences_the_one_before_and_aborts_its_transaction() -> None:
    shell = ongoing()
    assert shell.init(200) == InitProducerIdResponse(ErrorCode.CONCURRENT_TRANSACTIONS)
    shell.commit()
    assert [marker[1:3] for marker in shell.markers()] == [(False, 1), (False, 1)]
    assert shell.init(201).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shell.answer()
    shell.commit()
    shell.automatic = True
    assert shell.init(202) == InitProducerIdResponse(ErrorCode.NONE, 100, 2)
    assert shell.add(A, epoch=0) is shell.end(epoch=1) is ErrorCode.PRODUCER_FENCED
    assert shell.add(A, epoch=2, producer_id=200) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert shell.add(A, epoch=2) is ErrorCode.NONE


def test_a_producer_goes_on_in_another_epoch_of_its_own() -> None:
    """KIP-360; the same request again, whose response was lost, gets the same answer, and an older one is fenced."""
    shell = Shell()
    shell.init()
    renewed = InitProducerIdResponse(ErrorCode.NONE, 100, 1)
    assert shell.init(known=(100, 0)) == shell.init(known=(100, 0)) == renewed
    assert shell.init(known=(100, 1)).producer_epoch == 2
    assert shell.init(known=(100, 0)).error is shell.init(known=(7, 2)).error is ErrorCode.PRODUCER_FENCED


def test_kip_360_a_producer_that_gets_another_id_gets_it_again_if_the_response_was_lost() -> None:
    shell = Shell(last_epoch=0)
    shell.init()
    renewed = InitProducerIdResponse(ErrorCode.NONE, 300, 0)
    assert shell.init(300, known=(100, 0)) == shell.init(301, known=(100, 0)) == renewed
    assert shell.init(302) == InitProducerIdResponse(ErrorCode.NONE, 302, 0)
    assert shell.init(303, known=(100, 0)).error is ErrorCode.PRODUCER_FENCED, "another producer has begun"
    assert shell.init(304, known=(302, 0)) == InitProducerIdResponse(ErrorCode.NONE, 304, 0)
    assert shell.add(A, producer_id=304) is ErrorCode.NONE
    assert shell.init(305, known=(302, 0)).error is ErrorCode.PRODUCER_FENCED, "it has had the response"


def test_a_producer_gets_another_id_when_its_epochs_are_used_up() -> None:
    shell = Shell()
    shell.init()
    assert LAST_EPOCH == 2**15 - 2
    transaction = shell.core.shards[0].transactions["id"]
    transaction.stored = transaction.stored.__class__(100, LAST_EPOCH, TIMEOUT_MS, 0, (), 0, -1)
    assert shell.init(300) == InitProducerIdResponse(ErrorCode.NONE, 300, 0)


def test_a_transaction_that_is_not_ended_in_time_is_aborted_under_another_epoch() -> None:
    shell = ongoing()
    shell.tick(TIMEOUT_MS - 1)
    assert not shell.appends
    shell.tick(1)
    shell.commit(ErrorCode.NOT_ENOUGH_REPLICAS, written=False)
    assert shell.end() is None
    shell.commit(ErrorCode.NOT_ENOUGH_REPLICAS, written=False)
    assert shell.replies[shell.count].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    shell.tick(100)
    shell.commit()
    assert [marker[1:3] for marker in shell.markers()] == [(False, 1), (False, 1)]
    shell.answer()
    shell.commit()
    assert shell.state == TransactionState.COMPLETE_ABORT.label
    assert shell.end() is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("committed", [True, False])
def test_a_later_coordinator_goes_on_with_what_was_decided(committed: bool) -> None:
    shell = ongoing()
    shell.end(committed)
    shell.commit()
    shell.start()
    assert shell.markers() == [(1, committed, 0, 2, [A]), (2, committed, 0, 2, [B])]
    shell.answer()
    shell.commit()
    assert shell.state == (TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT).label


def test_a_later_coordinator_watches_over_what_is_open() -> None:
    shell = ongoing()
    shell.now_ms = 400
    shell.start()
    assert not shell.sent and not shell.appends
    shell.tick(TIMEOUT_MS - 401)
    assert not shell.appends
    shell.tick(1)
    shell.commit()
    assert shell.state == TransactionState.PREPARE_ABORT.label


def test_what_the_coordinator_before_awaits_has_no_effect_any_more() -> None:
    shell = ongoing()
    shell.end()
    shell.commit()
    sent = shell.sent
    shell.step(LeadershipChanged(LOG, None))
    shell.sent = sent
    shell.answer()
    assert not shell.appends
    assert shell.add(A) is ErrorCode.NOT_COORDINATOR
    shell.tick(10 * TIMEOUT_MS)
    assert not shell.appends and not shell.sent


def test_requests_that_are_refused() -> None:
    shell = Shell()
    assert shell.init(timeout_ms=900_001).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert shell.init(timeout_ms=0).error is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert shell.add(A) is shell.end() is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    shell.init()
    assert shell.end() is ErrorCode.INVALID_TXN_STATE
    response = shell.request(AddPartitionsToTxnRequest("id", 100, 0, (A, GONE)))
    assert dict(response.partitions) == {
        A: ErrorCode.OPERATION_NOT_ATTEMPTED,
        GONE: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert shell.request(EndTxnRequest("", 100, 0, True)).error is ErrorCode.INVALID_REQUEST
    shell.automatic = False
    shell.request(AddPartitionsToTxnRequest("id", 100, 0, (A,)))
    assert shell.end() is shell.init().error is ErrorCode.CONCURRENT_TRANSACTIONS
    with pytest.raises(InvariantError):
        shell.core.shards[0].transactions["id"].changed(TransactionState.COMPLETE_COMMIT, 0)


def test_ids_take_memory_and_are_refused_beyond_the_limit() -> None:
    memory = MemoryAccount(5000)
    shell = Shell(memory)
    responses = [shell.request(InitProducerIdRequest(f"id-{n}", 1000, n)).error for n in range(3)]
    assert responses == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE]
    shell.step(LeadershipChanged(LOG, None))
    assert memory.held.total() == 0


@pytest.mark.parametrize("letter, width", [("a", 1), ("\N{OWL}", 4)])
def test_long_ids_take_the_memory_of_their_text(letter: str, width: int) -> None:
    memory = MemoryAccount(2 * (6000 + 8000 * width))
    shell = Shell(memory)
    responses = [shell.request(InitProducerIdRequest(letter * 8000 + str(n), 1000, n)).error for n in range(2)]
    assert responses == [ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert memory.held.total() > 8000 * width


def test_partitions_take_memory_until_their_transaction_ends() -> None:
    memory = MemoryAccount(30_000)
    shell = Shell(memory)
    many = tuple(TopicPartition("many", number) for number in range(100))
    shell.known |= set(many)
    shell.leaders.update(dict.fromkeys(many, 2))
    shell.init()
    idle = memory.held.total()
    errors = shell.request(AddPartitionsToTxnRequest("id", 100, 0, many)).partitions
    assert {error for _, error in errors} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert memory.held.total() == idle
    forty = many[:40]
    shell.add(*forty)
    held = memory.held.total()
    assert held - idle >= 40 * 100
    shell.add(*forty)
    assert memory.held.total() == held, "they are part of it already"
    errors = shell.request(AddPartitionsToTxnRequest("id", 100, 0, many)).partitions
    assert {error for _, error in errors} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert shell.end() is ErrorCode.NONE
    assert memory.held.total() == idle


def test_partitions_whose_record_fails_take_no_memory() -> None:
    memory = MemoryAccount(30_000)
    shell = Shell(memory)
    shell.init()
    idle = memory.held.total()
    shell.automatic = False
    shell.request(AddPartitionsToTxnRequest("id", 100, 0, (A,)))
    assert memory.held.total() > idle
    shell.commit(ErrorCode.REQUEST_TIMED_OUT, written=False)
    assert memory.held.total() == idle
    shell.request(AddPartitionsToTxnRequest("id", 100, 0, (A,)))
    shell.step(LeadershipChanged(LOG, None))
    assert memory.held.total() == 0
    shell.commit(ErrorCode.NOT_COORDINATOR, written=False)
    assert memory.held.total() == 0


def test_what_is_loaded_takes_memory_beyond_the_limit() -> None:
    memory = MemoryAccount(100_000)
    shell = Shell(memory)
    shell.init()
    shell.add(A)
    held = memory.held.total()
    shell.step(LeadershipChanged(LOG, None))
    memory.limit = 0
    shell.start()
    assert memory.held.total() == held
    assert shell.end() is ErrorCode.NONE
    assert memory.held.total() < held


def test_the_partition_of_a_group_is_added() -> None:
    shell = Shell()
    shell.init()
    request = AddOffsetsToTxnRequest("id", 100, 0, "group")
    assert shell.request(request).error is ErrorCode.COORDINATOR_NOT_AVAILABLE  # there is no such topic yet
    offsets = [TopicPartition(OFFSETS_TOPIC, number) for number in range(3)]
    shell.known |= set(offsets)
    home = offsets[partition_of_group("group", 3)]
    shell.leaders[home] = 3
    assert shell.request(request).error is ErrorCode.NONE
    assert shell.core.shards[0].transactions["id"].stored.partitions == (home,)
    assert shell.request(AddOffsetsToTxnRequest("id", 100, 0, "")).error is ErrorCode.INVALID_GROUP_ID
    assert shell.request(AddOffsetsToTxnRequest("id", 100, 1, "group")).error is ErrorCode.PRODUCER_FENCED
    shell.automatic = False
    shell.end()
    shell.commit()
    assert [(each.leader, each.request.partitions[0].partition) for each in shell.sent] == [(3, home)]
    assert shell.request(request) is None, "it waits for the markers"
    shell.automatic = True
    shell.answer()
    assert shell.replies[shell.count].error is ErrorCode.NONE and shell.state == "Ongoing"


def test_markers_that_a_later_coordinator_has_overtaken_are_rarely_sent_again() -> None:
    """And not before all others are written."""
    shell = ongoing()
    shell.end()
    shell.commit()
    first, second = shell.sent
    shell.sent = [first]
    shell.answer(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    for _ in range(2):
        shell.sent = [second]
        shell.answer(lost=True)
        shell.tick(RESEND_MS)
        (second,) = shell.sent
    shell.answer()
    shell.tick(FENCED_RESEND_MS - 1)
    assert not shell.sent
    shell.tick(1)
    assert [each.request.partitions for each in shell.sent] == [first.request.partitions]
    shell.answer()
    shell.commit()
    assert shell.state == TransactionState.COMPLETE_COMMIT.label


@pytest.mark.parametrize("second_protocol", [False, True])
def test_the_next_transaction_begins_once_the_markers_of_the_one_before_are_written(second_protocol: bool) -> None:
    shell = ongoing()
    if second_protocol:
        end_second(shell, 0)
    else:
        shell.end()
    shell.commit()
    next_epoch = int(second_protocol)
    request = AddPartitionsToTxnRequest("id", 100, next_epoch, (B,), from_leader=second_protocol)
    assert shell.request(request) is None
    assert shell.add(A, epoch=7) is ErrorCode.PRODUCER_FENCED
    waits = shell.count - 1
    shell.answer()
    assert waits not in shell.replies and shell.state == "PrepareCommit", "the end of the first is not committed yet"
    shell.commit()
    assert waits not in shell.replies and shell.state == "CompleteCommit"
    shell.commit()
    assert shell.replies[waits].partitions == ((B, ErrorCode.NONE),)
    stored = shell.core.shards[0].transactions["id"].stored
    assert shell.state == "Ongoing" and stored.partitions == (B,) and stored.producer_epoch == next_epoch
    shell.tick(PATIENCE_MS)
    assert shell.state == "Ongoing", "the end of its patience has no other effect"


def test_a_request_waits_for_the_markers_so_long_only() -> None:
    shell = ongoing()
    shell.end()
    shell.commit()
    assert shell.add(A) is None
    shell.tick(PATIENCE_MS - 1)
    assert shell.added() is None
    shell.tick(1)
    assert shell.added() is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.add(B) is None
    shell.step(LeadershipChanged(LOG, None))
    assert shell.added() is ErrorCode.NOT_COORDINATOR


def test_a_partition_that_is_in_no_metadata_for_a_while_is_deleted() -> None:
    """Not at once: a broker that has just started, or has a new controller, does not have all of its metadata yet."""
    shell = ongoing()
    shell.known.discard(B)
    shell.end()
    shell.commit()
    assert [each.request.partitions[0].partition for each in shell.sent] == [A]
    shell.answer()
    for _ in range(ABSENCE_MS // 1000 - 1):
        shell.tick(1000)
    assert shell.state == TransactionState.PREPARE_COMMIT.label
    assert not shell.sent
    shell.known.add(B)
    shell.tick(1000)
    assert [each.request.partitions[0].partition for each in shell.sent] == [B]
    shell.answer(lost=True)
    shell.known.discard(B)
    for _ in range(ABSENCE_MS // 1000 + 1):
        shell.tick(1000)
    shell.commit()
    assert shell.state == TransactionState.COMPLETE_COMMIT.label


def test_no_partition_is_deleted_while_there_is_no_metadata() -> None:
    """A restarted broker may lead before a controller has sent it any, and that controller may die, and the next one
    after the first piece of what it sends."""
    shell = ongoing()
    shell.end()
    shell.commit()
    shell.sent.clear()
    known, shell.known, leaders, shell.leaders = shell.known, set[TopicPartition](), shell.leaders, {}
    shell.controller_epoch = -1
    shell.start()
    for epoch in (-1, 2, 3):
        shell.controller_epoch = epoch
        for _ in range(ABSENCE_MS // 1000):
            shell.tick(1000)
    assert not shell.sent and not shell.appends
    shell.known, shell.leaders = known, leaders
    shell.tick(1000)
    assert {each.leader for each in shell.sent} == set(leaders.values())
    shell.answer()
    shell.commit()
    assert shell.state == TransactionState.COMPLETE_COMMIT.label


def test_kip_890_the_epoch_is_bumped_at_each_end_and_the_markers_have_it() -> None:
    shell = ongoing()
    assert end_second(shell, 0) is None
    shell.commit()
    assert shell.replies[shell.count] == EndTxnResponse(ErrorCode.NONE, 100, 1)
    assert {epoch for _, _, epoch, _, _ in shell.markers()} == {1}
    assert end_second(shell, 0) == EndTxnResponse(ErrorCode.CONCURRENT_TRANSACTIONS), "markers are being written"
    shell.automatic = True
    shell.answer()
    assert shell.state == "CompleteCommit"
    assert end_second(shell, 0) == EndTxnResponse(ErrorCode.NONE, 100, 1), "the response was lost"
    shell.start()
    assert end_second(shell, 0) == EndTxnResponse(ErrorCode.NONE, 100, 1), "a later coordinator knows as well"
    assert end_second(shell, 0, committed=False).error is ErrorCode.INVALID_TXN_STATE
    assert end_second(shell, 1).error is ErrorCode.INVALID_TXN_STATE, "nothing to commit"
    assert shell.add(A, epoch=0) is ErrorCode.PRODUCER_FENCED
    nothing = end_second(shell, 1, committed=False)
    assert nothing == EndTxnResponse(ErrorCode.NONE, 100, 2), "to abort nothing bumps it as well"
    assert shell.state == "CompleteAbort"
    assert end_second(shell, 0, committed=False).error is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("last_epoch", [LAST_EPOCH, 0], ids=["another epoch", "another id"])
def test_kip_890_an_end_that_is_sent_again_while_its_completion_is_appended_is_not_fenced(last_epoch: int) -> None:
    shell = Shell(last_epoch=last_epoch)
    shell.init()
    for_leader(shell, A)
    shell.automatic = False
    end_second(shell, 0, new_id=300)
    shell.commit()
    ended = shell.replies[shell.count]
    assert ended.error is ErrorCode.NONE
    shell.answer()
    assert len(shell.appends) == 1, "that of CompleteCommit"
    assert end_second(shell, 0, new_id=301).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shell.commit()
    assert shell.state == "CompleteCommit"
    assert end_second(shell, 0, new_id=302) == ended


def test_kip_890_a_producer_whose_epochs_are_used_up_goes_on_with_another_id() -> None:
    shell = ongoing()
    stored = shell.log[-1].value
    assert stored is not None
    shell.log[-1] = TransactionRecord("id", replace(stored, producer_epoch=LAST_EPOCH))
    shell.automatic = True
    shell.start()
    end_second(shell, LAST_EPOCH, new_id=300)
    assert shell.replies[shell.count] == EndTxnResponse(ErrorCode.NONE, 300, 0)
    decided = [record.value for record in shell.log if record.value is not None and record.value.state == 2]
    assert [(value.producer_id, value.producer_epoch) for value in decided] == [(100, LAST_EPOCH + 1)]
    assert end_second(shell, LAST_EPOCH) == EndTxnResponse(ErrorCode.NONE, 300, 0), "the response was lost"
    assert end_second(shell, LAST_EPOCH + 1).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING, "nobody's epoch"
    assert shell.add(A, producer_id=300) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("epoch", "bumps_epoch", "needs"),
    [
        (LAST_EPOCH - 1, True, False),
        (LAST_EPOCH, True, True),
        (LAST_EPOCH, False, False),
        (LAST_EPOCH + 1, True, False),
    ],
)
def test_kip_890_the_last_epoch_wants_another_id(epoch: int, bumps_epoch: bool, needs: bool) -> None:
    """An older producer, whose epoch is not bumped, keeps its id; no producer has the epoch that fences."""
    coordinator = Shell().core
    assert coordinator.needs_producer_id(EndTxnRequest("id", 100, epoch, True, bumps_epoch)) is needs


@pytest.mark.parametrize("later_coordinator", [False, True])
def test_kip_890_the_next_id_is_known_while_the_markers_are_written(later_coordinator: bool) -> None:
    """Its producer has it since the decision."""
    shell = Shell(last_epoch=0)
    shell.init()
    for_leader(shell, A)
    shell.automatic = False
    end_second(shell, 0, new_id=300)
    shell.commit()
    assert shell.replies[shell.count] == EndTxnResponse(ErrorCode.NONE, 300, 0)
    if later_coordinator:
        shell.start()
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    assert end_second(shell, 0, committed=False, producer_id=300, new_id=301).error is concurrent
    assert dict(for_leader(shell, A, producer_id=300, verify_only=True).partitions) == {A: concurrent}
    mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    for producer_id, epoch in ((300, 1), (301, 0), (-1, 0)):
        assert dict(for_leader(shell, B, producer_id=producer_id, epoch=epoch).partitions) == {B: mapping}
    assert for_leader(shell, B, producer_id=300) is None, "it waits for the markers"
    shell.automatic = True
    shell.answer()
    assert dict(shell.replies[shell.count].partitions) == {B: ErrorCode.NONE}
    stored = shell.core.shards[0].transactions["id"].stored
    assert (stored.producer_id, stored.producer_epoch, stored.partitions) == (300, 0, (B,))


@pytest.mark.parametrize("second_protocol", [False, True])
def test_another_end_waits_for_the_markers_of_the_transaction_before(second_protocol: bool) -> None:
    """Whatever it wants: it may be the end of a transaction that no leader has added a partition to (KIP-890)."""
    shell = ongoing()
    shell.request(EndTxnRequest("id", 100, 0, True, second_protocol))
    shell.commit()
    following = EndTxnRequest("id", 100, int(second_protocol), False, second_protocol)
    assert shell.request(following).error is ErrorCode.CONCURRENT_TRANSACTIONS
    shell.automatic = True
    shell.answer()
    assert shell.state == "CompleteCommit"
    if second_protocol:
        assert shell.request(following) == EndTxnResponse(ErrorCode.NONE, 100, 2)
    else:
        assert shell.request(following).error is ErrorCode.INVALID_TXN_STATE


def test_the_last_epoch_may_be_another() -> None:
    """As in the simulator, whose producers do not reach Kafka's."""
    shell = Shell(last_epoch=1)
    assert [shell.init(300 + count).producer_epoch for count in range(3)] == [0, 1, 0]
    assert shell.core.needs_producer_id(EndTxnRequest("id", 302, 1, True, True))
    assert not shell.core.needs_producer_id(EndTxnRequest("id", 302, 0, True, True))


def test_kip_890_the_epoch_that_fenced_a_producer_whose_epochs_are_used_up_is_nobodys() -> None:
    """Its own end may have bumped the epoch, for all that it knows; but not to that one, without another id."""
    shell = Shell(last_epoch=1)
    shell.init()
    for_leader(shell, A)
    assert end_second(shell, 0) == EndTxnResponse(ErrorCode.NONE, 100, 1)
    for_leader(shell, A, epoch=1)
    assert shell.init(301).error is ErrorCode.CONCURRENT_TRANSACTIONS
    assert shell.state == "CompleteAbort"
    assert end_second(shell, 1, committed=False).error is ErrorCode.PRODUCER_FENCED
    assert end_second(shell, 2, committed=False, new_id=303).error is ErrorCode.PRODUCER_FENCED
    assert {error for _, error in for_leader(shell, A, epoch=2).partitions} == {ErrorCode.PRODUCER_FENCED}
    assert shell.add(A, epoch=2) is ErrorCode.PRODUCER_FENCED
    assert shell.init(302) == InitProducerIdResponse(ErrorCode.NONE, 302, 0)


def test_kip_890_an_end_that_is_sent_again_after_another_producer_has_begun_is_fenced() -> None:
    """Also where it had used up the epochs of the former id: else both would go on in one epoch."""
    shell = Shell(last_epoch=2)
    shell.init()
    shell.init(301)
    shell.init(301)
    for_leader(shell, A, epoch=2)
    assert end_second(shell, 2, new_id=302) == EndTxnResponse(ErrorCode.NONE, 302, 0)
    assert shell.init(303) == InitProducerIdResponse(ErrorCode.NONE, 302, 1)
    for_leader(shell, A, producer_id=302, epoch=1)
    assert end_second(shell, 1, producer_id=302) == EndTxnResponse(ErrorCode.NONE, 302, 2)
    assert end_second(shell, 2, new_id=304).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_kip_890_an_end_of_a_former_id_is_fenced_by_a_producer_with_a_third_id() -> None:
    """Also where that keeps its first epoch: leaders add its partitions, but its ends bump no epoch."""
    shell = Shell(last_epoch=1)
    shell.init()
    shell.init()
    for_leader(shell, A, epoch=1)
    assert end_second(shell, 1, new_id=300) == EndTxnResponse(ErrorCode.NONE, 300, 0)
    assert shell.init(301) == InitProducerIdResponse(ErrorCode.NONE, 300, 1)
    assert shell.init(302) == InitProducerIdResponse(ErrorCode.NONE, 302, 0)
    for_leader(shell, A, producer_id=302)
    assert shell.end(producer_id=302) is ErrorCode.NONE
    assert end_second(shell, 1, new_id=303).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_kip_890_a_leader_has_a_partition_verified() -> None:
    shell = Shell()
    shell.init()
    shell.add(A)
    found = for_leader(shell, A, B, verify_only=True)
    aborted = ErrorCode.TRANSACTION_ABORTABLE
    assert found == AddPartitionsToTxnResponse(((A, ErrorCode.NONE), (B, aborted)), shell.epoch)
    assert dict(for_leader(shell, A, epoch=1, verify_only=True).partitions) == {A: ErrorCode.PRODUCER_FENCED}
    shell.automatic = False
    shell.end()
    shell.commit()
    concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
    assert dict(for_leader(shell, A, verify_only=True).partitions) == {A: concurrent}
    shell.automatic = True
    shell.answer()
    assert dict(for_leader(shell, A, verify_only=True).partitions) == {A: aborted}, "the transaction has ended"


def test_kip_890_leaders_add_partitions_and_those_that_come_together_are_one_record() -> None:
    shell = Shell()
    shell.known |= {GONE}
    shell.init()
    shell.automatic = False
    for partition in (A, B, GONE):
        assert for_leader(shell, partition) is None
    assert len(shell.appends) == 1
    shell.known -= {GONE}
    shell.commit()
    assert [record.partitions for append in shell.appends for record in [append.records[0].value]] == [(A, B)]
    shell.commit()
    found = [dict(shell.replies[shell.count - back].partitions) for back in (2, 1, 0)]
    assert found == [{A: ErrorCode.NONE}, {B: ErrorCode.NONE}, {GONE: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}]
    assert for_leader(shell, A).coordinator_epoch == shell.epoch, "it is part already"
    assert for_leader(shell, GONE).partitions == ((GONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),)
    shell.end()
    assert for_leader(shell, B) is None, "it waits for what is being appended"
    shell.step(LeadershipChanged(LOG, None, 0))
    shell.commit(ErrorCode.NOT_COORDINATOR)
    assert dict(shell.replies[shell.count].partitions) == {B: ErrorCode.NOT_COORDINATOR}
