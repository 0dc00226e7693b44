"""Groups with members of both protocols where things go wrong: hostile requests, topics that are missing for a moment,
appends that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kreplog.core.consumer_group_messages import STATIC_LEAVE_EPOCH, MemberState
from kreplog.core.group_messages import (
    GroupRecord,
    HeartbeatRequest,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from kreplog.core.groups import migration
from kreplog.core.groups.consumer_group import MAX_SUBSCRIPTION_BYTES, RECORD_BYTES, ConsumerGroup
from kreplog.core.groups.consumer_membership import REWRITE_MS
from kreplog.core.groups.group import GROUP_BYTES
from kreplog.core.groups.subscribed_topics import ClusterTopics
from kreplog.core.groups.subscription import write_assignment
from kreplog.core.memory import MemoryAccount
from kreplog.errors import ErrorCode
from kreplog.types import TopicPartition
from kreplog.wire import consumer_group_records
from kreplog.wire.group_records import encode_batch

from .consumers import Consumer, consumer_shell, settle
from .group_shell import GROUP, REBALANCE_MS, TOPIC, GroupShell
from .mixed_groups import AT, QUICK, Classic, all_numbers, formed, kind, metadata, settled

LARGE = b"x" * MAX_SUBSCRIPTION_BYTES
"""Metadata that leave no room for the topics."""


MAX_MESSAGE_BYTES = 1_048_588
"""The default of max.message.bytes."""

FOUR = tuple(TopicPartition("topic", number) for number in range(4))


@pytest.fixture
def shell() -> GroupShell:
    return consumer_shell(QUICK)


def mixed(shell: GroupShell, instance_id: str | None = None, *, eager: bool = False) -> tuple[Classic, Consumer]:
    """A settled group with a member of each protocol."""
    a, c = Classic(shell, "a", eager=eager, instance_id=instance_id), Consumer(shell, "c")
    formed(shell, a)
    c.join()
    settled(a, c)
    assert len(a.numbers) == len(c.numbers) == 2
    return a, c


class TestHostileRequests:
    def test_an_instance_id_alone_names_a_member_only_to_remove_it(self, shell: GroupShell) -> None:
        a, _ = mixed(shell, "i")
        for request in (HeartbeatRequest(GROUP, a.generation, "", "i"), SyncGroupRequest(GROUP, a.generation, "", "i")):
            assert shell.put("hostile", request).error is ErrorCode.FENCED_INSTANCE_ID
        assert a.heartbeat() is ErrorCode.NONE
        response = shell.put("leave", LeaveGroupRequest(GROUP, (MemberIdentity("", "i"), MemberIdentity("", "j"))))
        assert [error for _, error in response.members] == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]

    def test_a_member_that_no_record_holds_is_refused(self, shell: GroupShell) -> None:
        """One batch has what has changed of all members: it would fail for all of them."""
        a, c = mixed(shell)
        for protocols in (
            (("range", metadata(["topic"])), ("other", LARGE)),
            (("range", metadata(["topic"])), ("n" * MAX_SUBSCRIPTION_BYTES, b"")),
        ):
            for member_id in ("", a.member_id):
                response = shell.join("x", member_id, protocols=protocols)
                assert response is not None and response.error is ErrorCode.INVALID_REQUEST
        settled(a, c)
        assert (a.error, c.error) == (ErrorCode.NONE, ErrorCode.NONE)

    def test_a_group_with_a_member_that_no_record_holds_is_not_upgraded(self, shell: GroupShell) -> None:
        """It would be refused as it rejoins."""
        a, c = Classic(shell, "a", protocols=(("range", metadata(["topic"])), ("other", LARGE))), Consumer(shell, "c")
        formed(shell, a)
        c.join()
        assert c.error is ErrorCode.GROUP_ID_NOT_FOUND and a.member_id in (c.message or "")
        assert kind(shell) == "classic" and a.heartbeat() is ErrorCode.NONE

    def test_made_up_partitions_of_a_member_take_no_memory(self, shell: GroupShell) -> None:
        a, c = Classic(shell, "a"), Consumer(shell, "c")
        formed(shell, a)
        a.owned = frozenset(TopicPartition("topic", number) for number in range(10_000))
        a.join()
        a.sync((a.member_id, write_assignment(FOUR, 1)))
        charged = shell.core.charged
        c.join()
        assert (c.error, shell.core.charged) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, charged)
        a.heartbeat()
        a.join()
        a.sync((a.member_id, write_assignment(FOUR, 1)))
        c.join()
        assert c.error is ErrorCode.NONE

    def test_a_group_is_not_upgraded_without_memory_for_its_members(self) -> None:
        memory = MemoryAccount()
        shell = GroupShell(QUICK, memory)
        shell.cluster.create("topic", 4)
        shell.lead()
        a, c = Classic(shell, "a"), Consumer(shell, "c")
        formed(shell, a)
        charged = shell.core.charged
        for room, error in ((4000, ErrorCode.COORDINATOR_NOT_AVAILABLE), (10_000, ErrorCode.NONE)):
            memory.limit = 2 * (charged + room)  # of which groups may take a half; a new member takes some 2,700 bytes
            c.join()
            assert (c.error, kind(shell)) == (error, "consumer" if error is ErrorCode.NONE else "classic")
            assert memory.held.total() == shell.core.charged

    def test_a_static_member_of_the_classic_protocol_does_not_leave_by_a_heartbeat(self, shell: GroupShell) -> None:
        a, c = mixed(shell, "i")
        other = Consumer(shell, a.member_id, instance_id="i")
        other.leave(STATIC_LEAVE_EPOCH)
        assert other.error is ErrorCode.INVALID_REQUEST
        c.leave()
        assert kind(shell) == "classic" and shell.group is not None and shell.group.generation > 0

    @pytest.mark.parametrize("is_mixed", [True, False])
    def test_a_member_that_is_listed_twice_has_left(self, shell: GroupShell, is_mixed: bool) -> None:
        a = mixed(shell)[0] if is_mixed else Classic(shell, "a")
        if not is_mixed:
            formed(shell, a)
        response = shell.put("leave", LeaveGroupRequest(GROUP, 2 * (MemberIdentity(a.member_id),)))
        assert response.members == ((MemberIdentity(a.member_id), ErrorCode.NONE),)


class TestMissingTopics:
    """Metadata lack topics for a moment, as after a new controller."""

    def test_what_a_member_owns_of_a_missing_topic_it_has_not_revoked(self, shell: GroupShell) -> None:
        a, c = Classic(shell, "a"), Consumer(shell, "c")
        formed(shell, a)
        c.join()
        a.heartbeat()
        a.join()
        known = dict(shell.cluster.partitions)
        shell.cluster.delete(*FOUR)
        a.join()
        shell.cluster.restore(known)
        c.acknowledge()
        assert (a.numbers, c.numbers) == ([0, 1, 2, 3], [])
        a.sync()
        settled(a, c)
        assert all_numbers(a, c) == [0, 1, 2, 3] and len(c.numbers) == 2

    @pytest.mark.parametrize("is_loaded", [True, False])
    def test_what_a_member_owns_of_a_missing_topic_survives_a_downgrade(
        self, shell: GroupShell, is_loaded: bool
    ) -> None:
        a, c = mixed(shell, eager=True)
        known = dict(shell.cluster.partitions)
        shell.cluster.delete(*FOUR)
        if is_loaded:
            shell.start()
            shell.lead()
        c.leave()
        assert kind(shell) == ("consumer" if is_loaded else "classic")  # the next coordinator has no name for it yet
        shell.cluster.restore(known)
        a.heartbeat()
        assert kind(shell) == "classic"
        d = Consumer(shell, "d")
        d.join()
        d.acknowledge()
        assert d.error is ErrorCode.NONE and not {*d.numbers} & {*a.numbers}
        settled(a, d)
        assert all_numbers(a, d) == [0, 1, 2, 3] and len(d.numbers) == 2

    @pytest.mark.parametrize("missing", [0, 1])
    def test_what_a_member_had_to_revoke_of_a_missing_topic_is_not_forgotten_by_an_upgrade(
        self, shell: GroupShell, missing: int
    ) -> None:
        """Of a topic that is missing, or has fewer partitions."""
        topic_id = shell.cluster.create("other", 2)
        other = TopicPartition("other", 1)
        a = Classic(shell, "a", topics=("topic", "other"))
        formed(shell, a)
        a.owned |= {other}
        a.join()
        a.sync((a.member_id, write_assignment(FOUR, 1)))
        a.owned |= {other}  # its listener still works on it
        known = dict(shell.cluster.partitions)
        shell.cluster.delete(*(TopicPartition("other", number) for number in range(missing, 2)))
        c = Consumer(shell, "c")
        c.join("topic", "other")
        assert (c.error, "other" in (c.message or "")) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, True)
        shell.cluster.restore(known)
        c.join("topic", "other")
        settle(c)
        assert c.error is ErrorCode.NONE
        assert (topic_id, 1) not in c.owned


class TestDeadlines:
    def test_a_member_that_never_revokes_is_removed(self, shell: GroupShell) -> None:
        a, c = mixed(shell)
        d, e = Consumer(shell, "d"), Consumer(shell, "e")
        d.join()
        e.join()
        owned, errors = a.owned, []
        for _ in range(REBALANCE_MS // 5000 + 1):
            errors.append(a.heartbeat())
            if errors[-1] is ErrorCode.UNKNOWN_MEMBER_ID:
                break
            a.join()
            a.sync()
            a.owned = owned
            settle(c, d, e, rounds=1)
            shell.pass_time(5000)
        assert len(errors) > REBALANCE_MS // 5000 and errors[-1] is ErrorCode.UNKNOWN_MEMBER_ID

    def test_one_that_had_to_revoke_when_its_group_was_upgraded_too(self, shell: GroupShell) -> None:
        a, c = Classic(shell, "a"), Consumer(shell, "c")
        formed(shell, a)
        owned = a.owned
        a.join()
        a.sync((a.member_id, write_assignment([TOPIC], 1)))
        c.join()
        assert shell.group is not None and shell.group.consumer is not None
        assert shell.group.consumer.assignment_of(a.member_id).state is MemberState.UNREVOKED_PARTITIONS
        for _ in range(REBALANCE_MS // 5000):
            a.owned = owned
            a.heartbeat()
            a.join()
            a.sync()
            c.acknowledge()
            shell.pass_time(5000)
        assert a.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_deadline_that_is_missed_during_a_downgrade_still_counts_if_that_fails(self, shell: GroupShell) -> None:
        a, c = mixed(shell)
        a.join()  # and does not synchronize
        for _ in range(REBALANCE_MS // 5000 - 1):
            shell.pass_time(5000)
            a.heartbeat()
            c.acknowledge()
        shell.pass_time(4000)
        a.heartbeat()
        shell.automatic = False
        c.send(member_epoch=-1)
        shell.pass_time(1500)
        shell.fail(ErrorCode.REQUEST_TIMED_OUT)
        shell.automatic = True
        Consumer(shell, "d").join()
        shell.pass_time(REWRITE_MS)
        assert kind(shell) == "consumer" and a.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID

    def test_a_member_that_changes_its_protocol_has_no_sync_group_to_send(self, shell: GroupShell) -> None:
        a, c = mixed(shell)
        a.join()
        other = Consumer(shell, a.member_id)
        other.epoch = a.generation
        other.send(subscribed_topics=("topic",), rebalance_timeout_ms=REBALANCE_MS, owned=())
        for _ in range(REBALANCE_MS // 5000 + 1):
            shell.pass_time(5000)
            other.acknowledge()
            c.acknowledge()
        assert other.error is ErrorCode.NONE


class TestEmptyGroups:
    """A client that restarts joins with the id that it was given, or while the end of its former members is written."""

    def test_an_id_of_a_group_whose_last_member_has_left(self, shell: GroupShell) -> None:
        c = Consumer(shell, "c")
        c.join()
        a = Classic(shell, "a", requires_member_id=True)
        a.join()
        assert a.error is ErrorCode.MEMBER_ID_REQUIRED
        c.leave()
        a.join()
        assert (a.error, kind(shell)) == (ErrorCode.UNKNOWN_MEMBER_ID, "consumer")
        a.member_id = ""
        a.join()
        a.join()
        shell.pass_time(0)
        a.take_joined()
        assert (a.error, kind(shell)) == (ErrorCode.NONE, "classic")

    def test_a_group_whose_end_is_being_written(self, shell: GroupShell) -> None:
        c, a = Consumer(shell, "c"), Classic(shell, "a")
        c.join()
        shell.automatic = False
        c.send(member_epoch=-1)
        a.join()
        assert (a.error, kind(shell)) == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "consumer")
        shell.automatic = True
        shell.commit()
        a.join()
        shell.pass_time(0)
        a.take_joined()
        assert (a.error, kind(shell)) == (ErrorCode.NONE, "classic")


class TestDowngradesThatFail:
    def test_one_that_is_refused_is_not_tried_at_each_heartbeat(
        self, shell: GroupShell, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        a, c = mixed(shell)
        monkeypatch.setattr(migration, "MAX_BYTES", RECORD_BYTES)
        tried: list[ConsumerGroup] = []
        downgrade = migration.downgrade

        def noting(consumer: ConsumerGroup, cluster: ClusterTopics, wall_ms: int) -> Any:
            tried.append(consumer)
            return downgrade(consumer, cluster, wall_ms)

        monkeypatch.setattr("kreplog.core.groups.consumer_membership.downgrade", noting)
        c.leave()
        settled(a)
        before = len(tried)
        for _ in range(5):
            assert a.heartbeat() is ErrorCode.NONE
        assert 0 < len(tried) == before and kind(shell) == "consumer"
        shell.cluster.create("other", 1)
        a.heartbeat()
        a.heartbeat()
        assert len(tried) == before + 1
        monkeypatch.undo()
        a.heartbeat()
        assert kind(shell) == "consumer"
        Classic(shell, "b").join()
        assert kind(shell) == "classic"

    def test_requests_that_wait_are_answered_when_it_fails(self, shell: GroupShell) -> None:
        members = [Classic(shell, name) for name in "ab"]
        c = Consumer(shell, "c")
        formed(shell, *members)
        c.join()
        settled(*members, c)
        shell.automatic = False
        c.send(member_epoch=-1)
        for member in members:
            request = HeartbeatRequest(GROUP, member.generation, member.member_id)
            assert shell.put(f"beat {member.name}", request) is None
        shell.fail(ErrorCode.REQUEST_TIMED_OUT)
        errors = [shell.replies[f"beat {member.name}"].error for member in members]
        assert errors == 2 * [ErrorCode.COORDINATOR_NOT_AVAILABLE]


class TestBatches:
    """Each append is one batch, which no broker takes over max.message.bytes."""

    @pytest.fixture(autouse=True)
    def _encode_ids_of_the_shell(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(consumer_group_records, "topic_id_bytes", lambda _: bytes(16))

    @pytest.mark.parametrize(("length", "most"), [(10, 900), (2000, 90), (32_000, 12)])
    def test_of_an_upgrade_and_the_downgrade_after_it(self, length: int, most: int) -> None:
        """A group of up to `most` members, with ids of that length, is upgraded only if both fit."""
        sizes = []
        for count in (most // 10, most // 4, most // 2, most):
            shell = consumer_shell(QUICK)
            members = [Classic(shell, f"{n}", client_id="c" * length) for n in range(count)]
            formed(shell, *members)
            at, c = len(shell.logs[AT]), Consumer(shell, "c")
            c.join()
            if c.error is ErrorCode.NONE:
                sizes.append(len(encode_batch(shell.logs[AT][at:])))
                at = len(shell.logs[AT])
                c.leave()
                sizes.append(len(encode_batch(shell.logs[AT][at:])))
            else:
                assert kind(shell) == "classic" and "too large" in (c.message or "")
        assert 150_000 < max(sizes) < MAX_MESSAGE_BYTES

    def test_of_members_that_join_during_an_append(self, shell: GroupShell) -> None:
        mixed(shell)
        shell.automatic = False
        octets = metadata(["topic"]) + bytes(MAX_SUBSCRIPTION_BYTES - 100)
        responses = [shell.join(f"{number}", f"h{number}", protocols=(("range", octets),)) for number in range(20)]
        outcomes: tuple[Callable[[], None], ...] = (
            lambda: shell.fail(ErrorCode.NOT_ENOUGH_REPLICAS),
            shell.commit,
            shell.commit,
        )
        for outcome in outcomes:
            assert all(len(encode_batch(effect.records)) < MAX_MESSAGE_BYTES for _, _, effect in shell.waiting)
            outcome()
        refused = [response.error for response in responses if response is not None]
        assert 0 < len(refused) < 20 and set(refused) == {ErrorCode.COORDINATOR_NOT_AVAILABLE}  # which clients repeat

    def test_of_members_with_long_ids_that_join_during_an_append(self, shell: GroupShell) -> None:
        mixed(shell)
        shell.automatic = False
        for number in range(30):
            Consumer(shell, f"{number}-" + "i" * 32_000).join()
        while shell.waiting:
            assert all(len(encode_batch(effect.records)) < MAX_MESSAGE_BYTES for _, _, effect in shell.waiting)
            shell.commit()


def test_what_is_loaded_of_both_protocols_is_charged_once(shell: GroupShell) -> None:
    """As of a log that lacks the end of the classic group, which a compaction has removed."""
    mixed(shell)
    log = [record for record in shell.logs[AT] if not (isinstance(record, GroupRecord) and record.value is None)]
    assert len(log) < len(shell.logs[AT])
    shell.logs[AT], shell.committed[AT] = log, len(log)
    shell.start()
    shell.lead()
    assert shell.group is not None and shell.group.consumer is not None
    assert shell.core.charged == GROUP_BYTES + len(GROUP) + shell.group.consumer.size
