"""SaslHandlers: SaslHandshake and SaslAuthenticate, by the SaslConnection of each connection.

PLAIN takes milliseconds of CPU for a password, so that it is checked in a thread, one at a time: a flood of attempts
delays only others by PLAIN, and no attempt outlives its connection in the queue. A connection that fails is answered
and closed after connection.failed.authentication.delay.ms.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from kreplog.core.security.plain import PLAIN, PlainServer
from kreplog.core.security.sasl import (
    ILLEGAL_AUTHENTICATE,
    ILLEGAL_HANDSHAKE,
    AuthenticateResponse,
    SaslConnection,
    SaslMechanism,
)
from kreplog.core.security.scram import MAX_MESSAGE_BYTES, SCRAM_MECHANISMS, ScramMechanism, ScramServer
from kreplog.errors import PeerProtocolError
from kreplog.server.clock import monotonic_ms
from kreplog.server.listeners import Listener
from kreplog.server.network.connections import Frame
from kreplog.server.network.serving import RequestContext
from kreplog.server.security.credential_cache import CredentialCache
from kreplog.server.settings import BrokerSettings, sasl_settings
from kreplog.wire import generic

_log = logging.getLogger("kreplog.server")

_NONCE_BYTES = 24

_MAX_ENTRIES = 16
"""Maximum of entries, which all are unknown tags, in a request of somebody who may not be authenticated."""


class SaslHandlers:
    """Handlers of the requests of SASL. start: runs work in a task."""

    def __init__(
        self,
        cache: CredentialCache,
        settings: BrokerSettings,
        start: Callable[[Awaitable[None]], asyncio.Task[None]],
    ) -> None:
        self._cache = cache
        self._settings = {each.name: sasl_settings(settings, each.name) for each in settings.listeners}
        self._start = start
        self._pool = ThreadPoolExecutor(1, "kreplog-passwords")
        self._turn = asyncio.Lock()
        users = cache.credentials
        self._mechanisms = {
            name: SaslMechanism(partial(self._scram, scram)) for name, scram in SCRAM_MECHANISMS.items()
        }
        self._mechanisms[PLAIN] = SaslMechanism(lambda: PlainServer(users.is_password), is_costly=True)

    def connection(self, listener: Listener) -> SaslConnection:
        """The state of a new connection of a listener."""
        settings = self._settings[listener.name]
        mechanisms = {name: self._mechanisms[name] for name in settings.mechanisms}
        return SaslConnection(mechanisms, settings.connections_max_reauth_ms)

    def _scram(self, mechanism: ScramMechanism) -> ScramServer:
        nonce = secrets.token_urlsafe(_NONCE_BYTES)
        return ScramServer(mechanism, partial(self._cache.credentials.find, mechanism), nonce)

    def handshake(self, context: RequestContext, frame: Frame) -> None:
        request = generic.decode_request(frame, context.header, _MAX_ENTRIES)
        sasl = context.client.sasl
        response = ILLEGAL_HANDSHAKE
        if sasl is not None:
            response = sasl.handshake(request.mechanism, context.header.api_version, monotonic_ms())
        fields = {"error_code": response.error, "mechanisms": list(response.mechanisms)}
        buffers = generic.encode_response(context.header, **fields)
        if sasl is not None and sasl.failure:
            context.refuse(buffers)
        else:
            context.respond(buffers)

    def authenticate(self, context: RequestContext, frame: Frame) -> None:
        raw = context.client.expects_raw_token
        token = bytes(frame) if raw else generic.decode_request(frame, context.header, _MAX_ENTRIES).auth_bytes
        if len(token) > MAX_MESSAGE_BYTES:
            raise PeerProtocolError(f"a token of SASL of {len(token)} bytes: {MAX_MESSAGE_BYTES} at most")
        sasl = context.client.sasl
        if sasl is None:
            self._respond(context, ILLEGAL_AUTHENTICATE, raw)
        elif sasl.is_costly or not self._cache.loaded.is_set():
            context.hold(len(token))
            context.client.authentication = self._start(self._authenticate_later(context, sasl, token, raw))
        else:
            self._respond(context, sasl.authenticate(token, monotonic_ms()), raw)

    async def _authenticate_later(self, context: RequestContext, sasl: SaslConnection, token: bytes, raw: bool) -> None:
        """Authenticate once the users are known; in a thread where that takes long, when it is its turn. Later requests
        wait, since the connection is held."""
        try:
            await self._cache.loaded.wait()
            if sasl.is_costly:
                async with self._turn:
                    work = partial(sasl.authenticate, token, monotonic_ms())
                    response = await asyncio.get_running_loop().run_in_executor(self._pool, work)
            else:
                response = sasl.authenticate(token, monotonic_ms())
            self._respond(context, response, raw)
        except Exception:
            _log.exception("%s: SASL failed; its connection is closed", context.client.peer)
            context.close()
        finally:
            context.release(len(token))

    def _respond(self, context: RequestContext, response: AuthenticateResponse, raw: bool) -> None:
        sasl = context.client.sasl
        if sasl is not None and sasl.is_authenticated:
            context.client.authenticated(sasl.principal)
        buffers: Sequence[Any] = (struct.pack(">i", len(response.auth_bytes)), response.auth_bytes)
        if not raw:
            buffers = generic.encode_response(
                context.header,
                error_code=response.error,
                error_message=response.message,
                auth_bytes=response.auth_bytes,
                session_lifetime_ms=response.session_lifetime_ms,
            )
        if sasl is not None and sasl.failure:
            context.refuse(() if raw else buffers)
        else:
            context.respond(buffers)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
