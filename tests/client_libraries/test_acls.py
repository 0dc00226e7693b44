"""Admin clients of libraries about ACLs, and clients that ACLs deny something, at a broker with an authorizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

import kafka
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ResourcePattern,
    ResourcePatternFilter,
    ResourceType,
)
from kafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

from kreplog.client.security import ClientSecurity
from kreplog.client.user_admin import new_credentials
from kreplog.cluster import store_requests
from kreplog.cluster.files import free_ports
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core.security.acls import AclBinding, AclFilter, Operation, PatternType, Permission
from kreplog.core.security.acls import ResourceType as Kind
from kreplog.server.settings import STANDARD_AUTHORIZER
from tests.integration.clusters import end, eventually

ANONYMOUS = "User:ANONYMOUS"
"""The principal of every client here: the listener authenticates nobody."""


def cluster_of(directory: Path, super_users: str) -> LocalCluster:
    settings = [
        f'"authorizer.class.name" = "{STANDARD_AUTHORIZER}"',
        f'"super.users" = "{super_users}"',
        '"offsets.topic.num.partitions" = 1',
    ]
    return LocalCluster.create(directory, [0], 0, settings)


@pytest.fixture(scope="module")
def administered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap address of a broker where everybody may do everything."""
    made = cluster_of(tmp_path_factory.mktemp("administered") / "c", ANONYMOUS)
    try:
        made.start()
        yield made.bootstrap()
    finally:
        end(made)


def test_kafka_python_administers_acls(administered: str) -> None:
    admin = kafka.KafkaAdminClient(bootstrap_servers=administered)
    try:
        acls = [
            ACL(
                "User:alice", "*", ACLOperation.READ, ACLPermissionType.ALLOW, ResourcePattern(ResourceType.TOPIC, "a*")
            ),
            ACL(
                "User:alice",
                "10.0.0.1",
                ACLOperation.ALL,
                ACLPermissionType.DENY,
                ResourcePattern(ResourceType.GROUP, "g", ACLResourcePatternType.PREFIXED),
            ),
        ]
        created = admin.create_acls(acls)
        assert created["succeeded"] == acls
        assert not created["failed"]

        def matching(**pattern: Any) -> ACLFilter:
            resource = ResourcePatternFilter(
                pattern.pop("kind", ResourceType.ANY), pattern.pop("name", None), **pattern
            )
            return ACLFilter("User:alice", None, ACLOperation.ANY, ACLPermissionType.ANY, resource)

        found, error = admin.describe_acls(matching(pattern_type=ACLResourcePatternType.ANY))
        assert not error.errno
        assert set(found) == set(acls)
        match = matching(kind=ResourceType.GROUP, name="group", pattern_type=ACLResourcePatternType.MATCH)
        assert admin.describe_acls(match)[0] == [acls[1]]
        ((_, deleted, _),) = admin.delete_acls([matching(pattern_type=ACLResourcePatternType.ANY)])
        assert set(deleted) == set(acls)
        assert admin.describe_acls(matching(pattern_type=ACLResourcePatternType.ANY))[0] == []
    finally:
        admin.close()


def test_confluent_kafka_administers_acls(administered: str) -> None:
    confluent = pytest.importorskip("confluent_kafka.admin", reason="needs confluent-kafka")
    admin = confluent.AdminClient({"bootstrap.servers": administered})
    topic, literal = confluent.ResourceType.TOPIC, confluent.ResourcePatternType.LITERAL
    read, allow = confluent.AclOperation.READ, confluent.AclPermissionType.ALLOW
    good = confluent.AclBinding(topic, "orders", literal, "User:bob", "*", read, allow)
    bad = confluent.AclBinding(topic, "orders", literal, "bob", "*", read, allow)
    results = admin.create_acls([good, bad], request_timeout=30)
    assert results[good].result() is None
    with pytest.raises(Exception, match="write it as User:NAME"):
        results[bad].result()
    every = confluent.AclBindingFilter(
        confluent.ResourceType.ANY,
        None,
        confluent.ResourcePatternType.ANY,
        "User:bob",
        None,
        confluent.AclOperation.ANY,
        confluent.AclPermissionType.ANY,
    )
    assert admin.describe_acls(every, request_timeout=30).result() == [good]
    assert admin.delete_acls([every], request_timeout=30)[every].result() == [good]
    assert admin.describe_acls(every, request_timeout=30).result() == []


