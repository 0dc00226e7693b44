"""ClusterConnections: where the brokers of a cluster are, which of them leads a partition, and a connection to each.

For requests that are answered at once: Metadata, ListOffsets, InitProducerId. Fetches and produces, which wait at the
broker, have connections of their own. Calls block, each for no longer than its deadline (time.monotonic).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

from kreplog.client.broker_client import Address
from kreplog.client.bulk_connection import BulkConnection, close_quietly
from kreplog.client.bulk_errors import (
    BrokersUnreachableError,
    TopicAuthorizationError,
    TopicRecreatedError,
    UnknownTopicError,
    UnsupportedBrokerError,
)
from kreplog.client.cluster_metadata import ClusterMetadata
from kreplog.client.connection_errors import connection_failure
from kreplog.client.security import PLAINTEXT, ClientSecurity
from kreplog.core.security.acls import Operation
from kreplog.errors import ArgumentTypeError, ErrorCode, UsageError
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey

RETRY_BACKOFF_S = 0.1
"""Kafka's retry.backoff.ms: between two looks at the metadata."""

CONNECT_S = 5.0
"""The most that one broker may take to accept a connection and to negotiate versions, while others may be tried."""


class ClusterConnections:
    """Connections to the brokers of a cluster, one for each, made when first used. bootstrap: "host:port,host:port" or
    a list of "host:port"."""

    def __init__(
        self,
        bootstrap: str | Iterable[str],
        client_id: str,
        request_timeout_s: float,
        security: ClientSecurity = PLAINTEXT,
    ) -> None:
        servers = bootstrap.split(",") if isinstance(bootstrap, str) else list(bootstrap)
        self._bootstrap = [parse_address(server) for server in servers]
        if not self._bootstrap:
            raise UsageError("bootstrap names no broker: write host:port, with commas between several")
        self._client_id = client_id
        self._request_timeout_s = request_timeout_s
        self._security = security
        self._connections: dict[Address, BulkConnection] = {}
        self._answered: Address | None = None
        self.metadata = ClusterMetadata()

    def refresh(self, topics: Iterable[str] | None, deadline: float) -> ClusterMetadata:
        """Metadata of `topics`, or of all, from whichever broker answers; each is tried once, the last to answer first.

        Raises BrokersUnreachableError, PeerProtocolError, UnsupportedBrokerError, AuthenticationError."""
        self.metadata = self.metadata.updated(self._request_metadata(topics, deadline))
        return self.metadata

    def _request_metadata(self, topics: Iterable[str] | None, deadline: float, **fields: bool) -> Any:
        listed = None if topics is None else [{"topic_id": None, "name": topic} for topic in topics]
        failures = []
        known = [*self.metadata.brokers.values(), *self._bootstrap]
        first = [self._answered] if self._answered in known else []
        for address in dict.fromkeys((*first, *known)):
            try:
                response = self._call(
                    address, ApiKey.METADATA, deadline, topics=listed, allow_auto_topic_creation=False, **fields
                )
            except OSError as error:
                failures.append(f"{address[0]}:{address[1]} ({connection_failure(error)})")
                if time.monotonic() >= deadline:
                    break
                continue
            self._answered = address
            return response
        self._answered = None
        raise BrokersUnreachableError(f"no broker answers at {', '.join(failures)}: are they running?")

    def require_readable(self, topics: Iterable[str], deadline: float) -> None:
        """Raise TopicAuthorizationError for one of `topics` that this client may not describe or read; brokers before
        Kafka 2.3 do not report whether it may be read (KIP-430). Raises as `refresh`."""
        self._require_authorized(topics, Operation.READ, deadline)

    def require_writable(self, topics: Iterable[str], deadline: float) -> None:
        """As require_readable, of writes."""
        self._require_authorized(topics, Operation.WRITE, deadline)

    def _require_authorized(self, topics: Iterable[str], operation: Operation, deadline: float) -> None:
        for topic in self._request_metadata(topics, deadline, include_topic_authorized_operations=True).topics:
            operations = topic.authorized_operations
            if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                denied = Operation.DESCRIBE
            elif not topic.error_code and operations is not None and operation not in operations:
                denied = operation
            else:
                continue
            raise TopicAuthorizationError(
                f"topic {topic.name}: this client's principal may not {denied.name} it: add an ACL, or connect as "
                "another user"
            )

    def call_leader(self, broker_id: int, api: ApiKey, deadline: float, /, **fields: Any) -> Any:
        """The response of a broker in the metadata. Raises OSError, PeerProtocolError, UnsupportedBrokerError."""
        return self._call(self.address_of(broker_id), api, deadline, **fields)

    def call_any(self, api: ApiKey, deadline: float, /, **fields: Any) -> Any:
        """The response of the broker that answered the last Metadata request. Raises as call_leader."""
        if self._answered is None:
            self.refresh((), deadline)
        if self._answered is None:
            raise ConnectionError("no broker has answered")
        return self._call(self._answered, api, deadline, **fields)

    def call_at(self, address: Address, api: ApiKey, deadline: float, /, **fields: Any) -> Any:
        """The response of the broker at an address that another broker has named. Raises as call_leader."""
        return self._call(address, api, deadline, **fields)

    def version_of_any(self, api: ApiKey, deadline: float, at_least: int = 0) -> int:
        """The version of a request that the broker of call_any takes. Raises UnsupportedBrokerError, OSError."""
        if self._answered is None or self._answered not in self._connections:
            self.refresh((), deadline)
        if self._answered is None:
            raise ConnectionError("no broker has answered")
        version = self._connections[self._answered].version(api)
        if version < at_least:
            raise UnsupportedBrokerError(
                f"the broker at {self._answered[0]}:{self._answered[1]} offers {api.name} up to version {version}, "
                f"needed is {at_least}"
            )
        return version

    def connect(self, broker_id: int, deadline: float) -> BulkConnection:
        """A new connection, the caller's own. Raises OSError, PeerProtocolError."""
        return self._connect(self.address_of(broker_id), deadline)

    def address_of(self, broker_id: int) -> Address:
        """Raises ConnectionError for a broker that the metadata do not name."""
        try:
            return self.metadata.brokers[broker_id]
        except KeyError:
            raise ConnectionError(f"broker {broker_id} is not in the metadata") from None

    def require(self, partitions: Iterable[TopicPartition], deadline: float) -> ClusterMetadata:
        """Metadata that hold all of `partitions`; a topic that is unknown is looked for until `deadline`, since brokers
        learn of a new one at different times. Raises UnknownTopicError, TopicAuthorizationError, and as `refresh`."""
        wanted = list(partitions)
        while True:
            missing = [partition for partition in wanted if partition not in self.metadata.partitions]
            if not missing:
                return self.metadata
            self.refresh({partition.topic for partition in missing}, deadline)
            missing = [partition for partition in missing if partition not in self.metadata.partitions]
            if not missing:
                return self.metadata
            for partition in missing:
                if self.metadata.denies(partition.topic):
                    raise unauthorized(partition)
            if time.monotonic() + RETRY_BACKOFF_S >= deadline:
                raise UnknownTopicError(
                    f"{missing[0]}: the cluster has no such topic or partition", partition=str(missing[0])
                )
            self._answered = None  # another broker may know
            time.sleep(RETRY_BACKOFF_S)  # brokers may be restarting, which nothing here is notified of

    def close(self) -> None:
        while self._connections:
            close_quietly(self._connections.popitem()[1])

    def _call(self, address: Address, api: ApiKey, deadline: float, **fields: Any) -> Any:
        connection = self._connections.get(address)
        try:
            if connection is None:
                connection = self._connections[address] = self._connect(address, deadline)
            until = min(deadline, time.monotonic() + self._request_timeout_s)
            return connection.call(api, until, **fields)
        except BaseException:
            close_quietly(self._connections.pop(address, None))
            raise

    def _connect(self, address: Address, deadline: float) -> BulkConnection:
        timeout_s = min(CONNECT_S, deadline - time.monotonic())
        if timeout_s <= 0:
            raise TimeoutError("no time is left to connect")
        return BulkConnection(address, self._client_id, timeout_s, self._security)


