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

    def owns(
        self, client: str, at_ms: int, *owned: str, until_ms: int = 1000, broker: int = LEADER, epoch: int = 3
    ) -> None:
        event = PartitionsOwned(at_ms, HOME, "", client, f"{client}-1", epoch, broker, owned, until_ms)
        self.checker.observe(event)

    def commits(self, client: str, at_ms: int, **fields: Any) -> None:
        """The response to a commit in epoch 3, sent by a member that was in epoch 4."""
        values: dict[str, Any] = {"epoch": 3, "latest": 4, "error": "NONE", "committed": "t-0", "sent_ms": at_ms}
        event = EpochCommitted(at_ms, HOME, "", client, f"{client}-1", **(values | fields))
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
    harmless: list[dict[str, Any]] = [{"broker": 2}, {"member_id": "else"}, {"error": "UNSTABLE"}]
    for number, fields in enumerate(harmless):
        observed.owns("a", 10 * number, "t-0")
        observed.fenced("a", 10 * number + 1, **fields)
    observed.owns("a", 50, "t-0", until_ms=60)
    observed.fenced("a", 60)
    assert observed.kinds == []
    observed.owns("a", 70, "t-0")
    observed.fenced("a", 71, error)
    assert observed.kinds == ["epoch lost"]


def test_a_member_that_joins_is_not_refused_for_its_epoch(observed: Observed) -> None:
    for error in ("UNKNOWN_MEMBER_ID", "UNRELEASED_INSTANCE_ID"):
        observed.owns("a", 0, "t-0")
        observed.fenced("a", 1, error, epoch=0)
    assert observed.kinds == []
    observed.fenced("a", 2, epoch=0)
    assert observed.kinds == ["join refused"]


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


def test_no_commit_is_of_a_partition_that_another_has_owned_since(observed: Observed) -> None:
    observed.owns("a", 0, "t-0", "t-1")
    observed.commits("a", 10)
    observed.owns("a", 20, "t-1")
    observed.owns("b", 30, "t-0")
    observed.commits("a", 31, error="STALE_MEMBER_EPOCH")
    observed.commits("a", 31, committed="t-1")
    observed.commits("a", 31, sent_ms=30)
    observed.commits("a", 31, latest=3)
    observed.commits("a", 31, epoch=2)
    observed.commits("b", 31)
    assert observed.kinds == []
    for latest in (4, -1):
        observed.commits("a", 31, latest=latest)
    assert observed.kinds == ["stale commit", "stale commit"]
    observed.deleted.add("t-0")
    observed.commits("a", 31)
    assert len(observed.kinds) == 2


def test_a_partition_that_returns_in_another_epoch_has_been_anothers(observed: Observed) -> None:
    observed.owns("a", 0, "t-0")
    observed.owns("a", 5)
    observed.owns("b", 10, "t-0", until_ms=20)
    observed.owns("a", 20, "t-0", epoch=4)
    observed.commits("a", 30, epoch=4, latest=5)
    assert observed.kinds == []
    observed.commits("a", 30, latest=5)
    assert observed.kinds == ["stale commit"]


def test_a_partition_that_a_member_keeps_is_its_own_in_each_of_its_epochs(observed: Observed) -> None:
    for at_ms, epoch in ((0, 3), (10, 4)):
        observed.owns("a", at_ms, "t-0", epoch=epoch)
    observed.commits("a", 20)
    assert observed.kinds == []


def test_whom_a_former_coordinator_assigns_a_partition_does_not_own_it(observed: Observed) -> None:
    observed.owns("a", 0, "t-0")
    observed.owns("b", 10, "t-0", broker=2)
    observed.commits("a", 20)
    assert observed.kinds == []
