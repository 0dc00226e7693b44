"""FetchSession, a client's side of KIP-227: what each request lists and forgets, and when a session begins again."""

from __future__ import annotations

from kreplog.client.fetch_session import FetchSession
from kreplog.core.messages import FetchPartition, FetchRequest, FetchResponse
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

A, B = TopicPartition("a", 0), TopicPartition("b", 0)


def wanted(**offsets: int) -> dict[TopicPartition, FetchPartition]:
    return {
        TopicPartition(topic, 0): FetchPartition(TopicPartition(topic, 0), f"id-{topic}", 1, offset)
        for topic, offset in offsets.items()
    }


def request(session: FetchSession, **offsets: int) -> FetchRequest:
    return session.next_request(wanted(**offsets), 500, 1, 1000)


def listed(made: FetchRequest) -> dict[str, int]:
    return {fetching.partition.topic: fetching.fetch_offset for fetching in made.partitions}


def begun() -> FetchSession:
    session = FetchSession()
    request(session, a=0, b=0)
    assert session.on_response(FetchResponse(ErrorCode.NONE, 77))
    return session


def test_the_first_request_lists_all_and_the_next_ones_what_changed() -> None:
    session = FetchSession()
    first = request(session, a=0, b=0)
    assert (first.session_id, first.session_epoch, listed(first)) == (0, 0, {"a": 0, "b": 0})
    session.on_response(FetchResponse(ErrorCode.NONE, 77))
    second = request(session, a=5, b=0)
    assert (second.session_id, second.session_epoch, listed(second), second.forgotten) == (77, 1, {"a": 5}, ())
    session.on_response(FetchResponse(ErrorCode.NONE, 77))
    third = request(session, a=5, b=0)
    assert (third.session_epoch, listed(third)) == (2, {})


def test_what_leaves_is_forgotten_by_its_id_and_may_come_back() -> None:
    session = begun()
    second = request(session, a=0)
    assert (listed(second), second.forgotten) == ({}, (B,))
    assert session.topic_id_of("b") == "id-b"
    assert (session.topic_of("id-a"), session.topic_of("id-b")) == ("a", None)
    session.on_response(FetchResponse(ErrorCode.NONE, 77))
    assert listed(request(session, a=0, b=0)) == {"b": 0}


def test_a_broker_without_sessions_gets_full_requests() -> None:
    session = FetchSession()
    for offset in range(3):
        made = request(session, a=offset, b=0)
        assert (made.session_id, made.session_epoch, listed(made)) == (0, 0, {"a": offset, "b": 0})
        assert session.on_response(FetchResponse(ErrorCode.NONE, 0))


def test_a_lost_session_begins_again_with_all() -> None:
    for error in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH):
        session = begun()
        request(session, a=1, b=0)
        assert not session.on_response(FetchResponse(error, 0))
        made = request(session, a=1, b=0)
        assert (made.session_id, made.session_epoch, listed(made)) == (0, 0, {"a": 1, "b": 0})


def test_an_answer_for_another_session_is_of_use_and_ends_ours() -> None:
    session = begun()
    request(session, a=1, b=0)
    assert session.on_response(FetchResponse(ErrorCode.NONE, 78))
    assert request(session, a=1, b=0).session_epoch == 0


def test_the_epoch_goes_on_at_one_behind_its_last() -> None:
    session = begun()
    session._epoch = 2**31 - 1
    request(session, a=1, b=0)
    session.on_response(FetchResponse(ErrorCode.NONE, 77))
    assert request(session, a=1, b=0).session_epoch == 1
