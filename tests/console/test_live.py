"""The websocket of a page: what it looks at arrives, then what changes, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientSession, ClientWebSocketResponse, WSMsgType

from kreplog.client.bootstrap import UnreachableError
from kreplog.console.live import MAX_VISIBLE, Watch
from kreplog.console.snapshot import PartitionRow, TopicSnapshot
from kreplog.console.timeline import MAX_SENT
from tests.console.served import WITHIN_S, Console, FakeSource, serving, topic

LED = PartitionRow(0, 3, (0, 1), (0, 1))


@asynccontextmanager
async def page(console: Console) -> AsyncIterator[ClientWebSocketResponse]:
    if not console.cookie:
        console.log_in()
    headers = {"Cookie": console.cookie, "Origin": console.origin}
    async with (
        asyncio.timeout(WITHIN_S),
        ClientSession(headers=headers) as session,
        session.ws_connect(f"{console.origin}/live") as socket,
    ):
        yield socket


async def look_at(
    socket: ClientWebSocketResponse, name: str | None, partitions: list[int], events: int = 0, run: str = ""
) -> None:
    await socket.send_str(json.dumps({"topic": name, "partitions": partitions, "events": events, "run": run}))


async def received(socket: ClientWebSocketResponse, key: str) -> Any:
    """The next message with this key."""
    while True:
        message = json.loads(await socket.receive_str())
        if key in message:
            return message


def test_a_page_receives_what_it_looks_at() -> None:
    async def run(console: Console) -> None:
        async with page(console) as socket:
            await look_at(socket, "t", [0])
            message = json.loads(await socket.receive_str())
            assert message["overview"]["health"] == "Healthy: 2 brokers, 1 topic, 1 partition, every replica in sync."
            assert (message["error"], message["rows"], message["gone"]) == ("", [[0, 0, 3, [0, 1], [0, 1]]], [])
            message = json.loads(await socket.receive_str())
            assert message["replicas"] == {"0": [{"broker": 0}, {"broker": 1}]}
            await look_at(socket, None, [])
            await look_at(socket, "missing", [0])
            assert (await received(socket, "exists"))["exists"] is False

    with serving(FakeSource()) as console:
        asyncio.run(run(console))


def test_pages_that_look_at_the_same_share_the_looks() -> None:
    source, going_on, looks = FakeSource(), asyncio.Event(), list[str]()
    replicas = source.replicas

    async def counted(topic: str, rows: Mapping[int, PartitionRow]) -> Any:
        looks.append(topic)
        await going_on.wait()
        return await replicas(topic, rows)

    source.replicas = counted  # type: ignore[method-assign]  # one that counts, and waits for all pages

    async def run() -> None:
        watch = Watch(source, writable=False, log_replays=False)
        first, second, other = (
            asyncio.create_task(watch.replicas(*each)) for each in (("t", {0: LED}), ("t", {0: LED}), ("u", {0: LED}))
        )
        await asyncio.sleep(0)
        first.cancel()  # a page that is closed
        going_on.set()
        assert await second == await other == {0: [{"broker": 0}, {"broker": 1}]}
        assert sorted(looks) == ["t", "u"]
        await watch.close()

    asyncio.run(run())


def test_a_page_that_cannot_be_served_is_disconnected(caplog: pytest.LogCaptureFixture) -> None:
    """It connects again: while the socket stays open it would wait for what never comes."""
    source = FakeSource()

    async def broken(topic: str, rows: Mapping[int, PartitionRow]) -> Any:
        raise ValueError("a bug")

    async def run(console: Console) -> None:
        async with page(console) as socket:
            await look_at(socket, "t", [0])
            await received(socket, "overview")
            while (message := await socket.receive()).type is WSMsgType.TEXT:
                pass
            assert message.type is WSMsgType.CLOSE

    source.replicas = broken  # type: ignore[method-assign]  # one that fails as no source should
    with serving(source) as console:
        asyncio.run(run(console))
    assert "a bug" in caplog.text


def test_changes_arrive_alone() -> None:
    source = FakeSource()
    source.now = replace(source.now, topics={"t": topic(LED, LED), "gone": topic(LED)})

    async def run(console: Console) -> None:
        async with page(console) as socket:
            await look_at(socket, "t", [])
            assert len((await received(socket, "rows"))["rows"]) == 2
            behind = PartitionRow(1, 4, (0, 1), (1,))
            source.now = replace(source.now, topics={"t": topic(LED, behind)})
            message = await received(socket, "rows")
            assert message["rows"] == [[1, 1, 4, [0, 1], [1]]]
            assert [{**event, "time_ms": 0} for event in message["events"]] == [
                {"number": 0, "time_ms": 0, "kind": "topic deleted", "text": "topic deleted", "topic": "gone"},
                {"number": 1, "time_ms": 0, "kind": "leader", "text": "leader 0 → 1, epoch 4"}
                | {"partitions": {"t": [1]}},
                {"number": 2, "time_ms": 0, "kind": "ISR shrinks", "text": "ISR shrinks: broker 0 leaves"}
                | {"partitions": {"t": [1]}},
            ]
            (row,) = message["out_of_sync"]
            assert row["text"].startswith("broker 0 is out of sync in 1 partition since ")
            source.now = replace(source.now, topics={"t": topic(LED)})
            message = await received(socket, "gone")
            assert (message["gone"], message["out_of_sync"]) == ([1], [])

    with serving(source) as console:
        asyncio.run(run(console))
    assert source.closed


def test_an_unreachable_cluster_is_reported_and_comes_back() -> None:
    source = FakeSource()

    async def run(console: Console) -> None:
        async with page(console) as socket, page(console) as other:
            for each in (socket, other):
                await look_at(each, None, [])
                message = await received(each, "overview")
                assert message["error"] == ""
                run_id = message["run"]
            for failure, text in (
                (UnreachableError("no broker responds"), "no broker responds"),
                (ValueError("a bug"), "ValueError: a bug"),
            ):
                source.error = failure
                for each in (socket, other):
                    message = await received(each, "error")
                    assert message["error"] == text and "overview" not in message
                source.error = None
                assert (await received(socket, "error"))["error"] == ""
                assert (await received(other, "error"))["error"] == ""
        async with page(console) as again:
            await look_at(again, None, [], events=1, run=run_id)
            kinds = [event["kind"] for event in (await received(again, "events"))["events"]]
            assert kinds == ["reachable", "unreachable", "reachable"]

    with serving(source) as console:
        asyncio.run(run(console))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"topic": 1, "partitions": [], "events": 0, "run": ""}',
        '{"topic": null, "partitions": ["0"], "events": 0, "run": ""}',
        '{"topic": null, "partitions": [true], "events": 0}',
        '{"topic": null, "partitions": [], "events": "0"}',
        json.dumps({"topic": None, "partitions": list(range(MAX_VISIBLE + 1)), "events": 0}),
        "9" * 10_000,
        "[" * 10_000,
    ],
)
def test_a_page_that_sends_anything_else_is_disconnected(text: str) -> None:
    async def run(console: Console) -> None:
        async with page(console) as socket:
            await socket.send_str(text)
            message = await socket.receive()
            assert (message.type, message.data) == (WSMsgType.CLOSE, 1008)
        async with page(console) as socket:
            await socket.send_str("x" * 100_000)
            message = await socket.receive()
            assert (message.type, message.data) == (WSMsgType.CLOSE, 1009)
        async with page(console) as socket:  # others go on
            await look_at(socket, None, [])
            await received(socket, "overview")

    with serving(FakeSource()) as console:
        asyncio.run(run(console))


def test_names_that_are_markup_stay_names() -> None:
    source, name = FakeSource(), "<img src=x onerror=alert(1)>"
    source.now = replace(source.now, topics={name: TopicSnapshot(False, {}, "INVALID_TOPIC_EXCEPTION")})

    async def run(console: Console) -> None:
        async with page(console) as socket:
            await look_at(socket, name, [])
            (found,) = (await received(socket, "overview"))["overview"]["topics"]
            assert (found["name"], found["error"]) == (name, "INVALID_TOPIC_EXCEPTION")

    with serving(source) as console:
        asyncio.run(run(console))


def test_earlier_events_are_fetched_by_number() -> None:
    source = FakeSource()

    async def run(console: Console) -> None:
        async with page(console) as socket:
            await look_at(socket, None, [])
            await received(socket, "overview")
            for number in range(3):
                source.now = replace(source.now, controller=number + 5)
                await received(socket, "events")

    with serving(source) as console:
        asyncio.run(run(console))
        events = console.request("/api/events?before=2").json["events"]
        texts = [(event["number"], event["text"]) for event in events]
        assert texts == [(0, "controller 0 → 5"), (1, "controller 5 → 6")]
        assert console.request("/api/events?before=2&topic=t").json["events"] == events  # those of brokers are of all
        assert console.request("/api/events?before=x").status == 400


def test_a_burst_arrives_whole_and_of_this_run_alone() -> None:
    source = FakeSource()
    many = range(MAX_SENT)
    source.now = replace(source.now, topics={f"t{number}": topic(LED) for number in many})

    async def run(console: Console) -> None:
        async with page(console) as socket:
            await look_at(socket, None, [])
            first = await received(socket, "run")
            source.now = replace(
                source.now, brokers={0: source.now.brokers[0]}, topics={f"u{number}": topic(LED) for number in many}
            )
            numbers: list[int] = []
            kinds = set()
            while len(numbers) <= 2 * MAX_SENT:
                found = (await received(socket, "events"))["events"]
                assert len(found) <= MAX_SENT
                numbers += [event["number"] for event in found]
                kinds |= {event["kind"] for event in found}
            assert numbers == list(range(len(numbers))) and {"broker gone", "topic created", "topic deleted"} <= kinds
            await look_at(socket, None, [], events=5, run=first["run"])
            assert (await received(socket, "events"))["events"][0]["number"] == 5
        async with page(console) as socket:
            await look_at(socket, None, [], events=5, run="of a console that ended")
            message = await received(socket, "run")
            assert message["run"] == first["run"] and message["events"][0]["number"] == 0

    with serving(source) as console:
        asyncio.run(run(console))


def test_replicas_that_are_slow_hold_nothing_back() -> None:
    source = FakeSource()

    async def stalled(topic: str, rows: Mapping[int, PartitionRow]) -> dict[int, list[dict[str, Any]]]:
        await asyncio.Event().wait()
        raise AssertionError

    source.replicas = stalled  # type: ignore[method-assign]  # a broker that does not answer

    async def run(console: Console) -> None:
        async with page(console) as socket:
            await look_at(socket, "t", [0])
            message = await received(socket, "overview")
            assert message["rows"] and "replicas" not in message

    with serving(source) as console:
        asyncio.run(run(console))
