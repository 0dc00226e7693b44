"""The shares of the members of a cursor group, for any number of members, partitions, deaths and joins."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from kreplog.core.cursor_groups import balance, next_member, quota_of

MEMBERS = st.sets(st.integers(0, 30), min_size=1, max_size=12)
PARTITIONS = st.integers(0, 40)


@given(MEMBERS, PARTITIONS)
def test_quotas_are_all_partitions_and_differ_by_one_at_most(members: set[int], partitions: int) -> None:
    quotas = [quota_of(member, members, partitions) for member in members]
    assert sum(quotas) == partitions and max(quotas) - min(quotas) <= 1


@given(MEMBERS, PARTITIONS, st.data())
def test_a_death_lowers_no_quota_and_a_new_member_raises_none(
    members: set[int], partitions: int, data: st.DataObject
) -> None:
    joined = members | {next_member(members)}
    assert len(joined) == len(members) + 1
    assert quota_of(next_member(members), joined, partitions) == partitions // len(joined), "as few as can be"
    for member in members:
        assert quota_of(member, joined, partitions) <= quota_of(member, members, partitions)
    dead = data.draw(st.sampled_from(sorted(joined)))
    for member in joined - {dead}:
        assert quota_of(member, joined - {dead}, partitions) >= quota_of(member, joined, partitions)


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["join", "die", "add", "look", "look"]), max_size=60), st.randoms(use_true_random=False)
)
def test_members_that_look_in_any_order_settle_on_all_partitions(steps: list[str], random: Random) -> None:
    """Each looks by itself, with what it then sees; a partition has one owner at most, as the locks have it."""
    members: dict[int, list[int]] = {}
    partitions = 7
    moves = 0

    def look(member: int) -> None:
        nonlocal moves
        plan = balance(member, members.keys(), members[member], partitions)
        assert list(plan.surplus) == members[member][len(members[member]) - len(plan.surplus) :], "the latest ones go"
        assert not (plan.surplus and plan.wanted)
        for number in plan.surplus:
            members[member].remove(number)
        free = sorted(set(range(partitions)) - {number for owned in members.values() for number in owned})
        members[member] += free[: plan.wanted]
        moves += len(plan.surplus)

    for step in [*steps, "join"]:
        if step == "join":
            members[next_member(members)] = []
        elif step == "add":
            partitions += 1
        elif members and step == "die":
            del members[random.choice(sorted(members))]
        elif members:
            look(random.choice(sorted(members)))
    for _ in range(3):  # the second round takes what the first has given up
        for member in members:
            look(member)
    assert sorted(number for owned in members.values() for number in owned) == list(range(partitions))
    before = {member: list(owned) for member, owned in members.items()}
    moves = 0
    for member in members:
        look(member)
    assert members == before and moves == 0, "what is settled stays"
