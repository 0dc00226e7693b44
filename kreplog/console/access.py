"""ConsoleAccess: which requests the console answers.

The console listens on loopback addresses alone, which keeps out other hosts, but neither other users of this host nor
pages of other sites in the same browser. So a request needs

- a Host of the console: a foreign name that resolves to 127.0.0.1 (DNS rebinding) is refused;
- no Origin but the console's, and no Sec-Fetch-Site but same-origin or none: pages of other sites, and of other ports
  of this host, are refused. What changes something, and a websocket, needs an Origin;
- a session: the one-time token of an address that was printed is exchanged for a cookie; or the bearer token of a
  proxy that authenticates its users.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from aiohttp import web

from kreplog.errors import UsageError

LOGIN = "/login"
MAX_SESSIONS = 100
"""Browsers that may be logged in; the oldest session ends beyond that."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ConsoleAccess:
    """The tokens and sessions of one console at `port`. origin: "https://host" of a proxy in front of it, "" for none.
    bearer: the proxy's token, "" for none. announce: is called with each new one-time token. known: connections that
    have sent a request with a session.

    Raises UsageError for an origin that is none."""

    def __init__(self, port: int, announce: Callable[[str], None], origin: str = "", bearer: str = "") -> None:
        self._cookie = f"kreplog-console-{port}"  # browsers send the cookies of one port to all ports of a host
        self._hosts = {f"{host}:{port}" for host in ("127.0.0.1", "localhost", "[::1]")}
        self._origins = {f"http://{host}" for host in self._hosts}
        self._https_host = ""
        if origin:
            parts = urlsplit(origin)
            if (
                parts.scheme not in ("http", "https")
                or not parts.netloc
                or origin != f"{parts.scheme}://{parts.netloc}"
            ):
                raise UsageError(f"--origin {origin!r}: give scheme and host, as in https://kafka.example.com")
            self._hosts.add(parts.netloc)
            self._origins.add(origin)
            if parts.scheme == "https":
                self._https_host = parts.netloc
        self._bearer = bearer
        self._announce = announce
        self._sessions: dict[str, None] = {}
        self.known: set[asyncio.Protocol] = set()
        self._token = ""
        self.renew_token()

    def renew_token(self) -> None:
        """Replace the one-time token, and announce the new one."""
        self._token = secrets.token_urlsafe(32)
        self._announce(self._token)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse a request that lacks what the module requires; exchange a token for a cookie."""
        if request.host not in self._hosts:
            raise web.HTTPMisdirectedRequest(
                text=f"{request.host} is not this console: open the address that `kreplog console` printed\n"
            )
        self._check_origin(request)
        if request.path == LOGIN:
            return self._log_in(request)
        if not self._has_session(request):
            raise web.HTTPUnauthorized(
                text="no session with this console: open the address that `kreplog console` printed last; it works "
                "once, then the next one is printed\n"
            )
        self.known.add(request.protocol)
        return await handler(request)

    def _check_origin(self, request: web.Request) -> None:
        origin = request.headers.get("Origin")
        changes = request.method not in ("GET", "HEAD") or "Upgrade" in request.headers
        foreign = origin not in self._origins if origin is not None else changes
        if foreign or request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise web.HTTPForbidden(text="this request comes from another site's page, which may not use the console\n")

    def _has_session(self, request: web.Request) -> bool:
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if self._bearer and kind.lower() == "bearer" and _equal(token, self._bearer):
            return True
        return request.cookies.get(self._cookie, "") in self._sessions

    def _log_in(self, request: web.Request) -> web.StreamResponse:
        token = request.query.get("token", "")
        if not _equal(token, self._token):
            if self._has_session(request):  # the page is opened again by its first address
                raise web.HTTPSeeOther("/")
            raise web.HTTPUnauthorized(
                text="this token is wrong or was used: open the address that `kreplog console` printed last\n"
            )
        session = secrets.token_urlsafe(32)
        self._sessions[session] = None
        self._trim()
        self.renew_token()
        response = web.Response(status=303, headers={"Location": "/"})
        secure = request.host == self._https_host
        response.set_cookie(self._cookie, session, secure=secure, httponly=True, samesite="Strict", path="/")
        return response

    def _trim(self) -> None:
        while len(self._sessions) > MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]


def _equal(given: str, secret: str) -> bool:
    """In a time that does not depend on where they differ. given: of a request, any bytes."""
    return hmac.compare_digest(given.encode(errors="surrogateescape"), secret.encode())


async def add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """For Application.on_response_prepare: every response has HEADERS, errors too; a page of its own has its policy."""
    response.headers.update({**HEADERS, **response.headers})
