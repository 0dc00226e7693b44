"""Members of groups whose coordinator assigns the partitions: joining, reconciling, leaving, fencing (KIP-848)."""

from __future__ import annotations

import sys
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from kreplog.core.consumer_group_messages import (
    ConsumerMemberRecord,
    CurrentAssignmentRecord,
    DescribableTopics,
    TargetAssignmentRecord,
    TopicIdPartitions,
)
from kreplog.core.group_messages import (
    CommitPartition,
    DeleteGroupsRequest,
    GroupRecord,
    LeaveGroupRequest,
    ListedGroup,
    ListGroupsRequest,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetFetchGroup,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
    partition_of_group,
)
from kreplog.core.groups import consumer_membership
from kreplog.core.groups.assignments import to_assignment
from kreplog.core.groups.group import GROUP_BYTES
from kreplog.core.groups.subscribed_topics import LOSS_MS
from kreplog.errors import ErrorCode

from .consumers import CONFIG, NEEDS_RE2, REBALANCE_MS, SESSION_MS, Consumer, consumer_shell, described, settle
from .group_shell import GROUP, PARTITIONS, TOPIC, GroupShell

AT = partition_of_group(GROUP, PARTITIONS)


@pytest.fixture
def shell() -> GroupShell:
    return consumer_shell()


def member(shell: GroupShell, name: str, *topics: str, **fields: Any) -> Consumer:
    consumer = Consumer(shell, name, **fields)
    consumer.join(*topics)
    return consumer


