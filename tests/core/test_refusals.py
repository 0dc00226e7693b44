"""Batches behind a refused one: answered as that one was, for as long as it may still be on its way."""

from __future__ import annotations

import pytest

from kreplog.core.messages import ProducePartition, ProduceRequest
from kreplog.core.replication.refusals import HELD_FOR_MS, MOST, Refusals
from kreplog.errors import ErrorCode
from kreplog.types import ProducerSequence, TopicPartition
from tests.core.shell import TP, Shell, batch
from tests.core.test_leader import MIN2, answers, leader

LAST = 2**31 - 1
REFUSED = ErrorCode.NOT_ENOUGH_REPLICAS
OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def one(base: int, epoch: int = 0, producer: int = 7, partition: TopicPartition = TP) -> ProducePartition:
    """Its records are nothing but what they say of themselves."""
    return ProducePartition(partition, ProducerSequence(producer, epoch, base))


def nothing_refused() -> Refusals:
    return Refusals(lambda records: records)


def refused(*bases: int) -> Refusals:
    made = nothing_refused()
    for base in bases:
        made.add(one(base), REFUSED, 0)
    return made


def send(shell: Shell, base: int, *names: str, acks: int = -1) -> ErrorCode | None:
    """The answer if there is one at once."""
    records = batch(*(names or ("x",)), producer_id=7, sequence=base)
    before = len(answers(shell))
    shell.request(ProduceRequest(acks, 1000, (ProducePartition(TP, records),)))
    found = answers(shell)[before:]
    return found[0].error if found else None


def test_what_follows_is_answered_as_the_refused_and_the_refused_itself_is_not() -> None:
    held = refused(5)
    assert [held.before(one(base), 0) for base in (4, 5, 6, 9)] == [None, None, REFUSED, REFUSED]


def test_others_are_not_concerned() -> None:
    held = refused(5)
    for other in (one(6, partition=TopicPartition("topic", 1)), one(6, producer=8), one(6, epoch=1)):
        assert held.before(other, 0) is None


def test_who_numbers_nothing_is_held_up_by_nothing() -> None:
    held = Refusals(lambda records: None)
    held.add(one(5), REFUSED, 0)
    assert not held


def test_of_several_the_first_counts_also_where_the_sequences_go_round() -> None:
    assert refused(5, 6, 9).before(one(6), 0) is REFUSED
    assert refused(6, 5).before(one(6), 0) is REFUSED
    assert refused(LAST, 0, 3).before(one(0), 0) is REFUSED


def test_it_ends_when_the_refused_has_come_or_one_behind_it() -> None:
    for base in (5, 6):
        held = refused(5)
        held.taken(one(base))
        assert not held
    held = refused(5)
    held.taken(one(4))
    assert held.before(one(6), 0) is REFUSED
    held.taken(one(0, epoch=1))
    assert not held


def test_it_ends_by_itself() -> None:
    held = refused(5)
    assert held.before(one(6), HELD_FOR_MS - 1) is REFUSED
    assert held.before(one(6), HELD_FOR_MS) is None
    held.add(one(9), REFUSED, HELD_FOR_MS)
    assert held.before(one(6), HELD_FOR_MS) is None, "what was refused long ago is no reason any more"
    held.add(one(5, producer=8), REFUSED, HELD_FOR_MS + 1)
    assert len(held) == 2
    held.before_first(one(0, producer=9), 2 * HELD_FOR_MS)
    assert len(held) == 1, "and nobody needs to look for it"


def test_however_many_producers_are_refused_only_the_latest_are_remembered() -> None:
    held = nothing_refused()
    for producer in range(MOST + 1):
        held.add(one(0, producer=producer), REFUSED, 0)
    assert held.before(one(1, producer=0), 0) is None
    assert held.before(one(1, producer=1), 0) is REFUSED


def test_only_of_a_first_batch_it_is_known_that_nothing_stands_before_it() -> None:
    assert refused(0).before_first(one(1), 0) is REFUSED
    assert refused(1).before_first(one(2), 0) is None


def test_kip_98_batches_that_were_on_their_way_behind_a_refused_one_are_not_out_of_order() -> None:
    shell = leader(isr=(1, 2), config=MIN2)
    assert send(shell, 0, "a") is None
    shell.tell(1, 1, (1,), version=1, config=MIN2)
    assert send(shell, 1, "b") is REFUSED
    shell.tell(1, 1, (1, 2), version=2, config=MIN2)
    assert send(shell, 2, "c") is REFUSED
    assert send(shell, 3, "d") is REFUSED
    assert shell.content() == ["a"]
    for base, name in enumerate("bcd", 1):
        assert send(shell, base, name) is None
    assert shell.content() == ["a", "b", "c", "d"]


def test_kip_98_a_batch_on_its_way_behind_a_refused_first_one_does_not_take_its_place() -> None:
    shell = leader(isr=(1,), config=MIN2)
    assert send(shell, 0, "a") is REFUSED
    shell.tell(1, 1, (1, 2), version=1, config=MIN2)
    assert send(shell, 1, "b") is REFUSED
    assert send(shell, 0, "a") is None
    assert send(shell, 1, "b") is None
    assert shell.content() == ["a", "b"]


@pytest.mark.parametrize("role", ["nobody's", "a follower's"])
def test_kip_98_nor_are_those_that_find_the_leader_where_the_first_found_none(role: str) -> None:
    shell = Shell()
    shell.know(1, 2, 3)
    shell.tell(1, 1)
    assert send(shell, 0, "a") is None
    shell.tell(-1 if role == "nobody's" else 2, 2)
    assert send(shell, 1, "b") is ErrorCode.NOT_LEADER_OR_FOLLOWER
    shell.tell(1, 3)
    assert send(shell, 2, "c") is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert send(shell, 1, "b") is None
    assert send(shell, 2, "c") is None


def test_kip_98_nor_those_that_find_the_partition_where_the_first_found_none() -> None:
    shell = Shell()
    shell.know(1, 2, 3)
    assert send(shell, 0, "a") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    shell.tell(1, 1)
    assert send(shell, 1, "b") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert send(shell, 0, "a") is None


def test_a_gap_that_was_not_made_here_is_out_of_order_and_so_is_one_made_long_ago() -> None:
    shell = leader(isr=(1, 2), config=MIN2)
    assert send(shell, 0, "a") is None
    assert send(shell, 2, "c") is OUT_OF_ORDER
    shell.tell(1, 1, (1,), version=1, config=MIN2)
    assert send(shell, 1, "b") is REFUSED
    shell.tell(1, 1, (1, 2), version=2, config=MIN2)
    shell.now_ms += HELD_FOR_MS
    assert send(shell, 2, "c") is OUT_OF_ORDER
