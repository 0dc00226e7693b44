"""Members and tools that take as much memory as they can: all of it is charged, and refused beyond the limit."""

from __future__ import annotations

import pytest

from kreplog.config import GroupConfig
from kreplog.core.group_messages import JoinGroupResponse
from kreplog.core.groups.shard import ACCOUNT
from kreplog.core.memory import MemoryAccount
from kreplog.core.timers import MIN_QUEUED, Deadline, Timers
from kreplog.errors import ErrorCode
from tests.core.groups.group_shell import OTHER, PARTITIONS, SESSION_MS, GroupShell, subscription

LIMIT = 200_000
"""Of the account, half of it for groups."""

FULL = ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.fixture
def shell() -> GroupShell:
    made = GroupShell(GroupConfig(group_initial_rebalance_delay_ms=0), MemoryAccount(LIMIT))
    made.lead()
    return made


def held(shell: GroupShell) -> int:
    assert shell.memory is not None
    held = shell.memory.held[ACCOUNT]
    assert held == shell.core.charged <= LIMIT // 2
    return held


def fill(shell: GroupShell) -> None:
    """Groups, until there is no room for another, nor for much else."""
    for count in range(LIMIT):
        response = shell.join("filler", group_id=f"filler {count}", requires_member_id=True)
        assert response is not None
        if response.error is FULL:
            return
    raise AssertionError("there is no limit")


def test_a_name_takes_the_memory_of_its_widest_character(shell: GroupShell) -> None:
    """A text takes four bytes of memory for each of its characters if one of them needs as many."""
    before = held(shell)
    shell.join("filler", group_id="a" * 8000, requires_member_id=True)
    ascii_bytes = held(shell) - before
    before = held(shell)
    shell.join("filler", group_id="a" * 7999 + "\N{OWL}", requires_member_id=True)
    assert held(shell) - before == ascii_bytes + 3 * 8000
    before = held(shell)
    assert shell.join("a" * 7999 + "\N{OWL}", requires_member_id=True)
    assert held(shell) - before > 4 * 8000


def test_names_of_new_members_are_charged(shell: GroupShell) -> None:
    """Of one group: each gets a member id that has its client id in it."""
    errors = [shell.join("x" * 30_000, requires_member_id=True) for _ in range(20)]
    assert {response.error for response in errors if response} == {ErrorCode.MEMBER_ID_REQUIRED, FULL}
    assert held(shell) > LIMIT // 4
    shell.pass_time(SESSION_MS)
    assert held(shell) == 0


def test_new_members_of_a_full_account_take_the_place_of_their_ids(shell: GroupShell) -> None:
    """Else the ids of several would keep each of them out, for ever: each waits for its turn with its id."""
    named = [shell.join(name, requires_member_id=True) for name in "abc"]
    assert shell.memory is not None
    shell.memory.limit = 2 * (held(shell) + 1000)
    for name, response in zip("abc", named, strict=True):
        assert response is not None
        shell.join(name, response.member_id)
    shell.pass_time(0)
    assert shell.group is not None
    assert (len(shell.group.members), len(shell.group.pending)) == (1, 2)
    held(shell)


def test_member_ids_fit_in_records(shell: GroupShell) -> None:
    """A client id may have as many bytes as a record has room for, of which its member id has more."""
    for client_id in ("x" * 32_767, "ä" * 16_383):
        response = shell.join(client_id, requires_member_id=True)
        assert response is not None and response.error is ErrorCode.MEMBER_ID_REQUIRED
        assert len(response.member_id.encode()) < 1 << 15


def test_a_member_cannot_grow_beyond_the_limit(shell: GroupShell) -> None:
    (member,) = shell.stable("a")
    fill(shell)
    before = held(shell)
    giant = (("range", subscription("topic", extra=b"x" * LIMIT)),)
    response = shell.join("a", member.member_id, protocols=giant)
    assert response is not None and response.error is FULL
    assert held(shell) == before
    assert shell.heartbeat(member) is ErrorCode.NONE


