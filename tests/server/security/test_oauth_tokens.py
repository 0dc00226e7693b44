"""Tokens and the keys of their issuer: what a hostile client may send, and an endpoint that fails, hangs or rotates."""

from __future__ import annotations

import base64
import http.server
import json
import logging
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("joserfc", reason="needs joserfc, the extra `oauth`")

from joserfc.jwk import OctKey, RSAKey

from kreplog import web_request
from kreplog.config import SaslConfig
from kreplog.errors import AuthenticationError
from kreplog.server.security.json_web_keys import JsonWebKeys, parse_keys
from kreplog.server.security.oauth_tokens import TokenValidator
from kreplog.web_request import MAX_DOCUMENT_BYTES, fetch
from tests.certificates import HOSTS, Certificates
from tests.tokens import AUDIENCE, ISSUER, Issuer, encoded

WITHIN_S = 20.0


def config(issuer: Issuer, **changes: Any) -> SaslConfig:
    return SaslConfig(**issuer.settings(sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms=50, **changes))


class Reading:
    """Keys that are read in their thread until the test ends."""

    def __init__(self, given: SaslConfig) -> None:
        self.attempts = 0
        self._again = threading.Condition()
        self.keys = JsonWebKeys(given, self._attempted)
        self.validate = TokenValidator(given, self.keys).validate
        self.keys.start()
        self.until(lambda: self.attempts > 0)

    def _attempted(self) -> None:
        with self._again:
            self.attempts += 1
            self._again.notify_all()

    def until(self, true: Callable[[], bool]) -> None:
        with self._again:
            assert self._again.wait_for(true, WITHIN_S)

    def refusal(self, token: str) -> str:
        with pytest.raises(AuthenticationError) as refused:
            self.validate(token)
        return str(refused.value)


@pytest.fixture
def issuer(tmp_path: Path) -> Issuer:
    made = Issuer(tmp_path / "issuer")
    made.publish()
    return made


@pytest.fixture
def reading() -> Iterator[Callable[[SaslConfig], Reading]]:
    started: list[Reading] = []

    def start(given: SaslConfig) -> Reading:
        started.append(Reading(given))
        return started[-1]

    yield start
    for each in started:
        each.keys.close()


Start = Callable[[SaslConfig], Reading]


# Tokens


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
def test_a_token_is_valid_until_it_expires(issuer: Issuer, reading: Start, algorithm: str) -> None:
    given = reading(config(issuer, sasl_oauthbearer_clock_skew_seconds=0))
    name, lifetime_ms = given.validate(issuer.token("alice", header={"alg": algorithm, "x": "unknown"}))
    assert name == "alice"
    assert 280_000 < lifetime_ms <= 300_000


def test_keys_of_elliptic_curves(issuer: Issuer, reading: Start) -> None:
    issuer.publish(issuer.ec)
    assert reading(config(issuer)).validate(issuer.token(key=issuer.ec)).name == "alice"


def test_the_clock_may_differ_by_the_skew(issuer: Issuer, reading: Start) -> None:
    given = reading(config(issuer))
    assert 0 < given.validate(issuer.token(lifetime_s=-20)).lifetime_ms <= 10_000
    assert "expired_token" in given.refusal(issuer.token(lifetime_s=-31))


