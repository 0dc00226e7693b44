"""Replicas move to other log directories in virtual time: what they have follows them, a loss of power included."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from kreplog.core.effects import LogState, ReplaceLog, SyncReplacement
from kreplog.core.events import CopyCaughtUp
from kreplog.sim.brokers import virtual_replica_moves
from kreplog.sim.brokers.virtual_replica_moves import VirtualReplicaMoves
from kreplog.sim.machines.disk import Disk, DiskLog, Disks
from kreplog.sim.machines.scheduler import MS, Scheduler
from kreplog.types import TopicPartition

TP = TopicPartition("t", 0)


class World:
    """A disk with a replica, which moves. caught_up: events so far. running: as the argument `runs`."""

    def __init__(self, disks: Disks) -> None:
        self.scheduler = Scheduler(1)
        self.codec = disks.codec
        self.disk: Disk = disks.disk(1)
        self.log: DiskLog = self.disk.open(TP, "id").log
        self.running: bool | None = True
        self.caught_up: list[CopyCaughtUp] = []
        self.moves = VirtualReplicaMoves(
            self.scheduler, self.disk, Random(1), lambda: self.running, self.caught_up.append
        )
        self.moves.go_on_later()

    def append(self, sequence: int, epoch: int = 0) -> None:
        records = self.codec.encode(1, 0, sequence, [b"%d in %d" % (sequence, epoch)], sequence)
        self.log.append_as_leader(records, epoch)

    def go_on(self) -> None:
        """Until the copy has caught up once more."""
        before = len(self.caught_up)
        while len(self.caught_up) == before:
            self.scheduler.run_until(self.scheduler.now_us + MS)

    def replace(self) -> Any:
        return self.moves.replace(self.disk, ReplaceLog(TP))

    def values(self) -> list[bytes]:
        state = self.log.state()
        return [record.value for record in self.codec.decode(self.log.read(state.log_start, state.leo, 1 << 30))]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(virtual_replica_moves, "IN_USE", 0.0)
    with Disks("model") as disks:
        yield World(disks)


def test_a_copy_takes_over_with_what_was_appended_meanwhile(world: World) -> None:
    for sequence in range(5):
        world.append(sequence)
    world.log.advance_high_watermark(4)
    world.log.delete_records_before(2)
    world.go_on()
    world.append(5)
    world.log.assign_leader_epoch(7)
    values = world.values()
    assert world.replace() == LogState(6, 2, ((0, 2), (7, 6)))
    assert (world.log.high_watermark, world.values()) == (4, values)
    world.append(6, 7)
    assert world.replace() is None, "that move has ended"


def test_a_copy_drops_what_the_replica_has_truncated(world: World) -> None:
    for sequence in range(4):
        world.append(sequence)
    world.go_on()
    world.log.truncate_to(2)
    world.append(2, 1)
    world.append(3, 1)
    assert world.replace() is not None
    assert world.values() == [b"0 in 0", b"1 in 0", b"2 in 1", b"3 in 1"]


def test_a_replica_that_was_closed_or_has_failed_is_not_replaced(world: World) -> None:
    world.append(0)
    world.go_on()
    world.disk.fail()
    assert world.replace() is None
    world.disk.repair()
    world.disk.close(TP)
    assert world.replace() is None


def test_nothing_is_copied_while_the_process_is_paused_or_once_it_has_ended(world: World) -> None:
    world.running = False
    world.scheduler.run_until(world.scheduler.now_us + 1000 * MS)
    assert world.caught_up == []
    world.running = True
    world.go_on()
    world.running = None
    before = len(world.caught_up)
    world.scheduler.run_until(world.scheduler.now_us + 1000 * MS)
    assert len(world.caught_up) == before


@pytest.mark.parametrize(("synced", "lengths"), [(False, {1, 2}), (True, {2})])
def test_a_loss_of_power_may_bring_back_a_replica_until_its_move_is_synced(
    monkeypatch: pytest.MonkeyPatch, synced: bool, lengths: set[int]
) -> None:
    monkeypatch.setattr(virtual_replica_moves, "IN_USE", 0.0)
    found = set()
    for seed in range(20):
        with Disks("model") as disks:
            world = World(disks)
            world.append(0)
            world.log.flush()
            world.go_on()
            assert world.replace() is not None
            if synced:
                world.moves.sync(world.disk, SyncReplacement(TP))
            world.append(1)
            world.log.flush()
            world.disk.crash(True, Random(seed))
            world.log = world.disk.open(TP, "id").log
            found.add(len(world.values()))
    assert found == lengths


def test_the_end_of_a_process_alone_leaves_the_new_files(world: World) -> None:
    world.append(0)
    world.go_on()
    assert world.replace() is not None
    world.append(1)
    world.disk.crash(False, Random(1))
    world.log = world.disk.open(TP, "id").log
    assert world.values() == [b"0 in 0", b"1 in 0"]
