"""OAUTHBEARER at a broker's listener: who gets in, for how long, and what an issuer that fails does to others."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")
pytest.importorskip("joserfc", reason="needs joserfc, the extra `oauth`")

from kreplog.client.broker_client import BrokerClient
from kreplog.errors import ErrorCode, UsageError
from kreplog.server.broker import Broker
from kreplog.server.settings import load
from kreplog.wire.versions import ApiKey
from tests.server.brokers import serving, until_controlled
from tests.server.handlers.test_sasl import connected, is_served, token
from tests.server.loop import run, until
from tests.tokens import Issuer

DENIED = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"


@asynccontextmanager
async def broker_of(root: Path, issuer: Issuer, **settings: Any) -> AsyncIterator[Broker]:
    own = {"listeners": "127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0", **issuer.settings(**settings)}
    async with serving(root, 0, **own) as (broker,):
        await until_controlled(broker)
        yield broker


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    made = Issuer(tmp_path / "issuer")
    made.publish()
    return made


async def log_in(client: BrokerClient, text: str) -> Any:
    """The last response: the client answers a refusal as RFC 7628 has it."""
    response = await client.request(ApiKey.SASL_HANDSHAKE, 1, mechanism="OAUTHBEARER")
    assert response.mechanisms == ["OAUTHBEARER"]
    response = await token(client, b"n,,\1auth=Bearer " + text.encode() + b"\1\1")
    if response.error_code or not response.auth_bytes:
        return response
    assert response.auth_bytes == b'{"status":"invalid_token"}'
    return await token(client, b"\1")


def test_a_token_lets_its_principal_in_until_it_expires(tmp_path: Path, issuer: Issuer) -> None:
    async def work() -> None:
        async with broker_of(tmp_path, issuer, sasl_oauthbearer_clock_skew_seconds=0) as broker:
            async with connected(broker) as client:
                response = await log_in(client, issuer.token("alice", lifetime_s=2))
                assert response.error_code == 0
                assert 0 < response.session_lifetime_ms <= 2000
                (principal,) = {each.principal.name for each in broker.server._clients if each.sasl is not None}
                assert principal == "alice"
                while await is_served(client):  # until the token has expired
                    await asyncio.sleep(0.05)  # real time, in which the token expires
            async with connected(broker) as client:
                response = await log_in(client, issuer.token("alice", lifetime_s=-1))
                assert (response.error_code, response.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, DENIED)
                assert not await is_served(client)

    run(work)


def test_a_session_goes_on_with_the_next_token(tmp_path: Path, issuer: Issuer) -> None:
    async def work() -> None:
        async with broker_of(tmp_path, issuer) as broker, connected(broker) as client:
            await log_in(client, issuer.token("alice"))
            await asyncio.sleep(1.1)  # a connection re-authenticates once a second at most
            assert (await log_in(client, issuer.token("alice"))).error_code == 0
            assert await is_served(client)
            await asyncio.sleep(1.1)  # a connection re-authenticates once a second at most
            assert "Cannot change principals" in (await log_in(client, issuer.token("bob"))).error_message
            assert not await is_served(client)

    run(work)


def test_no_bytes_in_place_of_a_token_end_more_than_their_connection(
    tmp_path: Path, issuer: Issuer, caplog: pytest.LogCaptureFixture
) -> None:
    hostile = [issuer.token(key=issuer.other), "a.b.c", "." * 30_000, "x" * (33 << 10), "y" * (1 << 20)]

    async def work() -> None:
        async with broker_of(tmp_path, issuer) as broker, connected(broker) as member:
            await log_in(member, issuer.token())
            for text in hostile:
                async with connected(broker) as client:
                    try:
                        assert (await log_in(client, text)).error_code
                    except ConnectionError:
                        assert len(text) > 32 << 10
                    assert not await is_served(client)
            assert await is_served(member)
            assert broker.memory.held.total() < 1 << 20

    run(work)
    assert not [record for record in caplog.records if record.exc_info]


def test_an_issuer_that_hangs_holds_up_nobody(tmp_path: Path, issuer: Issuer) -> None:
    """Neither those who are in, nor the start of a broker, nor its end."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # which accepts, and says nothing
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/jwks"

        async def work() -> None:
            async with broker_of(tmp_path, issuer, sasl_oauthbearer_jwks_endpoint_url=url) as broker:
                async with connected(broker, "PLAINTEXT") as other, connected(broker) as client:
                    attempt = asyncio.create_task(log_in(client, issuer.token()))
                    await until(lambda: bool(broker.api._tasks))
                    assert await is_served(other)
                    assert not attempt.done()
                    attempt.cancel()
                    await asyncio.gather(attempt, return_exceptions=True)
                await until(lambda: not broker.api._tasks)

        run(work)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "kreplog-jwks")