def test_the_same_token_is_refused_once_it_has_expired(issuer: Issuer) -> None:
    given, now = config(issuer, sasl_oauthbearer_clock_skew_seconds=0), [0.0]
    keys = JsonWebKeys(given, lambda: None)
    keys._read()
    validator = TokenValidator(given, keys, lambda: now[0])
    token = issuer.token(iat=1000, exp=1300)
    now[0] = 1299.5
    assert validator.validate(token).lifetime_ms == 500
    now[0] = 1300.0
    with pytest.raises(AuthenticationError, match="expired_token"):
        validator.validate(token)
    now[0] = 900.0
    with pytest.raises(AuthenticationError, match="issued in the future"):
        validator.validate(token)


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("expired_token", {"lifetime_s": -3600}),
        ("not yet valid", {"nbf": 2**40}),
        ("issued in the future", {"iat": 2**40}),
        ("aud", {"aud": "another service"}),
        ("aud", {"aud": ["another service", AUDIENCE.upper()]}),
        ("aud", {"aud": {AUDIENCE: 1}}),
        ("aud", {"without": "aud"}),
        ("iss", {"iss": "https://issuer.test.evil.test"}),
        ("iss", {"iss": [ISSUER]}),
        ("iss", {"without": "iss"}),
        ("exp", {"without": "exp"}),
        ("iat", {"without": "iat"}),
        ("exp", {"exp": "9999999999"}),
        ("exp", {"exp": True}),
        ("exp", {"exp": float("nan")}),
        ("exp", {"exp": float("inf")}),
        ("valid", {"exp": 10**400}),
        ("sub", {"without": "sub"}),
        ("sub", {"sub": ""}),
        ("sub", {"sub": "  "}),
        ("sub", {"sub": 7}),
        ("sub", {"sub": "a\0b"}),
        ("sub", {"sub": "a" * 1025}),
        ("scope", {"scope": {"a": 1}}),
        ("scope", {"scope": ["a", 1]}),
        ("unsupported_algorithm", {"header": {"alg": "HS256"}, "key": b"secret"}),
        ("no key 'another' for RS256", {"header": {"kid": "another"}}),
        ("unsupported_header", {"header": {"crit": ["unknown"], "unknown": 1}}),
    ],
)
def test_a_token_is_refused(issuer: Issuer, reading: Start, reason: str, changes: dict[str, Any]) -> None:
    refusal = reading(config(issuer)).refusal(issuer.token(**changes))
    assert refusal.startswith("the token is not valid: ")
    assert reason in refusal


def test_names_of_claims_are_settings(issuer: Issuer, reading: Start) -> None:
    names = {"sasl_oauthbearer_sub_claim_name": "client", "sasl_oauthbearer_scope_claim_name": "scp"}
    given = reading(config(issuer, **names))
    assert given.validate(issuer.token("alice", client="bob", scope=7)).name == "bob"
    assert "scp" in given.refusal(issuer.token(client="bob", scp=7))


def test_a_token_with_an_audience_needs_the_setting(issuer: Issuer, reading: Start) -> None:
    given = reading(config(issuer, sasl_oauthbearer_expected_audience=None, sasl_oauthbearer_expected_issuer=None))
    assert "expected.audience is not set" in given.refusal(issuer.token())
    assert given.validate(issuer.token(without="aud", iss="any")).name == "alice"


def test_a_token_without_signature_is_refused(issuer: Issuer, reading: Start) -> None:
    given = reading(config(issuer))
    _, claims, signature = issuer.token().split(".")
    algorithms: list[Any] = ["none", "None", "NONE", "", None, 7, ["RS256"], {}]
    for algorithm in algorithms:
        for key_id in ({}, {"kid": issuer.key.kid}):
            for end in ("", signature):
                given.refusal(f"{encoded({'alg': algorithm, **key_id})}.{claims}.{end}")
    given.refusal(f"{encoded(['alg'])}.{claims}.{signature}")
    given.refusal(f"{encoded({'kid': issuer.key.kid})}.{claims}.{signature}")


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_the_public_key_is_no_shared_secret(issuer: Issuer, reading: Start, algorithm: str) -> None:
    """CVE-2015-9235: whoever has the JWK set would sign with it."""
    given = reading(config(issuer))
    public = [issuer.key.as_pem(private=False), json.dumps(issuer.key.as_dict(private=False)).encode()]
    for secret in public:
        refusal = given.refusal(issuer.token(key=secret, header={"alg": algorithm}))
        assert "unsupported_algorithm" in refusal


def test_keys_that_a_token_brings_along_are_not_used(issuer: Issuer, reading: Start) -> None:
    given = reading(config(issuer))
    own = issuer.other.as_dict(private=False)
    for header in (
        {"jwk": own},
        {"jwk": own, "kid": issuer.key.kid},
        {"jku": "https://evil.test/jwks", "kid": issuer.key.kid},
        {"x5u": "https://evil.test/x5u", "kid": issuer.key.kid},
    ):
        given.refusal(issuer.token(key=issuer.other, header=header))


