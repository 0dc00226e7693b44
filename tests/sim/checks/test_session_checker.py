"""FetchSessionChecker: what a broker may hold of a consumer's session as it responds."""

from __future__ import annotations

from kreplog.core.messages import CONSUMER, FetchPartition, FetchRequest, FetchResponse
from kreplog.errors import ErrorCode
from kreplog.sim.checks.session_checker import FetchSessionChecker
from kreplog.sim.clients.session_consumer import FetchByIds, Key
from kreplog.types import TopicPartition

A, B = ("a", 0), ("b", 0)


class Broker:
    """A broker that responds. held: its sessions, each with the keys of its partitions. found: kinds of violations."""

    def __init__(self) -> None:
        self.held: dict[int, list[Key]] = {}
        self.found: list[str] = []
        self._checker = FetchSessionChecker(1, self._session, lambda kind, _: self.found.append(kind))

    def _session(self, session_id: int) -> list[FetchPartition] | None:
        keys = self.held.get(session_id)
        return None if keys is None else [_partition(key) for key in keys]

    def responds(
        self,
        session: tuple[int, int],
        listed: tuple[Key, ...],
        forgotten: tuple[Key, ...] = (),
        *,
        session_id: int = 0,
        error: ErrorCode = ErrorCode.NONE,
    ) -> list[str]:
        request = FetchRequest(CONSUMER, -1, 0, 1, 100, tuple(map(_partition, listed)), (), *session)
        self._checker.responds(FetchByIds(request, forgotten), FetchResponse(error, session_id))
        return self.found


def _partition(key: Key) -> FetchPartition:
    return FetchPartition(TopicPartition("name", key[1]), key[0], -1, 0)


def test_a_session_holds_what_is_listed_and_not_forgotten() -> None:
    broker = Broker()
    broker.held[7] = [A, B]
    assert broker.responds((0, 0), (A, B), session_id=7) == []
    broker.held[7] = [A]
    assert broker.responds((7, 1), (), (B,), session_id=7) == []
    assert broker.responds((7, 2), (B,), session_id=7) == ["session differs"]


def test_a_session_that_lacks_what_its_consumer_lists_is_found() -> None:
    broker = Broker()
    broker.held[7] = [A]
    assert broker.responds((0, 0), (A, B), session_id=7) == ["session differs"]


def test_a_session_that_keeps_what_its_consumer_forgets_is_found() -> None:
    broker = Broker()
    broker.held[7] = [A, B]
    broker.responds((0, 0), (A, B), session_id=7)
    assert broker.responds((7, 1), (), (B,), session_id=7) == ["session differs"]


def test_a_session_that_was_evicted_while_its_fetch_waited_may_differ() -> None:
    assert Broker().responds((0, 0), (A,), session_id=7) == []


def test_a_session_that_ends_is_not_held() -> None:
    lost = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    ends: list[tuple[tuple[int, int], int, ErrorCode]] = [
        ((7, 1), 0, lost),
        ((7, 0), 8, ErrorCode.NONE),
        ((7, -1), 0, ErrorCode.NONE),
    ]
    for session, begun, error in ends:
        broker = Broker()
        broker.held[8] = []
        assert broker.responds(session, (), session_id=begun, error=error) == []
        broker.held[7] = []
        assert broker.responds(session, (), session_id=begun, error=error) == ["session left over"]


def test_a_session_goes_on_after_another_error() -> None:
    broker = Broker()
    broker.held[7] = [A]
    assert broker.responds((7, 3), (), error=ErrorCode.INVALID_FETCH_SESSION_EPOCH) == []
