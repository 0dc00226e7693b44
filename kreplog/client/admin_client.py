"""AdminClient: blocking admin client of the command line, for requests that client libraries lack.

Responses are those of kreplog.wire.generic. No call waits longer than its time-out for a broker that does not respond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from kreplog.client.bootstrap import CONNECT_TIMEOUT_S, SilentBrokersError, UnreachableError, raise_for_error
from kreplog.client.broker_client import Address, BrokerClient
from kreplog.client.connection_errors import connection_failure
from kreplog.client.security import PLAINTEXT, ClientSecurity
from kreplog.errors import ErrorCode, PeerProtocolError, UsageError
from kreplog.types import address_text, check_topic
from kreplog.wire.versions import ApiKey

METADATA_VERSION = 12
CHANGE_TIMEOUT_S = 35.0
"""Time-out of a request that changes the cluster; the broker may wait for the controller first."""

_READ_ONLY = {
    ApiKey.METADATA,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_ACLS,
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    ApiKey.LIST_PARTITION_REASSIGNMENTS,
}

T = TypeVar("T")


class AdminClient:
    """Sends requests to any broker of a cluster, or to several at once. live: addresses of the live brokers by id, of
    the last `metadata`. security: as clients of these addresses need it. persistent: requests share connections, for
    who sends them again and again; `close` closes these."""

    def __init__(
        self,
        runner: asyncio.Runner,
        servers: Iterable[str],
        security: ClientSecurity = PLAINTEXT,
        *,
        persistent: bool = False,
    ) -> None:
        self._runner = runner
        self.security = security
        self._persistent = persistent
        self._idle: dict[tuple[Address, float], BrokerClient] = {}
        self._servers = [_address(server) for server in servers]
        self.live: dict[int, Address] = {}

    def metadata(self, topics: Iterable[str] | None = None) -> Any:
        """The Metadata response for these topics, or for all; updates `live`. Raises UnreachableError."""
        requested = None if topics is None else [{"topic_id": None, "name": topic} for topic in topics]
        fields = {"topics": requested, "allow_auto_topic_creation": False}
        response = self.request(ApiKey.METADATA, METADATA_VERSION, **fields)
        self.live = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        if topics is not None and _unknown_topics(response):  # other brokers may know a new topic already

            async def request(_: int, client: BrokerClient) -> Any:
                return await client.request(ApiKey.METADATA, METADATA_VERSION, **fields)

            response = min([response, *self.request_each(self.live, request).values()], key=_unknown_topics)
        return response

    def partitions_of(self, topic: str, required: Iterable[int] = ()) -> list[int]:
        """The partition numbers of a topic. Raises UsageError if a `required` one is missing, TopicRequestError."""
        check_topic(topic)
        (metadata,) = self.metadata([topic]).topics
        raise_for_error("topic", topic, metadata)
        numbers = sorted(partition.partition_index for partition in metadata.partitions)
        for number in required:
            if number not in numbers:
                raise UsageError(
                    f"there is no partition {topic}-{number}: the topic has {len(numbers)}, counted from 0"
                )
        return numbers

    @property
    def addresses(self) -> list[str]:
        """host:port of the `live` brokers."""
        return [address_text(*address) for address in self.live.values()]

    def request(self, api: ApiKey, version: int, /, **fields: Any) -> Any:
        """The response of the first broker that sends one; the last that did is tried first. Raises UnreachableError.

        After a request that changes something has timed out no other broker is tried: the first may have applied it."""
        changes = api not in _READ_ONLY

        async def request(client: BrokerClient) -> Any:
            return await client.request(api, version, **fields)

        failures, silent = [], False
        for address in dict.fromkeys((*self._servers, *self.live.values())):
            timeout_s = CHANGE_TIMEOUT_S if changes else CONNECT_TIMEOUT_S
            response = self._runner.run(self._send(address, request, timeout_s))
            if not isinstance(response, Exception):
                self._servers = list(dict.fromkeys((address, *self._servers)))
                return response
            failures.append(f"{address[0]}:{address[1]} ({connection_failure(response)})")
            silent = silent or isinstance(response, TimeoutError)
            if changes and isinstance(response, TimeoutError):
                break
        kind = SilentBrokersError if silent else UnreachableError
        raise kind(f"no broker responds at {', '.join(failures)}: are they running?")

    def request_each(
        self, broker_ids: Iterable[int], request: Callable[[int, BrokerClient], Awaitable[T]]
    ) -> dict[int, T]:
        """The results of `request` by broker id, for all `broker_ids` at once; without the brokers that did not respond
        within CONNECT_TIMEOUT_S."""

        async def send_all() -> dict[int, T]:
            live = [broker_id for broker_id in dict.fromkeys(broker_ids) if broker_id in self.live]
            responses = await asyncio.gather(
                *(
                    self._send(self.live[broker_id], partial(request, broker_id), CONNECT_TIMEOUT_S)
                    for broker_id in live
                )
            )
            return {
                broker_id: response
                for broker_id, response in zip(live, responses, strict=True)
                if not isinstance(response, Exception)
            }

        return self._runner.run(send_all())

    async def _send(
        self, address: Address, request: Callable[[BrokerClient], Awaitable[T]], timeout_s: float
    ) -> T | Exception:
        client = self._idle.pop((address, timeout_s), None) or BrokerClient(address, timeout_s, self.security)
        done = False
        try:
            response = await request(client)
            done = True
            return response
        except (OSError, TimeoutError, PeerProtocolError) as error:
            return error
        finally:
            if done and self._persistent:
                self._idle[address, timeout_s] = client
            else:
                client.close()

    def close(self) -> None:
        """Close the connections that are open between requests."""
        while self._idle:
            self._idle.popitem()[1].close()


def _unknown_topics(metadata: Any) -> int:
    """Number of requested topics that the broker does not know."""
    return sum(topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic in metadata.topics)


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
