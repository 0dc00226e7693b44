"""ElectLeaders: which partitions need an election, and the error codes of those before and after it."""

from __future__ import annotations

import pytest

from kreplog.core.controller.preferred_elections import (
    Leadership,
    election_error,
    election_refusal,
    is_reported,
    to_elect,
)
from kreplog.errors import ErrorCode
from kreplog.types import NO_LEADER, TopicPartition

PREFERRED, OTHER, LEADERLESS = Leadership(1, 1), Leadership(2, 1), Leadership(NO_LEADER, 1)


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        (None, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, PREFERRED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (PREFERRED, PREFERRED, ErrorCode.ELECTION_NOT_NEEDED),
        (PREFERRED, OTHER, ErrorCode.ELECTION_NOT_NEEDED),
        (OTHER, PREFERRED, ErrorCode.NONE),
        (LEADERLESS, PREFERRED, ErrorCode.NONE),
        (OTHER, OTHER, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (OTHER, LEADERLESS, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (OTHER, None, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
    ],
)
def test_the_error_of_an_election(before: Leadership | None, after: Leadership | None, error: ErrorCode) -> None:
    """KIP-460. A partition that is deleted meanwhile has no preferred leader."""
    assert election_error(before, after) is error


def test_unclean_elections_are_not_for_clients_to_request() -> None:
    assert [election_refusal(kind) for kind in (0, 1, 2)] == [ErrorCode.NONE, *[ErrorCode.INVALID_REQUEST] * 2]


def test_partitions_that_exist_without_their_preferred_leader_need_an_election() -> None:
    found = dict(
        zip([TopicPartition("t", number) for number in range(4)], (PREFERRED, OTHER, None, LEADERLESS), strict=True)
    )
    assert to_elect(found) == [TopicPartition("t", 1), TopicPartition("t", 3)]


def test_a_request_for_all_partitions_reports_those_that_needed_an_election() -> None:
    for error in (ErrorCode.NONE, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE):
        assert is_reported(error, of_all=True) and is_reported(error, of_all=False)
    assert not is_reported(ErrorCode.ELECTION_NOT_NEEDED, of_all=True)
    assert is_reported(ErrorCode.ELECTION_NOT_NEEDED, of_all=False)
