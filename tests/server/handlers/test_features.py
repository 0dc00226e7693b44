"""The features in ApiVersions, and UpdateFeatures (KIP-584), at one broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")


from kreplog.core import nodes
from kreplog.core.features import decode
from kreplog.errors import ErrorCode
from kreplog.server.broker import Broker
from kreplog.wire.versions import ApiKey
from tests.server.authorization.clients import Client
from tests.server.brokers import serving, until_controlled

REFUSED = ErrorCode.INVALID_UPDATE_VERSION


async def update(broker: Broker, version: int, **levels: int) -> Any:
    updates = [{"feature": name.replace("_", "."), "max_version_level": level} for name, level in levels.items()]
    return await Client(broker, "admin").call(ApiKey.UPDATE_FEATURES, version, timeout_ms=1000, feature_updates=updates)


def test_features_are_announced_and_updated_together_or_not_at_all(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, 0) as (broker,):
            await until_controlled(broker)
            names = {"client_software_name": "test", "client_software_version": "1"}
            response = await Client(broker, "admin").call(ApiKey.API_VERSIONS, 3, **names)
            levels = {"group.version": (1, 1), "transaction.version": (1, 2), "kreplog.version": (1, 1)}
            assert {each.name: (each.min_version, each.max_version) for each in response.supported_features} == levels
            finalized = {each.name: each.max_version_level for each in response.finalized_features}
            assert finalized == {name: greatest for name, (_, greatest) in levels.items()}
            for version in range(3):
                done = await update(broker, version, kreplog_version=1, group_version=1)
                assert (done.error_code, done.error_message) == (0, None)
                if version < 2:
                    assert [each.feature for each in done.results] == ["kreplog.version", "group.version"]
                for wrong, text in (
                    ({"kreplog_version": 2}, "broker 0 supports 1 to 1"),
                    ({"kreplog_version": 0}, "cannot be lowered to 0"),
                    ({"kreplog_version": 1, "transaction_version": 3}, "transaction.version is fixed at 2"),
                    ({"metadata_version": 1}, "there is no feature metadata.version: there are kreplog.version, group"),
                ):
                    refused = await update(broker, version, **wrong)
                    assert refused.error_code == REFUSED and text in refused.error_message
            (node,) = await broker.store.get_nodes((nodes.FEATURE,))
            assert decode(node).level == 1 and decode(node).raising is None

    asyncio.run(scenario())
