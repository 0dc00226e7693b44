"""Groups whose coordinator assigns the partitions (KIP-848), request by request, against one broker."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.client.broker_client import BrokerClient
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.errors import ErrorCode
from kreplog.wire.versions import ApiKey
from tests.integration.clusters import WITHIN_S, admin_of, end, wait_for_topic

TOPIC = "assigned"
SETTINGS = ('"offsets.topic.num.partitions" = 1',)
ALL = {0, 1, 2, 3}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One broker, which has a topic with four partitions."""
    cluster = LocalCluster.create(tmp_path_factory.mktemp("consumers") / "c", [0], 0, SETTINGS)
    try:
        cluster.start()
        with admin_of(cluster.bootstrap()) as admin:
            admin.create_topics({TOPIC: {"num_partitions": 4, "replication_factor": 1}}, wait_for_metadata=True)
        wait_for_topic(cluster, TOPIC, 4)
        yield cluster
    finally:
        end(cluster)


class Members:
    """Sends heartbeats for the members of a group. topic_id: of TOPIC. owned: by member, as its last response said."""

    def __init__(self, client: BrokerClient, group: str) -> None:
        self.client = client
        self.group = group
        self.topic_id: Any = None
        self.epochs: dict[str, int] = {}
        self.owned: dict[str, set[int]] = {}

    async def heartbeat(self, member: str, epoch: int | None = None, /, version: int = 1, **fields: Any) -> Any:
        """As a member that owns what it was last assigned; epoch: its own by default."""
        if fields.get("member_epoch") is None:
            fields["member_epoch"] = self.epochs.get(member, 0) if epoch is None else epoch
        response = await self.client.request(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, version, group_id=self.group, member_id=member, **fields
        )
        if response.error_code == 0:
            self.epochs[member] = response.member_epoch
            if response.assignment is not None:
                topics = response.assignment.topic_partitions
                assert {topic.topic_id for topic in topics} <= {self.topic_id}
                self.owned[member] = {number for topic in topics for number in topic.partitions}
        return response

    async def join(self, member: str, **fields: Any) -> Any:
        subscribed = {"subscribed_topic_names": [TOPIC], "rebalance_timeout_ms": 60_000, **fields}
        return await self.heartbeat(member, 0, **subscribed, topic_partitions=[])

    async def acknowledge(self, member: str) -> Any:
        """It owns what it was last assigned, and nothing else any more."""
        topics = [{"topic_id": self.topic_id, "partitions": sorted(self.owned[member])}] if self.owned[member] else []
        return await self.heartbeat(member, topic_partitions=topics)

    async def describe(self) -> Any:
        response = await self.client.request(
            ApiKey.CONSUMER_GROUP_DESCRIBE, 1, group_ids=[self.group], include_authorized_operations=False
        )
        (group,) = response.groups
        return group


def run(cluster: LocalCluster, group: str, steps: Callable[[Members], Awaitable[None]]) -> None:
    async def connected() -> None:
        host, _, port = cluster.bootstrap().partition(":")
        client = BrokerClient((host, int(port)), WITHIN_S)
        with contextlib.closing(client):
            members = Members(client, group)
            while True:
                found = await client.request(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=[group], key_type=0)
                if found.coordinators[0].error_code == 0:
                    break
                await asyncio.sleep(0.05)  # __consumer_offsets is being created
            topics = [{"topic_id": None, "name": TOPIC}]
            metadata = await client.request(ApiKey.METADATA, 12, topics=topics, allow_auto_topic_creation=False)
            members.topic_id = metadata.topics[0].topic_id
            while True:
                response = await members.describe()
                if response.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    break
                await asyncio.sleep(0.05)  # its groups are being loaded
            await steps(members)

    asyncio.run(connected())


def test_partitions_move_from_member_to_member(cluster: LocalCluster) -> None:
    """Each step takes one heartbeat; nobody waits for anybody."""

    async def steps(members: Members) -> None:
        response = await members.join("a")
        assert (response.error_code, response.member_id, members.owned["a"]) == (0, "a", ALL)
        assert response.heartbeat_interval_ms == 5000
        assert (await members.heartbeat("a")).assignment is not None, "it has not been acknowledged"
        await members.acknowledge("a")
        assert (await members.heartbeat("a")).assignment is None, "it has not changed since"
        await members.join("b")
        assert members.owned.get("b", set()) == set(), "they are still the other's"
        await members.heartbeat("a")
        assert len(members.owned["a"]) == 2
        await members.heartbeat("b")
        assert members.owned["b"] == set(), "the other has not given them up"
        await members.acknowledge("a")
        await members.heartbeat("b")
        assert members.owned["b"] == ALL - members.owned["a"]
        assert members.epochs["a"] == members.epochs["b"]
        await members.heartbeat("b", -1)
        await members.heartbeat("a")
        await members.heartbeat("a")
        assert members.owned["a"] == ALL

    run(cluster, "moves", steps)


