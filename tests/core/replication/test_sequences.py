"""A gap in a producer's sequences is retriable while the missing batch may still arrive."""

from __future__ import annotations

import pytest

from kreplog.core.messages import ProducePartition, ProduceRequest
from kreplog.core.replication.sequence_grace import SEQUENCE_GAP_GRACE_MS
from kreplog.errors import ErrorCode
from tests.core.replication.test_leader import MIN2, answers, leader
from tests.core.shell import TP, Shell, batch

REFUSED = ErrorCode.NOT_ENOUGH_REPLICAS
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def send(shell: Shell, base: int, *names: str, acks: int = -1) -> ErrorCode | None:
    """The answer if there is one at once."""
    records = batch(*(names or ("x",)), producer_id=7, sequence=base)
    before = len(answers(shell))
    shell.request(ProduceRequest(acks, 1000, (ProducePartition(TP, records),)))
    found = answers(shell)[before:]
    return found[0].error if found else None


@pytest.mark.parametrize("base", [1, 5])
def test_kip_98_a_new_leader_takes_no_batch_of_a_producer_whose_first_it_has_not(base: int) -> None:
    """The first was sent to the former leader, which has stopped: librdkafka sends the next ones here, and takes
    the first for acknowledged when they are."""
    shell = leader(isr=(1, 2), config=MIN2)
    assert send(shell, base, "b") is REFUSED
    assert shell.content() == []
    assert send(shell, 0, "a", "a", "a", "a", "a") is None
    assert send(shell, 5, "b") is None


def test_kip_98_nor_one_behind_a_gap_and_the_error_is_retriable() -> None:
    shell = leader(isr=(1, 2), config=MIN2)
    assert send(shell, 0, "a") is None
    assert send(shell, 2, "c") is REFUSED
    assert send(shell, 1, "b") is None
    assert send(shell, 2, "c") is None
    assert shell.content() == ["a", "b", "c"]


def test_kip_360_the_grace_period_ends() -> None:
    shell = leader(isr=(1, 2), config=MIN2)
    shell.now_ms += SEQUENCE_GAP_GRACE_MS - 1
    assert send(shell, 5, "b") is REFUSED
    shell.now_ms += 1
    assert send(shell, 5, "b") is None, "it has been forgotten: it wrote long ago"
    assert send(shell, 7, "c") is OUT_OF_ORDER


def test_kip_98_batches_that_were_on_their_way_behind_a_refused_one_are_not_out_of_order() -> None:
    shell = leader(isr=(1, 2), config=MIN2)
    assert send(shell, 0, "a") is None
    shell.leader_and_isr(1, 1, (1,), version=1, config=MIN2)
    assert send(shell, 1, "b") is REFUSED
    shell.leader_and_isr(1, 1, (1, 2), version=2, config=MIN2)
    assert send(shell, 2, "c") is REFUSED
    assert send(shell, 3, "d") is REFUSED
    assert shell.content() == ["a"]
    for base, name in enumerate("bcd", 1):
        assert send(shell, base, name) is None
    assert shell.content() == ["a", "b", "c", "d"]


def test_kip_98_a_batch_on_its_way_behind_a_refused_first_one_does_not_take_its_place() -> None:
    shell = leader(isr=(1,), config=MIN2)
    assert send(shell, 0, "a") is REFUSED
    shell.leader_and_isr(1, 1, (1, 2), version=1, config=MIN2)
    assert send(shell, 1, "b") is REFUSED
    assert send(shell, 0, "a") is None
    assert send(shell, 1, "b") is None
    assert shell.content() == ["a", "b"]


@pytest.mark.parametrize("role", ["none", "a follower's"])
def test_kip_98_nor_are_those_that_find_the_leader_where_the_first_found_none(role: str) -> None:
    shell = Shell()
    shell.update_metadata(1, 2, 3)
    shell.leader_and_isr(1, 1)
    assert send(shell, 0, "a") is None
    shell.leader_and_isr(-1 if role == "none" else 2, 2)
    assert send(shell, 1, "b") is ErrorCode.NOT_LEADER_OR_FOLLOWER
    shell.leader_and_isr(1, 3)
    assert send(shell, 2, "c") is REFUSED
    assert send(shell, 1, "b") is None
    assert send(shell, 2, "c") is None


def test_kip_98_nor_those_that_find_the_partition_where_the_first_found_none() -> None:
    shell = Shell()
    shell.update_metadata(1, 2, 3)
    assert send(shell, 0, "a") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    shell.leader_and_isr(1, 1)
    assert send(shell, 1, "b") is REFUSED
    assert send(shell, 0, "a") is None


def test_a_refusal_begins_the_grace_period_again() -> None:
    shell = leader(isr=(1, 2), config=MIN2)
    assert send(shell, 0, "a") is None
    shell.now_ms += SEQUENCE_GAP_GRACE_MS
    assert send(shell, 2, "c") is OUT_OF_ORDER
    shell.leader_and_isr(1, 1, (1,), version=1, config=MIN2)
    assert send(shell, 1, "b") is REFUSED
    shell.leader_and_isr(1, 1, (1, 2), version=2, config=MIN2)
    assert send(shell, 2, "c") is REFUSED
    shell.now_ms += SEQUENCE_GAP_GRACE_MS
    assert send(shell, 2, "c") is OUT_OF_ORDER
