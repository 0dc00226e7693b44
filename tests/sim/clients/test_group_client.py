"""A member of a group in the simulator, against a coordinator with scripted responses."""

from __future__ import annotations

from random import Random
from typing import Any

from kreplog.core import messages as m
from kreplog.core.group_messages import JoinGroupResponse, SyncGroupResponse
from kreplog.errors import ErrorCode
from kreplog.sim.clients.group_client import GROUP, member
from kreplog.sim.clients.member_offsets import home_of
from kreplog.sim.clients.workload import Call, ClientContext, Metadata, Settings, Switch
from kreplog.sim.history import GroupAssigned, GroupEvent, History
from kreplog.sim.machines.records import ModelCodec
from kreplog.types import LeaderAndIsr

COORDINATOR = 1
HOME = home_of(GROUP, 1)
DYNAMIC, STATIC = 2, 1
"""Seeds of a member without an instance id and of one with."""


def assignment(seed: int, *responses: Any) -> tuple[GroupAssigned, list[int]]:
    """What a member reports that gets these responses, and the places in the history where it sent each request.
    An event of another client is between any two of them."""
    history = History(lambda: 0)
    client = member(ClientContext("a", Settings(), history, ModelCodec(), Random(seed), [COORDINATOR], Switch()), 1)
    state = m.PartitionState(HOME, "id", LeaderAndIsr(COORDINATOR, 0, (COORDINATOR,)), (COORDINATOR,))
    script, sent = list(responses), []
    answer: Any = None
    while script:
        effect = client.send(answer)
        match effect:
            case Call():
                sent.append(len(history.events))
                answer = (script.pop(0),)
                history.add(GroupEvent(0, HOME, "", "another", GROUP))
            case Metadata():
                answer = ({COORDINATOR: None}, {HOME: state})
            case _:
                answer = None
    client.send(answer)
    return next(event for event in history.events if isinstance(event, GroupAssigned)), sent


def joined(member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(ErrorCode.NONE, member_id, 4, leader="another")


SYNCHRONIZED = SyncGroupResponse(ErrorCode.NONE, assignment=b"0")


def test_a_member_began_to_join_although_its_first_response_was_lost() -> None:
    """The group may have taken it, and lets it join again without a new generation."""
    required = JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, "a-1")
    event, sent = assignment(DYNAMIC, None, required, None, joined("a-1"), SYNCHRONIZED)
    assert (event.member_id, event.owner, event.generation) == ("a-1", "a-1", 4)
    assert event.since == sent[2]


def test_a_member_id_that_the_group_does_not_know_is_replaced() -> None:
    required, unknown = (
        JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, "a-1"),
        JoinGroupResponse(ErrorCode.UNKNOWN_MEMBER_ID),
    )
    other = JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, "a-2")
    event, sent = assignment(DYNAMIC, required, unknown, other, joined("a-2"), SYNCHRONIZED)
    assert event.since == sent[3]


def test_a_static_member_joins_with_the_id_of_the_response() -> None:
    event, sent = assignment(STATIC, None, joined("a-1"), None, joined("a-1"), SYNCHRONIZED)
    assert (event.member_id, event.owner) == ("a-1", "a")
    assert event.since == sent[1]
