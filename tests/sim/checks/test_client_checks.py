"""Checks of clients' histories: acknowledgements, refusals, reads, positions and high watermarks."""

from __future__ import annotations

import pytest

from kreplog.sim.history import (
    DeletionDone,
    DeletionRequested,
    Fail,
    Misdirected,
    Ok,
    Position,
    TopicDeleted,
    Unknown,
    UnrequestedPartition,
)
from kreplog.sim.machines.disk import Loss
from tests.sim.checked_world import ID, TP, World


def test_acknowledged_too_early_and_at_a_wrong_offset(world: World) -> None:
    world.append(2, 2)
    world.ok(2, 2)
    assert world.kinds == ["too early"]
    world.ok(1, 0)
    assert world.kinds == ["too early", "two values"]


def test_acks_of_less_promise_nothing(world: World) -> None:
    world.history.add(Ok(0, TP, ID, "producer", 1, 8, 0, ("8:0",), 50))
    world.history.add(Fail(0, TP, ID, "producer", 1, 8, 1, ("8:1",), "OUT_OF_ORDER_SEQUENCE_NUMBER"))
    world.history.add(Unknown(0, TP, ID, "producer", -1, 8, 2, ("8:2",), "no response for patience_ms"))
    assert world.judged() == []


def test_a_producer_that_is_refused(world: World) -> None:
    world.history.add(Fail(0, TP, ID, "producer", -1, 7, 2, ("7:2",), "OUT_OF_ORDER_SEQUENCE_NUMBER"))
    assert world.kinds == ["refused"]


@pytest.mark.parametrize(("offset", "sequence"), [(2, 2), (2, 0)])
def test_a_phantom(world: World, offset: int, sequence: int) -> None:
    world.append(2, 2)
    world.read(offset, sequence)
    assert world.kinds == ["phantom"]


def test_an_uncommitted_watermark(world: World) -> None:
    world.got_watermark(3)
    assert world.kinds == ["phantom"]


def test_a_consumer_that_misses_or_repeats(world: World) -> None:
    world.append(2, 2)
    world.append(3, 3)
    world.commit(4)
    world.read(3, 3)
    assert world.kinds == ["gap"]


def test_a_consumer_that_is_set_back_reads_again(world: World) -> None:
    world.history.add(Position(0, TP, ID, "consumer", 0, "latest"))
    world.read(0, 0)
    assert world.kinds == []
    world.history.add(Position(0, TP, ID, "consumer", -1, "1 is out of range"))
    assert world.kinds == ["out of range"]


def test_a_watermark_that_falls(world: World) -> None:
    world.got_watermark(1, epoch=-1)
    assert world.kinds == []  # an old leader's word after a new one's
    world.got_watermark(1, epoch=3)
    assert world.kinds == ["watermark fell"]


def test_a_follower_has_the_watermark_later_but_never_an_uncommitted_one(world: World) -> None:
    world.got_watermark(1, source="replica")
    assert world.kinds == []
    world.got_watermark(3, source="replica")
    assert world.kinds == ["phantom"]


def test_a_consumer_that_is_sent_to_a_follower_without_its_offset(world: World) -> None:
    world.history.add(DeletionRequested(0, TP, ID, 1))
    world.history.add(Misdirected(0, TP, ID, "consumer", 2, 0, 0))
    assert world.kinds == []  # it was deleted meanwhile
    world.history.add(Misdirected(0, TP, ID, "consumer", 2, 0, 1))
    assert world.kinds == ["misdirected"]


def test_a_follower_whose_power_or_disk_has_failed_may_lack_what_it_had(world: World) -> None:
    world.checkers.power_lost([Loss(2, TP, ID, 1, 2)])
    world.checkers.disk_replaced(3, {TP: ID})
    for broker in (2, 3):
        world.history.add(Misdirected(0, TP, ID, "consumer", broker, 0, 2))
    assert world.kinds == []
    world.history.add(Misdirected(0, TP, ID, "consumer", 1, 0, 2))
    assert world.kinds == ["misdirected"]


def test_a_consumer_below_the_log_start_is_out_of_range(world: World) -> None:
    world.history.add(DeletionRequested(0, TP, ID, 1))
    world.history.add(Position(0, TP, ID, "one", 0, "earliest"))
    world.history.add(Position(0, TP, ID, "one", -1, "0 is out of range"))
    assert world.kinds == []
    world.history.add(Position(0, TP, ID, "two", 1, "earliest"))
    world.history.add(Position(0, TP, ID, "two", -1, "1 is out of range"))
    assert world.kinds == ["out of range"]


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


def test_deletion_is_not_done_before_the_low_watermark_says_so(world: World) -> None:
    world.history.add(DeletionDone(0, TP, ID, 2, 1))
    assert world.kinds == ["too early"]


def test_what_a_consumer_gets_and_has_not_requested(world: World) -> None:
    """Also of a topic that is deleted, whose other promises have ended."""
    world.history.add(TopicDeleted(0, TP, ID))
    world.history.add(UnrequestedPartition(0, TP, ID, "consumer", "twice in a response"))
    assert world.kinds == ["unrequested"]
