"""What a broker answers that no controller reaches: what the store says, or that it does not know, but never "no"."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

import kreplog
from kreplog.config import TopicConfig
from kreplog.core.broker import metadata_waits
from kreplog.core.broker.metadata_waits import MetadataWaits
from kreplog.core.replication.metadata import MetadataCache
from kreplog.errors import ConnectionLossError, ErrorCode
from kreplog.server.broker import Broker
from kreplog.server.handlers.stored_metadata import READ_WITHIN_S, StoredMetadata
from kreplog.types import TopicPartition
from kreplog.wire.versions import ApiKey
from tests.server.brokers import serving, until_controlled
from tests.server.loop import run_in_virtual_time
from tests.server.test_broker import Client

MISSING = TopicPartition("missing", 0)


def cut_off(controller: Broker, broker: int) -> None:
    """Nothing that the controller says reaches the other broker."""
    send = controller.senders.control.send

    def drop(effect: Any) -> None:
        if effect.broker != broker:
            send(effect)

    controller.senders.control.send = drop  # type: ignore[method-assign]  # of this controller alone


async def metadata(client: Client, *names: str) -> Any:
    topics = [{"topic_id": None, "name": name} for name in names] or None
    return await client.call(ApiKey.METADATA, 12, topics=topics, allow_auto_topic_creation=False)


def with_unreached(root: Path, work: Any) -> None:
    """Run `work(client of broker 2, broker 2)` while broker 1 controls, leads topic-0, and cannot reach broker 2."""

    async def main() -> None:
        async with serving(root, 1) as (controller,):
            await until_controlled(controller)
            client = Client(controller)
            assert await client.create("topic") == 0
            client.peer.close()
            cut_off(controller, 2)
            async with serving(root, 2, controlled_shutdown_max_wait_ms=0) as (broker,):
                client = Client(broker)
                await work(client, broker)
                client.peer.close()

    asyncio.run(main())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_waits, "QUERY_WAIT_MS", 10)
    monkeypatch.setattr(metadata_waits, "FRESH_MS", 0)


def test_the_store_is_read_without_update_metadata(tmp_path: Path) -> None:
    async def work(client: Client, broker: Broker) -> None:
        for names in (("topic", "missing"), ()):
            found = await metadata(client, *names)
            assert {broker.node_id for broker in found.brokers} == {1, 2}
            topics = {topic.name: topic for topic in found.topics}
            assert topics["topic"].error_code == 0
            (partition,) = topics["topic"].partitions
            assert (partition.error_code, partition.leader_id, list(partition.isr_nodes)) == (0, 1, [1])
            if names:
                assert topics["missing"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the store says so"
        assert broker.manager.metadata.controller_epoch < 0

    with_unreached(tmp_path, work)


def test_producers_and_consumers_get_no_unknown_partition(tmp_path: Path) -> None:
    with kreplog.Log.open(tmp_path / "source-0") as log:
        log.append(b"value")
        batch = bytes(log.fetch(0).data)

    async def work(client: Client, broker: Broker) -> None:
        for place in (TopicPartition("topic", 0), MISSING):
            answer = (await client.produce(batch, at=place)).partitions[0]
            assert answer.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
            (fetched,) = (await client.fetch(place)).partitions
            assert fetched.error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert broker.traffic.topics == {}, "a name that may be invented is not counted"

    with_unreached(tmp_path, work)


def test_no_topic_is_reported_unknown_without_store_and_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(client: Client, broker: Broker) -> None:
        async def lost(*_: Any) -> Any:
            raise ConnectionLossError("the store is away")

        with monkeypatch.context() as patch:
            patch.setattr(broker.store, "get_children", lost)
            for name in ("topic", "missing"):
                (topic,) = (await metadata(client, name)).topics
                assert topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE
            resource = {"resource_type": 2, "resource_name": "topic", "configuration_keys": None}
            answer = await client.call(
                ApiKey.DESCRIBE_CONFIGS, 4, resources=[resource], include_synonyms=False, include_documentation=False
            )
            assert answer.results[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
            with pytest.raises(OSError):
                await metadata(client)
        assert [topic.name for topic in (await metadata(client)).topics] == ["topic"]

    with_unreached(tmp_path, work)


class SilentStore:
    """A store with which a session comes late, and which is lost at once."""

    reads = 0

    async def until_connected(self) -> None:
        self.reads += 1
        # In virtual time: the second read gets a session just before its limit, the others run into theirs.
        await asyncio.sleep(READ_WITHIN_S - 1 if self.reads == 2 else 3600)

    async def get_children(self, path: str) -> Sequence[str]:
        raise ConnectionLossError("the store is away")


def test_a_store_without_response_is_waited_for_once_by_all_requests() -> None:
    """Also by those that come while others wait."""
    ended_s: list[float] = []
    store: Any = SilentStore()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        waits = MetadataWaits(1, MetadataCache())
        stored = StoredMetadata(store, waits, lambda: None, TopicConfig(), lambda: int(loop.time() * 1000))

        async def request() -> None:
            await stored.refresh()
            ended_s.append(loop.time())

        for begin_s in (0.0, READ_WITHIN_S + 1):
            await asyncio.sleep(begin_s - loop.time())
            first = [asyncio.ensure_future(request()) for _ in range(3)]
            await asyncio.sleep(1)
            await asyncio.gather(*first, request())

    run_in_virtual_time(work)
    assert ended_s == [READ_WITHIN_S] * 4 + [2 * READ_WITHIN_S] * 4
    assert store.reads == 2