def unauthorized(partition: TopicPartition) -> TopicAuthorizationError:
    """The error for a partition of a topic that is denied."""
    return TopicAuthorizationError(
        f"{partition}: this client's principal may not do that with the topic: add an ACL, or connect as another user",
        partition=str(partition),
    )


def check_topic_id(metadata: ClusterMetadata, partition: TopicPartition, topic_id: str) -> None:
    """Raise TopicRecreatedError if the partition's topic now has another id than `topic_id`; "" is any."""
    known = metadata.partitions.get(partition)
    gone = known is None and metadata.topic_errors.get(partition.topic) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    current = "" if known is None else known.topic_id
    if topic_id and not gone and current and current != topic_id:
        raise TopicRecreatedError(
            f"{partition}: the topic with id {topic_id} was deleted, the topic that has its name now has id {current}: "
            "begin again at its start",
            partition=str(partition),
            topic_id=topic_id,
            new_topic_id=current,
        )


def by_leader(metadata: ClusterMetadata, partitions: Iterable[TopicPartition]) -> dict[int, list[TopicPartition]]:
    """`partitions` by the broker that leads them, NO_LEADER for those without."""
    led: dict[int, list[TopicPartition]] = {}
    for partition in partitions:
        led.setdefault(metadata.leader_of(partition), []).append(partition)
    return led


def parse_address(text: str) -> Address:
    """Raises UsageError."""
    if not isinstance(text, str):
        raise ArgumentTypeError(f"a broker's address is a str, host:port, not {type(text).__name__}")
    host, colon, port = text.strip().rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"bootstrap {text!r}: write host:port, with commas between several")
    return host.removeprefix("[").removesuffix("]"), int(port)
