"""The ISR rules: what is committed, which replicas lag, which may join."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplog.core.replication import isr
from kreplog.core.replication.isr import RemoteReplica


def replicas(**leos: int) -> dict[int, RemoteReplica]:
    return {int(name[1:]): RemoteReplica(int(name[1:]), leo) for name, leo in leos.items()}


@pytest.mark.parametrize(
    ("members", "ends", "expected"),
    [
        ((1,), {}, 10),
        ((1, 2, 3), {"b2": 8, "b3": 9}, 8),
        ((1, 2), {"b2": 8, "b3": 3}, 8),
        ((1, 2, 3), {"b2": 8, "b3": isr.UNKNOWN_OFFSET}, 5),
        ((1, 2, 3), {"b2": 8}, 5),
        ((1, 2), {"b2": 2}, 5),
        ((2, 3), {"b2": 12, "b3": 11}, 11),
    ],
)
def test_f13_the_watermark_is_the_smallest_end_in_the_maximal_isr(
    members: tuple[int, ...], ends: dict[str, int], expected: int
) -> None:
    """KIP-497: a replica that has not fetched in this epoch, or is unknown, holds it where it is; it never moves
    back."""
    assert isr.high_watermark(5, 10, 1, members, replicas(**ends)) == expected


@given(
    current=st.integers(0, 50),
    local=st.integers(0, 100),
    ends=st.dictionaries(st.integers(2, 5), st.integers(-1, 100)),
    members=st.sets(st.integers(1, 5), min_size=1),
)
def test_the_watermark_never_goes_back_nor_past_a_member(
    current: int, local: int, ends: dict[int, int], members: set[int]
) -> None:
    known = {broker: RemoteReplica(broker, end) for broker, end in ends.items()}
    watermark = isr.high_watermark(current, local, 1, members, known)
    assert watermark >= current
    if watermark > current:
        assert all(watermark <= (local if member == 1 else ends[member]) for member in members)


def test_an_idle_follower_is_never_dropped_and_starts_to_lag_when_the_leader_appends() -> None:
    """F23: lag is time since last caught up, and an idle partition's follower need not fetch to stay in sync."""
    follower = RemoteReplica(2, leo=10, last_caught_up_ms=0)
    assert not isr.is_lagging(follower, 10, 10**9, 100)
    isr.leader_appended([follower], 10, 10**9)
    assert not isr.is_lagging(follower, 11, 10**9 + 100, 100)
    assert isr.is_lagging(follower, 11, 10**9 + 101, 100)


def test_a_follower_under_steady_load_is_caught_up_though_never_at_the_end() -> None:
    follower = RemoteReplica(2)
    end = 0
    for now in range(0, 10000, 10):
        isr.record_fetch(follower, end, end + 5, now)
        isr.leader_appended([follower], end, now)
        end += 5
        assert not isr.is_lagging(follower, end, now, 100)


def test_a_follower_slower_than_the_leader_lags_after_a_while() -> None:
    follower = RemoteReplica(2)
    lagged = []
    for now in range(0, 1000, 10):
        isr.record_fetch(follower, now // 10, now, now)
        lagged.append(isr.is_lagging(follower, now, now, 100))
    assert not lagged[0] and lagged[-1]


def test_the_byte_lag_bound_is_off_unless_set() -> None:
    follower = RemoteReplica(2, leo=10, last_caught_up_ms=50)
    assert not isr.is_lagging(follower, 1000, 50, 100)
    assert isr.is_lagging_in_bytes(101, 100)


@pytest.mark.parametrize(
    ("leo", "watermark", "epoch_start", "joins"), [(10, 10, 10, True), (9, 10, 0, False), (12, 10, 15, False)]
)
def test_f12_joining_takes_the_watermark_and_the_start_of_the_epoch(
    leo: int, watermark: int, epoch_start: int, joins: bool
) -> None:
    assert isr.is_caught_up(RemoteReplica(2, leo), watermark, epoch_start) is joins


@pytest.mark.parametrize(
    ("members", "minimum", "assigned", "enough"),
    [((1,), 1, (1, 2, 3), True), ((1,), 2, (1, 2, 3), False), ((1,), 2, (1,), True), ((), 1, (1, 2), False)],
)
def test_f18_min_insync_replicas_counts_at_most_as_the_replication_factor(
    members: tuple[int, ...], minimum: int, assigned: tuple[int, ...], enough: bool
) -> None:
    assert isr.has_min_isr(members, minimum, assigned) is enough