def test_a_changed_token_is_refused_wherever_it_is_changed(issuer: Issuer, reading: Start) -> None:
    given, token = reading(config(issuer)), issuer.token()
    last = len(token) - 1  # of whose bits the decoded signature has some alone
    for at in range(0, last, 7):
        given.refusal(token[:at] + ("B" if token[at] != "B" else "C") + token[at + 1 :])
        given.refusal(token[:at])


def test_a_token_without_key_id_needs_a_set_of_one_fitting_key(issuer: Issuer, reading: Start) -> None:
    issuer.publish(issuer.key, issuer.ec)
    given = reading(config(issuer))
    assert given.validate(issuer.token(without="kid")).name == "alice"
    issuer.publish(issuer.key, issuer.other)
    given.until(lambda: len(given.keys._keys) == 2 and all(isinstance(key, RSAKey) for key in given.keys._keys))
    assert "2 keys fit" in given.refusal(issuer.token(without="kid"))


def test_large_and_nested_tokens_are_refused(issuer: Issuer, reading: Start) -> None:
    given = reading(config(issuer))
    _, claims, signature = issuer.token().split(".")
    deep = base64.urlsafe_b64encode(b"[" * 20_000).decode().rstrip("=")
    given.refusal("A" * (1 << 20))
    given.refusal("." * (1 << 20))
    given.refusal(f"{deep}.{claims}.{signature}")
    given.refusal(f"{encoded({'alg': 'RS256', 'kid': issuer.key.kid})}.{deep}.{signature}")


# Keys


@pytest.mark.filterwarnings("ignore:Key size should be")
def test_a_set_has_the_keys_that_verify_and_no_others(issuer: Issuer, caplog: pytest.LogCaptureFixture) -> None:
    secret, small = OctKey.generate_key(256), RSAKey.generate_key(1024)
    assert len(parse_keys(issuer.document(issuer.key, issuer.ec, secret, small))) == 2
    assert "2048 to 8192 bits" in caplog.text
    for document in (
        issuer.document(secret),
        issuer.document(use="enc"),
        issuer.document(n="!"),
        b"",
        b"[]",
        b'{"keys":{}}',
        b'{"keys":[]}',
        b'{"keys":[1]}',
        b"[" * 100_000,
        json.dumps({"keys": [issuer.key.as_dict(private=False)] * 101}).encode(),
    ):
        with pytest.raises(ValueError, match=r"keys|key for"):
            parse_keys(document)


def test_a_key_for_one_algorithm_verifies_no_other(issuer: Issuer, reading: Start) -> None:
    issuer.path.write_bytes(issuer.document(alg="PS256"))
    given = reading(config(issuer))
    assert "no key" in given.refusal(issuer.token())
    assert given.validate(issuer.token(header={"alg": "PS256"})).name == "alice"


def test_a_rotated_key_is_known_and_a_withdrawn_one_is_not(issuer: Issuer, reading: Start) -> None:
    given, old = reading(config(issuer)), issuer.token()
    assert given.validate(old).name == "alice"
    issuer.publish(issuer.other)
    given.until(lambda: given.keys._keys[0].kid == issuer.other.kid)
    assert given.validate(issuer.token(key=issuer.other)).name == "alice"
    assert "no key" in given.refusal(old)


