"""One broker in this process, spoken to over its socket: odd requests, and a life from start to stop."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

import kreplog
from kreplog._native.batch import build
from kreplog._native.checkpoint import OffsetCheckpoint
from kreplog.core.effects import Send
from kreplog.core.memory import PRODUCERS
from kreplog.core.messages import (
    CONSUMER,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    LeaderAndIsrRequest,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    UpdateMetadataRequest,
)
from kreplog.core.replication import sequence_grace
from kreplog.errors import ErrorCode, InvariantError
from kreplog.managed_log import ManagedLog
from kreplog.server.broker import Broker
from kreplog.server.handlers import api
from kreplog.server.network.peers import Peer
from kreplog.server.replication.fetch_client import ReplicaFetchClient
from kreplog.server.runtime import runners
from kreplog.server.runtime.store import StoreLink
from kreplog.server.settings import load
from kreplog.server.storage.directories import BOOT_MARK
from kreplog.types import TopicPartition
from kreplog.wire import fetch, generic, produce, transactions
from kreplog.wire.frames import RequestHeader
from kreplog.wire.versions import ApiKey
from tests.faults import shim
from tests.server.brokers import serving, until_controlled
from tests.server.loop import until

TP = TopicPartition("topic", 0)
NO_TRANSACTION = {"transactional_id": None, "transaction_timeout_ms": 1}


class Client:
    """Speaks to one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.peer = Peer(1 << 20)

    async def call(self, api: ApiKey, version: int, /, **fields: Any) -> Any:
        header = RequestHeader(api, version, 1, "test")
        frame = await self.peer.call(self.broker.address, generic.encode_request(header, **fields), 10)
        return generic.decode_response(frame, header)

    async def create(self, name: str, partitions: int = 1) -> int:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
        answer = await self.call(ApiKey.CREATE_TOPICS, 5, topics=[topic], timeout_ms=10_000, validate_only=False)
        return int(answer.topics[0].error_code)

    async def produce(
        self, records: Any, acks: int = -1, at: TopicPartition = TP, version: int = 9, timeout_ms: int = 1000
    ) -> ProduceResponse:
        header = RequestHeader(ApiKey.PRODUCE, version, 1, "test")
        request = ProduceRequest(acks, timeout_ms, (ProducePartition(at, records),))
        data = produce.encode_request(request, header)
        frame = await self.peer.call(self.broker.address, data, 9 + timeout_ms / 1000)
        return produce.decode_response(frame, header)

    async def fetch(self, at: TopicPartition = TP, /, **oddities: Any) -> FetchResponse:
        header = RequestHeader(ApiKey.FETCH, 12, 1, "test")
        requested = FetchPartition(
            at, "", -1, oddities.get("offset", 0), max_bytes=oddities.get("partition_bytes", 1 << 20)
        )
        request = FetchRequest(
            CONSUMER,
            -1,
            oddities.get("max_wait_ms", 0),
            oddities.get("min_bytes", 1),
            oddities.get("max_bytes", 1 << 20),
            (requested,),
            session_id=oddities.get("session_id", 0),
            session_epoch=oddities.get("session_epoch", -1),
        )
        frame = await self.peer.call(self.broker.address, fetch.encode_request(request, header), 10)
        return fetch.decode_response(frame, header)