def test_a_group_is_described_and_listed_as_what_it_is(cluster: LocalCluster) -> None:
    async def steps(members: Members) -> None:
        await members.join("a", instance_id="i", rack_id="r", subscribed_topic_regex="x.*")
        group = await members.describe()
        assert (group.group_state, group.assignor_name) == ("Stable", "uniform")
        assert group.group_epoch == group.assignment_epoch == members.epochs["a"]
        (member,) = group.members
        assert (member.member_id, member.instance_id, member.rack_id, member.client_id) == ("a", "i", "r", "kreplog")
        assert (member.member_epoch, member.member_type) == (members.epochs["a"], 1)
        assert member.client_host.strip("/") == "127.0.0.1"
        assert (member.subscribed_topic_names, member.subscribed_topic_regex) == ([TOPIC], "x.*")
        for assignment in (member.assignment, member.target_assignment):
            (topic,) = assignment.topic_partitions
            assert (topic.topic_id, topic.topic_name, set(topic.partitions)) == (members.topic_id, TOPIC, ALL)
        response = await members.client.request(
            ApiKey.DESCRIBE_GROUPS, 6, groups=[members.group], include_authorized_operations=False
        )
        assert response.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND
        for types, found in ((["consumer"], True), (["classic"], False), ([], True)):
            response = await members.client.request(ApiKey.LIST_GROUPS, 5, states_filter=[], types_filter=types)
            listed = {each.group_id: (each.protocol_type, each.group_type) for each in response.groups}
            assert listed.get(members.group) == (("consumer", "consumer") if found else None)

    run(cluster, "described", steps)


def test_topics_that_match_an_expression_are_assigned(cluster: LocalCluster) -> None:
    async def steps(members: Members) -> None:
        for expression, found in (("assign.*", ALL), ("(?i)ASSIGNED", ALL), ("sign", set()), ("", set())):
            member = f"of {expression}"
            response = await members.join(member, subscribed_topic_names=[], subscribed_topic_regex=expression)
            assert (response.error_code, members.owned[member]) == (0, found)
            await members.heartbeat(member, -1)

    run(cluster, "expressions", steps)


def test_what_is_refused(cluster: LocalCluster) -> None:
    async def steps(members: Members) -> None:
        async def code(*arguments: Any, **fields: Any) -> ErrorCode:
            return ErrorCode((await members.heartbeat(*arguments, **fields)).error_code)

        assert (await members.describe()).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert await code("a", 5) == ErrorCode.UNKNOWN_MEMBER_ID
        await members.join("a")
        epoch = members.epochs["a"]
        assert await code("b", 1) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await code("a", epoch + 1) == ErrorCode.FENCED_MEMBER_EPOCH
        assert (await members.join("c", server_assignor="none")).error_code == ErrorCode.UNSUPPORTED_ASSIGNOR
        response = await members.join("c", subscribed_topic_regex="(")
        assert (response.error_code, bool(response.error_message)) == (ErrorCode.INVALID_REGULAR_EXPRESSION, True)
        assert (await members.join("", version=1)).error_code == ErrorCode.INVALID_REQUEST
        assert (await members.join("", version=0)).member_id, "the coordinator chooses it"

    run(cluster, "refused", steps)