def test_those_who_are_in_stay_while_the_keys_cannot_be_read(tmp_path: Path, issuer: Issuer) -> None:
    async def work() -> None:
        backoff = {"sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms": 50}
        async with broker_of(tmp_path, issuer, **backoff) as broker, connected(broker) as member:
            await log_in(member, issuer.token())
            assert broker.api.sasl._keys is not None
            issuer.path.write_text("gone")
            await until(lambda: "gone" in issuer.path.read_text())
            assert await is_served(member)
            async with connected(broker) as client:
                assert (await log_in(client, issuer.token())).error_code == 0

    run(work)


# Settings


def settings_of(issuer: Issuer, **changes: Any) -> dict[str, Any]:
    given = {"broker_id": 0, "log_dirs": "/tmp/d", "coordination": "embedded:/tmp/s", **issuer.settings(), **changes}
    return {name.replace("_", "."): value for name, value in given.items()}


@pytest.mark.parametrize("at", ["127.0.0.1:0", "[::1]:0", "unix:/tmp/s"])
def test_tokens_may_pass_within_a_host_as_they_are(issuer: Issuer, at: str) -> None:
    load(settings_of(issuer, listeners=f"127.0.0.1:0,SASL_PLAINTEXT://{at}"), None, {})


def test_tokens_pass_no_network_as_they_are(issuer: Issuer) -> None:
    given = settings_of(issuer, listeners="SASL_PLAINTEXT://10.0.0.1:0")
    with pytest.raises(UsageError, match="would send their tokens unencrypted: take OAUTHBEARER out of"):
        load(given, None, {})
    load({**given, "listeners": "SASL_SSL://10.0.0.1:0"}, None, {})


@pytest.mark.parametrize(
    "url",
    [
        "http://issuer.test/jwks",
        "https:///jwks",
        "https://name:password@issuer.test/jwks",
        "ftp://127.0.0.1/jwks",
        "file:jwks.json",
        "file://issuer.test/jwks.json",
        "data:,{}",
        "jwks.json",
        "http://[",
    ],
)
def test_keys_come_from_nowhere_that_others_could_answer_for(issuer: Issuer, url: str) -> None:
    given = settings_of(issuer, listeners="SASL_PLAINTEXT://127.0.0.1:0", sasl_oauthbearer_jwks_endpoint_url=url)
    with pytest.raises(UsageError, match=r"must be https://HOST/PATH, file:///PATH") as refused:
        load(given, None, {})
    assert "password@" not in str(refused.value)


def test_settings_that_lack_each_other_are_refused(issuer: Issuer) -> None:
    given = settings_of(issuer, listeners="SASL_PLAINTEXT://127.0.0.1:0")
    with pytest.raises(UsageError, match=r"has no effect without OAUTHBEARER in sasl\.enabled\.mechanisms"):
        load({**given, "sasl.enabled.mechanisms": "SCRAM-SHA-256"}, None, {})
    del given["sasl.oauthbearer.jwks.endpoint.url"]
    with pytest.raises(UsageError, match=r"needs sasl\.oauthbearer\.jwks\.endpoint\.url"):
        load(given, None, {})


def test_without_joserfc_a_broker_says_what_it_needs(
    tmp_path: Path, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("json_web_keys", "oauth_tokens"):
        monkeypatch.delitem(sys.modules, f"kreplog.server.security.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "joserfc", None)
    monkeypatch.setitem(sys.modules, "joserfc.errors", None)

    async def work() -> None:
        own = {"log_dirs": f"{tmp_path}/data", "coordination": f"embedded:{tmp_path}/store"}
        broker = Broker(load(settings_of(issuer, listeners="SASL_PLAINTEXT://127.0.0.1:0", **own), None, {}))
        with pytest.raises(UsageError, match=r"needs joserfc: pip install 'kreplog\[oauth\]'"):
            await broker.run()

    run(work)