class TestJoining:
    def test_the_first_member_gets_all_partitions(self, shell: GroupShell) -> None:
        consumer = Consumer(shell, "a")
        response = consumer.join()
        assert response is not None and response.member_id == "a" and response.member_epoch == 1
        assert response.heartbeat_interval_ms == CONFIG.group_consumer_heartbeat_interval_ms
        assert consumer.numbers == [0, 1, 2, 3]

    def test_the_coordinator_names_a_member_without_an_id(self, shell: GroupShell) -> None:
        consumer = Consumer(shell, "", needs_member_id=True)
        response = consumer.join()
        assert response is not None and response.member_id

    def test_nobody_is_answered_before_the_log_has_it(self, shell: GroupShell) -> None:
        shell.automatic = False
        consumer = Consumer(shell, "a")
        assert consumer.join() is None
        kinds = {type(record) for record in shell.logs[AT]}
        assert {ConsumerMemberRecord, TargetAssignmentRecord, CurrentAssignmentRecord} <= kinds
        shell.commit()
        consumer.take(shell.replies["heartbeat a"])
        assert consumer.numbers == [0, 1, 2, 3]

    def test_a_second_member_waits_until_partitions_are_revoked(self, shell: GroupShell) -> None:
        a, b = member(shell, "a"), member(shell, "b")
        assert b.epoch == 2 and b.numbers == []
        response = a.send()
        assert response is not None and a.epoch == 1 and len(a.numbers) == 2  # it has to revoke the others
        b.send()
        assert b.numbers == []
        a.send()  # which says nothing of what it owns
        b.send()
        assert b.numbers == [] and a.epoch == 1
        a.acknowledge()
        b.send()
        assert a.epoch == b.epoch == 2 and sorted(a.numbers + b.numbers) == [0, 1, 2, 3]
        assert described(shell).state == "Stable"

    @pytest.mark.parametrize("assignor", ["uniform", "range"])
    def test_members_choose_the_assignor(self, shell: GroupShell, assignor: str) -> None:
        shell.cluster.create("other", 3)
        members = [member(shell, name, "topic", "other", server_assignor=assignor) for name in "abc"]
        settle(*members)
        assert described(shell).assignor == assignor
        assert sorted(len(each.owned) for each in members) == [2, 2, 3]

    def test_a_group_may_be_full(self) -> None:
        shell = consumer_shell(replace(CONFIG, group_consumer_max_size=1))
        a, b = member(shell, "a"), member(shell, "b")
        assert (a.error, b.error) == (ErrorCode.NONE, ErrorCode.GROUP_MAX_SIZE_REACHED)

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"rebalance_timeout_ms": -1}, ErrorCode.INVALID_REQUEST),
            ({"owned": None}, ErrorCode.INVALID_REQUEST),
            ({"owned": (TopicIdPartitions("id-1", (0,)),)}, ErrorCode.INVALID_REQUEST),
            ({"subscribed_topics": None}, ErrorCode.INVALID_REQUEST),
            ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
            ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
            ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
            ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST),
            ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST),
            ({"server_assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
            ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, shell: GroupShell, fields: dict[str, Any], error: ErrorCode) -> None:
        assert member(shell, "a", **fields).error is error
        assert shell.group is None

    def test_a_lost_response_is_repeated(self, shell: GroupShell) -> None:
        a = member(shell, "a")
        again = member(shell, "a")
        assert (again.error, again.epoch, again.owned) == (ErrorCode.NONE, a.epoch, a.owned)

    def test_a_revocation_is_repeated_until_the_member_acknowledges_it(self, shell: GroupShell) -> None:
        """It has not had the response, and does not report what it owns."""
        a, b = member(shell, "a"), member(shell, "b")
        for _ in range(3):
            response = a.send()
            assert response is not None and response.assignment == to_assignment(a.owned)
        assert (len(a.owned), b.numbers) == (2, [])
        a.acknowledge()
        b.send()
        assert (len(a.owned), len(b.owned)) == (2, 2)
        response = a.send()
        assert response is not None and response.assignment is None

    def test_an_assignment_is_repeated_until_the_member_acknowledges_it(self, shell: GroupShell) -> None:
        a, b = member(shell, "a"), member(shell, "b")
        a.send()
        a.acknowledge()
        for _ in range(3):
            response = b.send()
            assert response is not None and response.assignment == to_assignment(b.owned)
        assert len(b.owned) == 2
        b.acknowledge()
        response = b.send()
        assert response is not None and response.assignment is None

    def test_a_repeated_join_acknowledges_nothing(self, shell: GroupShell) -> None:
        """The first copy of the join arrives late: the member has all partitions meanwhile."""
        a, b = member(shell, "a"), member(shell, "b")
        Consumer(shell, "a").join()
        b.send()
        assert b.numbers == [] and len(a.owned) == 4


class TestEpochs:
    def test_another_epoch_is_fenced(self, shell: GroupShell) -> None:
        a = member(shell, "a")
        for epoch, error in ((7, ErrorCode.FENCED_MEMBER_EPOCH), (0, ErrorCode.INVALID_REQUEST)):
            a.send(member_epoch=epoch, rebalance_timeout_ms=1, subscribed_topics=("topic",), owned=None)
            assert a.error is error
        a.send(member_epoch=7)
        assert a.error is ErrorCode.FENCED_MEMBER_EPOCH

    def test_the_epoch_before_does_with_a_part_of_what_it_owns(self, shell: GroupShell) -> None:
        a, b = member(shell, "a"), member(shell, "b")
        settle(a, b)
        assert a.epoch == 2
        a.send(member_epoch=1, owned=to_assignment(list(a.owned)[:1]))
        assert (a.error, a.epoch) == (ErrorCode.NONE, 2)
        a.send(member_epoch=1, owned=to_assignment(a.owned | b.owned))
        assert a.error is ErrorCode.FENCED_MEMBER_EPOCH
        a.send(member_epoch=1)
        assert a.error is ErrorCode.FENCED_MEMBER_EPOCH

    def test_the_epoch_before_does_with_what_the_lost_response_has_to_be_revoked(self, shell: GroupShell) -> None:
        """Nobody else can have that before the member has acknowledged it."""
        a, b = member(shell, "a"), member(shell, "b")
        a.send()
        acknowledged = a.owned
        c, d = member(shell, "c"), member(shell, "d")
        a.acknowledge()
        assert (len(acknowledged), len(a.owned), a.epoch) == (2, 1, 2)
        again = {"subscribed_topics": ("topic",), "rebalance_timeout_ms": REBALANCE_MS}
        a.send(member_epoch=1, owned=to_assignment(acknowledged), **again)
        assert (a.error, len(a.owned), a.epoch) == (ErrorCode.NONE, 1, 2)
        settle(a, b, c, d)
        assert [len(each.owned) for each in (a, b, c, d)] == [1, 1, 1, 1]

    def test_a_member_that_has_never_joined_is_unknown(self, shell: GroupShell) -> None:
        other = Consumer(shell, "x")
        other.epoch = 3
        other.send()
        assert other.error is ErrorCode.UNKNOWN_MEMBER_ID
        member(shell, "a")
        other.send()
        assert other.error is ErrorCode.UNKNOWN_MEMBER_ID

    def test_offsets_are_committed_and_read_in_the_members_epoch(self, shell: GroupShell) -> None:
        a = member(shell, "a")

        def commit(member_id: str, epoch: int) -> ErrorCode:
            request = OffsetCommitRequest(GROUP, epoch, member_id, None, (CommitPartition(TOPIC, 5),))
            ((_, error),) = shell.put("commit", request).partitions
            return ErrorCode(error)

        def fetch(member_id: str | None, epoch: int) -> ErrorCode:
            groups = (OffsetFetchGroup(GROUP, (TOPIC,), member_id, epoch),)
            return ErrorCode(shell.put("fetch", OffsetFetchRequest(groups)).groups[0].error)

        assert commit("a", a.epoch) is ErrorCode.NONE
        assert commit("a", 0) is ErrorCode.STALE_MEMBER_EPOCH
        assert commit("x", a.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
        assert commit("", -1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert shell.commit_pending(6) is ErrorCode.NONE  # before KIP-447
        assert fetch("a", a.epoch) is ErrorCode.NONE
        assert fetch("a", a.epoch + 1) is ErrorCode.STALE_MEMBER_EPOCH
        assert fetch("x", a.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
        assert fetch(None, -1) is ErrorCode.NONE
        a.leave()
        assert commit("", -1) is ErrorCode.NONE

    def test_a_producer_learns_of_another_epoch_by_a_code_that_it_knows(self, shell: GroupShell) -> None:
        """Producers take STALE_MEMBER_EPOCH for fatal below TxnOffsetCommit 6 (KIP-1319)."""
        a = member(shell, "a")

        def commit(member_id: str, epoch: int) -> ErrorCode:
            commits = (CommitPartition(TOPIC, 5),)
            request = TxnOffsetCommitRequest("id", GROUP, 7, 0, epoch, member_id, None, commits)
            ((_, error),) = shell.put("pending", request).partitions
            return ErrorCode(error)

        for epoch in (a.epoch - 1, a.epoch + 1):
            assert commit("a", epoch) is ErrorCode.ILLEGAL_GENERATION
        assert commit("x", a.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
        assert commit("a", a.epoch) is ErrorCode.NONE


class TestLeaving:
    def test_partitions_of_a_member_that_leaves_are_free(self, shell: GroupShell) -> None:
        a, b = member(shell, "a"), member(shell, "b")
        settle(a, b)
        response = a.leave()
        assert response is not None and response.member_epoch == -1
        assert described(shell).state == "Assigning"
        b.send()
        assert b.numbers == [0, 1, 2, 3] and b.epoch == 3

    def test_a_silent_member_is_removed(self, shell: GroupShell) -> None:
        a, b = member(shell, "a"), member(shell, "b")
        settle(a, b)
        shell.pass_time(SESSION_MS - 1)
        b.send()
        shell.pass_time(1)
        b.send()
        assert b.numbers == [0, 1, 2, 3]
        a.send()
        assert a.error is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_member_that_does_not_revoke_is_removed(self, shell: GroupShell) -> None:
        a, b = member(shell, "a"), member(shell, "b")
        a.send()
        for _ in range(REBALANCE_MS // 20_000):
            assert b.numbers == []
            shell.pass_time(20_000)
            a.send()
            b.send()
        b.send()
        assert a.error is ErrorCode.UNKNOWN_MEMBER_ID and b.numbers == [0, 1, 2, 3]

    def test_nothing_is_left_of_a_group_that_was_never_stored(self, shell: GroupShell) -> None:
        shell.automatic = False
        a = Consumer(shell, "a")
        a.join()
        shell.fail(ErrorCode.NOT_ENOUGH_REPLICAS)
        a.take(shell.replies["heartbeat a"])
        assert a.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        a.leave()
        assert shell.group_ids() == [] and shell.core.charged == 0


class TestStaticMembers:
    def test_a_static_member_returns_to_what_it_had(self, shell: GroupShell) -> None:
        a, b = member(shell, "a", instance_id="one"), member(shell, "b")
        settle(a, b)
        before = a.owned
        a.leave(-2)
        b.send()
        assert len(b.owned) == 2
        again = member(shell, "a2", instance_id="one")
        assert again.owned == before and again.epoch == 2 == b.epoch
        a.epoch = 2
        a.send(instance_id="one")
        assert a.error is ErrorCode.FENCED_INSTANCE_ID

    def test_an_instance_that_has_not_left_is_not_replaced(self, shell: GroupShell) -> None:
        member(shell, "a", instance_id="one")
        assert member(shell, "a2", instance_id="one").error is ErrorCode.UNRELEASED_INSTANCE_ID

    def test_a_static_member_that_stays_away_is_removed(self, shell: GroupShell) -> None:
        a, b = member(shell, "a", instance_id="one"), member(shell, "b")
        settle(a, b)
        a.leave(-2)
        shell.pass_time(SESSION_MS // 2)
        b.send()
        shell.pass_time(SESSION_MS // 2)
        b.send()
        assert len(b.owned) == 4

    def test_an_administrator_removes_static_members(self, shell: GroupShell) -> None:
        a, b = member(shell, "a", instance_id="one"), member(shell, "b")
        settle(a, b)
        identities = (MemberIdentity("", "one"), MemberIdentity("", "two"), MemberIdentity("b"))
        response = shell.put("remove", LeaveGroupRequest(GROUP, identities))
        unknown = ErrorCode.UNKNOWN_MEMBER_ID
        assert response.members == tuple(zip(identities, (ErrorCode.NONE, unknown, unknown), strict=True))
        a.send(instance_id="one")
        b.send()
        assert a.error is ErrorCode.UNKNOWN_MEMBER_ID and b.numbers == [0, 1, 2, 3]

    def test_an_unknown_instance_has_to_join(self, shell: GroupShell) -> None:
        member(shell, "b")
        a = Consumer(shell, "a")
        a.epoch = 1
        a.send(instance_id="one")
        assert a.error is ErrorCode.UNKNOWN_MEMBER_ID


class TestTopics:
    def test_new_partitions_are_assigned(self, shell: GroupShell) -> None:
        a = member(shell, "a")
        shell.cluster.create("topic", 6)
        a.send()
        assert a.numbers == [0, 1, 2, 3, 4, 5] and a.epoch == 2

    def test_a_topic_that_does_not_exist_yet_is_assigned_once_it_does(self, shell: GroupShell) -> None:
        a = member(shell, "a", "later")
        assert a.numbers == [] and a.epoch == 1
        shell.cluster.create("later", 2)
        a.send()
        assert a.numbers == [0, 1] and a.epoch == 2

    def test_a_topic_that_is_missing_for_a_moment_is_not_taken_away(self, shell: GroupShell) -> None:
        a = member(shell, "a")
        partitions = dict(shell.cluster.partitions)
        shell.cluster.delete(*(name for name in partitions if name.topic == "topic"))
        a.send()
        assert a.epoch == 1 and len(a.owned) == 4
        shell.cluster.create("other", 1)
        shell.pass_time(LOSS_MS - 1)
        a.send()
        assert a.epoch == 1
        shell.pass_time(1)
        a.send()
        assert a.numbers == []

    def test_another_subscription_begins_an_epoch(self, shell: GroupShell) -> None:
        shell.cluster.create("other", 2)
        a = member(shell, "a")
        a.send(subscribed_topics=("other",), owned=to_assignment(a.owned))
        assert a.numbers == [] and a.epoch == 1
        a.acknowledge()
        assert a.numbers == [0, 1] and a.epoch == 2


@NEEDS_RE2
class TestExpressions:
    def test_a_member_reads_all_topics_that_match_as_a_whole(self, shell: GroupShell) -> None:
        shell.cluster.create("topic-2", 1)
        shell.cluster.create("a-topic", 1)
        a = member(shell, "a", subscribed_topics=None, subscribed_regex="topic.*")
        assert len(a.owned) == 5
        shell.cluster.create("topic-3", 2)
        a.send()
        assert len(a.owned) == 7 and a.epoch == 2

    def test_expressions_match_what_the_client_may_describe(self, shell: GroupShell) -> None:
        """Also of topics that have matched before; to allow more resolves them again."""
        shell.cluster.create("topic-2", 1)
        a = member(
            shell, "a", subscribed_topics=None, subscribed_regex="topic.*", view=DescribableTopics("topic-2".__eq__, 1)
        )
        assert len(a.owned) == 1
        a.send(view=DescribableTopics(lambda _: True, 2))
        assert len(a.owned) == 5
        less = DescribableTopics("topic-2".__eq__, 3)
        a.send(view=less)
        a.send(view=less, owned=to_assignment(a.owned))
        assert len(a.owned) == 1

    def test_names_and_expression_count_both(self, shell: GroupShell) -> None:
        shell.cluster.create("other", 1)
        a = member(shell, "a", "topic", subscribed_regex="oth.r")
        assert len(a.owned) == 5
        a.send(subscribed_regex="", owned=to_assignment(a.owned))
        a.acknowledge()
        assert len(a.owned) == 4
        assert shell.group is not None and shell.group.consumer is not None and not shell.group.consumer.regexes

    @pytest.mark.parametrize("regex", ["(", "a{1001}", "(?=a)", r"(a)\1"])
    def test_what_re2_has_not_is_refused(self, shell: GroupShell, regex: str) -> None:
        assert member(shell, "a", subscribed_regex=regex).error is ErrorCode.INVALID_REGULAR_EXPRESSION

    def test_a_topic_that_is_missing_for_a_moment_matches_still(self, shell: GroupShell) -> None:
        a = member(shell, "a", subscribed_topics=None, subscribed_regex="top.*")
        known = {name: state for name, state in shell.cluster.partitions.items() if name.topic == "topic"}
        shell.cluster.delete(*known)
        shell.start()
        shell.lead()
        for _ in range(2):
            a.send()
            assert (a.epoch, len(a.owned)) == (1, 4)
            shell.cluster.restore(known)
            shell.pass_time(LOSS_MS)
            a.send()
            assert (a.epoch, len(a.owned)) == (1, 4)
            shell.cluster.delete(*known)
        a.send()
        shell.pass_time(LOSS_MS)
        settle(a)
        assert a.numbers == []

    def test_a_later_coordinator_has_the_expressions(self, shell: GroupShell) -> None:
        a = member(shell, "a", subscribed_topics=None, subscribed_regex="top.*")
        before = described(shell)
        shell.start()
        shell.lead()
        assert described(shell) == before
        a.acknowledge()
        assert a.epoch == 1


class TestFailover:
    def test_a_later_coordinator_has_all(self, shell: GroupShell) -> None:
        a, b = member(shell, "a", instance_id="one"), member(shell, "b")
        settle(a, b)
        before = described(shell)
        shell.start()
        shell.lead()
        assert described(shell) == before
        settle(a, b)
        assert (a.error, b.error) == (ErrorCode.NONE, ErrorCode.NONE)
        assert (a.epoch, b.epoch) == (2, 2) and sorted(a.numbers + b.numbers) == [0, 1, 2, 3]

    def test_its_metadata_may_be_late(self, shell: GroupShell) -> None:
        a = member(shell, "a")
        shell.start()
        known = {name: state for name, state in shell.cluster.partitions.items() if name.topic == "topic"}
        shell.cluster.delete(*known)
        shell.lead()
        a.send()
        b = member(shell, "b")
        a.send()
        assert len(a.owned) == 4
        assert described(shell).state == "Assigning"
        shell.cluster.restore(known)
        shell.pass_time(LOSS_MS)
        settle(a, b)
        assert (len(a.owned), len(b.owned)) == (2, 2)

    def test_members_expire_there_too(self, shell: GroupShell) -> None:
        member(shell, "a")
        shell.start()
        shell.lead()
        shell.pass_time(SESSION_MS)
        assert described(shell).members == ()

    def test_a_failed_append_is_repeated(self, shell: GroupShell) -> None:
        """What has failed may be committed later; nobody is answered before it is."""
        shell.automatic = False
        a = Consumer(shell, "a")
        a.join()
        shell.fail(ErrorCode.REQUEST_TIMED_OUT)
        a.take(shell.replies["heartbeat a"])
        assert a.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert a.join() is None
        shell.commit()
        a.take(shell.replies["heartbeat a"])
        assert (a.error, a.epoch) == (ErrorCode.NONE, 1)
        assert sum(isinstance(record, ConsumerMemberRecord) for record in shell.logs[AT]) == 2

    def test_who_waits_is_sent_to_the_next_coordinator(self, shell: GroupShell) -> None:
        shell.automatic = False
        a, b = Consumer(shell, "a"), Consumer(shell, "b")
        a.join()
        b.join()
        shell.resign(AT)
        b.take(shell.replies["heartbeat b"])
        assert b.error is ErrorCode.NOT_COORDINATOR
        shell.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        a.take(shell.replies["heartbeat a"])
        assert a.error is ErrorCode.NOT_COORDINATOR


class TestProtocols:
    @pytest.fixture
    def shell(self) -> GroupShell:
        """Of brokers where a group with members keeps its protocol."""
        return consumer_shell(replace(CONFIG, group_consumer_migration_policy="disabled"))

    def test_an_empty_classic_group_becomes_a_consumer_group(self, shell: GroupShell) -> None:
        (classic,) = shell.stable("c")
        assert member(shell, "a").error is ErrorCode.GROUP_ID_NOT_FOUND
        shell.pass_time(10_000)
        a = member(shell, "a")
        assert a.error is ErrorCode.NONE and len(a.owned) == 4
        assert shell.put("list", ListGroupsRequest()).groups == (ListedGroup(GROUP, "consumer", "Stable", "consumer"),)
        shell.start()
        shell.lead()
        a.send()
        assert a.error is ErrorCode.NONE
        assert shell.heartbeat(classic) is ErrorCode.UNKNOWN_MEMBER_ID

    def test_an_empty_consumer_group_becomes_a_classic_one(self, shell: GroupShell) -> None:
        a = member(shell, "a")
        response = shell.join("c")
        assert response is not None and response.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        a.leave()
        shell.stable("c")
        assert shell.put("list", ListGroupsRequest()).groups == (ListedGroup(GROUP, "consumer", "Stable", "classic"),)
        assert isinstance(shell.logs[AT][-1], GroupRecord)
        shell.start()
        shell.lead()
        assert shell.put("list", ListGroupsRequest((), ("consumer",))).groups == ()

    def test_a_deleted_group_leaves_nothing(self, shell: GroupShell) -> None:
        a = member(shell, "a")
        request = DeleteGroupsRequest((GROUP,))
        assert shell.put("delete", request).results == ((GROUP, ErrorCode.NON_EMPTY_GROUP),)
        a.leave()
        assert shell.put("delete", request).results == ((GROUP, ErrorCode.NONE),)
        assert shell.group_ids() == [] and shell.core.charged == 0
        shell.start()
        shell.lead()
        assert shell.group_ids() == [] and shell.core.charged == 0


def calls_of_a_heartbeat(shell: GroupShell, consumer: Consumer) -> int:
    """Calls of functions, also of compiled ones, that a heartbeat without changes takes."""
    count = 0

    def counted(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    consumer.send()
    sys.setprofile(counted)
    try:
        consumer.send()
    finally:
        sys.setprofile(None)
    return count


@NEEDS_RE2
def test_a_heartbeat_without_changes_costs_the_same_in_any_group() -> None:
    counts = []
    for members, topics in ((2, 1), (30, 1), (2, 30), (30, 30)):
        shell = consumer_shell()
        names = [f"t{number}" for number in range(topics)]
        for name in names:
            shell.cluster.create(name, 3)
        consumers = [member(shell, f"m{number}", *names, subscribed_regex="t.*") for number in range(members)]
        settle(*consumers, rounds=3)
        counts.append(calls_of_a_heartbeat(shell, consumers[0]))
    assert len(set(counts)) == 1


def test_a_large_group_is_assigned_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumer_membership, "LARGE", 6)
    shell = consumer_shell()
    a, b = member(shell, "a"), member(shell, "b")
    assert described(shell).assignment_epoch == 2
    c = member(shell, "c")
    assert (c.error, c.epoch, c.numbers) == (ErrorCode.NONE, 2, [])
    assert (described(shell).group_epoch, described(shell).assignment_epoch) == (3, 2)
    shell.pass_time(consumer_membership.LARGE_INTERVAL_MS)
    settle(a, b, c)
    assert sorted(a.numbers + b.numbers + c.numbers) == [0, 1, 2, 3] and c.numbers


def test_memory_is_charged_for_what_there_is() -> None:
    for seed in range(20):
        random, shell = Random(seed), consumer_shell()
        members = [Consumer(shell, name) for name in "abc"]
        for _ in range(60):
            consumer = random.choice(members)
            match random.randrange(5):
                case 0:
                    consumer.join(*random.sample(["topic", "other", "third"], random.randint(1, 3)))
                case 1:
                    consumer.leave()
                case 2:
                    shell.pass_time(random.choice((1000, SESSION_MS)))
                case 3:
                    shell.cluster.create(random.choice(("other", "third")), random.randint(1, 3))
                case _:
                    consumer.acknowledge()
            charged, group = shell.core.charged, shell.group
            if group is not None and group.consumer is not None:
                assert charged == GROUP_BYTES + len(GROUP) + group.consumer.size
                assert group.consumer.members or group.consumer.size == 0
            if random.random() < 0.1:
                shell.start()
                shell.lead()
                assert shell.core.charged == charged