def test_the_last_keys_count_while_they_cannot_be_read(
    issuer: Issuer, reading: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    given = reading(config(issuer, sasl_oauthbearer_jwks_endpoint_retry_backoff_ms=10))
    token = issuer.token()
    for break_it in (issuer.path.unlink, lambda: issuer.path.write_bytes(b"{"), lambda: issuer.path.write_bytes(b"")):
        break_it()
        before = given.attempts
        given.until(lambda before=before: given.attempts > before + 2)  # type: ignore[misc]  # mypy and defaults
        assert given.validate(token).name == "alice"
    assert "the last 1 count" in caplog.text
    issuer.publish(issuer.key, issuer.other)
    given.until(lambda: len(given.keys._keys) == 2)


def test_without_any_keys_nobody_is_authenticated(tmp_path: Path, reading: Start) -> None:
    issuer = Issuer(tmp_path / "late")
    given = reading(config(issuer))
    assert "no keys have been read" in given.refusal(issuer.token())
    issuer.publish()
    given.until(lambda: bool(given.keys._keys))
    assert given.validate(issuer.token()).name == "alice"


# Endpoints


class Endpoint:
    """An HTTP server whose response is `respond`; paths: those requested so far."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.respond: Callable[[http.server.BaseHTTPRequestHandler], None] = lambda handler: handler.send_error(404)
        endpoint = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                endpoint.paths.append(self.path)
                endpoint.respond(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/jwks"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def serve(self, document: bytes) -> None:
        def respond(handler: http.server.BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.end_headers()
            handler.wfile.write(document)

        self.respond = respond


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_a_flood_of_unknown_keys_is_a_request_at_times(issuer: Issuer, endpoint: Endpoint, reading: Start) -> None:
    endpoint.serve(issuer.document())
    limits = {"sasl_oauthbearer_jwks_endpoint_url": endpoint.url}
    given = SaslConfig(
        **{**issuer.settings(), **limits, "sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms": 3_600_000}
    )
    started = reading(given)
    for number in range(500):
        started.refusal(issuer.token(header={"kid": f"flood {number}"}))
    assert endpoint.paths == ["/jwks"]
    assert started.validate(issuer.token()).name == "alice"


def test_an_unknown_key_has_the_keys_read_again(issuer: Issuer, endpoint: Endpoint, reading: Start) -> None:
    endpoint.serve(issuer.document())
    started = reading(config(issuer, sasl_oauthbearer_jwks_endpoint_url=endpoint.url))
    endpoint.serve(issuer.document(issuer.key, issuer.other))
    assert "read again soon" in started.refusal(issuer.token(key=issuer.other))
    started.until(lambda: len(started.keys._keys) == 2)
    assert started.validate(issuer.token(key=issuer.other)).name == "alice"
    assert len(endpoint.paths) == 2


def test_an_endpoint_may_send_neither_redirects_nor_errors_nor_without_end(endpoint: Endpoint) -> None:
    def redirected(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(302)
        handler.send_header("Location", "/elsewhere")
        handler.end_headers()

    endpoint.respond = redirected
    with pytest.raises(OSError, match=r"redirected to .*/elsewhere"):
        fetch(endpoint.url)
    assert endpoint.paths == ["/jwks"]
    endpoint.respond = lambda handler: handler.send_error(503)
    with pytest.raises(OSError, match="503"):
        fetch(endpoint.url)
    endpoint.serve(b" " * (MAX_DOCUMENT_BYTES + 1))
    with pytest.raises(ValueError, match="more than"):
        fetch(endpoint.url)


def test_an_endpoint_that_hangs_is_given_up(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_request, "TIMEOUT_S", 0.2)
    ended = threading.Event()

    def hanging(handler: http.server.BaseHTTPRequestHandler) -> None:
        ended.wait(WITHIN_S)

    endpoint.respond = hanging
    with pytest.raises(TimeoutError, match="was not sent within"):
        fetch(endpoint.url)

    def dripping_headers(handler: http.server.BaseHTTPRequestHandler) -> None:
        for byte in b"HTTP/1.0 200 OK\r\nX-Slow: " + b"x" * 30 + b"\r\n\r\n{}":
            if not ended.wait(0.05):
                handler.wfile.write(bytes([byte]))

    endpoint.respond = dripping_headers
    with pytest.raises(TimeoutError, match="was not sent within"):
        fetch(endpoint.url)

    def dripping(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not ended.wait(0.05):  # more often than the time-out of one read
            handler.wfile.write(b" ")

    endpoint.respond = dripping
    with pytest.raises(TimeoutError, match="was not sent within"):
        fetch(endpoint.url)
    ended.set()


def test_an_endpoint_of_https_needs_a_certificate_that_is_trusted(
    issuer: Issuer, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = Certificates(tmp_path / "ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.keystore("issuer", HOSTS))
    endpoint.server.socket = context.wrap_socket(endpoint.server.socket, server_side=True)
    endpoint.serve(issuer.document())
    url = endpoint.url.replace("http:", "https:")
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        fetch(url)
    monkeypatch.setenv("SSL_CERT_FILE", certificates.truststore)
    assert fetch(url) == issuer.document()
    context.load_cert_chain(certificates.keystore("another", ("another.test",)))
    with pytest.raises(OSError, match="IP address mismatch"):
        fetch(url)