def allow(kind: Kind, name: str, operation: Operation) -> AclBinding:
    return AclBinding(kind, PatternType.LITERAL, name, ANONYMOUS, "*", operation, Permission.ALLOW)


@pytest.fixture
def denied(tmp_path: Path) -> Iterator[LocalCluster]:
    """A broker where nobody may do anything without an ACL."""
    made = cluster_of(tmp_path / "c", "User:nobody")
    try:
        made.start()
        yield made
    finally:
        end(made)


def test_a_consumer_of_a_group_loses_its_topic_and_gets_it_back(denied: LocalCluster) -> None:
    """ACLs change under a running group: the client is refused, and goes on once it is allowed again."""
    on_topic = [allow(Kind.TOPIC, "orders", operation) for operation in (Operation.CREATE, Operation.WRITE)]
    read, group = allow(Kind.TOPIC, "orders", Operation.READ), allow(Kind.GROUP, "billing", Operation.READ)
    with denied.store_session() as session:
        store_requests.create_acls(session, [*on_topic, read])
        producer = kafka.KafkaProducer(bootstrap_servers=denied.bootstrap(), acks="all")
        consumer = kafka.KafkaConsumer(
            "orders",
            bootstrap_servers=denied.bootstrap(),
            group_id="billing",
            auto_offset_reset="earliest",
            metadata_max_age_ms=200,
        )
        try:
            produced(producer)
            with pytest.raises(GroupAuthorizationFailedError):
                consumer.poll(timeout_ms=20_000)
            store_requests.create_acls(session, [group])
            received: list[bytes] = []
            eventually(lambda: b"order" in poll(consumer, received), lambda: f"received {received}")
            store_requests.delete_acls(session, [AclFilter(operation=Operation.READ, name="orders")])
            eventually(lambda: is_refused(lambda: poll(consumer, received)), lambda: "it reads on")
            produced(producer)
            count = len(received)
            assert is_refused(lambda: poll(consumer, received)) or len(received) == count
            store_requests.create_acls(session, [read])
            eventually(
                lambda: not is_refused(lambda: poll(consumer, received)) and len(received) > count,
                lambda: f"received {received}",
            )
        finally:
            consumer.close()
            producer.close()


def produced(producer: Any) -> None:
    producer.send("orders", b"order").get(timeout=60)


def poll(consumer: Any, received: list[bytes]) -> list[bytes]:
    """The values received so far."""
    try:
        for records in consumer.poll(timeout_ms=300).values():
            received += [record.value for record in records]
    except (GroupAuthorizationFailedError, TopicAuthorizationFailedError):
        if not received:  # before the ACL was there
            return received
        raise
    return received


def is_refused(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except TopicAuthorizationFailedError:
        return True
    return False


def test_acls_are_for_users_that_the_listener_has_authenticated(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path / "c", "User:nobody")
    file = cluster.home(0) / "broker.toml"
    address = f"127.0.0.1:{free_ports(1)[0]}"
    line = next(line for line in file.read_text().splitlines() if line.startswith('"listeners" = '))
    given = json.loads(line.partition(" = ")[2])
    file.write_text(
        file.read_text().replace(line, f'"listeners" = {json.dumps([*given, f"SASL_PLAINTEXT://{address}"])}')
    )
    with cluster.store_session() as session:
        for user in ("alice", "bob"):
            store_requests.put_user(session, new_credentials(user, user, ("SCRAM-SHA-256",), 4096))
        write = allow(Kind.TOPIC, "orders", Operation.WRITE)._replace(principal="User:alice")
        store_requests.create_acls(session, [write, write._replace(operation=Operation.CREATE)])

    def producer(user: str | None) -> Any:
        if user is None:
            return kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap())
        names = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
        security = ClientSecurity.of({**names, "sasl.username": user, "sasl.password": user})
        return kafka.KafkaProducer(bootstrap_servers=address, **security.of_kafka_python())

    try:
        cluster.start()
        for name, allowed in (("alice", True), ("bob", False), (None, False)):
            client = producer(name)
            try:
                if allowed:
                    produced(client)
                else:
                    with pytest.raises(TopicAuthorizationFailedError):
                        produced(client)
            finally:
                client.close()
    finally:
        end(cluster)