def test_offsets_are_committed_and_fetched_with_the_members_epoch(cluster: LocalCluster) -> None:
    async def steps(members: Members) -> None:
        await members.join("a")
        epoch = members.epochs["a"]
        position = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": 0, "committed_metadata": ""}

        async def commit(member: str, epoch: int, version: int = 9) -> ErrorCode:
            response = await members.client.request(
                ApiKey.OFFSET_COMMIT,
                version,
                group_id=members.group,
                generation_id_or_member_epoch=epoch,
                member_id=member,
                topics=[{"name": TOPIC, "partitions": [position]}],
            )
            return ErrorCode(response.topics[0].partitions[0].error_code)

        assert await commit("a", epoch) == ErrorCode.NONE
        assert await commit("a", epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
        assert await commit("a", epoch, 8) == ErrorCode.UNSUPPORTED_VERSION
        assert await commit("b", epoch) == ErrorCode.UNKNOWN_MEMBER_ID
        assert await commit("", -1) == ErrorCode.UNKNOWN_MEMBER_ID, "the group has members"
        topics = [{"name": TOPIC, "partition_indexes": [0]}]
        for member, member_epoch, error in (
            ("a", epoch, ErrorCode.NONE),
            ("a", epoch + 1, ErrorCode.STALE_MEMBER_EPOCH),
            ("b", epoch, ErrorCode.UNKNOWN_MEMBER_ID),
            (None, -1, ErrorCode.NONE),
        ):
            requested = {"group_id": members.group, "member_id": member, "member_epoch": member_epoch, "topics": topics}
            response = await members.client.request(ApiKey.OFFSET_FETCH, 9, groups=[requested], require_stable=True)
            (group,) = response.groups
            assert group.error_code == error
            if error is ErrorCode.NONE:
                assert group.topics[0].partitions[0].committed_offset == 5

    run(cluster, "committed", steps)


def test_a_producer_learns_of_another_epoch_by_a_code_that_it_knows(cluster: LocalCluster) -> None:
    async def steps(members: Members) -> None:
        await members.join("a")
        client, producer = members.client, {"transactional_id": "t"}
        async with asyncio.timeout(WITHIN_S):
            while True:
                found = await client.request(ApiKey.FIND_COORDINATOR, 4, coordinator_keys=["t"], key_type=1)
                if found.coordinators[0].error_code == 0:
                    response = await client.request(
                        ApiKey.INIT_PRODUCER_ID, 4, **producer, transaction_timeout_ms=60_000
                    )
                    if response.error_code == 0:
                        break
                await asyncio.sleep(0.05)  # __transaction_state is being created
        producer |= {"producer_id": response.producer_id, "producer_epoch": response.producer_epoch}
        added = await client.request(ApiKey.ADD_OFFSETS_TO_TXN, 3, **producer, group_id=members.group)
        assert added.error_code == ErrorCode.NONE
        position = {"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": 0, "committed_metadata": ""}
        topics = [{"name": TOPIC, "partitions": [position]}]
        epoch = members.epochs["a"]
        for version in (3, 5):
            for member, member_epoch, error in (
                ("a", epoch - 1, ErrorCode.ILLEGAL_GENERATION),
                ("a", epoch + 1, ErrorCode.ILLEGAL_GENERATION),
                ("b", epoch, ErrorCode.UNKNOWN_MEMBER_ID),
                ("a", epoch, ErrorCode.NONE),
            ):
                fields = {"group_id": members.group, "member_id": member, "generation_id": member_epoch}
                response = await client.request(ApiKey.TXN_OFFSET_COMMIT, version, **producer, **fields, topics=topics)
                assert response.topics[0].partitions[0].error_code == error, (version, member, member_epoch)

    run(cluster, "transactional", steps)


def test_offsets_are_committed_in_an_earlier_epoch_for_what_was_not_revoked(cluster: LocalCluster) -> None:
    async def steps(members: Members) -> None:
        await members.join("a")
        earlier = members.epochs["a"]
        await members.join("b")
        await members.heartbeat("a")
        await members.acknowledge("a")
        await members.heartbeat("b")
        assert members.epochs["a"] > earlier and members.owned["b"] == ALL - members.owned["a"]
        position = {"committed_offset": 5, "committed_leader_epoch": 0, "committed_metadata": ""}
        response = await members.client.request(
            ApiKey.OFFSET_COMMIT,
            9,
            group_id=members.group,
            generation_id_or_member_epoch=earlier,
            member_id="a",
            topics=[{"name": TOPIC, "partitions": [{"partition_index": number, **position} for number in ALL]}],
        )
        errors = {each.partition_index: each.error_code for each in response.topics[0].partitions}
        stale = ErrorCode.STALE_MEMBER_EPOCH
        assert errors == {number: 0 if number in members.owned["a"] else stale for number in ALL}

    run(cluster, "earlier", steps)


def test_a_group_is_loaded_as_it_was(cluster: LocalCluster) -> None:
    before: list[Any] = []

    def facts(group: Any) -> tuple[Any, ...]:
        members = [
            (each.member_id, each.member_epoch, each.assignment.topic_partitions[0].partitions)
            for each in group.members
        ]
        return group.group_state, group.group_epoch, group.assignment_epoch, sorted(members)

    async def join(members: Members) -> None:
        await members.join("a")
        await members.join("b")
        await members.heartbeat("a")
        await members.acknowledge("a")
        await members.heartbeat("b")
        before.append((facts(await members.describe()), members.epochs, members.owned))

    async def go_on(members: Members) -> None:
        ((described, members.epochs, members.owned),) = before
        assert facts(await members.describe()) == described
        for member in ("a", "b"):
            response = await members.acknowledge(member)
            assert (response.error_code, response.member_epoch) == (0, members.epochs[member])

    run(cluster, "loaded", join)
    cluster.stop()
    cluster.start()
    run(cluster, "loaded", go_on)


def test_members_find_the_names_of_assigned_topics(cluster: LocalCluster) -> None:
    """By Metadata with topic ids; Java's consumer sends an empty name beside each."""

    async def steps(members: Members) -> None:
        unknown = uuid.UUID(int=7)
        for name in (None, ""):
            topics = [{"topic_id": topic_id, "name": name} for topic_id in (members.topic_id, unknown)]
            response = await members.client.request(ApiKey.METADATA, 12, topics=topics, allow_auto_topic_creation=True)
            found, other = response.topics
            assert (found.error_code, found.name, len(found.partitions)) == (0, TOPIC, 4)
            assert (other.error_code, other.name, other.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, None, unknown)

    run(cluster, "names", steps)