def test_a_static_member_cannot_grow_as_it_restarts(shell: GroupShell) -> None:
    shell.join("s", instance_id="s")
    shell.pass_time(0)
    member = shell.joined("s")
    shell.sync("s", member, (member.member_id, b"s"), instance_id="s")
    fill(shell)
    response = shell.join("again", instance_id="s", protocols=(("range", b"x" * LIMIT),))
    assert response is not None and response.error is FULL
    assert shell.group is not None and shell.group.static == {"s": member.member_id}, "it was replaced nevertheless"


def test_an_assignment_beyond_the_limit_begins_another_generation(shell: GroupShell) -> None:
    shell.join("a")
    shell.pass_time(0)
    member = shell.joined("a")
    response = shell.sync("a", member, (member.member_id, b"x" * LIMIT))
    assert response.error is FULL
    assert shell.heartbeat(member) is ErrorCode.REBALANCE_IN_PROGRESS
    held(shell)
    shell.join("a", member.member_id)
    again = shell.joined("a")
    assert shell.sync("a", again, (again.member_id, b"small")).assignment == b"small"


def test_the_memory_of_an_assignment_under_way_is_charged_once(shell: GroupShell) -> None:
    shell.join("a")
    shell.pass_time(0)
    member = shell.joined("a")
    before = held(shell)
    shell.automatic = False
    shell.sync("a", member, (member.member_id, b"x" * 1000))
    assert held(shell) == before + 1000
    shell.commit()
    assert held(shell) == before + 1000
    shell.join("a", member.member_id)
    again = shell.joined("a")
    shell.sync("a", again, (again.member_id, b"y" * 500))
    shell.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    for number in range(PARTITIONS):
        shell.resign(number)
    assert held(shell) == 0


def test_offsets_cannot_grow_beyond_the_limit(shell: GroupShell) -> None:
    """Those that take no more than before are still committed: others' floods do not stop a group."""
    assert shell.commit_offset(1) is ErrorCode.NONE
    fill(shell)
    assert shell.commit_offset(2) is ErrorCode.NONE
    assert shell.commit_offset(3, metadata="x" * 4000) is FULL
    assert shell.commit_offset(4, partition=OTHER, metadata="x" * 4000) is FULL
    assert shell.offset() == 2
    held(shell)


def test_commits_under_way_are_charged(shell: GroupShell) -> None:
    """Many at once, none of which is committed yet."""
    shell.commit_offset(0)
    shell.automatic = False
    errors = [shell.commit_offset(offset, metadata="\N{SNOWMAN}" * 1365) for offset in range(1, 100)]
    assert errors.count(None) == (LIMIT // 2 - held_before(shell)) // (4 * 1365) and FULL in errors
    shell.commit()
    held(shell)


def held_before(shell: GroupShell) -> int:
    """With one offset without metadata."""
    other = GroupShell(GroupConfig(group_initial_rebalance_delay_ms=0), MemoryAccount(LIMIT))
    other.lead()
    other.commit_offset(0)
    return held(other)


def test_a_protocol_type_of_any_length_is_refused(shell: GroupShell) -> None:
    response = shell.join("a", protocol_type="x" * 256)
    assert response == JoinGroupResponse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    assert shell.group_ids() == []


def test_deadlines_that_are_cancelled_do_not_pile_up() -> None:
    """As where a client gets member ids and leaves, with the longest session time-out."""
    timers, lasting = Timers(), Deadline(lambda now_ms: iter(()))  # type: ignore[arg-type,return-value]
    timers.set(lasting, 5)
    for _ in range(100 * MIN_QUEUED):
        deadline = Deadline(lambda now_ms: iter(()))  # type: ignore[arg-type,return-value]
        timers.set(deadline, 1_800_000)
        deadline.cancel()
    assert len(timers) <= MIN_QUEUED
    timers.set(deadline, 1_800_000)
    assert list(timers.due(1_800_000)) == [lasting, deadline]
    assert len(timers) == 0
