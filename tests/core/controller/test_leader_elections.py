"""ElectLeaders: which partitions need an election, and the error codes of those before and after it."""

from __future__ import annotations

import pytest

from kreplog.core.controller.leader_elections import (
    LeaderAndPreferred,
    election_error,
    is_reported,
    requested_election,
    to_elect,
)
from kreplog.errors import ErrorCode
from kreplog.types import NO_LEADER, ElectionType, TopicPartition

PREFERRED, OTHER, LEADERLESS = LeaderAndPreferred(1, 1), LeaderAndPreferred(2, 1), LeaderAndPreferred(NO_LEADER, 1)


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
def test_the_error_of_a_preferred_election(
    before: LeaderAndPreferred | None, after: LeaderAndPreferred | None, error: ErrorCode
) -> None:
    """KIP-460. A partition that is deleted meanwhile has no preferred leader."""
    assert election_error(ElectionType.PREFERRED, before, after) is error


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        (None, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (PREFERRED, PREFERRED, ErrorCode.ELECTION_NOT_NEEDED),
        (OTHER, LEADERLESS, ErrorCode.ELECTION_NOT_NEEDED),
        (LEADERLESS, PREFERRED, ErrorCode.NONE),
        (LEADERLESS, OTHER, ErrorCode.NONE),
        (LEADERLESS, LEADERLESS, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
        (LEADERLESS, None, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ],
)
def test_the_error_of_an_unclean_election(
    before: LeaderAndPreferred | None, after: LeaderAndPreferred | None, error: ErrorCode
) -> None:
    """KIP-460."""
    assert election_error(ElectionType.UNCLEAN, before, after) is error


def test_other_types_of_elections_are_refused() -> None:
    found = [requested_election(number) for number in (-1, 0, 1, 2)]
    assert found == [None, ElectionType.PREFERRED, ElectionType.UNCLEAN, None]


def test_which_partitions_need_an_election() -> None:
    numbers = [TopicPartition("t", number) for number in range(4)]
    found = dict(zip(numbers, (PREFERRED, OTHER, None, LEADERLESS), strict=True))
    assert to_elect(ElectionType.PREFERRED, found) == [numbers[1], numbers[3]]
    assert to_elect(ElectionType.UNCLEAN, found) == [numbers[3]]


def test_a_request_for_all_partitions_reports_those_that_needed_an_election() -> None:
    for error in (ErrorCode.NONE, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE):
        assert is_reported(error, of_all=True) and is_reported(error, of_all=False)
    assert not is_reported(ErrorCode.ELECTION_NOT_NEEDED, of_all=True)
    assert is_reported(ErrorCode.ELECTION_NOT_NEEDED, of_all=False)
