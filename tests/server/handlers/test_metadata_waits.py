"""Metadata requests of a broker wait for the election of a suspected leader."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.core.messages import UpdateMetadataRequest
from kreplog.wire.versions import ApiKey
from tests.server.test_broker import Client, with_broker


def test_metadata_of_a_suspected_leader_waits_for_the_election(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker suspects itself here. Metadata of what it leads waits for the next update, others do not."""

    async def work(client: Client) -> None:
        broker, other = client.broker, Client(client.broker)
        assert await client.create("led") == 0
        suspected = {broker.id}
        monkeypatch.setattr(broker.metadata_waits.recently_failed, "suspected", lambda now_ms: suspected)
        topics = [{"topic_id": None, "name": "led"}]
        pending = asyncio.create_task(client.call(ApiKey.METADATA, 9, topics=topics))
        for nothing_led in ([], [{"topic_id": None, "name": "unknown"}]):
            await other.call(ApiKey.METADATA, 9, topics=nothing_led)
        assert not pending.done()
        suspected.clear()
        broker.topics.changed(UpdateMetadataRequest(broker.id, 1, 1, ()))
        (result,) = (await pending).topics
        assert result.partitions[0].leader_id == broker.id
        other.peer.close()

    with_broker(tmp_path, work)
