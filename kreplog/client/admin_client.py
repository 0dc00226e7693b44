"""AdminClient, asked over the Kafka protocol what a client library does not ask, or not of a broker of one's choice.

For commands: calls block, nothing waits for a broker that is silent for longer than is said, and answers are those of
kreplog.wire.generic, with the brokers' own words about what they refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from kreplog.client.broker_client import Address, BrokerClient
from kreplog.client.connecting import REACH_S, UnreachableError, succeed
from kreplog.errors import ErrorCode, PeerProtocolError, UsageError
from kreplog.types import check_topic
from kreplog.wire.versions import ApiKey

METADATA_VERSION = 12
ANSWER_S = 35.0
"""How long a broker may take for what it has to do first."""

_LOOKING = {ApiKey.METADATA, ApiKey.DESCRIBE_CONFIGS, ApiKey.LIST_PARTITION_REASSIGNMENTS}

T = TypeVar("T")


class AdminClient:
    """Those of a cluster, to be asked one after the other or all at once. known: where the live ones are, by id."""

    def __init__(self, runner: asyncio.Runner, servers: Iterable[str]) -> None:
        self._runner = runner
        self._servers = [_address(server) for server in servers]
        self.known: dict[int, Address] = {}

    def metadata(self, topics: Iterable[str] | None = None) -> Any:
        """Of these topics, or of all; makes `known` anew. Raises UnreachableError."""
        asked = None if topics is None else [{"topic_id": None, "name": topic} for topic in topics]
        fields = {"topics": asked, "allow_auto_topic_creation": False}
        answer = self.ask(ApiKey.METADATA, METADATA_VERSION, **fields)
        self.known = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        if topics is not None and _unknown(answer):  # one that has just been made others may have heard of already

            async def question(_: int, line: BrokerClient) -> Any:
                return await line.request(ApiKey.METADATA, METADATA_VERSION, **fields)

            answer = min([answer, *self.ask_each(self.known, question).values()], key=_unknown)
        return answer

    def partitions_of(self, topic: str, wanted: Iterable[int] = ()) -> list[int]:
        """Those that the topic has. Raises UsageError when one `wanted` is none of them, TopicRequestError."""
        check_topic(topic)
        (found,) = self.metadata([topic]).topics
        succeed("topic", topic, {"error_code": found.error_code})
        there = sorted(partition.partition_index for partition in found.partitions)
        for one in wanted:
            if one not in there:
                raise UsageError(f"there is no partition {topic}-{one}: the topic has {len(there)}, counted from 0")
        return there

    @property
    def addresses(self) -> list[str]:
        """host:port of those `known`."""
        return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.known.values()]

    def ask(self, api: ApiKey, version: int, /, **fields: Any) -> Any:
        """Whichever broker answers, at best the one that did so last. One that is silent about a request that changes
        something is not followed by another: it may have done what it was asked. Raises UnreachableError."""
        changes = api not in _LOOKING

        async def question(line: BrokerClient) -> Any:
            return await line.request(api, version, **fields)

        failures = []
        for address in dict.fromkeys((*self._servers, *self.known.values())):
            answer = self._runner.run(_asked(address, question, ANSWER_S if changes else REACH_S))
            if not isinstance(answer, Exception):
                self._servers = list(dict.fromkeys((address, *self._servers)))
                return answer
            failures.append(f"{address[0]}:{address[1]} ({_words(answer)})")
            if changes and isinstance(answer, TimeoutError):
                break
        raise UnreachableError(f"no broker answers at {', '.join(failures)}: do they still run?")

    def ask_each(self, brokers: Iterable[int], question: Callable[[int, BrokerClient], Awaitable[T]]) -> dict[int, T]:
        """What those of `brokers` say who answer, all asked at once; none may take longer than REACH_S."""

        async def each() -> dict[int, T]:
            asked = [broker for broker in dict.fromkeys(brokers) if broker in self.known]
            answers = await asyncio.gather(*(_asked(self.known[one], partial(question, one), REACH_S) for one in asked))
            return {
                one: answer for one, answer in zip(asked, answers, strict=True) if not isinstance(answer, Exception)
            }

        return self._runner.run(each())


async def _asked(address: Address, question: Callable[[BrokerClient], Awaitable[T]], timeout_s: float) -> T | Exception:
    line = BrokerClient(address, timeout_s)
    try:
        return await question(line)
    except (OSError, TimeoutError, PeerProtocolError) as error:
        return error
    finally:
        line.close()


def _unknown(metadata: Any) -> int:
    """How many topics the broker that told this does not know."""
    return sum(topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for topic in metadata.topics)


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (getattr(error, "strerror", None) or str(error)).lower()


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)
