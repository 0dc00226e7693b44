"""Answers to requests that are authorized in part, or that list what there is: nothing in them that may not be seen."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.core.consumer_group_messages import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedConsumer,
    DescribedConsumerGroup,
)
from kreplog.core.messages import (
    CONSUMER,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from kreplog.core.security.acls import CLUSTER_NAME, SUPPORTED_OPERATIONS, Operation, ResourceType
from kreplog.core.security.authorizer import Access, AclIndex
from kreplog.errors import ErrorCode, InvariantError
from kreplog.server.authorization import guard
from kreplog.server.authorization.authorization_table import RULES
from kreplog.server.authorization.checks import AuthorizationCheck
from kreplog.server.authorization.fetch_sessions import SessionChecks
from kreplog.server.broker import Broker
from kreplog.server.settings import load
from kreplog.types import NO_EPOCH, TopicPartition
from kreplog.wire import fetch, produce
from kreplog.wire.versions import ApiKey
from tests.core.groups.consumers import NEEDS_RE2
from tests.reference import sent
from tests.server.authorization.clients import ADMIN, Client, allow, authorizing, deny, set_acls
from tests.server.brokers import eventually, serving, until_controlled

READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
GROUP, IDS = ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
TOPIC_ERROR = ErrorCode.TOPIC_AUTHORIZATION_FAILED
MINE, HIDDEN = "mine", "hidden"


async def create(admin: Client, *names: str, partitions: int = 1) -> dict[str, Any]:
    """Topics, and their ids by name."""
    topics = [
        {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
        for name in names
    ]
    created = await admin.call(ApiKey.CREATE_TOPICS, topics=topics, timeout_ms=20_000, validate_only=False)
    assert all(not topic.error_code for topic in created.topics), created
    return {topic.name: topic.topic_id for topic in created.topics}


def named(*names: str) -> list[dict[str, Any]]:
    return [{"topic_id": None, "name": name} for name in names]


async def append(client: Client, topic: str, sequence: int, *, acks: int = 1) -> ErrorCode:
    return (await produced(client, {topic: sequence}, acks=acks))[topic]


async def produced(client: Client, sequences: dict[str, int], *, acks: int = 1) -> dict[str, ErrorCode]:
    """The error for each topic of one request."""
    header = client.header(ApiKey.PRODUCE)
    partitions = tuple(
        ProducePartition(TopicPartition(name, 0), sent(7, sequence, b"value", transactional=False))
        for name, sequence in sequences.items()
    )
    frame = b"".join(bytes(part) for part in produce.encode_request(ProduceRequest(acks, 5000, partitions), header))
    response: ProduceResponse = produce.decode_response(await client.frame(frame), header)
    return {each.partition.topic: each.error for each in response.partitions}


async def fetched(
    client: Client,
    *topics: str,
    session: tuple[int, int] = (0, -1),
    wait_ms: int = 0,
    offset: int = 0,
    forgotten: tuple[TopicPartition, ...] = (),
) -> FetchResponse:
    header = client.header(ApiKey.FETCH, 12)
    partitions = tuple(FetchPartition(TopicPartition(name, 0), "", NO_EPOCH, offset) for name in topics)
    request = FetchRequest(CONSUMER, -1, wait_ms, 1, 1 << 20, partitions, forgotten, *session)
    frame = b"".join(bytes(part) for part in fetch.encode_request(request, header))
    response: FetchResponse = fetch.decode_response(await client.frame(frame), header)
    return response


def errors(response: FetchResponse) -> dict[str, ErrorCode]:
    return {each.partition.topic: each.error for each in response.partitions}


def test_a_request_is_carried_out_for_what_is_allowed_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice = Client(broker, ADMIN), Client(broker, "alice")
            await create(admin, MINE, HIDDEN)
            await set_acls(admin, allow("alice", Operation.ALL, MINE))
            assert await produced(alice, {MINE: 0, HIDDEN: 0}) == {MINE: ErrorCode.NONE, HIDDEN: TOPIC_ERROR}
            found = await fetched(alice, HIDDEN, MINE)
            assert errors(found) == {MINE: ErrorCode.NONE, HIDDEN: TOPIC_ERROR}
            assert {each.partition.topic for each in found.partitions if len(each.records)} == {MINE}
            assert not any(len(each.records) for each in (await fetched(admin, HIDDEN)).partitions)
            topics = [{"name": name, "topic_id": None} for name in (MINE, HIDDEN)]
            deleted = await alice.call(ApiKey.DELETE_TOPICS, topics=topics, timeout_ms=20_000)
            assert {each.name: each.error_code for each in deleted.responses} == {MINE: 0, HIDDEN: TOPIC_ERROR}
            assert broker.topics.get(MINE) is None
            assert broker.topics.get(HIDDEN) is not None

    asyncio.run(scenario())


def test_acks_0_that_is_denied_in_part_appends_the_rest_and_closes_the_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice = Client(broker, ADMIN), Client(broker, "alice")
            await create(admin, MINE, HIDDEN)
            await set_acls(admin, allow("alice", WRITE, MINE))
            with pytest.raises(asyncio.IncompleteReadError):
                await produced(alice, {MINE: 0, HIDDEN: 0}, acks=0)
            with pytest.raises(asyncio.IncompleteReadError):
                await produced(Client(broker, "alice"), {HIDDEN: 0}, acks=0)

            async def records() -> dict[str, bool]:
                found = await fetched(admin, MINE, HIDDEN)
                return {each.partition.topic: bool(len(each.records)) for each in found.partitions}

            async def is_appended() -> bool:
                return (await records())[MINE]

            await eventually(is_appended)
            assert not (await records())[HIDDEN]

    asyncio.run(scenario())


def test_a_topic_that_may_not_be_described_looks_like_one_that_does_not_exist(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice = Client(broker, ADMIN), Client(broker, "alice")
            ids = await create(admin, MINE, HIDDEN)
            await set_acls(admin, allow("alice", DESCRIBE, MINE))
            for version in range(14):
                listed = await alice.call(
                    ApiKey.METADATA, version, topics=[] if not version else None, allow_auto_topic_creation=False
                )
                assert [topic.name for topic in listed.topics] == [MINE]
                request: dict[str, Any] = {"topics": named(HIDDEN, "nowhere"), "allow_auto_topic_creation": False}
                answered = await alice.call(ApiKey.METADATA, version, **request)
                hidden, nowhere = ({**topic.to_dict(), "name": ""} for topic in answered.topics)
                assert hidden == nowhere
                assert hidden["error_code"] == TOPIC_ERROR
                assert not hidden["partitions"]
            by_id = [{"topic_id": ids[name], "name": None} for name in (MINE, HIDDEN)]
            for version, null in ((11, ""), (12, None), (13, None)):
                answered = await alice.call(ApiKey.METADATA, version, topics=by_id, allow_auto_topic_creation=False)
                assert [(topic.name, topic.error_code) for topic in answered.topics] == [(MINE, 0), (null, TOPIC_ERROR)]
            topics = [{"name": None, "topic_id": ids[HIDDEN]}, {"name": HIDDEN, "topic_id": None}]
            deleted = await alice.call(ApiKey.DELETE_TOPICS, topics=topics, timeout_ms=1000)
            assert [(each.name, each.error_code) for each in deleted.responses] == [
                (None, TOPIC_ERROR),
                (HIDDEN, TOPIC_ERROR),
            ]

    asyncio.run(scenario())


def test_topics_are_listed_in_pages_without_a_trace_of_the_hidden(tmp_path: Path) -> None:
    """DescribeTopicPartitions: the cursor has the name of the next topic."""

    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice = Client(broker, ADMIN), Client(broker, "alice")
            await create(admin, "a", "hidden-1", "hidden-2", "z")
            await set_acls(admin, allow("alice", DESCRIBE, "a"), allow("alice", DESCRIBE, "z"))
            cursor, seen = None, []
            while True:
                page = await alice.call(
                    ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=[], response_partition_limit=1, cursor=cursor
                )
                seen += [topic.name for topic in page.topics]
                if page.next_cursor is None:
                    break
                cursor = {name: getattr(page.next_cursor, name) for name in ("topic_name", "partition_index")}
                assert not cursor["topic_name"].startswith("hidden")
            assert list(dict.fromkeys(seen)) == ["a", "z"]
            await set_acls(admin)
            request = {"response_partition_limit": 100, "cursor": None}
            nothing = await alice.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, topics=[], **request)
            assert nothing.topics == []

    asyncio.run(scenario())


def test_groups_and_transactions_that_may_not_be_described_are_not_listed(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice = Client(broker, ADMIN), Client(broker, "alice")
            await create(admin, MINE, HIDDEN)
            for key_type in (0, 1):
                await admin.call(ApiKey.FIND_COORDINATOR, key_type=key_type, coordinator_keys=["x"])
            for name in ("g1", "g2"):
                await commit(admin, name, MINE, HIDDEN)
                await begin(admin, name)
            await set_acls(admin, allow("alice", DESCRIBE, "g1", GROUP), allow("alice", DESCRIBE, "g2", IDS))
            groups = await alice.call(ApiKey.LIST_GROUPS, states_filter=[], types_filter=[])
            assert [group.group_id for group in groups.groups] == ["g1"]
            request: dict[str, Any] = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1}
            transactions = await alice.call(ApiKey.LIST_TRANSACTIONS, transactional_id_pattern=None, **request)
            assert [each.transactional_id for each in transactions.transaction_states] == ["g2"]
            described = await alice.call(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=["g2"])
            assert described.transaction_states[0].topics == []
            group = {"group_id": "g1", "topics": None, "member_id": None, "member_epoch": -1}
            offsets = await alice.call(ApiKey.OFFSET_FETCH, groups=[group], require_stable=False)
            assert offsets.groups[0].topics == []

            await set_acls(
                admin,
                allow("alice", DESCRIBE, CLUSTER_NAME, ResourceType.CLUSTER),
                allow("alice", DESCRIBE, "*", IDS),
                allow("alice", DESCRIBE, "*", GROUP),
                allow("alice", DESCRIBE, MINE),
            )
            groups = await alice.call(ApiKey.LIST_GROUPS, states_filter=[], types_filter=[])
            assert {group.group_id for group in groups.groups} == {"g1", "g2"}
            described = await alice.call(ApiKey.DESCRIBE_TRANSACTIONS, transactional_ids=["g2"])
            assert [topic.topic for topic in described.transaction_states[0].topics] == [MINE]
            offsets = await alice.call(ApiKey.OFFSET_FETCH, groups=[group], require_stable=False)
            assert [topic.name for topic in offsets.groups[0].topics] == [MINE]

    asyncio.run(scenario())


def test_a_group_is_not_described_to_a_client_that_may_not_describe_what_its_members_name() -> None:
    """Also topics of which no partition is assigned."""
    access = Access(
        AclIndex([allow("alice", DESCRIBE, "g", GROUP)]), "User:alice", "h", is_super=False, allows_without_acl=False
    )
    check = AuthorizationCheck(access, 0, Unknown(), creates_topics=False)
    authorized = RULES[ApiKey.CONSUMER_GROUP_DESCRIBE](check, ConsumerGroupDescribeRequest(("g",)))
    member = DescribedConsumer("m", None, None, 1, "c", "/h", (HIDDEN,), None, (), ())
    group = DescribedConsumerGroup("g", ErrorCode.NONE, members=(member,))
    (shown,) = authorized.finished(ConsumerGroupDescribeResponse((group,))).groups
    assert shown.error is TOPIC_ERROR
    assert not shown.members


class Unknown:
    """No topics."""

    all: Mapping[str, Any] = MappingProxyType({})

    def name_of(self, topic_id: str) -> str | None:
        return None


@NEEDS_RE2
def test_an_expression_matches_no_topic_that_the_client_may_not_describe(tmp_path: Path) -> None:
    """KIP-848. It would show that the topic exists, its id and its partitions."""

    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice = Client(broker, ADMIN), Client(broker, "alice")
            ids = await create(admin, MINE, HIDDEN)
            await admin.call(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=["g"])
            rights = allow("alice", READ, "g", GROUP), allow("alice", DESCRIBE, MINE)
            await set_acls(admin, *rights)
            joining: dict[str, Any] = {
                "group_id": "g",
                "member_id": "m",
                "instance_id": None,
                "rack_id": None,
                "rebalance_timeout_ms": 60_000,
                "subscribed_topic_names": None,
                "subscribed_topic_regex": f"{MINE}|{HIDDEN}",
                "server_assignor": None,
                "topic_partitions": [],
            }
            owned: set[str] = set()
            epoch = 0

            async def owns(*topics: str) -> bool:
                nonlocal epoch
                fields = joining if epoch == 0 else {**joining, "topic_partitions": None}
                beat = await alice.call(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, member_epoch=epoch, **fields)
                if beat.error_code:
                    return False
                epoch = beat.member_epoch
                if beat.assignment is not None:
                    owned.update(topic.topic_id for topic in beat.assignment.topic_partitions)
                assert owned <= {ids[name] for name in topics}
                return owned == {ids[name] for name in topics}

            await eventually(lambda: owns(MINE))
            await set_acls(admin, *rights, allow("alice", DESCRIBE, HIDDEN))
            await eventually(lambda: owns(MINE, HIDDEN))

    asyncio.run(scenario())


async def commit(client: Client, group: str, *names: str) -> None:
    partition = {"partition_index": 0, "committed_offset": 3, "committed_leader_epoch": -1, "committed_metadata": ""}
    topics = [{"name": name, "partitions": [partition]} for name in names]
    request: dict[str, Any] = {
        "group_id": group,
        "member_id": "",
        "generation_id_or_member_epoch": -1,
        "topics": topics,
    }

    async def committed() -> bool:
        answered = await client.call(ApiKey.OFFSET_COMMIT, **request)
        return all(not each.error_code for topic in answered.topics for each in topic.partitions)

    await eventually(committed)


async def begin(client: Client, transactional_id: str) -> None:
    """A transaction of both topics."""
    initial: dict[str, Any] = {"transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
    made = None

    async def initialized() -> bool:
        nonlocal made
        made = await client.call(ApiKey.INIT_PRODUCER_ID, transactional_id=transactional_id, **initial)
        return not made.error_code

    await eventually(initialized)
    assert made is not None
    own = {"transactional_id": transactional_id, "producer_id": made.producer_id, "producer_epoch": made.producer_epoch}
    added = await client.call(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        **{f"v3_and_below_{name}": value for name, value in own.items()},
        v3_and_below_topics=[{"name": name, "partitions": [0]} for name in (MINE, HIDDEN)],
    )
    codes = [
        each.partition_error_code
        for topic in added.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]
    assert codes == [0, 0]


def test_partitions_are_added_to_a_transaction_together_or_not_at_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice = Client(broker, ADMIN), Client(broker, "alice")
            await create(admin, MINE, HIDDEN)
            await set_acls(admin, allow("alice", WRITE, MINE), allow("alice", WRITE, "id", IDS))
            added = await alice.call(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                v3_and_below_transactional_id="id",
                v3_and_below_producer_id=1,
                v3_and_below_producer_epoch=0,
                v3_and_below_topics=[{"name": name, "partitions": [0]} for name in (MINE, HIDDEN)],
            )
            assert {
                topic.name: topic.results_by_partition[0].partition_error_code
                for topic in added.results_by_topic_v3_and_below
            } == {MINE: ErrorCode.OPERATION_NOT_ATTEMPTED, HIDDEN: TOPIC_ERROR}

    asyncio.run(scenario())


def test_authorized_operations_are_those_that_acls_allow(tmp_path: Path) -> None:
    """KIP-430."""

    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice = Client(broker, ADMIN), Client(broker, "alice")
            await create(admin, MINE)
            await admin.call(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=["x"])
            await commit(admin, "g", MINE)
            await set_acls(admin, allow("alice", READ, MINE), allow("alice", Operation.DELETE, "g", GROUP))
            assert await operations(alice, None) == (None, {READ, DESCRIBE}, {Operation.DELETE, DESCRIBE})
            cluster = await alice.call(ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True)
            assert cluster.authorized_operations == set()
            of_cluster = allow("alice", Operation.ALTER, CLUSTER_NAME, ResourceType.CLUSTER)
            await set_acls(admin, of_cluster, allow("alice", READ, MINE), allow("alice", READ, "g", GROUP))
            cluster = await alice.call(ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True)
            assert cluster.authorized_operations == {Operation.ALTER, DESCRIBE}
            refused = await alice.call(
                ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True, endpoint_type=2
            )
            assert (refused.error_code, refused.authorized_operations) == (ErrorCode.MISMATCHED_ENDPOINT_TYPE, None)
            old = await operations(alice, 10)
            assert old == ({Operation.ALTER, DESCRIBE}, {READ, DESCRIBE}, {READ, DESCRIBE})

    asyncio.run(scenario())


def test_settings_of_a_new_topic_need_their_own_operation(tmp_path: Path) -> None:
    """KIP-525: who may create a topic, and not describe its settings, gets an error in their place."""
    new = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}

    async def made(client: Client, name: str) -> tuple[int, int, int, bool]:
        topics = [{"name": name, **new}]
        answer = await client.call(ApiKey.CREATE_TOPICS, topics=topics, timeout_ms=20_000, validate_only=False)
        (topic,) = answer.topics
        return topic.error_code, topic.topic_config_error_code, topic.num_partitions, bool(topic.configs)

    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice = Client(broker, ADMIN), Client(broker, "alice")
            creates = allow("alice", Operation.CREATE, CLUSTER_NAME, ResourceType.CLUSTER)
            await set_acls(admin, creates, allow("alice", Operation.DESCRIBE_CONFIGS, MINE))
            assert await made(alice, MINE) == (0, 0, 1, True)
            assert await made(alice, HIDDEN) == (0, TOPIC_ERROR, -1, False)

    asyncio.run(scenario())


async def operations(client: Client, version: int | None) -> tuple[Any, Any, Any]:
    """Those on the cluster and a topic, by Metadata of a version, and on a group."""
    cluster = {} if version is None else {"include_cluster_authorized_operations": True}
    metadata = await client.call(
        ApiKey.METADATA,
        version,
        topics=named(MINE),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
        **cluster,
    )
    groups = await client.call(ApiKey.DESCRIBE_GROUPS, groups=["g"], include_authorized_operations=True)
    on_cluster = None if version is None else metadata.authorized_operations
    return on_cluster, metadata.topics[0].authorized_operations, groups.groups[0].authorized_operations


def test_without_an_authorizer_all_operations_are_authorized(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, 0, offsets_topic_replication_factor=1) as (broker,):
            await until_controlled(broker)
            client = Client(broker, "alice")
            await create(client, MINE)
            await client.call(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=["x"])
            await commit(client, "g", MINE)
            expected = tuple(SUPPORTED_OPERATIONS[kind] for kind in (ResourceType.CLUSTER, ResourceType.TOPIC, GROUP))
            assert await operations(client, 10) == expected
            silent = await client.call(ApiKey.METADATA, topics=named(MINE), allow_auto_topic_creation=False)
            assert silent.topics[0].authorized_operations is None
            disabled = await client.call(ApiKey.CREATE_ACLS, creations=[])
            assert disabled.results == []
            described = await client.call(
                ApiKey.DESCRIBE_ACLS,
                resource_type_filter=1,
                resource_name_filter=None,
                pattern_type_filter=1,
                principal_filter=None,
                host_filter=None,
                operation=1,
                permission_type=1,
            )
            assert described.error_code == ErrorCode.SECURITY_DISABLED

    asyncio.run(scenario())


def test_topics_are_created_on_first_use_by_those_that_may(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice = Client(broker, ADMIN), Client(broker, "alice")
            await set_acls(admin, allow("alice", DESCRIBE, "*"), allow("alice", Operation.CREATE, MINE))
            request: dict[str, Any] = {"topics": named(MINE, HIDDEN), "allow_auto_topic_creation": True}
            answered = await alice.call(ApiKey.METADATA, **request)
            assert {topic.name: topic.error_code for topic in answered.topics}[HIDDEN] == TOPIC_ERROR

            async def exists() -> bool:
                return broker.topics.get(MINE) is not None

            await eventually(exists)
            assert broker.topics.get(HIDDEN) is None
            old = await alice.call(ApiKey.METADATA, 3, topics=named(HIDDEN))
            assert old.topics[0].error_code == TOPIC_ERROR
            silent = await alice.call(ApiKey.METADATA, topics=named(HIDDEN), allow_auto_topic_creation=False)
            assert silent.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(scenario())


def test_a_running_session_loses_a_topic_with_its_acl(tmp_path: Path) -> None:
    """KIP-227: the session ends, and the next one does not hold the topic."""

    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice, mallory = (Client(broker, name) for name in (ADMIN, "alice", "mallory"))
            await create(admin, MINE, HIDDEN)
            both = allow("alice", READ, MINE), allow("alice", READ, HIDDEN)
            await set_acls(admin, *both)
            first = await fetched(alice, MINE, HIDDEN, session=(0, 0))
            session_id = first.session_id
            assert session_id
            assert await append(admin, HIDDEN, 0) is ErrorCode.NONE
            assert errors(await fetched(alice, session=(session_id, 1))) == {HIDDEN: ErrorCode.NONE}
            await set_acls(admin, *both, allow("bob", READ, MINE))
            assert errors(await fetched(alice, session=(session_id, 2))) == {HIDDEN: ErrorCode.NONE}

            stolen = await fetched(mallory, session=(session_id, 3))
            assert stolen.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert (await fetched(alice, session=(session_id, 3))).error is ErrorCode.NONE  # it still goes on

            await set_acls(admin, allow("alice", READ, MINE))
            assert await append(admin, HIDDEN, 1) is ErrorCode.NONE
            ended = await fetched(alice, session=(session_id, 4))
            assert ended.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert not ended.partitions
            assert broker.manager.fetch_session(session_id) is None
            again = await fetched(alice, MINE, HIDDEN, session=(0, 0))
            assert errors(again) == {MINE: ErrorCode.NONE, HIDDEN: TOPIC_ERROR}
            assert again.session_id == 0

            alone = await fetched(alice, MINE, session=(0, 0))
            added = await fetched(alice, HIDDEN, session=(alone.session_id, 1))
            assert errors(added) == {HIDDEN: TOPIC_ERROR}
            assert not any(len(each.records) for each in added.partitions)

    asyncio.run(scenario())


async def until_delayed(broker: Broker, count: int = 1, other: asyncio.Future[FetchResponse] | None = None) -> None:
    """Until so many fetches are delayed, or another has its response."""

    async def is_delayed() -> bool:
        delayed = sum(account == "parked_fetches" for account, *_ in broker.manager._fetches.charges())
        return delayed == count or (other is not None and other.done())

    await eventually(is_delayed)


def test_the_id_of_a_session_to_come_opens_nothing(tmp_path: Path) -> None:
    """The ids of sessions are in sequence. A session takes requests from its first fetch on, before the response."""

    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice, mallory = (Client(broker, name) for name in (ADMIN, "alice", "mallory"))
            await create(admin, MINE, HIDDEN)
            await set_acls(admin, allow("alice", READ, HIDDEN), allow("mallory", READ, MINE))
            own = await fetched(mallory, MINE, session=(0, 0))
            next_id = own.session_id + 1
            assert (await fetched(mallory, session=(next_id, 1))).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            waiting = asyncio.ensure_future(fetched(alice, HIDDEN, session=(0, 0), wait_ms=60_000))
            await until_delayed(broker)
            assert broker.manager.fetch_session(next_id)
            stolen = asyncio.ensure_future(fetched(mallory, session=(next_id, 1), wait_ms=60_000))
            await until_delayed(broker, 2, stolen)
            assert await append(admin, HIDDEN, 0) is ErrorCode.NONE
            assert (await stolen).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert not (await stolen).partitions
            found = await waiting
            assert found.session_id == next_id
            assert errors(found) == {HIDDEN: ErrorCode.NONE}

    asyncio.run(scenario())


def test_what_a_response_has_is_checked_whatever_its_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionChecks, "authorize", lambda *_: None)

    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice, mallory = (Client(broker, name) for name in (ADMIN, "alice", "mallory"))
            await create(admin, HIDDEN)
            await set_acls(admin, allow("alice", READ, HIDDEN))
            first = await fetched(alice, HIDDEN, session=(0, 0))
            assert await append(admin, HIDDEN, 0) is ErrorCode.NONE
            stolen = await fetched(mallory, session=(first.session_id, 1))
            assert errors(stolen) == {HIDDEN: TOPIC_ERROR}
            assert not any(len(each.records) for each in stolen.partitions)

    asyncio.run(scenario())


def test_a_delayed_fetch_gets_no_record_after_its_acl_has_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with authorizing(tmp_path, 0) as (broker,):
            admin, alice = Client(broker, ADMIN), Client(broker, "alice")
            await create(admin, MINE)
            await set_acls(admin, allow("alice", READ, MINE))
            waiting = asyncio.ensure_future(fetched(alice, MINE, wait_ms=60_000))
            await until_delayed(broker)
            await set_acls(admin, deny("alice", READ, MINE))
            assert await append(admin, MINE, 0) is ErrorCode.NONE
            found = await waiting
            assert errors(found) == {MINE: TOPIC_ERROR}
            assert not any(len(each.records) for each in found.partitions)

    asyncio.run(scenario())


def test_a_broker_with_an_api_without_a_rule_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "RULES", {key: rule for key, rule in RULES.items() if key != ApiKey.LIST_GROUPS})

    async def scenario() -> None:
        names = {"broker.id": 0, "log.dirs": f"{tmp_path}/data", "coordination": f"embedded:{tmp_path}/store"}
        broker = Broker(load({**names, "listeners": "127.0.0.1:0"}, None, {}))
        with pytest.raises(InvariantError, match="these APIs of clients have no rule of authorization: LIST_GROUPS"):
            await broker.run()

    asyncio.run(scenario())