def with_broker(root: Path, work: Callable[[Client], Awaitable[Any]], **settings: Any) -> None:
    """Run `work` while a broker serves, then stop it cleanly. settings: with underscores for dots."""

    async def main() -> None:
        names = {
            "broker.id": 1,
            "listeners": "127.0.0.1:0",
            "log.dirs": f"{root}/data",
            "coordination": f"embedded:{root}/store",
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
        broker = Broker(load(names, None, {}))
        running = asyncio.create_task(broker.run())
        ready = asyncio.create_task(broker.ready.wait())
        async with asyncio.timeout(30):
            await asyncio.wait((running, ready), return_when=asyncio.FIRST_COMPLETED)
            client = Client(broker)
            try:
                await work(client)
            finally:
                client.peer.close()
                broker.stop()
                await running

    asyncio.run(main())


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with kreplog.Log.open(tmp_path_factory.mktemp("source") / "source-0") as log:
        log.append(b"value")
        return bytes(log.fetch(0).data)


def test_a_life(tmp_path: Path, batch: bytes) -> None:
    async def first(client: Client) -> None:
        metadata = await client.call(ApiKey.METADATA, 9, topics=None)
        assert [(broker.node_id, broker.port) for broker in metadata.brokers] == [(1, client.broker.address[1])]
        assert metadata.controller_id == 1
        assert await client.create("topic") == 0
        assert await client.create("topic") == ErrorCode.TOPIC_ALREADY_EXISTS
        for acks in (1, -1):
            (answer,) = (await client.produce(batch, acks)).partitions
            assert answer.error is ErrorCode.NONE
        (data,) = (await client.fetch()).partitions
        assert (len(data.records), data.high_watermark) == (2 * len(batch), 2)
        ids = [(await client.call(ApiKey.INIT_PRODUCER_ID, 2, **NO_TRANSACTION)).producer_id for _ in range(3)]
        assert ids == [0, 1, 2]
        cluster = await client.call(ApiKey.DESCRIBE_CLUSTER, 0)
        assert len(cluster.cluster_id) == 22

    async def second(client: Client) -> None:
        (data,) = (await client.fetch()).partitions
        while data.error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER):
            await asyncio.sleep(0.01)
            (data,) = (await client.fetch()).partitions
        assert (len(data.records), data.high_watermark) == (2 * len(batch), 2)
        assert (await client.call(ApiKey.INIT_PRODUCER_ID, 2, **NO_TRANSACTION)).producer_id == 1000

    with_broker(tmp_path, first)
    assert (tmp_path / "data" / ".kafka_cleanshutdown").exists()
    with_broker(tmp_path, second)


def test_an_answered_request_is_freed_at_once(tmp_path: Path, batch: bytes) -> None:
    """With its frame and the mapped records of its response: a busy broker's garbage is not collected for minutes."""

    async def requests(client: Client) -> None:
        await client.produce(batch)
        await client.fetch()
        await client.call(ApiKey.METADATA, 9, topics=None)
        await client.call(ApiKey.INIT_PRODUCER_ID, 2, **NO_TRANSACTION)

    async def work(client: Client) -> None:
        await client.create("topic")
        await requests(client)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await requests(client)
            gc.collect()
            found = [type(item).__name__ for item in gc.garbage]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert not {"RequestContext", "RequestHeader", "View", "memoryview"}.intersection(found)

    with_broker(tmp_path, work)


def test_a_broker_writes_its_checkpoints_while_it_runs(tmp_path: Path, batch: bytes) -> None:
    """And again and again: a broker that is killed does not begin at the high watermarks of its start."""
    checkpoint = OffsetCheckpoint(str(tmp_path / "data" / "replication-offset-checkpoint"))

    async def work(client: Client) -> None:
        await client.create("topic")
        for high_watermark in (1, 2):
            await client.produce(batch)
            async with asyncio.timeout(20):
                while checkpoint.read().get(TP) != high_watermark:
                    await asyncio.sleep(0.01)  # the file says it, and no event

    with_broker(tmp_path, work, log_flush_offset_checkpoint_interval_ms=10)


