"""Leader epochs: what a leader answers, and how a follower finds the point where the logs part."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kreplog import Log
from kreplog.core.replication import epochs as rules
from kreplog.types import NO_EPOCH, EpochEndOffset

KNOWN = ((1, 0), (3, 10), (7, 25))
LEO = 40


def cache(log: list[int]) -> rules.Epochs:
    """The epoch cache of a log given as the epoch of each of its records."""
    return tuple((epoch, offset) for offset, epoch in enumerate(log) if not offset or log[offset - 1] != epoch)


@pytest.mark.parametrize(
    ("reason", "known", "epoch", "end"),
    [
        ("the latest", KNOWN, 7, (7, 40)),
        ("an older one ends where the next begins", KNOWN, 3, (3, 25)),
        ("the first", KNOWN, 1, (1, 10)),
        ("KIP-279: one that is not known", KNOWN, 5, (3, 25)),
        ("older than all", KNOWN[1:], 2, (2, 10)),
        ("newer than all", KNOWN, 8, (-1, -1)),
        ("no epoch", KNOWN, NO_EPOCH, (-1, -1)),
        ("none known", (), 3, (-1, -1)),
        ("F4: an epoch begun, nothing written in it", ((1, 0), (2, 40)), 1, (1, 40)),
        ("F4: and the epoch itself", ((1, 0), (2, 40)), 2, (2, 40)),
    ],
)
def test_kip_101_end_offset_for(reason: str, known: rules.Epochs, epoch: int, end: tuple[int, int]) -> None:
    assert rules.end_offset_for(known, LEO, epoch) == EpochEndOffset(*end), reason


@pytest.mark.parametrize(
    ("known", "offset", "epoch"),
    [
        (KNOWN, 0, 1),
        (KNOWN, 9, 1),
        (KNOWN, 10, 3),
        (KNOWN, 24, 3),
        (KNOWN, 25, 7),
        (KNOWN, 39, 7),
        (KNOWN[1:], 9, NO_EPOCH),
        (KNOWN, -1, NO_EPOCH),
        ((), 5, NO_EPOCH),
        (((1, 0), (2, 40)), 39, 1),
    ],
)
def test_epoch_at(known: rules.Epochs, offset: int, epoch: int) -> None:
    assert rules.epoch_at(known, offset) == epoch


@pytest.mark.parametrize(
    ("reason", "known", "position", "epoch", "divergence"),
    [
        ("at the end", KNOWN, 40, 7, None),
        ("past the end", KNOWN, 41, 7, 40),
        ("past the end, no epoch", KNOWN, 41, NO_EPOCH, 40),
        ("past the end, none known", (), 41, 7, 40),
        ("no epoch", KNOWN, 30, NO_EPOCH, None),
        ("none known", (), 30, 7, None),
        ("within an older epoch", KNOWN, 25, 3, None),
        ("past its end: grown again in a later one", KNOWN, 26, 3, 25),
        ("an epoch that the log has not", KNOWN, 26, 5, 25),
        ("newer than all: from where on is not known", KNOWN, 30, 8, -1),
        ("newer than all, past the end", KNOWN, 41, 8, 40),
    ],
)
def test_kip_320_divergence_from(
    reason: str, known: rules.Epochs, position: int, epoch: int, divergence: int | None
) -> None:
    assert rules.divergence_from(known, LEO, position, epoch) == divergence, reason


@pytest.mark.parametrize(
    ("reason", "known", "fetch_offset", "last_fetched", "answer"),
    [
        ("caught up", KNOWN, 40, 7, None),
        ("behind in the latest epoch", KNOWN, 26, 7, None),
        ("behind in an older one", KNOWN, 12, 3, None),
        ("at the end of an older one", KNOWN, 25, 3, None),
        ("past the end of an older one", KNOWN, 26, 3, (3, 25)),
        ("past our end", KNOWN, 41, 7, (7, 40)),
        ("an epoch that we do not have", KNOWN, 20, 5, (3, 25)),
        ("even at a small offset", KNOWN, 1, 5, (3, 25)),
        ("newer than all of ours", KNOWN, 40, 9, (7, 40)),
        ("older than all of ours, past the first", KNOWN[1:], 12, 2, (2, 10)),
        ("older than all of ours, deleted here", KNOWN[1:], 10, 2, None),
        ("nothing to compare", KNOWN, 33, NO_EPOCH, None),
        ("no epoch of ours", (), 40, 3, None),
        ("no epoch of ours and past our end", (), 41, 3, (NO_EPOCH, 40)),
    ],
)
def test_kip_595_diverging(
    reason: str, known: rules.Epochs, fetch_offset: int, last_fetched: int, answer: tuple[int, int] | None
) -> None:
    assert rules.diverging(known, LEO, fetch_offset, last_fetched) == (answer and EpochEndOffset(*answer)), reason


@pytest.mark.parametrize(
    ("reason", "known", "leaders", "cut"),
    [
        ("we have more of that epoch", KNOWN, (7, 30), 30),
        ("F1: we have an epoch more, the leader ends with the one before", KNOWN, (3, 20), 20),
        ("the leader has more of the one before", KNOWN, (3, 30), 25),
        ("F3: an epoch that we do not have", KNOWN, (5, 30), 25),
        ("F3: and it ends earlier", KNOWN, (5, 8), 8),
        ("older than all of ours: nothing in common", KNOWN[1:], (2, 30), 10),
        ("the leader knows no epoch", KNOWN, (NO_EPOCH, 12), 12),
        ("no epoch of ours", (), (3, 12), 12),
        ("an answer that makes no sense", KNOWN, (7, 99), 39),
        ("and another", KNOWN, (9, 99), 39),
        ("and nothing at all", KNOWN, (NO_EPOCH, -1), 0),
    ],
)
def test_kip_279_truncation_offset(reason: str, known: rules.Epochs, leaders: tuple[int, int], cut: int) -> None:
    assert rules.truncation_offset(known, LEO, EpochEndOffset(*leaders)) == cut, reason


@st.composite
def parted(draw: st.DrawFn) -> tuple[list[int], list[int], int]:
    """Two logs as the epochs of their records, and how many records they share: what leaders and crashes can make."""
    epoch = 0
    common: list[int] = []
    logs: tuple[list[int], list[int]] = ([], [])
    for _ in range(draw(st.integers(0, 4))):
        epoch += draw(st.integers(1, 2))
        common += [epoch] * draw(st.integers(1, 4))
    for log in logs:
        log += common
    if common:  # one of the two may have more of the last epoch that both have
        logs[draw(st.integers(0, 1))].extend([epoch] * draw(st.integers(0, 3)))
    for _ in range(draw(st.integers(0, 6))):
        epoch += draw(st.integers(1, 2))
        logs[draw(st.integers(0, 1))].extend([epoch] * draw(st.integers(1, 4)))
    return logs[0], logs[1], len(common)


@settings(max_examples=300)
@given(parted(), st.booleans())
def test_two_logs_converge_and_common_records_are_never_truncated(
    logs: tuple[list[int], list[int], int], begun: bool
) -> None:
    leader, follower, shared = logs
    ours = cache(leader)
    if begun:  # the leader has begun its epoch and written nothing in it
        ours += ((max([0, *leader, *follower]) + 1, len(leader)),)
    rounds, bound = 0, len({*follower[shared:]}) + 1  # a round ends an epoch of the follower, or cuts where ours ends
    while True:
        theirs = cache(follower)
        diverging = rules.diverging(ours, len(leader), len(follower), rules.epoch_at(theirs, len(follower) - 1))
        if diverging is None:
            break
        cut = rules.truncation_offset(theirs, len(follower), diverging)
        assert shared <= cut < len(follower)
        del follower[cut:]
        rounds += 1
    assert follower == leader[: len(follower)]
    assert rounds <= bound


@settings(max_examples=12)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=5), st.integers(0, 14))
def test_same_results_as_the_log(
    tmp_path_factory: pytest.TempPathFactory, written: list[tuple[int, int]], deleted: int
) -> None:
    path: Path = tmp_path_factory.mktemp("epochs") / "t-0"
    with Log.open(path) as log:
        epoch = 0
        for step, records in written:
            epoch += step
            log.assign_leader_epoch(epoch)
            for _ in range(records):
                log.append(b"value")
        end = log.log_end_offset
        log.advance_high_watermark(end)
        log.delete_records_before(min(deleted, end))
        known = tuple(log.leader_epochs)
        for queried in range(-1, epoch + 3):
            assert rules.end_offset_for(known, end, queried) == log.end_offset_for_epoch(queried)
