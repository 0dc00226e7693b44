"""A leader appends no batch that begins a transaction before its coordinator has confirmed it (KIP-890)."""

from __future__ import annotations

from typing import Any

import pytest

from kreplog.config import TopicConfig
from kreplog.core.effects import SendAddPartitions
from kreplog.core.events import AddPartitionsReplied, Tick
from kreplog.core.messages import (
    PartitionState,
    ProducePartition,
    ProduceRequest,
    TransactionalProduce,
    TransactionMarker,
    UpdateMetadataRequest,
    WriteMarkersRequest,
)
from kreplog.core.replication.sequence_grace import SEQUENCE_GAP_GRACE_MS
from kreplog.core.replication.transaction_verification import RETRY_MS
from kreplog.core.transaction_messages import TRANSACTIONS_TOPIC
from kreplog.errors import ErrorCode
from kreplog.types import BrokerRegistration, LeaderAndIsr, TopicPartition
from tests.core.replication.test_leader import answers, leader
from tests.core.shell import CODEC, TP, Shell

HOME = TopicPartition(TRANSACTIONS_TOPIC, 0)


def coordinate(shell: Shell) -> None:
    """Broker 3 leads the partition of `__transaction_state`."""
    state = LeaderAndIsr(3, 1, (3,), (), 1, 0)
    states = (PartitionState(HOME, "home", state, (3,), is_new=False, config=TopicConfig()),)
    living = tuple(BrokerRegistration(broker, 1) for broker in (1, 2, 3))
    shell.request(UpdateMetadataRequest(9, 1, shell.epoch, living, states))


@pytest.fixture
def shell() -> Shell:
    """The leader of a partition; broker 3 is the coordinator."""
    made = leader(isr=(1,))
    coordinate(made)
    return made


def produce(
    shell: Shell, name: str, sequence: int, epoch: int = 0, *, adds: bool = False, timeout_ms: int = 1000
) -> None:
    records = CODEC.encode(7, epoch, sequence, [name.encode()], transactional=True)
    shell.request(TransactionalProduce(-1, timeout_ms, (ProducePartition(TP, records),), "id", adds))


def sent(shell: Shell) -> list[SendAddPartitions]:
    found = [effect for effect in shell.effects if isinstance(effect, SendAddPartitions)]
    shell.effects = [effect for effect in shell.effects if not isinstance(effect, SendAddPartitions)]
    return found


def answer(shell: Shell, tag: int, error: ErrorCode | None = ErrorCode.NONE, coordinator_epoch: int = 4) -> None:
    shell.step(AddPartitionsReplied(tag, error, coordinator_epoch))


def errors(shell: Shell) -> list[ErrorCode]:
    return [found.error for found in answers(shell)]


def mark(shell: Shell, epoch: int = 0, coordinator_epoch: int = 4) -> None:
    marker = TransactionMarker(7, epoch, False, coordinator_epoch)
    shell.request(WriteMarkersRequest(-1, 1000, (ProducePartition(TP, marker),)))


@pytest.mark.parametrize("adds", [False, True])
def test_batches_wait_in_order_until_the_first_is_confirmed(shell: Shell, adds: bool) -> None:
    for sequence, name in enumerate("abc"):
        produce(shell, name, sequence, adds=adds)
    (request,) = sent(shell)
    assert request.coordinator == 3
    assert (request.request.partitions, request.request.verify_only) == ((TP,), not adds)
    assert (request.request.producer_id, request.request.producer_epoch, request.request.from_leader) == (7, 0, True)
    assert not errors(shell) and not shell.content()
    answer(shell, request.tag)
    assert shell.content() == ["a", "b", "c"] and errors(shell) == [ErrorCode.NONE] * 3
    produce(shell, "d", 3)
    assert not sent(shell) and shell.content() == ["a", "b", "c", "d"], "the transaction is open"


def test_a_batch_that_is_not_of_an_ongoing_transaction_is_refused(shell: Shell) -> None:
    produce(shell, "late", 0)
    answer(shell, sent(shell)[0].tag, ErrorCode.TRANSACTION_ABORTABLE)
    assert errors(shell) == [ErrorCode.TRANSACTION_ABORTABLE] and not shell.content()
    produce(shell, "fenced", 0)
    answer(shell, sent(shell)[0].tag, ErrorCode.PRODUCER_FENCED)
    assert errors(shell)[1:] == [ErrorCode.INVALID_PRODUCER_EPOCH]


@pytest.mark.parametrize("error", [None, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR])
def test_a_coordinator_that_is_not_ready_gets_the_request_again(shell: Shell, error: ErrorCode | None) -> None:
    produce(shell, "a", 0)
    (first,) = sent(shell)
    answer(shell, first.tag, error)
    assert not sent(shell) and not errors(shell)
    shell.now_ms += RETRY_MS
    assert shell.manager.next_wakeup(shell.now_ms) == shell.now_ms
    shell.step(Tick())
    (second,) = sent(shell)
    answer(shell, first.tag)
    assert not shell.content(), "an answer that comes twice"
    answer(shell, second.tag)
    assert shell.content() == ["a"]


