"""TokenSource: the tokens by which a client logs in by OAUTHBEARER: of a token endpoint, a file, or a callable.

A token is used until most of its lifetime has passed, then the next login or re-authentication gets a new one. While
there is no new one, as at an outage of the endpoint, the last one counts until it expires. The clients of a process
with the same settings share their tokens, but for those of a callable. No text of a source has a token or a secret.

Source: RFC 6749 section 4.4 (client credentials), RFC 6750; KIP-255, 768, 1139; Kafka's ClientCredentialsJwtRetriever,
FileJwtRetriever and ClientJwtValidator.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kreplog.core.security.oauthbearer import MAX_TOKEN_MESSAGE_BYTES
from kreplog.errors import AuthenticationError, UsageError
from kreplog.web_request import ResponseStatusError, check_url, fetch

TOKEN_CALLBACK = "oauth_cb"
"""The name of a callable among settings, as librdkafka's clients have it: oauth_cb(config) returns the token and when
it expires, in seconds since 1970; config is the text of sasl.oauthbearer.config."""

_URL = "sasl.oauthbearer.token.endpoint.url"
_CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
_CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
_SCOPE = "sasl.oauthbearer.scope"
_SCOPE_CLAIM = "sasl.oauthbearer.scope.claim.name"
_SUB_CLAIM = "sasl.oauthbearer.sub.claim.name"
_RETRY_MS = "sasl.login.retry.backoff.ms"
_RETRY_MAX_MS = "sasl.login.retry.backoff.max.ms"
_CONFIG = "sasl.oauthbearer.config"
_CLASSES = {
    "sasl.login.callback.handler.class": ("OAuthBearerLoginCallbackHandler",),
    "sasl.oauthbearer.jwt.retriever.class": (
        "DefaultJwtRetriever",
        "ClientCredentialsJwtRetriever",
        "FileJwtRetriever",
    ),
}
"""Settings of Java's clients that name what is used here anyway."""

OAUTH_NAMES = (
    *(_URL, _CLIENT_ID, _CLIENT_SECRET, _SCOPE, _SCOPE_CLAIM, _SUB_CLAIM, _RETRY_MS, _RETRY_MAX_MS, _CONFIG),
    *(*_CLASSES, TOKEN_CALLBACK),
)

WINDOW_FACTOR = 0.8
"""Part of its lifetime for which a token is used where there may be a new one: Kafka's
sasl.login.refresh.window.factor, below the part of a session after which connections authenticate again."""

_EXTENSION = "extension_"
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
_ERROR = re.compile(r"[a-z_]{1,60}")
_FATAL = {*range(400, 408), *range(409, 416), 426, 501, 505}
"""Statuses of HTTP after which the same request will not do better. Source: Kafka's HttpJwtRetriever."""

_log = logging.getLogger("kreplog.client")


class Token(NamedTuple):
    """A token, and when it expires (seconds since 1970)."""

    text: str
    expires: float

    def __repr__(self) -> str:
        return f"Token(expires={self.expires:.0f})"


@dataclass(frozen=True, slots=True)
class _Settings:
    """Settings by which tokens are retrieved; one of url and callback is not None."""

    url: str | None
    client_id: str
    client_secret: str = field(repr=False)
    scope: str
    claims: tuple[str, str]
    backoff_s: tuple[float, float]
    config: str = field(repr=False)
    callback: Callable[[str], tuple[Any, ...]] | None = field(repr=False)


