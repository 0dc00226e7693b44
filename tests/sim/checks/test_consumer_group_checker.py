"""The checker of groups whose coordinator assigns: what members believe, event by event."""

from __future__ import annotations

from typing import Any

import pytest

from kreplog.core.group_messages import OFFSETS_TOPIC
from kreplog.sim.checks.consumer_group_checker import ConsumerGroupChecker
from kreplog.sim.history import EpochCommitted, MemberFenced, PartitionsOwned
from kreplog.types import TopicPartition

HOME = TopicPartition(OFFSETS_TOPIC, 0)
LEADER = 1


class Observed:
    """A checker, and the kinds of violations that it has found."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.deleted: set[str] = set()
        self.checker = ConsumerGroupChecker(
            lambda kind, text, partition: self.kinds.append(kind), lambda _: LEADER, self.deleted.__contains__
        )

    def owns(self, client: str, at_ms: int, *owned: str, until_ms: int = 1000, broker: int = LEADER) -> None:
        event = PartitionsOwned(at_ms, HOME, "", client, f"{client}-1", 3, broker, owned, until_ms)
        self.checker.observe(event)

    def fenced(self, client: str, at_ms: int, error: str = "FENCED_MEMBER_EPOCH", **fields: Any) -> None:
        values: dict[str, Any] = {"member_id": f"{client}-1", "epoch": 3, "broker": LEADER} | fields
        self.checker.observe(MemberFenced(at_ms, HOME, "", client, error=error, **values))


@pytest.fixture
def observed() -> Observed:
    return Observed()


def test_a_partition_has_one_owner_at_a_time(observed: Observed) -> None:
    observed.owns("a", 0, "t-0", "t-1")
    observed.owns("a", 10, "t-1")
    observed.owns("b", 20, "t-0")
    assert observed.kinds == []
    observed.owns("b", 30, "t-0", "t-1")
    assert observed.kinds == ["two owners"]


def test_a_deleted_partition_has_no_owner(observed: Observed) -> None:
    observed.deleted.add("t-0")
    observed.owns("a", 0, "t-0")
    observed.owns("b", 10, "t-0")
    assert observed.kinds == []


def test_ownership_ends_with_the_session(observed: Observed) -> None:
    observed.owns("a", 0, "t-0", until_ms=50)
    observed.owns("b", 50, "t-0")
    assert observed.kinds == []


def test_a_broker_that_leads_no_longer_lengthens_no_session(observed: Observed) -> None:
    observed.owns("a", 0, "t-0", until_ms=50)
    observed.owns("a", 40, "t-0", until_ms=90, broker=2)
    observed.owns("b", 60, "t-0")
    assert observed.kinds == []
    observed.owns("a", 70, "t-0", until_ms=99)
    assert observed.kinds == ["two owners"]


@pytest.mark.parametrize("error", ["UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH", "GROUP_ID_NOT_FOUND"])
def test_an_acknowledged_epoch_is_not_forgotten(observed: Observed, error: str) -> None:
    harmless: list[dict[str, Any]] = [{"broker": 2}, {"epoch": 0}, {"member_id": "else"}, {"error": "UNSTABLE"}]
    for number, fields in enumerate(harmless):
        observed.owns("a", 10 * number, "t-0")
        observed.fenced("a", 10 * number + 1, **fields)
    observed.owns("a", 50, "t-0", until_ms=60)
    observed.fenced("a", 60)
    assert observed.kinds == []
    observed.owns("a", 70, "t-0")
    observed.fenced("a", 71, error)
    assert observed.kinds == ["epoch lost"]


def test_a_coordinator_that_leads_again_may_have_expired_a_member(observed: Observed) -> None:
    """It was replaced without knowing, and missed the member, whose heartbeats went to its successor."""
    for broker in (LEADER, 2):
        observed.owns("a", broker, "t-0", broker=broker)
    observed.fenced("a", 10)
    assert observed.kinds == []
    observed.owns("a", 20, "t-0", broker=2)
    observed.owns("a", 30, "t-0")
    observed.fenced("a", 40)
    assert observed.kinds == ["epoch lost"], "it has heard the member since"


def test_commits_are_of_the_present_epoch(observed: Observed) -> None:
    for latest, error in ((3, "NONE"), (4, "STALE_MEMBER_EPOCH"), (-1, "UNKNOWN_MEMBER_ID")):
        observed.checker.observe(EpochCommitted(0, HOME, "", "a", "a-1", 3, latest, error))
    assert observed.kinds == []
    for latest in (4, -1):
        observed.checker.observe(EpochCommitted(0, HOME, "", "a", "a-1", 3, latest, "NONE"))
    assert observed.kinds == ["stale commit", "stale commit"]
