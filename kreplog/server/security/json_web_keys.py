"""JsonWebKeys: the public keys of the issuer of tokens, read from a file or URL and read again while they rotate.

A daemon thread reads them, so that an endpoint that hangs holds up neither the event loop nor the end of the process.
While they cannot be read the last ones count. A token with an unknown key has them read sooner, but no sooner than
retry.backoff.max.ms after the last time: whoever sends many such tokens does not flood the issuer. Nothing is
remembered of unknown keys.
Source: RFC 7517; KIP-768; Kafka's RefreshingHttpsJwks.
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from email.message import Message
from functools import partial
from io import BufferedIOBase
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from kreplog.config import SaslConfig
from kreplog.errors import AuthenticationError
from kreplog.server.network.connections import is_power_of_two

_log = logging.getLogger("kreplog.server")

PublicKey = RSAKey | ECKey

ALGORITHMS: dict[str, type[PublicKey]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), RSAKey),
    **dict.fromkeys(("ES256", "ES384", "ES512"), ECKey),
}
"""Algorithms of signatures and their type of keys: those of public keys alone. Neither `none` nor those of a shared
secret, for which a public key could be taken (CVE-2015-9235, RFC 8725)."""

MAX_DOCUMENT_BYTES = 1 << 20
MAX_KEYS = 100
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 8192
TIMEOUT_S = 10.0
FILE_INTERVAL_S = 1.0
"""Interval at which a file is read again."""


class JsonWebKeys:
    """The keys of sasl.oauthbearer.jwks.endpoint.url. attempted: called in the thread each time they have been read, or
    could not be."""

    def __init__(self, config: SaslConfig, attempted: Callable[[], None]) -> None:
        self.url = str(config.sasl_oauthbearer_jwks_endpoint_url)
        self._keys: tuple[PublicKey, ...] = ()
        self._document = b""
        self._attempted = attempted
        self._retry_s = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms / 1000
        self._max_retry_s = config.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms / 1000
        refresh_s = config.sasl_oauthbearer_jwks_endpoint_refresh_ms / 1000
        self._refresh_s = min(refresh_s, FILE_INTERVAL_S) if self.url.startswith("file:") else refresh_s
        self._wanted = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kreplog-jwks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """The thread ends after what it reads now."""
        self._closed.set()
        self._wanted.set()

    def find(self, key_id: object, algorithm: str) -> PublicKey:
        """The key by which a token is signed, for any thread; without an id the only one that fits the algorithm, which
        is one of ALGORITHMS. Raises AuthenticationError; for an unknown key the keys are read again."""
        kind, keys = ALGORITHMS[algorithm], self._keys
        if not keys:
            raise AuthenticationError(f"no keys have been read from {self.url} yet")
        fitting = [key for key in keys if isinstance(key, kind) and key.alg in (None, algorithm)]
        found = fitting if key_id is None else [key for key in fitting if key.kid == key_id]
        if not found:
            self._wanted.set()
            raise AuthenticationError(f"there is no key {str(key_id)[:100]!r} for {algorithm}: it is read again soon")
        if len(found) > 1:
            raise AuthenticationError(f"{len(found)} keys fit {algorithm} and the key id {str(key_id)[:100]!r}")
        return found[0]

    def _run(self) -> None:
        failures = 0
        while not self._closed.is_set():
            self._wanted.clear()
            pause_s = self._refresh_s
            try:
                self._read()
                failures = 0
            except Exception as error:  # whatever the endpoint sends: the last keys count
                failures += 1
                pause_s = min(self._retry_s * 2.0 ** min(failures - 1, 30), self._max_retry_s)
                if is_power_of_two(failures):
                    text = "keys of tokens cannot be read from %s, the last %d count: %s; attempts that failed: %d"
                    _log.warning(text, self.url, len(self._keys), error, failures)
            self._attempted()
            if not self._closed.wait(min(pause_s, self._max_retry_s)) and pause_s > self._max_retry_s:
                self._wanted.wait(pause_s - self._max_retry_s)

    def _read(self) -> None:
        """Raises OSError, ValueError."""
        document = fetch(self.url)
        if document != self._document:
            self._keys = parse_keys(document)
            self._document = document
            _log.info("keys of tokens are read from %s: %s", self.url, ", ".join(str(key.kid) for key in self._keys))


def parse_keys(document: bytes) -> tuple[PublicKey, ...]:
    """The keys of a JWK set that verify signatures of ALGORITHMS; others are left out (RFC 7517). Raises ValueError."""
    try:
        entries = json.loads(document)["keys"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise ValueError("it is no JWK set, a JSON object with the list `keys`") from error
    if not isinstance(entries, list) or len(entries) > MAX_KEYS:
        raise ValueError(f"`keys` is no list of at most {MAX_KEYS} keys")
    found = tuple(key for entry in entries if (key := _public_key(entry)) is not None)
    if not found:
        raise ValueError(f"it has no key for {', '.join(ALGORITHMS)}")
    return found


def _public_key(entry: Any) -> PublicKey | None:
    kinds: dict[str, type[PublicKey]] = {"RSA": RSAKey, "EC": ECKey}
    if not isinstance(entry, dict) or entry.get("kty") not in kinds or entry.get("use", "sig") != "sig":
        return None
    try:
        key = kinds[entry["kty"]].import_key(entry)
        key.check_key_op("verify")
        if isinstance(key, RSAKey) and not MIN_RSA_BITS <= key.public_key.key_size <= MAX_RSA_BITS:
            raise ValueError(f"an RSA key has {MIN_RSA_BITS} to {MAX_RSA_BITS} bits")
    except (JoseError, ValueError, TypeError, KeyError) as error:
        _log.warning("the key of tokens %s is left out: %s", str(entry.get("kid"))[:100], error)
        return None
    return key


def fetch(url: str) -> bytes:
    """The document at a URL of `file`, `https`, or `http`, without redirects. Raises OSError, ValueError."""
    if url.startswith("file:"):
        with open(unquote(urlsplit(url).path), "rb") as file:
            return _bounded(file)
    deadline = _Deadline()
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects(), _Http(deadline), _Https(deadline)]
    if url.startswith("http:"):
        handlers.append(urllib.request.ProxyHandler({}))  # of this host, and nobody else sees it
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with deadline, urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_S) as response:
        return _bounded(response)


def _bounded(source: BufferedIOBase) -> bytes:
    """All of a file or response. Raises OSError, ValueError."""
    found = bytearray()
    while part := source.read1(1 << 16):
        found += part
        if len(found) > MAX_DOCUMENT_BYTES:
            raise ValueError(f"it has more than {MAX_DOCUMENT_BYTES} bytes")
    return bytes(found)


class _Deadline:
    """Bounds a request as a whole, from the connection to the last byte: a time-out of sockets is one of each call.
    Leaving it raises TimeoutError if TIMEOUT_S have passed."""

    def __init__(self) -> None:
        self._ends = time.monotonic() + TIMEOUT_S
        self._lock = threading.Lock()
        self._is_over = False
        self._watched: list[socket.socket] = []
        self._timer = threading.Timer(TIMEOUT_S, self._end)
        self._timer.daemon = True

    def connect(self, address: tuple[str, int], *_: object) -> socket.socket:
        """As socket.create_connection, whose time-out is one of each of the host's addresses. Raises OSError."""
        failure: OSError | None = None
        for resolved in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            remaining_s = self._ends - time.monotonic()
            if remaining_s <= 0:
                break
            try:
                connection = socket.create_connection((str(resolved[4][0]), address[1]), remaining_s)
            except OSError as error:
                failure = error
                continue
            connection.settimeout(TIMEOUT_S)
            with self._lock:
                self._watched.append(connection.dup())  # TLS takes the descriptor over
                if self._is_over:
                    self._shut_down()
            return connection
        raise failure or TimeoutError

    def _end(self) -> None:
        with self._lock:
            self._is_over = True
            self._shut_down()

    def _shut_down(self) -> None:
        for connection in self._watched:
            with suppress(OSError):  # the other end has closed it
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._timer.cancel()
        with self._lock:
            for connection in self._watched:
                connection.close()
            self._watched.clear()
        if self._is_over or time.monotonic() >= self._ends:
            raise TimeoutError(f"it was not sent within {TIMEOUT_S:g} s") from error


class _HttpConnection(http.client.HTTPConnection):
    def __init__(self, deadline: _Deadline, host: str, **more: Any) -> None:
        super().__init__(host, **more)
        self._create_connection = deadline.connect


class _HttpsConnection(http.client.HTTPSConnection):
    def __init__(self, deadline: _Deadline, host: str, **more: Any) -> None:
        super().__init__(host, **more)
        self._create_connection = deadline.connect


class _Http(urllib.request.HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_HttpConnection, self._deadline), req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(partial(_HttpsConnection, self._deadline), req)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which could lead to where the setting may not."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message[str, str], newurl: str
    ) -> None:
        raise OSError(f"it is redirected to {newurl[:200]}: set sasl.oauthbearer.jwks.endpoint.url to that")