class TokenSource:
    """For any thread. origin: where tokens are from, for messages. now: seconds since 1970."""

    def __init__(self, origin: str, retrieve: Callable[[], Token], now: Callable[[], float] = time.time) -> None:
        self.origin = origin
        self._retrieve = retrieve
        self._now = now
        self._lock = threading.Lock()
        self._last: Token | None = None
        self._renewal = 0.0

    def __repr__(self) -> str:
        return f"TokenSource({self.origin!r})"

    def token(self) -> str:
        """A valid token; takes the time of a request to the endpoint where it has to be a new one. Raises
        AuthenticationError."""
        with self._lock:
            last, now = self._last, self._now()
            if last is not None and now < self._renewal:
                return last.text
            try:
                new = self._retrieve()
                if not new.expires > now:
                    raise AuthenticationError(f"the token of {self.origin} has expired: is this host's clock right?")
            except AuthenticationError as error:
                if last is None or now >= last.expires:
                    raise
                _log.warning("there is no new token, the last one is used until it expires: %s", error)
                return last.text
            self._last = new
            self._renewal = now + (new.expires - now) * WINDOW_FACTOR
            return new.text

    def refused(self, token: str) -> None:
        """A broker has refused `token`: the next login takes a new one."""
        with self._lock:
            if self._last is not None and self._last.text == token:
                self._last = None


def token_source(settings: Mapping[str, Any], jaas: Mapping[str, str]) -> TokenSource:
    """The source that settings by Kafka's names describe, and the options of sasl.jaas.config, which come second.

    Raises UsageError, which quotes neither a secret nor a URL with one."""
    for name, classes in _CLASSES.items():
        if name in settings and settings[name].rpartition(".")[2] not in classes:
            raise UsageError(f"{name} is not supported but for {', '.join(classes)}")
    callback = settings.get(TOKEN_CALLBACK)
    url = settings.get(_URL)
    if (callback is None) == (url is None):
        raise UsageError(f"OAUTHBEARER needs {_URL}, https://HOST/PATH or file:///PATH, or else {TOKEN_CALLBACK}")
    if callback is not None and not callable(callback):
        raise UsageError(f"{TOKEN_CALLBACK} is no callable that returns a token and when it expires")
    client_id = settings.get(_CLIENT_ID, jaas.get("clientId", ""))
    client_secret = settings.get(_CLIENT_SECRET, jaas.get("clientSecret", ""))
    if url is not None:
        check_url(_URL, url)
        if not url.startswith("file:") and not (client_id.strip() and client_secret.strip()):
            raise UsageError(
                f"{_URL} needs {_CLIENT_ID} and {_CLIENT_SECRET}, or clientId and clientSecret in sasl.jaas.config"
            )
    claims = settings.get(_SCOPE_CLAIM, "scope"), settings.get(_SUB_CLAIM, "sub")
    backoff_s = _milliseconds(settings, _RETRY_MS, 100) / 1000, _milliseconds(settings, _RETRY_MAX_MS, 10_000) / 1000
    scope = settings.get(_SCOPE, jaas.get("scope", ""))
    config = settings.get(_CONFIG, "")
    found = _Settings(url, client_id, client_secret, scope, claims, backoff_s, config, callback)
    return _shared(found) if callback is None else _source(found)  # a callable may have no hash


def extensions_of(jaas: Mapping[str, str]) -> dict[str, str]:
    """The SASL extensions in sasl.jaas.config: options extension_NAME="VALUE" (KIP-342). Raises UsageError."""
    found = {name.removeprefix(_EXTENSION): value for name, value in jaas.items() if name.startswith(_EXTENSION)}
    for name, value in found.items():
        if not re.fullmatch("[A-Za-z]+", name) or name == "auth" or not re.fullmatch(r"[\x21-\x7e \t\r\n]+", value):
            raise UsageError(f"sasl.jaas.config: {_EXTENSION}{name[:50]}: a name has letters, a value printable ASCII")
    return found


def _source(settings: _Settings) -> TokenSource:
    if settings.callback is not None:
        return TokenSource(TOKEN_CALLBACK, lambda: _of_callback(settings))
    parts = urlsplit(str(settings.url))
    origin = f"{parts.scheme}://{parts.netloc}{parts.path}"  # a query may hold a secret
    retrieve = _of_file if parts.scheme == "file" else _of_endpoint
    return TokenSource(origin, lambda: retrieve(settings, origin))


_shared = lru_cache(maxsize=64)(_source)


def _of_callback(settings: _Settings) -> Token:
    assert settings.callback is not None
    try:
        text, expires, *_ = settings.callback(settings.config)
        return Token(_checked(text, TOKEN_CALLBACK), float(expires))
    except AuthenticationError:
        raise
    except Exception as error:  # of the caller's own code, whose text may have the token
        raise AuthenticationError(f"{TOKEN_CALLBACK} has failed with {type(error).__name__}") from None


