"""The checker of groups finds stale commits and two owners, also where a group was removed and its name used again."""

from __future__ import annotations

from kreplog.core.group_messages import OFFSETS_TOPIC
from kreplog.sim.checks.group_checker import GroupChecker
from kreplog.sim.clients.group_client import GROUP
from kreplog.sim.history import Event, GroupAssigned, OffsetCommitInvoked, OffsetCommitted, OffsetFetched
from kreplog.types import TopicPartition

LEADER, REPLACED = 1, 2
WHERE = (0, TopicPartition(OFFSETS_TOPIC, 0), "")


def assigned(member: str, generation: int, since: int, static: bool = False) -> GroupAssigned:
    return GroupAssigned(*WHERE, member, GROUP, since, generation, "static" if static else member, member, (0,))


def committed(member: str, generation: int, error: str = "NONE") -> list[Event]:
    text = f"{member} in {generation}"
    return [
        OffsetCommitInvoked(*WHERE, member, GROUP, generation, member, member, 0, text),
        OffsetCommitted(*WHERE, member, GROUP, text, error),
    ]


def kinds(*events: Event) -> list[str]:
    found: list[str] = []
    checker = GroupChecker(lambda kind, text, event: found.append(kind), lambda _: LEADER)
    for place, event in enumerate(events):
        checker.observe(event, place)
    return found


def test_a_commit_in_an_earlier_generation() -> None:
    both = (assigned("a", 1, 0), assigned("b", 2, 0))
    assert kinds(*both, *committed("b", 2)) == []
    assert kinds(*both, *committed("a", 1, "ILLEGAL_GENERATION")) == []
    assert kinds(*both, *committed("a", 1)) == ["stale commit"]


def test_a_group_that_was_removed_begins_again() -> None:
    """A member that began to join after a generation was over gets an earlier one."""
    before = (assigned("a", 1, 0), assigned("b", 2, 0))
    assert kinds(*before, assigned("c", 1, 2), *committed("c", 1)) == []
    assert kinds(assigned("a", 1, 0), assigned("c", 1, 1)) == []
    again = (*before, assigned("c", 1, 2), assigned("d", 2, 2))
    assert kinds(*again, *committed("c", 1)) == ["stale commit"]
    assert kinds(*again, *committed("b", 2)) == ["stale commit"]


def test_a_group_with_offsets_is_not_removed() -> None:
    assert kinds(
        assigned("a", 1, 0), assigned("b", 2, 0), *committed("b", 2), assigned("c", 1, 4), *committed("c", 1)
    ) == [
        "two owners",
        "stale commit",
    ]


def test_an_assignment_that_arrives_late_is_of_the_same_group() -> None:
    both = (assigned("b", 2, 0), assigned("a", 1, 0))
    assert kinds(*both, *committed("a", 1)) == ["stale commit"]
    assert kinds(assigned("b", 1, 0), assigned("a", 1, 0)) == ["two owners"]


def test_a_static_member_returns_to_its_generation() -> None:
    """That it joined after another had its assignment is no sign of another group."""
    before = (assigned("a", 1, 0, static=True), *committed("a", 1))
    assert kinds(*before, assigned("b", 1, 3, static=True)) == []
    assert kinds(*before, *committed("b", 1)) == []
    assert kinds(assigned("c", 1, 0), *committed("c", 1), assigned("b", 1, 3, static=True)) == ["two owners"]


def test_a_static_member_begins_the_generation_of_a_group_that_was_removed() -> None:
    """As long as no offset is committed, members see no difference to a return."""
    again = (assigned("c", 1, 0), assigned("b", 1, 1, static=True))
    assert kinds(*again) == []
    assert kinds(*again, assigned("d", 1, 0)) == ["two owners"]
    assert kinds(assigned("c", 1, 0), assigned("b", 1, 0, static=True)) == ["two owners"]


def test_an_offset_that_goes_back() -> None:
    """A broker that does not know yet that it is not the coordinator any more reports what it knew."""
    before = (assigned("a", 1, 0), *committed("a", 1))
    assert kinds(*before, OffsetFetched(*WHERE, "a", GROUP, LEADER, 3, 0, "", -1)) == ["lost offset"]
    assert kinds(*before, OffsetFetched(*WHERE, "a", GROUP, REPLACED, 3, 0, "", -1)) == []
    assert kinds(*before, OffsetFetched(*WHERE, "a", GROUP, LEADER, 2, 0, "", -1)) == [], (
        "it began before the response came"
    )
    assert kinds(*before, OffsetFetched(*WHERE, "a", GROUP, LEADER, 3, 0, "a in 1", 1)) == []


def test_an_offset_that_was_refused_is_not_read() -> None:
    """Neither one in an earlier generation, nor one in an earlier epoch of a member whose coordinator assigns."""
    read = OffsetFetched(*WHERE, "a", GROUP, LEADER, 2, 0, "a in 1", 1)
    assert kinds(*committed("a", 1, "ILLEGAL_GENERATION"), read) == ["refused commit"]
    assert kinds(*committed("a", 1, "STALE_MEMBER_EPOCH"), read) == ["refused commit"]
    assert kinds(*committed("a", 1, "REQUEST_TIMED_OUT"), read) == []