def test_an_answer_from_before_a_marker_is_void(shell: Shell) -> None:
    produce(shell, "late", 0)
    (first,) = sent(shell)
    mark(shell)
    (second,) = sent(shell)
    answer(shell, first.tag)
    assert shell.log.leo == 1, "the marker alone"
    answer(shell, second.tag, ErrorCode.TRANSACTION_ABORTABLE)
    assert errors(shell)[1:] == [ErrorCode.TRANSACTION_ABORTABLE]


def test_an_answer_of_an_earlier_coordinator_is_void(shell: Shell) -> None:
    mark(shell, coordinator_epoch=5)
    produce(shell, "late", 0)
    answer(shell, sent(shell)[0].tag, coordinator_epoch=4)
    (again,) = sent(shell)
    assert shell.log.leo == 1
    answer(shell, again.tag, coordinator_epoch=5)
    assert shell.log.leo == 2


def test_a_batch_of_another_epoch_is_verified_in_its_turn(shell: Shell) -> None:
    produce(shell, "a", 0)
    produce(shell, "b", 0, epoch=1)
    answer(shell, sent(shell)[0].tag)
    (second,) = sent(shell)
    assert second.request.producer_epoch == 1 and shell.content() == ["a"]


def test_what_waits_is_answered_in_time_and_never_appended_then(shell: Shell) -> None:
    produce(shell, "a", 0, timeout_ms=50)
    produce(shell, "b", 1)
    (request,) = sent(shell)
    shell.now_ms += 60
    shell.step(Tick())
    assert errors(shell) == [ErrorCode.REQUEST_TIMED_OUT]
    answer(shell, request.tag)
    assert not shell.content()
    for tag in [each.tag for each in sent(shell)]:
        answer(shell, tag)
    assert "a" not in shell.content()


def test_what_expires_is_not_overtaken(shell: Shell) -> None:
    """The first batch of a producer: what its log does not know may begin anywhere else."""
    shell.now_ms += SEQUENCE_GAP_GRACE_MS
    produce(shell, "a", 0, timeout_ms=50)
    produce(shell, "b", 1)
    (request,) = sent(shell)
    shell.now_ms += 60
    shell.step(Tick())
    assert answers(shell)[0].message.startswith("not appended")
    answer(shell, request.tag)
    for tag in [each.tag for each in sent(shell)]:
        answer(shell, tag)
    assert errors(shell) == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS] and not shell.content()
    for sequence, name in enumerate("ab"):
        produce(shell, name, sequence)
    answer(shell, sent(shell)[0].tag)
    assert shell.content() == ["a", "b"]


@pytest.mark.parametrize("error", [ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.PRODUCER_FENCED])
def test_a_refusal_shuts_no_other_producer_out(shell: Shell, error: ErrorCode) -> None:
    """Its producer sends nothing again; one that the log has forgotten goes on with its sequence numbers (KIP-360)."""
    shell.now_ms += SEQUENCE_GAP_GRACE_MS
    produce(shell, "late", 0)
    answer(shell, sent(shell)[0].tag, error)
    records = CODEC.encode(8, 0, 5, [b"idle"])
    shell.request(ProduceRequest(-1, 1000, (ProducePartition(TP, records),)))
    assert errors(shell)[1:] == [ErrorCode.NONE] and shell.content() == ["idle"]


def test_what_expires_behind_another_is_not_overtaken(shell: Shell) -> None:
    """The answer for the next one is retriable: a producer cannot mend a batch that is out of order."""
    shell.now_ms += SEQUENCE_GAP_GRACE_MS
    for sequence, timeout_ms in enumerate((1000, 50, 1000)):
        produce(shell, "abc"[sequence], sequence, timeout_ms=timeout_ms)
    shell.now_ms += 60
    shell.step(Tick())
    answer(shell, sent(shell)[0].tag)
    assert errors(shell) == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE, ErrorCode.NOT_ENOUGH_REPLICAS]
    for sequence in (1, 2):
        produce(shell, "abc"[sequence], sequence)
    assert shell.content() == ["a", "b", "c"]


def test_what_waits_is_refused_when_another_broker_leads(shell: Shell) -> None:
    produce(shell, "a", 0)
    (request,) = sent(shell)
    shell.leader_and_isr(2, 2, (1, 2), version=1)
    assert errors(shell) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    answer(shell, request.tag)
    assert not shell.content()


def test_without_a_coordinator_it_is_looked_for_again() -> None:
    shell: Any = leader(isr=(1,))
    produce(shell, "a", 0)
    assert not sent(shell)
    coordinate(shell)
    shell.now_ms += RETRY_MS
    shell.step(Tick())
    assert len(sent(shell)) == 1
