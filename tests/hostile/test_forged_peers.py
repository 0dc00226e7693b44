"""A user without rights, at the port for clients, plays the controller and the followers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import kreplog
from kreplog.core.messages import (
    ControlledShutdownRequest,
    FetchPartition,
    FetchRequest,
    LeaderAndIsrRequest,
    ProducePartition,
    ProduceRequest,
    StopReplica,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from kreplog.errors import ErrorCode
from kreplog.server.broker import Broker
from kreplog.server.network.peers import Peer
from kreplog.server.replication.control_sender import control_header
from kreplog.types import BrokerRegistration, TopicPartition
from kreplog.wire import control_messages, fetch, generic, produce
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey
from tests.server.brokers import eventually, serving

TP = TopicPartition("topic", 0)
FUTURE = 1 << 20
"""An epoch that no cluster here reaches."""


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with kreplog.Log.open(tmp_path_factory.mktemp("source") / "source-0") as log:
        log.append(b"value")
        return bytes(log.fetch(0).data)


class Outsider:
    """A process that can open the ports for clients."""

    async def send(self, broker: Broker, frame: list[Any]) -> Any:
        """The frame of the answer; None when the request cost the connection."""
        peer = Peer(1 << 20)
        try:
            return await peer.call(broker.address, frame, 30)
        except ConnectionResetError:
            return None
        finally:
            peer.close()

    async def control(self, broker: Broker, request: Any) -> Any:
        return await self.send(broker, control_messages.encode_request(request, control_header(request, 1, "broker-0")))

    async def request(self, broker: Broker, api: ApiKey, version: int, /, **fields: Any) -> Any:
        header = RequestHeader(api, version, 1, "test")
        return generic.decode_response(await self.send(broker, generic.encode_request(header, **fields)), header)

    async def fetch_as(self, broker: Broker, replica: int, epoch: int, offset: int) -> Any:
        partition = broker.manager.partitions[TP]
        requested = FetchPartition(TP, partition.topic_id, -1, offset, 0 if offset else -1)
        request = FetchRequest(replica, epoch, 0, 0, 1 << 20, (requested,), session_epoch=-1)
        header = RequestHeader(ApiKey.FETCH, 17, 1, f"broker-{replica}")
        return await self.send(broker, fetch.encode_request(request, header, lambda name: partition.topic_id))

    async def create(self, broker: Broker, name: str, replicas: list[int]) -> None:
        assignments = [{"partition_index": 0, "broker_ids": replicas}]
        topic = {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": assignments,
            "configs": [],
        }
        answer = await self.request(
            broker, ApiKey.CREATE_TOPICS, 5, topics=[topic], timeout_ms=10_000, validate_only=False
        )
        assert answer.topics[0].error_code == 0

    async def produce(self, broker: Broker, records: bytes, timeout_ms: int = 10_000) -> ErrorCode:
        """With acks=all."""
        header = RequestHeader(ApiKey.PRODUCE, 9, 1, "test")
        request = ProduceRequest(-1, timeout_ms, (ProducePartition(TP, records),))
        answer = await self.send(broker, produce.encode_request(request, header))
        return produce.decode_response(answer, header).partitions[0].error


def attacked(root: Path, work: Callable[[Outsider, list[Broker]], Awaitable[None]]) -> None:
    """`work` on two brokers in sync with a topic of two replicas, which the first leads."""

    async def main() -> None:
        async with serving(root, 0, 1, min_insync_replicas=2, replica_lag_time_max_ms=60_000) as brokers:
            outsider = Outsider()

            async def both() -> bool:
                answer = await outsider.request(
                    brokers[0], ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False
                )
                return len(answer.brokers) == 2 and answer.controller_id >= 0

            await eventually(both)
            await outsider.create(brokers[0], TP.topic, [0, 1])

            async def in_sync() -> bool:
                partition = brokers[0].manager.partitions.get(TP)
                known = all(TP in broker.manager.metadata.partitions for broker in brokers)
                return (
                    known and partition is not None and partition.isr == (0, 1) and TP in brokers[1].manager.partitions
                )

            await eventually(in_sync)
            await work(outsider, brokers)

    asyncio.run(main())


def epoch_of(broker: Broker) -> int:
    """As an outsider learns it with a few questions: a wrong one is answered by an error of its own."""
    return broker.registration.broker_epoch


def test_an_empty_init_deletes_nothing(tmp_path: Path, batch: bytes) -> None:
    async def work(outsider: Outsider, brokers: list[Broker]) -> None:
        assert await outsider.produce(brokers[0], batch) is ErrorCode.NONE
        for broker in brokers:
            await outsider.control(broker, LeaderAndIsrRequest(9, FUTURE, epoch_of(broker), (), is_init=True))
        for broker in brokers:
            topic_id = broker.manager.partitions[TP].topic_id
            stop = StopReplica(TP, topic_id, FUTURE, True)
            await outsider.control(broker, StopReplicaRequest(9, FUTURE, epoch_of(broker), (stop,), 9))
        for number, broker in enumerate(brokers):
            assert broker.manager.partitions[TP].log.leo == 1
            assert (tmp_path / f"data-{number}" / str(TP)).is_dir()

    attacked(tmp_path, work)


def test_metadata_of_an_outsider_reaches_no_client_and_no_controller_is_shut_out(tmp_path: Path) -> None:
    async def work(outsider: Outsider, brokers: list[Broker]) -> None:
        for broker in brokers:
            elsewhere = tuple(BrokerRegistration(number, 1, "192.0.2.1", 6666) for number in (0, 1))
            await outsider.control(broker, UpdateMetadataRequest(9, FUTURE, epoch_of(broker), elsewhere, (), (TP,), 9))
        for broker in brokers:
            metadata = await outsider.request(broker, ApiKey.METADATA, 9, topics=None)
            assert {(broker.host, broker.port) for broker in metadata.brokers} == {broker.address for broker in brokers}
            assert [topic.name for topic in metadata.topics] == [TP.topic]
        await outsider.create(brokers[0], "later", [0, 1])  # the controller goes on to be heard by both
        for broker in brokers:
            async with asyncio.timeout(10):
                await eventually(partial_known(broker, TopicPartition("later", 0)))

    attacked(tmp_path, work)


def partial_known(broker: Broker, partition: TopicPartition) -> Callable[[], Awaitable[bool]]:
    async def known() -> bool:
        return partition in broker.manager.partitions

    return known


def test_forged_followers_commit_nothing(tmp_path: Path, batch: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The follower is silent, so that the leader alone holds the record: acks=all must not be answered with success."""

    async def work(outsider: Outsider, brokers: list[Broker]) -> None:
        leader, follower = brokers
        monkeypatch.setattr(follower.senders.fetches, "send", lambda effect: None)
        first = await outsider.produce(leader, batch, 100)  # it may go with the fetch that is under way
        assert first is ErrorCode.REQUEST_TIMED_OUT
        async with asyncio.TaskGroup() as group:
            acknowledged = group.create_task(outsider.produce(leader, batch, 1500))
            while leader.manager.partitions[TP].log.leo < 2:
                await asyncio.sleep(0)  # the leader has its turn
            for offset in (1, 2):
                await outsider.fetch_as(leader, 1, epoch_of(follower), offset)
        assert acknowledged.result() is ErrorCode.REQUEST_TIMED_OUT
        assert follower.manager.partitions[TP].log.leo <= 1

    attacked(tmp_path, work)


