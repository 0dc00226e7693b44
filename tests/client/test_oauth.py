"""Tokens of kreplog's own clients: of a token endpoint, a file or a callable; renewed, and in no text."""

from __future__ import annotations

import http.server
import json
import logging
import socket
import threading
import traceback
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest

pytest.importorskip("joserfc", reason="needs joserfc, the extra `oauth`")
pytest.importorskip("kafka", reason="needs kafka-python, the extra `cluster`")

from kreplog import web_request
from kreplog.client.oauth_token import TOKEN_CALLBACK, Token, TokenSource
from kreplog.client.security import ClientSecurity
from kreplog.core.security.oauthbearer import AcceptedToken, OauthClient, OauthServer
from kreplog.core.security.sasl import SaslConnection, SaslMechanism
from kreplog.errors import AuthenticationError, UsageError
from tests.client.test_security import logged_in
from tests.tokens import Issuer, encoded

URL = "sasl.oauthbearer.token.endpoint.url"
SECRET = "s3cret-of-kreplog"
OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
CLIENT = {
    "sasl.oauthbearer.client.credentials.client.id": "kreplog",
    "sasl.oauthbearer.client.credentials.client.secret": SECRET,
}
JAAS = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
FAST = {"sasl.login.retry.backoff.ms": "1", "sasl.login.retry.backoff.max.ms": "50"}


class TokenEndpoint:
    """An HTTP server whose responses are those of `respond`; requests: the Authorization and form of each."""

    def __init__(self) -> None:
        self.requests: list[tuple[str | None, dict[str, list[str]]]] = []
        self.respond: Callable[[], tuple[int, bytes]] = lambda: (404, b"")
        self.headers: dict[str, str] = {}
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                endpoint.requests.append((self.headers["Authorization"], parse_qs(form)))
                status, document = endpoint.respond()
                self.send_response(status)
                for name, value in endpoint.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(document)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/token"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    made = TokenEndpoint()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    return Issuer(tmp_path / "issuer")


def issuing(text: str) -> Callable[[], tuple[int, bytes]]:
    return lambda: (200, json.dumps({"access_token": text, "token_type": "bearer"}).encode())


def security(**settings: Any) -> ClientSecurity:
    return ClientSecurity.of({**OAUTH, **settings})


def token_of(made: ClientSecurity) -> str:
    assert made.login is not None
    assert made.login.tokens is not None
    return made.login.tokens.token()


def server(*accepted: str) -> SaslConnection:
    """The server's end of a connection; it accepts these tokens, of alice, for 5 s."""

    def validate(token: str) -> AcceptedToken:
        if token not in accepted:
            raise AuthenticationError("not one of them")
        return AcceptedToken("alice", 5000)

    return SaslConnection({"OAUTHBEARER": SaslMechanism(lambda: OauthServer(validate))}, 0)


# Where tokens are from


@pytest.mark.parametrize(
    "given",
    [
        {**CLIENT, "sasl.oauthbearer.scope": "produce consume"},
        {"sasl.jaas.config": f'{JAAS} clientId="kreplog" clientSecret="{SECRET}" scope="produce consume";'},
    ],
)
def test_client_credentials(endpoint: TokenEndpoint, issuer: Issuer, given: dict[str, str]) -> None:
    """By Kafka's settings since 4.1, and by those before; the client's id and secret go by HTTP's Basic."""
    token = issuer.token()
    endpoint.respond = issuing(token)
    made = security(**given, **{URL: endpoint.url})
    assert made.login is not None
    at = server(token)
    assert logged_in(made.login, at) == 5000
    assert at.principal.name == "alice"
    basic = "Basic " + b64encode(f"kreplog:{SECRET}".encode()).decode()
    form = {"grant_type": ["client_credentials"], "scope": ["produce consume"]}
    assert endpoint.requests == [(basic, form)]
    again = security(**given, **{URL: endpoint.url})
    assert token_of(again) == token
    assert len(endpoint.requests) == 1, "clients of the same settings share their token"


def test_a_file(tmp_path: Path, issuer: Issuer) -> None:
    file = tmp_path / "token"
    first, second = issuer.token(lifetime_s=300), issuer.token("bob")
    file.write_text(f"{first}\n")
    made = security(
        **{
            URL: file.as_uri(),
            "sasl.jaas.config": f"{JAAS};",
            "sasl.login.callback.handler.class": "org.apache.kafka.x.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.x.FileJwtRetriever",
        }
    )
    assert token_of(made) == first
    file.write_text(second)
    assert token_of(made) == first, "it is used until most of its lifetime has passed"
    assert made.login is not None
    with pytest.raises(AuthenticationError, match=r"token of file:///.*/token\)"):
        logged_in(made.login, server())
    assert token_of(made) == second, "a broker has refused the first"
    made = security(**{URL: (tmp_path / "missing").as_uri()})
    with pytest.raises(AuthenticationError, match=r"cannot be read from file:///.*/missing: No such file"):
        token_of(made)


