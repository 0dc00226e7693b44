"""The error codes of ElectLeaders: of the leadership that a partition has before an election and after it."""

from __future__ import annotations

import pytest

from kreplog.core.controller.preferred_elections import Leadership, election_error
from kreplog.errors import ErrorCode
from kreplog.types import NO_LEADER

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
