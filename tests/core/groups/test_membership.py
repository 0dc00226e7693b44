"""Members of groups: generations, sessions, fencing, static members. KIP-345, KIP-389, KIP-394, KIP-814."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kreplog.config import GroupConfig
from kreplog.core.group_messages import (
    GroupRecord,
    JoinGroupResponse,
    LeaveGroupRequest,
    MemberIdentity,
)
from kreplog.core.groups import states
from kreplog.core.groups.group import Group
from kreplog.core.groups.states import GroupState
from kreplog.errors import ErrorCode, InvariantError
from tests.core.groups.group_shell import GROUP, REBALANCE_MS, SESSION_MS, GroupShell, subscription


@pytest.fixture
def shell() -> GroupShell:
    shell = GroupShell()
    shell.lead()
    return shell


def state(shell: GroupShell) -> GroupState | None:
    return None if shell.group is None else shell.group.state


def test_the_table_of_states_is_that_of_the_docstring() -> None:
    printed = dict(re.findall(r"^(\w+) +from (.+)$", states.table(), re.M))
    described = dict(re.findall(r"^    (\w+) .* from (.+)$", states.__doc__ or "", re.M))
    assert described.pop("Dead") == "all others"
    assert set(printed.pop("Dead").split(", ")) == set(GroupState) - {GroupState.DEAD}
    assert {state: set(old.split(", ")) for state, old in described.items()} == {
        state: set(old.split(", ")) for state, old in printed.items()
    }
    assert {*printed, "Dead"} == set(GroupState)


@pytest.mark.parametrize("old", GroupState)
@pytest.mark.parametrize("new", GroupState)
def test_a_group_enters_a_state_as_the_table_says(old: GroupState, new: GroupState) -> None:
    group = Group("g")
    group.state = old
    if old in states.GROUP_TRANSITIONS[new]:
        group.enter(new)
        assert group.state is new
    else:
        with pytest.raises(InvariantError, match=f"group g: {old} to {new} is no transition"):
            group.enter(new)
        assert group.state is old


def test_members_share_a_generation(shell: GroupShell) -> None:
    first, second = shell.stable("a", "b")
    assert (first.generation_id, second.generation_id) == (1, 1)
    assert first.leader == second.leader == first.member_id
    assert [member.member_id for member in first.members] == [first.member_id, second.member_id]
    assert second.members == ()
    assert shell.replies["sync a"].assignment == b"a"
    assert shell.replies["sync b"].assignment == b"b"
    assert shell.heartbeat(first) is shell.heartbeat(second) is ErrorCode.NONE
    assert state(shell) is GroupState.STABLE


def test_the_first_generation_waits_for_more_members() -> None:
    shell = GroupShell(GroupConfig(group_initial_rebalance_delay_ms=3000))
    shell.lead()
    assert shell.join("a") is None
    shell.pass_time(2999)
    assert shell.join("b") is None
    shell.pass_time(3000)
    assert "join a" not in shell.replies, "b has come in the first three seconds, so there are three more"
    shell.pass_time(1)
    assert shell.joined("a").generation_id == shell.joined("b").generation_id == 1


def test_an_assignment_is_stored_before_anyone_gets_it(shell: GroupShell) -> None:
    shell.automatic = False
    first, _ = shell.stable("a", "b")
    assert "sync a" not in shell.replies and "sync b" not in shell.replies
    assert shell.heartbeat(first) is ErrorCode.NONE
    shell.commit()
    assert shell.replies["sync b"].assignment == b"b"


def test_an_assignment_that_cannot_be_stored_begins_another_generation(shell: GroupShell) -> None:
    shell.automatic = False
    first, _ = shell.stable("a", "b")
    shell.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert shell.replies["sync a"].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert shell.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_new_member_makes_the_others_rejoin(shell: GroupShell) -> None:
    (first,) = shell.stable("a")
    assert shell.join("b") is None
    assert shell.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    again = shell.join("a", first.member_id)
    assert again is not None and again.generation_id == 2
    assert shell.joined("b").generation_id == 2


def test_a_member_that_does_not_rejoin_is_removed(shell: GroupShell) -> None:
    first, second = shell.stable("a", "b", session_timeout_ms=600_000)
    shell.join("a", first.member_id, protocols=(("range", subscription("other")),))
    shell.pass_time(REBALANCE_MS - 1)
    assert "join a" not in shell.replies
    shell.pass_time(1)
    assert [member.member_id for member in shell.joined("a").members] == [first.member_id]
    assert shell.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_loses_its_session(shell: GroupShell) -> None:
    first, second = shell.stable("a", "b")
    shell.pass_time(SESSION_MS - 1)
    assert shell.heartbeat(first) is ErrorCode.NONE
    shell.pass_time(1)
    assert shell.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert shell.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_never_requests_its_assignment_is_removed(shell: GroupShell) -> None:
    """KAFKA-10101."""
    shell.join("a", session_timeout_ms=600_000)
    shell.join("b", session_timeout_ms=600_000)
    shell.pass_time(0)
    first, second = shell.joined("a"), shell.joined("b")
    shell.sync("a", first, (first.member_id, b"x"))
    shell.pass_time(REBALANCE_MS)
    assert shell.heartbeat(second) is ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_of_an_earlier_generation_is_refused(shell: GroupShell) -> None:
    (first,) = shell.stable("a")
    shell.join("a", first.member_id)
    assert shell.joined("a").generation_id == 2, "the leader may have a generation begun at any time"
    assert shell.heartbeat(first) is ErrorCode.ILLEGAL_GENERATION
    assert shell.sync("a", first).error is ErrorCode.ILLEGAL_GENERATION


def test_a_lost_response_to_a_join_is_repeated(shell: GroupShell) -> None:
    first, second = shell.stable("a", "b")
    again = shell.join("b", second.member_id)
    assert again is not None and again.generation_id == 1 and again.members == ()
    assert shell.sync("b", second).assignment == b"b"
    assert shell.heartbeat(first) is ErrorCode.NONE


def test_a_new_member_gets_its_id_first(shell: GroupShell) -> None:
    """KIP-394."""
    refused = shell.join("a", requires_member_id=True)
    assert refused is not None and refused.error is ErrorCode.MEMBER_ID_REQUIRED
    assert refused.member_id.startswith("a-")
    assert shell.join("a", refused.member_id, requires_member_id=True) is None
    shell.pass_time(0)
    assert shell.joined("a").member_id == refused.member_id


def test_a_name_that_nobody_joins_with_leaves_nothing(shell: GroupShell) -> None:
    for count in range(50):
        shell.join("a", requires_member_id=True, group_id=f"group {count}")
    assert sum(len(shard.groups) for shard in shell.core.shards.values()) == 50
    shell.pass_time(SESSION_MS)
    assert sum(len(shard.groups) for shard in shell.core.shards.values()) == 0
    assert not any(shell.logs.values())


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"session_timeout_ms": 5999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"member_id": "unknown"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_an_illegal_join_is_refused(shell: GroupShell, fields: dict[str, Any], error: ErrorCode) -> None:
    refused = shell.join("a", **fields)
    assert refused is not None and refused.error is error
    assert not any(shard.groups for shard in shell.core.shards.values())


def test_members_without_a_common_protocol_are_refused(shell: GroupShell) -> None:
    shell.stable("a")
    refused = shell.join("b", protocols=(("sticky", b""),))
    assert refused is not None and refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    refused = shell.join("b", protocol_type="connect")
    assert refused is not None and refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_is_what_most_prefer_of_what_all_support(shell: GroupShell) -> None:
    both = (("sticky", b""), ("range", b""))
    shell.join("a", protocols=both)
    shell.join("b", protocols=both)
    shell.join("c", protocols=(("range", b""), ("sticky", b""), ("own", b"")))
    shell.pass_time(0)
    assert shell.joined("c").protocol == "sticky"


def test_a_full_group_refuses_members() -> None:
    """KIP-389."""
    shell = GroupShell(GroupConfig(group_initial_rebalance_delay_ms=0, group_max_size=2))
    shell.lead()
    first, _ = shell.stable("a", "b")
    refused = shell.join("c")
    assert refused is not None and refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert shell.heartbeat(first) is ErrorCode.NONE


def test_the_last_member_leaves_an_empty_group(shell: GroupShell) -> None:
    (first,) = shell.stable("a")
    left = shell.put("leave", LeaveGroupRequest(GROUP, (MemberIdentity(first.member_id),)))
    assert left.members == ((MemberIdentity(first.member_id), ErrorCode.NONE),)
    assert state(shell) is GroupState.EMPTY
    (stored,) = [record for record in shell.logs[shard_number(shell)][-1:] if isinstance(record, GroupRecord)]
    assert stored.value is not None and stored.value.members == () and stored.value.generation_id == 2
    assert shell.heartbeat(first) is ErrorCode.UNKNOWN_MEMBER_ID


def shard_number(shell: GroupShell) -> int:
    return next(number for number, shard in shell.core.shards.items() if GROUP in shard.groups)


def test_who_has_left_is_unknown(shell: GroupShell) -> None:
    first, second = shell.stable("a", "b")
    nobody = MemberIdentity("nobody")
    left = shell.put("leave", LeaveGroupRequest(GROUP, (MemberIdentity(second.member_id), nobody)))
    assert dict(left.members)[nobody] is ErrorCode.UNKNOWN_MEMBER_ID
    assert shell.heartbeat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    left = shell.put("leave", LeaveGroupRequest("no group", (nobody,)))
    assert left.members == ((nobody, ErrorCode.UNKNOWN_MEMBER_ID),)


class TestStaticMembers:
    """KIP-345."""

    def test_one_that_restarts_takes_over_without_a_rebalance(self, shell: GroupShell) -> None:
        (leader,) = shell.stable("a")
        shell.join("s", instance_id="s")
        shell.join("a", leader.member_id)
        member = shell.joined("s")
        leader = shell.joined("a")
        shell.sync("s", member, instance_id="s")
        shell.sync("a", leader, (member.member_id, b"s"), (leader.member_id, b"a"))
        again = shell.join("s", instance_id="s")
        assert again is not None and again.error is ErrorCode.NONE
        assert again.generation_id == member.generation_id and again.member_id != member.member_id
        assert shell.heartbeat(leader) is ErrorCode.NONE, "no rebalance"
        assert shell.sync("s", again, instance_id="s").assignment == b"s"
        assert shell.sync("s", member, instance_id="s").error is ErrorCode.FENCED_INSTANCE_ID
        assert shell.heartbeat(member) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_leader_that_restarts_does_not_assign_again(self, shell: GroupShell) -> None:
        """KIP-814: unless its version has SkipAssignment, the response does not name it as the leader."""
        (member,) = shell.stable("s", instance_id="s")
        again = shell.join("s", instance_id="s")
        assert isinstance(again, JoinGroupResponse)
        assert again.leader == member.member_id != again.member_id and not again.members
        again = shell.join("s", instance_id="s", can_skip_assignment=True)
        assert isinstance(again, JoinGroupResponse)
        assert again.leader == again.member_id and again.skip_assignment and len(again.members) == 1

    def test_one_with_other_topics_begins_a_generation(self, shell: GroupShell) -> None:
        (member,) = shell.stable("s", instance_id="s")
        again = shell.join("s", instance_id="s", protocols=(("range", subscription("other")),))
        assert again is not None and again.generation_id == member.generation_id + 1

    def test_one_is_removed_by_its_instance_id(self, shell: GroupShell) -> None:
        """KIP-571."""
        (member,) = shell.stable("s", instance_id="s")
        shell.put("leave", LeaveGroupRequest(GROUP, (MemberIdentity("", "s"),)))
        assert shell.heartbeat(member) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_the_waiting_request_of_a_fenced_one_is_answered(self, shell: GroupShell) -> None:
        leader, member = shell.stable("a", "b", instance_id=None)
        shell.join("s", instance_id="s")
        shell.join("t", instance_id="s")
        assert shell.joined("s").error is ErrorCode.FENCED_INSTANCE_ID
        shell.join("a", leader.member_id)
        shell.join("b", member.member_id)
        assert shell.joined("t").error is ErrorCode.NONE
        assert len(shell.joined("a").members) == 3
