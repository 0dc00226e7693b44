"""The console on a real Apache Kafka: all but the controller's epoch and the metrics."""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from typing import Any

import pytest

from kreplog.commands.connecting import bootstrap_servers
from kreplog.console.cluster_source import ClusterSource
from kreplog.errors import KreplogError
from tests.interop.clients import create, messages, send
from tests.interop.jvm import Broker

pytestmark = pytest.mark.interop


def test_a_real_kafka_is_shown_and_changed(either: Broker) -> None:
    create(either.bootstrap, "shown")
    send(either.bootstrap, "shown", messages(range(10)))

    async def run() -> None:
        source = ClusterSource(partial(bootstrap_servers, None, either.bootstrap, None), [])

        async def act(name: str, confirmed: str | None, **parameters: str) -> Any:
            return await source.act(name, parameters, confirmed)

        try:
            snapshot = await source.snapshot()
            assert snapshot.health().startswith("Healthy: 1 broker, ") and snapshot.controller_epoch is None
            rows = snapshot.topics["shown"].partitions
            (replica,) = (await source.replicas("shown", rows))[0]
            assert (replica["state"], replica["log_start_offset"], replica["log_end_offset"]) == ("leader", 0, 10)
            page = await source.read("records", {"topic": "shown", "partition": "0", "newest": "3"})
            assert [record["offset"] for record in page["records"]] == [7, 8, 9]
            expected = messages(range(9, 10))[0].value
            assert base64.b64decode(page["records"][-1]["value"]["base64"]) == expected
            settings = (await source.read("topic-settings", {"topic": "shown"}))["settings"]
            assert "retention.ms" in {setting["name"] for setting in settings}
            broker = (await source.read("broker-settings", {"broker": "1"}))["settings"]
            assert ("node.id", "1") in {(setting["name"], setting["value"]) for setting in broker}
            assert (await source.read("sizes", {"topic": "shown", "partitions": "0"}))["sizes"][0][1] > 0
            assert isinstance((await source.read("groups", {}))["groups"], list)
            assert (await source.read("metrics", {}))["brokers"] == {}
            with pytest.raises(KreplogError, match="No Authorizer"):
                await source.read("acls", {})

            made = await act("create-topic", "made", topic="made", partitions="2")
            assert made == {"done": "made is created"}
            changed = await act("alter-config", "made", topic="made", config="retention.ms", value="7000")
            assert changed["done"] == "made: retention.ms is 7000"
            produced = await act("produce", "shown", topic="shown", partition="0", value="v", key="k")
            assert produced["done"] == "produced to shown-0 at offset 10"
        finally:
            await source.close()

    asyncio.run(run())