def test_a_callable() -> None:
    """As librdkafka's clients have it; its tokens need not be of JSON."""
    given: list[str] = []

    def oauth_cb(config: str) -> tuple[str, float]:
        given.append(config)
        return "opaque", 2**40

    made = security(**{TOKEN_CALLBACK: oauth_cb, "sasl.oauthbearer.config": "tenant=1"})
    assert made.login is not None
    assert logged_in(made.login, server("opaque")) == 5000
    assert given == ["tenant=1"]

    def failing(config: str) -> tuple[str, float]:
        raise ValueError(SECRET)

    with pytest.raises(AuthenticationError, match="oauth_cb has failed with ValueError") as refused:
        token_of(security(**{TOKEN_CALLBACK: failing}))
    assert SECRET not in "".join(traceback.format_exception(refused.value))


def test_extensions_go_with_the_token(issuer: Issuer, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(issuer.token())
    made = security(
        **{URL: (tmp_path / "token").as_uri(), "sasl.jaas.config": f'{JAAS} extension_logicalCluster="lkc-1";'}
    )
    assert made.login is not None
    assert made.login.extensions == {"logicalCluster": "lkc-1"}
    assert OauthClient("t", {"a": "b"}).first() == b"n,,\1auth=Bearer t\1a=b\1\1"
    assert made.of_kafka_python()["sasl_oauth_token_provider"].extensions() == {"logicalCluster": "lkc-1"}
    for wrong in ('extension_a1="b"', 'extension_auth="Bearer x"', 'extension_a="b\1auth=Bearer x"'):
        with pytest.raises(UsageError, match=r"sasl\.jaas\.config: extension_"):
            security(**{URL: "file:///token", "sasl.jaas.config": f"{JAAS} {wrong};"})


# Renewal


def test_a_new_token_before_the_last_one_expires(caplog: pytest.LogCaptureFixture) -> None:
    now = 1000.0
    down = AuthenticationError("down")
    issued: list[Token | AuthenticationError] = [Token("first", 1100), down, Token("second", 1300)]

    def retrieve() -> Token:
        found = issued.pop(0)
        if isinstance(found, AuthenticationError):
            raise found
        return found

    source = TokenSource("the issuer", retrieve, lambda: now)
    for now, expected in ((1000, "first"), (1079, "first"), (1081, "first"), (1082, "second"), (1250, "second")):
        assert source.token() == expected, now
    assert "the last one is used until it expires: down" in caplog.text
    now = 1300
    issued.append(AuthenticationError("down"))
    with pytest.raises(AuthenticationError, match="down"):
        source.token()
    issued.append(Token("late", 1299))
    with pytest.raises(AuthenticationError, match="the token of the issuer has expired"):
        source.token()
    assert "second" not in repr(source)
    assert "second" not in repr(Token("second", 1300))


def test_threads_share_one_request(endpoint: TokenEndpoint, issuer: Issuer) -> None:
    endpoint.respond = issuing(issuer.token())
    made = security(**CLIENT, **{URL: endpoint.url})
    threads = [threading.Thread(target=token_of, args=(made,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(endpoint.requests) == 1


# What is refused


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({}, "OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url"),
        ({URL: "http://issuer.test/token", **CLIENT}, "must be https://HOST/PATH"),
        ({URL: f"https://user:{SECRET}@issuer.test/token", **CLIENT}, r"\(hidden\)"),
        ({URL: "ftp://issuer.test/token", **CLIENT}, "must be https://HOST/PATH"),
        ({URL: "https://issuer.test/token"}, "needs sasl.oauthbearer.client.credentials.client.id"),
        ({URL: "https://issuer.test/token", "sasl.jaas.config": f'{JAAS} clientId="a" clientSecret=" ";'}, "needs"),
        ({URL: "file:///token", TOKEN_CALLBACK: print}, "or else oauth_cb"),
        ({TOKEN_CALLBACK: "print"}, "is no callable"),
        ({URL: "file:///token", "sasl.oauthbearer.jwt.retriever.class": "x.JwtBearerJwtRetriever"}, "is not supported"),
        ({URL: "file:///token", "sasl.login.retry.backoff.ms": "x"}, "must be a whole number"),
    ],
)
def test_settings_that_are_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as refused:
        security(**given)
    assert SECRET not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    ("status", "document", "reason"),
    [
        (401, json.dumps({"error": "invalid_client", "more": SECRET}), r"status 401 \(invalid_client\)"),
        (400, json.dumps({"error": f"{SECRET}!"}), "HTTP status 400: check"),
        (302, "", "sends no token"),
        (503, SECRET, "sends no token: HTTP status 503"),
        (200, SECRET, "no JSON object with an access_token"),
        (200, "[" * 100_000, "no JSON object with an access_token"),
        (200, json.dumps({"access_token": f"{SECRET}\1auth=x"}), "gives no bearer token"),
        (200, json.dumps({"access_token": SECRET}), "sends no JSON Web Token"),
        (200, json.dumps({"access_token": f"e30.{encoded({'sub': 'a', 'exp': SECRET})}.x"}), "sends no JSON Web"),
        (200, json.dumps({"access_token": f"e30.{encoded({'sub': 'a'})}.x"}), "a time `exp`"),
        (200, json.dumps({"access_token": f"e30.{encoded({'exp': 2**40})}.x"}), "a name `sub`"),
        (200, json.dumps({"access_token": f"e30.{encoded({'sub': 'a', 'exp': 2**40, 'scope': 1})}.x"}), "`scope`"),
        (200, json.dumps({"access_token": f"e30.{encoded({'sub': 'a', 'exp': 1})}.x"}), "has expired"),
    ],
)
def test_what_an_endpoint_may_not_send(
    endpoint: TokenEndpoint, caplog: pytest.LogCaptureFixture, status: int, document: str, reason: str
) -> None:
    """One error, which has nothing of the response but the code of RFC 6749; after 503 and 302 there may be another
    request."""
    caplog.set_level(logging.DEBUG)
    endpoint.headers = {"Location": f"/other?{SECRET}"} if status == 302 else {}
    endpoint.respond = lambda: (status, document.encode())
    made = security(**CLIENT, **FAST, **{URL: f"{endpoint.url}?key={SECRET}"})
    with pytest.raises(AuthenticationError, match=reason) as refused:
        token_of(made)
    assert SECRET not in "".join(traceback.format_exception(refused.value)) + caplog.text + repr(made)
    assert status in (302, 503) or len(endpoint.requests) == 1


def test_an_endpoint_that_fails_for_a_while(endpoint: TokenEndpoint, issuer: Issuer) -> None:
    token = issuer.token()
    responses = [(500, b""), (429, b""), issuing(token)()]
    endpoint.respond = lambda: responses.pop(0)
    settings = FAST | {"sasl.login.retry.backoff.max.ms": "60000"}
    assert token_of(security(**CLIENT, **settings, **{URL: endpoint.url})) == token
    assert len(endpoint.requests) == 3


def test_an_endpoint_that_hangs_or_is_not_there(endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_request, "TIMEOUT_S", 0.2)
    ended = threading.Event()
    endpoint.respond = lambda: (200 + ended.wait(60), b"")
    with pytest.raises(AuthenticationError, match="sends no token"):
        token_of(security(**CLIENT, **FAST, **{URL: endpoint.url}))
    ended.set()
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/token"
    with pytest.raises(AuthenticationError, match="sends no token: Connection refused"):
        token_of(security(**CLIENT, **FAST, **{URL: url}))


def test_a_token_leaves_this_host_by_tls_alone(tmp_path: Path) -> None:
    closed: list[bool] = []

    def peer(family: socket.AddressFamily, host: str) -> Any:
        return SimpleNamespace(family=family, getpeername=lambda: (host, 9092), close=lambda: closed.append(True))

    settings = {URL: (tmp_path / "token").as_uri()}
    plain = security(**settings, **{"security.protocol": "SASL_PLAINTEXT"})
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_UNIX, "")):
        plain.check_peer(peer(family, host))
    assert not closed
    with pytest.raises(AuthenticationError, match="would send the token unencrypted"):
        plain.check_peer(peer(socket.AF_INET, "10.0.0.1"))
    assert closed
    security(**settings).check_peer(peer(socket.AF_INET, "10.0.0.1"))


def test_a_broker_that_goes_on_after_it_has_refused_a_token() -> None:
    client = OauthClient("t", {})
    assert client.respond(b'{"status":"invalid_token"}') == b"\1"
    assert not client.is_complete
    with pytest.raises(AuthenticationError, match="goes on"):
        client.respond(b"")
