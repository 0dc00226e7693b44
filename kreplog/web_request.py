"""Requests to identity providers: over https, or to this host alone; bounded in time and size, without redirects.

The certificate of an https server is verified by the CAs of the system, or those of SSL_CERT_FILE.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from email.message import Message
from functools import partial
from typing import IO, Any, Protocol
from urllib.parse import unquote, urlencode, urlsplit

from kreplog.errors import UsageError
from kreplog.types import is_loopback

MAX_DOCUMENT_BYTES = 1 << 20
TIMEOUT_S = 10.0
"""Of a request as a whole."""


def check_url(name: str, url: str) -> None:
    """Raise UsageError for the URL of the setting `name` if others on the way could answer in its place, or listen."""
    try:
        parts = urlsplit(url)
        host, credentials = parts.hostname or "", parts.username or parts.password
    except ValueError:
        parts, host, credentials = urlsplit(""), "", None
    is_allowed = {
        "file": host in ("", "localhost") and parts.path.startswith("/"),
        "https": bool(host),
        "http": is_loopback(host),
    }
    if not is_allowed.get(parts.scheme) or credentials:
        raise UsageError(
            f"{name} = {'(hidden)' if credentials else url}: must be https://HOST/PATH, file:///PATH, or http:// of a "
            "loopback address, without a name and password"
        )


class ResponseStatusError(OSError):
    """The server responds with an error. status: of HTTP; document: untrusted, may repeat what was sent."""

    def __init__(self, status: int, document: bytes) -> None:
        super().__init__(f"HTTP status {status}")
        self.status = status
        self.document = document


class _Readable(Protocol):
    def read1(self, size: int, /) -> bytes: ...


def fetch(url: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None) -> bytes:
    """The document at a URL of `file`, `https`, or `http`, without redirects; the response to `form` where one is sent.

    Raises OSError, of which ResponseStatusError is one; HTTPException, ValueError."""
    if url.startswith("file:"):
        with open(unquote(urlsplit(url).path), "rb") as file:
            return _bounded(file)
    deadline = _Deadline()
    handlers: list[urllib.request.BaseHandler] = [_NoRedirects(), _Http(deadline), _Https(deadline)]
    if url.startswith("http:"):
        handlers.append(urllib.request.ProxyHandler({}))  # of this host, and nobody else sees it
    body = None if form is None else urlencode(form).encode()
    request = urllib.request.Request(url, body, {"Accept": "application/json", **(headers or {})})
    with deadline:
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_S) as response:
                return _bounded(response)
        except urllib.error.HTTPError as error:
            with error:
                raise ResponseStatusError(error.code, _bounded(error)) from None


def _bounded(source: _Readable) -> bytes:
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
        raise OSError(f"it is redirected to {newurl[:200]}: set that URL")
