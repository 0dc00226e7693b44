"""Client quotas at a broker: who is throttled, what responses say of it, and what a muted connection still does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog._native.batch import build
from kreplog.core.quotas.entities import QuotaKey
from kreplog.errors import ErrorCode
from kreplog.server.broker import Broker
from kreplog.server.network import muted_connections
from kreplog.wire.versions import ApiKey
from tests.server.brokers import eventually, serving, until_controlled
from tests.server.loop import until
from tests.server.network.quota_clients import Client, Clock, records_of, set_quotas

ID = {"client-id": "noisy"}
BATCH = build([b"x" * 1000] * 10)


def with_broker(root: Path, work: Callable[[Broker], Awaitable[None]]) -> None:
    """A broker that has the topic."""

    async def main() -> None:
        async with serving(root, 0) as (broker,):
            await until_controlled(broker)
            await Client(broker, "creator").create("topic")
            await work(broker)

    asyncio.run(main())


async def is_answered(task: asyncio.Task[object], broker: Broker) -> bool:
    """Whether a request is, once the broker has answered another connection that has sent its own later."""
    for _ in range(3):
        await Client(broker, "other").call(ApiKey.METADATA, topics=[], allow_auto_topic_creation=False)
    return task.done()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_producer_over_its_quota_is_answered_at_once_and_then_muted(tmp_path: Path, clock: Clock) -> None:
    async def work(broker: Broker) -> None:
        await set_quotas(broker, ID, producer_byte_rate=1000)
        client = Client(broker, "noisy")
        response = await client.produce(BATCH)
        (size,) = {len(client.produce_frame(BATCH, 1)) - 4}
        assert response.throttle_time_ms == round((size / 10 - 1000) / 1000 * 10_000)
        next_one = asyncio.create_task(client.produce(BATCH))
        assert not await is_answered(next_one, broker)
        clock.after(broker, response.throttle_time_ms)
        assert (await next_one).responses[0].partition_responses[0].base_offset == 10

    with_broker(tmp_path, work)


def test_other_connections_of_the_client_wait_too_and_other_clients_do_not(tmp_path: Path, clock: Clock) -> None:
    """However many connections it opens, and if it opens one for each request: Kafka would handle all of these."""

    async def work(broker: Broker) -> None:
        await set_quotas(broker, ID, producer_byte_rate=1000)
        throttle_ms = (await Client(broker, "noisy").produce(BATCH)).throttle_time_ms
        tasks = [asyncio.create_task(Client(broker, "noisy").produce(BATCH)) for _ in range(20)]
        for task in tasks:
            assert not await is_answered(task, broker)
        assert (await Client(broker, "quiet").produce(BATCH)).throttle_time_ms == 0
        assert (await Client(broker, "noisy").fetch()).throttle_time_ms == 0  # no quota of theirs is exceeded
        clock.after(broker, throttle_ms - 1)
        assert not any(task.done() for task in tasks)
        clock.after(broker, 1)
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1  # which has used up the quota again
        for task in waiting:
            assert not await is_answered(task, broker)
            task.cancel()

    with_broker(tmp_path, work)


def test_pipelined_requests_wait_in_order(tmp_path: Path, clock: Clock) -> None:
    async def work(broker: Broker) -> None:
        await set_quotas(broker, ID, producer_byte_rate=1000)
        client = Client(broker, "noisy")
        frames = [client.produce_frame(BATCH, 1) for _ in range(5)]
        reader, writer = await asyncio.open_connection(*broker.address)
        writer.write(b"".join(frames))
        for number in range(5):
            size = int.from_bytes(await reader.readexactly(4))
            assert int.from_bytes((await reader.readexactly(size))[:4]) == int.from_bytes(frames[number][8:12])
            assert len(broker.server.muted) == 1
            clock.after(broker, 100_000)
        writer.close()

    with_broker(tmp_path, work)


def test_a_fetch_over_the_quota_has_no_records_and_loses_none(tmp_path: Path, clock: Clock) -> None:
    async def work(broker: Broker) -> None:
        await Client(broker, "writer").produce(BATCH)
        await set_quotas(broker, ID, consumer_byte_rate=2000)
        client = Client(broker, "noisy")
        first = await client.fetch()
        assert (records_of(first), first.throttle_time_ms) == (len(BATCH), 0)
        second = await client.fetch()
        assert records_of(second) == 0 and second.responses == []
        assert second.throttle_time_ms == round((len(BATCH) * 2 / 10 - 2000) / 2000 * 10_000)
        waiting = asyncio.create_task(client.fetch())
        assert not await is_answered(waiting, broker)
        clock.after(broker, 11_000)
        assert records_of(await waiting) == len(BATCH)
        assert broker.traffic.total.bytes_out == 2 * len(BATCH)

    with_broker(tmp_path, work)


def test_a_batch_above_the_quota_of_all_windows_is_fetched_after_a_while(tmp_path: Path, clock: Clock) -> None:
    """Kafka would throttle its consumer again and again."""

    async def work(broker: Broker) -> None:
        await Client(broker, "writer").produce(BATCH)
        await set_quotas(broker, ID, consumer_byte_rate=10)
        client = Client(broker, "noisy")
        for _ in range(2):
            response = await client.fetch()
            assert records_of(response) == len(BATCH) and response.throttle_time_ms > 100_000
            clock.after(broker, response.throttle_time_ms)

    with_broker(tmp_path, work)


def test_a_fetch_session_goes_on_after_an_empty_response(tmp_path: Path, clock: Clock) -> None:
    async def work(broker: Broker) -> None:
        writer = Client(broker, "writer")
        await writer.produce(BATCH)
        await set_quotas(broker, ID, consumer_byte_rate=2000)
        client = Client(broker, "noisy")
        begun = await client.fetch(session_epoch=0)
        assert begun.session_id and records_of(begun) == len(BATCH)
        await writer.produce(BATCH)
        session = {"session_id": begun.session_id}
        throttled = await client.fetch(10, session_epoch=1, **session)
        assert (throttled.session_id, throttled.responses) == (begun.session_id, [])
        clock.after(broker, 60_000)
        response = await client.fetch(10, session_epoch=2, listed=False, **session)
        assert records_of(response) == len(BATCH)
        clock.after(broker, 60_000)
        response = await client.fetch(20, session_epoch=3, **session)
        assert records_of(response) == 0 and not response.error_code

    with_broker(tmp_path, work)


def test_a_throttled_fetch_leaves_no_session(tmp_path: Path, clock: Clock) -> None:
    """Its client begins another with each request: KIP-219."""

    async def work(broker: Broker) -> None:
        await Client(broker, "writer").produce(BATCH)
        await set_quotas(broker, ID, consumer_byte_rate=2000)
        client = Client(broker, "noisy")
        await client.fetch()
        for _ in range(3):
            response = await client.fetch(session_epoch=0)
            assert (response.session_id, response.responses, response.error_code) == (0, [], 0)
            assert response.throttle_time_ms
            broker.server.unmute_all()
            broker.server.client_quotas.replace(broker.server.client_quotas.limits)  # not throttled, and as much used
        assert not list(broker.manager.charges())

    with_broker(tmp_path, work)


def test_requests_of_every_kind_are_charged_with_their_time(tmp_path: Path, clock: Clock) -> None:
    async def work(broker: Broker) -> None:
        await set_quotas(broker, ID, request_percentage=1e-6)
        requests: tuple[Callable[[Client], Awaitable[Any]], ...] = (
            lambda client: client.produce(BATCH),
            lambda client: client.fetch(),
            lambda client: client.call(ApiKey.METADATA, topics=[], allow_auto_topic_creation=False),
            lambda client: client.create("another"),
            lambda client: client.call(ApiKey.LIST_GROUPS, states_filter=[], types_filter=[]),
            lambda client: client.call(ApiKey.API_VERSIONS, client_software_name="a", client_software_version="1"),
            lambda client: client.call(ApiKey.DESCRIBE_CLIENT_QUOTAS, components=[], strict=False),
        )
        for request in requests:
            client = Client(broker, "noisy")
            assert (await request(client)).throttle_time_ms == 1000
            client.close()
            clock.after(broker, 1000)
        client = Client(broker, "noisy")
        await client.call(ApiKey.METADATA, topics=[], allow_auto_topic_creation=False)
        heartbeat = asyncio.create_task(client.fetch())
        assert not await is_answered(heartbeat, broker)
        heartbeat.cancel()

    with_broker(tmp_path, work)


def test_acks_0_is_charged_too(tmp_path: Path, clock: Clock) -> None:
    """Kafka does not charge its time."""

    async def work(broker: Broker) -> None:
        client = Client(broker, "noisy")
        size = len(client.produce_frame(BATCH, 0))
        await set_quotas(broker, ID, producer_byte_rate=size // 4)  # 2.5 of them at once
        _, writer = await asyncio.open_connection(*broker.address)
        writer.write(client.produce_frame(BATCH, 0) * 2)

        async def appended() -> bool:
            return broker.traffic.total.messages_in == 20

        await eventually(appended)
        assert len(broker.server.muted) == 0
        writer.write(client.produce_frame(BATCH, 0) * 2)

        async def muted() -> bool:
            return len(broker.server.muted) == 1

        await eventually(muted)
        assert broker.traffic.total.messages_in == 30
        writer.close()
        await set_quotas(broker, ID, producer_byte_rate=None, request_percentage=1e-6)
        _, writer = await asyncio.open_connection(*broker.address)
        writer.write(client.produce_frame(BATCH, 0))
        await eventually(muted)
        writer.close()

    with_broker(tmp_path, work)


@pytest.mark.parametrize("request_is_good", [True, False])
def test_a_client_that_closes_its_connection_is_charged_for_its_request(
    tmp_path: Path, clock: Clock, request_is_good: bool
) -> None:
    async def work(broker: Broker) -> None:
        await set_quotas(broker, ID, request_percentage=1e-6)
        client = Client(broker, "noisy")
        frame = client.produce_frame(BATCH, 1)
        if not request_is_good:
            frame = (len(frame) - 4 - 100).to_bytes(4, "big") + frame[4:-100]
        _, writer = await asyncio.open_connection(*broker.address)
        writer.write(frame)
        if request_is_good:
            writer.close()
        await eventually(lambda: throttled(broker, clock))

    with_broker(tmp_path, work)


async def throttled(broker: Broker, clock: Clock) -> bool:
    """Whether a client is, by the sensors."""
    manager = broker.server.client_quotas
    return manager.remaining_ms(QuotaKey.REQUEST_PERCENTAGE, "ANONYMOUS", "noisy", clock.now_ms) > 0


@pytest.mark.parametrize("watched", [True, False])
def test_a_muted_connection_that_its_client_closes_is_closed(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, watched: bool
) -> None:
    """At once on Linux, elsewhere at the end of the mute."""
    if not watched:
        monkeypatch.setattr(muted_connections, "make_epoll", lambda: None)

    async def work(broker: Broker) -> None:
        await set_quotas(broker, ID, producer_byte_rate=1)
        client = Client(broker, "noisy")
        assert (await client.produce(BATCH)).throttle_time_ms > 10_000
        (muted,) = broker.server.muted
        client.close()

        async def gone() -> bool:
            return muted.closed

        if not watched:
            await Client(broker, "other").produce(BATCH)
            assert not await gone()
            broker.server.unmute_all()
        await eventually(gone)
        assert len(broker.server.muted) == 0

    with_broker(tmp_path, work)


def test_what_a_muted_client_has_sent_before_it_closed_is_handled(tmp_path: Path, clock: Clock) -> None:
    """With acks=0 it may not wait for anything."""

    async def work(broker: Broker) -> None:
        await set_quotas(broker, ID, producer_byte_rate=1)
        client = Client(broker, "noisy")
        _, writer = await asyncio.open_connection(*broker.address)
        writer.write(client.produce_frame(BATCH, 0))

        async def muted() -> bool:
            return len(broker.server.muted) == 1

        await eventually(muted)
        writer.write(client.produce_frame(BATCH, 0))
        writer.close()
        await writer.wait_closed()
        await Client(broker, "other").call(ApiKey.METADATA, topics=[], allow_auto_topic_creation=False)
        assert len(broker.server.muted) == 1
        clock.after(broker, 10**9)

        async def appended() -> bool:
            return broker.traffic.total.messages_in == 20

        await eventually(appended)

    with_broker(tmp_path, work)


@pytest.mark.parametrize("is_read", [True, False])
def test_a_producer_that_has_given_up_is_not_appended_when_its_mute_ends(
    tmp_path: Path, clock: Clock, is_read: bool
) -> None:
    """It sends its records again. is_read: the broker has read all that it has sent; else there are two
    more requests, of which that with acks=0 is appended."""

    async def work(broker: Broker) -> None:
        await set_quotas(broker, ID, producer_byte_rate=1)
        noisy = Client(broker, "noisy")
        await noisy.produce(BATCH)
        _, writer = await asyncio.open_connection(*broker.address)
        writer.write(noisy.produce_frame(BATCH, 1))

        async def muted() -> bool:
            return len(broker.server.muted) == 2

        await eventually(muted)
        (_, client) = broker.server.muted
        if not is_read:
            writer.write(noisy.produce_frame(build([b"acks 0"]), 0) + noisy.produce_frame(BATCH, -1))
        writer.close()
        await writer.wait_closed()

        async def gone() -> bool:
            return client.closed if is_read else client.peer_has_closed

        await eventually(gone)
        clock.after(broker, 10**9)
        if not is_read:

            async def appended() -> bool:
                return client.closed and broker.traffic.total.messages_in == 11

            await eventually(appended)
        response = await Client(broker, "quiet").produce(BATCH)
        assert response.responses[0].partition_responses[0].base_offset == (10 if is_read else 11)

    with_broker(tmp_path, work)


def test_a_mute_of_days_does_not_hold_up_a_stop(tmp_path: Path, clock: Clock) -> None:
    """`serving` gives it a minute."""

    async def work(broker: Broker) -> None:
        await set_quotas(broker, ID, producer_byte_rate=1)
        client = Client(broker, "noisy")
        assert (await client.produce(BATCH)).throttle_time_ms > 10_000_000
        waiting = asyncio.create_task(client.produce(BATCH))
        assert not await is_answered(waiting, broker)
        waiting.add_done_callback(lambda task: task.exception())

    with_broker(tmp_path, work)


def test_a_muted_connection_is_idle_from_the_end_of_its_mute_on(tmp_path: Path, clock: Clock) -> None:
    async def work(broker: Broker) -> None:
        await set_quotas(broker, ID, producer_byte_rate=1)
        throttle_ms = (await Client(broker, "noisy").produce(BATCH)).throttle_time_ms
        (muted,) = broker.server.muted
        now = asyncio.get_running_loop().time()
        assert muted.idle_since is not None and now + throttle_ms / 1000 - 10 < muted.idle_since
        broker.server.unmute_all()
        assert muted.idle_since <= asyncio.get_running_loop().time()

    with_broker(tmp_path, work)


def test_a_larger_quota_lets_muted_clients_go_on(tmp_path: Path, clock: Clock) -> None:
    async def work(broker: Broker) -> None:
        await set_quotas(broker, ID, producer_byte_rate=1)
        client = Client(broker, "noisy")
        await client.produce(BATCH)
        waiting = asyncio.create_task(client.produce(BATCH))
        assert not await is_answered(waiting, broker)
        await set_quotas(broker, ID, producer_byte_rate=1_000_000)
        assert (await waiting).throttle_time_ms == 0
        await set_quotas(broker, ID, producer_byte_rate=None)
        assert (await client.produce(BATCH)).throttle_time_ms == 0
        assert not broker.server.client_quotas.is_active

    with_broker(tmp_path, work)


def test_followers_and_controllers_have_no_quota(tmp_path: Path, clock: Clock) -> None:
    async def main() -> None:
        async with serving(tmp_path, 0, 1, 2, default_replication_factor=3) as brokers:
            for broker in brokers:
                await until_controlled(broker)
            await Client(brokers[0], "creator").create("topic")
            smallest = dict.fromkeys(("consumer_byte_rate", "request_percentage", "controller_mutation_rate"), 1e-6)
            await set_quotas(brokers[0], {"user": None}, **{**smallest, "consumer_byte_rate": 1})

            async def all_limited() -> bool:
                return all(broker.server.client_quotas.is_active for broker in brokers)

            await eventually(all_limited)
            leader = brokers[0].topics.all["topic"].partitions[0].state.leader
            for _ in range(3):
                response = await Client(brokers[leader], "writer").produce(BATCH, acks=-1)
                assert response.responses[0].partition_responses[0].error_code == 0  # all replicas have it
                assert response.throttle_time_ms == 1000
                clock.after(brokers[leader], 1000)

    asyncio.run(main())


def test_topics_over_the_quota_of_mutations_are_refused(tmp_path: Path, clock: Clock) -> None:
    """KIP-599: a client that knows the error gets it, an older one is throttled."""

    async def work(broker: Broker) -> None:
        await set_quotas(broker, ID, controller_mutation_rate=1)  # 11 at once
        client = Client(broker, "noisy")
        response = await client.create("a", "b", "c", partitions=8)
        assert [topic.error_code for topic in response.topics] == [0, 0, 89]
        assert response.topics[2].error_message == "The throttling quota has been exceeded."
        assert response.throttle_time_ms == 5000
        assert {"a", "b"} <= broker.topics.all.keys() and "c" not in broker.topics.all
        clock.after(broker, 4000)
        again = await Client(broker, "noisy").create("c", partitions=8)
        assert (again.topics[0].error_code, again.throttle_time_ms) == (89, 1000)
        clock.after(broker, 1000)
        grown = await client.call(
            ApiKey.CREATE_PARTITIONS,
            topics=[{"name": "a", "count": 10, "assignments": None}, {"name": "b", "count": 10, "assignments": None}],
            timeout_ms=10_000,
            validate_only=False,
        )
        assert [(result.error_code) for result in grown.results] == [0, 89]
        clock.after(broker, grown.throttle_time_ms)
        topics = [{"name": name, "topic_id": None} for name in ("a", "b")]
        deleted = await client.call(ApiKey.DELETE_TOPICS, topics=topics, timeout_ms=10_000)
        assert [result.error_code for result in deleted.responses] == [0, 89]
        clock.after(broker, deleted.throttle_time_ms)
        old = await client.create("d", "e", partitions=8, version=5)
        assert ([topic.error_code for topic in old.topics], old.throttle_time_ms) == ([0, 0], 16_000)
        waiting = asyncio.create_task(Client(broker, "noisy").create("f", version=5))
        assert not await is_answered(waiting, broker)
        waiting.cancel()

    with_broker(tmp_path, work)


def test_automatic_topics_over_the_quota_of_mutations_are_created_later(tmp_path: Path, clock: Clock) -> None:
    async def work(broker: Broker) -> None:
        await set_quotas(broker, ID, controller_mutation_rate=1)
        client = Client(broker, "noisy")

        async def errors(*names: str) -> list[int]:
            topics = [{"topic_id": None, "name": name} for name in names]
            response = await client.call(ApiKey.METADATA, 9, topics=topics, allow_auto_topic_creation=True)
            assert response.throttle_time_ms == 0
            return [topic.error_code for topic in response.topics]

        names = [f"new-{number}" for number in range(15)]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert await errors(*names) == [unknown] * 15
        await until(lambda: set(names[:12]) <= set(broker.topics.all))  # 11 at once, and one on credit
        assert await errors(names[-1]) == [unknown]
        assert set(names[12:]).isdisjoint(broker.topics.all)
        clock.after(broker, 3000)
        assert await errors(names[-1]) == [unknown]
        await until(lambda: names[-1] in broker.topics.all)
        assert set(names[12:14]).isdisjoint(broker.topics.all)

    with_broker(tmp_path, work)


def test_quotas_hold_over_the_windows_that_settings_name(tmp_path: Path, clock: Clock) -> None:
    windows = {
        "quota_window_num": 2,
        "quota_window_size_seconds": 3,
        "controller_quota_window_num": 4,
        "controller_quota_window_size_seconds": 2,
    }

    async def main() -> None:
        async with serving(tmp_path, 0, **windows) as (broker,):
            await until_controlled(broker)
            await Client(broker, "creator").create("topic")
            await set_quotas(broker, ID, producer_byte_rate=1000, controller_mutation_rate=1)
            client = Client(broker, "noisy")
            size = len(client.produce_frame(BATCH, 1)) - 4
            assert (await client.produce(BATCH)).throttle_time_ms == round((size / 3 - 1000) / 1000 * 3000)
            other = Client(broker, "noisy")
            created = await other.create("a", "b", partitions=10)  # of eight that are allowed at once
            assert ([topic.error_code for topic in created.topics], created.throttle_time_ms) == ([0, 89], 2000)
            await set_quotas(broker, ID, request_percentage=1e-6)
            clock.after(broker, 2000)
            response = await other.call(ApiKey.METADATA, topics=[], allow_auto_topic_creation=False)
            assert response.throttle_time_ms == 3000

    asyncio.run(main())
