"""Groups with members of both protocols where things go wrong: hostile requests, topics that are missing for a moment,
appends that fail."""

from __future__ import annotations

import pytest

from kreplog.core.group_messages import HeartbeatRequest, LeaveGroupRequest, MemberIdentity, SyncGroupRequest
from kreplog.core.groups.consumer_group import MAX_SUBSCRIPTION_BYTES
from kreplog.errors import ErrorCode

from .consumers import Consumer, consumer_shell
from .group_shell import GROUP, GroupShell
from .mixed_groups import QUICK, Classic, formed, kind, metadata, settled

LARGE = b"x" * MAX_SUBSCRIPTION_BYTES
"""Metadata that leave no room for the topics."""


@pytest.fixture
def shell() -> GroupShell:
    return consumer_shell(QUICK)


def mixed(shell: GroupShell, instance_id: str | None = None) -> tuple[Classic, Consumer]:
    """A settled group with a member of each protocol."""
    a, c = Classic(shell, "a", instance_id=instance_id), Consumer(shell, "c")
    formed(shell, a)
    c.join()
    settled(a, c)
    assert len(a.numbers) == len(c.numbers) == 2
    return a, c


class TestHostileRequests:
    def test_an_instance_id_alone_names_a_member_only_to_remove_it(self, shell: GroupShell) -> None:
        a, _ = mixed(shell, "i")
        for request in (HeartbeatRequest(GROUP, a.generation, "", "i"), SyncGroupRequest(GROUP, a.generation, "", "i")):
            assert shell.put("hostile", request).error is ErrorCode.FENCED_INSTANCE_ID
        assert a.heartbeat() is ErrorCode.NONE
        response = shell.put("leave", LeaveGroupRequest(GROUP, (MemberIdentity("", "i"), MemberIdentity("", "j"))))
        assert [error for _, error in response.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]

    def test_a_member_that_no_record_holds_is_refused(self, shell: GroupShell) -> None:
        """One batch has what has changed of all members: it would fail for all of them."""
        a, c = mixed(shell)
        for protocols in (
            (("range", metadata(["topic"])), ("other", LARGE)),
            (("range", metadata(["topic"])), ("n" * MAX_SUBSCRIPTION_BYTES, b"")),
        ):
            for member_id in ("", a.member_id):
                response = shell.join("x", member_id, protocols=protocols)
                assert response is not None and response.error is ErrorCode.INVALID_REQUEST
        settled(a, c)
        assert (a.error, c.error) == (ErrorCode.NONE, ErrorCode.NONE)

    def test_a_group_with_a_member_that_no_record_holds_is_not_upgraded(self, shell: GroupShell) -> None:
        """It would be refused as it rejoins."""
        a, c = Classic(shell, "a", protocols=(("range", metadata(["topic"])), ("other", LARGE))), Consumer(shell, "c")
        formed(shell, a)
        c.join()
        assert c.error is ErrorCode.GROUP_ID_NOT_FOUND and a.member_id in (c.message or "")
        assert kind(shell) == "classic" and a.heartbeat() is ErrorCode.NONE