def test_a_broker_deletes_expired_segments_while_it_runs(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.create("topic")
        for _ in range(3):
            (produced,) = (await client.produce(build([b"x" * 1000]))).partitions  # a segment each
            assert produced.error is ErrorCode.NONE
        async with asyncio.timeout(20):
            while (await client.fetch()).partitions[0].error is ErrorCode.NONE:
                await asyncio.sleep(0.01)  # a client learns it from its next fetch alone

    limits = {"log_segment_bytes": 1100, "log_retention_bytes": 1000, "log_retention_check_interval_ms": 10}
    with_broker(tmp_path, work, **limits)


def test_a_broker_forgets_idle_producers_while_it_runs(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        await client.create("topic")
        await client.produce(build([b"x"], producer_id=1, producer_epoch=0, base_sequence=0))
        assert client.broker.memory.held[PRODUCERS] > 0
        async with asyncio.timeout(20):
            while client.broker.memory.held[PRODUCERS] > 0:
                await asyncio.sleep(0.01)  # no event says that they are forgotten

    with_broker(tmp_path, work, producer_id_expiration_ms=500, producer_id_expiration_check_interval_ms=10)


def test_a_broker_registers_as_unclean_until_the_controller_has_handled_it(tmp_path: Path) -> None:
    async def known(client: Client) -> None:
        while client.broker.registration.broker.unclean:
            await asyncio.sleep(0.01)  # no event says that the controller has handled it
        assert not any(directory.start.may_have_lost for directory in client.broker.hosted.directories)

    with_broker(tmp_path, known)
    (tmp_path / "data" / ".kafka_cleanshutdown").unlink()
    (tmp_path / "data" / BOOT_MARK).write_text("another boot")
    with_broker(tmp_path, known)


def test_a_broker_is_clean_although_its_controller_hung_up_before_the_answer(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        broker = client.broker
        while broker.registration.broker.unclean:
            await asyncio.sleep(0.01)  # until the INIT of its registration
        manager, (directory,) = broker.manager, broker.hosted.directories
        broker.registration.broker = replace(broker.registration.broker, unclean=True)
        directory.start = directory.start._replace(unclean=True)
        (tmp_path / "data" / BOOT_MARK).write_text("another boot")
        number = manager.fencing.last_sequence + 1
        init = LeaderAndIsrRequest(1, manager.controller_epoch, manager.broker_epoch, (), True, number)
        broker.api.handle_local_control(init).cancel()
        while broker.registration.broker.unclean:
            await asyncio.sleep(0.01)  # until its files are synced
        assert not directory.start.unclean and (tmp_path / "data" / BOOT_MARK).read_text() != "another boot"

    with_broker(tmp_path, work)


def test_a_leader_that_did_not_run_for_longer_than_its_session_serves_nobody(tmp_path: Path, batch: bytes) -> None:
    async def work(client: Client) -> None:
        await client.create("topic")
        await client.produce(batch)
        session: Any = client.broker.store._session
        interval_s, loop = session._interval_ms / 1000, asyncio.get_running_loop()
        while session._beat_ms / 1000 + interval_s / 2 < loop.time():
            await asyncio.sleep(0.01)  # it has just beaten: it will not look at its clock for a while
        session._beat_ms -= session.timeout_ms
        for answer in (await client.fetch(), await client.produce(batch)):
            assert answer.partitions[0].error is ErrorCode.NOT_LEADER_OR_FOLLOWER
        while (fetched := await client.fetch()).partitions[0].error is not ErrorCode.NONE:
            await asyncio.sleep(0.01)  # until the controller sends LeaderAndIsr again
        assert fetched.partitions[0].high_watermark == 1

    with_broker(tmp_path, work)


def test_a_broker_whose_loop_is_stuck_gives_up_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given_up, abandon = threading.Event(), StoreLink.abandon

    def abandoned(store: StoreLink) -> None:
        abandon(store)
        given_up.set()

    monkeypatch.setattr(StoreLink, "abandon", abandoned)

    async def work() -> None:
        async with serving(tmp_path, 1, broker_session_timeout_ms=1000) as (broker,):
            while broker.registration.broker_epoch < 0:
                await asyncio.sleep(0.01)
            given_up.clear()
            session, epoch = broker.store._session, broker.registration.broker_epoch
            assert given_up.wait(30), "this very call is what the loop is stuck in"
            assert session is not None and session.expired
            while broker.registration.broker_epoch == epoch:
                await asyncio.sleep(0.01)

    asyncio.run(work())
    assert "the event loop has been blocked for " in caplog.text
    assert "given_up.wait(30)" in caplog.text


def test_a_new_topics_id_is_known_while_its_files_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = threading.Event()

    async def work(client: Client) -> None:
        topics, partitions = client.broker.topics, client.broker.manager.partitions
        with monkeypatch.context() as patch:
            patch.setattr(ManagedLog, "sync_files", lambda log: synced.wait(10))
            creating = asyncio.create_task(client.create("topic"))
            while TP not in partitions:
                assert topics.name_of("of no topic") is None
                await asyncio.sleep(0)  # each turn of the broker's loop is looked at, so that none in between is missed
            assert topics.name_of(partitions[TP].topic_id) == "topic", "followers fetch by it"
            synced.set()
            assert await creating == 0

    with_broker(tmp_path, work)


def test_a_session_with_a_topic_that_is_gone_begins_again_when_that_is_forgotten(tmp_path: Path) -> None:
    """The session has it by a name that is unknown by now, and would return it in every response."""

    async def work(client: Client) -> None:
        await client.create("topic")
        topic_id = client.broker.topics.id_of("topic") or ""

        async def send_fetch(
            session: tuple[int, int], listed: tuple[FetchPartition, ...], *forgotten: TopicPartition
        ) -> Any:
            header = RequestHeader(ApiKey.FETCH, 13, 1, "test")
            request = FetchRequest(CONSUMER, -1, 0, 1, 1 << 20, listed, forgotten, *session)
            frame = fetch.encode_request(request, header, lambda name: topic_id)
            return fetch.decode_response(
                await client.peer.call(client.broker.address, frame, 10), header, {topic_id: "topic"}.get
            )

        begun = await send_fetch((0, 0), (FetchPartition(TP, topic_id, -1, 0, max_bytes=1 << 20),))
        assert begun.session_id and [partition.error for partition in begun.partitions] == [ErrorCode.NONE]
        await client.call(ApiKey.DELETE_TOPICS, 4, topic_names=["topic"], timeout_ms=10_000)
        while client.broker.topics.name_of(topic_id) is not None:
            await asyncio.sleep(0.01)  # the controller sends UpdateMetadata after its response
        result = await send_fetch((begun.session_id, 1), ())
        assert [partition.error for partition in result.partitions] == [ErrorCode.UNKNOWN_TOPIC_ID]
        forgetting = await send_fetch((begun.session_id, 2), (), TP)
        assert forgetting.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert client.broker.manager.fetch_session(begun.session_id) is None, "its client does not use it again"

    with_broker(tmp_path, work)


ODD_FETCHES: tuple[dict[str, Any], ...] = (
    {"offset": -1},
    {"offset": 2**63 - 1},
    {"offset": -(2**63)},
    {"partition_bytes": -5},
    {"partition_bytes": 0},
    {"max_bytes": -1},
    {"min_bytes": -1},
    {"max_wait_ms": -1},
    {"session_id": 77, "session_epoch": 5},
    {"session_id": 77, "session_epoch": 0},
    {"session_epoch": -7},
)

ODD_REQUESTS: tuple[tuple[ApiKey, int, dict[str, Any]], ...] = (
    (ApiKey.METADATA, 9, {"topics": [{"name": ""}, {"name": "\u20ac" * 300}]}),
    (ApiKey.DELETE_TOPICS, 4, {"topic_names": ["", "..", "none"], "timeout_ms": -1}),
    (ApiKey.FIND_COORDINATOR, 3, {"key": "group", "key_type": 0}),
    (ApiKey.ELECT_LEADERS, 2, {"election_type": 0, "topic_partitions": None, "timeout_ms": 100}),
    (ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": None, "timeout_ms": 100}),
    (ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None}),
    (
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        2,
        {
            "dirs": [
                {"path": path, "topics": [{"name": name, "partitions": [-1, 0, 2**31 - 1]}]}
                for path in ("", "..", "/nowhere")
                for name in ("", "..", "a/b", "topic")
            ]
        },
    ),
    (
        ApiKey.DESCRIBE_CONFIGS,
        4,
        {
            "resources": [
                {"resource_type": kind, "resource_name": name, "configuration_keys": None}
                for kind, name in ((2, "topic"), (2, "none"), (4, "1"), (4, "x"), (9, ""))
            ],
            "include_synonyms": True,
        },
    ),
    (ApiKey.CREATE_PARTITIONS, 2, {"topics": [{"name": "none", "count": 3, "assignments": None}]}),
    (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        {"topics": [{"name": "topic", "partitions": [{"partition_index": 0, "replicas": [1, 1]}]}]},
    ),
)


@pytest.mark.parametrize("enabled", ["true", "false"])
def test_logs_are_compacted_unless_the_cleaner_is_disabled(tmp_path: Path, enabled: str) -> None:
    async def work(client: Client) -> None:
        await until_controlled(client.broker)
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert "kreplog-retention" in names
        assert ("kreplog-cleaner" in names) == (enabled == "true")

    with_broker(tmp_path, work, log_cleaner_enable=enabled)


def test_odd_requests_are_answered_and_harm_nobody(tmp_path: Path, batch: bytes) -> None:
    async def work(client: Client) -> None:
        await client.create("topic")
        await client.produce(batch)
        nowhere = TopicPartition("topic", -1)
        for records in (b"", b"x", batch[:-1], bytes(61), batch * 2):
            await client.produce(records)
        for acks in (7, -5):
            (answer,) = (await client.produce(batch, acks)).partitions
            assert answer.error is ErrorCode.INVALID_REQUIRED_ACKS
        (answer,) = (await client.produce(batch, at=nowhere)).partitions
        assert answer.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        (answer,) = (await client.produce(batch, version=2)).partitions
        assert answer.error is ErrorCode.UNSUPPORTED_VERSION
        for oddity in ODD_FETCHES:
            await client.fetch(**oddity)
        await client.fetch(nowhere)
        errors = {}
        for timestamp in (-1, -2, -3, -4, -9, 0, 2**63 - 1):
            requested = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
            topic = {"name": "topic", "partitions": [requested]}
            listed = await client.call(ApiKey.LIST_OFFSETS, 7, replica_id=-1, isolation_level=0, topics=[topic])
            errors[timestamp] = ErrorCode(listed.topics[0].partitions[0].error_code)
        refused = {timestamp for timestamp, error in errors.items() if error is ErrorCode.UNSUPPORTED_VERSION}
        assert refused == {-4, -9}
        assert {error for timestamp, error in errors.items() if timestamp not in refused} == {ErrorCode.NONE}
        for key, version, fields in ODD_REQUESTS:
            assert await client.call(key, version, **fields) is not None
        (data,) = (await client.fetch()).partitions
        assert data.error is ErrorCode.NONE

    with_broker(tmp_path, work)


def test_a_broken_core_stops_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(client: Client) -> None:
        def broken(*_: Any) -> Any:
            raise InvariantError("broken")

        monkeypatch.setattr(client.broker.manager, "step", broken)
        with pytest.raises(OSError):
            await client.fetch()

    with pytest.raises(InvariantError):
        with_broker(tmp_path, work)
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


def test_a_list_of_transactions_is_encoded_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = ApiKey.LIST_TRANSACTIONS
    encode = transactions.ENCODERS[key]
    threads: list[str] = []

    def traced(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return encode(*arguments)

    monkeypatch.setitem(api._ENCODERS, key, traced)

    async def work(client: Client) -> None:
        assert (await client.call(key, 0, state_filters=[], producer_id_filters=[])).error_code == 0

    with_broker(tmp_path, work)
    (thread,) = threads
    assert thread.startswith("kreplog-requests")


@pytest.mark.parametrize("call", ["sync_files", "flush"])
def test_an_unexpected_error_in_the_background_stops_the_broker(
    call: str, tmp_path: Path, batch: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the response to LeaderAndIsr, or to the produce, would wait for that fsync for good."""
    stopped_by_itself: list[bool] = []

    async def work(client: Client) -> None:
        def broken_disk_call(_: ManagedLog) -> None:
            raise RuntimeError("broken")

        if call == "flush":
            assert await client.create("topic") == 0
        monkeypatch.setattr(ManagedLog, call, broken_disk_call)
        with suppress(OSError):
            await (client.produce(batch) if call == "flush" else client.create("topic"))
        stopped_by_itself.append(client.broker._stop.is_set())

    with pytest.raises(RuntimeError, match="broken"):
        with_broker(tmp_path, work, log_flush_interval_messages=1)
    assert stopped_by_itself == [True]
    assert "in broken_disk_call" in caplog.text, "the traceback"
    assert not (tmp_path / "data" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("how", ["sync", "sealed", "open", "removed"])
def test_a_directory_that_fails_takes_its_replicas_offline_and_not_the_broker(tmp_path: Path, how: str) -> None:
    library = shim.build(tmp_path)
    assert "replicas offline" in shim.run_driver("broker_disk", tmp_path, how, shim=library)


def test_a_broker_serves_while_a_thread_appends_a_long_response(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only its replication core waits, with all that is for it."""
    monkeypatch.setattr(runners, "HANG_S", 60.0)  # on a machine that has much else to do
    append, send, go_on = ManagedLog.append_as_follower, ReplicaFetchClient.send, threading.Event()
    appending: list[str] = []
    changed: list[Any] = []

    def held(log: ManagedLog, records: Any) -> Any:
        appending.append(threading.current_thread().name)
        assert go_on.wait(10)
        return append(log, records)

    def catch_up(client: ReplicaFetchClient, effect: Send) -> None:
        send(client, replace(effect, catches_up=True))

    monkeypatch.setattr(ReplicaFetchClient, "send", catch_up)

    async def main() -> None:
        async with serving(tmp_path, 1, 2) as served:
            for broker in served:
                await until_controlled(broker)
            client = Client(served[0])
            topic = {"name": "topic", "num_partitions": 1, "replication_factor": 2, "assignments": [], "configs": []}
            await client.call(ApiKey.CREATE_TOPICS, 5, topics=[topic], timeout_ms=10_000, validate_only=False)
            await until(lambda: all(TP in broker.manager.partitions for broker in served))
            leader, follower = sorted(served, key=lambda broker: broker.id != served[0].manager.metadata.leader_of(TP))
            monkeypatch.setattr(ManagedLog, "append_as_follower", held)
            monkeypatch.setattr(type(follower.topics), "changed", lambda _, request: changed.append(request))
            to_leader, to_follower = Client(leader), Client(follower)
            (produced,) = (await to_leader.produce(build([bytes(1000)] * 600), acks=1)).partitions
            assert produced.error is ErrorCode.NONE
            await until(lambda: bool(appending))
            assert (await to_follower.call(ApiKey.API_VERSIONS, 0)).error_code == 0
            old = UpdateMetadataRequest(1, 0, 0, ())
            control = follower.api.handle_local_control(old)
            assert (await to_follower.call(ApiKey.API_VERSIONS, 0)).error_code == 0
            assert (control.done(), old in changed, follower.hosted.of(TP).log.log_end_offset) == (False, False, 0)
            go_on.set()
            await control
            await until(lambda: old in changed)
            await until(lambda: follower.manager.partitions[TP].log.leo == 600)
            assert appending[0] == "kreplog-appends_0"
            for each in (client, to_leader, to_follower):
                each.peer.close()

    asyncio.run(main())


def test_kip_98_a_batch_in_flight_behind_a_refused_one_gets_a_retriable_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequence_grace, "SEQUENCE_GAP_GRACE_MS", 10**9)

    async def work(client: Client) -> None:
        async def send(sequence: int) -> ErrorCode:
            records = build([b"value"], producer_id=7, producer_epoch=0, base_sequence=sequence)
            (answer,) = (await client.produce(records)).partitions
            return answer.error

        refused = await send(0)  # whether or not LeaderAndIsr has arrived yet
        assert refused in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        assert await client.create("topic") == 0
        assert await send(1) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert [await send(0), await send(1)] == [ErrorCode.NONE] * 2
        assert await send(3) is ErrorCode.NOT_ENOUGH_REPLICAS
        monkeypatch.setattr(client.broker.manager.partitions[TP].sequence_gap_grace, "_until_ms", 0)
        assert await send(3) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    with_broker(tmp_path, work)
