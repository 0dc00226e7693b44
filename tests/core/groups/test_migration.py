"""Groups that change their protocol while they have members (KIP-848): what members of both own and commit."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from random import Random
from typing import Any

import pytest

from kreplog.core.consumer_group_messages import ConsumerMemberRecord, DescribableTopics, MemberType
from kreplog.core.effects import AppendGroupRecords
from kreplog.core.group_messages import (
    CommitPartition,
    GroupRecord,
    HeartbeatRequest,
    JoinGroupRequest,
    LogRecord,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from kreplog.core.groups import migration
from kreplog.core.groups.assignments import to_assignment
from kreplog.core.groups.consumer_group import RECORD_BYTES
from kreplog.core.groups.group import GROUP_BYTES
from kreplog.core.groups.subscription import read_assignment, read_subscription, write_assignment, write_subscription
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition

from .consumers import NEEDS_RE2, Consumer, consumer_shell, described, settle
from .consumers import SESSION_MS as CONSUMER_SESSION_MS
from .group_shell import GROUP, REBALANCE_MS, SESSION_MS, TOPIC, GroupShell
from .mixed_groups import AT, QUICK, Classic, all_numbers, formed, kind, metadata, settled


@pytest.fixture
def shell() -> GroupShell:
    return consumer_shell(QUICK)


@pytest.mark.parametrize("eager", [True, False])
class TestRolling:
    def test_a_group_is_upgraded_and_downgraded_member_by_member(self, shell: GroupShell, eager: bool) -> None:
        a, b = Classic(shell, "a", eager=eager), Classic(shell, "b", eager=eager)
        formed(shell, a, b)
        assert (a.numbers, b.numbers, kind(shell)) == ([0, 2], [1, 3], "classic")
        assert a.commit(5) is ErrorCode.NONE
        c = Consumer(shell, "c")
        c.join()
        assert (c.error, c.epoch, c.numbers, kind(shell)) == (ErrorCode.NONE, 2, [], "consumer")
        settled(a, b, c)
        assert all_numbers(a, b, c) == [0, 1, 2, 3] and c.numbers and a.numbers and b.numbers
        assert a.leave() is ErrorCode.NONE
        settled(b, c)
        assert all_numbers(b, c) == [0, 1, 2, 3] and len(c.numbers) == 2 and shell.offset() == 5
        d = Consumer(shell, "d")
        d.join()
        assert b.leave() is ErrorCode.NONE
        settled(c, d)
        assert all_numbers(c, d) == [0, 1, 2, 3] and len(c.numbers) == 2
        e = Classic(shell, "e", eager=eager)
        e.join()
        e.sync()
        settled(c, d, e)
        assert all_numbers(c, d, e) == [0, 1, 2, 3] and e.numbers
        c.leave()
        settled(d, e)
        assert all_numbers(d, e) == [0, 1, 2, 3] and kind(shell) == "consumer"
        before = e.generation
        d.leave()
        assert kind(shell) == "classic" and shell.offset() == 5
        assert e.commit(6) is ErrorCode.NONE  # before it learns of the rebalance
        assert e.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS
        e.join()
        assert e.joined is not None and e.joined.leader == e.member_id and e.generation == before + 1
        e.sync((e.member_id, write_assignment([TopicPartition("topic", number) for number in range(4)], 1)))
        assert e.numbers == [0, 1, 2, 3] and shell.offset() == 6


class TestUpgrade:
    def test_a_partition_is_assigned_once_its_classic_owner_has_given_it_up(self, shell: GroupShell) -> None:
        a = Classic(shell, "a")
        formed(shell, a)
        c = Consumer(shell, "c")
        c.join()
        for _ in range(3):
            c.acknowledge()
            assert c.numbers == [] and a.numbers == [0, 1, 2, 3]
        a.follow()
        assert len(a.numbers) == 2
        c.acknowledge()
        assert c.numbers == []  # its owner knows, and may not have done it yet
        a.follow()
        c.acknowledge()
        assert all_numbers(a, c) == [0, 1, 2, 3] and len(c.numbers) == 2

    def test_an_eager_member_has_given_up_all_when_it_joins(self, shell: GroupShell) -> None:
        a, c = Classic(shell, "a", eager=True), Consumer(shell, "c")
        formed(shell, a)
        c.join()
        a.follow()
        c.acknowledge()
        assert all_numbers(a, c) == [0, 1, 2, 3] and len(c.numbers) == 2

    def test_a_partition_with_two_owners_is_refused(self, shell: GroupShell) -> None:
        a, b, c = Classic(shell, "a"), Classic(shell, "b"), Consumer(shell, "c")
        a.join()
        b.join()
        shell.pass_time(0)
        a.take_joined()
        b.take_joined()
        both = write_assignment([TOPIC], 1)
        a.sync((a.member_id, both), (b.member_id, both))
        c.join()
        assert c.error is ErrorCode.GROUP_ID_NOT_FOUND and "two of its members" in (c.message or "")

    def test_what_a_member_had_to_revoke_in_the_classic_group_it_still_has_to(self, shell: GroupShell) -> None:
        a, b = Classic(shell, "a"), Classic(shell, "b")
        formed(shell, a)
        b.join()
        a.follow()  # joins with what it owns
        a.take_joined()
        half = [(a.member_id, write_assignment([TopicPartition("topic", number) for number in (0, 1)], 1))]
        a.sync(*half)
        a.owned |= {TopicPartition("topic", number) for number in (2, 3)}  # its listener still works on these
        c = Consumer(shell, "c")
        c.join()
        b.take_joined()
        settled(b, c)
        assert not {2, 3} & {*b.numbers, *c.numbers}
        a.owned = frozenset(partition for partition in a.owned if partition.partition < 2)
        settled(a, b, c)
        assert all_numbers(a, b, c) == [0, 1, 2, 3]

    def test_its_records_are_one_batch_and_the_classic_ones_end_with_it(self, shell: GroupShell) -> None:
        formed(shell, Classic(shell, "a"), Classic(shell, "b"))
        shell.automatic = False
        Consumer(shell, "c").join()
        ((_, _, append),) = shell.waiting
        assert append.records[0] == GroupRecord(GROUP, None)
        assert sum(isinstance(record, ConsumerMemberRecord) for record in append.records) == 3

    def test_members_are_described_with_their_protocol(self, shell: GroupShell) -> None:
        a = Classic(shell, "a")
        formed(shell, a)
        Consumer(shell, "c").join()
        types = {member.member_id: member.member_type for member in described(shell).members}
        assert types == {a.member_id: MemberType.CLASSIC, "c": MemberType.CONSUMER}

    def test_who_waits_for_a_generation_has_to_join_again(self, shell: GroupShell) -> None:
        a, b = Classic(shell, "a"), Classic(shell, "b")
        formed(shell, a)
        b.join()
        assert b.joined is None
        c = Consumer(shell, "c")
        c.join()
        b.take_joined()
        assert b.error is ErrorCode.REBALANCE_IN_PROGRESS and b.member_id
        b.join()
        b.sync()
        settled(a, b, c)
        assert all_numbers(a, b, c) == [0, 1, 2, 3]

    def test_refusals(self) -> None:
        texts = {}
        for name, config, fields in (
            ("disabled", {"group_consumer_migration_policy": "Disabled"}, {}),
            ("downgrade", {"group_consumer_migration_policy": "DOWNGRADE"}, {}),
            ("over 1", {"group_consumer_max_size": 1}, {}),
            ("type other", {}, {"protocol_type": "other"}),
            ("not that of a consumer", {}, {"protocols": (("range", b"?"),)}),
        ):
            shell = consumer_shell(replace(QUICK, **config))
            a, b = Classic(shell, "a", **fields), Classic(shell, "b", **fields)
            a.join()
            b.join()
            c = Consumer(shell, "c")
            c.join()
            texts[name] = c.message
            assert c.error is ErrorCode.GROUP_ID_NOT_FOUND and name.lower() in (c.message or "").lower()
            assert kind(shell) == "classic" and shell.group is not None and len(shell.group.members) == 2
        assert len(set(texts.values())) == len(texts)

    def test_a_topic_that_is_not_known_yet_is_waited_for(self, shell: GroupShell) -> None:
        a = Classic(shell, "a")
        formed(shell, a)
        known = dict(shell.cluster.partitions)
        shell.cluster.delete(*(TopicPartition("topic", number) for number in range(4)))
        c = Consumer(shell, "c")
        c.join()
        assert c.error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and kind(shell) == "classic"
        shell.cluster.restore(known)
        c.join()
        settled(a, c)
        assert all_numbers(a, c) == [0, 1, 2, 3] and len(c.numbers) == 2

    def test_a_refused_member_leaves_the_group_as_it_was(self) -> None:
        shell = consumer_shell(replace(QUICK, group_consumer_max_size=2))
        a, b = Classic(shell, "a"), Classic(shell, "b")
        formed(shell, a, b)
        c = Consumer(shell, "c")
        c.join()
        assert c.error is ErrorCode.GROUP_MAX_SIZE_REACHED and kind(shell) == "classic"
        assert (a.heartbeat(), b.heartbeat()) == (ErrorCode.NONE, ErrorCode.NONE)
        log = len(shell.logs[AT])
        shell.pass_time(SESSION_MS + REBALANCE_MS)
        assert log < len(shell.logs[AT]) and shell.group is not None and shell.group.is_empty

    def test_members_too_large_for_a_batch_are_refused(
        self, shell: GroupShell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        formed(shell, Classic(shell, "a"), Classic(shell, "b"))
        monkeypatch.setattr(migration, "MAX_BYTES", 2 * RECORD_BYTES)
        c = Consumer(shell, "c")
        c.join()
        assert c.error is ErrorCode.GROUP_ID_NOT_FOUND and "too large" in (c.message or "")

    def test_a_static_member_restarts_with_the_consumer_protocol(self, shell: GroupShell) -> None:
        a, b = Classic(shell, "a", instance_id="i"), Classic(shell, "b")
        formed(shell, a, b)
        c = Consumer(shell, "c", instance_id="i")
        c.join()
        assert c.error is ErrorCode.NONE
        settled(b, c)
        assert c.numbers == [0, 2] and b.numbers == [1, 3]
        assert a.heartbeat() is ErrorCode.FENCED_INSTANCE_ID and a.commit(1) is ErrorCode.UNKNOWN_MEMBER_ID


class TestClassicMembers:
    @pytest.fixture
    def mixed(self, shell: GroupShell) -> tuple[GroupShell, Classic, Consumer]:
        """A settled group with a member of each protocol."""
        a, c = Classic(shell, "a"), Consumer(shell, "c")
        formed(shell, a)
        c.join()
        settled(a, c)
        assert len(a.numbers) == len(c.numbers) == 2
        return shell, a, c

    def test_commits_are_refused_in_another_generation(self, mixed: tuple[GroupShell, Classic, Consumer]) -> None:
        shell, a, c = mixed
        assert a.commit(3) is ErrorCode.NONE and shell.offset() == 3
        assert a.commit(4, a.generation + 1) is ErrorCode.ILLEGAL_GENERATION
        commits = (CommitPartition(TOPIC, 4),)
        response = shell.put("commit", OffsetCommitRequest(GROUP, c.epoch + 1, "c", None, commits))
        assert response.partitions[0][1] is ErrorCode.STALE_MEMBER_EPOCH and shell.offset() == 3

    def test_only_members_of_the_classic_protocol_commit_without_member_epochs(
        self, mixed: tuple[GroupShell, Classic, Consumer]
    ) -> None:
        shell, a, c = mixed

        def commit(member_id: str, epoch: int) -> ErrorCode:
            commits = (CommitPartition(TOPIC, 4),)
            request = OffsetCommitRequest(GROUP, epoch, member_id, None, commits, has_member_epoch=False)
            ((_, error),) = shell.put("commit", request).partitions
            return ErrorCode(error)

        for epoch in (c.epoch, c.epoch - 1):
            assert commit("c", epoch) is ErrorCode.UNSUPPORTED_VERSION
        assert commit("x", c.epoch) is ErrorCode.UNKNOWN_MEMBER_ID
        assert commit(a.member_id, a.generation + 1) is ErrorCode.ILLEGAL_GENERATION
        assert shell.offset() == -1
        assert commit(a.member_id, a.generation) is ErrorCode.NONE and shell.offset() == 4

    def test_a_silent_member_expires_by_its_own_session(self, mixed: tuple[GroupShell, Classic, Consumer]) -> None:
        shell, a, c = mixed
        assert SESSION_MS < CONSUMER_SESSION_MS
        shell.pass_time(SESSION_MS)
        assert a.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
        settle(c)
        assert c.numbers == [0, 1, 2, 3]

    def test_a_member_that_does_not_rejoin_is_removed(self, mixed: tuple[GroupShell, Classic, Consumer]) -> None:
        shell, a, c = mixed
        d = Consumer(shell, "d")
        d.join()
        errors = []
        for _ in range(REBALANCE_MS // 5000 + 1):
            errors.append(a.heartbeat())
            settle(c, d, rounds=1)
            shell.pass_time(5000)
        assert errors[0] is ErrorCode.REBALANCE_IN_PROGRESS and errors[-1] is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_member_that_does_not_synchronize_is_removed(self, mixed: tuple[GroupShell, Classic, Consumer]) -> None:
        shell, a, c = mixed
        a.join()
        for _ in range(REBALANCE_MS // 5000):
            assert a.heartbeat() is ErrorCode.NONE
            settle(c, rounds=1)
            shell.pass_time(5000)
        assert a.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID

    def test_new_partitions_reach_it(self, mixed: tuple[GroupShell, Classic, Consumer]) -> None:
        shell, a, c = mixed
        shell.cluster.create("topic", 6)
        settled(a, c)
        assert all_numbers(a, c) == [0, 1, 2, 3, 4, 5] and len(a.numbers) == 3

    def test_requests_that_are_refused(self, mixed: tuple[GroupShell, Classic, Consumer]) -> None:
        shell, a, c = mixed

        def joined(**fields: Any) -> ErrorCode:
            response = shell.join("x", **{"protocols": (("range", metadata(["topic"])),), **fields})
            assert response is not None
            return response.error

        assert joined(protocol_type="other") is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert joined(protocols=()) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert joined(protocols=(("range", b"\0"),)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert joined(protocols=(("sticky", metadata(["topic"])),)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        assert joined(session_timeout_ms=1) is ErrorCode.INVALID_SESSION_TIMEOUT
        assert joined(requires_member_id=True) is ErrorCode.MEMBER_ID_REQUIRED
        assert joined(member_id="y", instance_id="i") is ErrorCode.UNKNOWN_MEMBER_ID
        other = Classic(shell, "c")
        other.member_id, other.generation = "c", c.epoch
        assert other.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID and other.leave() is ErrorCode.UNKNOWN_MEMBER_ID
        other.sync()
        assert other.error is ErrorCode.UNKNOWN_MEMBER_ID
        assert shell.put("sync", SyncGroupRequest(GROUP, a.generation, a.member_id, protocol="other")).error is (
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        )
        a.generation -= 1
        assert a.heartbeat() is ErrorCode.ILLEGAL_GENERATION

    def test_a_policy_may_refuse_it(self) -> None:
        shell = consumer_shell(replace(QUICK, group_consumer_migration_policy="disabled"))
        Consumer(shell, "c").join()
        a = Classic(shell, "a")
        a.join()
        assert a.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def test_a_static_member_restarts_with_the_classic_protocol(self, shell: GroupShell) -> None:
        c, d = Consumer(shell, "c", instance_id="i"), Consumer(shell, "d")
        c.join()
        d.join()
        settle(c, d)
        before = c.numbers
        c.leave(-2)
        a = Classic(shell, "a", instance_id="i")
        a.join()
        a.sync()
        settled(a, d)
        assert a.numbers == before and all_numbers(a, d) == [0, 1, 2, 3]


class TestDowngrade:
    @pytest.fixture
    def mixed(self, shell: GroupShell) -> tuple[GroupShell, Classic, Consumer]:
        a, c = Classic(shell, "a"), Consumer(shell, "c")
        formed(shell, a)
        c.join()
        settled(a, c)
        return shell, a, c

    def test_an_expired_member_was_the_last(self, mixed: tuple[GroupShell, Classic, Consumer]) -> None:
        shell, a, _ = mixed
        for _ in range(CONSUMER_SESSION_MS // 5000):
            a.follow()
            shell.pass_time(5000)
        assert kind(shell) == "classic" and a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS

    def test_a_policy_may_keep_the_group(self) -> None:
        shell = consumer_shell(replace(QUICK, group_consumer_migration_policy="upgrade"))
        a, c = Classic(shell, "a"), Consumer(shell, "c")
        formed(shell, a)
        c.join()
        c.leave()
        settled(a)
        assert (kind(shell), a.numbers) == ("consumer", [0, 1, 2, 3])
        shell.cluster.create("topic", 6)
        settled(a)
        assert a.numbers == [0, 1, 2, 3, 4, 5]

    def test_its_records_are_one_batch(self, mixed: tuple[GroupShell, Classic, Consumer]) -> None:
        shell, a, c = mixed
        shell.automatic = False
        c.send(member_epoch=-1)
        ((_, _, append),) = shell.waiting
        record = append.records[-1]
        assert isinstance(record, GroupRecord) and record.value is not None
        assert [member.member_id for member in record.value.members] == [a.member_id]
        assert all(each.value is None for each in append.records[:-1])

    def test_requests_wait_until_it_is_committed(self, mixed: tuple[GroupShell, Classic, Consumer]) -> None:
        shell, a, c = mixed
        shell.automatic = False
        c.send(member_epoch=-1)
        assert shell.put("beat a", HeartbeatRequest(GROUP, a.generation, a.member_id)) is None
        shell.automatic = True
        shell.commit()
        assert shell.replies["beat a"].error is ErrorCode.REBALANCE_IN_PROGRESS

    def test_requests_are_sent_to_the_next_coordinator(self, mixed: tuple[GroupShell, Classic, Consumer]) -> None:
        shell, a, c = mixed
        shell.automatic = False
        c.send(member_epoch=-1)
        shell.put("beat a", HeartbeatRequest(GROUP, a.generation, a.member_id))
        shell.resign(AT)
        assert shell.replies["beat a"].error is ErrorCode.NOT_COORDINATOR

    @pytest.mark.parametrize("is_in_log", [True, False])
    def test_one_that_fails_is_tried_again(self, mixed: tuple[GroupShell, Classic, Consumer], is_in_log: bool) -> None:
        """Whether or not the records of the append that has failed are committed after all."""
        shell, a, c = mixed
        shell.automatic = False
        length = len(shell.logs[AT])
        c.send(member_epoch=-1)
        shell.fail(ErrorCode.REQUEST_TIMED_OUT)
        if not is_in_log:
            del shell.logs[AT][length:]
        shell.automatic = True
        shell.pass_time(1000)
        assert kind(shell) == "classic"
        shell.start()
        shell.lead()
        assert kind(shell) == "classic" and a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS

    def test_one_that_fails_leaves_a_consumer_group_for_a_new_member(
        self, mixed: tuple[GroupShell, Classic, Consumer]
    ) -> None:
        shell, a, c = mixed
        shell.automatic = False
        c.send(member_epoch=-1)
        shell.fail(ErrorCode.REQUEST_TIMED_OUT)
        shell.automatic = True
        d = Consumer(shell, "d")
        d.join()
        settled(a, d)
        shell.start()
        shell.lead()
        settled(a, d)
        assert kind(shell) == "consumer" and all_numbers(a, d) == [0, 1, 2, 3] and len(a.numbers) == 2
        assert a.heartbeat() is ErrorCode.NONE
        a.leave()
        d.leave()
        shell.start()
        shell.lead()
        assert shell.group is None or shell.group.is_empty

    def test_a_loaded_group_has_its_members_rejoin(self, mixed: tuple[GroupShell, Classic, Consumer]) -> None:
        shell, a, c = mixed
        c.leave()
        shell.start()
        shell.lead()
        assert kind(shell) == "classic" and a.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS

    def test_memory_is_released(self, mixed: tuple[GroupShell, Classic, Consumer]) -> None:
        shell, a, c = mixed
        c.leave()
        charged = shell.core.charged
        shell.start()
        shell.lead()
        assert shell.core.charged == charged
        a.leave()
        assert shell.group is not None and shell.core.charged == GROUP_BYTES + len(GROUP)  # its end is stored


def state(shell: GroupShell) -> Any:
    """What a group is, besides what is not stored: rebalances, timers."""
    group = shell.group
    if group is None:
        return None
    consumer = group.consumer
    if consumer is None:
        return sorted(group.members)
    return consumer.members, consumer.target, consumer.current, consumer.epoch, consumer.target_epoch


def loaded(log: list[LogRecord]) -> GroupShell:
    """A coordinator that has loaded these records."""
    again = consumer_shell(QUICK)
    again.logs[AT], again.committed[AT] = log, len(log)
    again.start()
    again.lead()
    return again


def test_each_prefix_of_the_batches_is_a_whole_group() -> None:
    """A coordinator that fails at any moment: the next finds the members in one of the two protocols, and what the
    former has answered."""
    shell = consumer_shell(QUICK)
    a, b, c = Classic(shell, "a"), Classic(shell, "b"), Consumer(shell, "c")
    ends: list[int] = []
    perform, put = shell._perform, shell.put

    def recorded(effect: Any, follow: Any) -> Any:
        answer = perform(effect, follow)
        if isinstance(effect, AppendGroupRecords) and effect.partition.partition == AT:
            ends.append(len(shell.logs[AT]))
        return answer

    def compared(name: Any, request: Any) -> Any:
        response = put(name, request)
        if ends and not isinstance(request, JoinGroupRequest | SyncGroupRequest):
            assert state(loaded(list(shell.logs[AT]))) == state(shell)
        return response

    shell._perform, shell.put = recorded, compared  # type: ignore[method-assign]  # spies on this shell alone
    formed(shell, a, b)
    a.commit(7)
    c.join()
    settled(a, b, c)
    c.leave()
    a.heartbeat()
    a.join()
    b.join()
    a.take_joined()
    a.sync()
    assert len(ends) > 6
    kinds = []
    for end in ends:
        again = loaded(shell.logs[AT][:end])
        group = again.group
        assert group is not None
        consumer = group.consumer
        kinds.append("classic" if consumer is None else "consumer")
        members = set(group.members) if consumer is None else set(consumer.members)
        assert {a.member_id, b.member_id} <= members and not (group.members and consumer)
        assert consumer is None or set(consumer.current) == set(consumer.target) == members
    assert [kind for kind, _ in groupby(kinds)] == ["classic", "consumer", "classic"]


def test_hostile_bytes_are_no_subscription_and_no_assignment() -> None:
    random = Random(1)
    whole = metadata(["topic", "other"], [TOPIC])
    found = read_subscription(whole)
    assert found is not None and found.topics == {"topic", "other"} and found.owned == {TOPIC}
    assert read_assignment(write_assignment([TOPIC], 1)) == frozenset((TOPIC,))
    for end in range(len(whole)):
        assert read_subscription(whole[:end]) is None
    refused = 0
    for _ in range(2000):
        changed = bytearray(whole)
        changed[random.randrange(len(whole))] = random.randrange(256)
        subscription, assignment = read_subscription(bytes(changed)), read_assignment(bytes(changed))
        refused += subscription is None
        if subscription is not None:
            again = read_subscription(write_subscription(subscription.topics, subscription.owned))
            assert again is not None and again[1:3] == subscription[1:3]
        if assignment is not None:
            assert read_assignment(write_assignment(assignment, 1)) == assignment
    assert 0 < refused < 2000


@NEEDS_RE2
def test_a_member_of_the_classic_protocol_resolves_no_expression() -> None:
    """Its requests have no view: the others of the group would get topics that they may not describe."""
    shell = consumer_shell(QUICK)
    view = DescribableTopics("other".__eq__, 1)
    regex = Consumer(shell, "a", subscribed_topics=None, subscribed_regex="other|hidden", view=view)
    regex.join()
    classic = Classic(shell, "b")
    classic.join()
    other, _ = (shell.cluster.create(name, 1) for name in ("other", "hidden"))
    classic.heartbeat()
    for _ in range(3):
        regex.send(view=view, owned=to_assignment(regex.owned))
        classic.follow()
    assert regex.owned == {(other, 0)}