def _of_file(settings: _Settings, origin: str) -> Token:
    try:
        text = fetch(str(settings.url)).decode("ascii").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no text of a token"
        raise AuthenticationError(f"the token cannot be read from {origin}: {reason}") from None
    return _of_jwt(text, settings.claims, origin)


def _of_endpoint(settings: _Settings, origin: str) -> Token:
    """The response of the endpoint; requests that may do better are repeated until retry.backoff.max.ms have passed."""
    login = b64encode(f"{settings.client_id}:{settings.client_secret}".encode()).decode()
    form = {"grant_type": "client_credentials"} | ({"scope": settings.scope} if settings.scope else {})
    pause_s, longest_s = settings.backoff_s
    ends = time.monotonic() + longest_s
    while True:
        try:
            response = fetch(str(settings.url), form, {"Authorization": f"Basic {login}"})
            break
        except (OSError, HTTPException, ValueError) as error:
            reason = _reason(error)
            status = getattr(error, "status", 0)
        if status in _FATAL:
            raise AuthenticationError(
                f"the token endpoint {origin} refuses the client {settings.client_id}: {reason}: check {_CLIENT_ID}, "
                f"{_CLIENT_SECRET} and {_SCOPE}"
            )
        if time.monotonic() + pause_s > ends:
            raise AuthenticationError(f"the token endpoint {origin} sends no token: {reason}")
        time.sleep(pause_s)  # Kafka's sasl.login.retry.backoff.ms: an endpoint does not say when it will do better
        pause_s *= 2
    try:
        text = json.loads(response)["access_token"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise AuthenticationError(f"the token endpoint {origin} sends no JSON object with an access_token") from None
    return _of_jwt(text, settings.claims, origin)


def _reason(error: Exception) -> str:
    """Without what the endpoint has sent but for the error code of RFC 6749: it may repeat the secret."""
    if isinstance(error, ResponseStatusError):
        code = None
        with suppress(ValueError, RecursionError, KeyError, TypeError):
            code = json.loads(error.document)["error"]
        known = isinstance(code, str) and _ERROR.fullmatch(code)
        return f"{error} ({code})" if known else str(error)
    cause = getattr(error, "reason", error)
    return str(getattr(cause, "strerror", None) or type(cause).__name__)


def _of_jwt(text: object, claims: tuple[str, str], origin: str) -> Token:
    """A JSON Web Token (RFC 7519), of which the broker checks the signature. Raises AuthenticationError."""
    token = _checked(text, origin)
    scope_name, sub_name = claims
    try:
        _, payload, _ = token.split(".")
        found = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        expires, subject, scope = found["exp"], found[sub_name], found.get(scope_name, "")
        scopes = scope if isinstance(scope, list) else [scope]
        is_valid = type(expires) in (int, float) and isinstance(subject, str) and subject.strip()
        if not is_valid or not all(isinstance(part, str) for part in scopes):
            raise ValueError
        return Token(token, float(expires))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, OverflowError):
        raise AuthenticationError(
            f"{origin} sends no JSON Web Token with a time `exp` and a name `{sub_name}`, and with text as "
            f"`{scope_name}`, if it has that"
        ) from None


def _checked(text: object, origin: str) -> str:
    """Raises AuthenticationError for what is no token of RFC 6750, and so could add to the message with it."""
    if not isinstance(text, str) or not _TOKEN.fullmatch(text) or len(text) > MAX_TOKEN_MESSAGE_BYTES:
        raise AuthenticationError(f"{origin} gives no bearer token of at most {MAX_TOKEN_MESSAGE_BYTES} characters")
    return text


def _milliseconds(settings: Mapping[str, Any], name: str, default: int) -> int:
    text = str(settings.get(name, default)).strip()
    if not re.fullmatch("[0-9]{1,9}", text) or not int(text):
        raise UsageError(f"{name} = {text[:50]}: must be a whole number above zero")
    return int(text)
