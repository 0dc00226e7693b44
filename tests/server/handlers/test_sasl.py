"""SASL at a broker's listener: the frames of every version, and what no client of a library sends."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog.client.broker_client import BrokerClient
from kreplog.core import nodes
from kreplog.core.security.plain import plain_message
from kreplog.core.security.scram import SCRAM_MECHANISMS, ScramClient
from kreplog.errors import ErrorCode
from kreplog.server.broker import Broker
from kreplog.server.clock import monotonic_ms
from kreplog.server.monitoring.metrics import render
from kreplog.server.network import serving as connections_of
from kreplog.types import SetData
from kreplog.wire import generic
from kreplog.wire.versions import ApiKey
from tests.server.brokers import eventually, serving, until_controlled
from tests.server.loop import run, until
from tests.server.network.quota_clients import Clock, set_quotas

SALT = b"sixteen bytes ok"
SCRAM_256, SCRAM_512 = SCRAM_MECHANISMS
DENIED = "Authentication failed during authentication due to invalid credentials with SASL mechanism "


def upsertion(user: str, password: str, mechanism: str = SCRAM_256, **changes: Any) -> dict[str, Any]:
    scram = SCRAM_MECHANISMS[mechanism]
    salted = scram.salted_password(password, SALT, 4096)
    given = {"name": user, "mechanism": scram.number, "iterations": 4096, "salt": SALT, "salted_password": salted}
    return {**given, **changes}


async def alter(
    broker: Broker, upsertions: Sequence[dict[str, Any]] = (), deletions: Sequence[dict[str, Any]] = ()
) -> dict[str, tuple[int, str | None]]:
    """(error, message) by user, of a request at the plaintext listener."""
    async with connected(broker, "PLAINTEXT") as client:
        fields = {"deletions": list(deletions), "upsertions": list(upsertions)}
        response = await client.request(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, **fields)
    return {result.user: (result.error_code, result.error_message) for result in response.results}


async def describe(broker: Broker, users: Sequence[str] | None = None) -> Any:
    async with connected(broker, "PLAINTEXT") as client:
        names = None if users is None else [{"name": name} for name in users]
        return (await client.request(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, users=names)).results


@asynccontextmanager
async def connected(broker: Broker, listener: str = "SASL_PLAINTEXT") -> AsyncIterator[BrokerClient]:
    at = next(endpoint for endpoint in broker.endpoints if endpoint.listener == listener)
    client = BrokerClient((at.host, at.port), 10)
    try:
        yield client
    finally:
        client.close()


@asynccontextmanager
async def brokers(root: Path, *numbers: int, **settings: Any) -> AsyncIterator[list[Broker]]:
    """Brokers, by default one, that know the user alice."""
    settings = {"listeners": "127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0", **settings}
    async with serving(root, *(numbers or (0,)), **settings) as made:
        await until_controlled(made[0])
        given = [upsertion("alice", "pencil"), upsertion("alice", "pencil", SCRAM_512)]
        assert await alter(made[0], given) == {"alice": (0, None)}
        yield made


async def handshake(client: BrokerClient, mechanism: str = SCRAM_256, version: int = 1) -> Any:
    return await client.request(ApiKey.SASL_HANDSHAKE, version, mechanism=mechanism)


async def token(client: BrokerClient, data: bytes, version: int = 2) -> Any:
    return await client.request(ApiKey.SASL_AUTHENTICATE, version, auth_bytes=data)


async def authenticate(
    client: BrokerClient, user: str = "alice", password: str = "pencil", mechanism: str = SCRAM_256, version: int = 2
) -> Any:
    """The last response of an exchange."""
    scram = ScramClient(SCRAM_MECHANISMS[mechanism], user, password, "client")
    assert (await handshake(client, mechanism)).error_code == 0
    response = await token(client, scram.first(), version)
    assert response.error_code == 0
    response = await token(client, scram.respond(response.auth_bytes), version)
    if not response.error_code:
        scram.respond(response.auth_bytes)
    return response


async def is_served(client: BrokerClient) -> bool:
    """Whether the broker answers a request that only those who are authenticated may send; it closes otherwise."""
    try:
        response = await client.request(ApiKey.METADATA, 12, topics=[])
    except ConnectionError:
        return False
    return bool(response.brokers)


def test_both_mechanisms_and_all_versions(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path) as (broker,):
            for mechanism in SCRAM_MECHANISMS:
                for version in (0, 1, 2):
                    async with connected(broker) as client:
                        assert (await client.request(ApiKey.API_VERSIONS, 3)).error_code == 0
                        response = await authenticate(client, mechanism=mechanism, version=version)
                        assert (response.error_code, response.session_lifetime_ms) == (0, 0)
                        assert await is_served(client)
            assert broker.server.failed_logins.total == 0

    run(work)


def test_tokens_without_headers_after_a_handshake_in_version_0(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path) as (broker,):
            async with connected(broker) as client:
                scram = ScramClient(SCRAM_MECHANISMS[SCRAM_256], "alice", "pencil", "client")
                assert (await handshake(client, version=0)).error_code == 0
                response = await client.send([framed(scram.first())])
                scram.respond(await client.send([framed(scram.respond(response))]))
                assert scram.is_complete
                assert await is_served(client)
            async with connected(broker) as client:
                await handshake(client, version=0)
                with pytest.raises(ConnectionError):
                    await client.send([framed(b"\0\3garbage")])

    run(work)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def test_wrong_passwords_and_unknown_users_get_the_same_answer(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path) as (broker,):
            answers = []
            for user, password in (("alice", "wrong"), ("carol", "pencil")):
                async with connected(broker) as client:
                    response = await authenticate(client, user, password)
                    answers.append((response.error_code, response.error_message, response.auth_bytes))
                    assert not await is_served(client)
            assert answers == [(ErrorCode.SASL_AUTHENTICATION_FAILED, DENIED + SCRAM_256, b"")] * 2
            assert b"failed_authentication_total 2\n" in await render(broker)

    run(work)


@pytest.mark.parametrize("api", [ApiKey.METADATA, ApiKey.SASL_AUTHENTICATE, ApiKey.ALTER_USER_SCRAM_CREDENTIALS])
def test_requests_before_the_handshake_close_the_connection(tmp_path: Path, api: ApiKey) -> None:
    fields: dict[str, Any] = {"auth_bytes": b""} if api == ApiKey.SASL_AUTHENTICATE else {}

    async def work() -> None:
        async with brokers(tmp_path) as (broker,), connected(broker) as client:
            with pytest.raises(ConnectionError):
                await client.request(api, 0, **fields)

    run(work)


def test_other_requests_during_the_exchange_close_the_connection(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path) as (broker,):
            for api in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.METADATA):
                async with connected(broker) as client:
                    await handshake(client)
                    fields = {"mechanism": SCRAM_256} if api == ApiKey.SASL_HANDSHAKE else {}
                    with pytest.raises(ConnectionError):
                        await client.request(api, 0, **fields)

    run(work)


def test_a_mechanism_that_is_not_enabled(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path, sasl_enabled_mechanisms=SCRAM_512) as (broker,):
            for mechanism in ("GSSAPI", "PLAIN", SCRAM_256):
                async with connected(broker) as client:
                    response = await handshake(client, mechanism)
                    assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
                    assert response.mechanisms == [SCRAM_512]
                    assert not await is_served(client)

    run(work)


def test_listeners_without_sasl_have_nothing_to_authenticate(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path) as (broker,), connected(broker, "PLAINTEXT") as client:
            response = await handshake(client)
            assert (response.error_code, response.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
            assert (await token(client, b"")).error_code == ErrorCode.ILLEGAL_SASL_STATE
            assert await is_served(client)

    run(work)


def test_a_failure_is_answered_and_closed_later_and_others_are_served_meanwhile(tmp_path: Path) -> None:
    """The delay is far above the test's: whoever waits for it fails by the time-out."""

    async def work() -> None:
        delay = {"connection_failed_authentication_delay_ms": 3_600_000}
        async with brokers(tmp_path, **delay) as (broker,), connected(broker) as refused, connected(broker) as other:
            waiting = asyncio.ensure_future(authenticate(refused, password="wrong"))
            await until(lambda: broker.server.failed_logins.total > 0)
            assert (await authenticate(other)).error_code == 0
            assert await is_served(other)
            assert not waiting.done()
            waiting.cancel()

    run(work)


