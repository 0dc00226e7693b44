"""The table of authorization at a real Kafka, whose StandardAuthorizer needs the same ACLs and gives the same errors.

Kafka's clients prove who they are by SASL/PLAIN here. Source of the cases: tests/server/authorization/cases.py.
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.cluster import store_requests
from kreplog.cluster.local_cluster import LocalCluster
from kreplog.core.security.acls import SUPPORTED_OPERATIONS, AclBinding, ResourceType
from kreplog.errors import ErrorCode
from kreplog.server.settings import STANDARD_AUTHORIZER
from kreplog.wire import generic
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import TO_CLIENTS, ApiKey
from tests.integration.clusters import end
from tests.interop.jvm import HOST, NEWEST, Broker, Kafka, skipped_where_unavailable
from tests.reference import sent
from tests.server.authorization.cases import AUTHORIZATION, DOOMED, NEW_TOPIC, TOPIC, Case, cases
from tests.server.authorization.clients import ANY_FILTER, creations
from tests.server.authorization.test_table import SUFFICIENT, acls_of, insufficient

pytestmark = pytest.mark.interop

SETTINGS = """\
listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.plaintext.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
username="admin" password="admin" user_admin="admin" user_alice="alice";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:admin;User:ANONYMOUS
auto.create.topics.enable=true
"""
"""The controller's listener authenticates nobody, and is the broker's alone."""

CASES = [
    case
    for case in cases(sent(1000, 0, b"value", transactional=False), sent(1001, 0, b"value"))
    if case.key not in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
]
"""Without those that would begin the authentication again on which the others rely."""

WITHIN_S = 60
_ids = itertools.count(1)


class Client:
    """A blocking connection of a user, whose password is the name."""

    def __init__(self, port: int, user: str) -> None:
        self._user = user
        self._sock = socket.create_connection((HOST, port), timeout=WITHIN_S)
        self._exchange(_sasl(17, 1, _text("PLAIN")))
        token = f"\0{user}\0{user}".encode()
        answer = self._exchange(_sasl(36, 0, struct.pack(">i", len(token)) + token))
        assert answer[4:6] == b"\0\0", f"Kafka does not authenticate {user}"

    def _exchange(self, frame: bytes) -> bytes:
        self._sock.sendall(frame)
        return self._receive(int.from_bytes(self._receive(4)))

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._sock.recv(size - len(data))
            assert part, "Kafka has closed the connection"
            data += part
        return data

    def errors(self, case: Case) -> set[ErrorCode]:
        header = case.header(next(_ids), self._user)
        return case.errors(self._exchange(case.request(header)), header)

    def call(self, key: ApiKey, **fields: Any) -> Any:
        header = RequestHeader(key, TO_CLIENTS[key][1], next(_ids), self._user)
        frame = b"".join(bytes(part) for part in generic.encode_request(header, **fields))
        return generic.decode_response(self._exchange(frame), header)

    def close(self) -> None:
        self._sock.close()


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _sasl(key: int, version: int, body: bytes) -> bytes:
    """A request of SASL, which has the header of version 1."""
    request = struct.pack(">hhi", key, version, next(_ids)) + _text("kreplog") + body
    return struct.pack(">i", len(request)) + request


class World:
    def __init__(self, port: int) -> None:
        self.admin = Client(port, "admin")
        self.alice = Client(port, "alice")

    def create(self, name: str) -> None:
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        self.admin.call(ApiKey.CREATE_TOPICS, topics=[topic], timeout_ms=20_000, validate_only=False)
        self._until(lambda: self._exists(name))

    def delete_new_topic(self) -> None:
        topics = [{"name": NEW_TOPIC, "topic_id": None}]
        self.admin.call(ApiKey.DELETE_TOPICS, topics=topics, timeout_ms=20_000)
        self._until(lambda: not self._exists(NEW_TOPIC))

    def _exists(self, name: str) -> bool:
        request = {"topics": [{"topic_id": None, "name": name}], "allow_auto_topic_creation": False}
        (topic,) = self.admin.call(ApiKey.METADATA, **request).topics
        return not topic.error_code

    def set_acls(self, acls: Sequence[AclBinding]) -> None:
        self.admin.call(ApiKey.DELETE_ACLS, filters=[ANY_FILTER])
        created = self.admin.call(ApiKey.CREATE_ACLS, creations=creations(list(acls)))
        assert all(not result.error_code for result in created.results), created
        self._until(lambda: self._count() == len(set(acls)))

    def _count(self) -> int:
        described = self.admin.call(ApiKey.DESCRIBE_ACLS, **ANY_FILTER)
        return sum(len(resource.acls) for resource in described.resources)

    def _until(self, true: Any) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not true():
            assert time.monotonic() < deadline, "Kafka has not applied a change"
            time.sleep(0.005)  # until its metadata have the change, which nothing announces

    def denied(self, case: Case, acls: Sequence[AclBinding]) -> set[ErrorCode]:
        self.set_acls(acls)
        if case.key is ApiKey.DELETE_TOPICS:
            self.create(DOOMED)
        return self.alice.errors(case) & AUTHORIZATION

    def close(self) -> None:
        self.admin.close()
        self.alice.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder: Path = tmp_path_factory.mktemp("authorizing")
    with skipped_where_unavailable():
        broker = Broker(Kafka(folder, NEWEST), folder, SETTINGS)
    try:
        broker.start()
        made = World(broker.port)
        made.create(TOPIC)
        yield made
        made.close()
    finally:
        broker.kill()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_kafka_needs_the_same_acls(case: Case, world: World) -> None:
    world.delete_new_topic()
    first = {case.needs[0].error} if case.needs else set()
    assert world.denied(case, []) == first
    for missing in case.needs:
        left = [need for need in case.needs if need is not missing]
        assert world.denied(case, acls_of(left)) == {missing.error}, missing
    if case.needs:
        for acls in insufficient(acls_of(case.needs)):
            assert world.denied(case, acls), acls
    for needs in (case.needs, *case.alternatives):
        for variant in SUFFICIENT:
            assert not world.denied(case, variant(acls_of(needs))), variant
    world.set_acls([])
    if case.key is ApiKey.DELETE_TOPICS:
        world.create(DOOMED)
    assert not world.admin.errors(case) & AUTHORIZATION


def test_kafka_authorizes_the_same_operations(world: World) -> None:
    """KIP-430: all that exist on each type, for a super user."""
    request = {"topics": [{"topic_id": None, "name": TOPIC}], "allow_auto_topic_creation": False}
    topics = world.admin.call(ApiKey.METADATA, include_topic_authorized_operations=True, **request).topics
    assert topics[0].authorized_operations == SUPPORTED_OPERATIONS[ResourceType.TOPIC]
    cluster = world.admin.call(ApiKey.DESCRIBE_CLUSTER, include_cluster_authorized_operations=True, endpoint_type=1)
    assert cluster.authorized_operations == SUPPORTED_OPERATIONS[ResourceType.CLUSTER]


def test_kafka_acls_administers_a_broker_of_kreplog(kafka: Kafka, tmp_path: Path) -> None:
    settings = [f'"authorizer.class.name" = "{STANDARD_AUTHORIZER}"', '"super.users" = "User:ANONYMOUS"']
    cluster = LocalCluster.create(tmp_path / "c", [0], 0, settings)

    def acls(*arguments: str) -> str:
        return kafka.run("kafka.admin.AclCommand", "--bootstrap-server", cluster.bootstrap(), *arguments)

    def stored() -> set[tuple[str, ...]]:
        with cluster.store_session() as session:
            found = store_requests.read_acls(session)
        return {(acl.resource_type.name, acl.pattern_type.name, acl.name, acl.operation.name) for acl in found}

    try:
        cluster.start()
        alice = ("--allow-principal", "User:alice")
        acls("--add", *alice, "--producer", "--topic", "orders", "--transactional-id", "id")
        acls("--add", *alice, "--consumer", "--topic", "ord", "--group", "g", "--resource-pattern-type", "prefixed")
        assert stored() == {
            *(("TOPIC", "LITERAL", "orders", operation) for operation in ("WRITE", "DESCRIBE", "CREATE")),
            *(("TRANSACTIONAL_ID", "LITERAL", "id", operation) for operation in ("WRITE", "DESCRIBE")),
            *(("TOPIC", "PREFIXED", "ord", operation) for operation in ("READ", "DESCRIBE")),
            ("GROUP", "PREFIXED", "g", "READ"),
        }
        listed = acls("--list", "--topic", "orders", "--resource-pattern-type", "match")
        assert "name=orders, patternType=LITERAL" in listed
        assert "name=ord, patternType=PREFIXED" in listed
        assert "principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW" in listed
        acls("--remove", "--force", "--topic", "orders")
        acls("--remove", "--force", "--transactional-id", "id")
        assert stored() == {
            *(("TOPIC", "PREFIXED", "ord", operation) for operation in ("READ", "DESCRIBE")),
            ("GROUP", "PREFIXED", "g", "READ"),
        }
    finally:
        end(cluster)
