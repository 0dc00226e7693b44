"""The leader selectors and KIP-966's eligible replicas: every case as a table, then what must hold for any case."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kreplog.core.controller.leader_selectors import (
    Election,
    controlled_shutdown,
    drop_unclean,
    offline,
    preferred,
    reassigned,
)
from kreplog.core.elr import elr_after, shrink
from kreplog.types import NO_LEADER, LeaderAndIsr

A, B, C, D = 1, 2, 3, 4
ABC = (A, B, C)
EPOCH, CONTROLLER, VERSION = 7, 3, 41


def state(leader: int, isr: tuple[int, ...], elr: tuple[int, ...] = ()) -> LeaderAndIsr:
    return LeaderAndIsr(leader, EPOCH, isr, elr, controller_epoch=2, partition_epoch=VERSION)


def written(leader: int, isr: tuple[int, ...], elr: tuple[int, ...] = ()) -> LeaderAndIsr:
    """What a controller of epoch CONTROLLER makes of a `state`; the version to compare with is the one it read."""
    return LeaderAndIsr(leader, EPOCH + 1, isr, elr, controller_epoch=CONTROLLER, partition_epoch=VERSION)


Want = tuple[int, tuple[int, ...], tuple[int, ...]] | None


# --- eligible replicas (KIP-966) ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "old_isr", "old_elr", "new_isr", "min_isr", "elr"),
    [
        ("large enough without the one that left", ABC, (), (A, B), 2, ()),
        ("the one that made it too small", (A, B), (), (A,), 2, (B,)),
        ("two at once", ABC, (), (A,), 2, (B, C)),
        ("two at once, of which one would have been spare", ABC, (), (B,), 3, (A, C)),
        ("those from before stay", (A, B), (C,), (A,), 3, (B, C)),
        ("one comes back and it is still too small", (A,), (B, C), (A, B), 3, (C,)),
        ("one comes back and it is large enough", (A,), (B, C), (A, B), 2, ()),
        ("min.insync.replicas of one: nobody is ever eligible", (A, B), (), (A,), 1, ()),
        ("an eligible one is elected alone", (A,), (B,), (B,), 2, (A,)),
        ("nothing changed", (A,), (B,), (A,), 2, (B,)),
        ("min.insync.replicas was lowered", (A,), (B,), (A,), 1, ()),
        ("the last member was dropped", (A,), (B,), (), 1, (A, B)),
    ],
)
def test_kip_966_eligible_after(
    reason: str,
    old_isr: tuple[int, ...],
    old_elr: tuple[int, ...],
    new_isr: tuple[int, ...],
    min_isr: int,
    elr: tuple[int, ...],
) -> None:
    assert elr_after(old_isr, old_elr, new_isr, min_isr) == elr, reason


@pytest.mark.parametrize(
    ("reason", "isr", "elr", "removed", "min_isr", "want"),
    [
        ("one leaves", ABC, (), {C}, 2, ((A, B), ())),
        ("one leaves and is eligible", (A, B), (C,), {B}, 3, ((A,), (B, C))),
        ("a stranger leaves", (A, B), (C,), {D}, 3, ((A, B), (C,))),
        ("nobody leaves", (A,), (B,), (), 1, ((A,), (B,))),
        ("all leave: nobody does", (A, B), (C,), {A, B, C}, 3, ((A, B), (C,))),
        ("the last one stays", (A,), (), {A}, 1, ((A,), ())),
    ],
)
def test_kip_966_shrink(
    reason: str,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    removed: set[int],
    min_isr: int,
    want: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    assert shrink(state(A, isr, elr), removed, min_isr) == want, reason


# --- offline --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "current", "live", "unclean_allowed", "min_isr", "want", "unclean"),
    [
        ("the next in the ISR", state(C, ABC), {A, B}, False, 1, (B, (A, B), ()), False),
        ("in the order of assignment, not of id", state(B, ABC), {A, C}, False, 1, (C, (A, C), ()), False),
        ("live but not in the ISR is passed over", state(B, (A, B)), {A, C}, False, 1, (A, (A,), ()), False),
        ("all dead members leave the ISR", state(A, ABC), {C}, False, 1, (C, (C,), ()), False),
        ("KIP-966: those that leave a small ISR stay eligible", state(A, ABC), {C}, False, 2, (C, (C,), (A, B)), False),
        ("KIP-966: the ISR first, eligible next", state(A, (A, B), (C,)), {B, C}, False, 3, (B, (B,), (A, C)), False),
        ("KIP-966: an eligible one", state(A, (A,), (B, C)), {B, C}, False, 2, (C, (C,), (A, B)), False),
        ("KIP-966: after NO_LEADER", state(NO_LEADER, (A,), (B,)), {B}, False, 2, (B, (B,), (A,)), False),
        (
            "KIP-966: an ISR lost to an unclean return",
            state(NO_LEADER, (), (B,)),
            {A, B},
            False,
            2,
            (B, (B,), ()),
            False,
        ),
        ("eligible before unclean", state(A, (A,), (B,)), {B, C}, True, 2, (B, (B,), (A,)), False),
        (
            "KIP-966: min.insync.replicas was lowered",
            state(A, (A,), (B,)),
            {B},
            False,
            1,
            (NO_LEADER, (A,), (B,)),
            False,
        ),
        ("KIP-106: unclean is off", state(A, (A,)), {B, C}, False, 1, (NO_LEADER, (A,), ()), False),
        ("KIP-106: unclean is on", state(A, (A,)), {B, C}, True, 1, (C, (C,), ()), True),
        ("KIP-106: nobody stays eligible", state(A, (A,), (D,)), {B}, True, 2, (B, (B,), ()), True),
        ("KIP-106: from NO_LEADER", state(NO_LEADER, (A,)), {B}, True, 1, (B, (B,), ()), True),
        ("KIP-106: only assigned replicas", state(A, (A,)), {9}, True, 1, (NO_LEADER, (A,), ()), False),
        ("nobody lives: who was in stays", state(A, (A, B), (C,)), set(), False, 3, (NO_LEADER, (A, B), (C,)), False),
        ("one of the ISR returns", state(NO_LEADER, (A, B)), {B}, False, 2, (B, (B,), (A,)), False),
    ],
)
def test_offline(
    reason: str,
    current: LeaderAndIsr,
    live: set[int],
    unclean_allowed: bool,
    min_isr: int,
    want: tuple[int, tuple[int, ...], tuple[int, ...]],
    unclean: bool,
) -> None:
    election = offline(current, (C, B, A, D), live, unclean_allowed, CONTROLLER, min_isr)
    assert election == Election(written(*want), unclean), reason


@pytest.mark.parametrize("live", [set(), {C}])
@pytest.mark.parametrize("isr", [(A, B), ()])
def test_offline_writes_nothing_when_nothing_can_be_gained(live: set[int], isr: tuple[int, ...]) -> None:
    assert offline(state(NO_LEADER, isr), ABC, live, False, CONTROLLER, 1) is None


def test_the_outcome_does_not_depend_on_the_controller() -> None:
    """The replica-state-machine study: A dies, then B. Whoever elects, however often: leader -1 and ISR {B} remain."""
    current = LeaderAndIsr(A, 0, (A, B))
    histories = [
        [(1, {B}), (1, set())],  # one controller sees both deaths
        [(1, {B}), (2, set()), (2, set())],  # the second is handled by its successor, which looks twice
        [(1, {B}), (1, {B}), (2, set())],
    ]
    for history in histories:
        now = current
        for controller, live in history:
            if now.leader in live:
                continue
            election = offline(now, (A, B), live, False, controller, 1)
            now = election.state if election else now
        assert (now.leader, now.isr, now.leader_epoch) == (NO_LEADER, (B,), 2)


# --- reassigned -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "current", "target", "live", "min_isr", "want"),
    [
        ("the leader stays although another is preferred", state(A, ABC), (C, A), {A, B, C}, 1, (A, (A, C), ())),
        ("the leader goes", state(A, ABC), (C, B), {A, B, C}, 1, (C, (B, C), ())),
        ("the leader stays but is dead", state(A, ABC), (A, B), {B, C}, 1, (B, (A, B), ())),
        ("the first of the target is dead", state(A, ABC), (B, C), {A, C}, 1, (C, (B, C), ())),
        ("the first of the target lags", state(A, (A, C)), (B, C), {A, B, C}, 1, (C, (C,), ())),
        ("none of the target is in the ISR", state(A, (A, B)), (C, D), {A, B, C, D}, 1, None),
        ("none of the target lives", state(A, ABC), (B, C), {A}, 1, None),
        ("KIP-966: eligible ones outside the target go", state(A, (A,), (B, C)), (A, C), {A}, 3, (A, (A,), (C,))),
        ("KIP-966: who leaves the target is not eligible", state(A, (A, B)), (A, C), {A, B}, 2, (A, (A,), ())),
        ("from NO_LEADER", state(NO_LEADER, (A, B)), (B, C), {B}, 1, (B, (B,), ())),
    ],
)
def test_reassigned(
    reason: str, current: LeaderAndIsr, target: tuple[int, ...], live: set[int], min_isr: int, want: Want
) -> None:
    expected = written(*want) if want else None
    assert reassigned(current, target, live, CONTROLLER, min_isr) == expected, reason


# --- preferred ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "current", "live", "want"),
    [
        ("leadership goes home", state(B, ABC, (D,)), {A, B, C}, (A, ABC, (D,))),
        ("the dead stay in the ISR until the leader drops them", state(B, ABC), {A, B}, (A, ABC, ())),
        ("it leads already", state(A, ABC), {A, B, C}, None),
        ("it is not in the ISR", state(B, (B, C)), {A, B, C}, None),
        ("eligible is not enough", state(B, (B, C), (A,)), {A, B, C}, None),
        ("it is dead", state(B, ABC), {B, C}, None),
        ("from NO_LEADER", state(NO_LEADER, (A,)), {A}, (A, (A,), ())),
    ],
)
def test_preferred(reason: str, current: LeaderAndIsr, live: set[int], want: Want) -> None:
    assert preferred(current, ABC, live, CONTROLLER) == (written(*want) if want else None), reason


def test_preferred_of_no_replicas_is_no_change() -> None:
    assert preferred(state(A, (A,)), (), {A}, CONTROLLER) is None


# --- controlled shutdown --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "current", "live", "stopping", "min_isr", "want"),
    [
        ("leadership moves and the ISR shrinks", state(A, ABC), {A, B, C}, {A}, 1, (B, (B, C), ())),
        ("F15: it counts as dead already", state(A, ABC), {B, C}, {A}, 1, (B, (B, C), ())),
        ("two stop at once", state(A, ABC), {A, B, C}, {A, B}, 1, (C, (C,), ())),
        ("KIP-966: it stays eligible", state(A, (A, B)), {A, B}, {A}, 2, (B, (B,), (A,))),
        ("a follower stops: the leader goes on", state(B, ABC), {A, B, C}, {C}, 1, (B, (A, B), ())),
        ("the next one is dead, the one after it leads", state(A, ABC), {A, C}, {A}, 1, (C, (B, C), ())),
        ("the only member of the ISR", state(A, (A,)), {A, B}, {A}, 1, None),
        ("the only live member of the ISR", state(A, (A, B)), {A}, {A}, 1, None),
        ("all members stop", state(A, (A, B)), {A, B, C}, {A, B}, 1, None),
        ("eligible is not enough while the ISR lives", state(A, (A,), (B,)), {A, B}, {A}, 2, None),
        ("it has nothing to do here", state(A, (A, B)), {A, B, C}, {C}, 1, None),
        ("the follower of a dead leader", state(A, (A, B)), {B}, {B}, 1, None),
    ],
)
def test_controlled_shutdown(
    reason: str, current: LeaderAndIsr, live: set[int], stopping: set[int], min_isr: int, want: Want
) -> None:
    expected = written(*want) if want else None
    assert controlled_shutdown(current, ABC, live, stopping, CONTROLLER, min_isr) == expected, reason


# --- unclean returns (F17) ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reason", "current", "broker", "want"),
    [
        ("a member of the ISR", state(B, ABC), A, (B, (B, C), ())),
        ("an eligible one", state(B, (B,), (A, C)), A, (B, (B,), (C,))),
        ("the leader, back before anybody noticed (F29)", state(A, ABC), A, (NO_LEADER, (B, C), ())),
        ("F17: the last of the ISR, but others are eligible", state(NO_LEADER, (A,), (B,)), A, (NO_LEADER, (), (B,))),
        ("F17: the only one left", state(NO_LEADER, (A,)), A, None),
        ("the only eligible one left", state(NO_LEADER, (), (A,)), A, None),
        ("neither in nor eligible", state(B, (B,), (C,)), A, None),
    ],
)
def test_drop_unclean(reason: str, current: LeaderAndIsr, broker: int, want: Want) -> None:
    assert drop_unclean(current, broker, CONTROLLER) == (written(*want) if want else None), reason


def test_f17_the_last_replica_standing_does_not_lead_after_a_power_cut() -> None:
    """ISR {A}, min.insync.replicas 2: A loses unflushed records; B, eligible, has all that is committed and leads."""
    shrunk = offline(state(B, (A, B)), (A, B), {A}, False, CONTROLLER, 2)
    assert shrunk and shrunk.state.elr == (B,)
    dead = offline(shrunk.state, (A, B), set(), False, CONTROLLER, 2)
    assert dead
    dropped = drop_unclean(dead.state, A, CONTROLLER)
    assert dropped
    assert offline(dropped, (A, B), {A}, False, CONTROLLER, 2) is None
    elected = offline(dropped, (A, B), {A, B}, False, CONTROLLER, 2)
    assert elected and (elected.state.leader, elected.state.isr, elected.unclean) == (B, (B,), False)


# --- what holds for any state ---------------------------------------------------------------------------------------

BROKERS = range(6)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[LeaderAndIsr, tuple[int, ...]]:
    """Any state that may lie in the store, and the assignment it belongs to."""
    assigned = tuple(draw(st.lists(st.sampled_from(BROKERS), min_size=1, unique=True)))
    isr = tuple(sorted(draw(st.sets(st.sampled_from(assigned)))))
    elr = tuple(sorted(draw(st.sets(st.sampled_from(assigned))) - set(isr)))
    leader = draw(st.sampled_from((NO_LEADER, *isr)))
    return LeaderAndIsr(leader, EPOCH, isr, elr, 2, VERSION), assigned


brokers = st.sets(st.sampled_from(BROKERS))
min_isrs = st.integers(1, 4)


def check_state(before: LeaderAndIsr, after: LeaderAndIsr, assigned: tuple[int, ...]) -> None:
    assert after.leader == NO_LEADER or after.leader in after.isr
    assert {*after.isr, *after.elr} <= set(assigned)
    assert not set(after.isr) & set(after.elr)
    assert list(after.isr) == sorted(set(after.isr))
    assert list(after.elr) == sorted(set(after.elr))
    assert after.leader_epoch == before.leader_epoch + 1
    assert (after.controller_epoch, after.partition_epoch) == (CONTROLLER, before.partition_epoch)


@given(partitions(), brokers, st.booleans(), min_isrs)
def test_offline_holds(
    partition: tuple[LeaderAndIsr, tuple[int, ...]], live: set[int], unclean_allowed: bool, min_isr: int
) -> None:
    current, assigned = partition
    election = offline(current, assigned, live, unclean_allowed, CONTROLLER, min_isr)
    trusted = {*current.isr, *(current.elr if len(current.isr) < min_isr else ())}
    hopeful = trusted & live
    if election is None:
        assert current.leader == NO_LEADER and not hopeful and not (unclean_allowed and live & set(assigned))
        return
    after = election.state
    check_state(current, after, assigned)
    assert election.unclean == (after.leader not in {NO_LEADER, *trusted})
    assert unclean_allowed or not election.unclean
    if hopeful:
        assert after.leader in hopeful
    if after.leader == NO_LEADER:
        assert (after.isr, after.elr) == (current.isr, current.elr)
    elif not election.unclean:
        assert set(after.isr) <= set(current.isr) or (set(after.isr) <= set(current.elr) and len(after.isr) == 1)
        if len(after.isr) < min_isr:  # KIP-966: who held all that is committed is still known
            assert {*after.isr, *after.elr} == {*current.isr, *current.elr}


@given(partitions(), brokers, brokers, min_isrs)
def test_the_other_selectors_hold(
    partition: tuple[LeaderAndIsr, tuple[int, ...]], live: set[int], others: set[int], min_isr: int
) -> None:
    current, assigned = partition
    changes = [
        preferred(current, assigned, live, CONTROLLER),
        controlled_shutdown(current, assigned, live, others, CONTROLLER, min_isr),
        reassigned(current, tuple(sorted(others)), live, CONTROLLER, min_isr),
    ]
    for after in filter(None, changes):
        check_state(current, after, assigned)
        assert after.leader in live and after.leader in current.isr
        assert set(after.isr) <= set(current.isr)
    stopped, handed_over = changes[1:]
    if stopped:
        assert not others & {stopped.leader, *stopped.isr}
    if handed_over:
        assert {*handed_over.isr, *handed_over.elr} <= others


@given(partitions(), st.sampled_from(BROKERS))
def test_drop_unclean_holds(partition: tuple[LeaderAndIsr, tuple[int, ...]], broker: int) -> None:
    current, assigned = partition
    after = drop_unclean(current, broker, CONTROLLER)
    known = {*current.isr, *current.elr}
    if after is None:
        assert known <= {broker} or broker not in known
        return
    check_state(current, after, assigned)
    assert {*after.isr, *after.elr} == known - {broker}


@given(partitions(), min_isrs, st.data())
def test_any_order_of_deaths_one_at_a_time_leaves_the_last_alive(
    partition: tuple[LeaderAndIsr, tuple[int, ...]], min_isr: int, data: st.DataObject
) -> None:
    """The last one alive is the ISR; those that left it at min_isr or below are eligible. Any order, any controller."""
    assigned = partition[1]
    order = data.draw(st.sampled_from(list(permutations(assigned[:4]))))
    now = LeaderAndIsr(order[0], 0, tuple(sorted(order)))
    live = set(order)
    for controller, broker in enumerate(order):
        live.discard(broker)
        if now.leader == broker:
            election = offline(now, assigned, live, False, controller, min_isr)
            assert election and not election.unclean
            now = election.state
        else:
            isr, elr = shrink(now, {broker}, min_isr)
            now = LeaderAndIsr(now.leader, now.leader_epoch + 1, isr, elr, controller)
    assert (now.leader, now.isr) == (NO_LEADER, order[-1:])
    assert now.elr == tuple(sorted(order[-min_isr:-1]))