def test_a_replayed_exchange_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path) as (broker,):
            scram = ScramClient(SCRAM_MECHANISMS[SCRAM_256], "alice", "pencil", "client")
            async with connected(broker) as client:
                await handshake(client)
                final = scram.respond((await token(client, scram.first())).auth_bytes)
                assert (await token(client, final)).error_code == 0
            async with connected(broker) as replaying:
                await handshake(replaying)
                await token(replaying, scram.first())
                assert (await token(replaying, final)).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                assert not await is_served(replaying)

    run(work)


def test_frames_are_small_until_a_client_is_authenticated(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path, sasl_server_max_receive_size=2000) as (broker,):
            async with connected(broker) as client:
                await handshake(client)
                with pytest.raises(ConnectionError):
                    await token(client, bytes(2000))
            async with connected(broker) as client:
                with pytest.raises(ConnectionError):
                    await client.send([struct.pack(">i", 2001)])
            async with connected(broker) as client:
                await authenticate(client)
                names = [{"topic_id": None, "name": "x" * 200 + str(number)} for number in range(20)]
                fields = {"topics": names, "allow_auto_topic_creation": False}
                assert (await client.request(ApiKey.METADATA, 12, **fields)).brokers

    run(work)


@pytest.mark.parametrize("listener", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_requests_of_many_entries_or_long_tokens_close_the_connection(tmp_path: Path, listener: str) -> None:
    """The library reads tags slowly, on the event loop."""

    def tagged(client: BrokerClient, count: int) -> bytes:
        header = client.header(ApiKey.SASL_AUTHENTICATE, 2)
        (frame,) = generic.encode_request(header, auth_bytes=b"")
        tags = b"".join(uvarint(number) + b"\0" for number in range(count))
        return framed(bytes(frame)[4:-1] + uvarint(count) + tags)

    async def work() -> None:
        async with brokers(tmp_path) as (broker,):
            for count, length in ((17, 0), (120_000, 0), (0, 8193)):
                async with connected(broker, listener) as client:
                    await handshake(client)
                    with pytest.raises(ConnectionError):
                        await (token(client, bytes(length)) if length else client.send([tagged(client, count)]))
                assert broker.server.failed_logins.total == 0
            async with connected(broker, listener) as client:
                await handshake(client)
                assert (await token(client, bytes(8192))).error_code != 0

    run(work)


def uvarint(number: int) -> bytes:
    head = bytearray()
    while number > 0x7F:
        head.append(0x80 | number & 0x7F)
        number >>= 7
    return bytes(head) + bytes((number,))


def test_garbage_in_every_state_harms_nobody(tmp_path: Path) -> None:
    """300 connections that send what a seed makes of an exchange; after that alice is served."""

    async def attack(broker: Broker, seed: int) -> None:
        rng = random.Random(seed)
        async with connected(broker) as client:
            with pytest.raises((OSError, TimeoutError)):
                if rng.random() < 0.8:
                    await handshake(client, rng.choice((SCRAM_256, SCRAM_512)), rng.randrange(2))
                data = bytearray(b"n,,n=alice,r=client")
                for _ in range(rng.randint(0, 4)):
                    data[rng.randrange(len(data))] = rng.randrange(256)
                await client.send([framed(bytes(data)) if rng.random() < 0.5 else framed(rng.randbytes(40))])
                raise ConnectionResetError("it was a first message of version 0")

    async def work() -> None:
        async with brokers(tmp_path, connection_failed_authentication_delay_ms=0) as (broker,):
            for start in range(0, 300, 50):
                await asyncio.gather(*(attack(broker, seed) for seed in range(start, start + 50)))
            async with connected(broker) as client:
                assert (await authenticate(client)).error_code == 0
                assert await is_served(client)

    run(work)


def test_connections_that_are_not_authenticated_make_room_for_others(tmp_path: Path) -> None:
    """A flood of failing attempts takes max.connections and no more, and no authenticated connection is closed."""

    async def work() -> None:
        settings = {"max_connections": 10, "connection_failed_authentication_delay_ms": 3_600_000}
        async with brokers(tmp_path, **settings) as (broker,), connected(broker) as alice:
            await authenticate(alice)

            async def attempt() -> None:
                async with connected(broker) as client:
                    with pytest.raises(OSError):
                        await authenticate(client, password="wrong")

            attempts = [asyncio.ensure_future(attempt()) for _ in range(9)]
            await until(lambda: broker.server.failed_logins.total >= 9)  # each of them holds its connection
            attempts += [asyncio.ensure_future(attempt()) for _ in range(60)]
            while broker.server.refused < 50:
                assert broker.server.connections <= 10
                await asyncio.sleep(0.01)  # the attempts go on meanwhile
            assert await is_served(alice)
            async with connected(broker) as second:
                await authenticate(second)
                assert await is_served(second)
            for each in attempts:
                each.cancel()
            await asyncio.gather(*attempts, return_exceptions=True)

    run(work)


# Re-authentication


def test_a_session_ends_without_a_reauthentication(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path, connections_max_reauth_ms=1500) as (broker,), connected(broker) as client:
            response = await authenticate(client)
            assert response.session_lifetime_ms == 1500
            while await is_served(client):  # until the lifetime is over
                await asyncio.sleep(0.05)  # real time, in which the session ends

    run(work)


def test_a_session_that_ends_while_its_client_is_throttled_is_closed_by_its_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the quota would have that wait longer."""

    async def work() -> None:
        clock = Clock(monkeypatch)
        async with brokers(tmp_path, connections_max_reauth_ms=60_000) as (broker,), connected(broker) as client:
            await set_quotas(broker, {"user": "alice"}, request_percentage=1e-6)
            await authenticate(client)
            assert await is_served(client)
            waiting = asyncio.ensure_future(is_served(client))
            await until(lambda: len(broker.server.muted) == 1)
            monkeypatch.setattr(connections_of, "monotonic_ms", lambda: monotonic_ms() + 60_001)
            clock.after(broker, 100)
            assert not await asyncio.wait_for(waiting, 30)

    run(work)


def test_users_that_are_removed_stay_until_they_authenticate_themselves_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path, connections_max_reauth_ms=60_000) as (broker,), connected(broker) as client:
            await authenticate(client)
            deletions = [{"name": "alice", "mechanism": number} for number in (1, 2)]
            assert await alter(broker, deletions=deletions) == {"alice": (0, None)}
            assert await is_served(client)
            await asyncio.sleep(1.1)  # a connection re-authenticates once a second at most
            response = await authenticate(client)
            assert response.error_message == DENIED.replace("during a", "during re-a") + SCRAM_256
            assert not await is_served(client)

    run(work)


def test_a_connection_is_authenticated_again_with_the_new_password(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path, connections_max_reauth_ms=60_000) as (broker,), connected(broker) as client:
            await authenticate(client)
            assert (await handshake(client)).error_code == ErrorCode.ILLEGAL_SASL_STATE  # within a second
            assert await alter(broker, [upsertion("alice", "paper")]) == {"alice": (0, None)}
            await asyncio.sleep(1.1)  # a connection re-authenticates once a second at most
            assert (await authenticate(client, password="paper")).error_code == 0
            assert await is_served(client)

    run(work)


# PLAIN


def plain_at(path: Path) -> dict[str, Any]:
    """Settings of a listener of PLAIN."""
    return {
        "listeners": f"127.0.0.1:0,LOCAL://unix:{path}",
        "listener_security_protocol_map": "PLAINTEXT:PLAINTEXT,LOCAL:SASL_PLAINTEXT",
        "sasl_enabled_mechanisms": "PLAIN",
    }


def test_attempts_by_plain_wait_no_longer_than_their_connections(tmp_path: Path) -> None:
    calls: list[str] = []
    checked = threading.Event()

    def is_password(user: str, password: str) -> bool:
        calls.append(user)
        return not checked.wait(20)

    async def work() -> None:
        async with brokers(tmp_path, max_connections=10, **plain_at(tmp_path / "s")) as (broker,):
            broker.user_credentials.credentials.is_password = is_password  # type: ignore[method-assign]  # slower
            requests = BrokerClient(("", 0), 1)
            frames = [
                *generic.encode_request(requests.header(ApiKey.SASL_HANDSHAKE, 1), mechanism="PLAIN"),
                *generic.encode_request(
                    requests.header(ApiKey.SASL_AUTHENTICATE, 2), auth_bytes=plain_message("a", "b")
                ),
            ]
            writers = []
            for _ in range(200):
                _, writer = await asyncio.open_unix_connection(tmp_path / "s")
                writers.append(writer)
                before = set(broker.api._tasks)
                writer.write(b"".join(map(bytes, frames)))
                while broker.api._tasks <= before:
                    await asyncio.sleep(0)  # the broker has its turn
                assert len(broker.api._tasks) <= 11
            checked.set()
            await until(lambda: not broker.api._tasks)
            assert 0 < len(calls) <= 11
            for writer in writers:
                writer.close()

    run(work)


def test_plain_by_a_unix_socket(tmp_path: Path) -> None:
    async def attempt(data: bytes, version: int) -> bytes | str | None:
        reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/s")
        requests = BrokerClient(("", 0), 1)
        header = requests.header(ApiKey.SASL_HANDSHAKE, version)
        writer.write(b"".join(map(bytes, generic.encode_request(header, mechanism="PLAIN"))))
        await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        if version == 0:
            writer.write(framed(data))
        else:
            header = requests.header(ApiKey.SASL_AUTHENTICATE, 2)
            writer.write(b"".join(map(bytes, generic.encode_request(header, auth_bytes=data))))
        try:
            response = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        except asyncio.IncompleteReadError:
            return None
        finally:
            writer.close()
        message: str | None = None if version == 0 else generic.decode_response(response, header).error_message
        return response if version == 0 else message

    async def work() -> None:
        async with brokers(tmp_path, **plain_at(tmp_path / "s")):
            assert await attempt(plain_message("alice", "pencil"), 1) is None
            assert await attempt(plain_message("alice", "pencil"), 0) == b""
            for user in ("alice", "carol"):
                wrong = plain_message(user, "wrong")
                assert await attempt(wrong, 1) == "Authentication failed: Invalid username or password"
                assert await attempt(wrong, 0) is None

    run(work)


# Credentials


def test_credentials_are_described_without_their_keys(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path) as (broker,):
            await alter(broker, [upsertion("bob", "paper", SCRAM_512, iterations=9000)])
            found = {
                result.user: [(info.mechanism, info.iterations) for info in result.credential_infos]
                for result in await describe(broker)
            }
            assert found == {"alice": [(1, 4096), (2, 4096)], "bob": [(2, 9000)]}
            results = await describe(broker, ["bob", "carol", "alice", "alice"])
            assert [(result.user, result.error_code, len(result.credential_infos)) for result in results] == [
                ("bob", 0, 1),
                ("carol", ErrorCode.RESOURCE_NOT_FOUND, 0),
                ("alice", ErrorCode.DUPLICATE_RESOURCE, 0),
            ]
            assert results[1].error_message == "Attempt to describe a user credential that does not exist: carol"

    run(work)


def test_what_cannot_be_altered_leaves_the_rest(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path) as (broker,):
            refused = await alter(
                broker,
                [
                    upsertion("", "x"),
                    upsertion("few", "x", iterations=4095),
                    upsertion("many", "x", iterations=16385),
                    upsertion("short", "x", salted_password=b"x"),
                    upsertion("twice", "x"),
                    upsertion("twice", "y"),
                    {**upsertion("unknown", "x"), "mechanism": 7},
                    upsertion("alice", "new"),
                    upsertion("good", "x"),
                ],
                [{"name": "alice", "mechanism": 1}, {"name": "nobody", "mechanism": 1}],
            )
            assert {user: code for user, (code, _) in refused.items()} == {
                "": ErrorCode.UNACCEPTABLE_CREDENTIAL,
                "few": ErrorCode.UNACCEPTABLE_CREDENTIAL,
                "many": ErrorCode.UNACCEPTABLE_CREDENTIAL,
                "short": ErrorCode.UNACCEPTABLE_CREDENTIAL,
                "twice": ErrorCode.DUPLICATE_RESOURCE,
                "unknown": ErrorCode.UNSUPPORTED_SASL_MECHANISM,
                "alice": ErrorCode.DUPLICATE_RESOURCE,
                "nobody": ErrorCode.RESOURCE_NOT_FOUND,
                "good": ErrorCode.NONE,
            }
            assert [result.user for result in await describe(broker)] == ["alice", "good"]

    run(work)


def test_the_users_of_a_request_are_read_again_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with brokers(tmp_path) as (broker,):
            reads: list[list[str]] = []
            reread = broker.user_credentials.reread

            async def counted(users: Iterable[str], timeout_s: float) -> None:
                reads.append(list(users))
                await reread(reads[-1], timeout_s)

            monkeypatch.setattr(broker.user_credentials, "reread", counted)
            names = [f"user-{number}" for number in range(5)]
            await alter(broker, [*(upsertion(name, "paper") for name in names), upsertion("few", "x", iterations=1)])
            assert reads == [names]
            assert set(names) <= broker.user_credentials.credentials.users.keys()

    run(work)


def test_every_broker_sees_a_change(tmp_path: Path) -> None:
    """By the watch of each: no request goes to the others."""

    async def work() -> None:
        async with brokers(tmp_path, 0, 1, 2) as made:
            for password in ("first", "second"):
                assert await alter(made[1], [upsertion("bob", password)]) == {"bob": (0, None)}
                for broker in made:

                    async def seen(broker: Broker = broker, password: str = password) -> bool:
                        return await asyncio.to_thread(broker.user_credentials.credentials.is_password, "bob", password)

                    await eventually(seen)
                    async with connected(broker) as client:
                        assert (await authenticate(client, "bob", password)).error_code == 0
            await alter(made[2], deletions=[{"name": "bob", "mechanism": 1}])
            await until(lambda: all("bob" not in each.user_credentials.credentials.users for each in made))

    run(work)


def test_credentials_are_read_again_after_a_session(tmp_path: Path) -> None:
    """What changed in between fired no watch; until then the last ones count, whatever the store."""

    async def work() -> None:
        async with brokers(tmp_path, 0, 1) as (first, second):
            await until(lambda: "alice" in second.user_credentials.credentials.users)
            second.store.abandon()
            async with connected(second) as client:
                assert (await authenticate(client)).error_code == 0
            await alter(first, [upsertion("bob", "paper")])
            await until(lambda: "bob" in second.user_credentials.credentials.users)
            secret = first.user_credentials.credentials.secret
            assert second.user_credentials.credentials.secret == secret
            assert len(secret) == 32

    run(work)


def test_a_user_whose_node_is_damaged_is_refused_and_the_others_are_not(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path) as (broker,):
            await alter(broker, [upsertion("bob", "paper")])
            await broker.store.multi((SetData(nodes.user("bob"), b"{", -1),))
            await until(lambda: "bob" not in broker.user_credentials.credentials.users)
            async with connected(broker) as client:
                assert (await authenticate(client, "bob", "paper")).error_message == DENIED + SCRAM_256
            async with connected(broker) as client:
                assert (await authenticate(client)).error_code == 0

    run(work)


def test_no_password_is_in_the_store(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path) as (broker,):
            await alter(broker, [upsertion("bob", "a password that nothing else has")])
            salted = upsertion("bob", "a password that nothing else has")["salted_password"]
            (node,) = await broker.store.get_nodes((nodes.user("bob"),))
            assert node is not None
            assert b"stored_key=" in node.data
        everything = b"".join(path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file())
        assert b"stored_key=" in everything
        assert b"a password that" not in everything
        assert salted not in everything
        modes = {path.stat().st_mode & 0o077 for path in (tmp_path / "store").rglob("*") if path.is_file()}
        assert modes == {0}
        assert os.stat(tmp_path / "store").st_mode & 0o077 == 0

    run(work)


def test_quotas_hold_for_the_user_that_has_logged_in_and_not_for_the_login(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path) as (broker,):
            for user in ("alice", "ANONYMOUS"):
                await set_quotas(broker, {"user": user}, request_percentage=1e-6)
            async with connected(broker) as client:
                assert (await client.request(ApiKey.API_VERSIONS, 3)).throttle_time_ms == 0
                assert (await authenticate(client)).error_code == 0
                assert len(broker.server.muted) <= 1  # that of the operator
                response = await client.request(ApiKey.METADATA, 12, topics=[])
                assert response.throttle_time_ms == 1000
            async with connected(broker) as again:
                assert (await authenticate(again)).error_code == 0

    run(work)
