"""DescribeCluster and AlterPartitionReassignments in their latest versions, by real brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kreplog.core.broker import recently_failed
from kreplog.errors import ErrorCode
from kreplog.wire.versions import ApiKey
from tests.server.brokers import eventually, serving, until_controlled
from tests.server.test_broker import Client, with_broker


def test_a_failed_broker_is_described_as_fenced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-1073."""
    monkeypatch.setattr(recently_failed, "LISTED_MS", 2**40)

    async def main() -> None:
        async with serving(tmp_path, 1, 2) as brokers:
            client = Client(brokers[0])

            async def described(version: int, **fields: bool) -> list[tuple[int, bool]]:
                found = await client.call(ApiKey.DESCRIBE_CLUSTER, version, **fields)
                return sorted((broker.broker_id, broker.is_fenced) for broker in found.brokers)

            async def both_live() -> bool:
                return await described(2, include_fenced_brokers=True) == [(1, False), (2, False)]

            async def the_second_is_gone() -> bool:
                return await described(2) == [(1, False)]

            await until_controlled(brokers[0])
            await eventually(both_live)
            brokers[1].stop()
            await eventually(the_second_is_gone)
            assert await described(2, include_fenced_brokers=True) == [(1, False), (2, True)]
            assert await described(1) == [(1, False)]
            client.peer.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [
        (1, ErrorCode.NONE),
        (2, ErrorCode.MISMATCHED_ENDPOINT_TYPE),
        (0, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
        (-1, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE),
    ],
)
def test_a_broker_is_no_controller_endpoint(tmp_path: Path, endpoint_type: int, code: ErrorCode) -> None:
    """KIP-919: a client that is given bootstrap.controllers must not take this broker for one."""

    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        for version in (1, 2):
            found = await client.call(ApiKey.DESCRIBE_CLUSTER, version, endpoint_type=endpoint_type)
            assert (found.error_code, found.endpoint_type) == (code, 1)
            assert len(found.brokers) == (code == ErrorCode.NONE)
        assert (await client.call(ApiKey.DESCRIBE_CLUSTER, 0)).error_code == 0

    with_broker(tmp_path, work)


def test_a_reassignment_that_must_keep_the_number_of_replicas(tmp_path: Path) -> None:
    """KIP-860."""

    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        assert await client.create("a") == 0

        async def reassigned(version: int, replicas: list[int], **fields: bool) -> tuple[int, bool]:
            partition = {"partition_index": 0, "replicas": replicas}
            answer = await client.call(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS,
                version,
                timeout_ms=10_000,
                topics=[{"name": "a", "partitions": [partition]}],
                **fields,
            )
            return answer.responses[0].partitions[0].error_code, answer.allow_replication_factor_change

        refused, unknown = ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await reassigned(1, [1, 2], allow_replication_factor_change=False) == (refused, False)
        assert await reassigned(1, [1, 2]) == (unknown, True)
        assert await reassigned(0, [1, 2]) == (unknown, True)
        assert await reassigned(1, [1], allow_replication_factor_change=False) == (0, False)

    with_broker(tmp_path, work)
