"""Moves of replicas between log directories: what a start, a request and the next step of a copy decide."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from kreplog.core.broker.future_replicas import (
    AtStart,
    Copy,
    MoveAction,
    Restart,
    Truncate,
    after_misfit,
    at_start,
    next_copy_step,
    requested,
)
from kreplog.core.effects import LogState
from kreplog.errors import ErrorCode


@pytest.mark.parametrize(
    ("has_replica", "is_committed", "complete", "action"),
    [
        (True, False, True, AtStart.DROP),  # killed while it copied
        (True, False, False, AtStart.DROP),
        (False, True, True, AtStart.ADOPT),  # killed after the commit
        (False, True, False, AtStart.ADOPT),
        (False, False, True, AtStart.DROP),  # the topic was deleted
        (False, False, False, AtStart.KEEP),  # the replica may be on the missing disk
        (True, True, True, AtStart.KEEP),  # no broker leaves that
    ],
)
def test_a_start_makes_of_a_copy_a_replica_only_after_the_commit(
    has_replica: bool, is_committed: bool, complete: bool, action: AtStart
) -> None:
    assert at_start(has_replica=has_replica, is_committed=is_committed, complete=complete) is action


def decided(
    current: str | None = "/a",
    moving_to: str | None = None,
    directory: str = "/b",
    known: bool = True,
    online: bool = True,
    current_online: bool = True,
    name_fits: bool = True,
) -> tuple[MoveAction, ErrorCode]:
    return requested(
        directory,
        current,
        moving_to,
        known=known,
        online=online,
        current_online=current_online,
        name_fits=name_fits,
    )


def test_requests() -> None:
    """As ReplicaManager.alterReplicaLogDirs of Kafka."""
    assert decided() == (MoveAction.START, ErrorCode.NONE)
    assert decided(directory="/a") == (MoveAction.NOTHING, ErrorCode.NONE)
    assert decided(moving_to="/b") == (MoveAction.NOTHING, ErrorCode.NONE)
    assert decided(moving_to="/b", directory="/c") == (MoveAction.START, ErrorCode.NONE)
    assert decided(moving_to="/b", directory="/a") == (MoveAction.CANCEL, ErrorCode.NONE)
    assert decided(current=None) == (MoveAction.PREFER, ErrorCode.REPLICA_NOT_AVAILABLE)
    assert decided(known=False, online=False) == (MoveAction.NOTHING, ErrorCode.LOG_DIR_NOT_FOUND)
    assert decided(online=False) == (MoveAction.NOTHING, ErrorCode.KAFKA_STORAGE_ERROR)
    assert decided(current_online=False) == (MoveAction.NOTHING, ErrorCode.KAFKA_STORAGE_ERROR)
    assert decided(name_fits=False) == (MoveAction.NOTHING, ErrorCode.INVALID_TOPIC_EXCEPTION)


CURRENT = LogState(100, 20, ((1, 20), (3, 60), (5, 90)))


@pytest.mark.parametrize(
    ("copy", "step"),
    [
        (LogState(), Restart(20)),
        (LogState(20, 20), Copy(20)),
        (LogState(70, 20, ((1, 20), (3, 60))), Copy(70)),
        (LogState(100, 20, CURRENT.epochs), None),
        (LogState(70, 0, ((1, 0), (3, 60))), Copy(70)),  # retention has been at work
        (LogState(15, 0, ((1, 0),)), Restart(20)),
        (LogState(70, 30, ((1, 30), (3, 60))), Restart(20)),  # the replica has started over before it
        (LogState(95, 20, ((1, 20), (3, 60))), Truncate(90)),  # epoch 3 ends at 90 now
        (LogState(95, 20, ((1, 20), (2, 50))), Truncate(50)),
        (LogState(120, 20, CURRENT.epochs), Truncate(100)),
    ],
)
def test_the_next_step_of_a_copy(copy: LogState, step: object) -> None:
    assert next_copy_step(CURRENT, copy) == step


def test_a_copy_of_a_log_without_epochs_is_cut_to_its_end() -> None:
    assert next_copy_step(LogState(5, 0), LogState(9, 0)) == Truncate(5)
    assert next_copy_step(LogState(0, 0), LogState()) is None


def test_a_batch_that_begins_before_the_end_of_the_copy() -> None:
    assert after_misfit(LogState(20, 20), 20) is None
    assert after_misfit(LogState(20, 20), 24) is None, "compaction has left a gap"
    assert after_misfit(LogState(20, 20), 15) == Restart(15), "the log starts within a batch"
    assert after_misfit(LogState(40, 20, ((1, 20),)), 35) == Truncate(35)
    assert after_misfit(LogState(40, 20, ((1, 20),)), 15) == Truncate(20)


Record = tuple[int, int]
"""Leader epoch and a number of its own."""


def state_of(start: int, records: list[Record]) -> LogState:
    epochs: list[tuple[int, int]] = []
    for offset, (epoch, _) in enumerate(records, start):
        if not epochs or epoch > epochs[-1][0]:
            epochs.append((epoch, offset))
    return LogState(start + len(records), start, tuple(epochs))


@pytest.mark.parametrize("seed", range(200))
def test_a_copy_ends_equal_whatever_happens_to_the_replica_meanwhile(seed: int) -> None:
    """Epochs have one leader each, whose records at an offset are the same wherever they are: as a follower's."""
    random, serial = Random(seed), itertools.count()
    epoch, written = 0, dict[tuple[int, int], Record]()
    start, replica = 0, list[Record]()
    copy_start, copied = 0, list[Record]()

    def append() -> None:
        key = epoch, start + len(replica)
        replica.append(written.setdefault(key, (epoch, next(serial))))

    def follow() -> bool:
        nonlocal copy_start, copied
        step = next_copy_step(state_of(start, replica), state_of(copy_start, copied))
        if isinstance(step, Restart):
            copy_start, copied = step.offset, []
        elif isinstance(step, Truncate):
            assert copy_start <= step.offset < copy_start + len(copied), "it gets on"
            copied = copied[: step.offset - copy_start]
        elif step is not None:
            copied += replica[step.offset - start :][: random.randint(1, 5)]
        if copy_start < start <= copy_start + len(copied):
            copy_start, copied = start, copied[start - copy_start :]
        return step is None

    for _ in range(120):
        match random.randrange(8):
            case 0:  # it follows another leader, which lacks some of its records
                epoch += random.randint(1, 2)
                del replica[len(replica) - random.randint(0, len(replica)) :]
            case 1:
                deleted = random.randint(0, len(replica))
                start, replica = start + deleted, replica[deleted:]
            case 2 if random.random() < 0.2:
                start, replica = start + len(replica) + random.randint(0, 9), []
            case 3 | 4 | 5:
                append()
            case _:
                follow()
    for _ in range(1000):
        if follow():
            break
    assert (copy_start, copied) == (start, replica)