def test_a_forged_broker_epoch_keeps_no_follower_out(tmp_path: Path, batch: bytes) -> None:
    async def work(outsider: Outsider, brokers: list[Broker]) -> None:
        await outsider.fetch_as(brokers[0], 1, FUTURE, 0)
        assert await outsider.produce(brokers[0], batch) is ErrorCode.NONE
        assert brokers[0].manager.partitions[TP].isr == (0, 1)

    attacked(tmp_path, work)


def test_inter_broker_requests_do_not_exist_for_clients(tmp_path: Path) -> None:
    async def work(outsider: Outsider, brokers: list[Broker]) -> None:
        offered = await outsider.request(brokers[0], ApiKey.API_VERSIONS, 0)
        inter_broker = {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA, ApiKey.CONTROLLED_SHUTDOWN}
        assert inter_broker.isdisjoint(api_key.api_key for api_key in offered.api_keys)
        requests = [
            LeaderAndIsrRequest(9, 0, 0, (), is_init=True),
            StopReplicaRequest(9, 0, 0, ()),
            UpdateMetadataRequest(9, 0, 0, ()),
            ControlledShutdownRequest(0, epoch_of(brokers[0])),
        ]
        for broker in brokers:
            for request in requests:
                assert await outsider.control(broker, request) is None
            assert await outsider.fetch_as(brokers[0], 1, epoch_of(brokers[1]), 0) is None
        assert brokers[0].manager.partitions[TP].leader == 0

    attacked(tmp_path, work)
